"""Events: append-only, levels, notifications, and a cursor that skips nothing."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
from conftest import Connect, Connection, scalar, state

RECORD = "select caliber_event_record('probe', %s)"


def follow(db: Connection, cursor: str | None) -> tuple[list[str], str | None]:
    """As docs/events.md does it: where nothing came back, the cursor moves up to before the read."""
    seen: list[str] = []
    while True:
        here = str(scalar(db, "select caliber_event_cursor()"))
        rows = db.execute("select * from caliber_events_since(%s)", (cursor,)).fetchall()
        if not rows:
            return seen, here
        seen += [str(r["summary"]) for r in rows if r["event_type"] == "probe"]
        cursor = str(rows[-1]["next_cursor"])


def test_a_late_commit_is_not_skipped(connect: Connect, db: Connection) -> None:
    slow = connect(autocommit=False)
    slow.execute(RECORD, ("slow",))
    db.execute(RECORD, ("fast",))
    early, cursor = follow(db, None)
    assert early == []
    slow.commit()
    late, _ = follow(db, cursor)
    assert late == ["slow", "fast"]


def test_eight_writers_with_delays_and_no_event_is_missed(connect: Connect, db: Connection) -> None:
    writers = [connect(autocommit=False) for _ in range(8)]
    written: list[str] = []
    done = threading.Event()

    def write(number: int, connection: Connection) -> None:
        chance = random.Random(number)
        for i in range(40):
            name = f"{number}-{i}"
            connection.execute(RECORD, (name,))
            connection.execute("select pg_sleep(%s)", (chance.random() * 0.01,))
            connection.commit()
            written.append(name)

    threads = [threading.Thread(target=write, args=pair) for pair in enumerate(writers)]
    for thread in threads:
        thread.start()
    seen: list[str] = []
    cursor: str | None = None
    while not done.is_set():
        if not any(thread.is_alive() for thread in threads):
            done.set()
        found, cursor = follow(db, cursor)
        seen += found
    assert sorted(seen) == sorted(written)
    assert len(seen) == 320


def test_cursor_now_starts_after_what_is_final(connect: Connect, db: Connection) -> None:
    db.execute(RECORD, ("before",))
    pending = connect(autocommit=False)
    pending.execute(RECORD, ("pending",))
    cursor = str(scalar(db, "select caliber_event_cursor()"))
    pending.commit()
    db.execute(RECORD, ("after",))
    assert follow(db, cursor)[0] == ["pending", "after"]


def test_since_pages_and_refuses_bad_input(db: Connection) -> None:
    for number in range(5):
        db.execute(RECORD, (str(number),))
    rows = db.execute("select * from caliber_events_since(null, 3)").fetchall()
    assert [r["summary"] for r in rows] == ["0", "1", "2"]
    for cursor in ("", "x", "1-2", "1-2-3; drop", "-1-2-3", "1" * 50):
        assert state(db, "select * from caliber_events_since(%s)", cursor) == "22023"
    for limit in (0, -1, 1001, None):
        assert state(db, "select * from caliber_events_since(null, %s::int)", limit) == "22023"


def test_since_reads_by_index(db: Connection) -> None:
    db.execute(
        "insert into caliber_event (severity, category, event_type, actor, summary)"
        " select 'info', 'system', 'bulk', 'x', 'x' from generate_series(1, 20000)"
    )
    db.execute("analyze caliber_event")
    plan = db.execute("explain select * from caliber_events_since('1-3-0', 10)").fetchall()
    text = "\n".join(str(r["QUERY PLAN"]) for r in plan)
    assert "caliber_event_position_idx" in text
    assert "Index Cond" in text


def test_an_agent_finds_its_own_by_index(
    db: Connection, connect: Connect, roles: Callable[[str | None], str]
) -> None:
    """Row security leaves the planner the index: the policy is checked on what that finds."""
    agent = scalar(db, "select caliber_agent_register('coder')")
    login = roles("caliber_agent")
    db.execute("update caliber_agent set login_role = %s", (login,))
    db.execute(
        "insert into caliber_event (severity, category, event_type, actor, summary, source_agent_id)"
        " select 'info', 'system', 'bulk', 'x', 'x', case when n %% 200 = 0"
        " then %s::uuid else gen_random_uuid() end from generate_series(1, 20000) as n",
        (agent,),
    )
    db.execute("analyze caliber_event")
    session = connect(login)
    query = "select * from caliber_event where source_agent_id = %s"
    assert len(session.execute(query, (agent,)).fetchall()) == 101
    plan = "\n".join(str(r["QUERY PLAN"]) for r in session.execute(f"explain {query}", (agent,)))
    assert "caliber_event_source_idx" in plan
    assert "Seq Scan on caliber_event" not in plan


@pytest.mark.parametrize(
    "statement",
    ["update caliber_event set summary = 'x'", "delete from caliber_event", "truncate caliber_event"],
)
def test_events_are_append_only(db: Connection, statement: str) -> None:
    db.execute(RECORD, ("kept",))
    assert state(db, statement) == "42501"
    assert follow(db, None)[0] == ["kept"]


def test_purge_deletes_only_what_is_past_retention(db: Connection) -> None:
    old = (
        "insert into caliber_event (severity, category, event_type, actor, summary, recorded_at)"
        " select 'info', 'system', 'probe', 'x', 'old', now() - interval '91 days'"
        " from generate_series(1, 5)"
    )
    db.execute(old)
    db.execute(RECORD, ("young",))
    assert scalar(db, "select caliber_event_purge(3)") == 3
    assert scalar(db, "select caliber_event_purge()") == 2
    assert scalar(db, "select caliber_event_purge()") == 0
    assert follow(db, None)[0] == ["young"]
    assert state(db, "select caliber_event_purge(0)") == "22023"


def test_level_drops_what_is_below_it(db: Connection) -> None:
    record = "select caliber_event_record('probe', 'x', severity => %s)"
    assert scalar(db, record, "debug") is None
    assert scalar(db, record, "info") is not None
    db.execute("select caliber_config_set('event_level', 'error')")
    assert scalar(db, record, "warning") is None
    assert scalar(db, record, "critical") is not None


def test_what_is_said_differs_from_what_was_done(db: Connection) -> None:
    agent = scalar(db, "select caliber_agent_register('coder', name => 'ann')")
    db.execute("select caliber_event_record('agent_terminated', 'ann is terminated', %s)", (agent,))
    db.execute("select caliber_agent_terminate(%s)", (agent,))
    rows = db.execute(
        "select reported from caliber_events_since() where event_type = 'agent_terminated' order by event_id"
    )
    assert [r["reported"] for r in rows] == [True, False]


def test_record_refuses_bad_input(db: Connection) -> None:
    for arguments in (
        "null, 'x'",
        "'', 'x'",
        "'probe', null",
        "'probe', ''",
        "'probe', repeat('x', 1001)",
        "'probe', 'x', details => '[]'",
        "'probe', 'x', details => null",
        "'probe', 'x', severity => null",
        "'probe', 'x', reference_id => repeat('x', 1001)",
    ):
        assert state(db, f"select caliber_event_record({arguments})") == "22023"
    assert state(db, "select caliber_event_record('probe', 'x', gen_random_uuid())") == "P0002"


def test_notification_once_a_transaction_and_category(connect: Connect, db: Connection) -> None:
    listener = connect()
    listener.execute("listen caliber_event")
    with db.transaction():
        db.execute(RECORD, ("one",))
        db.execute(RECORD, ("two",))
    heard = list(listener.notifies(timeout=5, stop_after=1))
    assert [(n.channel, n.payload) for n in heard] == [("caliber_event", "agent")]
    assert list(listener.notifies(timeout=0.1)) == []
    db.execute("select caliber_config_set('event_notify', 'off')")
    list(listener.notifies(timeout=0.5))
    db.execute(RECORD, ("three",))
    assert list(listener.notifies(timeout=0.3)) == []
