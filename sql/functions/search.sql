-- Search: artifacts and notes, by embedding, by words or by both.
--
-- By embedding: cosine distance among rows of the same dimension. While there are no more rows
-- than the setting search_exact_rows, of the trajectory if one is given, all are compared; beyond
-- that the HNSW index of the dimension answers, if caliber_embedding_index has made one, and when
-- the filters leave it with too few, all are compared after all. By words: English full text search with the syntax of
-- websearch_to_tsquery. By both: the two lists are joined by reciprocal rank fusion.
--
-- Superseded artifacts and retired notes are left out. The verb runs as the owner and keeps to
-- what row security would show, because under row security neither index could be used.

create function @extschema@.caliber_search(
    query text default null,
    embedding vector default null,
    max_results integer default 10,
    trajectory_id uuid default null,
    kinds text[] default null,
    artifact_types @extschema@.caliber_artifact_type[] default null,
    embedding_model text default null,
    min_similarity double precision default null,
    agent_id uuid default null
)
returns table (
    kind text,
    type text,
    name text,
    content text,
    similarity double precision,
    text_rank real,
    score double precision,
    confidence real,
    id uuid,
    written_by uuid,
    found_in uuid,
    created_at timestamptz
)
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @search.search@ $python$;

comment on function @extschema@.caliber_search(
    text, vector, integer, uuid, text[], @extschema@.caliber_artifact_type[], text,
    double precision, uuid
) is
'The artifacts and notes you can read that are nearest to an embedding, match words, or both; best first. An admin can name the agent to read as.';

create function @extschema@.caliber_embedding_index(dim integer)
returns integer
language plpython3u
set search_path = pg_catalog, pg_temp
as $python$ @search.embedding_index@ $python$;

comment on function @extschema@.caliber_embedding_index(integer) is
'Makes the HNSW indexes for embeddings of that dimension, 1 to 4000, and returns how many it made; to be called again after a restore. Writes to artifacts and notes wait meanwhile. For who owns the tables.';

grant execute on function @extschema@.caliber_search(
    text, vector, integer, uuid, text[], @extschema@.caliber_artifact_type[], text,
    double precision, uuid
) to caliber_admin, caliber_agent, caliber_observer;
grant execute on function @extschema@.caliber_embedding_index(integer) to caliber_admin;
