-- Conflicts: detecting, deciding, listing. The contract is in schema/conflicts.sql.

create function @extschema@._caliber_conflict_of_write(
    conflict_id uuid,
    region_id uuid,
    stood_agent_id uuid,
    came_agent_id uuid,
    policy @extschema@.caliber_conflict_resolution,
    outcome @extschema@.caliber_region_outcome,
    team_id uuid,
    details jsonb
)
returns uuid
language sql
volatile
set search_path = pg_catalog, pg_temp
begin atomic
    insert into @extschema@.caliber_conflict as c (
        conflict_id, conflict_type, status, item_a_type, item_a_id, item_b_type, item_b_id,
        agent_a_id, agent_b_id, team_id, evidence, details, strategy, winner, reason, resolved_by, resolved_at
    )
    select
        $1, 'concurrent_write', case when d.strategy is null then 'detected' else 'resolved' end
        ::@extschema@.caliber_conflict_status,
        'region', $2, 'region_write', $1, $3, $4, $7,
        'a write that had seen version ' || ($8 ->> 'seen_version') || ' found version '
        || ($8 ->> 'found_version'),
        $8, d.strategy::@extschema@.caliber_resolution_strategy, d.winner,
        case when d.strategy is not null then 'the policy of the region is ' || $5 end,
        case when d.strategy is not null then 'automatic' end,
        case when d.strategy is not null then pg_catalog.clock_timestamp() end
    from (
        select
            case $6
                when 'written' then 'last_write_wins'
                when 'merged' then 'merge'
                when 'rejected' then 'first_write_wins'
            end as strategy,
            case $6 when 'written' then 'b' when 'merged' then 'merged' when 'rejected' then 'a' end as winner
    ) as d
    returning c.conflict_id;
end;

comment on function @extschema@._caliber_conflict_of_write(
    uuid, uuid, uuid, uuid, @extschema@.caliber_conflict_resolution, @extschema@.caliber_region_outcome,
    uuid, jsonb
) is
'Records a write to a region against an old version; decided by its policy, or open where the write was put aside.';

create function @extschema@._caliber_conflict_of_lease(
    lock_ids uuid[],
    waiting_agent_id uuid,
    mode @extschema@.caliber_lock_mode
)
returns bigint
language sql
volatile
set search_path = pg_catalog, pg_temp
begin atomic
    with lease as (
        select r.lock_id, r.resource_type, r.resource_id, r.holder_agent_id
        from @extschema@.caliber_resource as r
        where r.lock_id = any($1)
        union all
        select s.lock_id, s.resource_type, s.resource_id, s.holder_agent_id
        from @extschema@.caliber_lock_shared as s
        where s.lock_id = any($1)
    ),

    kept as (
        insert into @extschema@.caliber_conflict as c (
            conflict_type, item_a_type, item_a_id, item_b_type, item_b_id, agent_a_id, agent_b_id,
            team_id, evidence, details
        )
        select distinct on (l.resource_type, l.resource_id, l.holder_agent_id)
            'resource_contention', 'resource',
            -- An id for the resource in the hands of this holder.
            pg_catalog.encode(
                pg_catalog.substr(
                    pg_catalog.sha256(pg_catalog.convert_to(
                        l.resource_type || ':' || l.resource_id || ':' || l.holder_agent_id, 'UTF8'
                    )),
                    1, 16
                ),
                'hex'
            )::uuid,
            'agent', $2, l.holder_agent_id, $2,
            -- Of one team, or nobody's but the admins'.
            case when h.team_id = w.team_id then h.team_id end,
            'an agent waited in vain for ' || l.resource_type || ' ' || l.resource_id,
            pg_catalog.jsonb_build_object(
                'resource_type', l.resource_type, 'resource_id', l.resource_id, 'lock_id', l.lock_id,
                'mode', $3, 'times', 1
            )
        from lease as l
        inner join @extschema@.caliber_agent as h on l.holder_agent_id = h.agent_id
        inner join @extschema@.caliber_agent as w on w.agent_id = $2
        order by l.resource_type asc, l.resource_id asc, l.holder_agent_id asc, l.lock_id asc
        on conflict on constraint caliber_conflict_pair_key do update
        set details = excluded.details || pg_catalog.jsonb_build_object(
            'times', (c.details ->> 'times')::bigint + 1, 'last_at', pg_catalog.clock_timestamp()
        )
        returning c.conflict_id
    )

    select pg_catalog.count(*) from kept as k;
end;

comment on function @extschema@._caliber_conflict_of_lease(uuid[], uuid, @extschema@.caliber_lock_mode) is
'Records that an agent waited for these leases in vain: a row for each resource, holder and waiting agent, with how often.';

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

create function @extschema@._caliber_vector_fetched(value vector)
returns vector
language sql
immutable
parallel safe
return vector(value, -1, false);

comment on function @extschema@._caliber_vector_fetched(vector) is
'The same vector, in memory: what is compared with it then need not fetch it each time.';

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
    c.escalation_message_id,
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
        and case
            when $2 is not null then v.status = $2
            else
                v.status <> 'resolved'
                and v.status_a is distinct from 'superseded'
                and v.status_b is distinct from 'superseded'
        end
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
'Conflicts as caliber_conflicts shows them, contradictions first; without a status, those still to be decided: not resolved, and neither side superseded meanwhile.';

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
