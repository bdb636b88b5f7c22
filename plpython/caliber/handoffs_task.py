"""Handoffs: the assignment behind a trajectory.

A trajectory that came by a delegation, or as the child of another handoff, is the work of a task.
Who takes it over takes that task as well, in the same transaction; where it cannot, because it gave
the task itself, it does not get the trajectory for good. While an escalation is with such an agent
the task stays where it is, since it comes back.
"""

from __future__ import annotations

from typing import Any

from caliber import delegations_tell, handoffs_rules, handoffs_store
from caliber.delegations_tree import Tree
from caliber.plans import plan

_TASK = plan(
    """
    select
        d.delegation_id, d.chain, d.required_capabilities, d.delegatee_agent_id, d.priority,
        d.expires_at <= pg_catalog.clock_timestamp() as lapsed
    from @extschema@.caliber_delegation as d
    where d.child_trajectory_id = $1 and d.status in ('accepted', 'in_progress')
    """,
    "uuid",
)

# The handoff by which its receiver has the trajectory, as a child of the sender's.
_RECEIVED = plan(
    """
    select h.handoff_id, h.from_agent_id, h.to_agent_id
    from @extschema@.caliber_handoff as h
    where h.received_trajectory_id = $1
        and h.trajectory_id <> $1
        and h.status in ('accepted', 'in_progress')
        and h.returned_at is null
    """,
    "uuid",
)

_ASSIGN = plan(
    """
    with moved as (
        update @extschema@.caliber_delegation as d
        set delegatee_agent_id = $2
        where d.delegation_id = $1
        returning d.delegation_id, d.title, d.team_id, d.child_trajectory_id
    )
    select @extschema@._caliber_log(
        'delegation_handed_over', 'coordination', 'info', 'task handed over: ' || m.title, $2, m.team_id,
        m.child_trajectory_id, 'delegation', m.delegation_id::text
    )
    from moved as m
    """,
    "uuid",
    "uuid",
)

# What was passed on of the task reports to who has it now; except what the taker itself works on.
_PASSED_ON = plan(
    """
    update @extschema@.caliber_delegation as d
    set
        delegator_agent_id = case when d.delegator_agent_id = $2 then $3 else d.delegator_agent_id end,
        chain = pg_catalog.array_replace(d.chain, $2, $3)
    where d.delegation_id = any($1)
        and d.delegatee_agent_id is distinct from $3
        and not $3 = any (d.chain)
    """,
    "uuid[]",
    "uuid",
    "uuid",
)

# While the one who had the part had the whole too, the part was still from who had the whole before. Who
# else has the whole is left to who takes it: it may be changing hands, and this agent's row is held only.
_ASSIGN_HANDOFF = plan(
    """
    update @extschema@.caliber_handoff as h
    set
        to_agent_id = $2,
        tried_agent_ids = pg_catalog.array_append(h.tried_agent_ids, h.to_agent_id),
        from_agent_id = case when t.agent_id = $3 then $3 else h.from_agent_id end
    from @extschema@.caliber_trajectory as t
    where h.handoff_id = $1 and t.trajectory_id = h.trajectory_id
    """,
    "uuid",
    "uuid",
    "uuid",
)


def hold(trajectory_id: str) -> dict[str, Any]:
    """The trajectory, locked, after the tree of the task behind it: tasks come before trajectories."""
    task = _TASK.one(trajectory_id)
    if task is not None:
        Tree(task["delegation_id"])
    return handoffs_store.trajectory(trajectory_id)


def priority(trajectory_id: str) -> str | None:
    task = _TASK.one(trajectory_id)
    return task["priority"] if task else None


def refusal(handoff: dict[str, Any], agent: dict[str, Any]) -> str | None:
    """Why the agent cannot have the task behind the trajectory; None when it can, or needs not."""
    if handoff["handoff_type"] not in handoffs_rules.MOVES:
        return None
    task = _TASK.one(handoff["trajectory_id"])
    received = _RECEIVED.one(handoff["trajectory_id"])
    if task is not None and task["lapsed"]:
        return "timed_out: the task behind it has run out of time"
    if handoff["handoff_type"] == "escalation":
        return None
    if task is not None:
        if agent["agent_id"] in task["chain"]:
            return "cycle: the agent is already in the chain of the task behind it"
        lacking = sorted(set(task["required_capabilities"] or ()) - set(agent["capabilities"]))
        if lacking:
            return "capability: " + ", ".join(lacking)
    if received is not None and received["from_agent_id"] == agent["agent_id"]:
        return "cycle: the agent waits for the result of this work"
    return None


def assign(trajectory_id: str, giver: dict[str, Any], taker: dict[str, Any]) -> list[str]:
    """Called with the trajectory held: the task behind it moves from one agent to the other."""
    warnings: list[str] = []
    task = _TASK.one(trajectory_id)
    if task is not None and task["delegatee_agent_id"] == giver["agent_id"]:
        if taker["agent_id"] in task["chain"]:
            warnings.append(f"the task stays assigned to {giver['name']}: {taker['name']} is above it")
        else:
            _assign_task(task["delegation_id"], giver["agent_id"], taker["agent_id"])
    received = _RECEIVED.one(trajectory_id)
    if received is not None and received["to_agent_id"] == giver["agent_id"]:
        if received["from_agent_id"] == taker["agent_id"]:
            warnings.append(f"the result is still {giver['name']}'s to return")
        else:
            _ASSIGN_HANDOFF.rows(received["handoff_id"], taker["agent_id"], giver["agent_id"])
    return warnings


def _assign_task(delegation_id: str, giver: str, taker: str) -> None:
    tree = Tree(delegation_id)
    task = tree.task(delegation_id)
    below = [row["delegation_id"] for row in tree.open_below(delegation_id)]
    _ASSIGN.rows(delegation_id, taker)
    _PASSED_ON.rows(below, giver, taker)
    delegations_tell.signalled(task, taker, task["delegator_agent_id"], "handed_over", "normal")
