-- Events: recording, following and retention. The contract is in schema/events.sql.

-- Append-only also for a superuser's slip of the hand: the only rows that may go are those
-- past the retention time, so retention needs no secret switch that lets deletes through.
create function @extschema@._caliber_event_keep()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    keep_days integer := @extschema@._caliber_config_value('event_retention_days')::integer;
begin
    if tg_op = 'DELETE' then
        perform from gone as g
        where g.recorded_at > pg_catalog.clock_timestamp() - pg_catalog.make_interval(days => keep_days);
        if not found then
            return null;
        end if;
    end if;
    raise exception using
        errcode = '42501',
        message = pg_catalog.format('caliber: events are append-only, %s refused', pg_catalog.lower(tg_op)),
        detail = pg_catalog.format('Events are kept for %s days.', keep_days),
        hint = 'The setting event_retention_days says how long; caliber_event_purge deletes older ones.';
end
$$;

comment on function @extschema@._caliber_event_keep() is
'Trigger: refuses to update or truncate events, and to delete those younger than the retention.';

create trigger caliber_event_keep_update before update on @extschema@.caliber_event
for each statement execute function @extschema@._caliber_event_keep();
create trigger caliber_event_keep_truncate before truncate on @extschema@.caliber_event
for each statement execute function @extschema@._caliber_event_keep();
create trigger caliber_event_keep_delete after delete on @extschema@.caliber_event
referencing old table as gone
for each statement execute function @extschema@._caliber_event_keep();

-- How every verb records what it did: in its own statement, so in its own transaction.
-- Notifications carry the category only, so that many events of one transaction are one,
-- and none is sent when the cluster's queue fills up: they are a hint, never state. Settings are
-- read from their table, with their defaults repeated here: this body is planned at each call, and
-- the list of all keys in it made that three times as long.
create function @extschema@._caliber_log(
    event_type text,
    category @extschema@.caliber_event_category,
    severity @extschema@.caliber_event_severity,
    summary text,
    source_agent_id uuid default null,
    team_id uuid default null,
    trajectory_id uuid default null,
    reference_type text default null,
    reference_id text default null,
    details jsonb default '{}',
    always boolean default false,
    reported boolean default false
)
returns bigint
language sql
volatile
set search_path = pg_catalog, pg_temp
begin atomic
    select pg_catalog.pg_notify('caliber_event', $2::text)
    where (
            $11 or $3 >= coalesce(
                (select s.value from @extschema@.caliber_setting as s where s.key = 'event_level'), 'info'
            )::@extschema@.caliber_event_severity
        )
        and coalesce(
            (select s.value from @extschema@.caliber_setting as s where s.key = 'event_notify'), 'on'
        ) = 'on'
        and pg_catalog.pg_notification_queue_usage() <= 0.25;

    insert into @extschema@.caliber_event as e (
        event_type, category, severity, summary, actor, source_agent_id, team_id,
        trajectory_id, reference_type, reference_id, details, reported
    )
    select
        $1, $2, $3, pg_catalog.left($4, 1000), @extschema@._caliber_actor(), $5, $6,
        $7, $8, $9, $10, $12
    where $11 or $3 >= coalesce(
        (select s.value from @extschema@.caliber_setting as s where s.key = 'event_level'), 'info'
    )::@extschema@.caliber_event_severity
    returning e.event_id;
end;

comment on function @extschema@._caliber_log(
    text, @extschema@.caliber_event_category, @extschema@.caliber_event_severity, text,
    uuid, uuid, uuid, text, text, jsonb, boolean, boolean
) is
'Records an event, unless it is below event_level and need not be kept always, and notifies caliber_event; returns its number or null.';

create function @extschema@.caliber_event_record(
    event_type text,
    summary text,
    agent_id uuid default null,
    category @extschema@.caliber_event_category default 'agent',
    severity @extschema@.caliber_event_severity default 'info',
    details jsonb default '{}',
    trajectory_id uuid default null,
    reference_type text default null,
    reference_id text default null
)
returns bigint
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @events.record@ $python$;

comment on function @extschema@.caliber_event_record(
    text, text, uuid, @extschema@.caliber_event_category, @extschema@.caliber_event_severity,
    jsonb, uuid, text, text
) is
'Records an event of your own, marked as reported, and returns its number, or null when it is below event_level. An agent records as itself.';

create function @extschema@._caliber_event_cursor(cursor text)
returns text
language sql
stable
return case
    when cursor is null then '0-0-0'
    when cursor ~ '^[0-9]{1,9}-[0-9]{1,18}-[0-9]{1,19}$'
        and pg_catalog.split_part(cursor, '-', 3)::numeric <= 9223372036854775807 then cursor
    else @extschema@._caliber_refuse(
        'cursor', cursor, 'must be one that caliber_events_since or caliber_event_cursor returned'
    )
end;

comment on function @extschema@._caliber_event_cursor(text) is
'A cursor that is well formed; null is the beginning. 22023 otherwise.';

create function @extschema@.caliber_events_since(
    cursor text default null,
    max_events integer default 100
)
returns table (
    next_cursor text,
    event_id bigint,
    recorded_at timestamptz,
    severity @extschema@.caliber_event_severity,
    category @extschema@.caliber_event_category,
    event_type text,
    source_agent_id uuid,
    summary text,
    details jsonb,
    trajectory_id uuid,
    reference_type text,
    reference_id text,
    actor name,
    reported boolean
)
language sql
stable
begin atomic
    select
        pg_catalog.concat_ws('-', e.epoch, e.xid, e.event_id),
        e.event_id,
        e.recorded_at,
        e.severity,
        e.category,
        e.event_type,
        e.source_agent_id,
        e.summary,
        e.details,
        e.trajectory_id,
        e.reference_type,
        e.reference_id,
        e.actor,
        e.reported
    from @extschema@.caliber_event as e
    where (e.epoch, e.xid, e.event_id) > (
            pg_catalog.split_part(@extschema@._caliber_event_cursor(cursor), '-', 1)::integer,
            pg_catalog.split_part(@extschema@._caliber_event_cursor(cursor), '-', 2)::xid8,
            pg_catalog.split_part(@extschema@._caliber_event_cursor(cursor), '-', 3)::bigint
        )
        and (e.epoch, e.xid) < (
            (select @extschema@._caliber_epoch_now()),
            pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())
        )
    order by e.epoch, e.xid, e.event_id
    limit case
        when max_events between 1 and 1000 then max_events
        else @extschema@._caliber_refuse('max_events', max_events::text, 'must be between 1 and 1000')::integer
    end;
end;

comment on function @extschema@.caliber_events_since(text, integer) is
'The events after a cursor in the order they became final, none ever skipped. Keep the last row''s next_cursor for the next call; null starts at the beginning.';

create function @extschema@.caliber_event_cursor()
returns text
language sql
stable
return pg_catalog.concat_ws(
    '-',
    @extschema@._caliber_epoch_now(),
    pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::bigint - 1,
    9223372036854775807
);

comment on function @extschema@.caliber_event_cursor() is
'A cursor that stands at now: caliber_events_since with it returns what becomes final from here on.';

create function @extschema@.caliber_event_purge(max_events integer default 10000)
returns integer
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @events.purge@ $python$;

comment on function @extschema@.caliber_event_purge(integer) is
'Deletes at most that many events older than event_retention_days and returns how many. Admins only; call again until it returns 0.';

grant select on @extschema@.caliber_event to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@._caliber_event_cursor(text),
    @extschema@.caliber_events_since(text, integer),
    @extschema@.caliber_event_cursor()
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function @extschema@.caliber_event_record(
    text, text, uuid, @extschema@.caliber_event_category, @extschema@.caliber_event_severity,
    jsonb, uuid, text, text
) to caliber_admin, caliber_agent;
grant execute on function @extschema@.caliber_event_purge(integer) to caliber_admin;
