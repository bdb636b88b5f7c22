"""Handoffs: the receiver's answer. The contract is in sql/schema/handoffs.sql."""

from __future__ import annotations

from typing import Any

from caliber import (
    callers,
    checks,
    errors,
    handoffs_context,
    handoffs_groups,
    handoffs_locks,
    handoffs_move,
    handoffs_parts,
    handoffs_route,
    handoffs_rules,
    handoffs_store,
    handoffs_task,
    handoffs_tell,
    memory_rules,
    variables,
)


def _asked(
    handoff_id: str | None, agent_id: str | None, incarnation: int | None, action: str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The handoff, open to this agent, its sender and the agent, all locked in the usual order."""
    memory_rules.acts_for(agent_id)
    checks.required("handoff_id", handoff_id)
    checks.required("agent_id", agent_id)
    handoff = handoffs_store.peek(handoff_id)
    _addressed(handoff, handoffs_store.look(str(agent_id)))
    handoff, found = handoffs_store.parties(handoff_id, agent_id)
    taker, giver = found[str(agent_id)], found[handoff["from_agent_id"]]
    memory_rules.fence(agent_id, incarnation)
    callers.refuse_ended(taker, None)
    handoffs_task.hold(handoff["trajectory_id"])
    handoff = handoffs_store.lock(handoff_id)
    _addressed(handoff, taker)
    if action == "accepted" and _has(handoff, taker):
        return handoff, giver, taker
    if handoff["status"] not in handoffs_store.PENDING:
        handoffs_store.wrong_state(handoff, action)
    if handoff["unanswered"]:
        handoffs_store.wrong_state(handoff, action, "not answered in time")
    return handoff, giver, taker


def _has(handoff: dict[str, Any], agent: dict[str, Any]) -> bool:
    working = handoff["status"] in handoffs_store.RUNNING and handoff["returned_at"] is None
    return working and not handoff["lapsed"] and bool(handoff["to_agent_id"] == agent["agent_id"])


def _addressed(handoff: dict[str, Any], agent: dict[str, Any]) -> None:
    """For others it does not exist. Who came too late for one to its type is told that."""
    if handoff["to_agent_id"] == agent["agent_id"]:
        return
    if handoff["to_agent_type"] != agent["agent_type"] or handoff["team_id"] != agent["team_id"]:
        memory_rules.missing("handoff", handoff["handoff_id"])
    if handoff["to_agent_id"] is not None:
        handoffs_store.wrong_state(handoff, "accepted", "another's")
    if agent["agent_id"] == handoff["from_agent_id"]:
        handoffs_store.wrong_state(handoff, "accepted", "the sender's own")
    if agent["agent_id"] in handoff["tried_agent_ids"]:
        handoffs_store.wrong_state(handoff, "accepted", "turned down")


def accept(
    handoff_id: str | None, agent_id: str | None, estimated_completion: str | None, incarnation: int | None
) -> list[dict[str, Any]]:
    handoff, giver, taker = _asked(handoff_id, agent_id, incarnation, "accepted")
    if _has(handoff, taker):
        # It asks again, because the first answer did not reach it.
        return [_outcome(handoff)]
    if handoff["early"]:
        handoffs_store.wrong_state(handoff, "accepted before it is available again")
    trajectory = handoffs_store.trajectory(handoff["trajectory_id"])
    if trajectory["agent_id"] != giver["agent_id"] or trajectory["status"] != "active":
        memory_rules.not_active(trajectory, "cannot be taken over")
    refusal, warnings = judged(handoff, taker)
    if refusal is not None:
        handoff["to_agent_id"] = taker["agent_id"]
        return [_outcome(turn_down(handoff, giver, refusal))]
    return [_outcome(take(handoff, giver, taker, warnings, estimated_completion))]


def judged(handoff: dict[str, Any], agent: dict[str, Any]) -> tuple[str | None, list[str]]:
    """Why the agent cannot take it, or None, and what is to be warned of."""
    refusal, warnings = handoffs_rules.judge(handoff, agent, handoffs_store.load(agent["agent_id"]))
    return refusal or handoffs_task.refusal(handoff, agent), warnings


def take(
    handoff: dict[str, Any],
    giver: dict[str, Any],
    taker: dict[str, Any],
    warnings: list[str],
    estimated_completion: str | None,
) -> dict[str, Any]:
    """Record it, then move what moves; all in this transaction."""
    handoff["to_agent_id"] = taker["agent_id"]
    handoffs_store.chains(handoff)
    handoffs_store.audit(handoff, "accepted", "; ".join(warnings) or "accepted", warnings=warnings)
    waits = handoff["sender_waits"]
    if handoff["handoff_type"] in handoffs_rules.MOVES:
        trajectory_id = handoff["trajectory_id"]
        scope_id = handoffs_move.own(trajectory_id, taker, handoff["handoff_notes"], "handoff")
        handoffs_move.take_off(giver, trajectory_id, waits)
        warnings = warnings + handoffs_task.assign(trajectory_id, giver, taker)
        handoffs_parts.inherit(trajectory_id, giver, taker)
    else:
        title = handoff["task_id"] or handoff["handoff_notes"]
        trajectory_id, scope_id = handoffs_move.child(title, taker, handoff["trajectory_id"])
        if waits:
            handoffs_move.take_off(giver, trajectory_id, waits)
    warnings = warnings + handoffs_move.put_on(taker, trajectory_id, scope_id)
    moved, joined, lost = handoffs_locks.move(
        handoff["lock_ids"], giver["agent_id"], taker["agent_id"], handoff["joint_locks"]
    )
    handoff.update(received_trajectory_id=trajectory_id, received_scope_id=scope_id)
    variables.set_all(trajectory_id, handoff["variables"], giver["agent_id"])
    context_id = handoffs_context.store(handoff, giver, taker)
    handoffs_move.received(handoff, giver, taker)
    accepted = handoffs_store.save(
        handoff,
        {
            "status": "accepted",
            "status_reason": None,
            "needs_human": False,
            "to_agent_id": taker["agent_id"],
            "received_trajectory_id": trajectory_id,
            "received_scope_id": scope_id,
            "context_id": context_id,
            "moved_lock_ids": moved,
            "joint_locks": joined,
            "warnings": warnings + lost,
            "estimated_completion": estimated_completion,
        },
        {"accepted_at": 0, "ack_by": None, **_deadlines(handoff)},
    )
    handoffs_tell.tell(
        handoff, "task_accepted", taker["agent_id"], giver["agent_id"], f"{taker['name']} accepted"
    )
    return accepted


def _deadlines(handoff: dict[str, Any]) -> dict[str, int | None]:
    """What is to be returned lapses in the end; of what is given for good only the deadline is told."""
    left, timeout = handoff["left_ms"], handoff["return_timeout_ms"]
    if not handoff["return_expected"]:
        return {"return_by": left, "lapses_at": None, "due_at": left}
    times = [ms for ms in (left, timeout) if ms is not None]
    if not times:
        return {"return_by": None, "lapses_at": None, "due_at": None}
    grace = handoffs_groups.setting("handoff_reminder_ms")
    return {"return_by": min(times), "due_at": min(times), "lapses_at": min(times) + grace}


def turn_down(handoff: dict[str, Any], giver: dict[str, Any], reason: str) -> dict[str, Any]:
    """The sender keeps all it had; another is asked if it wished so, or a human in the end."""
    handoffs_store.audit(handoff, "rejected", reason, outcome="failed")
    if handoff["to_agent_type"] is not None and handoffs_route.candidate(handoff) is not None:
        # It was for any of a type, and others of it are left.
        tried = [*handoff["tried_agent_ids"], handoff["to_agent_id"]]
        handoffs_store.save(handoff, {"status": "initiated", "to_agent_id": None, "tried_agent_ids": tried})
        return {**handoff, "status": "rejected", "status_reason": reason}
    changes = {"status": "rejected", "status_reason": reason[:1000]}
    times: dict[str, int | None] = {"resolved_at": 0, "ack_by": None, "due_at": None, "available_at": None}
    rejected = handoffs_store.save(handoff, {**changes, "to_agent_id": handoff["to_agent_id"]}, times)
    if handoff["reroute"]:
        if handoffs_route.elsewhere(rejected):
            return handoffs_store.peek(handoff["handoff_id"])
        handoffs_store.audit(rejected, "escalated", "human: nobody else can take it")
        rejected = handoffs_store.save(rejected, {"needs_human": True})
    handoffs_groups.count(rejected, success=False)
    sender = rejected["to_agent_id"]
    if sender is not None and callers.may_speak(sender):
        handoffs_tell.tell(
            rejected, "task_rejected", sender, giver["agent_id"], f"rejected: {reason}", "high"
        )
    return rejected


def reject(handoff_id: str | None, agent_id: str | None, reason: str | None, incarnation: int | None) -> str:
    if not checks.label("reason", reason, 1000):
        errors.invalid("reason", reason, "must not be null or empty")
    handoff, giver, taker = _asked(handoff_id, agent_id, incarnation, "rejected")
    handoff["to_agent_id"] = taker["agent_id"]
    return str(turn_down(handoff, giver, str(reason))["status"])


def defer(
    handoff_id: str | None,
    agent_id: str | None,
    reason: str | None,
    defer_ms: int | None,
    incarnation: int | None,
) -> str:
    if not checks.label("reason", reason, 1000):
        errors.invalid("reason", reason, "must not be null or empty")
    checks.required("defer_ms", defer_ms)
    handoffs_rules.milliseconds("defer_ms", defer_ms)
    handoff, giver, taker = _asked(handoff_id, agent_id, incarnation, "deferred")
    handoff["to_agent_id"] = taker["agent_id"]
    handoffs_store.audit(handoff, "deferred", reason)
    wait = handoffs_store.within(handoff, int(defer_ms or 0) + handoff["ack_timeout_ms"])
    handoffs_store.save(
        handoff,
        {"status": "deferred", "status_reason": reason, "to_agent_id": taker["agent_id"]},
        {"ack_by": wait, "due_at": wait},
    )
    handoffs_tell.tell(handoff, "notification", taker["agent_id"], giver["agent_id"], f"deferred: {reason}")
    return "deferred"


def start(handoff_id: str | None, agent_id: str | None, incarnation: int | None) -> bool:
    handoff, _, _ = running(handoff_id, agent_id, incarnation, "started")
    if handoff["status"] == "in_progress":
        return False
    handoffs_store.audit(handoff, "in_progress", "started")
    handoffs_store.save(handoff, {"status": "in_progress"}, {"started_at": 0})
    return True


def running(
    handoff_id: str | None, agent_id: str | None, incarnation: int | None, action: str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The handoff that this agent has taken and not returned, sender and receiver; all locked."""
    memory_rules.acts_for(agent_id)
    checks.required("handoff_id", handoff_id)
    checks.required("agent_id", agent_id)
    handoff = handoffs_store.peek(handoff_id)
    if handoff["to_agent_id"] != agent_id:
        memory_rules.missing("handoff", handoff_id)
    handoff, found = handoffs_store.parties(handoff_id, agent_id)
    taker, giver = found[str(agent_id)], found[handoff["from_agent_id"]]
    memory_rules.fence(agent_id, incarnation)
    callers.refuse_ended(taker, None)
    handoffs_task.hold(handoff["trajectory_id"])
    handoff = handoffs_store.lock(handoff_id)
    if handoff["to_agent_id"] != agent_id:
        memory_rules.missing("handoff", handoff_id)
    if handoff["status"] not in handoffs_store.RUNNING:
        handoffs_store.wrong_state(handoff, action)
    if handoff["returned_at"] is not None:
        handoffs_store.wrong_state(handoff, action, "returned")
    if handoff["lapsed"]:
        handoffs_store.wrong_state(handoff, action, "timed out")
    return handoff, giver, taker


def _outcome(handoff: dict[str, Any]) -> dict[str, Any]:
    return {
        "status": handoff["status"],
        "reason": handoff["status_reason"],
        "warnings": handoff["warnings"],
        "trajectory_id": handoff.get("received_trajectory_id"),
        "scope_id": handoff.get("received_scope_id"),
        "context_id": handoff.get("context_id"),
    }
