"""Delegations: what the delegatee reports: how far it is, what it used, how it ended.

A task that stands alone is one statement. A sub-task, and whatever that statement did not do, goes
by the lock of the tree, where it is also decided why a report is refused.
"""

from __future__ import annotations

from typing import Any

from caliber import checks, delegations_close, delegations_look, delegations_record, delegations_tell, errors
from caliber import delegations_rules as rules
from caliber.delegations_tree import KINDS, Row, Tree
from caliber.plans import plan

_MINE = """
            d.delegation_id = $1
            and d.parent_delegation_id is null
            and d.status in ('accepted', 'in_progress')
            and d.expires_at > pg_catalog.clock_timestamp()
            and a.agent_id = d.delegatee_agent_id
            and a.terminated_at is null
            and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
            and ($2 is null or a.agent_id = $2)
            and d.tokens_used + $3 <= d.max_tokens
            and d.tool_calls_used + $4 <= d.max_tool_calls
            and (
                d.budget_tokens is null
                or d.tokens_used + $3 + d.tokens_below + d.tokens_reserved <= d.budget_tokens
            )
            and (
                d.budget_cost is null
                or d.cost_used + $5 + d.cost_below + d.cost_reserved <= d.budget_cost
            )
"""

# $6 status, $7 result, $8 summary, $9 produced artifacts, $10 notes, $11 results elsewhere.
_COMPLETE = """
    with over as (
        update @extschema@.caliber_delegation as d
        set
            status = $6,
            result_status = $7,
            summary = $8,
            produced_artifacts = $9,
            produced_notes = $10,
            result_artifacts = $11,
            tokens_used = d.tokens_used + $3,
            tool_calls_used = d.tool_calls_used + $4,
            cost_used = d.cost_used + $5,
            progress = case when $6 = 'completed' then 1 else d.progress end,
            ended_at = pg_catalog.clock_timestamp()
        from @extschema@.caliber_agent as a
        where {mine}
            and d.open_children = 0
        returning
            d.delegation_id, d.delegator_agent_id, d.delegatee_agent_id, d.parent_trajectory_id,
            d.child_trajectory_id, d.title, d.team_id
    ),
    {finished},
    {recorded}
    select
        o.delegation_id, o.delegator_agent_id, o.delegatee_agent_id, o.parent_trajectory_id, o.title,
        pg_catalog.jsonb_build_object(
            'delegation_id', $1,
            'status', $6,
            'result', pg_catalog.jsonb_build_object('status', $7, 'summary', $8, 'error', null),
            'produced_artifacts', $9,
            'produced_notes', $10
        )::text as payload,
        {count}
    from over as o
"""

_COMPLETE_TYPES = (
    "uuid", "uuid", "int8", "int4", "numeric", "@extschema@.caliber_delegation_status",
    "@extschema@.caliber_delegation_result", "text", "uuid[]", "uuid[]", "text[]",
)  # fmt: skip


_COMPLETE_ALONE = plan(
    _COMPLETE.format(
        mine=_MINE,
        finished=delegations_close.TRAJECTORY_ENDS.format(
            over="over",
            status="(case when $6 = 'completed' then 'completed' else 'failed' end)"
            "::@extschema@.caliber_trajectory_status",
            outcome="pg_catalog.left($8, 10000)",
        ),
        recorded=delegations_record.recorded(
            "over", "$6", "'task ' || $6 || ': ' || o.title", "o.delegatee_agent_id", "o.child_trajectory_id"
        ),
        count=delegations_record.COUNT,
    ),
    *_COMPLETE_TYPES,
)

_LEFT = """
        returning
            d.delegation_id, d.delegator_agent_id, d.delegatee_agent_id, d.parent_trajectory_id, d.title,
            d.status, d.expires_at, d.max_tokens - d.tokens_used as tokens_left,
            d.max_tool_calls - d.tool_calls_used as tool_calls_left,
            d.budget_tokens - d.tokens_used - d.tokens_below - d.tokens_reserved as budget_tokens_left,
            d.budget_cost - d.cost_used - d.cost_below - d.cost_reserved as budget_cost_left
"""

_PROGRESS = plan(
    f"""
        update @extschema@.caliber_delegation as d
        set
            status = 'in_progress',
            started_at = coalesce(d.started_at, pg_catalog.clock_timestamp()),
            tokens_used = d.tokens_used + $3,
            tool_calls_used = d.tool_calls_used + $4,
            cost_used = d.cost_used + $5,
            progress = coalesce($6, d.progress)
        from @extschema@.caliber_agent as a
        where {_MINE}
        {_LEFT}
    """,
    "uuid",
    "uuid",
    "int8",
    "int4",
    "numeric",
    "float4",
)

# Of a task whose tree is locked and whose numbers were reckoned on it.
_PROGRESS_LOCKED = plan(
    f"""
        update @extschema@.caliber_delegation as d
        set
            status = case when $6 then 'in_progress' else d.status end,
            started_at = case
                when $6 then coalesce(d.started_at, pg_catalog.clock_timestamp()) else d.started_at
            end,
            tokens_used = $2,
            tool_calls_used = $3,
            cost_used = $4,
            progress = case when $6 then coalesce($5, d.progress) else d.progress end
        where d.delegation_id = $1
        {_LEFT}
    """,
    "uuid",
    "int8",
    "int4",
    "numeric",
    "float4",
    "bool",
)

_NOTE = plan(
    """
    select pg_catalog.jsonb_build_object(
        'event', 'delegation_progress', 'delegation_id', $1, 'progress', $2, 'note', $3
    )::text as payload
    """,
    "uuid",
    "float4",
    "text",
)

_PRODUCED = plan(
    """
    select 'artifact' as kind, w.id
    from pg_catalog.unnest($2) as w (id)
    left join @extschema@.caliber_artifact as r on w.id = r.artifact_id
    left join @extschema@.caliber_trajectory as t on r.trajectory_id = t.trajectory_id
    where not coalesce(
        @extschema@._caliber_is_admin() and r.artifact_id is not null
        or r.agent_id = $1 or t.agent_id = $1, false
    )
    union all
    select 'note', w.id
    from pg_catalog.unnest($3) as w (id)
    left join @extschema@.caliber_note as n on w.id = n.note_id
    where not coalesce(
        @extschema@._caliber_is_admin() and n.note_id is not null or n.agent_id = $1, false
    )
    """,
    "uuid",
    "uuid[]",
    "uuid[]",
)

_ENDS = {"success": "completed", "partial": "completed", "failure": "failed"}


def complete(
    delegation_id: str | None,
    result_status: str | None,
    summary: str | None,
    produced_artifacts: list[str | None] | None,
    produced_notes: list[str | None] | None,
    result_artifacts: list[str | None] | None,
    tokens: int | None,
    tool_calls: int | None,
    cost: Any,
    agent_id: str | None,
    incarnation: int | None,
) -> str:
    checks.required("delegation_id", delegation_id)
    checks.required("result_status", result_status)
    result = {
        "result_status": result_status,
        "summary": checks.label("summary", summary, rules.MAX_SUMMARY),
        "produced_artifacts": rules.ids("produced_artifacts", produced_artifacts),
        "produced_notes": rules.ids("produced_notes", produced_notes),
        "result_artifacts": rules.words("result_artifacts", result_artifacts),
    }
    rules.usage(tokens, tool_calls, cost)
    if agent_id is not None or incarnation is not None:
        delegations_look.acts(agent_id, incarnation)
    if result["produced_artifacts"] or result["produced_notes"]:
        _refuse_foreign(str(delegation_id), agent_id, result)
    status = _ENDS[str(result_status)]
    row = _COMPLETE_ALONE.one(
        delegation_id, agent_id, tokens or 0, tool_calls or 0, cost or 0, status, result_status,
        result["summary"], result["produced_artifacts"], result["produced_notes"],
        result["result_artifacts"],
    )  # fmt: skip
    if row is not None:
        delegations_tell.resulted(row, row["delegatee_agent_id"], row["payload"])
        return status
    tree, task = _locked(str(delegation_id), agent_id)
    if task["status"] == status and all(task[name] == given for name, given in result.items()):
        # Said twice is said once: the first answer did not reach it.
        return status
    _refuse_state(task, "completed", (agent_id, tokens, tool_calls, cost))
    if task["open_children"]:
        rules.children_open(task)
    _spend(tree, task, tokens, tool_calls, cost)
    payload = delegations_close.end(tree, task, status, None, result)
    delegations_tell.resulted(task, task["delegatee_agent_id"], payload)
    return status


def progress(
    delegation_id: str | None,
    tokens: int | None,
    tool_calls: int | None,
    cost: Any,
    progress: float | None,
    note: str | None,
    agent_id: str | None,
    incarnation: int | None,
) -> list[dict[str, Any]]:
    checks.required("delegation_id", delegation_id)
    rules.usage(tokens, tool_calls, cost)
    checks.between("progress", progress, 0, 1)
    note = checks.label("note", note, rules.MAX_ERROR)
    if agent_id is not None or incarnation is not None:
        delegations_look.acts(agent_id, incarnation)
    row = _PROGRESS.one(delegation_id, agent_id, tokens or 0, tool_calls or 0, cost or 0, progress)
    if row is None:
        row = _progress_below(str(delegation_id), agent_id, tokens, tool_calls, cost, progress)
    if note is not None:
        told = _NOTE.one(delegation_id, progress, note) or {}
        delegations_tell.progressed(row, told["payload"])
    return [row]


def _progress_below(
    delegation_id: str,
    agent_id: str | None,
    tokens: int | None,
    tool_calls: int | None,
    cost: Any,
    progress: float | None,
) -> Row:
    tree, task = _locked(delegation_id, agent_id)
    if task["attempts"] == 0:
        rules.wrong_state(task, "worked on")
    # What was used after the end was used all the same. It is counted, though nobody may go on.
    late = not task["accepted"] or task["lapsed"]
    _spend(tree, task, tokens, tool_calls, cost, late)
    tree.write()
    row = _PROGRESS_LOCKED.one(
        delegation_id, task["tokens_used"], task["tool_calls_used"], task["cost_used"], progress, not late
    )
    row = dict(row or {})
    if task["lapsed"] and task["ended_at"] is None:
        row["status"] = "timed_out"
    return row


def fail(
    delegation_id: str | None,
    error: str | None,
    retry: bool | None,
    tokens: int | None,
    tool_calls: int | None,
    cost: Any,
    agent_id: str | None,
    incarnation: int | None,
) -> str:
    checks.required("delegation_id", delegation_id)
    text = checks.label("error", error, rules.MAX_ERROR) or "failed"
    rules.usage(tokens, tool_calls, cost)
    if agent_id is not None or incarnation is not None:
        delegations_look.acts(agent_id, incarnation)
    tree, task = _locked(str(delegation_id), agent_id)
    if task["status"] in ("pending", "failed", "dead") and task["error"] == text:
        return str(task["status"])
    _refuse_state(task, "failed", (agent_id, tokens, tool_calls, cost))
    _spend(tree, task, tokens, tool_calls, cost)
    worker = task["delegatee_agent_id"]
    status = delegations_close.over(tree, task, text, worker, again=bool(retry))
    if status == "pending":
        delegations_tell.signalled(task, worker, task["delegator_agent_id"], "retried", "normal")
    return status


def _locked(delegation_id: str, agent_id: str | None) -> tuple[Tree, Row]:
    """The tree, locked, for the agent that has the task; who it is was looked up before."""
    before = delegations_look.worked_on(delegation_id, agent_id)
    if before["worker_ended"]:
        errors.fail(errors.WRONG_STATE, "the agent is terminated", detail=f"The task is {delegation_id}.")
    tree = Tree(delegation_id)
    task = tree.task(delegation_id)
    if task["delegatee_agent_id"] != before["delegatee_agent_id"]:
        rules.wrong_state(task, "worked on")
    return tree, task


def _refuse_state(task: Row, action: str, used: tuple[Any, ...]) -> None:
    if task["ended_at"] is not None or task["lapsed"] or task["status"] == "pending":
        rules.wrong_state(task, action, used)


def _spend(
    tree: Tree, task: Row, tokens: int | None, tool_calls: int | None, cost: Any, late: bool = False
) -> None:
    task["tool_calls_used"] += tool_calls or 0
    for kind, amount in zip(KINDS, (tokens or 0, cost or 0), strict=True):
        tree.spend(task, kind, amount, late)
    if late:
        return
    for name, amount in (("tokens", tokens), ("tool_calls", tool_calls)):
        limit, used = task[f"max_{name}"], task[f"{name}_used"]
        if used > limit:
            left = limit - used + (amount or 0)
            rules.over_budget(name.replace("_", " "), amount, left, limit, task["delegation_id"])


def _refuse_foreign(delegation_id: str, agent_id: str | None, result: Row) -> None:
    """What it says it made must be there, and be its own."""
    task = delegations_look.worked_on(delegation_id, agent_id)
    arrays = result["produced_artifacts"] or [], result["produced_notes"] or []
    row = _PRODUCED.one(task["delegatee_agent_id"], *arrays)
    if row is not None:
        from caliber import memory_rules

        memory_rules.missing(row["kind"], row["id"])
