-- Delegations: reading them. Everything here shows what the caller may see, as of now.

create view @extschema@.caliber_delegations with (security_invoker = true) as
select
    d.title,
    d.task_type,
    case
        when d.ended_at is null and d.expires_at <= pg_catalog.clock_timestamp() then 'timed_out'
        else d.status
    end as status,
    g.name as delegator,
    t.name as delegatee,
    d.delegatee_agent_type,
    d.depth,
    d.priority,
    d.attempts,
    d.max_retries,
    d.progress,
    d.tokens_used,
    d.max_tokens,
    d.tool_calls_used,
    d.max_tool_calls,
    d.cost_used,
    d.budget_tokens,
    d.budget_tokens - d.tokens_used - d.tokens_below - d.tokens_reserved as budget_tokens_left,
    d.budget_cost,
    d.budget_cost - d.cost_used - d.cost_below - d.cost_reserved as budget_cost_left,
    d.result_status,
    d.summary,
    d.error,
    d.deadline,
    d.expires_at,
    d.created_at,
    d.accepted_at,
    d.started_at,
    d.ended_at,
    d.instructions,
    d.context,
    d.expected_output,
    d.input_artifacts,
    d.shared_artifacts,
    d.shared_notes,
    d.constraints,
    d.required_capabilities,
    d.delegates,
    d.model_tier,
    d.timeout_seconds,
    d.result_artifacts,
    d.produced_artifacts,
    d.produced_notes,
    d.open_children,
    d.rejected_by,
    d.idempotency_key,
    d.parent_trajectory_id,
    d.child_trajectory_id,
    d.delegation_id,
    d.parent_delegation_id,
    d.root_delegation_id,
    d.delegator_agent_id,
    d.delegatee_agent_id,
    d.team_id
from @extschema@.caliber_delegation as d
left join @extschema@.caliber_agent as g on d.delegator_agent_id = g.agent_id
left join @extschema@.caliber_agent as t on d.delegatee_agent_id = t.agent_id;

comment on view @extschema@.caliber_delegations is
'The tasks you can see, one row each: what, who for whom, where it stands now, what it used and what came of it.';

create view @extschema@.caliber_dead_delegation with (security_invoker = true) as
select
    d.ended_at,
    d.title,
    g.name as delegator,
    t.name as delegatee,
    d.delegatee_agent_type,
    d.attempts,
    d.error,
    d.tokens_used,
    d.cost_used,
    d.delegation_id,
    d.delegator_agent_id,
    d.delegatee_agent_id
from @extschema@.caliber_delegation as d
left join @extschema@.caliber_agent as g on d.delegator_agent_id = g.agent_id
left join @extschema@.caliber_agent as t on d.delegatee_agent_id = t.agent_id
where d.status = 'dead';

comment on view @extschema@.caliber_dead_delegation is
'Tasks that were given up after their last retry; caliber_retry_delegation opens one again.';

create function @extschema@.caliber_delegation_get(delegation_id uuid)
returns setof @extschema@.caliber_delegations
language sql
stable
begin atomic
    select v.* from @extschema@.caliber_delegations as v where v.delegation_id = $1;
end;

comment on function @extschema@.caliber_delegation_get(uuid) is
'One task as caliber_delegations shows it; no row when there is none that you can see.';

create function @extschema@.caliber_delegation_list(
    agent_id uuid,
    open_only boolean default true,
    max_tasks integer default 100
)
returns setof @extschema@.caliber_delegations
language sql
stable
begin atomic
    -- Each kind by its own index; what has ended is not even looked for unless it is asked for.
    select v.*
    from (
        select d.*
        from @extschema@.caliber_delegations as d
        where d.delegatee_agent_id = $1 and d.ended_at is null
        union all
        select d.*
        from @extschema@.caliber_delegations as d
        where d.delegator_agent_id = $1 and d.ended_at is null
        union all
        select d.*
        from @extschema@.caliber_delegations as d
        where d.delegatee_agent_id is null
            and d.ended_at is null
            and d.delegator_agent_id <> $1
            and d.team_id = (select a.team_id from @extschema@.caliber_agent as a where a.agent_id = $1)
            and d.delegatee_agent_type = (
                select a.agent_type from @extschema@.caliber_agent as a where a.agent_id = $1
            )
        union all
        select d.*
        from @extschema@.caliber_delegations as d
        where d.delegatee_agent_id = $1 and d.ended_at is not null and not $2
        union all
        select d.*
        from @extschema@.caliber_delegations as d
        where d.delegator_agent_id = $1 and d.ended_at is not null and not $2
    ) as v
    order by v.priority desc, v.delegation_id asc
    limit case
        when $3 between 1 and 1000 then $3
        else @extschema@._caliber_refuse('max_tasks', $3::text, 'must be between 1 and 1000')::integer
    end;
end;

comment on function @extschema@.caliber_delegation_list(uuid, boolean, integer) is
'The tasks an agent gave, has, or could take, the most urgent first: the open ones, or all.';

create function @extschema@.caliber_delegation_tree(delegation_id uuid)
returns table (
    task text,
    status @extschema@.caliber_delegation_status,
    delegatee text,
    depth integer,
    tokens text,
    tool_calls text,
    cost numeric,
    summary text,
    delegation_id uuid
)
language sql
stable
rows 10
begin atomic
    with recursive tree as (
        select
            v.*,
            0 as level,
            array[v.delegation_id] as place
        from @extschema@.caliber_delegations as v
        where v.delegation_id = $1
        union all
        select
            v.*,
            t.level + 1,
            t.place || v.delegation_id
        from tree as t
        -- The offset has the sub-tasks of each looked up by index, and not all tasks joined.
        cross join lateral (
            select o.*
            from @extschema@.caliber_delegations as o
            where o.parent_delegation_id = t.delegation_id
            order by o.delegation_id
            offset 0
        ) as v
    )

    select
        pg_catalog.repeat('   ', t.level) || case when t.level > 0 then '└─ ' else '' end || t.title,
        t.status,
        coalesce(t.delegatee, 'any ' || t.delegatee_agent_type),
        t.depth,
        t.tokens_used || ' of ' || t.max_tokens,
        t.tool_calls_used || ' of ' || t.max_tool_calls,
        t.cost_used,
        coalesce(t.summary, t.error),
        t.delegation_id
    from tree as t
    order by t.place;
end;

comment on function @extschema@.caliber_delegation_tree(uuid) is
'A task and what was passed on of it, as an indented tree: status, who has it, depth, what it used of its limits.';

grant select on @extschema@.caliber_delegations, @extschema@.caliber_dead_delegation
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_delegation_get(uuid),
    @extschema@.caliber_delegation_list(uuid, boolean, integer),
    @extschema@.caliber_delegation_tree(uuid)
to caliber_admin, caliber_agent, caliber_observer;
