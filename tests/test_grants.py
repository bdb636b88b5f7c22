"""Grants: what one agent may do with another."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from conftest import Connect, Connection, scalar, state

Agents = dict[str, object]
GIVE = "select caliber_grant_access(%s, %s, %s)"
REVOKE = "select caliber_revoke_access(%s, %s, %s)"


@pytest.fixture
def agents(db: Connection) -> Agents:
    """Four agents of four teams, so that nothing is shared by default."""
    made: Agents = {}
    for name in ("ann", "bob", "cyd", "dan"):
        db.execute("select caliber_team_create(%s)", (f"team-{name}",))
        made[name] = scalar(
            db, "select caliber_agent_register('coder', name => %s, team => %s)", name, f"team-{name}"
        )
    return made


@pytest.fixture
def login(
    db: Connection, connect: Connect, agents: Agents, roles: Callable[[str | None], str]
) -> Callable[[str], Connection]:
    opened: dict[str, Connection] = {}

    def make(name: str) -> Connection:
        if name not in opened:
            role = roles("caliber_agent")
            db.execute("update caliber_agent set login_role = %s where agent_id = %s", (role, agents[name]))
            opened[name] = connect(role)
        return opened[name]

    return make


def names(connection: Connection) -> set[object]:
    return {row["name"] for row in connection.execute("select name from caliber_agents")}


def test_reading_another_needs_a_grant_and_ends_with_it(
    db: Connection, agents: Agents, login: Callable[[str], Connection]
) -> None:
    ann = login("ann")
    assert names(ann) == {"ann"}
    assert scalar(db, GIVE, agents["bob"], agents["ann"], "read_transcript") is True
    assert names(ann) == {"ann", "bob"}
    assert scalar(ann, "select count(*) from caliber_agent_beat") == 2
    summaries = {r["summary"] for r in ann.execute("select summary from caliber_events_since()")}
    assert "bob registered" in summaries
    assert "cyd registered" not in summaries
    # The other two rights do not let it read.
    db.execute(GIVE, (agents["cyd"], agents["ann"], "send_messages"))
    db.execute(GIVE, (agents["cyd"], agents["ann"], "administer_grants"))
    assert names(ann) == {"ann", "bob"}
    assert scalar(db, REVOKE, agents["bob"], agents["ann"], "read_transcript") == 1
    assert names(ann) == {"ann"}


def test_a_revoked_grant_is_gone_for_a_prepared_statement(
    db: Connection, agents: Agents, login: Callable[[str], Connection]
) -> None:
    ann = login("ann")
    db.execute(GIVE, (agents["bob"], agents["ann"], "read_transcript"))
    ann.execute("prepare seen as select count(*) from caliber_agent")
    for _ in range(7):  # past the five custom plans
        assert scalar(ann, "execute seen") == 2
    db.execute(REVOKE, (agents["bob"], agents["ann"], "read_transcript"))
    assert scalar(ann, "execute seen") == 1
    # Also within a transaction that has read before.
    db.execute(GIVE, (agents["bob"], agents["ann"], "read_transcript"))
    with ann.transaction():
        assert scalar(ann, "execute seen") == 2
        db.execute(REVOKE, (agents["bob"], agents["ann"], "read_transcript"))
        assert scalar(ann, "execute seen") == 1


def test_giving_and_revoking_twice_is_once(db: Connection, agents: Agents) -> None:
    arguments = (agents["bob"], agents["ann"], "send_messages")
    assert scalar(db, GIVE, *arguments) is True
    assert scalar(db, GIVE, *arguments) is False
    assert scalar(db, "select count(*) from caliber_grant") == 1
    assert scalar(db, REVOKE, *arguments) == 1
    assert scalar(db, REVOKE, *arguments) == 0
    events = db.execute("select event_type from caliber_event where event_type ~ 'access'").fetchall()
    assert [e["event_type"] for e in events] == ["access_granted", "access_revoked"]


def test_spawning_gives_the_parent_all_three(
    db: Connection, agents: Agents, login: Callable[[str], Connection]
) -> None:
    ann = login("ann")
    kid = scalar(ann, "select caliber_agent_spawn(%s, 'helper', name => 'kid')", agents["ann"])
    rows = ann.execute("select capability from caliber_my_access where target_agent_id = %s", (kid,))
    assert {r["capability"] for r in rows} == {"read_transcript", "send_messages", "administer_grants"}
    # And with administer_grants it lets a stranger in.
    bob = login("bob")
    assert "kid" not in names(bob)
    assert scalar(ann, GIVE, kid, agents["bob"], "read_transcript") is True
    assert "kid" in names(bob)
    grantees = db.execute("select grantee, given_by from caliber_grant_list(%s)", (agents["bob"],)).fetchall()
    assert grantees == [{"grantee": "bob", "given_by": "ann"}]


def test_nobody_gives_what_it_may_not(
    db: Connection, agents: Agents, login: Callable[[str], Connection]
) -> None:
    ann = login("ann")
    # Not on a stranger, not on itself, and not to itself.
    assert state(ann, GIVE, agents["bob"], agents["ann"], "read_transcript") == "42501"
    assert state(ann, GIVE, agents["ann"], agents["bob"], "read_transcript") == "42501"
    assert state(ann, GIVE, uuid.uuid4(), agents["ann"], "read_transcript") == "42501"
    # To administer is not to read: it cannot be widened to that.
    db.execute(GIVE, (agents["bob"], agents["ann"], "administer_grants"))
    assert state(ann, GIVE, agents["bob"], agents["ann"], "read_transcript") == "42501"
    assert state(ann, GIVE, agents["bob"], agents["cyd"], "read_transcript") == "42501"
    assert scalar(ann, GIVE, agents["bob"], agents["cyd"], "administer_grants") is True
    # To read is not to administer.
    db.execute(GIVE, (agents["dan"], agents["ann"], "read_transcript"))
    assert state(ann, GIVE, agents["dan"], agents["cyd"], "read_transcript") == "42501"
    # And nobody names another as the grantor.
    query = "select caliber_grant_access(%s, %s, 'administer_grants', %s)"
    assert state(ann, query, agents["bob"], agents["dan"], agents["cyd"]) == "42501"
    assert scalar(db, "select count(*) from caliber_grant") == 3


def both(db: Connection, target: object, grantee: object, grantor: object = None) -> None:
    for capability in ("administer_grants", "read_transcript"):
        db.execute("select caliber_grant_access(%s, %s, %s, %s)", (target, grantee, capability, grantor))


def test_revoking_cascades_in_chains_and_circles(db: Connection, agents: Agents) -> None:
    target = agents["dan"]
    both(db, target, agents["ann"])
    both(db, target, agents["bob"], agents["ann"])
    both(db, target, agents["cyd"], agents["bob"])
    # A circle: cyd gives back to bob what it has from bob.
    both(db, target, agents["bob"], agents["cyd"])
    assert scalar(db, "select count(*) from caliber_grant") == 8
    # The right to read goes, and with it all that was passed on of it; to administer stays.
    assert scalar(db, REVOKE, target, agents["ann"], "read_transcript") == 4
    assert scalar(db, "select count(*) from caliber_grant where capability = 'administer_grants'") == 4
    assert scalar(db, REVOKE, target, agents["ann"], "administer_grants") == 4
    assert scalar(db, "select count(*) from caliber_grant") == 0


def test_what_stands_on_another_grant_stays(db: Connection, agents: Agents) -> None:
    target = agents["dan"]
    both(db, target, agents["ann"])
    both(db, target, agents["bob"])
    both(db, target, agents["cyd"], agents["ann"])
    db.execute(
        "select caliber_grant_access(%s, %s, 'read_transcript', %s)", (target, agents["cyd"], agents["bob"])
    )
    # Only ann's gift to cyd goes; cyd still reads by bob's.
    assert scalar(db, REVOKE, target, agents["ann"], "administer_grants") == 3
    left = db.execute("select given_by from caliber_grant_list(%s)", (agents["cyd"],)).fetchall()
    assert left == [{"given_by": "bob"}]


def test_an_agent_takes_back_what_it_gave_and_no_more(
    db: Connection, agents: Agents, login: Callable[[str], Connection]
) -> None:
    ann = login("ann")
    both(db, agents["dan"], agents["ann"])
    db.execute(GIVE, (agents["dan"], agents["bob"], "read_transcript"))
    ann.execute(GIVE, (agents["dan"], agents["cyd"], "read_transcript"))
    assert scalar(ann, REVOKE, agents["dan"], agents["bob"], "read_transcript") == 0
    assert scalar(ann, REVOKE, agents["dan"], agents["cyd"], "read_transcript") == 1
    # What is not its business it cannot tell from what does not exist.
    assert scalar(ann, REVOKE, agents["cyd"], agents["bob"], "read_transcript") == 0
    assert scalar(ann, REVOKE, uuid.uuid4(), agents["bob"], "read_transcript") == 0


def test_an_agent_cannot_hold_up_another_by_revoking(
    db: Connection, agents: Agents, login: Callable[[str], Connection]
) -> None:
    ann = login("ann")
    with ann.transaction():
        ann.execute(REVOKE, (agents["bob"], agents["cyd"], "read_transcript"))
        db.execute("set lock_timeout = '2s'")
        assert scalar(db, "select caliber_agent_set_status(%s, 'active')", agents["bob"]) == "idle"


def test_the_views_tell_both_sides(
    db: Connection, agents: Agents, login: Callable[[str], Connection]
) -> None:
    ann, bob = login("ann"), login("bob")
    db.execute(GIVE, (agents["bob"], agents["ann"], "read_transcript"))
    mine = ann.execute("select target, capability, given_by from caliber_my_access").fetchall()
    assert mine == [{"target": "bob", "capability": "read_transcript", "given_by": None}]
    to_me = bob.execute("select grantee_agent_id, capability from caliber_access_to_me").fetchall()
    assert to_me == [{"grantee_agent_id": agents["ann"], "capability": "read_transcript"}]
    assert scalar(login("cyd"), "select count(*) from caliber_grant") == 0
    assert scalar(login("cyd"), "select count(*) from caliber_my_access") == 0


def test_bad_input(db: Connection, agents: Agents) -> None:
    assert state(db, GIVE, None, agents["ann"], "read_transcript") == "22023"
    assert state(db, GIVE, agents["bob"], None, "read_transcript") == "22023"
    assert state(db, GIVE, agents["bob"], agents["ann"], None) == "22023"
    assert state(db, GIVE, agents["ann"], agents["ann"], "read_transcript") == "22023"
    assert state(db, GIVE, agents["ann"], agents["bob"], "fly") == "22P02"
    assert state(db, GIVE, uuid.uuid4(), agents["bob"], "read_transcript") == "P0002"
    assert state(db, GIVE, agents["bob"], uuid.uuid4(), "read_transcript") == "P0002"
    db.execute("select caliber_agent_terminate(%s)", (agents["ann"],))
    assert state(db, GIVE, agents["bob"], agents["ann"], "read_transcript") == "KA007"
    assert state(db, GIVE, agents["ann"], agents["bob"], "read_transcript") == "KA007"
    assert state(db, "select * from caliber_grant_list(max_grants => 0)") == "22023"
    assert scalar(db, "select count(*) from caliber_grant") == 0
