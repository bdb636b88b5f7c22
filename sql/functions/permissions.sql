-- Permissions: whether an agent may read or write a memory, and why.
--
-- Regions follow their own rule (regions). For every other memory it is the agent's
-- memory_access that decides: a permission that names the memory type, or *, whose scope
-- takes the memory in and whose filter, if it has one, the memory meets. An agent also reads
-- what is its own, and what is of agents on which it holds read_transcript (grants).
--
-- A filter is met by attributes that contain it. Reading, these are what _caliber_attributes
-- says; writing, only what is told before a memory exists: artifact_type, note_type, role.

create function @extschema@._caliber_attributes(memory @extschema@.caliber_trajectory)
returns jsonb
language sql
stable
parallel safe
return pg_catalog.jsonb_build_object('trajectory_id', memory.trajectory_id, 'status', memory.status);

comment on function @extschema@._caliber_attributes(@extschema@.caliber_trajectory) is
'What a filter can ask of a trajectory.';

create function @extschema@._caliber_attributes(memory @extschema@.caliber_scope)
returns jsonb
language sql
stable
parallel safe
return pg_catalog.jsonb_build_object('trajectory_id', memory.trajectory_id);

comment on function @extschema@._caliber_attributes(@extschema@.caliber_scope) is
'What a filter can ask of a scope.';

create function @extschema@._caliber_attributes(memory @extschema@.caliber_turn)
returns jsonb
language sql
stable
parallel safe
return pg_catalog.jsonb_build_object('trajectory_id', memory.trajectory_id, 'role', memory.role);

comment on function @extschema@._caliber_attributes(@extschema@.caliber_turn) is
'What a filter can ask of a turn.';

create function @extschema@._caliber_attributes(memory @extschema@.caliber_artifact)
returns jsonb
language sql
stable
parallel safe
return pg_catalog.jsonb_build_object(
    'trajectory_id', memory.trajectory_id,
    'artifact_type', memory.artifact_type,
    'status', memory.status,
    'extraction_method', memory.extraction_method
);

comment on function @extschema@._caliber_attributes(@extschema@.caliber_artifact) is
'What a filter can ask of an artifact.';

create function @extschema@._caliber_attributes(memory @extschema@.caliber_note)
returns jsonb
language sql
stable
parallel safe
return pg_catalog.jsonb_build_object(
    'trajectory_id', memory.trajectory_id,
    'note_type', memory.note_type,
    'level', memory.level
);

comment on function @extschema@._caliber_attributes(@extschema@.caliber_note) is
'What a filter can ask of a note.';

create function @extschema@._caliber_attributes(memory @extschema@.caliber_context)
returns jsonb
language sql
stable
parallel safe
return pg_catalog.jsonb_build_object('trajectory_id', memory.trajectory_id);

comment on function @extschema@._caliber_attributes(@extschema@.caliber_context) is
'What a filter can ask of a context.';

create view @extschema@.caliber_memory with (security_invoker = true) as
select
    'trajectory' as memory_type,
    t.trajectory_id as memory_id,
    t.name,
    t.agent_id,
    t.agent_id as trajectory_agent_id,
    t.team_id,
    @extschema@._caliber_attributes(t) as attributes,
    t.created_at
from @extschema@.caliber_trajectory as t
union all
select
    'scope' as memory_type,
    s.scope_id as memory_id,
    coalesce(s.name, 'scope ' || s.scope_no) as name,
    s.agent_id,
    t.agent_id as trajectory_agent_id,
    s.team_id,
    @extschema@._caliber_attributes(s) as attributes,
    s.opened_at as created_at
from @extschema@.caliber_scope as s
left join @extschema@.caliber_trajectory as t on s.trajectory_id = t.trajectory_id
union all
select
    'turn' as memory_type,
    u.turn_id as memory_id,
    u.role || ': ' || pg_catalog.left(u.content, 60) as name,
    u.agent_id,
    t.agent_id as trajectory_agent_id,
    u.team_id,
    @extschema@._caliber_attributes(u) as attributes,
    u.created_at
from @extschema@.caliber_turn as u
left join @extschema@.caliber_trajectory as t on u.trajectory_id = t.trajectory_id
union all
select
    'artifact' as memory_type,
    r.artifact_id as memory_id,
    coalesce(r.name, pg_catalog.left(r.content, 60)) as name,
    r.agent_id,
    t.agent_id as trajectory_agent_id,
    r.team_id,
    @extschema@._caliber_attributes(r) as attributes,
    r.created_at
from @extschema@.caliber_artifact as r
left join @extschema@.caliber_trajectory as t on r.trajectory_id = t.trajectory_id
union all
select
    'note' as memory_type,
    n.note_id as memory_id,
    coalesce(n.name, pg_catalog.left(n.content, 60)) as name,
    n.agent_id,
    t.agent_id as trajectory_agent_id,
    n.team_id,
    @extschema@._caliber_attributes(n) as attributes,
    n.created_at
from @extschema@.caliber_note as n
left join @extschema@.caliber_trajectory as t on n.trajectory_id = t.trajectory_id
union all
select
    'context' as memory_type,
    c.context_id as memory_id,
    'context of ' || t.name as name,
    c.agent_id,
    -- With an embedding it holds notes that are not the trajectory's.
    case when c.embedding is null then t.agent_id end as trajectory_agent_id,
    c.team_id,
    @extschema@._caliber_attributes(c) as attributes,
    c.created_at
from @extschema@.caliber_context as c
left join @extschema@.caliber_trajectory as t on c.trajectory_id = t.trajectory_id
union all
select
    'region' as memory_type,
    g.region_id as memory_id,
    g.name,
    g.owner_agent_id as agent_id,
    null as trajectory_agent_id,
    g.team_id,
    pg_catalog.jsonb_build_object('region_type', g.region_type) as attributes,
    g.created_at
from @extschema@.caliber_region as g;

comment on view @extschema@.caliber_memory is
'Every memory you can see, one row each, whatever its type: whose it is and what a filter can ask of it.';

create function @extschema@._caliber_permission(
    memory_access jsonb,
    wanted @extschema@.caliber_access,
    memory_type text,
    belongs text,
    attributes jsonb
)
returns text
language sql
stable
parallel safe
begin atomic
    select pg_catalog.concat_ws(
        ' ', 'permission', p.permission ->> 'memory_type', p.permission ->> 'scope', p.permission ->> 'filter'
    )
    from pg_catalog.jsonb_array_elements(memory_access -> wanted::text) with ordinality as p (permission, place)
    where @extschema@._caliber_allows(
        pg_catalog.jsonb_build_object(wanted, pg_catalog.jsonb_build_array(p.permission)),
        wanted::text,
        memory_type,
        belongs,
        case
            when wanted = 'read' then attributes
            else attributes - array['trajectory_id', 'status', 'extraction_method', 'level']
        end
    )
    order by p.place
    limit 1;
end;

comment on function @extschema@._caliber_permission(
    jsonb, @extschema@.caliber_access, text, text, jsonb
) is
'The first permission of a memory_access that lets an agent read or write a memory, in words; null when none does.';

create function @extschema@._caliber_access_reason(
    agent @extschema@.caliber_agent,
    memory @extschema@.caliber_memory,
    wanted @extschema@.caliber_access
)
returns text
language sql
stable
begin atomic
    select case
        when (agent).terminated_at is not null then null
        when (memory).memory_type = 'region' then (
            select @extschema@._caliber_region_reason(
                r.region_type, r.owner_agent_id = (agent).agent_id, r.team_id = (agent).team_id, m.access, wanted
            )
            from @extschema@.caliber_region as r
            left join @extschema@.caliber_region_member as m
                on r.region_id = m.region_id and m.agent_id = (agent).agent_id
            where r.region_id = (memory).memory_id
        )
        else coalesce(
            @extschema@._caliber_permission(
                (agent).memory_access, wanted, (memory).memory_type, its.place, (memory).attributes
            ),
            case when wanted = 'read' and its.place = 'own' then 'own' end,
            case when wanted = 'read' then (
                select 'read_transcript on ' || t.name
                from @extschema@.caliber_grant as g
                inner join @extschema@.caliber_agent as t on g.target_agent_id = t.agent_id
                where g.grantee_agent_id = (agent).agent_id
                    and g.target_agent_id in ((memory).agent_id, (memory).trajectory_agent_id)
                    and g.capability = 'read_transcript'
                order by t.name
                limit 1
            ) end
        )
    end
    from (
        select case
            when (agent).agent_id in ((memory).agent_id, (memory).trajectory_agent_id) then 'own'
            when (agent).team_id = (memory).team_id then 'team'
            else 'other'
        end as place
    ) as its;
end;

comment on function @extschema@._caliber_access_reason(
    @extschema@.caliber_agent, @extschema@.caliber_memory, @extschema@.caliber_access
) is
'Why an agent may read or write a memory, in words; null when it may not.';

create function @extschema@.caliber_check_access(
    agent_id uuid,
    memory_type text,
    memory_id uuid,
    access @extschema@.caliber_access
)
returns boolean
language plpython3u
stable
security definer
set search_path = pg_catalog, pg_temp
as $python$ @permissions.check@ $python$;

comment on function @extschema@.caliber_check_access(uuid, text, uuid, @extschema@.caliber_access) is
'Whether an agent may read or write a trajectory, scope, turn, artifact, note, context or region; false for an agent or a memory that does not exist. An agent asks for itself.';

create function @extschema@.caliber_reach(
    agent_id uuid,
    memory_type text default null,
    max_rows integer default 100
)
returns table (
    memory_type text,
    memory_id uuid,
    name text,
    belongs_to text,
    reads_because text,
    writes_because text
)
language plpython3u
stable
security definer
set search_path = pg_catalog, pg_temp
as $python$ @permissions.reach@ $python$;

comment on function @extschema@.caliber_reach(uuid, text, integer) is
'What an agent can reach and why, newest first: the permission, list, grant or kind of region that lets it read and write. An agent asks for itself.';

-- For the policies of permissions_access: the part of reading that plain scopes leave out.
create function @extschema@._caliber_my_filters(memory_type text)
returns jsonb
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select pg_catalog.jsonb_build_object('read', pg_catalog.jsonb_agg(p.permission))
    from @extschema@.caliber_agent as a
    cross join pg_catalog.jsonb_array_elements(a.memory_access -> 'read') as p (permission)
    where a.login_role = @extschema@._caliber_actor()
        and a.terminated_at is null
        and p.permission ->> 'memory_type' in ('*', $1)
        and p.permission -> 'filter' <> '{}'
    having pg_catalog.count(*) > 0;
end;

comment on function @extschema@._caliber_my_filters(text) is
'The permissions with a filter that let the calling agent read a memory type; null when it has none.';

grant select on @extschema@.caliber_memory to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@._caliber_attributes(@extschema@.caliber_trajectory),
    @extschema@._caliber_attributes(@extschema@.caliber_scope),
    @extschema@._caliber_attributes(@extschema@.caliber_turn),
    @extschema@._caliber_attributes(@extschema@.caliber_artifact),
    @extschema@._caliber_attributes(@extschema@.caliber_note),
    @extschema@._caliber_attributes(@extschema@.caliber_context),
    @extschema@._caliber_my_filters(text),
    @extschema@.caliber_check_access(uuid, text, uuid, @extschema@.caliber_access),
    @extschema@.caliber_reach(uuid, text, integer)
to caliber_admin, caliber_agent, caliber_observer;
