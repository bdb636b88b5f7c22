-- Conflicts: what cannot both hold, or cannot both happen, and what became of it.
--
-- caliber_detect_conflicts compares the facts of a trajectory with each other, and its design
-- decisions with each other, by embedding; only among those of one dimension and model. A pair that is
-- very alike and not the same text is a candidate. A pair that is somewhat alike and whose texts
-- give evidence of it, an opposite, a negation, another number, is a contradiction; the evidence
-- is kept in words.
--
-- A pair is kept once, the older item as a, whoever finds it and how often: the key is unique. Which
-- artifacts were compared is kept too, so that the next call compares only what is new with all
-- the rest. Detectors of one trajectory take turns by locking its row of caliber_conflict_scan; an
-- artifact that commits meanwhile is not marked, and is new to the next call.
--
-- A conflict is decided on its locked row, by one; whoever comes second finds it resolved. Locks are
-- taken from the conflict to its artifacts, and these in the order of their ids.
--
-- What other subsystems see, they record here themselves: regions a write against an old version, as
-- concurrent_write, under the id it has there, open only where it was put aside; locks an agent that
-- waited for a lease in vain, as resource_contention, a row for each resource, holder and
-- waiting agent, with how often.
-- A is then the region, or the resource and who had it; b is the write, or the agent that waited.
--
-- What cannot be decided where it is goes up: to whom the agent reports, as a message, from there to the
-- next, and in the end to a person (needs_human). Once it has gone up, those below leave it alone.

create type @extschema@.caliber_conflict_type as enum (
    'concurrent_write', 'contradicting_fact', 'incompatible_decision', 'resource_contention', 'goal_conflict'
);
comment on type @extschema@.caliber_conflict_type is 'What is in conflict.';

create type @extschema@.caliber_conflict_status as enum ('detected', 'resolving', 'resolved', 'escalated');
comment on type @extschema@.caliber_conflict_status is
'State of a conflict: found, taken by an agent, decided, or passed up.';

create type @extschema@.caliber_conflict_verdict as enum ('candidate', 'contradiction');
comment on type @extschema@.caliber_conflict_verdict is
'What detection says of a pair: alike but not the same, or contradicting by what the texts say.';

create type @extschema@.caliber_resolution_strategy as enum (
    'last_write_wins', 'first_write_wins', 'highest_confidence', 'merge', 'escalate', 'reject_both'
);
comment on type @extschema@.caliber_resolution_strategy is 'How a conflict is decided.';

create table @extschema@.caliber_conflict (
    conflict_id uuid not null default @extschema@.caliber_uuid_v7(),
    conflict_type @extschema@.caliber_conflict_type not null,
    status @extschema@.caliber_conflict_status not null default 'detected',
    verdict @extschema@.caliber_conflict_verdict,
    similarity double precision,
    contradiction_score real,
    evidence text,
    item_a_type text not null,
    item_a_id uuid not null,
    item_b_type text not null,
    item_b_id uuid not null,
    agent_a_id uuid,
    agent_b_id uuid,
    hash_a bytea,
    hash_b bytea,
    trajectory_id uuid,
    team_id uuid,
    detected_at timestamptz not null default pg_catalog.clock_timestamp(),
    resolving_by uuid,
    strategy @extschema@.caliber_resolution_strategy,
    winner text,
    merged_result_id uuid,
    reason text,
    resolved_by text,
    resolved_at timestamptz,
    escalated_to uuid,
    escalated_at timestamptz,
    escalation_level integer not null default 0,
    escalation_message_id uuid,
    needs_human boolean not null default false,
    details jsonb not null default '{}',
    constraint caliber_conflict_pkey primary key (conflict_id),
    constraint caliber_conflict_pair_key unique (conflict_type, item_a_id, item_b_id),
    -- Of things of one kind, the pair has one order.
    constraint caliber_conflict_pair_ordered check (item_a_type <> item_b_type or item_a_id < item_b_id),
    constraint caliber_conflict_winner_known check (winner in ('a', 'b', 'merged')),
    constraint caliber_conflict_resolved_has_time check ((status = 'resolved') = (resolved_at is not null)),
    constraint caliber_conflict_escalated_has_time check (
        status <> 'escalated' or escalated_at is not null
    ),
    constraint caliber_conflict_resolving_has_agent check (
        (status = 'resolving') = (resolving_by is not null)
    ),
    constraint caliber_conflict_text_length check (
        pg_catalog.length(item_a_type) between 1 and 63 and pg_catalog.length(item_b_type) between 1 and 63
        and pg_catalog.length(evidence) <= 2000
        and pg_catalog.length(reason) <= 2000
        and pg_catalog.length(resolved_by) <= 63
    )
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_conflict', '');

create index caliber_conflict_open_idx on @extschema@.caliber_conflict (status, conflict_id)
where status <> 'resolved';
create index caliber_conflict_trajectory_idx on @extschema@.caliber_conflict (trajectory_id, conflict_id);
create index caliber_conflict_item_a_idx on @extschema@.caliber_conflict (item_a_id);
create index caliber_conflict_item_b_idx on @extschema@.caliber_conflict (item_b_id);

comment on table @extschema@.caliber_conflict is
'Conflicts, each pair once; the view caliber_conflicts shows both texts side by side.';
comment on column @extschema@.caliber_conflict.conflict_id is 'Its id.';
comment on column @extschema@.caliber_conflict.conflict_type is 'What is in conflict.';
comment on column @extschema@.caliber_conflict.status is 'How far it is decided.';
comment on column @extschema@.caliber_conflict.verdict is 'What detection said of the pair; null when another subsystem recorded it.';
comment on column @extschema@.caliber_conflict.similarity is 'Cosine similarity of the embeddings.';
comment on column @extschema@.caliber_conflict.contradiction_score is 'How much the texts contradict each other, 0 to 1.';
comment on column @extschema@.caliber_conflict.evidence is 'What the score rests on, in words.';
comment on column @extschema@.caliber_conflict.item_a_type is 'What kind of thing a is, such as artifact.';
comment on column @extschema@.caliber_conflict.item_a_id is 'The item with the lower id, of artifacts the older; the region; the resource.';
comment on column @extschema@.caliber_conflict.item_b_type is 'What kind of thing b is.';
comment on column @extschema@.caliber_conflict.item_b_id is 'The other item; the write to the region; the agent that waited.';
comment on column @extschema@.caliber_conflict.agent_a_id is 'The agent a comes from; who wrote what stood, who had the lease.';
comment on column @extschema@.caliber_conflict.agent_b_id is 'The agent b comes from.';
comment on column @extschema@.caliber_conflict.hash_a is 'SHA-256 of what a says.';
comment on column @extschema@.caliber_conflict.hash_b is 'SHA-256 of what b says.';
comment on column @extschema@.caliber_conflict.trajectory_id is 'The trajectory it was found in.';
comment on column @extschema@.caliber_conflict.team_id is 'The team of that trajectory.';
comment on column @extschema@.caliber_conflict.detected_at is 'When it was found.';
comment on column @extschema@.caliber_conflict.resolving_by is 'The agent that has taken it, while it does.';
comment on column @extschema@.caliber_conflict.strategy is 'How it was decided; escalate also where another strategy could not decide.';
comment on column @extschema@.caliber_conflict.winner is 'What holds now: a, b or merged; null for neither.';
comment on column @extschema@.caliber_conflict.merged_result_id is 'The artifact that took the place of both.';
comment on column @extschema@.caliber_conflict.reason is 'Why so, in words.';
comment on column @extschema@.caliber_conflict.resolved_by is 'Who decided: an agent''s id, the role of an admin, or automatic.';
comment on column @extschema@.caliber_conflict.resolved_at is 'When it was decided.';
comment on column @extschema@.caliber_conflict.escalated_to is 'The agent it was passed up to last.';
comment on column @extschema@.caliber_conflict.escalated_at is 'When it was last passed up.';
comment on column @extschema@.caliber_conflict.escalation_level is 'How often it was passed up.';
comment on column @extschema@.caliber_conflict.escalation_message_id is 'The message that told it; null where none could be sent.';
comment on column @extschema@.caliber_conflict.needs_human is 'Nobody is above whoever passed it up: a person has to decide.';
comment on column @extschema@.caliber_conflict.details is 'What whoever recorded it added.';

create table @extschema@.caliber_conflict_scan (
    trajectory_id uuid not null,
    team_id uuid not null,
    scans bigint not null default 0,
    scanned_at timestamptz,
    compared bigint not null default 0,
    without_embedding bigint not null default 0,
    zero_embedding bigint not null default 0,
    found bigint not null default 0,
    dropped bigint not null default 0,
    complete boolean not null default true,
    constraint caliber_conflict_scan_pkey primary key (trajectory_id),
    constraint caliber_conflict_scan_trajectory_fkey foreign key (trajectory_id)
    references @extschema@.caliber_trajectory (trajectory_id)
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_conflict_scan', '');

comment on table @extschema@.caliber_conflict_scan is
'How detection stands in each trajectory: what was compared, and what had to be left out.';
comment on column @extschema@.caliber_conflict_scan.trajectory_id is 'The trajectory.';
comment on column @extschema@.caliber_conflict_scan.team_id is 'Its team.';
comment on column @extschema@.caliber_conflict_scan.scans is 'How often it was looked through.';
comment on column @extschema@.caliber_conflict_scan.scanned_at is 'When last.';
comment on column @extschema@.caliber_conflict_scan.compared is 'Artifacts compared so far.';
comment on column @extschema@.caliber_conflict_scan.without_embedding is 'Facts and decisions without an embedding, at the last scan.';
comment on column @extschema@.caliber_conflict_scan.zero_embedding is 'Those among the compared whose embedding is all zeros, which is like nothing.';
comment on column @extschema@.caliber_conflict_scan.found is 'Conflicts found so far.';
comment on column @extschema@.caliber_conflict_scan.dropped is 'Pairs that were alike enough to be judged but beyond conflict_max_pairs; the least alike are dropped.';
comment on column @extschema@.caliber_conflict_scan.complete is 'Whether the last scan compared all there was; if not, call again.';

-- No foreign key: thousands of rows are written at once, and artifacts are never deleted.
create table @extschema@.caliber_conflict_compared (
    artifact_id uuid not null,
    dimensions integer not null,
    constraint caliber_conflict_compared_pkey primary key (artifact_id)
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_conflict_compared', '');

comment on table @extschema@.caliber_conflict_compared is
'Artifacts that detection has compared with all others there were.';
comment on column @extschema@.caliber_conflict_compared.artifact_id is 'The artifact.';
comment on column @extschema@.caliber_conflict_compared.dimensions is 'Of its embedding; 0 when that is all zeros.';

alter table @extschema@.caliber_conflict enable row level security;
-- A region's conflicts are for those who see the region. Agents of two teams are not told of each other.
-- The evidence repeats words of both texts, so a conflict of artifacts is for those who read both.
create policy caliber_conflict_read on @extschema@.caliber_conflict for select
using (
    (select @extschema@._caliber_sees_all())
    or escalated_to = any((select @extschema@._caliber_readable_agents())::uuid[])
    or case conflict_type
        when 'concurrent_write' then exists (
            select from @extschema@.caliber_region as r
            where r.region_id = caliber_conflict.item_a_id
        )
        when 'resource_contention' then
            team_id is not null
            and (
                agent_a_id = any((select @extschema@._caliber_readable_agents())::uuid[])
                or agent_b_id = any((select @extschema@._caliber_readable_agents())::uuid[])
            )
        else
            (select @extschema@._caliber_reads_all('artifact'))
            or team_id = (select @extschema@._caliber_reads_team('artifact'))
            or exists (
                select from @extschema@.caliber_trajectory as t
                where t.trajectory_id = caliber_conflict.trajectory_id
                    and t.agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
            )
            or exists (
                select from @extschema@.caliber_artifact as r
                where r.artifact_id = caliber_conflict.item_a_id
            )
            and exists (
                select from @extschema@.caliber_artifact as r
                where r.artifact_id = caliber_conflict.item_b_id
            )
    end
);

alter table @extschema@.caliber_conflict_scan enable row level security;
create policy caliber_conflict_scan_read on @extschema@.caliber_conflict_scan for select
using (
    (select @extschema@._caliber_reads_all('artifact'))
    or team_id = (select @extschema@._caliber_reads_team('artifact'))
    or exists (
        select from @extschema@.caliber_trajectory as t
        where t.trajectory_id = caliber_conflict_scan.trajectory_id
            and t.agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
    )
);

alter table @extschema@.caliber_conflict_compared enable row level security;
create policy caliber_conflict_compared_read on @extschema@.caliber_conflict_compared for select
using ((select @extschema@._caliber_sees_all()));
