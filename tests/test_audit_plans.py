"""Whoever asks for the records of a handoff, a task, a sender or a receiver reads those and not the trail,
also by a plan that was made without knowing which, and as an agent that sees a part of it.

CALIBER_PLAN_RECORDS=150000 has more records there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

import pytest
from conftest import Connect, Connection, scalar

RECORDS = int(os.environ.get("CALIBER_PLAN_RECORDS", "20000"))

# Three records a handoff, six a task. Ann handed over half of them, bob took the other half, and eve has one
# handoff from each of them.
LOAD = """
    insert into caliber_audit (
        team_id, audit_no, recorded_at, event_type, handoff_id, handoff_type, trajectory_id, task_id,
        from_agent_id, to_agent_id, reason, risk_level, is_escalation, content_hash, prev_hash, hash
    )
    select
        a.team_id, n, now() - (%s - n) * interval '1 s', 'accepted', md5((n / 3)::text)::uuid, 'sequential',
        t.trajectory_id, 't' || n / 6, a.agent_id, b.agent_id, 'x', 'low',
        false, '', '', sha256(n::text::bytea)
    from generate_series(1, %s) as n
    join caliber_agent as a
        on a.name = case when n / 3 = 700 then 'eve' when n %% 2 = 0 then 'ann' else 'a' || n %% 30 end
    join caliber_agent as b
        on b.name = case when n / 3 = 900 then 'eve' when n %% 2 = 1 then 'bob' else 'b' || n %% 30 end
    join caliber_trajectory as t on t.agent_id = a.agent_id
"""

READ = """
    select coalesce(sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), 0)
    from pg_stat_xact_user_tables where relname = 'caliber_audit'
"""

HANDOFF = hashlib.md5(b"700", usedforsecurity=False).hexdigest()

# By what is asked for: the call, the argument and its type, and how many records there are of it.
QUERIES = {
    "handoff": ("caliber_audit_trail(handoff_id => {})", f"'{HANDOFF}'", "uuid", 3),
    "task": ("caliber_audit_trail(task_id => {})", "'t350'", "text", 6),
    "sender": ("caliber_audit_trail(from_agent_id => {})", "{eve}", "uuid", 3),
    "receiver": ("caliber_audit_trail(to_agent_id => {})", "{eve}", "uuid", 3),
    "busy sender": ("caliber_audit_trail(from_agent_id => {}, max_records => 50)", "{ann}", "uuid", 50),
    "newest": ("caliber_audit_trail(max_records => {})", "50", "integer", 50),
    "export of a handoff": ("caliber_audit_export(handoff_id => {})", f"'{HANDOFF}'", "uuid", 3),
    "export of a time": ("caliber_audit_export(since => {})", "{since}", "timestamptz", 20),
}


@pytest.fixture
def trail(db: Connection) -> dict[str, str]:
    names = ["ann", "bob", "eve", *(f"{side}{n}" for side in "ab" for n in range(30))]
    db.execute(
        "select caliber_trajectory_start('work', a) from unnest(%s::text[]) as n,"
        " lateral caliber_agent_register('coder', name => n) as a",
        (names,),
    )
    db.execute(LOAD, (RECORDS, RECORDS))
    db.execute("analyze")
    rows = db.execute("select name, agent_id::text as id from caliber_agent").fetchall()
    since = scalar(db, "select max(recorded_at)::text from caliber_audit where audit_no = %s", RECORDS - 19)
    return {**{str(row["name"]): str(row["id"]) for row in rows}, "since": str(since)}


def read(db: Connection, work: Callable[[], object]) -> int:
    with db.transaction():
        before = int(str(scalar(db, READ)))
        work()
        return int(str(scalar(db, READ))) - before


def quoted(trail: dict[str, str], value: str) -> str:
    return value.format(**{name: f"'{key}'" for name, key in trail.items()})


@pytest.mark.parametrize("form", ["constant", "computed", "kept"])
@pytest.mark.parametrize("what", QUERIES)
def test_what_is_asked_for_is_read_by_index(
    db: Connection, trail: dict[str, str], what: str, form: str
) -> None:
    call, argument, kind, count = QUERIES[what]
    argument = quoted(trail, argument)
    if form == "kept":
        # As a client that keeps its statements: the server has settled on a plan by then.
        db.execute(f"prepare kept ({kind}) as select * from {call.format('$1')}")
        query = f"execute kept ({argument})"
        for _ in range(12):
            db.execute(query)
    else:
        given = argument if form == "constant" else f"(select {argument}::{kind})"
        query = f"select * from {call.format(given)}"
    found: list[int] = []
    fetched = read(db, lambda: found.append(len(db.execute(query).fetchall())))
    assert found == [count]
    assert fetched <= 2 * count


@pytest.mark.parametrize("query", ["caliber_audit_export()", "caliber_audit_trail(from_agent_id => {eve})"])
def test_an_agent_reads_its_own_by_index(
    db: Connection, connect: Connect, roles: Callable[[str | None], str], trail: dict[str, str], query: str
) -> None:
    login = roles("caliber_agent")
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (login, trail["eve"]))
    hand = connect(login)
    found: list[int] = []
    asked = f"select * from {quoted(trail, query)}"
    fetched = read(hand, lambda: found.append(len(hand.execute(asked).fetchall())))
    assert found == [6 if "export" in query else 3]
    assert fetched <= 12
