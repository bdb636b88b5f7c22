"""Delegations: giving a task. The contract is in sql/schema/delegations.sql.

One statement checks the delegator, the delegatee and the trajectory and writes the task; the message
follows. A sub-task takes the lock of its tree before that, and with it what its parent allows.
"""

from __future__ import annotations

from typing import Any

import plpy

from caliber import (
    acting,
    callers,
    checks,
    delegations_record,
    delegations_settings,
    delegations_tell,
    errors,
    memory_rules,
    messages_limits,
    messages_rules,
    messages_settings,
)
from caliber import delegations_rules as rules
from caliber.plans import Statement, plan

_TYPES = (
    "uuid", "uuid", "uuid", "text", "text", "uuid", "uuid[]", "timestamptz",
    "@extschema@.caliber_task_type", "text", "text", "text", "text[]", "uuid[]", "jsonb",
    "@extschema@.caliber_message_priority", "text[]", "text[]", "int4", "int4", "int4", "int4", "int8",
    "numeric", "text", "uuid", "uuid", "int4", "uuid[]", "text[]", "bool", "int8", "int8", "int8",
    "int8", "bool", "text",
)  # fmt: skip

# $1 the new id, $26 parent, $27 root, $28 depth, $29 the chain above the delegator, $30 the types the
# parent lets it pass on to, $31 whether the trajectory is known to be no other task's, $32 the
# settings this session knows, $33 to $36 those about silence, $37 the idempotency key.
_TRAJECTORY_SEEN = """(
                t.team_id = s.team_id
                or t.agent_id = s.agent_id
                or @extschema@._caliber_is_admin()
                or @extschema@._caliber_reach(s.memory_access, 'read', 'trajectory') = 'global'
            )"""

_WORKS = "({agent}.terminated_at is null and {agent}.status not in ('completed', 'failed'))"

_BEATS = """(
                $36 or b.beat_at > pg_catalog.clock_timestamp() - interval '1 ms' * greatest(
                    $33, coalesce({agent}.heartbeat_interval_ms, $34) * $35 * 2
                )
            )"""

_DELEGATE = """
    with made as (
        insert into @extschema@.caliber_delegation as d (
            delegation_id, root_delegation_id, parent_delegation_id, team_id, delegator_agent_id,
            delegatee_agent_id, delegatee_agent_type, chain, depth, task_type, priority, title,
            instructions, context, expected_output, input_artifacts, shared_artifacts, shared_notes,
            constraints, required_capabilities, delegates, model_tier, parent_trajectory_id, deadline,
            expires_at, timeout_seconds, max_tokens, max_tool_calls, max_retries, budget_tokens,
            budget_cost, idempotency_key
        )
        select
            $1, coalesce($27, $1), $26, s.team_id, $2, $3, case when $3 is null then $4 end,
            coalesce($29, '{{}}') || $2, $28, $9, $16, $10, $5, $11, $12, $13, $7, $14, $15, $17, $18, $25,
            $6, $8, $8, $21, $19, $20, $22, $23, $24, $37
        from @extschema@.caliber_agent as s
        {named}
        where s.agent_id = $2
            and s.terminated_at is null
            and (s.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
            and $32 = {stamp}
            and s.can_delegate_to && array[{type}, '*']
            and ($30 is null or $30 && array[{type}, '*'])
            and ($8 is null or $8 > pg_catalog.clock_timestamp())
            {anybody}
            {trajectory}
        {conflict}
        returning d.delegation_id, d.team_id, d.delegator_agent_id
    ),
    {recorded}
    select m.delegation_id, {count} from made as m
"""

_NAMED = f"""
        inner join @extschema@.caliber_agent as r
            on r.agent_id = $3
            and {_WORKS.format(agent="r")}
            and r.agent_id <> s.agent_id
            and (r.team_id = s.team_id or @extschema@._caliber_is_admin())
            and ($4 is null or r.agent_type = $4)
            and ($17 is null or r.capabilities @> $17)
            and ($29 is null or not r.agent_id = any ($29))
        inner join @extschema@.caliber_agent_beat as b
            on r.agent_id = b.agent_id
            and {_BEATS.format(agent="r")}
"""

_ANYBODY = f"""
            and exists (
                select
                from @extschema@.caliber_agent as r
                inner join @extschema@.caliber_agent_beat as b on r.agent_id = b.agent_id
                where r.agent_type = $4
                    and r.team_id = s.team_id
                    and {_WORKS.format(agent="r")}
                    and r.agent_id <> s.agent_id
                    and ($17 is null or r.capabilities @> $17)
                    and ($29 is null or not r.agent_id = any ($29))
                    and {_BEATS.format(agent="r")}
            )
"""

_TRAJECTORY = f"""
            and exists (
                select
                from @extschema@.caliber_trajectory as t
                where t.trajectory_id = $6
                    and t.finished_at is null
                    and {_TRAJECTORY_SEEN}
                    and ($31 or (t.parent_trajectory_id is null and not exists (
                        select from @extschema@.caliber_delegation as o
                        where o.child_trajectory_id = $6
                    )))
            )
"""

# Whoever gave it under the same key first wins, also when both do it at once.
_CONFLICT = """
        on conflict (delegator_agent_id, idempotency_key) where idempotency_key is not null do nothing
"""

_GIVEN_BEFORE = plan(
    """
    select
        d.delegation_id,
        d.instructions = $3
        and d.title = $4
        and d.task_type = $5
        and d.delegatee_agent_type is not distinct from (case when $6 is null then $7 end)
        and (
            d.delegatee_agent_type is not null
            or d.attempts > 0
            or d.delegatee_agent_id is not distinct from $6
        )
        and ($8 is null or d.parent_delegation_id is not distinct from $8) as is_same
    from @extschema@.caliber_delegation as d
    where d.delegator_agent_id = $1 and d.idempotency_key = $2
    """,
    "uuid",
    "text",
    "text",
    "text",
    "@extschema@.caliber_task_type",
    "uuid",
    "text",
    "uuid",
)

_plans: dict[tuple[bool, bool, bool], Statement] = {}

_ROOT_PLACE: dict[str, Any] = {"parent": None, "root": None, "depth": 1, "chain": None, "delegates": None}

# The task that an agent works on when it works on this trajectory or one below it.
_PARENT = plan(
    """
    with recursive above as (
        select t.trajectory_id, t.parent_trajectory_id, 0 as step
        from @extschema@.caliber_trajectory as t
        where t.trajectory_id = $1
        union all
        select o.trajectory_id, o.parent_trajectory_id, a.step + 1
        from above as a
        cross join lateral (
            select t.trajectory_id, t.parent_trajectory_id
            from @extschema@.caliber_trajectory as t
            where t.trajectory_id = a.parent_trajectory_id
            offset 0
        ) as o
    )
    select o.delegation_id
    from above as a
    cross join lateral (
        select d.delegation_id
        from @extschema@.caliber_delegation as d
        where d.child_trajectory_id = a.trajectory_id and d.delegatee_agent_id = $2 and d.ended_at is null
        offset 0
    ) as o
    order by a.step
    limit 1
    """,
    "uuid",
    "uuid",
)

# Why nothing was written. $1 delegator, $2 delegatee, $3 trajectory.
_WHY = plan(
    f"""
    select
        s.team_id, s.name, s.can_delegate_to,
        @extschema@._caliber_is_admin() as is_admin,
        @extschema@._caliber_actor() as actor,
        pg_catalog.clock_timestamp() as now,
        t.trajectory_id, t.name as trajectory_name, t.status as trajectory_status,
        coalesce({_TRAJECTORY_SEEN}, false) as trajectory_seen,
        r.agent_id, r.team_id as r_team_id, r.agent_type, r.name as r_name, r.status, r.capabilities,
        b.beat_at
    from @extschema@.caliber_agent as s
    left join @extschema@.caliber_agent as r on r.agent_id = $2
    left join @extschema@.caliber_agent_beat as b on r.agent_id = b.agent_id
    left join @extschema@.caliber_trajectory as t on t.trajectory_id = $3
    where s.agent_id = $1
    """,
    "uuid",
    "uuid",
    "uuid",
)

_OF_TYPE = plan(
    """
    select
        pg_catalog.count(*) as agents,
        pg_catalog.count(*) filter (where a.agent_id = $1 or a.agent_id = any ($4)) as above
    from @extschema@.caliber_agent as a
    where a.team_id = $2 and a.agent_type = $3 and a.terminated_at is null
    """,
    "uuid",
    "uuid",
    "text",
    "uuid[]",
)

_PAST = plan("select $1 <= pg_catalog.clock_timestamp() as past", "timestamptz")

# What the delegator can read it can share.
_UNSHARED = plan(
    """
    select 'artifact' as kind, w.id
    from pg_catalog.unnest($2) as w (id)
    cross join @extschema@.caliber_agent as s
    left join @extschema@.caliber_artifact as r on w.id = r.artifact_id
    left join @extschema@.caliber_trajectory as t on r.trajectory_id = t.trajectory_id
    where s.agent_id = $1
        and (
            r.artifact_id is null
            or not (
                @extschema@._caliber_is_admin()
                or s.agent_id in (r.agent_id, t.agent_id)
                or @extschema@._caliber_reach(s.memory_access, 'read', 'artifact') = 'global'
                or (
                    r.team_id = s.team_id
                    and coalesce(
                        @extschema@._caliber_reach(s.memory_access, 'read', 'artifact') = 'team', false
                    )
                )
            )
        )
    union all
    select 'note', w.id
    from pg_catalog.unnest($3) as w (id)
    cross join @extschema@.caliber_agent as s
    left join @extschema@.caliber_note as n on w.id = n.note_id
    left join @extschema@.caliber_trajectory as t on n.trajectory_id = t.trajectory_id
    where s.agent_id = $1
        and (
            n.note_id is null
            or not (
                @extschema@._caliber_is_admin()
                or n.agent_id = s.agent_id
                or coalesce(t.agent_id = s.agent_id, false)
                or @extschema@._caliber_reach(s.memory_access, 'read', 'note') = 'global'
                or (
                    n.team_id = s.team_id
                    and coalesce(@extschema@._caliber_reach(s.memory_access, 'read', 'note') = 'team', false)
                )
            )
        )
    """,
    "uuid",
    "uuid[]",
    "uuid[]",
)


def delegate(
    delegator_agent_id: str | None,
    delegatee_agent_type: str | None,
    task_description: str | None,
    parent_trajectory_id: str | None,
    shared_artifacts: list[str | None] | None,
    deadline: str | None,
    delegatee_agent_id: str | None,
    parent_delegation_id: str | None,
    task_type: str | None,
    title: str | None,
    context: str | None,
    expected_output: str | None,
    input_artifacts: list[str | None] | None,
    shared_notes: list[str | None] | None,
    constraints: str | None,
    priority: str | None,
    required_capabilities: list[str | None] | None,
    delegates: list[str | None] | None,
    max_tokens: int | None,
    max_tool_calls: int | None,
    timeout_seconds: int | None,
    max_retries: int | None,
    budget_tokens: int | None,
    budget_cost: Any,
    model_tier: str | None,
    incarnation: int | None,
    idempotency_key: str | None,
) -> str:
    checks.required("delegator_agent_id", delegator_agent_id)
    checks.required("task_type", task_type)
    checks.required("priority", priority)
    if delegatee_agent_type is not None:
        checks.slug("delegatee_agent_type", delegatee_agent_type)
    elif delegatee_agent_id is None:
        errors.fail(
            errors.INVALID,
            "a task is for an agent or for a type of agent",
            detail="Neither is given.",
            hint="Give delegatee_agent_type, or delegatee_agent_id for a certain agent.",
        )
    text = rules.description(task_description)
    task: dict[str, Any] = {
        "delegator_agent_id": delegator_agent_id,
        "delegatee_agent_id": delegatee_agent_id,
        "delegatee_agent_type": delegatee_agent_type,
        "instructions": text,
        "parent_trajectory_id": parent_trajectory_id,
        "shared_artifacts": rules.ids("shared_artifacts", shared_artifacts),
        "deadline": deadline,
        "task_type": task_type,
        "title": rules.title(title, text),
        "context": None if context is None else rules.bounded("context", context),
        "expected_output": checks.label("expected_output", expected_output, rules.MAX_TEXT),
        "input_artifacts": rules.words("input_artifacts", input_artifacts),
        "shared_notes": rules.ids("shared_notes", shared_notes),
        "constraints": None if constraints is None else checks.json_text("constraints", constraints),
        "priority": priority,
        "required_capabilities": checks.slugs("required_capabilities", required_capabilities) or None,
        "delegates": None if delegates is None else checks.slugs("delegates", delegates, "*"),
        "model_tier": checks.label("model_tier", model_tier, checks.MAX_NAME),
        "idempotency_key": idempotency_key,
    }
    checks.between("max_tokens", max_tokens, 1, rules.MAX_TOKENS)
    checks.between("max_tool_calls", max_tool_calls, 0, rules.MAX_TOOL_CALLS)
    checks.between("timeout_seconds", timeout_seconds, 1, rules.MAX_SECONDS)
    checks.between("max_retries", max_retries, 0, rules.MAX_RETRIES)
    checks.between("budget_tokens", budget_tokens, 1, rules.MAX_TOKENS)
    checks.between("budget_cost", budget_cost, 0, rules.MAX_COST)
    # Only what costs nothing comes before this; with an incarnation no other process takes over.
    if incarnation is not None or parent_delegation_id is not None or idempotency_key is not None:
        acting.agent(delegator_agent_id, incarnation)
    if idempotency_key is not None:
        messages_rules.key(idempotency_key)
        # Before anything else is judged: since it was given, agents and budgets may have gone.
        known = _given_before(task, parent_delegation_id)
        if known is not None:
            return known
    if task["shared_artifacts"] or task["shared_notes"]:
        _refuse_unshared(task)
    limits = {
        "max_tokens": max_tokens,
        "max_tool_calls": max_tool_calls,
        "timeout_seconds": timeout_seconds,
        "max_retries": max_retries,
        "budget_tokens": budget_tokens,
        "budget_cost": budget_cost,
    }
    return _delegate(task, limits, parent_delegation_id)


def _delegate(task: dict[str, Any], limits: dict[str, Any], parent_id: str | None) -> str:
    """Once more when the settings were stale, or when the trajectory turns out to be a task's."""
    delegator = task["delegator_agent_id"]
    checked, keyed = parent_id is not None, task["idempotency_key"] is not None
    tries = 0
    while True:
        settings = delegations_settings.known()
        post = messages_settings.known()
        place, tree = _ROOT_PLACE, None
        if parent_id is not None:
            from caliber import delegations_parent

            settings = delegations_settings.fresh()
            place, tree = delegations_parent.opened(task, limits, parent_id, settings)
        delegation_id = _new_id(post)
        if _statement(task).rows(
            delegation_id, *_values(task, limits, settings), *place.values(), checked,
            settings.stamp, settings.unavailable_ms, settings.beat_ms, settings.missed, settings.silent,
            task["idempotency_key"],
        ):  # fmt: skip
            if tree is not None:
                tree.write()
            _announce(task, delegation_id, post.queue_limit)
            return delegation_id
        known = _given_before(task, parent_id) if keyed else None
        if known is not None:
            return known
        if not checked:
            checked = True
            acting.agent(delegator, None)
            parent_id = _parent(task)
            if parent_id is not None:
                continue
        _refuse(task, place, settings)
        tries += 1
        if tries == 3:
            rules.changed()
        # Nothing speaks against it, so what this session knew is stale, or it has now looked at
        # the trajectory.
        delegations_settings.forget()
        messages_settings.forget()


def _given_before(task: dict[str, Any], parent_id: str | None) -> str | None:
    """The task this delegator gave under the same key, if it is the same task."""
    found = _GIVEN_BEFORE.one(
        task["delegator_agent_id"], task["idempotency_key"], task["instructions"], task["title"],
        task["task_type"], task["delegatee_agent_id"], task["delegatee_agent_type"], parent_id,
    )  # fmt: skip
    if found is None:
        return None
    if not found["is_same"]:
        rules.other_task(task["idempotency_key"], found["delegation_id"])
    delegation_id: str = found["delegation_id"]
    return delegation_id


def _new_id(settings: messages_settings.Settings) -> str:
    """As Postgres writes it: it is also part of texts."""
    h = messages_settings.new_id(settings)
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def _announce(task: dict[str, Any], delegation_id: str, queue_limit: int) -> None:
    kind = task["delegatee_agent_type"] if task["delegatee_agent_id"] is None else None
    messages_limits.take(queue_limit, task["delegator_agent_id"], task["delegatee_agent_id"], kind)
    delegations_tell.announced(
        {**task, "delegation_id": delegation_id, "attempts": 0, "delegatee_agent_type": kind}
    )


def _parent(task: dict[str, Any]) -> str | None:
    """The task that the delegator works on when it works on this trajectory."""
    if task["parent_trajectory_id"] is None:
        return None
    found = _PARENT.one(task["parent_trajectory_id"], task["delegator_agent_id"])
    return found["delegation_id"] if found else None


def _statement(task: dict[str, Any]) -> Statement:
    named = task["delegatee_agent_id"] is not None
    located = task["parent_trajectory_id"] is not None
    keyed = task["idempotency_key"] is not None
    found = _plans.get((named, located, keyed))
    if found is None:
        text = _DELEGATE.format(
            named=_NAMED if named else "",
            anybody="" if named else _ANYBODY,
            trajectory=_TRAJECTORY if located else "",
            conflict=_CONFLICT if keyed else "",
            type="r.agent_type" if named else "$4",
            stamp=messages_settings.STAMP,
            recorded=delegations_record.recorded(
                "made", "'created'", "'task: ' || $10", "o.delegator_agent_id", "$6"
            ),
            count=delegations_record.COUNT,
        )
        found = _plans[named, located, keyed] = plan(text, *_TYPES)
    return found


def _values(
    task: dict[str, Any], limits: dict[str, Any], settings: delegations_settings.Settings
) -> tuple[Any, ...]:
    """$2 to $25, defaults filled in."""
    tokens, calls = limits["max_tokens"], limits["max_tool_calls"]
    seconds, retries = limits["timeout_seconds"], limits["max_retries"]
    return (
        task["delegator_agent_id"], task["delegatee_agent_id"], task["delegatee_agent_type"],
        task["instructions"], task["parent_trajectory_id"], task["shared_artifacts"], task["deadline"],
        task["task_type"], task["title"], task["context"], task["expected_output"],
        task["input_artifacts"], task["shared_notes"], task["constraints"], task["priority"],
        task["required_capabilities"], task["delegates"],
        settings.max_tokens if tokens is None else tokens,
        settings.max_tool_calls if calls is None else calls,
        settings.timeout_seconds if seconds is None else seconds,
        settings.max_retries if retries is None else retries,
        limits["budget_tokens"], limits["budget_cost"], task["model_tier"],
    )  # fmt: skip


def _refuse_unshared(task: dict[str, Any]) -> None:
    acting.agent(task["delegator_agent_id"], None)
    arrays = task["shared_artifacts"] or [], task["shared_notes"] or []
    row = _UNSHARED.one(task["delegator_agent_id"], *arrays)
    if row is not None:
        memory_rules.missing(row["kind"], row["id"])


def _refuse(task: dict[str, Any], place: dict[str, Any], settings: delegations_settings.Settings) -> None:
    """Raises for what a task was not written; returns when nothing speaks against it."""
    row = _WHY.one(task["delegator_agent_id"], task["delegatee_agent_id"], task["parent_trajectory_id"]) or {}
    named = task["delegatee_agent_id"] is not None
    if named:
        _refuse_agent(task, place, row)
    kind = row["agent_type"] if named else task["delegatee_agent_type"]
    for allowed, whose in ((row["can_delegate_to"], "agent"), (place["delegates"], "task")):
        if allowed is not None and kind not in allowed and "*" not in allowed:
            errors.fail(
                errors.NOT_PERMITTED,
                f"the {whose} may not delegate to this type of agent",
                detail=f"The type is {errors.shown(kind)}; allowed is {', '.join(allowed) or 'none'}.",
                hint="can_delegate_to of the agent, and delegates of the task above, say to which.",
            )
    if task["deadline"] is not None and (_PAST.one(task["deadline"]) or {})["past"]:
        errors.invalid("deadline", task["deadline"], "must be in the future")
    if task["parent_trajectory_id"] is not None:
        if row["trajectory_id"] is None or not row["trajectory_seen"]:
            memory_rules.missing("trajectory", task["parent_trajectory_id"])
        if row["trajectory_status"] in ("completed", "failed"):
            memory_rules.not_active(
                {
                    "status": row["trajectory_status"],
                    "name": row["trajectory_name"],
                    "trajectory_id": row["trajectory_id"],
                },
                "cannot get a child",
            )
    if not named:
        of_type = _OF_TYPE.one(task["delegator_agent_id"], row["team_id"], kind, place["chain"] or []) or {}
        if of_type["agents"] == of_type["above"] > 0:
            rules.cycle(task["delegator_agent_id"], "every agent of this type is already in the chain")
    # The settings may be what was stale; only with those of now is it the agents' silence.
    if settings.stamp == delegations_settings.fresh().stamp:
        what = f"agent {row['r_name']}" if named else f"any agent of type {kind} in the team"
        rules.unavailable(
            f"the {'agent' if named else 'type of agent'} is unavailable",
            f"No beat of {what} is recent enough, or none can take this task.",
        )


def _refuse_agent(task: dict[str, Any], place: dict[str, Any], row: dict[str, Any]) -> None:
    agent_id = task["delegatee_agent_id"]
    if not row["is_admin"] and (row["agent_id"] is None or row["r_team_id"] != row["team_id"]):
        plpy.log(f"caliber: role {row['actor']} was refused to delegate to agent {agent_id}")
        errors.fail(
            errors.NOT_PERMITTED,
            "you may not delegate to this agent",
            detail=f"Agent {agent_id} is not in your team.",
            hint="An agent delegates within its team; a member of caliber_admin to any agent.",
        )
    if row["agent_id"] is None:
        callers.refuse_agent(agent_id)
    if agent_id == task["delegator_agent_id"]:
        rules.cycle(agent_id, "an agent may not delegate to itself")
    if agent_id in (place["chain"] or ()):
        rules.cycle(agent_id, "the agent is already in this chain of delegations")
    if row["status"] in rules.AWAY:
        rules.unavailable("the agent is unavailable", f"{row['r_name']}, {agent_id}, is {row['status']}.")
    if task["delegatee_agent_type"] not in (None, row["agent_type"]):
        errors.invalid(
            "delegatee_agent_type", task["delegatee_agent_type"], f"must be the agent's, {row['agent_type']}"
        )
    lacking = set(task["required_capabilities"] or ()) - set(row["capabilities"])
    if lacking:
        rules.unavailable(
            "the agent lacks a capability",
            f"{row['r_name']}, {agent_id}, lacks {', '.join(sorted(lacking))}.",
        )
