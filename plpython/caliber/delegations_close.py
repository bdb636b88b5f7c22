"""Delegations: how a task ends or goes back to be tried again. Its tree is locked by then."""

from __future__ import annotations

from caliber import delegations_tell
from caliber.delegations_tree import Row, Tree
from caliber.plans import plan

# The trajectory of an attempt ends with it: trajectory before scope, the scope locked so that an
# artifact on its way into it is waited for. One task, one trajectory, one open scope, each looked up and
# not joined: a plan made while there are few must do when there are many.
TRAJECTORY_ENDS = """
    finished as (
        update @extschema@.caliber_trajectory as t
        set
            status = {status},
            outcome = coalesce({outcome}, t.outcome),
            status_changed_at = pg_catalog.clock_timestamp(),
            finished_at = pg_catalog.clock_timestamp()
        from {over} as o
        where t.trajectory_id = (select x.child_trajectory_id from {over} as x) and t.finished_at is null
        returning t.trajectory_id
    ),
    closed as (
        update @extschema@.caliber_scope as s
        set closed_at = pg_catalog.clock_timestamp()
        where s.scope_id = (
                select x.scope_id
                from @extschema@.caliber_scope as x
                where x.trajectory_id = (select f.trajectory_id from finished as f) and x.closed_at is null
                for update
            )
    )
"""

# $1 task, $2 status, $3 error, $4 result, $5 summary, $6 produced artifacts, $7 notes, $8 results
# elsewhere, $9 tokens, $10 tool calls, $11 cost, $12 of the trajectory, $13 agent, $14 severity.
_END = plan(
    f"""
    with over as (
        update @extschema@.caliber_delegation as d
        set
            status = $2,
            error = coalesce($3, d.error),
            result_status = $4,
            summary = $5,
            produced_artifacts = $6,
            produced_notes = $7,
            result_artifacts = $8,
            tokens_used = $9,
            tool_calls_used = $10,
            cost_used = $11,
            progress = case when $2 = 'completed' then 1 else d.progress end,
            ended_at = pg_catalog.clock_timestamp()
        where d.delegation_id = $1
        returning d.*
    ),
    {
        TRAJECTORY_ENDS.format(
            over="over", status="$12", outcome="pg_catalog.left(coalesce(o.summary, o.error), 10000)"
        )
    }
    select
        pg_catalog.jsonb_build_object(
            'delegation_id', o.delegation_id,
            'status', o.status,
            'result', pg_catalog.jsonb_build_object(
                'status', o.result_status, 'summary', o.summary, 'error', o.error
            ),
            'produced_artifacts', o.produced_artifacts,
            'produced_notes', o.produced_notes
        )::text as payload,
        @extschema@._caliber_log(
            'delegation_' || o.status, 'coordination', $14, 'task ' || o.status || ': ' || o.title, $13,
            o.team_id, coalesce(o.child_trajectory_id, o.parent_trajectory_id), 'delegation', $1::text,
            pg_catalog.jsonb_build_object('attempts', o.attempts, 'error', o.error)
        )
    from over as o
    """,
    "uuid",
    "@extschema@.caliber_delegation_status",
    "text",
    "@extschema@.caliber_delegation_result",
    "text",
    "uuid[]",
    "uuid[]",
    "text[]",
    "int8",
    "int4",
    "numeric",
    "@extschema@.caliber_trajectory_status",
    "uuid",
    "@extschema@.caliber_event_severity",
)

_BACK = plan(
    f"""
    with over as (
        update @extschema@.caliber_delegation as d
        set
            status = 'pending',
            delegatee_agent_id = case when d.delegatee_agent_type is null then d.delegatee_agent_id end,
            error = $2,
            expires_at = d.deadline,
            progress = null,
            tokens_used = $3,
            tool_calls_used = $4,
            cost_used = $5
        where d.delegation_id = $1
        returning d.*
    ),
    {TRAJECTORY_ENDS.format(over="over", status="'failed'", outcome="pg_catalog.left(o.error, 10000)")}
    select
        @extschema@._caliber_log(
            'delegation_retried', 'coordination', 'warning', 'task tried again: ' || o.title, $6, o.team_id,
            o.child_trajectory_id, 'delegation', $1::text,
            pg_catalog.jsonb_build_object('attempts', o.attempts, 'error', o.error)
        )
    from over as o
    """,
    "uuid",
    "text",
    "int8",
    "int4",
    "numeric",
    "uuid",
)


def end(tree: Tree, task: Row, status: str, error: str | None, result: Row | None = None) -> str:
    """The task ends, in this status; returns what its delegator is to be told."""
    given = result or {}
    tree.leave(task)
    tree.write()
    row = _END.one(
        task["delegation_id"], status, error, given.get("result_status"), given.get("summary"),
        given.get("produced_artifacts"), given.get("produced_notes"), given.get("result_artifacts"),
        task["tokens_used"], task["tool_calls_used"], task["cost_used"],
        "completed" if status == "completed" else "failed",
        task["delegatee_agent_id"] or task["delegator_agent_id"],
        "info" if status in ("completed", "cancelled") else "warning",
    ) or {}  # fmt: skip
    task["status"], task["ended_at"] = status, "now"
    payload: str = row["payload"]
    return payload


def back(tree: Tree, task: Row, error: str, announce: bool = True) -> None:
    """The attempt is over and the task waits for the next one."""
    tree.write()
    _BACK.rows(
        task["delegation_id"], error, task["tokens_used"], task["tool_calls_used"], task["cost_used"],
        task["delegatee_agent_id"],
    )  # fmt: skip
    if task["delegatee_agent_type"] is not None:
        task["delegatee_agent_id"] = None
    task["status"] = "pending"
    if announce:
        delegations_tell.announced(task)


def end_below(tree: Tree, task: Row, sender: str) -> int:
    """What was passed on of the task ends before it does; whoever works on it is told."""
    ended = 0
    for below in tree.open_below(task["delegation_id"]):
        status = "timed_out" if below["lapsed"] else "cancelled"
        end(tree, below, status, "the task above it has ended")
        if below["accepted"]:
            delegations_tell.signalled(below, sender, below["delegatee_agent_id"], status, "high")
        ended += 1
    return ended


def over(tree: Tree, task: Row, error: str, sender: str, again: bool, announce: bool = True) -> str:
    """An attempt came to nothing: it is tried again while it may be, else the task ends."""
    end_below(tree, task, sender)
    lapsed, accepted, worker = task["lapsed"], task["accepted"], task["delegatee_agent_id"]
    again = again and accepted and not task["too_late"]
    if again and task["attempts"] <= task["max_retries"]:
        if lapsed:
            delegations_tell.signalled(task, sender, worker, "timed_out", "high")
            delegations_tell.signalled(task, sender, task["delegator_agent_id"], "retried", "normal")
        back(tree, task, error, announce)
        return "pending"
    status = "timed_out" if lapsed else "failed"
    if again and task["max_retries"] > 0:
        status = "dead"
    payload = end(tree, task, status, error)
    delegations_tell.resulted(task, worker or sender, payload)
    if lapsed and accepted:
        delegations_tell.signalled(task, sender, worker, "timed_out", "high")
    return status
