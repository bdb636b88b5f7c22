"""Handoffs: what moves. Called with both agents, the trajectory and the handoff locked."""

from __future__ import annotations

from typing import Any

from caliber import agents_rules, handoffs_locks, handoffs_store, handoffs_task, trajectories
from caliber.plans import plan

_CLOSE = plan(
    """
    update @extschema@.caliber_scope as s
    set closed_at = pg_catalog.clock_timestamp(), summary = coalesce(s.summary, $2)
    where s.scope_id = $1
    """,
    "uuid",
    "text",
)

_OWN = plan(
    """
    with moved as (
        update @extschema@.caliber_trajectory as t
        set agent_id = $2, team_id = $3, scope_count = t.scope_count + 1
        where t.trajectory_id = $1
        returning t.trajectory_id, t.scope_count, t.status
    )
    insert into @extschema@.caliber_scope as s (
        trajectory_id, scope_no, agent_id, team_id, name, suspended_at
    )
    select
        m.trajectory_id, m.scope_count, $2, $3, $4,
        case when m.status = 'suspended' then pg_catalog.clock_timestamp() end
    from moved as m
    returning s.scope_id
    """,
    "uuid",
    "uuid",
    "uuid",
    "text",
)

_CHILD = plan(
    """
    with made as (
        insert into @extschema@.caliber_trajectory as t (
            name, agent_id, team_id, parent_trajectory_id, root_trajectory_id, depth, scope_count
        )
        select $1, $2, $3, p.trajectory_id, p.root_trajectory_id, p.depth + 1, 1
        from @extschema@.caliber_trajectory as p
        where p.trajectory_id = $4
        returning t.trajectory_id, t.agent_id, t.team_id
    )
    insert into @extschema@.caliber_scope as s (trajectory_id, scope_no, agent_id, team_id, name)
    select m.trajectory_id, 1, m.agent_id, m.team_id, $5
    from made as m
    returning s.scope_id, s.trajectory_id
    """,
    "text",
    "uuid",
    "uuid",
    "uuid",
    "text",
)

_FINISH = plan(
    """
    update @extschema@.caliber_trajectory as t
    set
        status = $2, outcome = $3, status_changed_at = pg_catalog.clock_timestamp(),
        finished_at = pg_catalog.clock_timestamp()
    where t.trajectory_id = $1 and t.finished_at is null
    """,
    "uuid",
    "@extschema@.caliber_trajectory_status",
    "text",
)

_ASSIGN = plan(
    """
    update @extschema@.caliber_agent as a
    set
        status = $2,
        status_reason = $3,
        status_changed_at = case
            when a.status = $2 then a.status_changed_at else pg_catalog.clock_timestamp()
        end,
        current_trajectory_id = $4,
        current_scope_id = $5
    where a.agent_id = $1
    """,
    "uuid",
    "@extschema@.caliber_agent_status",
    "text",
    "uuid",
    "uuid",
)

# The first thing in the receiver's scope, and a note that both will find.
_RECORD = plan(
    """
    with artifact as (
        insert into @extschema@.caliber_artifact (
            scope_id, trajectory_id, agent_id, team_id, artifact_type, content, content_hash,
            extraction_method, token_count, name
        )
        values (
            $1, $2, $3, $4, 'design_decision', $5, pg_catalog.sha256(pg_catalog.convert_to($5, 'UTF8')),
            'user_provided', pg_catalog.length($5) / 4 + 1, 'handoff'
        )
    )
    insert into @extschema@.caliber_note (
        agent_id, team_id, trajectory_id, note_type, content, content_hash, level, name, token_count
    )
    values (
        $6, $4, $2, 'handoff', $7, pg_catalog.sha256(pg_catalog.convert_to($7, 'UTF8')), 'raw',
        'handoff', pg_catalog.length($7) / 4 + 1
    )
    """,
    "uuid",
    "uuid",
    "uuid",
    "uuid",
    "text",
    "uuid",
    "text",
)


def own(trajectory_id: str, agent: dict[str, Any], summary: str, name: str) -> str:
    """The trajectory is the agent's, in a scope of its own; the scope before is closed."""
    current = trajectories.OPEN_SCOPE.one(trajectory_id)
    if current is not None:
        _CLOSE.rows(current["scope_id"], summary[:10_000])
    row = _OWN.one(trajectory_id, agent["agent_id"], agent["team_id"], name) or {}
    return str(row["scope_id"])


def child(name: str, agent: dict[str, Any], parent_id: str) -> tuple[str, str]:
    row = _CHILD.one(name[:1000], agent["agent_id"], agent["team_id"], parent_id, "handoff") or {}
    return str(row["trajectory_id"]), str(row["scope_id"])


def finish_child(trajectory_id: str, status: str, outcome: str) -> None:
    current = trajectories.OPEN_SCOPE.one(trajectory_id)
    if current is not None:
        _CLOSE.rows(current["scope_id"], outcome[:10_000])
    _FINISH.rows(trajectory_id, status, outcome[:10_000])


def take_off(agent: dict[str, Any], trajectory_id: str, waits: bool = False) -> None:
    """The agent works on this no more; on anything else it goes on."""
    if agent["current_trajectory_id"] != trajectory_id:
        if waits and agent["status"] in ("active", "idle"):
            _put(agent, "waiting", agent["current_trajectory_id"], agent["current_scope_id"])
        return
    status = agent["status"]
    if status not in ("failed", "completed", "initializing", "terminated"):
        status = "waiting" if waits else "idle"
    _put(agent, status, None, None)


def put_on(agent: dict[str, Any], trajectory_id: str, scope_id: str) -> list[str]:
    """The agent works on this, unless it is busy with something else, which it is warned of."""
    if agent["status"] not in agents_rules.CAN_WORK:
        return [f"{agent['name']} is {agent['status']} and was not put to work"]
    if agent["current_trajectory_id"] not in (None, trajectory_id):
        return [f"{agent['name']} works on another trajectory; assign this one when that is done"]
    _put(agent, "active", trajectory_id, scope_id)
    return []


def resume(agent: dict[str, Any]) -> None:
    """What it waited for has come, or comes to another."""
    current = agent["current_trajectory_id"]
    _put(agent, "active" if current else "idle", current, agent["current_scope_id"])


def _put(agent: dict[str, Any], status: str, trajectory_id: str | None, scope_id: str | None) -> None:
    _ASSIGN.rows(agent["agent_id"], status, None, trajectory_id, scope_id)
    agent.update(status=status, current_trajectory_id=trajectory_id, current_scope_id=scope_id)


def received(handoff: dict[str, Any], giver: dict[str, Any], taker: dict[str, Any]) -> None:
    steps = "\n".join(f"- {step}" for step in handoff["next_steps"])
    content = (
        f"HANDOFF RECEIVED\nReason: {handoff['reason']}\n\nNotes: {handoff['handoff_notes']}"
        f"\n\nNext Steps:\n{steps}"
    )
    note = f"{giver['name']} handed off to {taker['name']} because: {handoff['handoff_notes']}"
    _RECORD.rows(
        handoff["received_scope_id"], handoff["received_trajectory_id"], taker["agent_id"],
        taker["team_id"], content, giver["agent_id"], note,
    )  # fmt: skip


def passed_on(handoff: dict[str, Any]) -> bool:
    """Whether an escalated trajectory is further up: then it comes back from there first."""
    if handoff["handoff_type"] != "escalation":
        return False
    owner: str = handoffs_store.trajectory(handoff["trajectory_id"])["agent_id"]
    return owner != str(handoff["to_agent_id"])


def _end_offer(trajectory_id: str) -> None:
    """What the holder of an escalated trajectory offers further ends when it gives the trajectory back."""
    from caliber import handoffs

    if offer := handoffs.OFFERED.one(trajectory_id):
        handoffs.take_back(handoffs_store.lock(offer["handoff_id"]), "its sender has the trajectory no more")


def give_back(
    handoff: dict[str, Any], giver: dict[str, Any], taker: dict[str, Any], success: bool, summary: str
) -> list[str]:
    """What was lent goes back to who lent it: the trajectory, the leases, the assignment."""
    from caliber import handoffs_parts

    warnings: list[str] = []
    trajectory_id = handoff["trajectory_id"]
    if handoff["handoff_type"] == "escalation":
        take_off(taker, trajectory_id)
        _end_offer(trajectory_id)
        if handoffs_store.trajectory(trajectory_id)["status"] in ("completed", "failed"):
            warnings.append("the trajectory is finished")
        else:
            scope = own(trajectory_id, giver, summary, "returned")
            warnings += handoffs_task.assign(trajectory_id, taker, giver)
            handoffs_parts.inherit(trajectory_id, taker, giver)
            warnings += put_on(giver, trajectory_id, scope)
    else:
        finish_child(handoff["received_trajectory_id"], "completed" if success else "failed", summary)
        take_off(taker, handoff["received_trajectory_id"])
        if giver["status"] == "waiting" and handoff["sender_waits"]:
            resume(giver)
        if handoffs_store.trajectory(trajectory_id)["agent_id"] == taker["agent_id"]:
            # It has the whole too, so what was lent is its own by now.
            handoff["lock_ids"] = handoff["moved_lock_ids"]
            return warnings
    back, _, lost = handoffs_locks.move(
        handoff["moved_lock_ids"], taker["agent_id"], giver["agent_id"], handoff["joint_locks"]
    )
    handoff["lock_ids"] = back
    return warnings + lost
