-- Reach: how far an agent's memory_access lets it read and write. A permission names a
-- memory type (trajectory, scope, turn, artifact, note, context or *) and a scope: own, team
-- or global. Row policies of memory and the checks of its verbs ask here, so that what a
-- select shows and what a verb allows is decided by the same rule.
--
-- What is an agent's own: the rows it wrote, and those of the trajectories it has. It always
-- reads those, and those of agents on which it holds read_transcript; to write, even its own, it
-- needs a permission.

create function @extschema@._caliber_reach(
    memory_access jsonb,
    side text,
    memory_type text
)
returns text
language sql
immutable
parallel safe
begin atomic
    select (array['own', 'team', 'global'])[
        pg_catalog.max(pg_catalog.array_position(array['own', 'team', 'global'], p.permission ->> 'scope'))
    ]
    from pg_catalog.jsonb_array_elements(memory_access -> side) as p (permission)
    where p.permission ->> 'memory_type' in ('*', memory_type)
        and coalesce(p.permission -> 'filter', '{}') = '{}';
end;

comment on function @extschema@._caliber_reach(jsonb, text, text) is
'The widest scope that a memory_access gives on one side, read or write, for a memory type: own, team, global or null. Permissions with a filter hold for single rows and do not count.';

create function @extschema@._caliber_allows(
    memory_access jsonb,
    side text,
    memory_type text,
    belongs text,
    attributes jsonb default '{}'
)
returns boolean
language sql
immutable
parallel safe
return exists (
    select
    from pg_catalog.jsonb_array_elements(memory_access -> side) as p (permission)
    where p.permission ->> 'memory_type' in ('*', memory_type)
        and case p.permission ->> 'scope'
            when 'global' then true
            when 'team' then belongs in ('own', 'team')
            else belongs = 'own'
        end
        and attributes @> coalesce(p.permission -> 'filter', '{}')
);

comment on function @extschema@._caliber_allows(jsonb, text, text, text, jsonb) is
'Whether a memory_access has a permission for a row of that type which is the agent''s own, its team''s or (any other word) somebody else''s. A filter is met by attributes that contain it.';

create function @extschema@._caliber_reads_all(memory_type text)
returns boolean
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select @extschema@._caliber_sees_all() or exists (
        select
        from @extschema@.caliber_agent as a
        where a.login_role = @extschema@._caliber_actor()
            and a.terminated_at is null
            and @extschema@._caliber_reach(a.memory_access, 'read', $1) = 'global'
    );
end;

comment on function @extschema@._caliber_reads_all(text) is
'Whether the caller reads every row of a memory type: observers, admins, and agents whose memory_access says global.';

create function @extschema@._caliber_reads_team(memory_type text)
returns uuid
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select a.team_id
    from @extschema@.caliber_agent as a
    where a.login_role = @extschema@._caliber_actor()
        and a.terminated_at is null
        and @extschema@._caliber_reach(a.memory_access, 'read', $1) in ('team', 'global');
end;

comment on function @extschema@._caliber_reads_team(text) is
'The team whose rows of a memory type the calling agent reads; null when its memory_access gives it only its own.';

grant execute on function
    @extschema@._caliber_reach(jsonb, text, text),
    @extschema@._caliber_allows(jsonb, text, text, text, jsonb),
    @extschema@._caliber_reads_all(text),
    @extschema@._caliber_reads_team(text)
to caliber_admin, caliber_agent, caliber_observer;
