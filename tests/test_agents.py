"""Agents: register, beat, status, work, spawn, resume, terminate, liveness."""

from __future__ import annotations

import threading
import uuid

import psycopg
import pytest
from conftest import Connect, Connection, refused, scalar, state

REGISTER = "select caliber_agent_register(%s, name => %s)"
STATUSES = ("initializing", "idle", "active", "waiting", "blocked", "completed", "failed")


@pytest.fixture
def agent(db: Connection) -> object:
    return scalar(db, REGISTER, "coder", "coder-1")


def shown(db: Connection, agent: object) -> dict[str, object]:
    row = db.execute("select * from caliber_agent_get(%s)", (agent,)).fetchone()
    assert row is not None
    return row


def test_register_with_the_positional_order_of_the_protocol(db: Connection) -> None:
    boss = scalar(db, REGISTER, "planner", "boss")
    access = '{"read": [{"memory_type": "*", "scope": "team"}], "write": []}'
    agent = scalar(
        db,
        "select caliber_agent_register('coder', array['sql'], %s::jsonb, array['tester'], %s)",
        access,
        boss,
    )
    row = shown(db, agent)
    assert row["status"] == "idle"
    assert row["liveness"] == "alive"
    assert row["reports_to"] == boss
    assert row["capabilities"] == ["sql"]
    assert row["can_delegate_to"] == ["tester"]
    assert row["memory_access"] == {"read": [{"memory_type": "*", "scope": "team"}], "write": []}
    assert row["team"] == "default"
    assert row["max_concurrent_tasks"] == 5
    assert str(row["name"]).startswith("coder-")


@pytest.mark.parametrize(
    ("arguments", "sqlstate"),
    [
        ("null", "22023"),
        ("''", "22023"),
        ("'Coder'", "22023"),
        ("repeat('a', 64)", "22023"),
        ("'coder', array['ok', null]", "22023"),
        ("'coder', array_fill('x'::text, array[101])", "22023"),
        ("'coder', memory_access => '[]'", "22023"),
        ('\'coder\', memory_access => \'{"read": [{"memory_type": "*", "scope": "all"}]}\'', "22023"),
        ("'coder', memory_access => '{\"execute\": []}'", "22023"),
        ("'coder', array['sql'], proficiency => '{\"sql\": 1.5}'", "22023"),
        ("'coder', array['sql'], proficiency => '{\"go\": 1}'", "22023"),
        ("'coder', proficiency => (repeat('{\"a\":', 65) || '1' || repeat('}', 65))::jsonb", "22023"),
        ("'coder', input_schema => jsonb_build_object('x', repeat('y', 300000))", "22023"),
        ("'coder', autonomy_budget => -1", "22023"),
        ("'coder', autonomy_budget => 'NaN'", "22023"),
        ("'coder', max_concurrent_tasks => 0", "22023"),
        ("'coder', reports_to => '00000000-0000-0000-0000-000000000000'", "P0002"),
        ("'coder', team => 'nowhere'", "P0002"),
    ],
)
def test_register_refuses_bad_input_and_keeps_nothing(db: Connection, arguments: str, sqlstate: str) -> None:
    assert state(db, f"select caliber_agent_register({arguments})") == sqlstate
    assert scalar(db, "select count(*) from caliber_agent") == 0


def test_a_name_is_unique_in_its_team_until_its_agent_is_terminated(db: Connection, agent: object) -> None:
    error = refused(db, REGISTER, "coder", "coder-1")
    assert error.sqlstate == "23505"
    assert "caliber_agent_resume" in (error.diag.message_hint or "")
    db.execute("select caliber_team_create('other')")
    db.execute("select caliber_agent_register('coder', team => 'other', name => 'coder-1')")
    db.execute("select caliber_agent_terminate(%s)", (agent,))
    assert scalar(db, REGISTER, "coder", "coder-1") != agent


def test_heartbeat_adds_counters_and_keeps_what_is_left_out(db: Connection, agent: object) -> None:
    beat = "select caliber_agent_heartbeat(%s, activity => %s, turns => 1, tokens => 50, progress => 0.5)"
    assert scalar(db, beat, agent, "writing") == "idle"
    scalar(db, "select caliber_agent_heartbeat(%s, tokens => 7, errors => 1)", agent)
    row = shown(db, agent)
    assert (row["turns"], row["tokens"], row["errors"]) == (1, 57, 1)
    assert (row["activity"], row["progress"]) == ("writing", 0.5)


@pytest.mark.parametrize(
    "argument",
    ["tokens => -1", "progress => 1.1", "progress => 'nan'", "activity => repeat('x', 501)"],
)
def test_heartbeat_refuses_bad_values(db: Connection, agent: object, argument: str) -> None:
    before = shown(db, agent)["last_heartbeat_at"]
    assert state(db, f"select caliber_agent_heartbeat(%s, {argument})", agent) == "22023"
    assert shown(db, agent)["last_heartbeat_at"] == before


def test_heartbeat_stays_on_its_page(db: Connection, agent: object) -> None:
    for _ in range(50):
        db.execute("select caliber_agent_heartbeat(%s, turns => 1)", (agent,))
    db.execute("select pg_stat_force_next_flush()")
    row = db.execute(
        "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'caliber_agent_beat'"
    ).fetchone()
    assert row == {"n_tup_upd": 50, "n_tup_hot_upd": 50}


def test_unknown_and_null_agents(db: Connection) -> None:
    unknown = uuid.uuid4()
    for verb in ("heartbeat(%s)", "set_status(%s, 'active')", "release(%s)", "resume(%s)", "terminate(%s)"):
        assert state(db, f"select caliber_agent_{verb}", unknown) == "P0002"
        assert state(db, f"select caliber_agent_{verb}", None) == "22023"
    assert db.execute("select * from caliber_agent_get(%s)", (unknown,)).fetchall() == []


ALLOWED = {
    "initializing": {"idle", "active", "failed"},
    "idle": {"active", "waiting", "blocked", "completed", "failed"},
    "active": {"idle", "waiting", "blocked", "completed", "failed"},
    "waiting": {"idle", "active", "blocked", "completed", "failed"},
    "blocked": {"idle", "active", "waiting", "completed", "failed"},
    "completed": {"initializing", "idle", "active"},
    "failed": {"initializing", "idle"},
}


@pytest.mark.parametrize("before", STATUSES)
def test_status_steps(db: Connection, agent: object, before: str) -> None:
    for after in STATUSES:
        db.execute("update caliber_agent set status = %s", (before,))
        call = "select caliber_agent_set_status(%s, %s)"
        if after == before or after in ALLOWED[before]:
            assert scalar(db, call, agent, after) == before
            assert shown(db, agent)["status"] == after
        else:
            assert state(db, call, agent, after) == "KA007"
            assert shown(db, agent)["status"] == before


def test_terminated_is_reached_by_terminate_only_and_left_by_nothing(db: Connection, agent: object) -> None:
    assert state(db, "select caliber_agent_set_status(%s, 'terminated')", agent) == "22023"
    assert scalar(db, "select caliber_agent_terminate(%s, 'done')", agent) == 1
    assert scalar(db, "select caliber_agent_terminate(%s)", agent) == 0
    for verb in ("heartbeat(%s)", "set_status(%s, 'idle')", "release(%s)", "resume(%s)"):
        assert state(db, f"select caliber_agent_{verb}", agent) == "KA007"
    assert scalar(db, "select count(*) from caliber_agent_list()") == 0
    assert scalar(db, "select status_reason from caliber_agent_list(status => 'terminated')") == "done"


def test_assign_and_release(db: Connection, agent: object) -> None:
    start = "select caliber_trajectory_start('work', %s)"
    first, second = scalar(db, start, agent), scalar(db, start, agent)
    assign = "select caliber_agent_assign_trajectory(%s, %s, %s)"
    assert scalar(db, assign, agent, first, None) is True
    assert scalar(db, assign, agent, first, None) is False
    assert shown(db, agent)["status"] == "active"
    scope = scalar(db, "select scope_id from caliber_scope_current(%s)", first)
    assert scalar(db, assign, agent, first, scope) is True
    assert shown(db, agent)["current_scope_id"] == scope
    assert state(db, assign, agent, second, None) == "KA007"
    assert state(db, "select caliber_agent_set_status(%s, 'idle')", agent) == "KA007"
    assert scalar(db, "select caliber_agent_release(%s)", agent) is True
    assert scalar(db, "select caliber_agent_release(%s)", agent) is False
    row = shown(db, agent)
    assert (row["status"], row["current_trajectory_id"], row["current_scope_id"]) == ("idle", None, None)
    db.execute("select caliber_agent_set_status(%s, 'failed')", (agent,))
    assert state(db, assign, agent, second, None) == "KA007"


def test_assign_refuses_what_cannot_be_worked_on(db: Connection, agent: object) -> None:
    start = "select caliber_trajectory_start('work', %s)"
    first, second = scalar(db, start, agent), scalar(db, start, agent)
    scope = scalar(db, "select scope_id from caliber_scope_current(%s)", first)
    assign = "select caliber_agent_assign_trajectory(%s, %s, %s)"
    assert state(db, assign, agent, uuid.uuid4(), None) == "P0002"
    assert state(db, assign, agent, second, scope) == "22023"
    assert state(db, assign, agent, second, uuid.uuid4()) == "22023"
    db.execute("select caliber_scope_close(%s)", (scope,))
    assert state(db, assign, agent, first, scope) == "KA007"
    db.execute("select caliber_trajectory_finish(%s)", (first,))
    assert state(db, assign, agent, first, None) == "KA007"
    assert scalar(db, assign, agent, second, None) is True


def test_resume_refuses_the_process_before(db: Connection, agent: object) -> None:
    assert shown(db, agent)["incarnation"] == 1
    assert scalar(db, "select caliber_agent_resume(%s)", agent) == 2
    trajectory = uuid.uuid4()
    for verb in (
        "heartbeat(%s, incarnation => 1)",
        "set_status(%s, 'active', incarnation => 1)",
        "release(%s, incarnation => 1)",
        f"assign_trajectory(%s, '{trajectory}', incarnation => 1)",
        "spawn(%s, 'helper', incarnation => 1)",
    ):
        assert state(db, f"select caliber_agent_{verb}", agent) == "KA001"
    assert scalar(db, "select caliber_agent_heartbeat(%s, incarnation => 2)", agent) == "idle"


def test_resume_brings_a_failed_agent_back(db: Connection, agent: object) -> None:
    db.execute("select caliber_agent_set_status(%s, 'failed', 'crashed')", (agent,))
    db.execute("select caliber_agent_resume(%s)", (agent,))
    assert shown(db, agent)["status"] == "idle"


def test_spawn_inherits_and_cannot_widen(db: Connection) -> None:
    parent = scalar(
        db,
        "select caliber_agent_register('lead', can_delegate_to => array['coder'], autonomy_budget => 10,"
        " max_risk => 'low', model => 'm-1')",
    )
    child = scalar(db, "select caliber_agent_spawn(%s, 'coder')", parent)
    row = shown(db, child)
    assert row["status"] == "initializing"
    assert row["parent_id"] == row["reports_to"] == parent
    assert (row["spawn_depth"], row["autonomy_budget"], row["max_risk"]) == (1, 10, "low")
    assert (row["can_delegate_to"], row["model"]) == (["coder"], "m-1")
    wide = '{"read": [{"memory_type": "*", "scope": "team"}]}'
    for argument in (
        "can_delegate_to => array['reviewer']",
        "can_delegate_to => array['*']",
        "autonomy_budget => 11",
        "max_risk => 'medium'",
        f"memory_access => '{wide}'",
    ):
        assert state(db, f"select caliber_agent_spawn(%s, 'coder', {argument})", parent) == "42501"
    assert scalar(db, "select count(*) from caliber_agent") == 2


def test_spawn_depth_is_bounded(db: Connection, agent: object) -> None:
    db.execute("select caliber_config_set('agent_spawn_depth', '1')")
    child = scalar(db, "select caliber_agent_spawn(%s, 'helper')", agent)
    assert state(db, "select caliber_agent_spawn(%s, 'helper')", child) == "54000"


def test_terminate_with_descendants(db: Connection, agent: object) -> None:
    child = scalar(db, "select caliber_agent_spawn(%s, 'helper')", agent)
    db.execute("select caliber_agent_spawn(%s, 'helper')", (child,))
    assert scalar(db, "select caliber_agent_terminate(%s, descendants => true)", agent) == 3
    assert state(db, "select caliber_agent_spawn(%s, 'helper')", agent) == "KA007"


@pytest.mark.parametrize(
    ("seconds", "liveness"),
    [(0, "alive"), (14, "alive"), (15, "suspect"), (29, "suspect"), (30, "unavailable")],
)
def test_liveness_is_derived_from_silence(db: Connection, agent: object, seconds: int, liveness: str) -> None:
    db.execute("update caliber_agent_beat set beat_at = clock_timestamp() - %s * interval '1 s'", (seconds,))
    assert shown(db, agent)["liveness"] == liveness
    assert scalar(db, "select count(*) from caliber_agent_list(liveness => %s)", liveness) == 1


def test_liveness_follows_the_agents_own_interval(db: Connection) -> None:
    agent = scalar(db, "select caliber_agent_register('slow', heartbeat_interval_ms => 60000)")
    db.execute("update caliber_agent_beat set beat_at = clock_timestamp() - interval '170 s'")
    assert shown(db, agent)["liveness"] == "alive"
    db.execute("update caliber_agent_beat set beat_at = clock_timestamp() - interval '359 s'")
    assert shown(db, agent)["liveness"] == "suspect"
    db.execute("update caliber_agent_beat set beat_at = clock_timestamp() - interval '361 s'")
    assert shown(db, agent)["liveness"] == "unavailable"


def test_list_filters(db: Connection) -> None:
    db.execute("select caliber_team_create('red')")
    db.execute("select caliber_agent_register('coder', array['sql', 'go'], name => 'a')")
    db.execute("select caliber_agent_register('coder', array['go'], team => 'red', name => 'b')")
    db.execute("select caliber_agent_register('tester', name => 'c')")

    def names(arguments: str) -> list[object]:
        return [r["name"] for r in db.execute(f"select name from caliber_agent_list({arguments})")]

    assert names("") == ["a", "c", "b"]
    assert names("'coder'") == ["a", "b"]
    assert names("team => 'red'") == ["b"]
    assert names("capability => 'sql'") == ["a"]
    assert names("status => 'active'") == []
    assert names("max_agents => 1") == ["a"]
    assert state(db, "select * from caliber_agent_list(max_agents => 0)") == "22023"


def test_what_happens_to_agents_is_recorded(db: Connection, agent: object) -> None:
    db.execute("select caliber_agent_set_status(%s, 'blocked', 'no key')", (agent,))
    db.execute("select caliber_agent_set_status(%s, 'blocked', 'again')", (agent,))
    db.execute("select caliber_agent_heartbeat(%s)", (agent,))
    db.execute("select caliber_agent_terminate(%s)", (agent,))
    rows = db.execute(
        "select event_type, severity, details ->> 'reason' as reason from caliber_event"
        " where source_agent_id = %s order by event_id",
        (agent,),
    ).fetchall()
    assert [(r["event_type"], r["severity"], r["reason"]) for r in rows] == [
        ("agent_registered", "info", None),
        ("agent_status_changed", "warning", "no key"),
        ("agent_terminated", "info", None),
    ]


def test_sixteen_register_one_name_and_one_wins(connect: Connect, db: Connection) -> None:
    outcomes: list[str] = []
    barrier = threading.Barrier(16)
    connections = [connect() for _ in range(16)]

    def race(connection: Connection) -> None:
        barrier.wait()
        try:
            scalar(connection, REGISTER, "coder", "only-one")
            outcomes.append("won")
        except psycopg.errors.UniqueViolation:
            outcomes.append("lost")

    threads = [threading.Thread(target=race, args=(c,)) for c in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["lost"] * 15 + ["won"]
    assert scalar(db, "select count(*) from caliber_team") == 1


def test_sixteen_beat_at_once_and_no_count_is_lost(connect: Connect, db: Connection, agent: object) -> None:
    connections = [connect() for _ in range(16)]

    def beat(connection: Connection) -> None:
        for _ in range(25):
            connection.execute("select caliber_agent_heartbeat(%s, tokens => 1)", (agent,))

    threads = [threading.Thread(target=beat, args=(c,)) for c in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shown(db, agent)["tokens"] == 400
