-- Shared state: its verbs, reads and retention. The contract is in schema/state.sql.

-- Append-only also for a superuser's slip of the hand. Old versions may go, the current never.
create function @extschema@._caliber_state_keep()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    keep_days integer := @extschema@._caliber_config_value('state_retention_days')::integer;
begin
    if tg_op = 'DELETE' then
        perform from gone as g
        where g.changed_at > pg_catalog.clock_timestamp() - pg_catalog.make_interval(days => keep_days)
            or exists (
                select from @extschema@.caliber_state_key as k
                where k.team_id = g.team_id and k.namespace = g.namespace and k.key = g.key
                    and k.version = g.version
            );
        if not found then
            return null;
        end if;
    end if;
    raise exception using
        errcode = '42501',
        message = pg_catalog.format('caliber: state history is append-only, %s refused', pg_catalog.lower(tg_op)),
        detail = pg_catalog.format('Versions are kept for %s days, the current one for good.', keep_days),
        hint = 'The setting state_retention_days says how long; caliber_state_purge deletes older ones.';
end
$$;

comment on function @extschema@._caliber_state_keep() is
'Trigger: refuses to update or truncate versions, and to delete current ones or those younger than the retention.';

create trigger caliber_state_keep_update before update on @extschema@.caliber_state_version
for each statement execute function @extschema@._caliber_state_keep();
create trigger caliber_state_keep_truncate before truncate on @extschema@.caliber_state_version
for each statement execute function @extschema@._caliber_state_keep();
create trigger caliber_state_keep_delete after delete on @extschema@.caliber_state_version
referencing old table as gone
for each statement execute function @extschema@._caliber_state_keep();

create function @extschema@._caliber_state_fits(
    value_type @extschema@.caliber_state_type,
    value jsonb
)
returns boolean
language sql
immutable
parallel safe
return case value_type
    when 'json' then true
    when 'integer' then
        case
            when pg_catalog.jsonb_typeof(value) = 'number' then
                pg_catalog.trunc(value::numeric) = value::numeric
                and value::numeric between -9223372036854775808 and 9223372036854775807
            else false
        end
    else pg_catalog.jsonb_typeof(value) = value_type::text
end;

comment on function @extschema@._caliber_state_fits(@extschema@.caliber_state_type, jsonb) is
'Whether a value is of the type a key of the shared state takes.';

-- Whoever can connect can listen, so a notification must not tell names. It tells this id, which
-- only those can match with a name who know the id of the team.
create function @extschema@._caliber_state_key_id(
    team_id uuid,
    namespace text,
    key text
)
returns uuid
language sql
immutable
parallel safe
return pg_catalog.md5($1::text || pg_catalog.length($2)::text || ':' || $2 || $3)::uuid;

comment on function @extschema@._caliber_state_key_id(uuid, text, text) is
'The id by which notifications name a key of a team''s shared state.';

-- A hint, never state: none is sent when switched off or when the cluster's queue fills up. The
-- setting is on unless somebody set it, which one look-up tells.
create function @extschema@._caliber_state_notify(
    team_id uuid,
    namespace text,
    key text,
    version bigint
)
returns void
language sql
volatile
begin atomic
    select pg_catalog.pg_notify(
        'caliber_state',
        pg_catalog.json_build_object(
            'key_id', @extschema@._caliber_state_key_id($1, $2, $3), 'version', $4
        )::text
    )
    where not exists (
            select from @extschema@.caliber_setting as s
            where s.key = 'state_notify' and s.value = 'off'
        )
        and pg_catalog.pg_notification_queue_usage() <= 0.25;
end;

comment on function @extschema@._caliber_state_notify(uuid, text, text, bigint) is
'Notifies the channel caliber_state that a key has a new version.';

create view @extschema@.caliber_state with (security_invoker = true) as
select
    k.namespace,
    k.key,
    v.value,
    k.version,
    k.value_type,
    k.owner_agent_id,
    v.changed_at,
    v.changed_by,
    v.expires_at,
    t.name as team,
    k.team_id
from @extschema@.caliber_state_key as k
inner join @extschema@.caliber_team as t on k.team_id = t.team_id
-- With a limit it stays a look-up of one version; as a join it was planned as a walk through all
-- of a key's versions.
cross join lateral (
    select
        o.value,
        o.changed_at,
        o.changed_by,
        o.expires_at
    from @extschema@.caliber_state_version as o
    where o.team_id = k.team_id and o.namespace = k.namespace and o.key = k.key and o.version = k.version
    order by o.version
    limit 1
) as v
where k.live_until > pg_catalog.clock_timestamp();

comment on view @extschema@.caliber_state is
'The shared state you can see as it is now: every key that has a value, deleted and expired ones left out.';

-- Which team a reader means: the one named, else its own, else the one everything starts in.
create function @extschema@._caliber_reader_team(team text)
returns uuid
language sql
stable
parallel safe
begin atomic
    select coalesce(
        case when $1 is null then @extschema@._caliber_my_team() end,
        (select t.team_id from @extschema@.caliber_team as t where t.name = coalesce($1, 'default'))
    );
end;

comment on function @extschema@._caliber_reader_team(text) is
'The team whose state a call means: the one named, else the calling agent''s, else default.';

create function @extschema@.caliber_state_key_id(
    namespace text,
    key text,
    team text default null
)
returns uuid
language sql
stable
return @extschema@._caliber_state_key_id(@extschema@._caliber_reader_team($3), $1, $2);

comment on function @extschema@.caliber_state_key_id(text, text, text) is
'The key_id that notifications of a key carry, to be compared with what was heard; the key need not exist.';

create function @extschema@.caliber_state_get(
    namespace text,
    key text,
    team text default null
)
returns setof @extschema@.caliber_state
language sql
stable
begin atomic
    select s.*
    from @extschema@.caliber_state as s
    where s.team_id = (select @extschema@._caliber_reader_team($3)) and s.namespace = $1 and s.key = $2;
end;

comment on function @extschema@.caliber_state_get(text, text, text) is
'The value of a key and its version, to be shown as expected_version when writing; no row when there is none, or none any more.';

create function @extschema@.caliber_state_list(
    namespace text,
    prefix text default '',
    team text default null,
    after_key text default null,
    max_keys integer default 100
)
returns setof @extschema@.caliber_state
language sql
stable
begin atomic
    select s.*
    from @extschema@.caliber_state as s
    where s.team_id = (select @extschema@._caliber_reader_team($3))
        and s.namespace = $1
        and pg_catalog.starts_with(s.key, coalesce($2, ''))
        -- The planner makes a range of starts_with only when it knows the prefix.
        and s.key >= coalesce($2, '') collate "C"
        and s.key > coalesce($4, '') collate "C"
    order by s.key
    limit case
        when $5 between 1 and 1000 then $5
        else @extschema@._caliber_refuse('max_keys', $5::text, 'must be between 1 and 1000')::integer
    end;
end;

comment on function @extschema@.caliber_state_list(text, text, text, text, integer) is
'The keys of a namespace that start with a prefix and have a value, in byte order; after_key continues a list.';

create function @extschema@.caliber_state_history(
    namespace text,
    key text,
    team text default null,
    before_version bigint default null,
    max_versions integer default 100
)
returns table (
    version bigint,
    deleted boolean,
    value jsonb,
    value_type @extschema@.caliber_state_type,
    owner_agent_id uuid,
    changed_at timestamptz,
    changed_by uuid,
    expires_at timestamptz,
    actor text
)
language sql
stable
begin atomic
    select
        v.version,
        v.value is null,
        v.value,
        v.value_type,
        v.owner_agent_id,
        v.changed_at,
        v.changed_by,
        v.expires_at,
        v.actor
    from @extschema@.caliber_state_version as v
    where v.team_id = (select @extschema@._caliber_reader_team($3))
        and v.namespace = $1
        and v.key = $2
        and v.version < coalesce($4, 9223372036854775807)
    order by v.version desc
    limit case
        when $5 between 1 and 1000 then $5
        else @extschema@._caliber_refuse('max_versions', $5::text, 'must be between 1 and 1000')::integer
    end;
end;

comment on function @extschema@.caliber_state_history(text, text, text, bigint, integer) is
'Every version of a key, newest first, deletions among them; before_version continues a list.';

create function @extschema@.caliber_state_set(
    namespace text,
    key text,
    value jsonb,
    expected_version bigint default null,
    agent_id uuid default null,
    value_type @extschema@.caliber_state_type default null,
    ttl_ms bigint default null,
    exclusive boolean default null,
    team text default null,
    incarnation bigint default null
)
returns bigint
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @state.set_value@ $python$;

comment on function @extschema@.caliber_state_set(
    text, text, jsonb, bigint, uuid, @extschema@.caliber_state_type, bigint, boolean, text, bigint
) is
'Writes a key and returns its new version; null, and nothing is written, when it is not at expected_version any more. 0 expects no value; left out, nothing is compared.';

create function @extschema@.caliber_state_delete(
    namespace text,
    key text,
    expected_version bigint default null,
    agent_id uuid default null,
    team text default null,
    incarnation bigint default null
)
returns bigint
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @state.delete@ $python$;

comment on function @extschema@.caliber_state_delete(text, text, bigint, uuid, text, bigint) is
'Deletes a key''s value, which is a version too, and returns its number; null when there is no value or it is not at expected_version any more.';

create function @extschema@.caliber_state_purge(max_versions integer default 10000)
returns integer
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @state.purge@ $python$;

comment on function @extschema@.caliber_state_purge(integer) is
'Deletes at most that many versions older than state_retention_days, never a current one, and returns how many. Admins only; call again until it returns 0.';

grant select on
    @extschema@.caliber_state_key,
    @extschema@.caliber_state_version,
    @extschema@.caliber_state
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@._caliber_reader_team(text),
    @extschema@._caliber_state_key_id(uuid, text, text),
    @extschema@.caliber_state_key_id(text, text, text),
    @extschema@.caliber_state_get(text, text, text),
    @extschema@.caliber_state_list(text, text, text, text, integer),
    @extschema@.caliber_state_history(text, text, text, bigint, integer)
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_state_set(
        text, text, jsonb, bigint, uuid, @extschema@.caliber_state_type, bigint, boolean, text, bigint
    ),
    @extschema@.caliber_state_delete(text, text, bigint, uuid, text, bigint)
to caliber_admin, caliber_agent;
grant execute on function @extschema@.caliber_state_purge(integer) to caliber_admin;
