"""Permissions: caliber_check_access, what row security makes of it, and caliber_reach."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field

import pytest
from conftest import Connect, Connection, scalar, state
from regions_helpers import Roles, create, login, put

TYPES = ("trajectory", "scope", "turn", "artifact", "note", "context")
WHOSE = ("own", "team", "global")
CHECK = "select caliber_check_access(%s, %s, %s, %s)"
REACH = "select * from caliber_reach(%s, %s)"


@dataclass
class World:
    """An agent under test, and the same memories of it, of its teammate and of a stranger."""

    agent: object
    agents: dict[str, object] = field(default_factory=dict)
    # By whose, then by memory type.
    memory: dict[str, dict[str, object]] = field(default_factory=dict)


def memories(db: Connection, agent: object) -> dict[str, object]:
    trajectory = scalar(db, "select caliber_trajectory_start('work', %s)", agent)
    scope = scalar(db, "select scope_id from caliber_scope_current(%s)", trajectory)
    db.execute("select caliber_turn_add(%s, 'user', 'do it')", (scope,))
    db.execute("select caliber_context_assemble(%s, agent_id => %s)", (trajectory, agent))
    return {
        "trajectory": trajectory,
        "scope": scope,
        "turn": scalar(db, "select turn_id from caliber_turn where scope_id = %s", scope),
        "artifact": scalar(db, "select caliber_artifact_create(%s, null, 'fact', 'water is wet')", scope),
        "note": scalar(db, "select caliber_note_add(%s, 'gotcha', 'mind the gap')", agent),
        "context": scalar(db, "select context_id from caliber_context where trajectory_id = %s", trajectory),
    }


@pytest.fixture
def world(db: Connection) -> World:
    db.execute("select caliber_team_create('blue')")
    register = "select caliber_agent_register('coder', name => %s, team => %s)"
    agents = {
        "own": scalar(db, register, "ann", "default"),
        "team": scalar(db, register, "mate", "default"),
        "global": scalar(db, register, "stranger", "blue"),
    }
    return World(agents["own"], agents, {whose: memories(db, agents[whose]) for whose in WHOSE})


def permit(db: Connection, world: World, **sides: list[dict[str, object]]) -> None:
    access = {"read": [], "write": [], **sides}
    query = "update caliber_agent set memory_access = %s::jsonb where agent_id = %s"
    db.execute(query, (json.dumps(access), world.agent))


def permission(memory_type: str, scope: str, **given: object) -> dict[str, object]:
    return {"memory_type": memory_type, "scope": scope, **({"filter": given} if given else {})}


def allowed(db: Connection, world: World, memory_type: str, whose: str, access: str) -> bool:
    answer = scalar(db, CHECK, world.agent, memory_type, world.memory[whose][memory_type], access)
    assert isinstance(answer, bool)
    return answer


@pytest.mark.parametrize("memory_type", TYPES)
def test_what_an_agent_has_by_default(db: Connection, world: World, memory_type: str) -> None:
    for access in ("read", "write"):
        assert [allowed(db, world, memory_type, whose, access) for whose in WHOSE] == [True, False, False]


@pytest.mark.parametrize("wildcard", [True, False])
@pytest.mark.parametrize("scope", WHOSE)
@pytest.mark.parametrize("memory_type", TYPES)
def test_the_three_scopes(db: Connection, world: World, memory_type: str, scope: str, wildcard: bool) -> None:
    reaches = WHOSE[: WHOSE.index(scope) + 1]
    given = permission("*" if wildcard else memory_type, scope)
    for side, other in (("read", "write"), ("write", "read")):
        permit(db, world, **{side: [given]})
        for whose in WHOSE:
            assert allowed(db, world, memory_type, whose, side) is (whose in reaches)
            # One side says nothing of the other; but what is its own an agent always reads.
            assert allowed(db, world, memory_type, whose, other) is (other == "read" and whose == "own")
        # Nor does one type of another.
        another = "note" if memory_type != "note" else "turn"
        assert allowed(db, world, another, "global", side) is (wildcard and scope == "global")


def test_several_permissions_add_up(db: Connection, world: World) -> None:
    permit(db, world, read=[permission("note", "global"), permission("artifact", "team")])
    assert [allowed(db, world, "note", w, "read") for w in WHOSE] == [True, True, True]
    assert [allowed(db, world, "artifact", w, "read") for w in WHOSE] == [True, True, False]
    assert [allowed(db, world, "turn", w, "read") for w in WHOSE] == [True, False, False]


@pytest.mark.parametrize(
    ("memory_type", "given", "met"),
    [
        ("artifact", {"artifact_type": "fact"}, True),
        ("artifact", {"artifact_type": "plan"}, False),
        ("artifact", {"artifact_type": "fact", "status": "final"}, True),
        ("artifact", {"artifact_type": "fact", "status": "draft"}, False),
        ("artifact", {"extraction_method": "explicit"}, True),
        ("artifact", {"colour": "red"}, False),
        ("artifact", {"status": None}, False),
        ("note", {"note_type": "gotcha"}, True),
        ("note", {"level": "principle"}, False),
        ("turn", {"role": "user"}, True),
        ("turn", {"role": "tool"}, False),
        ("trajectory", {"status": "active"}, True),
        ("trajectory", {"status": "failed"}, False),
        ("scope", {"trajectory_id": "none"}, False),
    ],
)
def test_a_filter_narrows_a_permission(
    db: Connection, world: World, memory_type: str, given: dict[str, object], met: bool
) -> None:
    for scope in ("team", "global"):
        permit(db, world, read=[permission(memory_type, scope, **given)])
        assert allowed(db, world, memory_type, scope, "read") is met
    assert not allowed(db, world, memory_type, "team", "write")


def test_a_filter_on_writing_knows_what_is_told_beforehand(db: Connection, world: World) -> None:
    permit(db, world, write=[permission("artifact", "team", artifact_type="fact")])
    assert allowed(db, world, "artifact", "team", "write")
    permit(db, world, write=[permission("artifact", "team", status="final")])
    assert not allowed(db, world, "artifact", "team", "write")


@pytest.mark.parametrize("scope", ["team", "global"])
@pytest.mark.parametrize("memory_type", TYPES)
def test_a_select_shows_what_the_check_allows(
    db: Connection, connect: Connect, roles: Roles, world: World, memory_type: str, scope: str
) -> None:
    session = login(db, connect, roles, world.agent)
    key = f"select {memory_type}_id as id from caliber_{memory_type}"
    for given in ({}, {"trajectory_id": str(world.memory[scope]["trajectory"])}, {"status": "nowhere"}):
        permit(db, world, read=[permission(memory_type, scope, **given)])
        shown = {row["id"] for row in session.execute(key)}
        for whose in WHOSE:
            memory = world.memory[whose][memory_type]
            checked = allowed(db, world, memory_type, whose, "read")
            # That a teammate has a trajectory is known to the team.
            known = whose == "team" and memory_type in ("trajectory", "scope")
            assert (memory in shown) is (checked or known)


def test_a_grant_lets_an_agent_read_and_not_write(db: Connection, world: World) -> None:
    stranger = world.agents["global"]
    db.execute("select caliber_grant_access(%s, %s, 'read_transcript')", (stranger, world.agent))
    for memory_type in TYPES:
        readable = allowed(db, world, memory_type, "global", "read")
        assert readable is True
        assert allowed(db, world, memory_type, "global", "write") is False
    rows = db.execute(REACH, (world.agent, "turn")).fetchall()
    assert {r["reads_because"] for r in rows} == {"permission * own", "read_transcript on stranger"}


def test_who_has_the_trajectory_owns_what_others_wrote_in_it(db: Connection, world: World) -> None:
    mate, scope = world.agents["team"], world.memory["own"]["scope"]
    query = (
        "update caliber_agent set memory_access = jsonb_set(memory_access, '{write}', %s) where agent_id = %s"
    )
    db.execute(query, (json.dumps([permission("*", "team")]), mate))
    create_artifact = "select caliber_artifact_create(%s, null, 'fact', 'by mate', agent_id => %s)"
    made = scalar(db, create_artifact, scope, mate)
    for agent in (world.agent, mate):
        assert scalar(db, CHECK, agent, "artifact", made, "read") is True
        assert scalar(db, CHECK, agent, "artifact", made, "write") is True


def test_what_may_be_written_is_written(db: Connection, world: World) -> None:
    """The check and the verb that replaces an artifact say the same."""
    supersede = "select caliber_artifact_supersede(%s, %s, agent_id => %s)"
    replace = "select caliber_artifact_create(%s, null, 'fact', 'newer', agent_id => %s)"
    for scope in WHOSE:
        sides = [permission("*", scope)]
        permit(db, world, read=[permission("*", "global")], write=sides)
        for whose in WHOSE:
            old = scalar(db, replace, world.memory[whose]["scope"], world.agents[whose])
            new = scalar(db, replace, world.memory[whose]["scope"], world.agents[whose])
            if scalar(db, CHECK, world.agent, "artifact", old, "write"):
                assert scalar(db, supersede, old, new, world.agent) is True
            else:
                assert state(db, supersede, old, new, world.agent) == "42501"


def test_a_filter_lets_an_agent_replace_what_it_names(db: Connection, world: World) -> None:
    make = "select caliber_artifact_create(%s, null, %s, 'x')"
    supersede = "select caliber_artifact_supersede(%s, %s, agent_id => %s)"
    permit(
        db,
        world,
        read=[permission("*", "team")],
        write=[permission("artifact", "team", artifact_type="review_comment")],
    )
    for kind, may in (("review_comment", True), ("fact", False)):
        old, new = (scalar(db, make, world.memory["team"]["scope"], kind) for _ in range(2))
        assert scalar(db, CHECK, world.agent, "artifact", old, "write") is may
        if may:
            assert scalar(db, supersede, old, new, world.agent) is True
        else:
            assert state(db, supersede, old, new, world.agent) == "42501"


def test_who_may_write_what_it_does_not_read_writes_it(
    db: Connection, connect: Connect, roles: Roles, world: World
) -> None:
    permit(db, world, write=[permission("*", "global")])
    session = login(db, connect, roles, world.agent)
    scope, trajectory = world.memory["global"]["scope"], world.memory["global"]["trajectory"]
    assert scalar(session, CHECK, world.agent, "scope", scope, "write") is True
    assert scalar(session, "select caliber_turn_add(%s, 'user', 'x')", scope) == 2
    assert scalar(session, "select caliber_scope_checkpoint(%s, '{}')", scope) is not None
    assert scalar(session, "select caliber_trajectory_suspend(%s)", trajectory) == "active"


def test_who_has_the_trajectory_retires_notes_of_it(
    db: Connection, connect: Connect, roles: Roles, world: World
) -> None:
    add = "select caliber_note_add(%s, 'fact', 'by mate', %s)"
    note = scalar(db, add, world.agents["team"], world.memory["own"]["trajectory"])
    session = login(db, connect, roles, world.agent)
    assert scalar(session, CHECK, world.agent, "note", note, "write") is True
    assert scalar(session, "select caliber_note_retire(%s)", note) is True
    assert scalar(session, "select caliber_note_retire(%s)", note) is False
    # And nobody's that is elsewhere.
    assert state(session, "select caliber_note_retire(%s)", world.memory["team"]["note"]) == "P0002"


def test_regions_follow_their_own_rule(db: Connection, world: World) -> None:
    """Whatever memory_access says: private is private."""
    permit(db, world, read=[permission("*", "global")], write=[permission("region", "global")])
    expected = {
        "private": (False, False),
        "team": (True, True),
        "public": (True, False),
        "collaborative": (True, True),
    }
    for region_type, answers in expected.items():
        region = create(db, world.agents["team"], region_type)
        assert (
            tuple(scalar(db, CHECK, world.agent, "region", region, a) for a in ("read", "write")) == answers
        )
        assert scalar(db, CHECK, world.agents["team"], "region", region, "write") is True
    region = create(db, world.agents["global"], "private")
    db.execute("select caliber_region_grant(%s, %s)", (region, world.agent))
    assert scalar(db, CHECK, world.agent, "region", region, "read") is True
    assert scalar(db, CHECK, world.agent, "region", region, "write") is False


def test_who_and_what_is_not_there_is_not_allowed(db: Connection, world: World) -> None:
    permit(db, world, read=[permission("*", "global")])
    note = world.memory["own"]["note"]
    assert scalar(db, CHECK, uuid.uuid4(), "note", note, "read") is False
    assert scalar(db, CHECK, world.agent, "note", uuid.uuid4(), "read") is False
    # An id of another type is none of this type.
    assert scalar(db, CHECK, world.agent, "artifact", note, "read") is False
    db.execute("select caliber_agent_terminate(%s)", (world.agent,))
    assert scalar(db, CHECK, world.agent, "note", note, "read") is False
    assert db.execute(REACH, (world.agent, None)).fetchall() == []


def test_bad_input(db: Connection, world: World) -> None:
    note = world.memory["own"]["note"]
    assert state(db, CHECK, None, "note", note, "read") == "22023"
    assert state(db, CHECK, world.agent, "note", None, "read") == "22023"
    assert state(db, CHECK, world.agent, "note", note, None) == "22023"
    assert state(db, CHECK, world.agent, "note", note, "own") == "22P02"
    for memory_type in (None, "", "*", "Note", "x" * 1000, "caliber_note"):
        assert state(db, CHECK, world.agent, memory_type, note, "read") == "22023"
    assert state(db, REACH, None, None) == "22023"
    assert state(db, REACH, uuid.uuid4(), None) == "P0002"
    assert state(db, REACH, world.agent, "none") == "22023"
    assert state(db, "select * from caliber_reach(%s, max_rows => 0)", world.agent) == "22023"


def test_an_agent_asks_for_itself(db: Connection, connect: Connect, roles: Roles, world: World) -> None:
    session = login(db, connect, roles, world.agent)
    note = world.memory["own"]["note"]
    assert scalar(session, CHECK, world.agent, "note", note, "read") is True
    assert len(session.execute(REACH, (world.agent, None)).fetchall()) == 6
    for agent in (world.agents["team"], uuid.uuid4()):
        assert state(session, CHECK, agent, "note", note, "read") == "42501"
        assert state(session, REACH, agent, None) == "42501"
    observer = connect(roles("caliber_observer"))
    assert scalar(observer, CHECK, world.agents["team"], "note", note, "read") is False
    assert len(observer.execute(REACH, (world.agents["team"], None)).fetchall()) == 6
    assert state(connect(roles(None)), CHECK, world.agent, "note", note, "read") == "42501"


def test_reach_says_why(db: Connection, world: World) -> None:
    permit(
        db,
        world,
        read=[permission("artifact", "team", artifact_type="fact")],
        write=[permission("note", "own")],
    )
    region = create(db, world.agents["global"], "public", ", 'board'")
    put(db, world.agents["global"], region, "1")
    rows = db.execute("select * from caliber_reach(%s)", (world.agent,)).fetchall()
    reasons = {(r["memory_type"], r["belongs_to"]): (r["reads_because"], r["writes_because"]) for r in rows}
    filtered = 'permission artifact team {"artifact_type": "fact"}'
    assert reasons == {
        ("region", "stranger"): ("public", None),
        ("artifact", "ann"): (filtered, None),
        ("artifact", "mate"): (filtered, None),
        ("note", "ann"): ("own", "permission note own"),
        ("turn", "ann"): ("own", None),
        ("scope", "ann"): ("own", None),
        ("context", "ann"): ("own", None),
        ("trajectory", "ann"): ("own", None),
    }
    assert rows[0]["name"] == "board"
    assert {r["name"] for r in rows if r["memory_type"] == "turn"} == {"user: do it"}
    assert len(db.execute("select * from caliber_reach(%s, max_rows => 2)", (world.agent,)).fetchall()) == 2


def test_a_check_reads_by_key(connect: Connect, world: World) -> None:
    """Not every table, and none from end to end, however much is in it."""
    session = connect(autocommit=False)
    session.execute("set enable_seqscan = off")
    for _ in range(10):
        allowed(session, world, "artifact", "own", "read")
    rows = session.execute(
        "select relname, seq_scan > 0 as whole, idx_scan from pg_stat_xact_user_tables"
        " where relname in ('caliber_turn', 'caliber_artifact', 'caliber_note', 'caliber_scope')"
        " order by relname"
    ).fetchall()
    assert [r["relname"] for r in rows if r["whole"]] == []
    assert {r["relname"]: r["idx_scan"] for r in rows}["caliber_artifact"] == 10
