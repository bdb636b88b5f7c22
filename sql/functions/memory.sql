-- Memory: verbs and views of artifacts and notes. The contract is in schema/memory.sql.
--
-- agent_id says who writes. Left out it is the agent whose login is calling, or, for an admin,
-- the one that has the trajectory.

-- Statements in PL/Python run with a pinned search_path and cannot name the type.
create function @extschema@._caliber_vector(value text)
returns vector
language sql
immutable
parallel safe
return value::vector;

comment on function @extschema@._caliber_vector(text) is 'A vector from its text.';

create function @extschema@.caliber_artifact_create(
    scope_id uuid,
    trajectory_id uuid,
    artifact_type @extschema@.caliber_artifact_type,
    content text,
    extraction_method @extschema@.caliber_extraction_method default 'explicit',
    embedding vector default null,
    confidence double precision default null,
    name text default null,
    path text default null,
    status @extschema@.caliber_artifact_status default 'final',
    embedding_model text default null,
    tokens integer default null,
    agent_id uuid default null,
    metadata jsonb default '{}',
    incarnation bigint default null,
    detect_conflicts boolean default false
)
returns uuid
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @memory.artifact_create@ $python$;

comment on function @extschema@.caliber_artifact_create(
    uuid, uuid, @extschema@.caliber_artifact_type, text, @extschema@.caliber_extraction_method, vector,
    double precision, text, text, @extschema@.caliber_artifact_status, text, integer, uuid, jsonb, bigint, boolean
) is
'Keeps an artifact in an open scope and returns its id. The trajectory may be null; given, it must be the scope''s (22023). Content over 256 KB is refused (54000). KA007 when the scope is closed. With detect_conflicts, a fact or decision with an embedding is compared at once with the nearest of its trajectory; caliber_conflict_list(artifact_id => …) shows what was found.';

create function @extschema@.caliber_artifact_supersede(
    artifact_id uuid,
    superseded_by uuid,
    reason text default null,
    agent_id uuid default null,
    incarnation bigint default null
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @memory.artifact_supersede@ $python$;

comment on function @extschema@.caliber_artifact_supersede(uuid, uuid, text, uuid, bigint) is
'Says that another artifact takes this one''s place; false when it already does. KA007 when either of them is superseded, so that chains have no cycles.';

create view @extschema@.caliber_artifacts with (security_invoker = true) as
select
    r.artifact_id,
    r.artifact_type,
    r.status,
    r.name,
    r.content,
    a.name as agent,
    r.confidence,
    r.extraction_method,
    r.superseded_by,
    r.path,
    r.token_count,
    vector_dims(r.embedding) as embedding_dim,
    r.embedding_model,
    pg_catalog.encode(r.content_hash, 'hex') as content_sha256,
    r.metadata,
    r.created_at,
    r.superseded_at,
    r.trajectory_id,
    r.scope_id,
    r.agent_id,
    r.team_id
from @extschema@.caliber_artifact as r
left join @extschema@.caliber_agent as a on r.agent_id = a.agent_id;

comment on view @extschema@.caliber_artifacts is
'The artifacts you can see, for reading: with their agent''s name, without embedding and index words.';

create function @extschema@.caliber_artifact_get(artifact_id uuid)
returns setof @extschema@.caliber_artifacts
language sql
stable
begin atomic
    select v.* from @extschema@.caliber_artifacts as v where v.artifact_id = $1;
end;

comment on function @extschema@.caliber_artifact_get(uuid) is
'One artifact as caliber_artifacts shows it; no row when there is none that you can see.';

create function @extschema@.caliber_artifact_latest(artifact_id uuid)
returns setof @extschema@.caliber_artifacts
language sql
stable
begin atomic
    with recursive chain as (
        select r.artifact_id, r.superseded_by from @extschema@.caliber_artifact as r where r.artifact_id = $1
        union all
        select r.artifact_id, r.superseded_by
        from @extschema@.caliber_artifact as r
        inner join chain as c on r.artifact_id = c.superseded_by
    )

    select v.*
    from @extschema@.caliber_artifacts as v
    inner join chain as c on v.artifact_id = c.artifact_id
    where c.superseded_by is null;
end;

comment on function @extschema@.caliber_artifact_latest(uuid) is
'What an artifact has been superseded by, at the end of the chain; itself when it is not superseded.';

create function @extschema@.caliber_note_add(
    agent_id uuid,
    note_type @extschema@.caliber_note_type,
    content text,
    trajectory_id uuid default null,
    level @extschema@.caliber_note_level default 'raw',
    name text default null,
    confidence double precision default null,
    embedding vector default null,
    embedding_model text default null,
    tags text[] default '{}',
    tokens integer default null,
    metadata jsonb default '{}',
    incarnation bigint default null
)
returns uuid
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @memory.note_add@ $python$;

comment on function @extschema@.caliber_note_add(
    uuid, @extschema@.caliber_note_type, text, uuid, @extschema@.caliber_note_level, text,
    double precision, vector, text, text[], integer, jsonb, bigint
) is
'Keeps a note of an agent, which outlives every trajectory, and returns its id. A handoff note needs the trajectory it is for. Content over 256 KB is refused (54000).';

create function @extschema@.caliber_note_retire(
    note_id uuid,
    reason text default null,
    agent_id uuid default null,
    incarnation bigint default null
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @memory.note_retire@ $python$;

comment on function @extschema@.caliber_note_retire(uuid, text, uuid, bigint) is
'Says that a note no longer holds; search and context leave it out. False when it was retired already.';

create view @extschema@.caliber_notes with (security_invoker = true) as
select
    n.note_id,
    n.note_type,
    n.level,
    n.name,
    n.content,
    a.name as agent,
    n.confidence,
    n.tags,
    n.token_count,
    vector_dims(n.embedding) as embedding_dim,
    n.embedding_model,
    pg_catalog.encode(n.content_hash, 'hex') as content_sha256,
    n.metadata,
    n.created_at,
    n.retired_at,
    n.trajectory_id,
    n.agent_id,
    n.team_id
from @extschema@.caliber_note as n
left join @extschema@.caliber_agent as a on n.agent_id = a.agent_id;

comment on view @extschema@.caliber_notes is
'The notes you can see, for reading: with their agent''s name, without embedding and index words.';

grant select on
    @extschema@.caliber_artifact,
    @extschema@.caliber_note,
    @extschema@.caliber_artifacts,
    @extschema@.caliber_notes
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@._caliber_vector(text),
    @extschema@.caliber_artifact_get(uuid),
    @extschema@.caliber_artifact_latest(uuid)
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_artifact_create(
        uuid, uuid, @extschema@.caliber_artifact_type, text, @extschema@.caliber_extraction_method, vector,
        double precision, text, text, @extschema@.caliber_artifact_status, text, integer, uuid, jsonb, bigint, boolean
    ),
    @extschema@.caliber_artifact_supersede(uuid, uuid, text, uuid, bigint),
    @extschema@.caliber_note_add(
        uuid, @extschema@.caliber_note_type, text, uuid, @extschema@.caliber_note_level, text,
        double precision, vector, text, text[], integer, jsonb, bigint
    ),
    @extschema@.caliber_note_retire(uuid, text, uuid, bigint)
to caliber_admin, caliber_agent;
