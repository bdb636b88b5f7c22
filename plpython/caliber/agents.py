"""Agents: status, work and end. The contract is in sql/schema/agents.sql."""

from __future__ import annotations

import json
from typing import Any

from caliber import agents_rules, callers, checks, epochs, errors, memory_rules
from caliber.plans import plan

_MOVE = plan(
    """
    with moved as (
        update @extschema@.caliber_agent as a
        set
            status = $2,
            status_reason = $3,
            status_changed_at = case
                when a.status = $2 then a.status_changed_at else pg_catalog.clock_timestamp()
            end,
            current_trajectory_id = $4,
            current_scope_id = $5,
            terminated_at = case when $2 = 'terminated' then pg_catalog.clock_timestamp() end
        where a.agent_id = $1
        returning a.agent_id, a.team_id
    )
    select @extschema@._caliber_log(
        $6, 'agent', $7, $8, m.agent_id, m.team_id, $9, details => $10
    )
    from moved as m
    """,
    "uuid",
    "@extschema@.caliber_agent_status",
    "text",
    "uuid",
    "uuid",
    "text",
    "@extschema@.caliber_event_severity",
    "text",
    "uuid",
    "jsonb",
)

# $2 whether the beat stays what it was, $3 whether there will be none any more.
NEXT_INCARNATION = plan(
    f"""
    update @extschema@.caliber_agent_beat as b
    set
        incarnation = {epochs.after("b.incarnation")},
        beat_at = case when $2 then b.beat_at else pg_catalog.clock_timestamp() end,
        ended = b.ended or $3
    where b.agent_id = $1
    returning b.incarnation
    """,
    "uuid",
    "bool",
    "bool",
)

# Parents before children: whoever locks a family locks it in this order.
_DESCENDANTS = plan(
    """
    with recursive family as (
        select a.agent_id, a.spawn_depth, a.terminated_at
        from @extschema@.caliber_agent as a
        where a.parent_id = $1
        union all
        select a.agent_id, a.spawn_depth, a.terminated_at
        from @extschema@.caliber_agent as a
        inner join family as f on a.parent_id = f.agent_id
    )
    select f.agent_id
    from family as f
    where f.terminated_at is null
    order by f.spawn_depth, f.agent_id
    """,
    "uuid",
)


def set_status(agent_id: str | None, status: str | None, reason: str | None, incarnation: int | None) -> str:
    checks.required("status", status)
    checks.label("reason", reason, 1000)
    if status == "terminated":
        errors.fail(
            errors.INVALID,
            "status must not be set to terminated",
            hint="caliber_agent_terminate ends an agent.",
        )
    agent = callers.locked(agent_id, incarnation)
    before: str = agent["status"]
    if status != before:
        agents_rules.refuse_step(agent, str(status))
        severity = "warning" if status in ("failed", "blocked") else "info"
        summary = f"{agent['name']} is {status}, was {before}"
        _move(agent, {"status": status}, reason, "agent_status_changed", severity, summary)
    return before


def assign_trajectory(
    agent_id: str | None, trajectory_id: str | None, scope_id: str | None, incarnation: int | None
) -> bool:
    checks.required("trajectory_id", trajectory_id)
    agent = callers.locked(agent_id, incarnation)
    if agent["status"] not in agents_rules.CAN_WORK:
        errors.fail(
            errors.WRONG_STATE,
            f"an agent that is {agent['status']} cannot be put to work",
            detail=f"The agent is {agent['name']}, {agent['agent_id']}.",
            hint="Make it idle with caliber_agent_set_status or caliber_agent_resume first.",
        )
    if agent["current_trajectory_id"] not in (None, trajectory_id):
        errors.fail(
            errors.WRONG_STATE,
            "the agent works on another trajectory",
            detail=f"{agent['name']} works on {agent['current_trajectory_id']}.",
            hint="caliber_agent_release takes it off that one first.",
        )
    name = memory_rules.workable(str(trajectory_id), scope_id, str(agent_id))
    work = {
        "status": "active",
        "current_trajectory_id": trajectory_id,
        "current_scope_id": scope_id,
    }
    if work.items() <= agent.items():
        return False
    summary = f"{agent['name']} works on {name}"
    _move(agent, work, None, "agent_assigned", "info", summary)
    return True


def release(agent_id: str | None, incarnation: int | None) -> bool:
    agent = callers.locked(agent_id, incarnation)
    status = agent["status"] if agent["status"] in ("failed", "completed", "initializing") else "idle"
    free = {"status": status, "current_trajectory_id": None, "current_scope_id": None}
    if free.items() <= agent.items():
        return False
    _move(agent, free, None, "agent_released", "info", f"{agent['name']} is {status} and free")
    return True


def resume(agent_id: str | None) -> int:
    agent = callers.locked(agent_id, None)
    row = NEXT_INCARNATION.one(agent_id, False, False) or {}
    incarnation = int(row["incarnation"])
    if agent["status"] not in ("initializing", "failed", "completed"):
        status = agent["status"]
    else:
        status = "active" if agent["current_trajectory_id"] else "idle"
    reason = agent["status_reason"] if status == agent["status"] else None
    summary = f"{agent['name']} resumed as incarnation {incarnation}"
    _move(
        agent, {"status": status}, reason, "agent_resumed", "info", summary,
        {"incarnation": incarnation},
    )  # fmt: skip
    return incarnation


def terminate(agent_id: str | None, reason: str | None, descendants: bool | None) -> int:
    checks.label("reason", reason, 1000)
    ended = int(_terminate(callers.found(agent_id), reason))
    # A child that was waited for may have spawned meanwhile, so look again until none is left.
    while descendants and (family := _DESCENDANTS.rows(agent_id)):
        for row in family:
            # Whoever may end an agent may end what it spawned.
            ended += _terminate(callers.LOCK.one(row["agent_id"]) or {}, reason)
    return ended


def _terminate(agent: dict[str, Any], reason: str | None) -> bool:
    if agent["status"] == "terminated":
        return False
    ended = {"status": "terminated", "current_trajectory_id": None, "current_scope_id": None}
    NEXT_INCARNATION.rows(agent["agent_id"], True, True)
    _move(agent, ended, reason, "agent_terminated", "info", f"{agent['name']} is terminated")
    return True


def _move(
    agent: dict[str, Any],
    change: dict[str, Any],
    reason: str | None,
    event_type: str,
    severity: str,
    summary: str,
    further: dict[str, Any] | None = None,
) -> None:
    """Write the new state and its event; what change does not name stays."""
    after = {**agent, **change}
    details = {"from": agent["status"], "to": after["status"], **(further or {})}
    if reason:
        details["reason"] = reason
    _MOVE.rows(
        agent["agent_id"],
        after["status"],
        reason,
        after["current_trajectory_id"],
        after["current_scope_id"],
        event_type,
        severity,
        summary,
        after["current_trajectory_id"] or agent["current_trajectory_id"],
        json.dumps(details),
    )
