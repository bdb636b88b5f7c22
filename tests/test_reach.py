"""Who reads and writes whose memory: own, granted, team, global; nobody else, nothing more."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from conftest import Connect, Connection, scalar, state

Roles = Callable[[str | None], str]


@dataclass
class World:
    """ann has a trajectory with a turn, an artifact and a note; the others are around her."""

    agents: dict[str, object]
    logins: dict[str, str]
    trajectory: object
    scope: object
    artifact: object
    note: object


def access(reads: str, writes: str, memory_type: str = "*", **further: object) -> str:
    def permission(scope: str) -> list[dict[str, object]]:
        return [{"memory_type": memory_type, "scope": scope, **further}] if scope else []

    return json.dumps({"read": permission(reads), "write": permission(writes)})


WHO = {
    "ann": ("default", access("own", "own")),
    "bob": ("default", access("own", "own")),
    "cyd": ("default", access("team", "team")),
    "dan": ("other", access("own", "own")),
    "eve": ("other", access("team", "team")),
    "flo": ("other", access("global", "global")),
    "gus": ("default", access("team", "")),
    "hal": ("default", access("team", "team", "artifact")),
    "ida": ("default", access("own", "team", "*", filter={"artifact_type": "review_comment"})),
}


@pytest.fixture
def world(db: Connection, roles: Roles) -> World:
    db.execute("select caliber_team_create('other')")
    agents: dict[str, object] = {}
    logins: dict[str, str] = {}
    for name, (team, memory_access) in WHO.items():
        register = (
            "select caliber_agent_register('coder', name => %s, team => %s, memory_access => %s::jsonb)"
        )
        agents[name] = scalar(db, register, name, team, memory_access)
        logins[name] = roles("caliber_agent")
        db.execute(
            "update caliber_agent set login_role = %s where agent_id = %s", (logins[name], agents[name])
        )
    trajectory = scalar(db, "select caliber_trajectory_start('work', %s)", agents["ann"])
    scope = scalar(db, "select scope_id from caliber_scope_current(%s)", trajectory)
    db.execute("select caliber_turn_add(%s, 'user', 'hello')", (scope,))
    artifact = scalar(db, "select caliber_artifact_create(%s, null, 'fact', 'x')", scope)
    note = scalar(db, "select caliber_note_add(%s, 'fact', 'y')", agents["ann"])
    return World(agents, logins, trajectory, scope, artifact, note)


def seen(session: Connection) -> str:
    """The initials of the tables whose row the caller sees: trajectory, scope, turn, artifact, note."""
    tables = ("trajectory", "scope", "turn", "artifact", "note")
    counts = [scalar(session, f"select count(*) from caliber_{table}") for table in tables]
    return "".join(initial for initial, count in zip("TSUAN", counts, strict=True) if count)


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("ann", "TSUAN"),
        ("bob", "TS"),
        ("cyd", "TSUAN"),
        ("dan", ""),
        ("eve", ""),
        ("flo", "TSUAN"),
        ("gus", "TSUAN"),
        ("hal", "TSA"),
        ("ida", "TS"),
    ],
)
def test_who_reads_what(connect: Connect, world: World, name: str, tables: str) -> None:
    session = connect(world.logins[name])
    assert seen(session) == tables
    assert scalar(session, "select count(*) from caliber_trajectory_tree") == int("T" in tables)
    assert scalar(session, "select count(*) from caliber_artifacts") == int("A" in tables)
    found = session.execute("select * from caliber_artifact_get(%s)", (world.artifact,)).fetchall()
    assert len(found) == int("A" in tables)


def test_observers_and_admins_read_everything_and_nobody_nothing(
    connect: Connect, roles: Roles, world: World
) -> None:
    assert seen(connect(roles("caliber_observer"))) == "TSUAN"
    assert seen(connect(roles("caliber_admin"))) == "TSUAN"
    assert seen(connect(roles("caliber_agent"))) == ""
    assert state(connect(roles(None)), "select * from caliber_turn") == "42501"


def test_read_transcript_shows_what_is_the_targets(db: Connection, connect: Connect, world: World) -> None:
    grant = "select caliber_grant_access(%s, %s, 'read_transcript')"
    db.execute(grant, (world.agents["ann"], world.agents["dan"]))
    session = connect(world.logins["dan"])
    assert seen(session) == "TSUAN"
    revoke = "select caliber_revoke_access(%s, %s, 'read_transcript')"
    db.execute(revoke, (world.agents["ann"], world.agents["dan"]))
    assert seen(session) == ""


def test_who_has_the_trajectory_reads_what_others_wrote_in_it(connect: Connect, world: World) -> None:
    cyd = connect(world.logins["cyd"])
    assert scalar(cyd, "select caliber_turn_add(%s, 'tool', 'from cyd')", world.scope) == 2
    assert scalar(connect(world.logins["ann"]), "select count(*) from caliber_turn") == 2
    assert scalar(connect(world.logins["bob"]), "select count(*) from caliber_turn") == 0


def test_a_terminated_agent_reads_nothing(db: Connection, connect: Connect, world: World) -> None:
    session = connect(world.logins["ann"])
    db.execute("select caliber_agent_terminate(%s)", (world.agents["ann"],))
    assert seen(session) == ""
    assert state(session, "select caliber_turn_add(%s, 'user', 'x')", world.scope) == "42501"


WRITES = {
    "turn": "select caliber_turn_add(%(scope)s, 'user', 'x')",
    "artifact": "select caliber_artifact_create(%(scope)s, null, 'fact', 'x')",
    "supersede": "select caliber_artifact_supersede(%(artifact)s, %(artifact2)s)",
    "checkpoint": "select caliber_scope_checkpoint(%(scope)s, '{}')",
    "close": "select caliber_scope_close(%(scope)s)",
    "retire": "select caliber_note_retire(%(note)s)",
    "suspend": "select caliber_trajectory_suspend(%(trajectory)s)",
    "finish": "select caliber_trajectory_finish(%(trajectory)s)",
}
# What ann's team mates and others may do with what is hers; refusals by their code.
HIDDEN = dict.fromkeys(WRITES, "P0002")
DENIED = dict.fromkeys(WRITES, "42501")
OUTCOMES: dict[str, dict[str, str]] = {
    "ann": {},
    "bob": {**DENIED, "retire": "P0002"},
    "cyd": {},
    "dan": HIDDEN,
    "eve": HIDDEN,
    "flo": {},
    "gus": DENIED,
    "hal": {**DENIED, "retire": "P0002", "artifact": "", "supersede": ""},
}


@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.parametrize("verb", WRITES)
def test_who_writes_what(db: Connection, connect: Connect, world: World, name: str, verb: str) -> None:
    second = scalar(db, "select caliber_artifact_create(%s, null, 'fact', 'z')", world.scope)
    arguments = {
        "scope": world.scope,
        "trajectory": world.trajectory,
        "artifact": world.artifact,
        "artifact2": second,
        "note": world.note,
    }
    outcome = ""
    try:
        connect(world.logins[name]).execute(WRITES[verb], arguments)
    except Exception as error:
        outcome = str(getattr(error, "sqlstate", error))
    assert outcome == OUTCOMES[name].get(verb, "")
    # The same for an admin who acts for the agent, except that it is told what there is.
    if outcome:
        acting = WRITES[verb][: WRITES[verb].rindex(")")] + ", agent_id => %(agent)s)"
        with pytest.raises(Exception, match="caliber") as caught:
            db.execute(acting, {**arguments, "agent": world.agents[name]})
        assert getattr(caught.value, "sqlstate", None) == "42501"


def test_a_filter_lets_in_what_it_names(connect: Connect, world: World) -> None:
    """ida may write review comments into her team's trajectories, and nothing else."""
    session = connect(world.logins["ida"])
    create = "select caliber_artifact_create(%s, null, %s, 'x')"
    assert scalar(session, create, world.scope, "review_comment") is not None
    assert state(session, create, world.scope, "fact") == "42501"
    assert state(session, "select caliber_turn_add(%s, 'user', 'x')", world.scope) == "42501"


def test_an_agent_passes_its_own_id_only(connect: Connect, world: World) -> None:
    session = connect(world.logins["cyd"])
    for other in (world.agents["ann"], uuid.uuid4()):
        for call in (
            "caliber_trajectory_start('x', %(agent)s)",
            "caliber_turn_add(%(scope)s, 'user', 'x', agent_id => %(agent)s)",
            "caliber_turn_add(%(scope)s, 'user', 'x', agent_id => %(agent)s, incarnation => 1)",
            "caliber_artifact_create(%(scope)s, null, 'fact', 'x', agent_id => %(agent)s)",
            "caliber_artifact_supersede(%(artifact)s, gen_random_uuid(), agent_id => %(agent)s)",
            "caliber_scope_close(%(scope)s, agent_id => %(agent)s)",
            "caliber_scope_checkpoint(%(scope)s, '{}', agent_id => %(agent)s)",
            "caliber_trajectory_finish(%(trajectory)s, agent_id => %(agent)s)",
            "caliber_trajectory_suspend(%(trajectory)s, agent_id => %(agent)s)",
            "caliber_note_add(%(agent)s, 'fact', 'x')",
            "caliber_note_retire(%(note)s, agent_id => %(agent)s)",
        ):
            arguments = {
                "agent": other,
                "scope": world.scope,
                "trajectory": world.trajectory,
                "artifact": world.artifact,
                "note": world.note,
            }
            with pytest.raises(Exception, match="caliber") as caught:
                session.execute(f"select {call}", arguments)
            assert getattr(caught.value, "sqlstate", None) == "42501", call


def test_an_admin_writes_for_who_has_the_trajectory(connect: Connect, roles: Roles, world: World) -> None:
    admin = connect(roles("caliber_admin"))
    assert scalar(admin, "select caliber_turn_add(%s, 'user', 'from admin')", world.scope) == 2
    assert scalar(admin, "select agent_id from caliber_turn where turn_no = 2") == world.agents["ann"]


def test_without_permission_to_write_not_even_ones_own(
    db: Connection, connect: Connect, world: World
) -> None:
    session = connect(world.logins["gus"])
    assert state(session, "select caliber_trajectory_start('mine', %s)", world.agents["gus"]) == "42501"
    assert state(session, "select caliber_note_add(%s, 'fact', 'x')", world.agents["gus"]) == "42501"


def test_a_child_of_what_one_cannot_see_is_refused(connect: Connect, world: World) -> None:
    start = "select caliber_trajectory_start('child', %s, %s)"
    assert state(connect(world.logins["dan"]), start, world.agents["dan"], world.trajectory) == "P0002"
    assert scalar(connect(world.logins["bob"]), start, world.agents["bob"], world.trajectory) is not None


def test_nobody_writes_tables_directly(connect: Connect, roles: Roles, world: World) -> None:
    for login in (world.logins["ann"], roles("caliber_admin"), roles("caliber_observer")):
        session = connect(login)
        for table in ("trajectory", "scope", "turn", "artifact", "note"):
            assert state(session, f"delete from caliber_{table}") == "42501"
            assert state(session, f"update caliber_{table} set team_id = team_id") == "42501"
