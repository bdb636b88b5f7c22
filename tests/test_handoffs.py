"""Handoffs: the verbs, what moves and what does not, and who may."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

import pytest
from conftest import Connect, Connection, refused, scalar, state
from handoffs_cast import Cast

ACCEPT = "select status from caliber_accept_handoff(%s, %s)"


@pytest.fixture
def cast(db: Connection) -> Cast:
    return Cast(db)


def test_nothing_moves_before_acceptance(db: Connection, cast: Cast) -> None:
    handoff = cast.initiate()
    assert cast.owner() == cast.worker
    assert cast.on(cast.worker) == ("active", cast.work)
    assert cast.on(cast.helper) == ("idle", None)
    assert scalar(db, "select closed_at from caliber_scope where scope_id = %s", cast.scope) is None
    assert cast.trail(handoff) == ["initiated"]


def test_acceptance_moves_trajectory_assignment_scope_and_leases(db: Connection, cast: Cast) -> None:
    path = "src/parser.py"
    lock = scalar(db, "select caliber_lock_acquire(%s, 'file', %s, 'exclusive', 60000)", cast.worker, path)
    fence = scalar(db, "select fence from caliber_lock where lock_id = %s", lock)
    handoff = cast.initiate(lock_ids=[lock], next_steps=["write the parser"])
    row = cast.accept(handoff)
    assert (row["status"], row["warnings"], str(row["trajectory_id"])) == ("accepted", [], cast.work)
    assert cast.owner() == cast.helper
    assert cast.on(cast.worker) == ("idle", None)
    assert cast.on(cast.helper) == ("active", cast.work)
    assert scalar(db, "select closed_at from caliber_scope where scope_id = %s", cast.scope) is not None
    assert scalar(db, "select scope_id from caliber_scope_current(%s)", cast.work) == row["scope_id"]
    lease = db.execute("select * from caliber_lock").fetchall()
    assert [str(held["holder_agent_id"]) for held in lease] == [cast.helper]
    assert [held["fence"] for held in lease] == [int(str(fence)) + 1]
    assert state(db, "select caliber_lock_guard('file', %s, %s)", path, fence) == "KA001"
    content = str(scalar(db, "select content from caliber_artifact where scope_id = %s", row["scope_id"]))
    assert content.startswith("HANDOFF RECEIVED\nReason: specialization")
    assert "- write the parser" in content
    assert cast.trail(handoff) == ["initiated", "accepted"]


def test_the_context_is_one_select_and_text_for_a_prompt(db: Connection, cast: Cast) -> None:
    db.execute("select caliber_turn_add(%s, 'user', 'parse the lexer output')", (cast.scope,))
    handoff = cast.initiate(next_steps=["parser"], blockers=["no grammar"], open_questions=["which?"])
    assert scalar(db, "select caliber_handoff_context(%s)", handoff) is None
    cast.accept(handoff)
    text = str(scalar(db, "select caliber_handoff_context(%s)", handoff))
    for part in (
        "Handoff from wim",
        "the lexer is done",
        "- parser",
        "- no grammar",
        "- which?",
        "lexer output",
    ):
        assert part in text
    assert scalar(db, "select caliber_context_verify(context_id) from caliber_handoff") is True


def test_a_rejection_leaves_the_sender_where_it_was(db: Connection, cast: Cast) -> None:
    handoff = cast.initiate()
    reject = "select caliber_reject_handoff(%s, %s, %s)"
    assert state(db, reject, handoff, cast.helper, None) == "22023"
    assert scalar(db, reject, handoff, cast.helper, "no time") == "rejected"
    assert (cast.owner(), cast.on(cast.worker)) == (cast.worker, ("active", cast.work))
    assert scalar(db, "select scope_id::text from caliber_scope_current(%s)", cast.work) == cast.scope
    assert cast.trail(handoff) == ["initiated", "rejected"]
    assert state(db, ACCEPT, handoff, cast.helper) == "KA007"


def test_deferred_is_open_for_longer(db: Connection, cast: Cast) -> None:
    handoff = cast.initiate()
    call = "select caliber_defer_handoff(%s, %s, 'tests run', 1000)"
    assert scalar(db, call, handoff, cast.helper) == "deferred"
    assert cast.accept(handoff)["status"] == "accepted"
    assert cast.trail(handoff) == ["initiated", "deferred", "accepted"]


def test_withdrawn_is_over(db: Connection, cast: Cast) -> None:
    handoff = cast.initiate()
    withdraw = "select caliber_withdraw_handoff(%s, %s)"
    assert state(db, withdraw, handoff, cast.helper) == "P0002"
    assert scalar(db, withdraw, handoff, cast.worker) is True
    assert state(db, ACCEPT, handoff, cast.helper) == "KA007"
    assert state(db, withdraw, handoff, cast.worker) == "KA007"


def test_a_trajectory_is_offered_to_one_at_a_time(db: Connection, cast: Cast) -> None:
    first = cast.initiate()
    with pytest.raises(Exception, match="offered already"):
        cast.initiate(to_agent_id=cast.reviewer)
    db.execute("select caliber_withdraw_handoff(%s, %s)", (first, cast.worker))
    cast.initiate(to_agent_id=cast.reviewer)


def test_sixteen_race_for_one_handoff_and_one_accepts(connect: Connect, db: Connection, cast: Cast) -> None:
    racers = [cast.agent("racer", f"r{number}") for number in range(16)]
    handoff = cast.initiate(to_agent_type="racer")
    connections = [connect() for _ in racers]
    outcomes: list[str] = []
    barrier = threading.Barrier(16)

    def race(connection: Connection, agent: str) -> None:
        barrier.wait()
        try:
            outcomes.append(str(scalar(connection, ACCEPT, handoff, agent)))
        except Exception as error:
            outcomes.append(str(getattr(error, "sqlstate", error)))

    threads = [threading.Thread(target=race, args=pair) for pair in zip(connections, racers, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["KA007"] * 15 + ["accepted"]
    assert cast.owner() == str(cast.handoff(handoff)["to_agent_id"])
    assert cast.trail(handoff) == ["initiated", "accepted"]
    assert scalar(db, "select count(*) from caliber_audit_verify()") == 0


@pytest.mark.parametrize(
    ("more", "sqlstate"),
    [
        ({"handoff_notes": ""}, "22023"),
        ({"handoff_notes": None}, "22023"),
        ({"handoff_notes": "x" * 10001}, "22023"),
        ({"reason": None}, "22023"),
        ({"to_agent_id": None}, "22023"),
        ({"to_agent_type": "helper", "to_agent_id": uuid.UUID(int=1)}, "KA004"),
        ({"to_agent_id": uuid.UUID(int=1)}, "KA004"),
        ({"trajectory_id": uuid.UUID(int=1)}, "P0002"),
        ({"trajectory_id": None}, "22023"),
        ({"from_agent_id": uuid.UUID(int=1)}, "P0002"),
        ({"from_agent_id": None}, "22023"),
        ({"lock_ids": [uuid.UUID(int=1)]}, "KA001"),
        ({"artifact_ids": [uuid.UUID(int=1)]}, "P0002"),
        ({"handoff_type": "delegation"}, "22023"),
        ({"handoff_type": "broadcast", "return_timeout_ms": 1}, "22023"),
        ({"handoff_type": "escalation"}, "22023"),
        ({"return_timeout_ms": -1, "handoff_type": "delegation"}, "22023"),
        ({"min_proficiency": '{"sql": 0.5}'}, "22023"),
        ({"history_include": '{"x": true}'}, "22023"),
        ({"variables": '{"task_status": 1}'}, "22023"),
        ({"variables": "[]"}, "22023"),
        ({"token_budget": 1}, "22023"),
        ({"next_steps": [""]}, "22023"),
        ({"triggered_by": "capability_mismatch"}, "22023"),
        ({"triggered_by": "escalation"}, "22023"),
        ({"incarnation": 9}, "KA001"),
    ],
)
def test_misuse_raises_and_leaves_nothing(
    db: Connection, cast: Cast, more: dict[str, object], sqlstate: str
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        cast.initiate(**more)  # type: ignore[arg-type]
    assert getattr(caught.value, "sqlstate", None) == sqlstate
    assert scalar(db, "select count(*) from caliber_handoff") == 0
    assert scalar(db, "select count(*) from caliber_audit") == 0


def test_only_who_has_the_trajectory_hands_it_over(db: Connection, cast: Cast) -> None:
    with pytest.raises(Exception, match="hands it over"):
        cast.initiate(cast.reviewer)


def test_an_offer_to_ones_own_type_is_for_the_others(db: Connection, cast: Cast) -> None:
    handoff = cast.initiate(to_agent_type="worker")
    for verb in ("caliber_accept_handoff(%s, %s)", "caliber_reject_handoff(%s, %s, 'no')"):
        assert state(db, f"select {verb}", handoff, cast.worker) == "KA007"
    assert (cast.status(handoff), cast.owner()) == ("initiated", cast.worker)
    other = cast.agent("worker", "wil")
    assert cast.accept(handoff, other)["status"] == "accepted"
    assert cast.owner() == other


def test_others_do_not_learn_of_a_handoff(
    db: Connection, connect: Connect, roles: Callable[[str | None], str], cast: Cast
) -> None:
    handoff = cast.initiate()
    stranger = cast.agent("helper", "sam")
    login = roles("caliber_agent")
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (login, stranger))
    session = connect(login)
    assert scalar(session, "select count(*) from caliber_handoff") == 0
    assert scalar(session, "select count(*) from caliber_audit") == 0
    assert state(session, ACCEPT, handoff, stranger) == "P0002"
    assert state(session, ACCEPT, handoff, cast.helper) == "42501"
    assert refused(session, ACCEPT, uuid.uuid4(), stranger).sqlstate == "P0002"


def test_agents_do_all_of_it_by_their_own_logins(
    db: Connection, connect: Connect, roles: Callable[[str | None], str], cast: Cast
) -> None:
    sessions = {}
    for agent in (cast.worker, cast.helper):
        login = roles("caliber_agent")
        db.execute("update caliber_agent set login_role = %s where agent_id = %s", (login, agent))
        sessions[agent] = connect(login)
    handoff = cast.initiate(db=sessions[cast.worker])
    inbox = "select handoff_id::text from caliber_handoff_inbox(%s)"
    assert scalar(sessions[cast.helper], inbox, cast.helper) == handoff
    message = "select payload ->> 'handoff_id' from caliber_message_inbox(%s)"
    assert scalar(sessions[cast.helper], message, cast.helper) == handoff
    assert scalar(sessions[cast.helper], ACCEPT, handoff, cast.helper) == "accepted"
    assert scalar(sessions[cast.helper], "select caliber_handoff_context(%s)", handoff) is not None
    complete = "select caliber_complete_handoff(%s, %s)"
    assert state(sessions[cast.worker], complete, handoff, cast.worker) == "P0002"
    assert scalar(sessions[cast.helper], complete, handoff, cast.helper) == "completed"
    assert cast.trail(handoff) == ["initiated", "accepted", "completed"]


def test_return_to_previous_restores_the_prior_agent(db: Connection, cast: Cast) -> None:
    call = "select status from caliber_handoff_return_to_previous(%s, %s)"
    assert state(db, call, cast.work, cast.worker) == "KA007"
    cast.accept(cast.initiate())
    assert scalar(db, call, cast.work, cast.helper) == "accepted"
    assert (cast.owner(), cast.on(cast.worker)) == (cast.worker, ("active", cast.work))
    assert cast.on(cast.helper) == ("idle", None)
