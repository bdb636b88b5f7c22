-- Checkpoints: how far an agent has come, for the process that takes over when it crashes.
--
-- A checkpoint names what has been dealt with (its type and the id of the item) and may hold a
-- snapshot of the agent's own state. It is saved by the transaction it describes: the work and
-- the checkpoint are both there or both not, so a process that starts again trusts the latest.

create table @extschema@.caliber_checkpoint (
    checkpoint_id bigint generated always as identity,
    agent_id uuid not null,
    checkpoint_type text not null,
    reference_id text not null,
    agent_state jsonb,
    trajectory_id uuid,
    incarnation bigint not null,
    saved_at timestamptz not null default pg_catalog.clock_timestamp(),
    constraint caliber_checkpoint_pkey primary key (checkpoint_id),
    constraint caliber_checkpoint_type_length check (pg_catalog.length(checkpoint_type) between 1 and 63),
    constraint caliber_checkpoint_reference_length check (
        pg_catalog.length(reference_id) between 1 and 1000
    ),
    constraint caliber_checkpoint_state_object check (pg_catalog.jsonb_typeof(agent_state) = 'object')
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_checkpoint', '');
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_checkpoint_checkpoint_id_seq', '');

create index caliber_checkpoint_agent_idx on @extschema@.caliber_checkpoint (agent_id, checkpoint_id);
create index caliber_checkpoint_reference_idx on @extschema@.caliber_checkpoint (
    agent_id, reference_id, checkpoint_id
);

comment on table @extschema@.caliber_checkpoint is
'What agents have dealt with, saved in the transaction that did it; never changed.';
comment on column @extschema@.caliber_checkpoint.checkpoint_id is 'Its number; an agent''s later checkpoint has the higher one.';
comment on column @extschema@.caliber_checkpoint.agent_id is 'The agent that saved it.';
comment on column @extschema@.caliber_checkpoint.checkpoint_type is 'What was done, such as message_processed, state_committed or token_released.';
comment on column @extschema@.caliber_checkpoint.reference_id is 'The id of what it was done to.';
comment on column @extschema@.caliber_checkpoint.agent_state is 'The agent''s own state at that point, a json object.';
comment on column @extschema@.caliber_checkpoint.trajectory_id is 'The trajectory the agent worked on.';
comment on column @extschema@.caliber_checkpoint.incarnation is 'The process of the agent that saved it.';
comment on column @extschema@.caliber_checkpoint.saved_at is 'When it was saved, by the database clock.';

-- An agent's snapshot is its own; its team has no need to see it, those who may read the agent do.
alter table @extschema@.caliber_checkpoint enable row level security;
create policy caliber_checkpoint_read on @extschema@.caliber_checkpoint for select
using (
    (select @extschema@._caliber_sees_all())
    or agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
);
