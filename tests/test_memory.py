"""Artifacts and notes: what is kept, superseded, retired."""

from __future__ import annotations

import hashlib
import threading
import uuid

import pytest
from conftest import Connect, Connection, refused, scalar, state

START = "select caliber_trajectory_start(%s, %s)"
CREATE = "select caliber_artifact_create(%s, %s, %s, %s)"
SUPERSEDE = "select caliber_artifact_supersede(%s, %s)"
CURRENT = "select scope_id from caliber_scope_current(%s)"


@pytest.fixture
def agent(db: Connection) -> object:
    return scalar(db, "select caliber_agent_register('coder', name => 'ann')")


@pytest.fixture
def trajectory(db: Connection, agent: object) -> object:
    return scalar(db, START, "port the parser", agent)


@pytest.fixture
def scope(db: Connection, trajectory: object) -> object:
    return scalar(db, CURRENT, trajectory)


def artifact(db: Connection, scope: object, content: str = "the sky is blue") -> object:
    return scalar(db, CREATE, scope, None, "fact", content)


def test_create_with_the_positional_order_of_the_protocol(
    db: Connection, agent: object, trajectory: object, scope: object
) -> None:
    made = scalar(
        db,
        "select caliber_artifact_create(%s, %s, 'fact', 'le ciel est bleu ☁', 'inferred', '[1,2,3]', 0.9,"
        " name => 'sky', path => 'notes/sky.md', embedding_model => 'm-1', metadata => '{\"k\": 1}')",
        scope,
        trajectory,
    )
    found = db.execute("select * from caliber_artifact_get(%s)", (made,)).fetchone()
    assert found is not None
    assert found["content"] == "le ciel est bleu ☁"
    assert found["content_sha256"] == hashlib.sha256("le ciel est bleu ☁".encode()).hexdigest()
    assert (found["status"], found["agent"], found["agent_id"]) == ("final", "ann", agent)
    assert (found["embedding_dim"], found["embedding_model"]) == (3, "m-1")
    assert (found["extraction_method"], found["confidence"]) == ("inferred", pytest.approx(0.9))
    assert (found["path"], found["metadata"]) == ("notes/sky.md", {"k": 1})
    assert scalar(db, "select embedding::text from caliber_artifact") == "[1,2,3]"


@pytest.mark.parametrize(
    ("arguments", "sqlstate"),
    [
        ("null, null, 'fact', 'x'", "22023"),
        ("gen_random_uuid(), null, 'fact', 'x'", "P0002"),
        ("%(scope)s, gen_random_uuid(), 'fact', 'x'", "22023"),
        ("%(scope)s, null, null, 'x'", "22023"),
        ("%(scope)s, null, 'rumour', 'x'", "22P02"),
        ("%(scope)s, null, 'fact', null", "22023"),
        ("%(scope)s, null, 'fact', ''", "22023"),
        ("%(scope)s, null, 'fact', repeat('x', 262145)", "54000"),
        ("%(scope)s, null, 'fact', 'x', null", "22023"),
        ("%(scope)s, null, 'fact', 'x', embedding => '[0,-0,0]'", "22023"),
        # What is near to everything, as squares of it are zero to pgvector, or near to nothing.
        ("%(scope)s, null, 'fact', 'x', embedding => '[1e-30,-1e-30]'", "22023"),
        ("%(scope)s, null, 'fact', 'x', embedding => '[1,-1e30]'", "22023"),
        ("%(scope)s, null, 'fact', 'x', embedding_model => 'm'", "22023"),
        ("%(scope)s, null, 'fact', 'x', confidence => 1.1", "22023"),
        ("%(scope)s, null, 'fact', 'x', confidence => -0.1", "22023"),
        ("%(scope)s, null, 'fact', 'x', confidence => 'nan'", "22023"),
        ("%(scope)s, null, 'fact', 'x', status => 'superseded'", "22023"),
        ("%(scope)s, null, 'fact', 'x', status => null", "22023"),
        ("%(scope)s, null, 'fact', 'x', tokens => -1", "22023"),
        ("%(scope)s, null, 'fact', repeat('x', 64000), tokens => 999", "22023"),
        ("%(scope)s, null, 'fact', 'x', name => repeat('x', 201)", "22023"),
        ("%(scope)s, null, 'fact', 'x', path => repeat('x', 1001)", "22023"),
        ("%(scope)s, null, 'fact', 'x', metadata => '1'", "22023"),
        ("%(scope)s, null, 'fact', 'x', agent_id => gen_random_uuid()", "P0002"),
        ("%(scope)s, null, 'fact', 'x', agent_id => %(agent)s, incarnation => 0", "KA001"),
    ],
)
def test_create_refuses_bad_input(
    db: Connection, agent: object, scope: object, arguments: str, sqlstate: str
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        db.execute(f"select caliber_artifact_create({arguments})", {"scope": scope, "agent": agent})
    assert getattr(caught.value, "sqlstate", None) == sqlstate
    assert scalar(db, "select count(*) from caliber_artifact") == 0


def test_oversized_content_is_refused_with_what_to_do(db: Connection, scope: object) -> None:
    error = refused(db, CREATE, scope, None, "file", "x" * 300_000)
    assert error.diag.message_primary == "caliber: content must be at most 262144 bytes"
    assert error.diag.message_detail == "content has 300000 bytes."
    assert "path" in (error.diag.message_hint or "")


def test_a_closed_scope_takes_no_artifact(db: Connection, scope: object) -> None:
    db.execute("select caliber_scope_close(%s)", (scope,))
    assert state(db, CREATE, scope, None, "fact", "too late") == "KA007"


def test_supersede_makes_a_chain(db: Connection, scope: object) -> None:
    a, b, c = (artifact(db, scope, f"version {n}") for n in range(3))
    assert scalar(db, SUPERSEDE, a, b) is True
    assert scalar(db, SUPERSEDE, a, b) is False
    assert scalar(db, SUPERSEDE, b, c) is True
    latest = "select artifact_id from caliber_artifact_latest(%s)"
    assert [scalar(db, latest, x) for x in (a, b, c)] == [c, c, c]
    states = {r["artifact_id"]: r["status"] for r in db.execute("select * from caliber_artifact")}
    assert states == {a: "superseded", b: "superseded", c: "final"}


def test_supersede_makes_no_cycle(db: Connection, scope: object) -> None:
    a, b, c, d = (artifact(db, scope, f"version {n}") for n in range(4))
    assert state(db, SUPERSEDE, a, a) == "22023"
    db.execute(SUPERSEDE, (a, b))
    assert state(db, SUPERSEDE, b, a) == "KA007"
    db.execute(SUPERSEDE, (b, c))
    assert state(db, SUPERSEDE, c, a) == "KA007"
    assert state(db, SUPERSEDE, a, d) == "KA007"
    assert state(db, SUPERSEDE, d, b) == "KA007"
    assert state(db, SUPERSEDE, a, uuid.uuid4()) == "P0002"
    assert state(db, SUPERSEDE, uuid.uuid4(), a) == "P0002"
    assert state(db, SUPERSEDE, None, a) == "22023"
    assert state(db, SUPERSEDE, a, None) == "22023"


def test_many_supersede_at_random_and_no_cycle_comes_of_it(
    connect: Connect, db: Connection, scope: object
) -> None:
    made = [artifact(db, scope, f"version {n}") for n in range(8)]
    connections = [connect() for _ in range(8)]
    barrier = threading.Barrier(8)
    unexpected: list[object] = []

    def race(which: int) -> None:
        barrier.wait()
        for step in range(1, 8):
            old, new = made[which], made[(which + step) % 8]
            try:
                connections[which].execute(SUPERSEDE, (old, new))
            except Exception as error:
                if getattr(error, "sqlstate", None) != "KA007":
                    unexpected.append(error)

    threads = [threading.Thread(target=race, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert unexpected == []
    assert scalar(db, "select count(*) from caliber_artifact where status <> 'superseded'") == 1
    last = scalar(db, "select artifact_id from caliber_artifact where status <> 'superseded'")
    latest = "select artifact_id from caliber_artifact_latest(%s)"
    assert {scalar(db, latest, x) for x in made} == {last}


def test_notes(db: Connection, agent: object, trajectory: object) -> None:
    add = (
        "select caliber_note_add(%s, 'procedural', 'run make lint first', %s, 'principle', 'lint',"
        " tags => array['make', 'make', 'style'], embedding => '[1,0]', embedding_model => 'm')"
    )
    note = scalar(db, add, agent, trajectory)
    db.execute("select caliber_trajectory_finish(%s)", (trajectory,))
    found = db.execute("select * from caliber_notes").fetchone()
    assert found is not None
    assert (found["note_id"], found["agent"], found["level"]) == (note, "ann", "principle")
    assert (found["tags"], found["embedding_dim"]) == (["make", "style"], 2)
    # What outlives a trajectory may be written when that is over.
    assert scalar(db, "select caliber_note_add(%s, 'fact', 'x', %s)", agent, trajectory) is not None
    assert scalar(db, "select caliber_note_retire(%s, 'moved')", note) is True
    assert scalar(db, "select caliber_note_retire(%s)", note) is False


@pytest.mark.parametrize(
    ("arguments", "sqlstate"),
    [
        ("null, 'fact', 'x'", "22023"),
        ("gen_random_uuid(), 'fact', 'x'", "P0002"),
        ("%(agent)s, null, 'x'", "22023"),
        ("%(agent)s, 'fact', ''", "22023"),
        ("%(agent)s, 'fact', repeat('x', 262145)", "54000"),
        ("%(agent)s, 'fact', 'x', gen_random_uuid()", "P0002"),
        ("%(agent)s, 'handoff', 'x'", "22023"),
        ("%(agent)s, 'fact', 'x', level => null", "22023"),
        ("%(agent)s, 'fact', 'x', tags => array['a', null]", "22023"),
        ("%(agent)s, 'fact', 'x', tags => array['']", "22023"),
        ("%(agent)s, 'fact', 'x', tags => array_fill('x'::text, array[101])", "22023"),
        ("%(agent)s, 'fact', 'x', confidence => 2", "22023"),
        ("%(agent)s, 'fact', 'x', embedding => '[0]'", "22023"),
        ("%(agent)s, 'fact', 'x', incarnation => 7", "KA001"),
    ],
)
def test_note_refuses_bad_input(db: Connection, agent: object, arguments: str, sqlstate: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        db.execute(f"select caliber_note_add({arguments})", {"agent": agent})
    assert getattr(caught.value, "sqlstate", None) == sqlstate
    assert scalar(db, "select count(*) from caliber_note") == 0


def test_unknown_notes(db: Connection) -> None:
    assert state(db, "select caliber_note_retire(%s)", uuid.uuid4()) == "P0002"
    assert state(db, "select caliber_note_retire(%s)", None) == "22023"
