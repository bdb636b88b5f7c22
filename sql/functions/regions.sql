-- Regions: their rule, their verbs, their views. The contract is in schema/regions.sql.

-- The rule. Inlined where it is called, so it costs an expression, not a call.
create function @extschema@._caliber_region_reason(
    region_type @extschema@.caliber_region_type,
    owns boolean,
    teammate boolean,
    listed @extschema@.caliber_access,
    wanted @extschema@.caliber_access
)
returns text
language sql
immutable
parallel safe
return case
    when owns then 'owner'
    when listed = 'write' then 'listed writer'
    when listed >= wanted then 'listed reader'
    when region_type = 'team' and teammate then 'team'
    when region_type = 'public' and wanted = 'read' then 'public'
    when region_type = 'collaborative' then 'collaborative'
end;

comment on function @extschema@._caliber_region_reason(
    @extschema@.caliber_region_type, boolean, boolean, @extschema@.caliber_access, @extschema@.caliber_access
) is
'Why an agent may do what it wants with a region: owner, listed writer, listed reader, team, public or collaborative; null when it may not.';

-- Definer, because the policy of caliber_region calls it and the list's own policy asks that one.
create function @extschema@._caliber_my_shared_regions()
returns table (region_id uuid)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select m.region_id
    from @extschema@.caliber_region_member as m
    where m.agent_id = @extschema@._caliber_my_agent();
end;

comment on function @extschema@._caliber_my_shared_regions() is
'The regions that list the agent whose login is calling, as a reader or a writer.';

create function @extschema@._caliber_region_append_only()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = '42501',
        message = pg_catalog.format('caliber: %s is append-only, %s refused', tg_table_name, pg_catalog.lower(tg_op));
end
$$;

comment on function @extschema@._caliber_region_append_only() is
'Trigger: refuses to change or delete what a region keeps of the past.';

create trigger caliber_region_version_keep before update or delete on @extschema@.caliber_region_version
for each statement execute function @extschema@._caliber_region_append_only();
create trigger caliber_region_conflict_keep before update or delete on @extschema@.caliber_region_conflict
for each statement execute function @extschema@._caliber_region_append_only();

create view @extschema@.caliber_regions with (security_invoker = true) as
select
    r.name,
    r.region_type,
    o.name as owner,
    t.name as team,
    listed.readers,
    listed.writers,
    r.conflict_resolution,
    r.version_tracking,
    r.require_lock,
    counted.keys,
    counted.writes,
    (
        select pg_catalog.count(*)
        from @extschema@.caliber_region_conflict as c
        where c.region_id = r.region_id
    ) as conflicts,
    counted.last_written_at,
    r.region_id,
    r.owner_agent_id,
    r.team_id,
    r.description,
    r.created_at
from @extschema@.caliber_region as r
-- Of another team the caller sees the region, not its people.
left join @extschema@.caliber_agent as o on r.owner_agent_id = o.agent_id
left join @extschema@.caliber_team as t on r.team_id = t.team_id
cross join lateral (
    select
        coalesce(
            pg_catalog.array_agg(coalesce(a.name, m.agent_id::text) order by a.name, m.agent_id)
            filter (where m.access = 'read'), '{}'
        ) as readers,
        coalesce(
            pg_catalog.array_agg(coalesce(a.name, m.agent_id::text) order by a.name, m.agent_id)
            filter (where m.access = 'write'), '{}'
        ) as writers
    from @extschema@.caliber_region_member as m
    left join @extschema@.caliber_agent as a on m.agent_id = a.agent_id
    where m.region_id = r.region_id
) as listed
cross join lateral (
    select
        pg_catalog.count(*) filter (where e.value is not null) as keys,
        coalesce(pg_catalog.sum(e.version), 0)::bigint as writes,
        pg_catalog.max(e.written_at) as last_written_at
    from @extschema@.caliber_region_entry as e
    where e.region_id = r.region_id
) as counted;

comment on view @extschema@.caliber_regions is
'The regions you can read, one row each: whose, who is listed, on what terms, how much was written and how often in conflict.';

create function @extschema@.caliber_region_list(
    region_type @extschema@.caliber_region_type default null,
    name text default null,
    owner_agent_id uuid default null,
    max_regions integer default 100
)
returns setof @extschema@.caliber_regions
language sql
stable
begin atomic
    select v.*
    from @extschema@.caliber_regions as v
    where ($1 is null or v.region_type = $1)
        and ($2 is null or v.name = $2)
        and ($3 is null or v.owner_agent_id = $3)
    order by v.created_at, v.region_id
    limit case
        when $4 between 1 and 1000 then $4
        else @extschema@._caliber_refuse('max_regions', $4::text, 'must be between 1 and 1000')::integer
    end;
end;

comment on function @extschema@.caliber_region_list(
    @extschema@.caliber_region_type, text, uuid, integer
) is
'The regions you can read that match every filter given, oldest first.';

create function @extschema@.caliber_region_create(
    owner_agent_id uuid,
    region_type @extschema@.caliber_region_type,
    name text default null,
    readers uuid[] default '{}',
    writers uuid[] default '{}',
    require_lock boolean default false,
    conflict_resolution @extschema@.caliber_conflict_resolution default null,
    version_tracking boolean default true,
    description text default null,
    incarnation bigint default null
)
returns uuid
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @regions.create@ $python$;

comment on function @extschema@.caliber_region_create(
    uuid, @extschema@.caliber_region_type, text, uuid[], uuid[], boolean,
    @extschema@.caliber_conflict_resolution, boolean, text, bigint
) is
'Makes a region of an agent and returns its id. Without a policy, a private one takes the last write and any other rejects a write against an old version.';

create function @extschema@.caliber_region_grant(
    region_id uuid,
    agent_id uuid,
    access @extschema@.caliber_access default 'read'
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @regions.grant@ $python$;

comment on function @extschema@.caliber_region_grant(uuid, uuid, @extschema@.caliber_access) is
'Lists an agent as a reader or writer of a region; false when it already was or owns it. For the owner and admins; counts from the next statement.';

create function @extschema@.caliber_region_revoke(
    region_id uuid,
    agent_id uuid,
    access @extschema@.caliber_access default null
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @regions.revoke@ $python$;

comment on function @extschema@.caliber_region_revoke(uuid, uuid, @extschema@.caliber_access) is
'Takes an agent off a region''s list, or with write makes a writer a reader; false when there was nothing to take. What the region''s type allows stays.';

create function @extschema@.caliber_region_put(
    agent_id uuid,
    region_id uuid,
    key text,
    value jsonb,
    expected_version bigint default null,
    incarnation bigint default null,
    fence bigint default null
)
returns table (
    outcome @extschema@.caliber_region_outcome,
    version bigint,
    current_value jsonb,
    conflict_id uuid
)
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @regions_put.put@ $python$;

comment on function @extschema@.caliber_region_put(uuid, uuid, text, jsonb, bigint, bigint, bigint) is
'Writes a key of a region and says what became of it: the version that stands now, its value where that is not the one given, and the conflict when expected_version, 0 for a new key, was an old one.';

create function @extschema@.caliber_region_remove(
    agent_id uuid,
    region_id uuid,
    key text,
    expected_version bigint default null,
    incarnation bigint default null,
    fence bigint default null
)
returns table (
    outcome @extschema@.caliber_region_outcome,
    version bigint,
    current_value jsonb,
    conflict_id uuid
)
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @regions_put.remove@ $python$;

comment on function @extschema@.caliber_region_remove(uuid, uuid, text, bigint, bigint, bigint) is
'Removes a key of a region by writing a version without a value, on the terms of caliber_region_put; no row when the key is not there.';

create function @extschema@._caliber_region_refuse(
    agent_id uuid,
    region_id uuid,
    wanted @extschema@.caliber_access
)
returns boolean
language plpython3u
stable
security definer
set search_path = pg_catalog, pg_temp
as $python$ @regions.refuse@ $python$;

comment on function @extschema@._caliber_region_refuse(uuid, uuid, @extschema@.caliber_access) is
'Raises why an agent may not read or write a region; called when it may not, never returns.';

-- Python is only loaded to refuse: what is allowed is read by plain SQL.
create function @extschema@._caliber_region_readable(
    agent_id uuid,
    region_id uuid
)
returns boolean
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select coalesce(
        (
            select @extschema@._caliber_region_reason(
                r.region_type, r.owner_agent_id = a.agent_id, r.team_id = a.team_id, m.access, 'read'
            ) is not null
            from @extschema@.caliber_region as r
            inner join @extschema@.caliber_agent as a on a.agent_id = $1
            left join @extschema@.caliber_region_member as m
                on r.region_id = m.region_id and a.agent_id = m.agent_id
            where r.region_id = $2
                and a.terminated_at is null
                and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_sees_all())
        ), false
    ) or @extschema@._caliber_region_refuse($1, $2, 'read');
end;

comment on function @extschema@._caliber_region_readable(uuid, uuid) is
'True when the caller may act for the agent and that may read the region; otherwise raises why not.';

create function @extschema@.caliber_region_get(
    agent_id uuid,
    region_id uuid,
    key text default null
)
returns table (
    key text,
    value jsonb,
    version bigint,
    written_by uuid,
    written_at timestamptz
)
language sql
stable
begin atomic
    select
        e.key,
        e.value,
        e.version,
        e.written_by,
        e.written_at
    from @extschema@.caliber_region_entry as e
    where (select @extschema@._caliber_region_readable($1, $2))
        and e.region_id = $2
        and ($3 is null or e.key = $3)
        and e.value is not null
    order by e.key;
end;

comment on function @extschema@.caliber_region_get(uuid, uuid, text) is
'What an agent reads in a region: one key, or all of them in order; no row for a key that is not there. 42501 when it may not read the region.';

create function @extschema@.caliber_region_history(
    agent_id uuid,
    region_id uuid,
    key text default null,
    max_versions integer default 100
)
returns table (
    key text,
    version bigint,
    value jsonb,
    written_by uuid,
    written_at timestamptz
)
language sql
stable
begin atomic
    select
        kept.key,
        kept.version,
        kept.value,
        kept.written_by,
        kept.written_at
    from (
        select
            h.key,
            h.version,
            h.value,
            h.written_by,
            h.written_at
        from @extschema@.caliber_region_version as h
        where h.region_id = $2 and ($3 is null or h.key = $3)
        union all
        -- A region that tracks no versions has the one that stands.
        select
            e.key,
            e.version,
            e.value,
            e.written_by,
            e.written_at
        from @extschema@.caliber_region_entry as e
        inner join @extschema@.caliber_region as r on e.region_id = r.region_id
        where e.region_id = $2 and ($3 is null or e.key = $3) and not r.version_tracking
    ) as kept
    where (select @extschema@._caliber_region_readable($1, $2))
    order by kept.key asc, kept.version desc
    limit case
        when $4 between 1 and 1000 then $4
        else @extschema@._caliber_refuse('max_versions', $4::text, 'must be between 1 and 1000')::integer
    end;
end;

comment on function @extschema@.caliber_region_history(uuid, uuid, text, integer) is
'The versions a region keeps of one key or of all, newest first; a version without a value removed the key. 42501 when the agent may not read the region.';

grant select on
    @extschema@.caliber_region,
    @extschema@.caliber_region_member,
    @extschema@.caliber_region_entry,
    @extschema@.caliber_region_version,
    @extschema@.caliber_region_conflict,
    @extschema@.caliber_regions
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@._caliber_region_reason(
        @extschema@.caliber_region_type, boolean, boolean,
        @extschema@.caliber_access, @extschema@.caliber_access
    ),
    @extschema@._caliber_my_shared_regions(),
    @extschema@._caliber_region_readable(uuid, uuid),
    @extschema@.caliber_region_list(@extschema@.caliber_region_type, text, uuid, integer),
    @extschema@.caliber_region_get(uuid, uuid, text),
    @extschema@.caliber_region_history(uuid, uuid, text, integer)
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_region_create(
        uuid, @extschema@.caliber_region_type, text, uuid[], uuid[], boolean,
        @extschema@.caliber_conflict_resolution, boolean, text, bigint
    ),
    @extschema@.caliber_region_grant(uuid, uuid, @extschema@.caliber_access),
    @extschema@.caliber_region_revoke(uuid, uuid, @extschema@.caliber_access),
    @extschema@.caliber_region_put(uuid, uuid, text, jsonb, bigint, bigint, bigint),
    @extschema@.caliber_region_remove(uuid, uuid, text, bigint, bigint, bigint)
to caliber_admin, caliber_agent;
