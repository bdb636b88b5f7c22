"""Delegations: a task as it is now, for who may know of it. Nothing is locked here."""

from __future__ import annotations

from typing import Any, TypeAlias

from caliber import acting, errors
from caliber import delegations_rules as rules
from caliber.plans import plan

Row: TypeAlias = "dict[str, Any]"

# sees: as the row policy has it, for the calling role. A task that was put back for its type still
# has who worked on it last.
_LOOK = plan(
    """
    select
        d.delegation_id, d.parent_delegation_id, d.root_delegation_id, d.team_id, d.title, d.status,
        d.chain, d.required_capabilities, d.delegator_agent_id, d.delegatee_agent_id,
        d.delegatee_agent_type, d.child_trajectory_id, d.parent_trajectory_id, d.ended_at,
        d.open_children, d.rejected_by, t.agent_id as worker_agent_id,
        coalesce(d.expires_at <= pg_catalog.clock_timestamp(), false) as lapsed,
        @extschema@._caliber_is_admin() as is_admin,
        @extschema@._caliber_sees_all()
        or coalesce(
            (d.chain || t.agent_id) && @extschema@._caliber_readable_agents(), false
        ) as sees,
        coalesce(g.login_role = @extschema@._caliber_actor(), false)
        or @extschema@._caliber_is_admin() as gives,
        coalesce(t.login_role = @extschema@._caliber_actor(), false)
        or @extschema@._caliber_is_admin() as works,
        g.terminated_at is not null as giver_ended,
        t.terminated_at is not null as worker_ended
    from @extschema@.caliber_delegation as d
    left join @extschema@.caliber_agent as g on d.delegator_agent_id = g.agent_id
    left join @extschema@.caliber_trajectory as w on d.child_trajectory_id = w.trajectory_id
    left join @extschema@.caliber_agent as t on t.agent_id = coalesce(d.delegatee_agent_id, w.agent_id)
    where d.delegation_id = $1
    """,
    "uuid",
)


def seen(delegation_id: str) -> Row:
    task = _LOOK.one(delegation_id)
    if task is None or not task["sees"]:
        rules.missing(delegation_id)
    return task


def offered(delegation_id: str, agent: Row) -> Row:
    """A task that is or was for the agent to take, or that it sees anyway."""
    task = _LOOK.one(delegation_id)
    if task is None:
        rules.missing(delegation_id)
    kind = task["delegatee_agent_type"]
    mine = kind is not None and kind == agent["agent_type"] and task["team_id"] == agent["team_id"]
    if not mine and task["delegatee_agent_id"] != agent["agent_id"]:
        if not task["sees"]:
            rules.missing(delegation_id)
        errors.fail(
            errors.NOT_PERMITTED,
            "the task is for another agent",
            detail=f"Task {delegation_id} is for {kind or task['delegatee_agent_id']}.",
            hint="An agent takes what is for it or for its type; caliber_delegations shows for whom it is.",
        )
    return task


def worked_on(delegation_id: str, agent_id: str | None) -> Row:
    """A task by the agent that has it, or had it last."""
    task = seen(delegation_id)
    given = agent_id is not None and agent_id != task["worker_agent_id"]
    if not task["works"] or given:
        rules.not_yours(task, "delegatee_agent_id")
    return task


def given_by(delegation_id: str, agent_id: str | None) -> Row:
    """A task by the agent that gave it."""
    task = seen(delegation_id)
    given = agent_id is not None and agent_id != task["delegator_agent_id"]
    if not task["gives"] or given:
        rules.not_yours(task, "delegator_agent_id")
    return task


def acts(agent_id: str | None, incarnation: int | None) -> None:
    """Refuse who passes for another, or was replaced, before anything is looked up for it."""
    if agent_id is None:
        errors.invalid("incarnation", incarnation, "must not be given without agent_id")
    acting.agent(agent_id, incarnation)
