-- Context variables: writing and reading. The contract is in schema/variables.sql.

create function @extschema@.caliber_variable_set(
    trajectory_id uuid,
    name text,
    value jsonb,
    expected_version bigint default null,
    agent_id uuid default null,
    incarnation bigint default null
)
returns bigint
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @variables.set_variable@ $python$;

comment on function @extschema@.caliber_variable_set(uuid, text, jsonb, bigint, uuid, bigint) is
'Writes a context variable of a trajectory that the agent has, and returns its version. With expected_version (0 for none yet) null when somebody else wrote first.';

create function @extschema@.caliber_context_variables(trajectory_id uuid)
returns table (
    name text,
    value jsonb,
    version bigint,
    agent_id uuid,
    written_at timestamptz,
    trajectory_id_of_variable uuid
)
language sql
stable
begin atomic
    with recursive above as (
        select
            t.trajectory_id,
            t.parent_trajectory_id,
            t.root_trajectory_id,
            0 as distance
        from @extschema@.caliber_trajectory as t
        where t.trajectory_id = $1
        union all
        select
            t.trajectory_id,
            t.parent_trajectory_id,
            t.root_trajectory_id,
            a.distance + 1
        from @extschema@.caliber_trajectory as t
        inner join above as a on t.trajectory_id = a.parent_trajectory_id
    ),

    flow as (
        select
            t.trajectory_id,
            t.agent_id
        from @extschema@.caliber_trajectory as t
        where t.root_trajectory_id = (select a.root_trajectory_id from above as a where a.distance = 0)
    ),

    -- The nearest trajectory above counts; what only others below have is shown too.
    written as (
        select distinct on (v.name)
            v.name,
            v.value,
            v.version,
            v.agent_id,
            v.written_at,
            v.trajectory_id
        from @extschema@.caliber_variable as v
        left join above as a on v.trajectory_id = a.trajectory_id
        where v.root_trajectory_id = (select x.root_trajectory_id from above as x where x.distance = 0)
        order by v.name asc, a.distance asc, v.written_at desc
    )

    select
        w.name,
        w.value,
        w.version,
        w.agent_id,
        w.written_at,
        w.trajectory_id
    from written as w
    union all
    select
        'task_status',
        pg_catalog.to_jsonb(case t.status
            when 'active' then 'in_progress'
            when 'suspended' then 'blocked'
            when 'completed' then 'complete'
            else 'failed'
        end),
        null,
        t.agent_id,
        t.status_changed_at,
        t.trajectory_id
    from @extschema@.caliber_trajectory as t
    where t.trajectory_id = $1
    union all
    select
        'decisions_made',
        pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
            'decision_id', r.artifact_id,
            'description', r.content,
            'made_by', r.agent_id,
            'timestamp', r.created_at
        ) order by r.artifact_id),
        null,
        null,
        pg_catalog.max(r.created_at),
        $1
    from @extschema@.caliber_artifact as r
    inner join flow as f on r.trajectory_id = f.trajectory_id
    where r.artifact_type = 'design_decision'
        and r.status <> 'superseded'
        -- What a handoff leaves in the receiver's scope is no decision of the workflow.
        and not (r.name = 'handoff' and r.content like 'HANDOFF RECEIVED%')
    having pg_catalog.count(*) > 0
    union all
    select
        'files_in_progress',
        pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
            'path', l.resource_id,
            'owner', l.holder_agent_id,
            'lock_type', l.mode
        ) order by l.resource_id),
        null,
        null,
        pg_catalog.max(l.acquired_at),
        $1
    from @extschema@.caliber_lock as l
    where l.resource_type = 'file'
        and l.holder_agent_id in (select f.agent_id from flow as f)
    having pg_catalog.count(*) > 0
    order by name;
end;

comment on function @extschema@.caliber_context_variables(uuid) is
'The context variables that count for a trajectory: its own, else the nearest above it; with task_status, decisions_made and files_in_progress as they are right now.';

grant select on @extschema@.caliber_variable to caliber_admin, caliber_agent, caliber_observer;
grant execute on function @extschema@.caliber_context_variables(uuid)
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function @extschema@.caliber_variable_set(uuid, text, jsonb, bigint, uuid, bigint)
to caliber_admin, caliber_agent;
