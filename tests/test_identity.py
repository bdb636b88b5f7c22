"""Identity: who is calling decides what a verb does and what a select shows."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from conftest import Connect, Connection, refused, scalar, state

Roles = Callable[[str | None], str]


@pytest.fixture
def two_agents(db: Connection, roles: Roles) -> tuple[object, str, object, str]:
    """Two agents of two teams, each with a login of its own."""
    db.execute("select caliber_team_create('blue')")
    made: list[object] = []
    for name, team in (("ann", "default"), ("bob", "blue")):
        agent = scalar(db, "select caliber_agent_register('coder', name => %s, team => %s)", name, team)
        login = roles("caliber_agent")
        db.execute("update caliber_agent set login_role = %s where agent_id = %s", (login, agent))
        made += [agent, login]
    return made[0], str(made[1]), made[2], str(made[3])


VERBS = (
    "caliber_agent_heartbeat(%s)",
    "caliber_agent_set_status(%s, 'active')",
    "caliber_agent_assign_trajectory(%s, gen_random_uuid())",
    "caliber_agent_release(%s)",
    "caliber_agent_resume(%s)",
    "caliber_agent_spawn(%s, 'helper')",
    "caliber_agent_terminate(%s)",
    "caliber_event_record('probe', 'x', %s)",
)


@pytest.mark.parametrize("verb", VERBS)
def test_an_agent_may_not_act_for_another(
    db: Connection, connect: Connect, two_agents: tuple[object, str, object, str], verb: str
) -> None:
    _, ann_login, bob, _ = two_agents
    before = db.execute("select * from caliber_agent order by agent_id").fetchall()
    ann = connect(ann_login)
    assert state(ann, f"select {verb}", bob) == "42501"
    # Nor is it told whether an id exists.
    assert state(ann, f"select {verb}", uuid.uuid4()) == "42501"
    assert db.execute("select * from caliber_agent order by agent_id").fetchall() == before
    assert state(connect(ann_login), f"select {verb}", bob) == "42501"


def test_an_agent_acts_for_itself(connect: Connect, two_agents: tuple[object, str, object, str]) -> None:
    ann, ann_login, _, _ = two_agents
    session = connect(ann_login)
    assert scalar(session, "select caliber_agent_heartbeat(%s)", ann) == "idle"
    assert scalar(session, "select caliber_agent_set_status(%s, 'active')", ann) == "idle"
    assert scalar(session, "select caliber_agent_spawn(%s, 'helper')", ann) is not None
    assert scalar(session, "select caliber_event_record('probe', 'x', %s)", ann) is not None
    assert state(session, "select caliber_event_record('probe', 'of nobody')") == "42501"
    assert scalar(session, "select caliber_agent_terminate(%s)", ann) == 1
    assert state(session, "select caliber_agent_heartbeat(%s)", ann) == "KA007"


def test_an_agent_ends_itself_and_what_it_spawned(
    connect: Connect, db: Connection, two_agents: tuple[object, str, object, str]
) -> None:
    ann, ann_login, _, _ = two_agents
    session = connect(ann_login)
    child = scalar(session, "select caliber_agent_spawn(%s, 'helper')", ann)
    assert scalar(session, "select caliber_agent_terminate(%s, descendants => true)", ann) == 2
    assert scalar(db, "select status from caliber_agent where agent_id = %s", child) == "terminated"


def test_what_only_admins_may_do(connect: Connect, two_agents: tuple[object, str, object, str]) -> None:
    session = connect(two_agents[1])
    for call in (
        "caliber_agent_register('coder')",
        "caliber_team_create('x')",
        "caliber_config_set('event_level', 'debug')",
        "caliber_config_reset('event_level')",
        "caliber_event_purge()",
    ):
        assert state(session, f"select {call}") == "42501"


def test_admin_acts_for_any_agent(connect: Connect, roles: Roles, two_agents: tuple[object, ...]) -> None:
    admin = connect(roles("caliber_admin"))
    assert scalar(admin, "select caliber_agent_heartbeat(%s)", two_agents[0]) == "idle"
    assert scalar(admin, "select caliber_agent_set_status(%s, 'active')", two_agents[2]) == "idle"
    assert scalar(admin, "select caliber_agent_register('coder')") is not None
    assert scalar(admin, "select count(*) from caliber_agents") == 3


def test_agents_see_their_team_and_no_other(
    connect: Connect, two_agents: tuple[object, str, object, str]
) -> None:
    _, ann_login, _, bob_login = two_agents
    for login, name in ((ann_login, "ann"), (bob_login, "bob")):
        session = connect(login)
        assert [r["name"] for r in session.execute("select name from caliber_agents")] == [name]
        assert scalar(session, "select count(*) from caliber_agent") == 1
        assert scalar(session, "select count(*) from caliber_agent_beat") == 1
        assert scalar(session, "select count(*) from caliber_team_list()") == 1
        summaries = [str(r["summary"]) for r in session.execute("select summary from caliber_events_since()")]
        assert f"{name} registered" in summaries
        assert not any(other in s for s in summaries for other in {"ann ", "bob "} - {f"{name} "})


def test_observer_reads_everything_and_writes_nothing(
    connect: Connect, roles: Roles, two_agents: tuple[object, ...]
) -> None:
    session = connect(roles("caliber_observer"))
    assert scalar(session, "select count(*) from caliber_agents") == 2
    assert scalar(session, "select count(*) from caliber_event") == 4
    for verb in VERBS:
        assert state(session, f"select {verb}", two_agents[0]) == "42501"


def test_nobody_writes_tables_directly(
    connect: Connect, roles: Roles, two_agents: tuple[object, str, object, str]
) -> None:
    for login in (two_agents[1], roles("caliber_admin"), roles("caliber_observer"), roles(None)):
        session = connect(login)
        for table in (
            "caliber_agent",
            "caliber_agent_beat",
            "caliber_event",
            "caliber_team",
            "caliber_setting",
        ):
            assert state(session, f"delete from {table}") == "42501"
            assert state(session, f"truncate {table}") == "42501"
            assert state(session, f"insert into {table} default values") == "42501"


def test_a_stranger_gets_nothing(connect: Connect, roles: Roles, two_agents: tuple[object, ...]) -> None:
    stranger = connect(roles(None))
    assert state(stranger, "select * from caliber_agents") == "42501"
    assert state(stranger, "select caliber_agent_heartbeat(%s)", two_agents[0]) == "42501"
    # In the group, but no agent: sees nothing, acts for nobody.
    nobody = connect(roles("caliber_agent"))
    assert scalar(nobody, "select count(*) from caliber_agents") == 0
    assert scalar(nobody, "select count(*) from caliber_event") == 0
    assert state(nobody, "select caliber_agent_heartbeat(%s)", two_agents[0]) == "42501"


def test_set_role_decides_who_is_calling(
    connect: Connect, db: Connection, roles: Roles, two_agents: tuple[object, str, object, str]
) -> None:
    ann, ann_login, bob, bob_login = two_agents
    broker = roles(None)
    db.execute(f"grant {ann_login} to {broker}")
    session = connect(broker)
    assert state(session, "select caliber_agent_heartbeat(%s)", ann) == "42501"
    session.execute(f"set role {ann_login}")
    assert scalar(session, "select caliber_agent_heartbeat(%s)", ann) == "idle"
    assert state(session, "select caliber_agent_heartbeat(%s)", bob) == "42501"
    assert state(session, f"set role {bob_login}") == "42501"
    # A superuser that has become an agent is that agent; as a mere group it is nobody.
    db.execute(f"set role {ann_login}")
    assert state(db, "select caliber_agent_heartbeat(%s)", bob) == "42501"
    db.execute("set role caliber_agent")
    assert state(db, "select caliber_agent_heartbeat(%s)", ann) == "42501"
    db.execute("reset role")


def test_a_setting_or_temporary_table_makes_nobody_an_agent(
    connect: Connect, two_agents: tuple[object, str, object, str]
) -> None:
    _, ann_login, bob, _ = two_agents
    session = connect(ann_login)
    session.execute("select set_config('caliber.agent_id', %s, false)", (str(bob),))
    session.execute(
        "create temp table caliber_agent (agent_id uuid, login_role name, terminated_at timestamptz)"
    )
    session.execute("insert into pg_temp.caliber_agent values (%s, current_user, null)", (bob,))
    session.execute("set search_path = pg_temp, public")
    assert state(session, "select public.caliber_agent_heartbeat(%s)", bob) == "42501"


def test_errors_tell_what_to_do(db: Connection) -> None:
    agent = scalar(db, "select caliber_agent_register('coder', name => 'ann')")
    error = refused(db, "select caliber_agent_set_status(%s, 'initializing')", agent)
    assert error.sqlstate == "KA007"
    assert error.diag.message_primary == "caliber: an agent that is idle cannot become initializing"
    assert "ann" in (error.diag.message_detail or "")
    assert "active" in (error.diag.message_hint or "")
