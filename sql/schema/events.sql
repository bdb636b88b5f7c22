-- Events: the append-only record of what happened, written in the transaction that did it.
--
-- Whoever follows it holds a cursor and asks for what came after. Neither time nor a
-- serial number can be that cursor: both are handed out before the commit, so a reader that
-- has seen number 8 would skip number 7 when that commits later. The position of an event is
-- (epoch, transaction, number), and a reader is shown a transaction only when no older one
-- is still running, so nothing can appear behind its cursor. The price: a transaction left
-- open anywhere in the cluster holds back events after it until it ends.

create type @extschema@.caliber_event_category as enum (
    'agent', 'message', 'state', 'coordination', 'system'
);
comment on type @extschema@.caliber_event_category is 'What an event is about.';

create type @extschema@.caliber_event_severity as enum (
    'debug', 'info', 'warning', 'error', 'critical'
);
comment on type @extschema@.caliber_event_severity is
'How much an event matters, in rising order; the setting event_level drops what is below it.';

create table @extschema@.caliber_event (
    event_id bigint generated always as identity,
    epoch integer not null default @extschema@._caliber_epoch_now(),
    xid xid8 not null default pg_catalog.pg_current_xact_id(),
    recorded_at timestamptz not null default pg_catalog.clock_timestamp(),
    severity @extschema@.caliber_event_severity not null,
    category @extschema@.caliber_event_category not null,
    event_type text not null,
    actor name not null,
    source_agent_id uuid,
    team_id uuid,
    trajectory_id uuid,
    reference_type text,
    reference_id text,
    summary text not null,
    details jsonb not null default '{}',
    reported boolean not null default false,
    constraint caliber_event_pkey primary key (event_id),
    constraint caliber_event_type_length check (pg_catalog.length(event_type) between 1 and 63),
    constraint caliber_event_summary_length check (pg_catalog.length(summary) between 1 and 1000),
    constraint caliber_event_details_object check (pg_catalog.jsonb_typeof(details) = 'object'),
    constraint caliber_event_reference_length check (
        pg_catalog.length(reference_type) <= 63 and pg_catalog.length(reference_id) <= 1000
    )
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_event', '');
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_event_event_id_seq', '');

-- The order readers follow.
create unique index caliber_event_position_idx on @extschema@.caliber_event (epoch, xid, event_id);
create index caliber_event_source_idx on @extschema@.caliber_event (source_agent_id, event_id);
create index caliber_event_trajectory_idx on @extschema@.caliber_event (trajectory_id, event_id)
where trajectory_id is not null;
-- Events come in by time, so a few pages of ranges find the old ones.
create index caliber_event_recorded_idx on @extschema@.caliber_event using brin (recorded_at);

comment on table @extschema@.caliber_event is
'What happened, one row an event, never changed; follow it with caliber_events_since.';
comment on column @extschema@.caliber_event.event_id is 'Serial number; not the order of commits.';
comment on column @extschema@.caliber_event.epoch is 'Part of the position: the epoch it was written in.';
comment on column @extschema@.caliber_event.xid is 'Part of the position: the transaction that wrote it.';
comment on column @extschema@.caliber_event.recorded_at is 'When it was written, by the database clock.';
comment on column @extschema@.caliber_event.severity is 'How much it matters.';
comment on column @extschema@.caliber_event.category is 'What it is about.';
comment on column @extschema@.caliber_event.event_type is 'What happened, such as agent_registered.';
comment on column @extschema@.caliber_event.actor is 'The database role that did it.';
comment on column @extschema@.caliber_event.source_agent_id is 'The agent it happened to or came from.';
comment on column @extschema@.caliber_event.team_id is 'That agent''s team.';
comment on column @extschema@.caliber_event.trajectory_id is 'The trajectory it belongs to.';
comment on column @extschema@.caliber_event.reference_type is 'What kind of thing reference_id names.';
comment on column @extschema@.caliber_event.reference_id is 'The id of what it refers to.';
comment on column @extschema@.caliber_event.summary is 'One sentence for people.';
comment on column @extschema@.caliber_event.details is 'The values behind it, a json object.';
comment on column @extschema@.caliber_event.reported is 'Whether somebody said so with caliber_event_record; else a verb did it.';
