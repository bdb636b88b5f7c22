"""Delegations: what the delegator decides: to stop a task, or to have it tried again."""

from __future__ import annotations

from caliber import acting, checks, delegations_close, delegations_look, delegations_tell, errors
from caliber import delegations_rules as rules
from caliber.delegations_tree import Row, Tree
from caliber.plans import plan

_AGAIN = plan(
    """
    with again as (
        update @extschema@.caliber_delegation as d
        set
            status = 'pending',
            delegatee_agent_id = case when d.delegatee_agent_type is null then d.delegatee_agent_id end,
            attempts = 0,
            rejected_by = null,
            progress = null,
            deadline = $2,
            expires_at = $2,
            result_status = null,
            summary = null,
            produced_artifacts = null,
            produced_notes = null,
            result_artifacts = null,
            ended_at = null
        where d.delegation_id = $1
        returning d.title, d.team_id, d.delegator_agent_id, d.parent_trajectory_id
    )
    select
        @extschema@._caliber_log(
            'delegation_reopened', 'coordination', 'info', 'task opened again: ' || a.title,
            a.delegator_agent_id, a.team_id, a.parent_trajectory_id, 'delegation', $1::text
        )
    from again as a
    """,
    "uuid",
    "timestamptz",
)

_TIME = plan(
    """
    select
        coalesce($1 <= pg_catalog.clock_timestamp(), false) as past,
        coalesce($1 > $2, false) as later,
        least($1, $2) as deadline
    """,
    "timestamptz",
    "timestamptz",
)

_WORKS = plan(
    """
    select a.name, a.status
    from @extschema@.caliber_agent as a
    where a.agent_id = $1
    """,
    "uuid",
)


def cancel(
    delegation_id: str | None, reason: str | None, agent_id: str | None, incarnation: int | None
) -> bool:
    tree, task = _locked(delegation_id, reason, agent_id, incarnation)
    if task["ended_at"] is not None:
        return False
    sender = task["delegator_agent_id"]
    delegations_close.end_below(tree, task, sender)
    waiting = task["delegatee_agent_type"] is not None and task["status"] == "pending"
    delegations_close.end(tree, task, "cancelled", reason or "cancelled")
    if not waiting:
        delegations_tell.signalled(task, sender, task["delegatee_agent_id"], "cancelled", "high")
    return True


def retry(
    delegation_id: str | None, deadline: str | None, agent_id: str | None, incarnation: int | None
) -> bool:
    tree, task = _locked(delegation_id, None, agent_id, incarnation)
    if task["ended_at"] is None:
        return False
    if task["status"] not in ("failed", "timed_out", "dead", "rejected"):
        rules.wrong_state(task, "tried again")
    until = _until(tree, task, deadline)
    _refuse_gone(task)
    tree.come_back(task)
    tree.write()
    _AGAIN.rows(delegation_id, until)
    delegations_tell.announced({**task, "attempts": 0, "deadline": until})
    return True


def _until(tree: Tree, task: Row, deadline: str | None) -> str | None:
    """The deadline it gets: the one given, else its own, and never after its parent's end."""
    parent_id = task["parent_delegation_id"]
    end = None
    if parent_id is not None:
        parent = tree.task(parent_id)
        if parent["status"] not in ("accepted", "in_progress") or parent["lapsed"]:
            rules.wrong_state(parent, "passed on")
        end = parent["expires_at"]
    time = _TIME.one(deadline or task["deadline"], end) or {}
    if deadline is not None and time["later"]:
        rules.wider("deadline", deadline, end)
    if time["past"]:
        errors.invalid("deadline", deadline or task["deadline"], "must be in the future")
    until: str | None = time["deadline"]
    return until


def _refuse_gone(task: Row) -> None:
    if task["delegatee_agent_type"] is None:
        agent = _WORKS.one(task["delegatee_agent_id"]) or {}
        if agent["status"] in rules.AWAY:
            rules.unavailable("the agent is unavailable", f"{agent['name']} is {agent['status']}.")


def _locked(
    delegation_id: str | None, reason: str | None, agent_id: str | None, incarnation: int | None
) -> tuple[Tree, Row]:
    checks.required("delegation_id", delegation_id)
    checks.label("reason", reason, rules.MAX_ERROR)
    if agent_id is not None or incarnation is not None:
        delegations_look.acts(agent_id, incarnation)
    before = delegations_look.given_by(str(delegation_id), agent_id)
    if before["giver_ended"] and not before["is_admin"]:
        acting.agent(before["delegator_agent_id"], None)
    tree = Tree(str(delegation_id))
    return tree, tree.task(str(delegation_id))
