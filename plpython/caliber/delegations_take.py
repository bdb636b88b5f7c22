"""Delegations: taking a task, turning it down, beginning it. The contract is in
sql/schema/delegations.sql.

Taking locks the agent's row first: how many tasks it has is counted by a later statement, so that
two that are taken at once do not both pass the limit. The task itself has one winner because its row
is updated only while it is pending.
"""

from __future__ import annotations

from typing import Any

from caliber import (
    acting,
    callers,
    checks,
    delegations_look,
    delegations_record,
    delegations_settings,
    delegations_tell,
    errors,
    messages_settings,
)
from caliber import delegations_rules as rules
from caliber.delegations_tree import Tree
from caliber.plans import Statement, plan


def _agent(fence: str) -> Statement:
    return plan(
        f"""
        select
            a.agent_id, a.team_id, a.agent_type, a.name, a.status, a.capabilities,
            a.max_concurrent_tasks, b.incarnation,
            pg_catalog.current_setting('transaction_isolation') = 'read committed' as sees_new
        from @extschema@.caliber_agent as a
        inner join @extschema@.caliber_agent_beat as b on a.agent_id = b.agent_id
        where a.agent_id = $1
            and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
        for no key update of a {fence}
        """,
        "uuid",
    )


_LOCK = _agent("")
# With an incarnation, no other process becomes this agent before the transaction ends.
_HOLD = _agent("for share of b")

# For a transaction that keeps its snapshot: the next one with an older snapshot fails instead of
# counting what it cannot see.
_TOUCH = plan("update @extschema@.caliber_agent as a set status = a.status where a.agent_id = $1", "uuid")

# $1 task, $2 agent, $3 the new trajectory, $4 its scope, $5 type and $6 team of the agent,
# $7 what it can do, $8 how many it may have, $9 the settings this session knows.
_TAKE = plan(
    f"""
    with taken as (
        update @extschema@.caliber_delegation as d
        set
            status = 'accepted',
            delegatee_agent_id = $2,
            child_trajectory_id = $3,
            attempts = d.attempts + 1,
            progress = null,
            accepted_at = pg_catalog.clock_timestamp(),
            started_at = null,
            expires_at = least(
                d.deadline, pg_catalog.clock_timestamp() + d.timeout_seconds * interval '1 s'
            )
        where d.delegation_id = $1
            and d.status = 'pending'
            and (d.expires_at is null or d.expires_at > pg_catalog.clock_timestamp())
            and (
                d.delegatee_agent_id = $2
                or (d.delegatee_agent_id is null and d.delegatee_agent_type = $5 and d.team_id = $6)
            )
            and not $2 = any (d.chain)
            and (d.required_capabilities is null or d.required_capabilities <@ $7)
            and (
                select pg_catalog.count(*)
                from @extschema@.caliber_delegation as o
                where o.delegatee_agent_id = $2
                    and o.ended_at is null
                    and o.status <> 'pending'
                    and o.expires_at > pg_catalog.clock_timestamp()
            ) < $8
            and $9 = {messages_settings.STAMP}
        returning
            d.delegation_id, d.delegator_agent_id, d.parent_trajectory_id, d.title, d.team_id,
            d.shared_artifacts is not null or d.shared_notes is not null as shares
    ),
    started as (
        insert into @extschema@.caliber_trajectory (
            trajectory_id, name, agent_id, team_id, parent_trajectory_id, root_trajectory_id, depth,
            scope_count
        )
        select
            $3, t.title, $2, $6, t.parent_trajectory_id, coalesce(p.root_trajectory_id, $3),
            coalesce(p.depth + 1, 0), 1
        from taken as t
        left join @extschema@.caliber_trajectory as p on t.parent_trajectory_id = p.trajectory_id
    ),
    opened as (
        insert into @extschema@.caliber_scope (scope_id, trajectory_id, scope_no, agent_id, team_id)
        select $4, $3, 1, $2, $6 from taken as t
    ),
    {delegations_record.recorded("taken", "'accepted'", "'task taken: ' || o.title", "$2", "$3")}
    select
        t.delegation_id, t.delegator_agent_id, t.parent_trajectory_id, t.title, t.shares,
        $3 as child_trajectory_id, {delegations_record.COUNT}
    from taken as t
    """,
    "uuid",
    "uuid",
    "uuid",
    "uuid",
    "text",
    "uuid",
    "text[]",
    "int4",
    "int8",
)

_COPY = plan(
    """
    with task as (
        select d.shared_artifacts, d.shared_notes
        from @extschema@.caliber_delegation as d
        where d.delegation_id = $1
    ),
    artifacts as (
        insert into @extschema@.caliber_artifact (
            scope_id, trajectory_id, agent_id, team_id, artifact_type, name, path, content, content_hash,
            token_count, extraction_method, confidence, embedding, embedding_model, metadata
        )
        select
            $4, $3, $2, $5, r.artifact_type, r.name, r.path, r.content, r.content_hash, r.token_count,
            'user_provided', r.confidence, r.embedding, r.embedding_model,
            r.metadata || pg_catalog.jsonb_build_object('copied_from', r.artifact_id)
        from task as t
        inner join @extschema@.caliber_artifact as r on r.artifact_id = any (t.shared_artifacts)
        order by r.artifact_id
    )
    insert into @extschema@.caliber_note (
        agent_id, team_id, trajectory_id, note_type, level, name, content, content_hash, token_count,
        confidence, embedding, embedding_model, tags, metadata
    )
    select
        $2, $5, $3, n.note_type, n.level, n.name, n.content, n.content_hash, n.token_count, n.confidence,
        n.embedding, n.embedding_model, n.tags,
        n.metadata || pg_catalog.jsonb_build_object('copied_from', n.note_id)
    from task as t
    inner join @extschema@.caliber_note as n on n.note_id = any (t.shared_notes)
    order by n.note_id
    """,
    "uuid",
    "uuid",
    "uuid",
    "uuid",
    "uuid",
)

_TASKS = plan(
    """
    select pg_catalog.count(*) as tasks
    from @extschema@.caliber_delegation as o
    where o.delegatee_agent_id = $1
        and o.ended_at is null
        and o.status <> 'pending'
        and o.expires_at > pg_catalog.clock_timestamp()
    """,
    "uuid",
)

_TYPE = plan("select a.agent_type from @extschema@.caliber_agent as a where a.agent_id = $1", "uuid")

# A task for a type stays for the others of it, as long as there is one that may still take it.
_REJECT = plan(
    """
    with turned_down as (
        update @extschema@.caliber_delegation as d
        set
            error = $3,
            rejected_by = case
                when d.delegatee_agent_id is null then pg_catalog.array_append(d.rejected_by, $2)
            end,
            status = case when rest.somebody then d.status else 'rejected' end,
            ended_at = case when not rest.somebody then pg_catalog.clock_timestamp() end
        from (
            select exists (
                select
                from @extschema@.caliber_delegation as o
                inner join @extschema@.caliber_agent as a
                    on o.delegatee_agent_type = a.agent_type and o.team_id = a.team_id
                where o.delegation_id = $1
                    and o.delegatee_agent_id is null
                    and a.terminated_at is null
                    and a.status not in ('completed', 'failed')
                    and a.agent_id <> $2
                    and (o.required_capabilities is null or a.capabilities @> o.required_capabilities)
                    and not a.agent_id = any (o.chain || coalesce(o.rejected_by, '{}'))
            ) as somebody
        ) as rest
        where d.delegation_id = $1
            and d.status = 'pending'
            and (d.expires_at is null or d.expires_at > pg_catalog.clock_timestamp())
            and not coalesce($2 = any (d.rejected_by), false)
        returning d.*
    )
    select
        t.delegation_id, t.delegator_agent_id, t.delegatee_agent_id, t.delegatee_agent_type,
        t.parent_trajectory_id, t.child_trajectory_id, t.title, t.priority, t.deadline, t.attempts,
        t.status,
        @extschema@._caliber_log(
            'delegation_rejected', 'coordination', 'info', 'task turned down: ' || t.title, $2, t.team_id,
            t.parent_trajectory_id, 'delegation', $1::text,
            pg_catalog.jsonb_build_object('reason', $3)
        )
    from turned_down as t
    """,
    "uuid",
    "uuid",
    "text",
)

_START = plan(
    """
    update @extschema@.caliber_delegation as d
    set status = 'in_progress', started_at = pg_catalog.clock_timestamp()
    from @extschema@.caliber_agent as a
    where d.delegation_id = $1
        and d.status = 'accepted'
        and d.expires_at > pg_catalog.clock_timestamp()
        and a.agent_id = d.delegatee_agent_id
        and a.terminated_at is null
        and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
        and ($2 is null or a.agent_id = $2)
    returning
        d.delegation_id, d.delegator_agent_id, d.delegatee_agent_id, d.parent_trajectory_id,
        d.child_trajectory_id, d.title
    """,
    "uuid",
    "uuid",
)


def accept(delegation_id: str | None, delegatee_agent_id: str | None, incarnation: int | None) -> str | None:
    checks.required("delegation_id", delegation_id)
    checks.required("delegatee_agent_id", delegatee_agent_id)
    agent = (_LOCK if incarnation is None else _HOLD).one(delegatee_agent_id)
    if agent is None:
        callers.refuse_agent(str(delegatee_agent_id))
    if agent["status"] in rules.AWAY or incarnation is not None:
        callers.refuse_ended(agent, incarnation)
        if agent["status"] in rules.AWAY:
            rules.unavailable("the agent is unavailable", f"{agent['name']} is {agent['status']}.")
    if not agent["sees_new"]:
        _TOUCH.rows(delegatee_agent_id)
    row = _take(str(delegation_id), agent)
    if row is None:
        task = delegations_look.offered(str(delegation_id), agent)
        if _has(agent, task):
            # It asks again, because the first answer did not reach it.
            trajectory: str = task["child_trajectory_id"]
            return trajectory
        if _try_again(str(delegation_id), agent, task):
            row = _take(str(delegation_id), agent)
    if row is None:
        return None
    delegations_tell.signalled(row, agent["agent_id"], row["delegator_agent_id"], "accepted", "normal")
    trajectory_id: str = row["child_trajectory_id"]
    return trajectory_id


def _limit(agent: dict[str, Any]) -> int:
    own: int | None = agent["max_concurrent_tasks"]
    return delegations_settings.known().concurrent if own is None else own


def _take(delegation_id: str, agent: dict[str, Any]) -> dict[str, Any] | None:
    settings = messages_settings.known()
    trajectory_id, scope_id = messages_settings.new_id(settings), messages_settings.new_id(settings)
    row = _TAKE.one(
        delegation_id, agent["agent_id"], trajectory_id, scope_id, agent["agent_type"], agent["team_id"],
        agent["capabilities"], _limit(agent), delegations_settings.known().stamp,
    )  # fmt: skip
    if row is not None and row["shares"]:
        _COPY.rows(delegation_id, agent["agent_id"], trajectory_id, scope_id, agent["team_id"])
    return row


def _has(agent: dict[str, Any], task: dict[str, Any]) -> bool:
    working = task["status"] in ("accepted", "in_progress") and not task["lapsed"]
    return working and bool(task["delegatee_agent_id"] == agent["agent_id"])


def _try_again(delegation_id: str, agent: dict[str, Any], task: dict[str, Any]) -> bool:
    """Raises when the agent may not take the task; else whether it may be pending now."""
    if agent["agent_id"] in task["chain"]:
        rules.cycle(agent["agent_id"], "the agent is already in this chain of delegations")
    lacking = set(task["required_capabilities"] or ()) - set(agent["capabilities"])
    if lacking:
        rules.lacks(agent["name"], lacking)
    if task["ended_at"] is not None or (task["status"] != "pending" and not task["lapsed"]):
        return False
    if task["lapsed"]:
        from caliber import delegations_lapse

        if delegations_lapse.judged(delegation_id, agent["agent_id"], announce=False) != "pending":
            return False
    delegations_settings.fresh()
    tasks, limit = int((_TASKS.one(agent["agent_id"]) or {})["tasks"]), _limit(agent)
    if tasks >= limit:
        errors.fail(
            errors.AT_CAPACITY,
            "the agent has as many tasks as it may have",
            detail=f"{agent['name']} has {tasks} of {limit}.",
            hint="End one first; max_concurrent_tasks of the agent, or the setting "
            "agent_max_concurrent_tasks, says how many.",
        )
    return True


def reject(
    delegation_id: str | None, delegatee_agent_id: str | None, reason: str | None, incarnation: int | None
) -> str | None:
    checks.required("delegation_id", delegation_id)
    reason = checks.label("reason", reason, rules.MAX_ERROR)
    agent = dict(acting.agent(delegatee_agent_id, incarnation))
    agent.update(_TYPE.one(delegatee_agent_id) or {})
    delegations_look.offered(str(delegation_id), agent)
    # Under the lock: two that turn it down at once each know of the other, and a sub-task that ends
    # gives back what it has reserved.
    tree = Tree(str(delegation_id))
    row = _REJECT.one(delegation_id, delegatee_agent_id, reason)
    if row is None:
        # Said twice is said once: nobody is told again.
        task = tree.task(str(delegation_id))
        again = task["status"] == "pending" and delegatee_agent_id in (task["rejected_by"] or ())
        return "pending" if again and not task["lapsed"] else None
    if row["status"] == "rejected":
        tree.leave(tree.task(str(delegation_id)))
        tree.write()
    return _rejected(row, agent)


def _rejected(row: dict[str, Any], agent: dict[str, Any]) -> str:
    if row["status"] == "pending":
        delegations_tell.announced(row)
    delegations_tell.signalled(row, agent["agent_id"], row["delegator_agent_id"], "rejected", "high")
    status: str = row["status"]
    return status


def start(delegation_id: str | None, agent_id: str | None, incarnation: int | None) -> bool:
    checks.required("delegation_id", delegation_id)
    if agent_id is not None or incarnation is not None:
        delegations_look.acts(agent_id, incarnation)
    row = _START.one(delegation_id, agent_id)
    if row is None:
        task = delegations_look.worked_on(str(delegation_id), agent_id)
        if task["status"] == "in_progress" and not task["lapsed"]:
            return False
        rules.wrong_state(task, "begun")
    delegations_tell.signalled(row, row["delegatee_agent_id"], row["delegator_agent_id"], "started", "low")
    return True
