"""Checkpoints: saved with what they describe, found again after a crash."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from conftest import Connect, Connection, scalar, state
from psycopg.types.json import Jsonb

Roles = Callable[[str | None], str]

SAVE = "select caliber_checkpoint_save(%s, %s, %s, %s)"
LATEST = "select * from caliber_checkpoint_latest(%s, %s, %s)"


@pytest.fixture
def agent(db: Connection) -> object:
    return scalar(db, "select caliber_agent_register('coder', name => 'ann')")


def references(db: Connection, agent: object, *arguments: object) -> list[object]:
    places = "".join(", %s" for _ in arguments)
    rows = db.execute(f"select reference_id from caliber_checkpoint_list(%s{places})", (agent, *arguments))
    return [row["reference_id"] for row in rows]


def latest(db: Connection, agent: object, reference: object = None, kind: object = None) -> object:
    row = db.execute(LATEST, (agent, reference, kind)).fetchone()
    return row and (row["checkpoint_type"], row["reference_id"], row["agent_state"])


def test_latest_and_list_by_agent_reference_and_type(db: Connection, agent: object) -> None:
    assert latest(db, agent) is None
    db.execute(SAVE, (agent, "message_processed", "m1", Jsonb({"step": 1})))
    db.execute(SAVE, (agent, "state_committed", "s/k/3", None))
    db.execute(SAVE, (agent, "message_processed", "m2", Jsonb({"step": 2, "ü": "🙂"})))
    db.execute(SAVE, (agent, "token_released", "m1", None))
    assert latest(db, agent) == ("token_released", "m1", None)
    assert latest(db, agent, kind="message_processed") == (
        "message_processed",
        "m2",
        {"step": 2, "ü": "🙂"},
    )
    assert latest(db, agent, "m1") == ("token_released", "m1", None)
    assert latest(db, agent, "m1", "message_processed") == ("message_processed", "m1", {"step": 1})
    assert latest(db, agent, "m3") is None
    assert latest(db, uuid.uuid4()) is None
    assert references(db, agent) == ["m1", "m2", "s/k/3", "m1"]
    assert references(db, agent, "m1") == ["m1", "m1"]
    assert references(db, agent, None, "message_processed") == ["m2", "m1"]


def test_list_pages(db: Connection, agent: object) -> None:
    numbers = [scalar(db, SAVE, agent, "done", str(n), None) for n in range(5)]
    assert references(db, agent, None, None, None, 2) == ["4", "3"]
    assert references(db, agent, None, None, numbers[3], 2) == ["2", "1"]
    for limit in (0, -1, 1001):
        assert state(db, "select caliber_checkpoint_list(%s, max_checkpoints => %s)", agent, limit) == "22023"


def test_a_checkpoint_shares_the_fate_of_its_transaction(
    db: Connection, connect: Connect, agent: object
) -> None:
    work = connect(autocommit=False)
    for outcome, key in ((work.rollback, "lost"), (work.commit, "kept")):
        work.execute("select caliber_state_set('s', %s, '1', agent_id => %s)", (key, agent))
        work.execute(SAVE, (agent, "state_committed", key, None))
        assert references(db, agent) == []
        outcome()
    assert references(db, agent) == ["kept"]
    assert scalar(db, "select count(*) from caliber_state_list('s')") == 1


def test_it_keeps_the_process_and_the_trajectory(db: Connection, agent: object) -> None:
    trajectory, other = (scalar(db, "select caliber_trajectory_start('work', %s)", agent) for _ in "ab")
    db.execute("select caliber_agent_assign_trajectory(%s, %s)", (agent, trajectory))
    save = "select caliber_checkpoint_save(%s, 'done', %s, trajectory_id => %s, incarnation => %s)"
    db.execute(save, (agent, "a", None, 1))
    db.execute("select caliber_agent_resume(%s)", (agent,))
    assert state(db, save, agent, "b", None, 1) == "KA001"
    db.execute(save, (agent, "c", other, 2))
    rows = db.execute("select * from caliber_checkpoint_list(%s)", (agent,)).fetchall()
    assert [(r["reference_id"], r["incarnation"], r["trajectory_id"]) for r in rows] == [
        ("c", 2, other),
        ("a", 1, trajectory),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        "null, 'x'",
        "'', 'x'",
        "'No Slug', 'x'",
        "'done', null",
        "'done', ''",
        "'done', repeat('x', 1001)",
        "'done', 'x', '[]'",
        "'done', 'x', 'null'",
        "'done', 'x', jsonb_build_object('a', repeat('x', 256 * 1024))",
    ],
)
def test_save_refuses_bad_input(db: Connection, agent: object, arguments: str) -> None:
    assert state(db, f"select caliber_checkpoint_save(%s, {arguments})", agent) == "22023"
    assert references(db, agent) == []


def test_only_for_agents_there_are_and_oneself(
    db: Connection, connect: Connect, roles: Roles, agent: object
) -> None:
    bob = scalar(db, "select caliber_agent_register('coder', name => 'bob')")
    login = roles("caliber_agent")
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (login, agent))
    mine = connect(login)
    assert scalar(mine, SAVE, agent, "done", "x", None) is not None
    db.execute(SAVE, (bob, "done", "y", Jsonb({"secret": 1})))
    assert state(mine, SAVE, bob, "done", "x", None) == "42501"
    assert state(mine, "select caliber_checkpoint_prune(%s, 1)", bob) == "42501"
    # A snapshot is the agent's own, also within its team.
    assert references(mine, agent) == ["x"]
    assert references(mine, bob) == []
    assert scalar(mine, "select count(*) from caliber_checkpoint") == 1
    db.execute("select caliber_grant_access(%s, %s, 'read_transcript')", (bob, agent))
    assert references(mine, bob) == ["y"]
    assert state(mine, SAVE, bob, "done", "x", None) == "42501"
    db.execute("select caliber_revoke_access(%s, %s, 'read_transcript')", (bob, agent))
    assert references(mine, bob) == []
    observer = connect(roles("caliber_observer"))
    assert references(observer, bob) == ["y"]
    assert state(observer, SAVE, bob, "done", "x", None) == "42501"
    for unknown, error in ((uuid.uuid4(), "P0002"), (None, "22023")):
        assert state(db, SAVE, unknown, "done", "x", None) == error
        assert state(db, "select caliber_checkpoint_prune(%s)", unknown) == error
    db.execute("select caliber_agent_terminate(%s)", (agent,))
    assert state(db, SAVE, agent, "done", "x", None) == "KA007"
    # What is there stays for whoever looks into it.
    assert references(db, agent) == ["x"]


def test_prune_keeps_the_latest_of_each_type(db: Connection, agent: object) -> None:
    for number in range(5):
        db.execute(SAVE, (agent, "message_processed", f"m{number}", None))
    db.execute(SAVE, (agent, "token_released", "t", None))
    assert scalar(db, "select caliber_checkpoint_prune(%s, 2)", agent) == 3
    assert scalar(db, "select caliber_checkpoint_prune(%s, 2)", agent) == 0
    assert references(db, agent) == ["t", "m4", "m3"]
    for keep in (0, -1, None):
        assert state(db, "select caliber_checkpoint_prune(%s, %s::int)", agent, keep) == "22023"
