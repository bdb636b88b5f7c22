-- Agents: their verbs and views. The contract is in schema/agents.sql.

-- Which agent is calling: definer, because the policies that call it are on this very table.
create function @extschema@._caliber_my_agent()
returns uuid
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select a.agent_id
    from @extschema@.caliber_agent as a
    where a.login_role = @extschema@._caliber_actor() and a.terminated_at is null;
end;

comment on function @extschema@._caliber_my_agent() is
'The agent whose login is calling; null for anybody else, and once the agent is terminated.';

create function @extschema@._caliber_my_team()
returns uuid
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select a.team_id
    from @extschema@.caliber_agent as a
    where a.login_role = @extschema@._caliber_actor() and a.terminated_at is null;
end;

comment on function @extschema@._caliber_my_team() is
'The team of the agent whose login is calling; null for anybody else.';

-- Liveness is derived when read; nothing has to run for it to be right. Each table is read
-- once: for an agent's login every further join would be under row security as well. Settings
-- stand in subselects, which are read once a statement.
create view @extschema@.caliber_agents with (security_invoker = true) as
select
    judged.name,
    judged.agent_type,
    t.name as team,
    judged.status,
    case
        when judged.status in ('completed', 'terminated') then 'ended'
        when judged.silent_for >= judged.unavailable_after then 'unavailable'
        when judged.silent_for >= judged.suspect_after then 'suspect'
        else 'alive'
    end::@extschema@.caliber_liveness as liveness,
    judged.silent_for,
    judged.activity,
    judged.progress,
    judged.turns,
    judged.tokens,
    judged.tool_calls,
    judged.files,
    judged.errors,
    judged.last_tool,
    judged.last_file,
    judged.agent_id,
    judged.incarnation,
    judged.beat_at as last_heartbeat_at,
    pg_catalog.floor(
        pg_catalog.date_part('epoch', judged.silent_for) * 1000 / judged.heartbeat_interval_ms
    )::bigint as missed_heartbeats,
    judged.suspect_after,
    judged.unavailable_after,
    judged.status_reason,
    judged.status_changed_at,
    judged.current_trajectory_id,
    judged.current_scope_id,
    judged.display_name,
    judged.capabilities,
    judged.proficiency,
    judged.memory_access,
    judged.can_delegate_to,
    judged.reports_to,
    judged.parent_id,
    judged.spawn_depth,
    judged.spawned,
    judged.model,
    judged.input_schema,
    judged.output_schema,
    judged.autonomy_budget,
    judged.max_risk,
    judged.max_concurrent_tasks,
    judged.heartbeat_interval_ms,
    judged.login_role,
    judged.team_id,
    judged.created_at,
    judged.terminated_at
from (
    select
        timed.*,
        timed.heartbeat_interval_ms * interval '1 ms' * timed.missed_limit as suspect_after,
        greatest(
            timed.unavailable_at_least,
            timed.heartbeat_interval_ms * interval '2 ms' * timed.missed_limit
        ) as unavailable_after
    from (
        select
            a.agent_id,
            a.team_id,
            a.agent_type,
            a.name,
            a.display_name,
            a.status,
            a.status_reason,
            a.status_changed_at,
            a.current_trajectory_id,
            a.current_scope_id,
            a.capabilities,
            a.proficiency,
            a.memory_access,
            a.can_delegate_to,
            a.reports_to,
            a.parent_id,
            a.spawn_depth,
            a.spawned,
            a.model,
            a.input_schema,
            a.output_schema,
            a.autonomy_budget,
            a.max_risk,
            coalesce(
                a.max_concurrent_tasks,
                (select @extschema@._caliber_config_value('agent_max_concurrent_tasks')::integer)
            ) as max_concurrent_tasks,
            coalesce(
                a.heartbeat_interval_ms,
                (select @extschema@._caliber_config_value('heartbeat_interval_ms')::integer)
            ) as heartbeat_interval_ms,
            a.login_role,
            a.created_at,
            a.terminated_at,
            b.incarnation,
            b.beat_at,
            b.activity,
            b.progress,
            b.turns,
            b.tokens,
            b.tool_calls,
            b.files,
            b.errors,
            b.last_tool,
            b.last_file,
            -- A beat that was written after this statement began is no negative silence.
            greatest(pg_catalog.clock_timestamp() - b.beat_at, interval '0') as silent_for,
            (select @extschema@._caliber_config_value('heartbeat_missed_limit')::integer) as missed_limit,
            (select @extschema@._caliber_config_value('agent_unavailable_ms')::integer)
            * interval '1 ms' as unavailable_at_least
        from @extschema@.caliber_agent as a
        inner join @extschema@.caliber_agent_beat as b on a.agent_id = b.agent_id
    ) as timed
) as judged
-- An agent of another team can be shown to one that may read it; that team is not.
left join @extschema@.caliber_team as t on judged.team_id = t.team_id;

comment on view @extschema@.caliber_agents is
'Everything about the agents you can see, one row each: who, in what state, alive or not, doing what.';

create view @extschema@.caliber_agent_liveness with (security_invoker = true) as
select
    v.agent_id,
    v.name,
    v.status,
    v.liveness,
    v.last_heartbeat_at,
    v.silent_for,
    v.missed_heartbeats,
    v.suspect_after,
    v.unavailable_after
from @extschema@.caliber_agents as v;

comment on view @extschema@.caliber_agent_liveness is
'Which agents are alive, suspect, unavailable or ended, judged now by the database clock.';

create function @extschema@.caliber_agent_get(agent_id uuid)
returns setof @extschema@.caliber_agents
language sql
stable
begin atomic
    select v.* from @extschema@.caliber_agents as v where v.agent_id = $1;
end;

comment on function @extschema@.caliber_agent_get(uuid) is
'One agent as caliber_agents shows it; no row when there is none that you can see.';

create function @extschema@.caliber_agent_list(
    agent_type text default null,
    status @extschema@.caliber_agent_status default null,
    team text default null,
    capability text default null,
    liveness @extschema@.caliber_liveness default null,
    parent_id uuid default null,
    max_agents integer default 100
)
returns setof @extschema@.caliber_agents
language sql
stable
begin atomic
    select v.*
    from @extschema@.caliber_agents as v
    where ($1 is null or v.agent_type = $1)
        and (v.status = $2 or ($2 is null and v.status <> 'terminated'))
        and ($3 is null or v.team = $3)
        and ($4 is null or v.capabilities @> array[$4])
        and ($5 is null or v.liveness = $5)
        and ($6 is null or v.parent_id = $6)
    order by v.team, v.created_at, v.agent_id
    limit case
        when $7 between 1 and 1000 then $7
        else @extschema@._caliber_refuse('max_agents', $7::text, 'must be between 1 and 1000')::integer
    end;
end;

comment on function @extschema@.caliber_agent_list(
    text, @extschema@.caliber_agent_status, text, text, @extschema@.caliber_liveness, uuid, integer
) is
'The agents you can see that match every filter given; terminated ones only when asked for by status.';

create function @extschema@.caliber_agent_register(
    agent_type text,
    capabilities text[] default '{}',
    memory_access jsonb default null,
    can_delegate_to text[] default '{}',
    reports_to uuid default null,
    team text default 'default',
    name text default null,
    display_name text default null,
    proficiency jsonb default '{}',
    model text default null,
    input_schema jsonb default null,
    output_schema jsonb default null,
    autonomy_budget numeric default null,
    max_risk @extschema@.caliber_risk default 'medium',
    max_concurrent_tasks integer default null,
    heartbeat_interval_ms integer default null
)
returns uuid
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @agents_create.register@ $python$;

comment on function @extschema@.caliber_agent_register(
    text, text[], jsonb, text[], uuid, text, text, text, jsonb, text, jsonb, jsonb, numeric,
    @extschema@.caliber_risk, integer, integer
) is
'Registers a new agent, idle and alive, and returns its id. Without a name it is called after its type. Admins only.';

create function @extschema@.caliber_agent_spawn(
    parent_id uuid,
    agent_type text,
    capabilities text[] default '{}',
    memory_access jsonb default null,
    can_delegate_to text[] default null,
    name text default null,
    display_name text default null,
    proficiency jsonb default '{}',
    model text default null,
    input_schema jsonb default null,
    output_schema jsonb default null,
    autonomy_budget numeric default null,
    max_risk @extschema@.caliber_risk default null,
    max_concurrent_tasks integer default null,
    heartbeat_interval_ms integer default null,
    incarnation bigint default null
)
returns uuid
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @agents_create.spawn@ $python$;

comment on function @extschema@.caliber_agent_spawn(
    uuid, text, text[], jsonb, text[], text, text, jsonb, text, jsonb, jsonb, numeric,
    @extschema@.caliber_risk, integer, integer, bigint
) is
'Registers a child of an agent, in its team, reporting to it, initializing; returns its id. What is left out the child inherits; more than the parent has is refused (42501).';

create function @extschema@.caliber_agent_resume(agent_id uuid)
returns bigint
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @agents.resume@ $python$;

comment on function @extschema@.caliber_agent_resume(uuid) is
'Says that a new process is this agent from now on and returns its incarnation, to be shown with its writes; those of the process before are refused (KA001).';

create function @extschema@.caliber_agent_heartbeat(
    agent_id uuid,
    activity text default null,
    progress real default null,
    turns bigint default null,
    tokens bigint default null,
    tool_calls bigint default null,
    files bigint default null,
    errors bigint default null,
    last_tool text default null,
    last_file text default null,
    incarnation bigint default null
)
returns @extschema@.caliber_agent_status
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @agents_beat.heartbeat@ $python$;

comment on function @extschema@.caliber_agent_heartbeat(
    uuid, text, real, bigint, bigint, bigint, bigint, bigint, text, text, bigint
) is
'Says that the agent lives and returns its status. Counters are added to, the rest is kept when left out. KA001 for an old incarnation, KA007 once terminated.';

create function @extschema@.caliber_agent_set_status(
    agent_id uuid,
    status @extschema@.caliber_agent_status,
    reason text default null,
    incarnation bigint default null
)
returns @extschema@.caliber_agent_status
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @agents.set_status@ $python$;

comment on function @extschema@.caliber_agent_set_status(
    uuid, @extschema@.caliber_agent_status, text, bigint
) is
'Changes an agent''s status and returns the one before. KA007 for a step that makes no sense; the same status again changes nothing.';

create function @extschema@.caliber_agent_assign_trajectory(
    agent_id uuid,
    trajectory_id uuid,
    scope_id uuid default null,
    incarnation bigint default null
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @agents.assign_trajectory@ $python$;

comment on function @extschema@.caliber_agent_assign_trajectory(uuid, uuid, uuid, bigint) is
'Puts an agent to work on a trajectory, in a scope of it when one is given, and makes it active; false when it already was. KA007 while it works on another one, or when the trajectory is finished or the scope closed.';

create function @extschema@.caliber_agent_release(
    agent_id uuid,
    incarnation bigint default null
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @agents.release@ $python$;

comment on function @extschema@.caliber_agent_release(uuid, bigint) is
'Takes an agent off its trajectory and makes it idle; a failed or completed one stays so. False when there was nothing to change.';

create function @extschema@.caliber_agent_terminate(
    agent_id uuid,
    reason text default null,
    descendants boolean default false
)
returns integer
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @agents.terminate@ $python$;

comment on function @extschema@.caliber_agent_terminate(uuid, text, boolean) is
'Ends an agent for good, with its descendants when asked, and returns how many ended; 0 when it already had. Its name is free again, its incarnation void.';

grant select on
    @extschema@.caliber_agent,
    @extschema@.caliber_agent_beat,
    @extschema@.caliber_agent_liveness,
    @extschema@.caliber_agents
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@._caliber_my_agent(),
    @extschema@._caliber_my_team(),
    @extschema@.caliber_agent_get(uuid),
    @extschema@.caliber_agent_list(
        text, @extschema@.caliber_agent_status, text, text, @extschema@.caliber_liveness, uuid, integer
    )
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_agent_spawn(
        uuid, text, text[], jsonb, text[], text, text, jsonb, text, jsonb, jsonb, numeric,
        @extschema@.caliber_risk, integer, integer, bigint
    ),
    @extschema@.caliber_agent_resume(uuid),
    @extschema@.caliber_agent_heartbeat(
        uuid, text, real, bigint, bigint, bigint, bigint, bigint, text, text, bigint
    ),
    @extschema@.caliber_agent_set_status(uuid, @extschema@.caliber_agent_status, text, bigint),
    @extschema@.caliber_agent_assign_trajectory(uuid, uuid, uuid, bigint),
    @extschema@.caliber_agent_release(uuid, bigint),
    @extschema@.caliber_agent_terminate(uuid, text, boolean)
to caliber_admin, caliber_agent;
grant execute on function @extschema@.caliber_agent_register(
    text, text[], jsonb, text[], uuid, text, text, text, jsonb, text, jsonb, jsonb, numeric,
    @extschema@.caliber_risk, integer, integer
) to caliber_admin;
