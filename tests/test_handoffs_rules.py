"""Handoffs, rule by rule of the protocol: validation, returns, timeouts, escalation, broadcast."""

from __future__ import annotations

import pytest
from conftest import Connect, Connection, scalar, state
from handoffs_cast import Cast

RETURN = "select caliber_return_handoff(%s, %s, %s)"
COMPLETE = "select caliber_complete_handoff(%s, %s)"
BROADCAST = (
    "select handoff_id::text, broadcast_group_id from caliber_broadcast_handoff("
    "%s, %s::uuid[], %s, 'specialization', 'look', aggregation => %s)"
)


@pytest.fixture
def cast(db: Connection) -> Cast:
    return Cast(db)


def test_5_1_all_capabilities_are_accepted_some_warned_of_none_rejected(db: Connection, cast: Cast) -> None:
    expert = cast.agent("expert", "eve", capabilities=["sql", "review"], proficiency='{"sql": 0.8}')
    wanted = {"to_agent_type": "expert", "required_capabilities": ["sql", "review"]}
    row = cast.accept(cast.initiate(**wanted), expert)  # type: ignore[arg-type]
    assert (row["status"], row["warnings"]) == ("accepted", [])
    db.execute("select caliber_handoff_return_to_previous(%s, %s)", (cast.work, expert))
    wanted["min_proficiency"] = '{"sql": 0.9}'
    row = cast.accept(cast.initiate(**wanted), expert)  # type: ignore[arg-type]
    assert (row["status"], row["warnings"]) == ("accepted", ["missing capability: sql at 0.9"])
    db.execute("select caliber_handoff_return_to_previous(%s, %s)", (cast.work, expert))
    handoff = cast.initiate(to_agent_type="expert", required_capabilities=["rust"])
    row = cast.accept(handoff, expert)
    assert (row["status"], row["reason"]) == ("rejected", "capability: rust")
    assert cast.trail(handoff) == ["initiated", "rejected"]
    assert cast.owner() == cast.worker


def test_5_2_at_capacity_is_rejected(db: Connection, cast: Cast) -> None:
    small = cast.agent("small", "sal", max_concurrent_tasks=1)
    cast.accept(cast.delegate(to_agent_id=small), small)
    second = cast.delegate(to_agent_id=small)
    assert cast.status(second) == "rejected"
    assert str(cast.handoff(second)["status_reason"]).startswith("at_capacity")


def test_9_insufficient_autonomy_is_rejected(db: Connection, cast: Cast) -> None:
    handoff = cast.initiate(risk_level="high")
    assert (cast.status(handoff), cast.trail(handoff)) == ("rejected", ["initiated", "rejected"])
    assert str(cast.handoff(handoff)["status_reason"]).startswith("autonomy")


def test_2_2_delegation_keeps_the_sender_the_owner_and_returns(db: Connection, cast: Cast) -> None:
    handoff = cast.delegate(task_id="subtask", sender_waits=True)
    row = cast.accept(handoff)
    assert cast.owner() == cast.worker
    assert str(row["trajectory_id"]) != cast.work
    assert cast.on(cast.worker) == ("waiting", cast.work)
    assert state(db, COMPLETE, handoff, cast.worker) == "KA007"
    call = "select caliber_return_handoff(%s, %s, variables_changed => '{\"found\": 3}')"
    assert scalar(db, call, handoff, cast.helper) == "success"
    assert cast.on(cast.worker) == ("active", cast.work)
    assert cast.on(cast.helper) == ("idle", None)
    assert scalar(db, COMPLETE, handoff, cast.worker) == "completed"
    value = "select value from caliber_context_variables(%s) where name = 'found'"
    assert scalar(db, value, cast.work) == 3
    assert cast.trail(handoff) == ["initiated", "accepted", "returned", "completed"]


def test_2_4_escalation_is_held_for_a_time_and_comes_back(db: Connection, cast: Cast) -> None:
    handoff = cast.escalate()
    assert str(cast.handoff(handoff)["to_agent_id"]) == cast.reviewer
    cast.accept(handoff, cast.reviewer)
    assert cast.owner() == cast.reviewer
    assert scalar(db, RETURN, handoff, cast.reviewer, "success") == "success"
    assert (cast.owner(), cast.on(cast.worker)) == (cast.worker, ("active", cast.work))


def test_2_4_depth_three_and_then_a_human(db: Connection, cast: Cast) -> None:
    top = cast.agent("chief", "cat")
    db.execute("update caliber_agent set reports_to = %s where agent_id = %s", (top, cast.architect))
    holder = cast.worker
    for target in (cast.reviewer, cast.architect, top):
        handoff = cast.escalate(holder)
        cast.accept(handoff, target)
        holder = target
    last = cast.escalate(holder)
    assert (cast.status(last), cast.handoff(last)["needs_human"]) == ("escalated", True)
    assert cast.owner() == top
    assert scalar(db, "select caliber_handoff_resolve(%s, 'ship it')", last) == "completed"


def test_6_2_unanswered_leaves_the_sender_where_it_was(db: Connection, cast: Cast) -> None:
    handoff = cast.initiate()
    cast.lapse(handoff)
    assert cast.status(handoff) == "timed_out"
    assert (cast.owner(), cast.on(cast.worker)) == (cast.worker, ("active", cast.work))
    assert cast.trail(handoff)[:3] == ["initiated", "timeout", "rejected"]


def test_6_1_rerouted_at_most_three_times_and_then_a_human(db: Connection, cast: Cast) -> None:
    others = [cast.agent("helper", f"h{n}") for n in range(6)]
    handoff = cast.initiate(to_agent_id=others[0], reroute=True)
    cast.lapse(handoff, times=4)
    row = cast.handoff(handoff)
    assert (row["status"], row["reroutes"], row["needs_human"]) == ("timed_out", 3, True)


def test_6_3_a_reminder_and_then_retry_three_times(db: Connection, cast: Cast) -> None:
    handoff = cast.delegate(on_timeout="retry")
    for attempt in (1, 2, 3):
        assert cast.handoff(handoff)["attempts"] == attempt
        db.execute("update caliber_handoff set available_at = null")
        cast.accept(handoff)
        db.execute("update caliber_handoff set due_at = now(), return_by = now()")
        db.execute("select _caliber_handoffs_expire()")
        assert cast.handoff(handoff)["reminded_at"] is not None
        cast.lapse(handoff)
        assert state(db, RETURN, handoff, cast.helper, "success") == "KA007"
    assert (cast.status(handoff), cast.owner()) == ("timed_out", cast.worker)
    assert cast.trail(handoff).count("retried") == 2


def test_4_2_escalate_forwards_the_handoff_to_who_is_above(db: Connection, cast: Cast) -> None:
    handoff = cast.delegate(on_timeout="escalate")
    cast.accept(handoff)
    cast.lapse(handoff)
    assert cast.status(handoff) == "escalated"
    query = "select to_agent_id::text from caliber_handoff where parent_handoff_id = %s"
    assert scalar(db, query, handoff) == cast.reviewer


@pytest.mark.parametrize(
    ("aggregation", "returned", "outcome"),
    [
        ("all", ["success"] * 3, "success"),
        ("all", ["success", "failed"], "failed"),
        ("any", ["failed", "success"], "partial"),
        ("any", ["failed"] * 3, "failed"),
        ("majority", ["success"] * 2, "success"),
        ("majority", ["failed"] * 2, "failed"),
        ("majority", ["success", "failed"], None),
    ],
)
def test_2_3_broadcast_is_aggregated(
    db: Connection, cast: Cast, aggregation: str, returned: list[str], outcome: str | None
) -> None:
    targets = [cast.helper, cast.reviewer, cast.architect]
    rows = db.execute(BROADCAST, (cast.worker, targets, cast.work, aggregation)).fetchall()
    for row, target, result in zip(rows, targets, returned, strict=False):
        cast.accept(str(row["handoff_id"]), target)
        db.execute(RETURN, (row["handoff_id"], target, result))
    assert scalar(db, "select outcome from caliber_handoff_group") == outcome
    assert cast.owner() == cast.worker
    assert scalar(db, "select count(*) from caliber_audit_verify()") == 0


def test_the_tick_settles_what_is_due_and_leaves_what_is_held(
    connect: Connect, db: Connection, cast: Cast
) -> None:
    handoff = cast.initiate()
    db.execute("update caliber_handoff set ack_by = now() - interval '1 s', due_at = now() - interval '1 s'")
    other = connect()
    with other.transaction():
        other.execute("select from caliber_agent where agent_id = %s for no key update", (cast.helper,))
        assert scalar(db, "select _caliber_handoffs_expire()") == 0
    step = "select done from caliber_tick() where step = 'handoffs that were due settled'"
    assert scalar(db, step) == 1
    assert cast.status(handoff) == "timed_out"


def test_one_that_cannot_be_settled_does_not_stop_the_others(db: Connection, cast: Cast) -> None:
    stuck = cast.delegate()
    fine = cast.delegate()
    db.execute("update caliber_handoff set ack_by = now() - interval '1 s', due_at = now() - interval '1 s'")
    db.execute(
        "create function pg_temp.fail() returns trigger language plpgsql as"
        " $$ begin raise exception 'no'; end $$"
    )
    db.execute(
        "create trigger fail before update on caliber_handoff for each row"
        f" when (old.handoff_id = '{stuck}') execute function pg_temp.fail()"
    )
    assert scalar(db, "select _caliber_handoffs_expire()") == 1
    assert (cast.status(stuck), cast.status(fine)) == ("initiated", "timed_out")
    assert scalar(db, "select count(*) from caliber_event where event_type = 'handoff_unsettled'") == 1
