"""What conflicts tell to whom: nothing of a text that its reader could not read otherwise."""

from __future__ import annotations

from collections.abc import Callable

from conftest import Connect, Connection, scalar, state
from test_conflicts import DETECT, Work

Roles = Callable[[str | None], str]


def login(db: Connection, connect: Connect, roles: Roles, name: str) -> Connection:
    session = connect(roles("caliber_agent"))
    role = scalar(session, "select current_user::text")
    db.execute("update caliber_agent set login_role = %s where name = %s", (role, name))
    return session


def test_a_party_learns_nothing_of_a_text_it_cannot_read(
    db: Connection, connect: Connect, roles: Roles
) -> None:
    work = Work(db)
    own, team = ('[{"memory_type": "*", "scope": "' + scope + '"}]' for scope in ("own", "team"))
    register = "select caliber_agent_register('coder', name => 'bob', memory_access => %s::jsonb)"
    bob = scalar(db, register, f'{{"read": {own}, "write": {team}}}')
    work.fact("The password of the vault is Xyzzy.", "[1,0]")
    work.fact("The password of the vault is Plugh.", "[1,0]", f", agent_id => '{bob}'")
    (kept,) = work.detect()
    assert "Xyzzy" in str(kept["evidence"])
    session = login(db, connect, roles, "bob")
    assert state(session, DETECT, work.trajectory) == "P0002"
    # The evidence has words of both texts: the conflict is not shown, and passing it up tells nothing.
    seen = "select count(*) from caliber_conflict_list()"
    for source in ("caliber_conflict", "caliber_conflicts", "caliber_conflict_list()"):
        assert scalar(session, f"select count(*) from {source}") == 0
    for strategy in ("escalate", "merge"):
        resolve = "select * from caliber_resolve_conflict(%s, %s)"
        assert state(session, resolve, kept["conflict_id"], strategy) == "P0002"
    assert state(session, "select caliber_claim_conflict(%s, %s)", kept["conflict_id"], bob) == "P0002"
    assert scalar(login(db, connect, roles, "ann"), seen) == 1
    check = "select * from caliber_check_fact(%s, 'The password of the vault is Plugh.', '[1,0]')"
    assert state(session, check, work.trajectory) == "P0002"
    # Who may read what the other writes sees it.
    db.execute("select caliber_grant_access(%s, %s, 'read_transcript')", (work.agent, bob))
    assert scalar(session, seen) == 1
    escalate = "select status::text from caliber_resolve_conflict(%s, 'escalate')"
    assert scalar(session, escalate, kept["conflict_id"]) == "escalated"
