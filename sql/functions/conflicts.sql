-- Conflicts: detecting, deciding, listing. The contract is in schema/conflicts.sql.

create function @extschema@._caliber_conflict_add(
    conflict_type @extschema@.caliber_conflict_type,
    item_type text,
    item_one uuid,
    item_two uuid,
    agent_one uuid default null,
    agent_two uuid default null,
    trajectory_id uuid default null,
    team_id uuid default null,
    evidence text default null,
    details jsonb default '{}'
)
returns uuid
language sql
volatile
set search_path = pg_catalog, pg_temp
begin atomic
    insert into @extschema@.caliber_conflict as c (
        conflict_type, item_a_type, item_a_id, item_b_type, item_b_id, agent_a_id, agent_b_id,
        trajectory_id, team_id, evidence, details
    )
    values (
        $1, $2, least($3, $4), $2, greatest($3, $4),
        case when $3 < $4 then $5 else $6 end, case when $3 < $4 then $6 else $5 end,
        $7, $8, pg_catalog.left($9, 2000), $10
    )
    on conflict on constraint caliber_conflict_pair_key do nothing
    returning c.conflict_id;
end;

comment on function @extschema@._caliber_conflict_add(
    @extschema@.caliber_conflict_type, text, uuid, uuid, uuid, uuid, uuid, uuid, text, jsonb
) is
'Records a conflict that another subsystem has seen between two items; null when the pair is known.';

-- Statements in PL/Python run with a pinned search_path and cannot name what pgvector has.
create function @extschema@._caliber_vector_bytes(value vector)
returns bytea
language sql
immutable
parallel safe
return vector_send(value);

comment on function @extschema@._caliber_vector_bytes(vector) is
'A vector as pgvector sends it: 2 bytes of dimensions, 2 of nothing, 4 for each number, big endian.';

create function @extschema@._caliber_vector_dims(value vector)
returns integer
language sql
immutable
parallel safe
return vector_dims(value);

comment on function @extschema@._caliber_vector_dims(vector) is 'The dimensions of a vector.';

create function @extschema@._caliber_similarity(one vector, other vector)
returns double precision
language sql
immutable
parallel safe
return 1 - (one <=> other);

comment on function @extschema@._caliber_similarity(vector, vector) is
'Cosine similarity of two vectors; not a number where one of them is zero, or its square too large or too small.';

create function @extschema@._caliber_vector_is_zero(value vector)
returns boolean
language sql
immutable
parallel safe
return vector_norm(value) = 0;

comment on function @extschema@._caliber_vector_is_zero(vector) is 'Whether a vector is all zeros.';

create function @extschema@.caliber_detect_conflicts(
    trajectory_id uuid,
    agent_id uuid default null
)
returns setof @extschema@.caliber_conflict
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @conflicts.detect@ $python$;

comment on function @extschema@.caliber_detect_conflicts(uuid, uuid) is
'Compares the facts, and the design decisions, of a trajectory by embedding and text; keeps and returns the conflicts that are new. The next call compares only what is new. What had to be left out is in caliber_conflict_scan.';

create function @extschema@.caliber_check_fact(
    trajectory_id uuid,
    content text,
    embedding vector,
    artifact_type @extschema@.caliber_artifact_type default 'fact',
    embedding_model text default null,
    max_results integer default 10,
    agent_id uuid default null
)
returns table (
    verdict @extschema@.caliber_conflict_verdict,
    similarity double precision,
    contradiction_score real,
    evidence text,
    known_content text,
    known_confidence real,
    known_artifact_id uuid,
    known_agent_id uuid,
    known_since timestamptz
)
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @conflicts_check.check_fact@ $python$;

comment on function @extschema@.caliber_check_fact(
    uuid, text, vector, @extschema@.caliber_artifact_type, text, integer, uuid
) is
'What a fact would be in conflict with if it were written to the trajectory, worst first; writes nothing. Found by the index of caliber_embedding_index where there are many, among the artifacts of the same model that you can read.';

create function @extschema@.caliber_claim_conflict(
    conflict_id uuid,
    agent_id uuid,
    incarnation bigint default null
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @conflicts_resolve.claim@ $python$;

comment on function @extschema@.caliber_claim_conflict(uuid, uuid, bigint) is
'Takes a conflict to decide it, so that no other agent does meanwhile; false when another has it or it is resolved. An admin may decide it all the same, and a terminated agent holds nothing.';

create function @extschema@.caliber_resolve_conflict(
    conflict_id uuid,
    strategy @extschema@.caliber_resolution_strategy,
    agent_id uuid default null,
    reason text default null,
    merged_content text default null,
    merged_embedding vector default null,
    merged_embedding_model text default null,
    incarnation bigint default null
)
returns setof @extschema@.caliber_conflict
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @conflicts_resolve.resolve@ $python$;

comment on function @extschema@.caliber_resolve_conflict(
    uuid, @extschema@.caliber_resolution_strategy, uuid, text, text, vector, text, bigint
) is
'Decides a conflict and applies it: the loser is superseded by the winner, merge writes a new artifact that supersedes both, reject_both leaves neither. What cannot be decided, a tie or an item that is gone, is escalated up reports_to. No row when it was resolved already or another agent has claimed it.';

create view @extschema@.caliber_conflicts with (security_invoker = true) as
select
    c.conflict_id,
    c.conflict_type,
    c.status,
    c.verdict,
    c.similarity,
    c.contradiction_score,
    c.evidence,
    a.content as content_a,
    b.content as content_b,
    by_a.name as agent_a,
    by_b.name as agent_b,
    a.status as status_a,
    b.status as status_b,
    a.confidence as confidence_a,
    b.confidence as confidence_b,
    a.created_at as created_a,
    b.created_at as created_b,
    c.strategy,
    c.winner,
    c.reason,
    c.resolved_by,
    up.name as escalated_to_name,
    c.needs_human,
    c.detected_at,
    c.resolved_at,
    c.escalated_at,
    c.escalation_level,
    c.merged_result_id,
    c.item_a_type,
    c.item_a_id,
    c.item_b_type,
    c.item_b_id,
    c.agent_a_id,
    c.agent_b_id,
    c.escalated_to,
    c.resolving_by,
    c.trajectory_id,
    c.team_id,
    c.details
from @extschema@.caliber_conflict as c
left join @extschema@.caliber_artifact as a on c.item_a_type = 'artifact' and c.item_a_id = a.artifact_id
left join @extschema@.caliber_artifact as b on c.item_b_type = 'artifact' and c.item_b_id = b.artifact_id
left join @extschema@.caliber_agent as by_a on c.agent_a_id = by_a.agent_id
left join @extschema@.caliber_agent as by_b on c.agent_b_id = by_b.agent_id
left join @extschema@.caliber_agent as up on c.escalated_to = up.agent_id;

comment on view @extschema@.caliber_conflicts is
'The conflicts you can see, both texts side by side, with whose they are, why they conflict and what became of it.';

create function @extschema@.caliber_conflict_list(
    trajectory_id uuid default null,
    status @extschema@.caliber_conflict_status default null,
    conflict_type @extschema@.caliber_conflict_type default null,
    verdict @extschema@.caliber_conflict_verdict default null,
    artifact_id uuid default null,
    max_results integer default 100
)
returns setof @extschema@.caliber_conflicts
language sql
stable
begin atomic
    select v.*
    from @extschema@.caliber_conflicts as v
    where ($1 is null or v.trajectory_id = $1)
        and case when $2 is null then v.status <> 'resolved' else v.status = $2 end
        and ($3 is null or v.conflict_type = $3)
        and ($4 is null or v.verdict = $4)
        and ($5 is null or v.item_a_id = $5 or v.item_b_id = $5)
    order by
        v.verdict desc nulls last, v.contradiction_score desc nulls last, v.similarity desc nulls last,
        v.conflict_id asc
    limit case
        when $6 between 1 and 1000 then $6
        else @extschema@._caliber_refuse('max_results', $6::text, 'must be between 1 and 1000')::integer
    end;
end;

comment on function @extschema@.caliber_conflict_list(
    uuid, @extschema@.caliber_conflict_status, @extschema@.caliber_conflict_type,
    @extschema@.caliber_conflict_verdict, uuid, integer
) is
'Conflicts as caliber_conflicts shows them, contradictions first; without a status, those that are not resolved.';

grant select on
    @extschema@.caliber_conflict,
    @extschema@.caliber_conflict_scan,
    @extschema@.caliber_conflict_compared,
    @extschema@.caliber_conflicts
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_conflict_list(
        uuid, @extschema@.caliber_conflict_status, @extschema@.caliber_conflict_type,
        @extschema@.caliber_conflict_verdict, uuid, integer
    ),
    @extschema@.caliber_check_fact(
        uuid, text, vector, @extschema@.caliber_artifact_type, text, integer, uuid
    )
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_detect_conflicts(uuid, uuid),
    @extschema@.caliber_claim_conflict(uuid, uuid, bigint),
    @extschema@.caliber_resolve_conflict(
        uuid, @extschema@.caliber_resolution_strategy, uuid, text, text, vector, text, bigint
    )
to caliber_admin, caliber_agent;
