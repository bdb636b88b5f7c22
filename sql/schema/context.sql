-- Context: what an agent is given to read before it goes on with a trajectory.
--
-- caliber_context_assemble fills a budget of tokens, section by section in this order:
--   handoff    handoff notes of the trajectory
--   decisions  its design decisions, constraints, user preferences and plans
--   facts      its facts and summaries
--   turns      what was said last
--   notes      notes nearest to the embedding, when one is given
-- Within a section the newest come first to be chosen, and are shown in the order they were
-- written. Each section has a share of the budget; what one leaves over goes to the others, in
-- the same order. An item longer than half of its section's share is cut to that.
--
-- What was decided is shown by caliber_context_trace: a row for each item that got in, whole or
-- cut, and a row for what was left out of each section, with the reason and how many they were.
-- It is one value of the context's row: a context is written and read as a whole, and hundreds of
-- rows would cost more than all the rest.
--
-- A context is a snapshot: it is stored with the SHA-256 of its content and never changed. Those
-- older than the setting context_retention_days may be purged.

create type @extschema@.caliber_context_section as enum ('handoff', 'decisions', 'facts', 'turns', 'notes');
comment on type @extschema@.caliber_context_section is 'The sections of a context, the most important first.';

create type @extschema@.caliber_context_decision as enum ('included', 'truncated', 'excluded');
comment on type @extschema@.caliber_context_decision is 'What became of an item when a context was assembled.';

create table @extschema@.caliber_context (
    context_id uuid not null default @extschema@.caliber_uuid_v7(),
    trajectory_id uuid not null,
    agent_id uuid not null,
    team_id uuid not null,
    token_budget integer not null,
    token_count integer not null,
    content text not null,
    content_hash bytea not null,
    embedding vector,
    shares jsonb not null,
    trace json not null,
    created_at timestamptz not null default pg_catalog.clock_timestamp(),
    constraint caliber_context_pkey primary key (context_id),
    constraint caliber_context_within_budget check (token_count between 0 and token_budget),
    constraint caliber_context_hash_length check (pg_catalog.octet_length(content_hash) = 32)
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_context', '');

-- Written once and seldom read: compressing took longer than all the rest of assembling.
alter table @extschema@.caliber_context alter column content set storage external;
alter table @extschema@.caliber_context alter column trace set storage external;

create index caliber_context_trajectory_idx on @extschema@.caliber_context (trajectory_id, context_id);
create index caliber_context_created_idx on @extschema@.caliber_context (created_at);

comment on table @extschema@.caliber_context is 'Contexts that were assembled: snapshots that never change.';
comment on column @extschema@.caliber_context.context_id is 'Its id.';
comment on column @extschema@.caliber_context.trajectory_id is 'The trajectory it is of.';
comment on column @extschema@.caliber_context.agent_id is 'The agent it was assembled for.';
comment on column @extschema@.caliber_context.team_id is 'The team of the trajectory.';
comment on column @extschema@.caliber_context.token_budget is 'The tokens it was allowed.';
comment on column @extschema@.caliber_context.token_count is 'The tokens it has.';
comment on column @extschema@.caliber_context.content is 'What the agent is given to read.';
comment on column @extschema@.caliber_context.content_hash is 'SHA-256 of the content in UTF-8.';
comment on column @extschema@.caliber_context.embedding is 'The embedding that notes were chosen by.';
comment on column @extschema@.caliber_context.shares is 'The share of the budget, in percent, of each section.';
comment on column @extschema@.caliber_context.trace is 'What was decided, row by row; the view caliber_context_trace shows it.';
comment on column @extschema@.caliber_context.created_at is 'When it was assembled.';

-- The newest of a section with their tokens are read from these alone, in their order. The types
-- are those of SECTIONS in context.py.
create index caliber_artifact_decisions_idx on @extschema@.caliber_artifact (trajectory_id, artifact_id)
include (token_count, agent_id)
where status <> 'superseded' and artifact_type in ('design_decision', 'constraint', 'user_preference', 'plan');
create index caliber_artifact_facts_idx on @extschema@.caliber_artifact (trajectory_id, artifact_id)
include (token_count, agent_id)
where status <> 'superseded' and artifact_type in ('fact', 'summary');

-- Who has the trajectory reads what is in it anyway. With an embedding a context also holds notes
-- from elsewhere, as far as the agent it was assembled for may read them; then it is that agent's.
alter table @extschema@.caliber_context enable row level security;
create policy caliber_context_read on @extschema@.caliber_context for select
using (
    (select @extschema@._caliber_reads_all('context'))
    or team_id = (select @extschema@._caliber_reads_team('context'))
    or agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
    or (
        embedding is null
        and exists (
            select from @extschema@.caliber_trajectory as t
            where t.trajectory_id = caliber_context.trajectory_id
                and t.agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
        )
    )
);
