-- Audit: who handed what to whom, and what came of it; never changed, and chained.
--
-- A record is written in the transaction of the step it tells of, before the step takes effect.
-- What an error rolls back leaves no record; so a handoff that is turned down is an outcome,
-- which is recorded, and only misuse is an error, which the server's log keeps.
--
-- Each team has a chain. A record holds the SHA-256 of its content, the hash of the record before
-- it, and the hash of both with its place and time. caliber_audit_verify goes over all of it and
-- says which record was changed, removed, inserted or moved. Whoever can rewrite every record
-- after some point, and the head, could still forge: so keep caliber_audit_head elsewhere now and
-- then, and let caliber_audit_verify compare it.
--
-- Retention. A record is kept for audit_retention_days (90), one of an escalation for
-- audit_escalation_retention_days (180), and any record until its trajectory has been finished
-- for audit_closure_days (30). What caliber_audit_purge deletes leaves its hashes in
-- caliber_audit_pruned, so that the chain still holds and nobody can pass off a young record's
-- removal as retention: its time is part of the hash. Young is what is less than 90 days old, or
-- 180 of an escalation, which is the least that the settings allow.
--
-- Writing a record locks the head of the team's chain until the transaction ends: the steps of a
-- team's handoffs commit one after the other. A step that is recorded in the chains of several teams
-- locks their heads first, in the order of the teams.

create table @extschema@.caliber_audit (
    team_id uuid not null,
    audit_no bigint not null,
    recorded_at timestamptz not null,
    event_type text not null,
    handoff_id uuid not null,
    handoff_type text not null,
    trajectory_id uuid not null,
    task_id text,
    from_agent_id uuid not null,
    to_agent_id uuid,
    to_agent_type text,
    reason text not null,
    decision_rationale text,
    risk_level @extschema@.caliber_risk not null,
    task_status text,
    variables_sha256 text,
    artifact_count integer not null default 0,
    duration_ms bigint,
    tokens_consumed bigint,
    outcome text,
    actor name not null default @extschema@._caliber_actor(),
    details jsonb not null default '{}',
    is_escalation boolean not null,
    content_hash bytea not null,
    prev_hash bytea not null,
    hash bytea not null,
    constraint caliber_audit_pkey primary key (team_id, audit_no),
    constraint caliber_audit_text_length check (
        pg_catalog.length(event_type) between 1 and 63
        and pg_catalog.length(reason) <= 1000
        and pg_catalog.length(decision_rationale) <= 10000
        and pg_catalog.length(task_id) <= 200
    )
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_audit', '');

create index caliber_audit_handoff_idx on @extschema@.caliber_audit (handoff_id, audit_no);
create index caliber_audit_task_idx on @extschema@.caliber_audit (task_id) where task_id is not null;
create index caliber_audit_from_idx on @extschema@.caliber_audit (from_agent_id, recorded_at);
create index caliber_audit_to_idx on @extschema@.caliber_audit (to_agent_id, recorded_at);
create index caliber_audit_trajectory_idx on @extschema@.caliber_audit (trajectory_id, recorded_at);
create index caliber_audit_recorded_idx on @extschema@.caliber_audit (recorded_at);

comment on table @extschema@.caliber_audit is
'What happened to handoffs, one record a step, chained by hashes and never changed.';
comment on column @extschema@.caliber_audit.team_id is 'The chain: the team of the trajectory when the handoff began.';
comment on column @extschema@.caliber_audit.audit_no is 'Its place in the chain, from 1 without gaps.';
comment on column @extschema@.caliber_audit.recorded_at is 'When it was written, by the database clock.';
comment on column @extschema@.caliber_audit.event_type is 'The step: initiated, accepted, rejected, completed and so on.';
comment on column @extschema@.caliber_audit.handoff_id is 'The handoff.';
comment on column @extschema@.caliber_audit.handoff_type is 'Its type: sequential, delegation, broadcast or escalation.';
comment on column @extschema@.caliber_audit.trajectory_id is 'The trajectory it is about.';
comment on column @extschema@.caliber_audit.task_id is 'The task it is about, as the sender names it.';
comment on column @extschema@.caliber_audit.from_agent_id is 'The agent that hands over.';
comment on column @extschema@.caliber_audit.to_agent_id is 'The agent that is to take over; null while that may be any of a type, or a human.';
comment on column @extschema@.caliber_audit.to_agent_type is 'The type of agent it is offered to.';
comment on column @extschema@.caliber_audit.reason is 'Why this step.';
comment on column @extschema@.caliber_audit.decision_rationale is 'What was thought, as the acting agent says.';
comment on column @extschema@.caliber_audit.risk_level is 'How risky the work is.';
comment on column @extschema@.caliber_audit.task_status is 'The status of the trajectory at this step.';
comment on column @extschema@.caliber_audit.variables_sha256 is 'SHA-256 of the context variables at this step.';
comment on column @extschema@.caliber_audit.artifact_count is 'Artifacts handed over, or returned.';
comment on column @extschema@.caliber_audit.duration_ms is 'Time since the handoff was initiated, for what settles it.';
comment on column @extschema@.caliber_audit.tokens_consumed is 'Tokens used, as the receiver says.';
comment on column @extschema@.caliber_audit.outcome is 'How it ended: success, partial or failed.';
comment on column @extschema@.caliber_audit.actor is 'The database role that did it.';
comment on column @extschema@.caliber_audit.details is 'Further values, a json object.';
comment on column @extschema@.caliber_audit.is_escalation is 'Whether the longer retention of escalations holds.';
comment on column @extschema@.caliber_audit.content_hash is 'SHA-256 of all of the above, as json.';
comment on column @extschema@.caliber_audit.prev_hash is 'The hash of the record before.';
comment on column @extschema@.caliber_audit.hash is 'SHA-256 of prev_hash, content_hash, place and time.';

create table @extschema@.caliber_audit_pruned (
    team_id uuid not null,
    audit_no bigint not null,
    recorded_at timestamptz not null,
    is_escalation boolean not null,
    content_hash bytea not null,
    prev_hash bytea not null,
    hash bytea not null,
    constraint caliber_audit_pruned_pkey primary key (team_id, audit_no)
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_audit_pruned', '');

comment on table @extschema@.caliber_audit_pruned is
'The hashes of records that retention has deleted; of those at the beginning of a chain only the last.';
comment on column @extschema@.caliber_audit_pruned.team_id is 'The chain.';
comment on column @extschema@.caliber_audit_pruned.audit_no is 'The place of the record.';
comment on column @extschema@.caliber_audit_pruned.recorded_at is 'When the record was written.';
comment on column @extschema@.caliber_audit_pruned.is_escalation is 'Whether the longer retention held.';
comment on column @extschema@.caliber_audit_pruned.content_hash is 'SHA-256 of what it held.';
comment on column @extschema@.caliber_audit_pruned.prev_hash is 'The hash of the record before.';
comment on column @extschema@.caliber_audit_pruned.hash is 'Its hash.';

create table @extschema@.caliber_audit_head (
    team_id uuid not null,
    audit_no bigint not null,
    hash bytea not null,
    constraint caliber_audit_head_pkey primary key (team_id)
)
with (fillfactor = 50);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_audit_head', '');

comment on table @extschema@.caliber_audit_head is
'The last record of each chain. Keep a copy elsewhere: caliber_audit_verify compares it.';
comment on column @extschema@.caliber_audit_head.team_id is 'The chain.';
comment on column @extschema@.caliber_audit_head.audit_no is 'The place of its last record.';
comment on column @extschema@.caliber_audit_head.hash is 'The hash of that.';

-- The parties of a handoff read its records, and those who see all.
alter table @extschema@.caliber_audit enable row level security;
create policy caliber_audit_read on @extschema@.caliber_audit for select
using (
    (select @extschema@._caliber_sees_all())
    or from_agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
    or to_agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
);

alter table @extschema@.caliber_audit_pruned enable row level security;
create policy caliber_audit_pruned_read on @extschema@.caliber_audit_pruned for select
using ((select @extschema@._caliber_sees_all()));

alter table @extschema@.caliber_audit_head enable row level security;
create policy caliber_audit_head_read on @extschema@.caliber_audit_head for select
using (
    (select @extschema@._caliber_sees_all())
    or team_id = (select @extschema@._caliber_my_team())
);
