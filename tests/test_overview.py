"""What people look at: caliber_overview, caliber_health, caliber_queue_stats, caliber_waits."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable

import pytest
from conftest import ROOT, Connect, Connection, scalar, state

Roles = Callable[[str | None], str]
VIEWS = ("caliber_overview", "caliber_health", "caliber_queue_stats", "caliber_waits")


@pytest.fixture
def agents(db: Connection) -> list[object]:
    db.execute("select caliber_team_create('default')")
    return [scalar(db, "select caliber_agent_register('coder', name => %s)", n) for n in ("ann", "bob")]


def overview(db: Connection) -> dict[object, object]:
    return {row["topic"]: row["amount"] for row in db.execute("select * from caliber_overview")}


def health(db: Connection, name: str) -> tuple[object, object]:
    row = db.execute("select severity::text, remedy from caliber_health where name = %s", (name,)).fetchone()
    assert row
    return row["severity"], row["remedy"]


def test_an_empty_database_can_be_looked_at(db: Connection) -> None:
    for view in VIEWS:
        db.execute(f"select * from {view}").fetchall()
    assert health(db, "tick")[0] == "warning"
    db.execute("select caliber_tick()")
    found = db.execute("select name, severity::text, remedy from caliber_health").fetchall()
    # What other databases of this cluster do is not this test's.
    mine = [row for row in found if row["name"] not in ("open transactions", "replication slots")]
    assert len(mine) >= 10
    assert {(row["severity"], row["remedy"]) for row in mine} == {("info", None)}


def test_the_overview_counts(db: Connection, agents: list[object]) -> None:
    ann, bob = agents
    db.execute("select caliber_lock_acquire(%s, 'thing', 'a'::text)", (ann,))
    db.execute("select caliber_token_request(%s, 'review')", (ann,))
    db.execute("select caliber_token_request(%s, 'review')", (bob,))
    db.execute("select caliber_message_send(%s, %s, null, 'task_delegation')", (bob, ann))
    db.execute("select caliber_message_send(%s, null, 'coder', 'task_delegation')", (bob,))
    db.execute("select caliber_message_receive(%s, max_messages => 1)", (ann,))
    counts = overview(db)
    expected = {"agents alive": 2, "messages ready": 1, "messages taken": 1, "dead letters": 0, "leases": 1}
    assert expected.items() <= counts.items()
    assert counts["tokens held"] == 1
    assert counts["waits"] == 1


def test_queues(db: Connection, agents: list[object]) -> None:
    ann, bob = agents
    for _ in range(3):
        db.execute("select caliber_message_send(%s, %s, null, 'task_delegation')", (bob, ann))
    db.execute("select caliber_message_send(%s, null, 'coder', 'task_delegation')", (bob,))
    got = db.execute("select * from caliber_message_receive(%s, max_messages => 2)", (ann,)).fetchall()
    reject = "select caliber_message_reject(%s, 'no', %s, retry => %s)"
    for row, retry in zip(got, (True, False), strict=True):
        db.execute(reject, (row["message_id"], row["receipt"], retry))
    query = "select queue, kind, team, ready, taken, later, dead from caliber_queue_stats order by kind"
    rows = [tuple(row.values()) for row in db.execute(query)]
    assert rows == [("ann", "agent", "default", 1, 0, 1, 1), ("coder", "type", "default", 1, 0, 0, 0)]
    severity, remedy = health(db, "dead letters")
    assert severity == "warning"
    assert "caliber_message_requeue" in str(remedy)


def test_health_sees_what_is_wrong(db: Connection, connect: Connect, agents: list[object]) -> None:
    ann, bob = agents
    silent = "update caliber_agent_beat set beat_at = beat_at - interval '1 hour' where agent_id = %s"
    db.execute(silent, (ann,))
    assert health(db, "agents")[0] == "warning"
    db.execute("select caliber_agent_reap()")
    assert health(db, "agents")[0] == "info"
    db.execute("select caliber_message_send(%s, %s, null, 'task_delegation')", (bob, bob))
    assert health(db, "queues")[0] == "info"
    for age, severity in (("10 minutes", "warning"), ("3 hours", "critical")):
        db.execute("update caliber_delivery set visible_at = clock_timestamp() - %s::interval", (age,))
        assert health(db, "queues")[0] == severity
    db.execute("select caliber_config_set('message_queue_limit', '1')")
    assert health(db, "queue limit")[0] == "critical"
    db.execute("set synchronous_commit = off")
    assert health(db, "durability")[0] == "warning"


def test_who_waits_for_whom(db: Connection, connect: Connect, agents: list[object]) -> None:
    ann, bob = agents
    db.execute("select caliber_lock_acquire(%s, 'thing', 'a'::text)", (ann,))
    db.execute("select caliber_token_request(%s, 'review', 'x')", (ann,))
    db.execute("select caliber_token_request(%s, 'review', 'x')", (bob,))
    ask = "select caliber_message_send(%s, %s, null, 'task_delegation', requires_response => true)"
    db.execute(ask, (bob, ann))
    waiting = connect()
    query = "select caliber_lock_acquire(%s, 'thing', 'a'::text, wait_ms => 20000)"
    thread = threading.Thread(target=lambda: waiting.execute(query, (bob,)))
    thread.start()
    rows: list[tuple[object, ...]] = []
    query = "select waiting, blocking, waits_for, what from caliber_waits order by waits_for"
    while len(rows) < 3:
        rows = [tuple(row.values()) for row in db.execute(query)]
        time.sleep(0.02)
    assert rows == [
        ("bob", "ann", "lock", "thing a"),
        ("bob", "ann", "reply", "task_delegation"),
        ("bob", "ann", "token", "review x"),
    ]
    db.execute("select caliber_lock_release_all(%s)", (ann,))
    thread.join()
    db.execute("select caliber_token_release_all(%s)", (ann,))
    message = (db.execute("select * from caliber_message_receive(%s)", (ann,)).fetchone() or {})["message_id"]
    db.execute("select caliber_message_reply(%s, %s)", (ann, message))
    assert db.execute(query).fetchall() == []


def test_everybody_sees_what_is_theirs(
    db: Connection, connect: Connect, agents: list[object], roles: Roles
) -> None:
    ann, bob = agents
    db.execute("select caliber_message_send(%s, %s, null, 'task_delegation')", (bob, ann))
    for group in ("caliber_admin", "caliber_agent", "caliber_observer"):
        own = connect(roles(group))
        for view in VIEWS:
            own.execute(f"select * from {view}").fetchall()
        assert overview(own)["messages ready"] == (0 if group == "caliber_agent" else 1)
    own = connect(roles(None))
    assert {state(own, f"select * from {view}") for view in VIEWS} == {"42501"}


def test_top_shows_a_screen(db: Connection, agents: list[object]) -> None:
    command = [str(ROOT / "extension/machine/cluster.sh"), "top", db.info.dbname]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "agents alive" in shown
    assert "ann" in shown
