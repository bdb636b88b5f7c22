"""Agents: beats, status, work and end. The contract is in sql/schema/agents.sql."""

from __future__ import annotations

import json
from typing import Any

from caliber import agents_rules, callers, checks, errors
from caliber.plans import plan

MAX_COUNT = 10**15

_HEARTBEAT = plan(
    """
    update @extschema@.caliber_agent_beat as b
    set
        beat_at = pg_catalog.clock_timestamp(),
        activity = coalesce($2, b.activity),
        progress = coalesce($3, b.progress),
        turns = b.turns + coalesce($4, 0),
        tokens = b.tokens + coalesce($5, 0),
        tool_calls = b.tool_calls + coalesce($6, 0),
        files = b.files + coalesce($7, 0),
        errors = b.errors + coalesce($8, 0),
        last_tool = coalesce($9, b.last_tool),
        last_file = coalesce($10, b.last_file)
    from @extschema@.caliber_agent as a
    where b.agent_id = $1
        and a.agent_id = $1
        and a.terminated_at is null
        and ($11 is null or b.incarnation = $11)
        and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
    returning a.status
    """,
    "uuid",
    "text",
    "float4",
    "int8",
    "int8",
    "int8",
    "int8",
    "int8",
    "text",
    "text",
    "int8",
)

# Both rows, so that after waiting for another session both are its newest.
_LOCK = plan(
    """
    select
        a.agent_id, a.team_id, a.name, a.status, a.current_trajectory_id, a.current_scope_id,
        b.incarnation,
        @extschema@._caliber_actor() as actor,
        coalesce(a.login_role = @extschema@._caliber_actor(), false)
        or @extschema@._caliber_is_admin() as may_act
    from @extschema@.caliber_agent as a
    inner join @extschema@.caliber_agent_beat as b on a.agent_id = b.agent_id
    where a.agent_id = $1
    for no key update of a, b
    """,
    "uuid",
)

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

_NEXT_INCARNATION = plan(
    """
    update @extschema@.caliber_agent_beat as b
    set
        incarnation = b.incarnation + 1,
        beat_at = case when $2 then pg_catalog.clock_timestamp() else b.beat_at end
    where b.agent_id = $1
    returning b.incarnation
    """,
    "uuid",
    "bool",
)

# Parents before children: whoever locks a family locks it in this order.
_DESCENDANTS = plan(
    """
    with recursive family as (
        select a.agent_id, a.spawn_depth
        from @extschema@.caliber_agent as a
        where a.parent_id = $1
        union all
        select a.agent_id, a.spawn_depth
        from @extschema@.caliber_agent as a
        inner join family as f on a.parent_id = f.agent_id
    )
    select f.agent_id from family as f order by f.spawn_depth, f.agent_id
    """,
    "uuid",
)


def heartbeat(
    agent_id: str | None,
    activity: str | None,
    progress: float | None,
    turns: int | None,
    tokens: int | None,
    tool_calls: int | None,
    files: int | None,
    error_count: int | None,
    last_tool: str | None,
    last_file: str | None,
    incarnation: int | None,
) -> str:
    if activity is not None:
        checks.label("activity", activity, 500)
    if last_tool is not None:
        checks.label("last_tool", last_tool)
    if last_file is not None:
        checks.label("last_file", last_file, 1000)
    if progress is not None:
        checks.between("progress", progress, 0, 1)
    if turns or tokens or tool_calls or files or error_count:
        checks.between("turns", turns, 0, MAX_COUNT)
        checks.between("tokens", tokens, 0, MAX_COUNT)
        checks.between("tool_calls", tool_calls, 0, MAX_COUNT)
        checks.between("files", files, 0, MAX_COUNT)
        checks.between("errors", error_count, 0, MAX_COUNT)
    row = _HEARTBEAT.one(
        agent_id, activity, progress, turns, tokens, tool_calls, files, error_count,
        last_tool, last_file, incarnation,
    )  # fmt: skip
    if row is None:
        # Says why. Should what stood in the way be gone by now, the beat is due again.
        _locked(agent_id, incarnation)
        errors.fail("40001", "the agent changed while it beat", hint="Beat again.")
    status: str = row["status"]
    return status


def set_status(agent_id: str | None, status: str | None, reason: str | None, incarnation: int | None) -> str:
    checks.required("status", status)
    checks.label("reason", reason, 1000)
    if status == "terminated":
        errors.fail(
            errors.INVALID,
            "status must not be set to terminated",
            hint="caliber_agent_terminate ends an agent.",
        )
    agent = _locked(agent_id, incarnation)
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
    agent = _locked(agent_id, incarnation)
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
    work = {
        "status": "active",
        "current_trajectory_id": trajectory_id,
        "current_scope_id": scope_id,
    }
    if work.items() <= agent.items():
        return False
    summary = f"{agent['name']} works on trajectory {trajectory_id}"
    _move(agent, work, None, "agent_assigned", "info", summary)
    return True


def release(agent_id: str | None, incarnation: int | None) -> bool:
    agent = _locked(agent_id, incarnation)
    status = agent["status"] if agent["status"] in ("failed", "completed", "initializing") else "idle"
    free = {"status": status, "current_trajectory_id": None, "current_scope_id": None}
    if free.items() <= agent.items():
        return False
    _move(agent, free, None, "agent_released", "info", f"{agent['name']} is {status} and free")
    return True


def resume(agent_id: str | None) -> int:
    agent = _locked(agent_id, None)
    row = _NEXT_INCARNATION.one(agent_id, True) or {}
    incarnation = int(row["incarnation"])
    if agent["status"] not in ("initializing", "failed", "completed"):
        status = agent["status"]
    else:
        status = "active" if agent["current_trajectory_id"] else "idle"
    summary = f"{agent['name']} resumed as incarnation {incarnation}"
    _move(
        agent, {"status": status}, None, "agent_resumed", "info", summary,
        {"incarnation": incarnation},
    )  # fmt: skip
    return incarnation


def terminate(agent_id: str | None, reason: str | None, descendants: bool | None) -> int:
    checks.label("reason", reason, 1000)
    ended = int(_terminate(_found(agent_id), reason))
    if descendants:
        for row in _DESCENDANTS.rows(agent_id):
            ended += _terminate(_LOCK.one(row["agent_id"]) or {}, reason)
    return ended


def _terminate(agent: dict[str, Any], reason: str | None) -> bool:
    if agent["status"] == "terminated":
        return False
    ended = {"status": "terminated", "current_trajectory_id": None, "current_scope_id": None}
    _NEXT_INCARNATION.rows(agent["agent_id"], False)
    _move(agent, ended, reason, "agent_terminated", "info", f"{agent['name']} is terminated")
    return True


def _locked(agent_id: str | None, incarnation: int | None) -> dict[str, Any]:
    """The agent, locked, that the caller may act for and that has not ended."""
    agent = _found(agent_id)
    callers.refuse_ended(agent, incarnation)
    return agent


def _found(agent_id: str | None) -> dict[str, Any]:
    checks.required("agent_id", agent_id)
    agent = _LOCK.one(agent_id)
    if agent is None:
        callers.refuse_agent(str(agent_id))
    if not agent["may_act"]:
        callers.not_yours(str(agent_id), agent["actor"])
    return agent


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
