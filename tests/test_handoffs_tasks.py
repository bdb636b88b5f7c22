"""Handoffs of work that is a task, of agents that die, of broadcasts that are closed, and rerouting."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Connect, Connection, scalar, state
from handoffs_cast import Cast

COMPLETE = "select caliber_complete_delegation(%s, 'success', agent_id => %s)"
RETURN = "select caliber_return_handoff(%s, %s, 'success')"
REROUTE = "select caliber_reroute_handoff(%s, %s, %s)"
CLOSE = "select caliber_close_broadcast(%s, %s)"
BROADCAST = (
    "select handoff_id::text, broadcast_group_id from caliber_broadcast_handoff("
    "%s, %s::uuid[], %s, 'specialization', 'look', aggregation => %s)"
)


class TaskCast(Cast):
    """The worker's trajectory is the child of a task that a planner gave it."""

    def __init__(self, db: Connection) -> None:
        super().__init__(db)
        self.planner = self.agent("planner", "pia", can_delegate_to=["*"])
        for agent in (self.worker, self.helper):
            db.execute("update caliber_agent set can_delegate_to = '{*}' where agent_id = %s", (agent,))
        call = "select caliber_delegate_task(%s, 'worker', 'parse it', priority => 'high')"
        self.task = str(scalar(db, call, self.planner))
        self.work = str(scalar(db, "select caliber_accept_delegation(%s, %s)", self.task, self.worker))

    def delegatee(self) -> str:
        query = "select delegatee_agent_id from caliber_delegation where delegation_id = %s"
        return str(scalar(self.db, query, self.task))


@pytest.fixture
def cast(db: Connection) -> TaskCast:
    return TaskCast(db)


def silence(db: Connection, agent: str) -> list[dict[str, Any]]:
    """As if it had been silent for an hour, and somebody reaped."""
    db.execute(
        "update caliber_agent_beat set beat_at = beat_at - interval '1 hour' where agent_id = %s", (agent,)
    )
    return db.execute("select * from caliber_agent_reap()").fetchall()


def test_who_takes_the_trajectory_takes_the_task(db: Connection, cast: TaskCast) -> None:
    handoff = cast.initiate()
    assert cast.delegatee() == cast.worker
    assert cast.accept(handoff)["status"] == "accepted"
    assert (cast.owner(), cast.delegatee()) == (cast.helper, cast.helper)
    assert state(db, COMPLETE, cast.task, cast.worker) == "42501"
    told = (
        "select count(*) from caliber_message_inbox(%s) where payload ->> 'event' = 'delegation_handed_over'"
    )
    assert scalar(db, told, cast.planner) == 1
    assert scalar(db, COMPLETE, cast.task, cast.helper) == "completed"


def test_a_rejected_handoff_leaves_the_task(db: Connection, cast: TaskCast) -> None:
    handoff = cast.initiate()
    db.execute("select caliber_reject_handoff(%s, %s, 'no')", (handoff, cast.helper))
    assert (cast.owner(), cast.delegatee()) == (cast.worker, cast.worker)


def test_what_was_passed_on_of_the_task_reports_to_who_has_it_now(db: Connection, cast: TaskCast) -> None:
    call = "select caliber_delegate_task(%s, 'reviewer', 'look', parent_delegation_id => %s)"
    below = scalar(db, call, cast.worker, cast.task)
    cast.accept(cast.initiate())
    query = "select (delegator_agent_id || chain)::text[] from caliber_delegation where delegation_id = %s"
    assert scalar(db, query, below) == [cast.helper, cast.planner, cast.helper]


def test_an_agent_above_in_the_chain_cannot_have_the_task(db: Connection, cast: TaskCast) -> None:
    handoff = cast.initiate(to_agent_id=cast.planner)
    assert (cast.status(handoff), cast.owner()) == ("rejected", cast.worker)
    assert str(cast.handoff(handoff)["status_reason"]).startswith("cycle")


def test_the_capabilities_of_the_task_are_asked_for(db: Connection, cast: TaskCast) -> None:
    db.execute("update caliber_delegation set required_capabilities = '{rust}'")
    handoff = cast.initiate()
    assert str(cast.handoff(handoff)["status_reason"]) == "capability: rust"


def test_a_task_that_is_escalated_comes_back(db: Connection, cast: TaskCast) -> None:
    handoff = cast.escalate()
    assert cast.handoff(handoff)["priority"] == "high"
    cast.accept(handoff, cast.reviewer)
    assert (cast.owner(), cast.delegatee()) == (cast.reviewer, cast.reviewer)
    db.execute(RETURN, (handoff, cast.reviewer))
    assert (cast.owner(), cast.delegatee()) == (cast.worker, cast.worker)


def test_a_task_that_is_escalated_to_who_gave_it_stays_assigned(db: Connection, cast: TaskCast) -> None:
    handoff = cast.escalate(to_agent_id=cast.planner)
    row = cast.accept(handoff, cast.planner)
    assert row["warnings"] == ["the task stays assigned to wim: pia is above it"]
    assert (cast.owner(), cast.delegatee()) == (cast.planner, cast.worker)
    # The task is done meanwhile: there is nothing to come back, and nothing is opened again.
    db.execute(COMPLETE, (cast.task, cast.worker))
    db.execute(RETURN, (handoff, cast.planner))
    query = "select count(*) from caliber_scope where trajectory_id = %s and closed_at is null"
    assert scalar(db, query, cast.work) == 0


def test_a_task_whose_time_ran_out_is_not_handed_over(db: Connection, cast: TaskCast) -> None:
    handoff = cast.initiate()
    db.execute("update caliber_delegation set expires_at = now() - interval '1 s'")
    assert cast.accept(handoff)["reason"] == "timed_out: the task behind it has run out of time"
    assert cast.owner() == cast.worker


def test_the_child_of_a_handoff_moves_with_its_assignment(db: Connection, cast: TaskCast) -> None:
    outer = cast.delegate()
    child = str(cast.accept(outer)["trajectory_id"])
    inner = cast.initiate(cast.helper, trajectory_id=child, to_agent_id=cast.reviewer)
    cast.accept(inner, cast.reviewer)
    assert str(cast.handoff(outer)["to_agent_id"]) == cast.reviewer
    assert state(db, RETURN, outer, cast.helper) == "P0002"
    assert scalar(db, RETURN, outer, cast.reviewer) == "success"


def test_capacity_counts_tasks_and_work_of_ones_own(db: Connection, cast: TaskCast) -> None:
    small = cast.agent("small", "sal", max_concurrent_tasks=2)
    task = scalar(db, "select caliber_delegate_task(%s, 'small', 'x')", cast.planner)
    db.execute("select caliber_accept_delegation(%s, %s)", (task, small))
    assert cast.status(cast.delegate(to_agent_id=small)) == "initiated"
    own = scalar(db, "select caliber_trajectory_start('own', %s)", small)
    # A part of what it has is not counted again.
    db.execute("select caliber_trajectory_start('part', %s, %s)", (small, own))
    full = cast.delegate(to_agent_id=small)
    assert str(cast.handoff(full)["status_reason"]) == "at_capacity: 2 of 2 tasks"
    # What ran out is not work any more.
    db.execute("update caliber_delegation set expires_at = now() - interval '1 s'")
    assert cast.status(cast.delegate(to_agent_id=small)) == "initiated"


def test_what_is_held_by_an_escalation_is_not_given_away(db: Connection, cast: TaskCast) -> None:
    first = cast.escalate()
    cast.accept(first, cast.reviewer)
    with pytest.raises(Exception, match="held by an escalation"):
        cast.initiate(cast.reviewer)
    second = cast.escalate(cast.reviewer)
    cast.accept(second, cast.architect)
    # It comes back from the top first.
    assert state(db, RETURN, first, cast.reviewer) == "KA007"
    cast.lapse(first)
    assert (cast.status(first), cast.owner()) == ("accepted", cast.architect)
    db.execute(RETURN, (second, cast.architect))
    db.execute(RETURN, (first, cast.reviewer))
    assert (cast.owner(), cast.delegatee()) == (cast.worker, cast.worker)


# --- agents that are gone ---


def test_reaping_answers_for_who_was_asked(db: Connection, cast: TaskCast) -> None:
    handoff = cast.initiate()
    assert [row["given_back"] for row in silence(db, cast.helper)] == [1]
    assert (cast.status(handoff), cast.owner()) == ("timed_out", cast.worker)
    assert cast.handoff(handoff)["status_reason"] == "hal is gone"
    assert cast.trail(handoff) == ["initiated", "timeout", "rejected", "failed"]


def test_reaping_asks_another_when_the_sender_wished_so(db: Connection, cast: TaskCast) -> None:
    other = cast.agent("helper", "hob")
    handoff = cast.initiate(reroute=True, required_capabilities=[], to_agent_id=cast.helper)
    silence(db, cast.helper)
    row = cast.handoff(handoff)
    assert (row["status"], row["reroutes"]) == ("initiated", 1)
    assert str(row["to_agent_id"]) != cast.helper
    assert other


def test_reaping_gives_back_what_was_lent(db: Connection, cast: TaskCast) -> None:
    lock = scalar(db, "select caliber_lock_acquire(%s, 'file', 'a.py', 'exclusive', 600000)", cast.worker)
    handoff = cast.escalate(lock_ids=[lock])
    cast.accept(handoff, cast.reviewer)
    assert str(scalar(db, "select holder_agent_id from caliber_lock")) == cast.reviewer
    silence(db, cast.reviewer)
    assert (cast.status(handoff), cast.owner(), cast.delegatee()) == ("failed", cast.worker, cast.worker)
    assert str(scalar(db, "select holder_agent_id from caliber_lock")) == cast.worker
    assert scalar(db, "select status from caliber_delegation") == "accepted"
    assert scalar(db, "select count(*) from caliber_audit_verify()") == 0


def test_reaping_leaves_what_was_given_for_good(db: Connection, cast: TaskCast) -> None:
    handoff = cast.initiate()
    cast.accept(handoff)
    db.execute(
        "update caliber_delegation set delegatee_agent_id = null, status = 'pending', expires_at = null"
    )
    silence(db, cast.helper)
    assert (cast.status(handoff), cast.owner()) == ("accepted", cast.helper)


def test_reaping_leaves_a_handoff_whose_other_party_is_busy_to_the_next_call(
    db: Connection, connect: Connect, cast: TaskCast
) -> None:
    handoff = cast.delegate()
    cast.accept(handoff)
    other = connect()
    with other.transaction():
        other.execute("select from caliber_agent where agent_id = %s for no key update", (cast.worker,))
        silence(db, cast.helper)
        assert cast.status(handoff) == "accepted"
    assert len(db.execute("select * from caliber_agent_reap()").fetchall()) == 1
    assert cast.status(handoff) == "failed"


# --- rerouting and closing ---


def test_6_1_rerouted_by_its_sender(db: Connection, cast: TaskCast) -> None:
    handoff = cast.initiate()
    db.execute("select caliber_reject_handoff(%s, %s, 'no')", (handoff, cast.helper))
    assert state(db, REROUTE, handoff, cast.helper, cast.reviewer) == "P0002"
    assert state(db, REROUTE, handoff, cast.worker, cast.worker) == "22023"
    assert scalar(db, REROUTE, handoff, cast.worker, cast.reviewer) == "initiated"
    assert cast.accept(handoff, cast.reviewer)["status"] == "accepted"
    assert cast.trail(handoff) == ["initiated", "rejected", "rerouted", "accepted"]
    assert state(db, REROUTE, handoff, cast.worker, cast.helper) == "42501"


def test_6_1_rerouted_three_times_and_then_a_human(db: Connection, cast: TaskCast) -> None:
    handoff = cast.initiate()
    for target in (cast.reviewer, cast.architect, cast.helper):
        assert scalar(db, REROUTE, handoff, cast.worker, target) == "initiated"
    assert scalar(db, REROUTE, handoff, cast.worker, cast.reviewer) == "initiated"
    row = cast.handoff(handoff)
    assert (row["reroutes"], row["needs_human"], str(row["to_agent_id"])) == (3, True, cast.helper)


def test_6_1_rerouted_to_one_that_cannot_is_rejected(db: Connection, cast: TaskCast) -> None:
    handoff = cast.initiate()
    assert scalar(db, REROUTE, handoff, cast.worker, cast.planner) == "rejected"
    assert str(cast.handoff(handoff)["status_reason"]).startswith("cycle")


def test_2_3_a_broadcast_that_is_closed_is_aggregated(db: Connection, cast: TaskCast) -> None:
    targets = [cast.helper, cast.reviewer, cast.architect]
    rows = db.execute(BROADCAST, (cast.worker, targets, cast.work, "majority")).fetchall()
    first, second, third = (str(row["handoff_id"]) for row in rows)
    group = rows[0]["broadcast_group_id"]
    cast.accept(first)
    db.execute(RETURN, (first, cast.helper))
    child = cast.accept(second, cast.reviewer)["trajectory_id"]
    assert state(db, CLOSE, group, cast.helper) == "P0002"
    assert scalar(db, CLOSE, group, cast.worker) == "failed"
    assert [cast.status(handoff) for handoff in (first, second, third)] == ["in_progress", "failed", "failed"]
    assert cast.on(cast.reviewer) == ("idle", None)
    assert scalar(db, "select status from caliber_trajectory where trajectory_id = %s", child) == "failed"
    row = db.execute("select succeeded, failed, outcome from caliber_handoff_group").fetchone()
    assert row is not None
    assert (row["succeeded"], row["failed"], row["outcome"]) == (1, 2, "failed")
    assert state(db, RETURN, second, cast.reviewer) == "KA007"
    assert scalar(db, CLOSE, group, cast.worker) == "failed"


def test_2_3_a_broadcast_that_asked_for_nothing_back_is_closed(db: Connection, cast: TaskCast) -> None:
    call = BROADCAST.replace("aggregation => %s", "aggregation => %s, return_expected => '{false}'")
    row = db.execute(call, (cast.worker, [cast.helper], cast.work, "all")).fetchone()
    assert row is not None
    assert scalar(db, CLOSE, row["broadcast_group_id"], cast.worker) == "success"


def test_a_broadcast_to_a_stranger_locks_nobody(
    db: Connection, connect: Connect, roles: Any, cast: TaskCast
) -> None:
    db.execute("select caliber_team_create('other')")
    stranger = scalar(db, "select caliber_agent_register('spy', name => 'sid', team => 'other')")
    login = roles("caliber_agent")
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (login, cast.worker))
    session, holder = connect(login), connect()
    session.execute("set lock_timeout = '100ms'")
    with holder.transaction():
        holder.execute("select from caliber_agent for update")
        assert state(session, BROADCAST, cast.worker, [stranger], cast.work, "all") == "42501"


# --- deadlines ---


def test_3_a_deadline_ends_an_offer(db: Connection, cast: TaskCast) -> None:
    with pytest.raises(Exception, match="in the future"):
        cast.initiate(deadline="2020-01-01")
    soon = scalar(db, "select clock_timestamp() + interval '10 s'")
    handoff = cast.initiate(deadline=soon)
    row = cast.handoff(handoff)
    assert abs((row["ack_by"] - row["deadline"]).total_seconds()) < 1
    db.execute("update caliber_handoff set deadline = now() - interval '1 s'")
    cast.lapse(handoff)
    row = cast.handoff(handoff)
    assert (row["status"], row["status_reason"]) == ("timed_out", "the deadline has passed")
    assert (row["needs_human"], cast.owner()) == (True, cast.worker)
    assert state(db, REROUTE, handoff, cast.worker, cast.reviewer) == "KA007"


def test_3_a_deadline_ends_what_was_lent(db: Connection, cast: TaskCast) -> None:
    soon = scalar(db, "select clock_timestamp() + interval '10 s'")
    handoff = cast.delegate(deadline=soon, on_timeout="retry")
    cast.accept(handoff)
    row = cast.handoff(handoff)
    assert abs((row["return_by"] - row["deadline"]).total_seconds()) < 1
    db.execute("update caliber_handoff set deadline = now() - interval '1 s'")
    cast.lapse(handoff)
    assert cast.status(handoff) == "failed"


def test_1_4_a_deadline_of_what_was_given_for_good_is_told(db: Connection, cast: TaskCast) -> None:
    soon = scalar(db, "select clock_timestamp() + interval '10 s'")
    handoff = cast.initiate(deadline=soon)
    cast.accept(handoff)
    cast.lapse(handoff)
    assert (cast.status(handoff), cast.owner()) == ("accepted", cast.helper)
    assert cast.trail(handoff) == ["initiated", "accepted", "timeout"]
    cast.lapse(handoff)
    assert cast.trail(handoff)[3:] == []
