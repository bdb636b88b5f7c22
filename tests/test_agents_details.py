"""Agents: what is easily lost in a change: inheritance, every counter, every filter, who did it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Connect, Connection, scalar, state

OWN = {"memory_type": "*", "scope": "own"}
FACTS = {"memory_type": "fact", "scope": "team", "filter": {"level": 1}}


@pytest.fixture
def parent(db: Connection) -> object:
    access = json.dumps({"read": [OWN, FACTS], "write": [FACTS]})
    return scalar(
        db,
        "select caliber_agent_register('lead', name => 'lead', memory_access => %s,"
        " max_concurrent_tasks => 3, heartbeat_interval_ms => 700)",
        access,
    )


def shown(db: Connection, agent: object) -> dict[str, object]:
    row = db.execute("select * from caliber_agent_get(%s)", (agent,)).fetchone()
    assert row
    return row


def test_a_child_inherits_access_and_limits(db: Connection, parent: object) -> None:
    child = shown(db, scalar(db, "select caliber_agent_spawn(%s, 'coder')", parent))
    for inherited in ("memory_access", "max_concurrent_tasks", "heartbeat_interval_ms"):
        assert child[inherited] == shown(db, parent)[inherited]
    assert shown(db, parent)["spawned"] == 1


@pytest.mark.parametrize(
    ("side", "permission", "allowed"),
    [
        ("read", OWN, True),
        ("read", FACTS, True),
        ("write", FACTS, True),
        ("write", FACTS | {"scope": "own"}, True),
        ("write", OWN, False),
        ("write", FACTS | {"scope": "global"}, False),
        ("write", FACTS | {"memory_type": "*"}, False),
        ("write", FACTS | {"memory_type": "note"}, False),
        ("write", FACTS | {"filter": {"level": 2}}, False),
        ("write", FACTS | {"filter": {"level": True}}, False),
        ("write", {"memory_type": "fact", "scope": "team"}, False),
    ],
)
def test_a_child_gets_no_wider_access(
    db: Connection, parent: object, side: str, permission: dict[str, object], allowed: bool
) -> None:
    call = "select caliber_agent_spawn(%s, 'coder', memory_access => %s)"
    access = json.dumps({side: [permission]})
    if allowed:
        child = shown(db, scalar(db, call, parent, access))
        other = "write" if side == "read" else "read"
        assert child["memory_access"] == {side: [permission], other: []}
    else:
        assert state(db, call, parent, access) == "42501"


def test_a_child_gets_no_higher_limit(db: Connection, parent: object) -> None:
    assert state(db, "select caliber_agent_spawn(%s, 'coder', max_concurrent_tasks => 4)", parent) == "42501"
    assert scalar(db, "select caliber_agent_spawn(%s, 'coder', max_concurrent_tasks => 2)", parent)


def test_every_counter_has_its_column(db: Connection, parent: object) -> None:
    beat = (
        "select caliber_agent_heartbeat(%s, 'act', 0.5, turns => 1, tokens => 2, tool_calls => 3,"
        " files => 4, errors => 5, last_tool => 'grep', last_file => 'a.py')"
    )
    for _ in range(2):
        db.execute(beat, (parent,))
    row = shown(db, parent)
    assert [row[c] for c in ("turns", "tokens", "tool_calls", "files", "errors")] == [2, 4, 6, 8, 10]
    told = [row[c] for c in ("activity", "progress", "last_tool", "last_file")]
    assert told == ["act", 0.5, "grep", "a.py"]


def test_terminating_voids_the_incarnation_and_stops_the_beats(db: Connection, parent: object) -> None:
    db.execute("select caliber_agent_terminate(%s)", (parent,))
    row = db.execute("select incarnation, ended from caliber_agent_beat").fetchone()
    assert row == {"incarnation": 2, "ended": True}


def test_resuming_is_a_beat_and_keeps_the_reason(db: Connection, parent: object) -> None:
    db.execute("select caliber_agent_set_status(%s, 'blocked', 'no key')", (parent,))
    db.execute("update caliber_agent_beat set beat_at = beat_at - interval '1 hour'")
    db.execute("select caliber_agent_resume(%s)", (parent,))
    row = shown(db, parent)
    assert (row["status"], row["status_reason"], row["liveness"]) == ("blocked", "no key", "alive")


@pytest.mark.parametrize("status", ["failed", "completed"])
def test_releasing_does_not_hide_how_it_ended(db: Connection, parent: object, status: str) -> None:
    db.execute("update caliber_agent set status = 'active', current_trajectory_id = gen_random_uuid()")
    db.execute("select caliber_agent_set_status(%s, %s)", (parent, status))
    assert scalar(db, "select caliber_agent_release(%s)", parent) is True
    assert (shown(db, parent)["status"], shown(db, parent)["current_trajectory_id"]) == (status, None)


def test_listing_by_parent(db: Connection, parent: object) -> None:
    child = scalar(db, "select caliber_agent_spawn(%s, 'coder')", parent)
    db.execute("select caliber_agent_register('coder')")
    rows = db.execute("select agent_id from caliber_agent_list(parent_id => %s)", (parent,)).fetchall()
    assert [row["agent_id"] for row in rows] == [child]


def test_a_superior_must_be_able_to_act(db: Connection, parent: object) -> None:
    db.execute("select caliber_agent_terminate(%s)", (parent,))
    assert state(db, "select caliber_agent_register('coder', reports_to => %s)", parent) == "KA007"


@pytest.mark.parametrize(
    "arguments",
    [
        "'coder', autonomy_budget => 'NaN'",
        "'coder', autonomy_budget => 'Infinity'",
        "'coder', heartbeat_interval_ms => 99",
        "'coder', heartbeat_interval_ms => 86400001",
        "'coder', array[array['a', 'b'], array['c', 'd']]",
        "'coder', input_schema => '{\"x\": 1e5000}'",
        "'coder', can_delegate_to => array_fill('a'::text, array[101])",
        "'coder', can_delegate_to => array_append(array_fill('a'::text, array[100]), '*')",
        "'coder', can_delegate_to => array[null]::text[]",
    ],
)
def test_odd_input_is_refused_clearly(db: Connection, arguments: str) -> None:
    assert state(db, f"select caliber_agent_register({arguments})") == "22023"


def test_a_long_silence_does_not_break_the_view(db: Connection, parent: object) -> None:
    db.execute("update caliber_agent_beat set beat_at = '1900-01-01'")
    db.execute("select caliber_config_set('heartbeat_missed_limit', '1000')")
    db.execute("update caliber_agent set heartbeat_interval_ms = 86400000")
    assert shown(db, parent)["liveness"] == "unavailable"


def test_events_name_who_did_it_and_the_team_sees_them(
    db: Connection, connect: Connect, roles: Callable[[str | None], str], parent: object
) -> None:
    admin = roles("caliber_admin")
    connect(admin).execute("select caliber_agent_set_status(%s, 'active')", (parent,))
    assert scalar(db, "select actor from caliber_event where event_type = 'agent_status_changed'") == admin
    mate = scalar(db, "select caliber_agent_register('coder', name => 'mate')")
    login = roles("caliber_agent")
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (login, mate))
    session = connect(login)
    seen = scalar(session, "select count(*) from caliber_event where source_agent_id = %s", parent)
    assert seen == 2
    # Terminated, it records nothing more, not even about itself.
    db.execute("select caliber_agent_terminate(%s)", (mate,))
    assert state(session, "select caliber_event_record('alive', 'still', %s)", mate) == "42501"


def test_an_agent_reads_its_team_in_one_pass(
    db: Connection, connect: Connect, roles: Callable[[str | None], str], parent: object
) -> None:
    """Under row security a view that joins a table with itself is quadratic."""
    db.execute("select caliber_agent_register('coder') from generate_series(1, 300)")
    db.execute("analyze")
    login = roles("caliber_agent")
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (login, parent))
    session = connect(login)
    plan = session.execute("explain (analyze, format json) select * from caliber_agents").fetchone()
    assert plan
    read: list[float] = []

    def walk(node: dict[str, Any]) -> None:
        if str(node.get("Relation Name", "")).startswith("caliber_agent"):
            seen = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            read.append(node["Actual Loops"] * seen)
        for child in node.get("Plans", []):
            walk(child)

    document: Any = plan["QUERY PLAN"]
    walk(document[0]["Plan"])
    assert max(read) >= 301
    assert sum(read) <= 2 * 301
