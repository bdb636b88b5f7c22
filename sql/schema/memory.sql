-- Memory: what agents keep of their work. An artifact is what came out of a scope; a note is
-- what outlives its trajectory.
--
-- Content never changes once written. An artifact is replaced by another: it becomes superseded
-- and names its successor. Both are locked, and neither may be superseded already, so a chain
-- grows only at its end and has no cycles.
--
-- An embedding may have any dimension; caliber_embedding_index makes the index for one.

create type @extschema@.caliber_artifact_type as enum (
    'fact', 'design_decision', 'code_patch', 'error_log', 'constraint', 'user_preference', 'tool_result',
    'intermediate_output', 'plan', 'summary', 'file', 'code', 'document', 'test_result', 'review_comment',
    'custom'
);
comment on type @extschema@.caliber_artifact_type is 'What an artifact is.';

create type @extschema@.caliber_artifact_status as enum ('draft', 'final', 'superseded');
comment on type @extschema@.caliber_artifact_status is 'State of an artifact; a superseded one has a successor.';

create type @extschema@.caliber_extraction_method as enum ('explicit', 'inferred', 'user_provided');
comment on type @extschema@.caliber_extraction_method is
'Where an artifact comes from: said in so many words, inferred, or provided by the user.';

create type @extschema@.caliber_note_type as enum (
    'episodic', 'procedural', 'fact', 'convention', 'strategy', 'gotcha', 'preference', 'relationship',
    'handoff', 'custom'
);
comment on type @extschema@.caliber_note_type is
'What a note is; a handoff note comes first in the context of its trajectory.';

create type @extschema@.caliber_note_level as enum ('raw', 'summary', 'principle');
comment on type @extschema@.caliber_note_level is 'How far a note is abstracted from what happened.';

create table @extschema@.caliber_artifact (
    artifact_id uuid not null default @extschema@.caliber_uuid_v7(),
    scope_id uuid not null,
    trajectory_id uuid not null,
    agent_id uuid not null,
    team_id uuid not null,
    artifact_type @extschema@.caliber_artifact_type not null,
    status @extschema@.caliber_artifact_status not null default 'final',
    superseded_by uuid,
    name text,
    path text,
    content text not null,
    content_hash bytea not null,
    token_count integer not null,
    extraction_method @extschema@.caliber_extraction_method not null default 'explicit',
    confidence real,
    embedding vector,
    embedding_model text,
    metadata jsonb not null default '{}',
    created_at timestamptz not null default pg_catalog.clock_timestamp(),
    superseded_at timestamptz,
    words tsvector generated always as (
        pg_catalog.to_tsvector(
            'pg_catalog.english'::pg_catalog.regconfig, coalesce(name, '') || ' ' || content
        )
    ) stored,
    constraint caliber_artifact_pkey primary key (artifact_id),
    constraint caliber_artifact_scope_fkey foreign key (scope_id)
    references @extschema@.caliber_scope (scope_id),
    constraint caliber_artifact_successor_fkey foreign key (superseded_by)
    references @extschema@.caliber_artifact (artifact_id),
    constraint caliber_artifact_not_its_own_successor check (superseded_by <> artifact_id),
    constraint caliber_artifact_superseded_has_time check (
        (status = 'superseded') = (superseded_at is not null)
        and (superseded_by is null or status = 'superseded')
    ),
    constraint caliber_artifact_text_length check (
        pg_catalog.length(name) <= 200
        and pg_catalog.length(path) <= 1000
        and pg_catalog.length(embedding_model) <= 200
        and pg_catalog.octet_length(content) <= 262144
    ),
    constraint caliber_artifact_limits check (
        token_count >= 0 and confidence between 0 and 1
        and pg_catalog.octet_length(content_hash) = 32
        and (embedding_model is null or embedding is not null)
    )
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_artifact', '');

create index caliber_artifact_trajectory_idx
on @extschema@.caliber_artifact (trajectory_id, artifact_type, artifact_id);
create index caliber_artifact_scope_idx on @extschema@.caliber_artifact (scope_id);
create index caliber_artifact_agent_idx on @extschema@.caliber_artifact (agent_id);
create index caliber_artifact_team_idx on @extschema@.caliber_artifact (team_id);
create index caliber_artifact_successor_idx on @extschema@.caliber_artifact (superseded_by)
where superseded_by is not null;
create index caliber_artifact_words_idx on @extschema@.caliber_artifact using gin (words);

comment on table @extschema@.caliber_artifact is
'What came out of work; content never changes, a newer artifact supersedes an older one.';
comment on column @extschema@.caliber_artifact.artifact_id is 'Its id.';
comment on column @extschema@.caliber_artifact.scope_id is 'The scope it was made in.';
comment on column @extschema@.caliber_artifact.trajectory_id is 'The trajectory of that scope.';
comment on column @extschema@.caliber_artifact.agent_id is 'The agent that made it.';
comment on column @extschema@.caliber_artifact.team_id is 'The team of its trajectory.';
comment on column @extschema@.caliber_artifact.artifact_type is 'What it is.';
comment on column @extschema@.caliber_artifact.status is 'Draft, final or superseded.';
comment on column @extschema@.caliber_artifact.superseded_by is 'The artifact that took its place.';
comment on column @extschema@.caliber_artifact.name is 'What it is called.';
comment on column @extschema@.caliber_artifact.path is 'Where it lies outside the database: a path or an address.';
comment on column @extschema@.caliber_artifact.content is 'What it says, at most 256 KB.';
comment on column @extschema@.caliber_artifact.content_hash is 'SHA-256 of the content in UTF-8.';
comment on column @extschema@.caliber_artifact.token_count is 'Its tokens, as given or else estimated when it was written.';
comment on column @extschema@.caliber_artifact.extraction_method is 'Where it comes from.';
comment on column @extschema@.caliber_artifact.confidence is 'How sure its author is, 0 to 1; null is not said.';
comment on column @extschema@.caliber_artifact.embedding is 'Its embedding, of any dimension.';
comment on column @extschema@.caliber_artifact.embedding_model is 'The model that made the embedding.';
comment on column @extschema@.caliber_artifact.metadata is 'The caller''s own.';
comment on column @extschema@.caliber_artifact.created_at is 'When it was made.';
comment on column @extschema@.caliber_artifact.superseded_at is 'When it was superseded.';
comment on column @extschema@.caliber_artifact.words is 'Name and content for full text search.';

create table @extschema@.caliber_note (
    note_id uuid not null default @extschema@.caliber_uuid_v7(),
    agent_id uuid not null,
    team_id uuid not null,
    trajectory_id uuid,
    note_type @extschema@.caliber_note_type not null,
    level @extschema@.caliber_note_level not null default 'raw',
    name text,
    content text not null,
    content_hash bytea not null,
    token_count integer not null,
    confidence real,
    embedding vector,
    embedding_model text,
    tags text[] not null default '{}',
    metadata jsonb not null default '{}',
    created_at timestamptz not null default pg_catalog.clock_timestamp(),
    retired_at timestamptz,
    words tsvector generated always as (
        pg_catalog.to_tsvector(
            'pg_catalog.english'::pg_catalog.regconfig, coalesce(name, '') || ' ' || content
        )
    ) stored,
    constraint caliber_note_pkey primary key (note_id),
    constraint caliber_note_agent_fkey foreign key (agent_id)
    references @extschema@.caliber_agent (agent_id),
    constraint caliber_note_trajectory_fkey foreign key (trajectory_id)
    references @extschema@.caliber_trajectory (trajectory_id),
    constraint caliber_note_handoff_has_trajectory check (
        note_type <> 'handoff' or trajectory_id is not null
    ),
    constraint caliber_note_text_length check (
        pg_catalog.length(name) <= 200
        and pg_catalog.length(embedding_model) <= 200
        and pg_catalog.octet_length(content) <= 262144
    ),
    constraint caliber_note_limits check (
        token_count >= 0 and confidence between 0 and 1
        and pg_catalog.octet_length(content_hash) = 32
        and pg_catalog.cardinality(tags) <= 100
        and (embedding_model is null or embedding is not null)
    )
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_note', '');

create index caliber_note_agent_idx on @extschema@.caliber_note (agent_id, note_id);
create index caliber_note_team_idx on @extschema@.caliber_note (team_id, note_id);
create index caliber_note_trajectory_idx on @extschema@.caliber_note (trajectory_id, note_type, note_id)
where trajectory_id is not null;
create index caliber_note_words_idx on @extschema@.caliber_note using gin (words);

comment on table @extschema@.caliber_note is
'What outlives a trajectory: what happened, how things are done, what is known.';
comment on column @extschema@.caliber_note.note_id is 'Its id.';
comment on column @extschema@.caliber_note.agent_id is 'The agent that wrote it.';
comment on column @extschema@.caliber_note.team_id is 'The team of that agent.';
comment on column @extschema@.caliber_note.trajectory_id is 'The trajectory it comes from or is for.';
comment on column @extschema@.caliber_note.note_type is 'What it is.';
comment on column @extschema@.caliber_note.level is 'How far it is abstracted from what happened.';
comment on column @extschema@.caliber_note.name is 'What it is called.';
comment on column @extschema@.caliber_note.content is 'What it says, at most 256 KB.';
comment on column @extschema@.caliber_note.content_hash is 'SHA-256 of the content in UTF-8.';
comment on column @extschema@.caliber_note.token_count is 'Its tokens, as given or else estimated when it was written.';
comment on column @extschema@.caliber_note.confidence is 'How sure its author is, 0 to 1; null is not said.';
comment on column @extschema@.caliber_note.embedding is 'Its embedding, of any dimension.';
comment on column @extschema@.caliber_note.embedding_model is 'The model that made the embedding.';
comment on column @extschema@.caliber_note.tags is 'Words to find it by.';
comment on column @extschema@.caliber_note.metadata is 'The caller''s own.';
comment on column @extschema@.caliber_note.created_at is 'When it was written.';
comment on column @extschema@.caliber_note.retired_at is 'When it ceased to hold; search and context leave it out from then on.';
comment on column @extschema@.caliber_note.words is 'Name and content for full text search.';

alter table @extschema@.caliber_artifact enable row level security;
create policy caliber_artifact_read on @extschema@.caliber_artifact for select
using (
    (select @extschema@._caliber_reads_all('artifact'))
    or team_id = (select @extschema@._caliber_reads_team('artifact'))
    or agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
    or exists (
        select from @extschema@.caliber_trajectory as t
        where t.trajectory_id = caliber_artifact.trajectory_id
            and t.agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
    )
);

alter table @extschema@.caliber_note enable row level security;
create policy caliber_note_read on @extschema@.caliber_note for select
using (
    (select @extschema@._caliber_reads_all('note'))
    or team_id = (select @extschema@._caliber_reads_team('note'))
    or agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
    or exists (
        select from @extschema@.caliber_trajectory as t
        where t.trajectory_id = caliber_note.trajectory_id
            and t.agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
    )
);
