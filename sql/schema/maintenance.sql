-- Maintenance: what is tidied up now and then, and what people look at.
--
-- Nothing here is needed for anything to be right. Leases, turns, claims and deadlines are judged
-- by the clock when they are read, so a database in which caliber_tick never runs is correct,
-- only untidy: what ran out stays in the tables, what died keeps its leases to their end.
--
-- caliber_tick does a bounded piece of every kind of tidying and returns; whoever wants may call
-- it, as often as they want and from several places at once. Each step is undone alone when it
-- fails or does not get a lock within a second, and is done by the next call.
--
-- Reaping. An agent that was silent for too long is unavailable, and that is all until somebody
-- reaps it. Reaping takes a new incarnation first, so that nothing the old process does with its
-- own is accepted any more, and then gives back in the same transaction what the agent held. The
-- agent is failed afterwards; a process that takes it over calls caliber_agent_resume.
--
-- Two things wait for an agent's own transaction to end: a transaction in which it showed its
-- incarnation, or a guard, holds the rows concerned. Such an agent is passed over and reaped by
-- the first call after that.

-- The last place drawn in any queue when transaction `until` began; see maintenance_marks.py.
create table @extschema@.caliber_tick_note (
    one boolean not null default true,
    drawn bigint not null,
    until xid8 not null,
    noted_at timestamptz not null default pg_catalog.clock_timestamp(),
    constraint caliber_tick_note_pkey primary key (one),
    constraint caliber_tick_note_one check (one)
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_tick_note', '');

comment on table @extschema@.caliber_tick_note is
'What caliber_tick notes for its next call, one row: how far queues were when it ran.';
comment on column @extschema@.caliber_tick_note.one is 'Always true: there is one row.';
comment on column @extschema@.caliber_tick_note.drawn is 'The last place that was drawn in any queue.';
comment on column @extschema@.caliber_tick_note.until is 'A transaction that began after that.';
comment on column @extschema@.caliber_tick_note.noted_at is 'When caliber_tick last ran.';

alter table @extschema@.caliber_tick_note enable row level security;
create policy caliber_tick_note_read on @extschema@.caliber_tick_note for select
using ((select @extschema@._caliber_sees_all()));
