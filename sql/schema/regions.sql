-- Memory regions: named places where agents keep values by key and share them on terms.
--
-- The type says who gets in: private is its owner's; team is read and written by the owner's
-- team; public is read by every agent and written by its owner; collaborative is read and
-- written by every agent. Readers and writers listed by the owner come on top of the type, in
-- every type; a writer also reads. _caliber_region_reason is that rule, and the only place it
-- is written down: verbs, policies and what caliber_reach explains all ask it.
--
-- Every key has a version that only rises. A write says which version it saw; when that is
-- no longer the newest, the write is concurrent to another one, and the region's policy
-- decides: last_write_wins, merge, manual or reject. Each such case leaves a row in
-- caliber_region_conflict. The decision is made on the locked row of the key, so of any
-- number of writers that saw the same version exactly one is not in conflict.
--
-- A write that does not say what it saw counts as having seen nothing, except outside
-- collaborative regions under last_write_wins, where it overwrites, and under merge, where
-- it is laid over what is there; nobody is known to be overruled then, so nothing is recorded.

create type @extschema@.caliber_access as enum ('read', 'write');
comment on type @extschema@.caliber_access is 'What an agent wants to do with a memory; who may write may read.';

create type @extschema@.caliber_region_type as enum ('private', 'team', 'public', 'collaborative');
comment on type @extschema@.caliber_region_type is
'Who gets into a region: its owner; its team; all to read and its owner to write; all to read and write.';

create type @extschema@.caliber_conflict_resolution as enum (
    'last_write_wins', 'merge', 'manual', 'reject'
);
comment on type @extschema@.caliber_conflict_resolution is
'What a region does with a write against an old version: takes it, merges it, puts it aside for somebody to decide, or refuses it.';

create type @extschema@.caliber_region_outcome as enum ('written', 'merged', 'kept', 'rejected');
comment on type @extschema@.caliber_region_outcome is
'What became of a write: written; merged into what was there; put aside while the value is kept; or rejected.';

create table @extschema@.caliber_region (
    region_id uuid not null default @extschema@.caliber_uuid_v7(),
    owner_agent_id uuid not null,
    team_id uuid not null,
    name text not null,
    region_type @extschema@.caliber_region_type not null,
    conflict_resolution @extschema@.caliber_conflict_resolution not null,
    version_tracking boolean not null default true,
    require_lock boolean not null default false,
    description text,
    created_at timestamptz not null default pg_catalog.clock_timestamp(),
    constraint caliber_region_pkey primary key (region_id),
    constraint caliber_region_name_key unique (owner_agent_id, name),
    constraint caliber_region_owner_fkey foreign key (owner_agent_id)
    references @extschema@.caliber_agent (agent_id),
    constraint caliber_region_team_fkey foreign key (team_id)
    references @extschema@.caliber_team (team_id),
    constraint caliber_region_name_length check (pg_catalog.length(name) between 1 and 63),
    constraint caliber_region_description_length check (pg_catalog.length(description) <= 1000)
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_region', '');
create index caliber_region_team_idx on @extschema@.caliber_region (team_id);

comment on table @extschema@.caliber_region is
'Memory regions and their terms; the view caliber_regions adds names and counts.';
comment on column @extschema@.caliber_region.region_id is 'Its id.';
comment on column @extschema@.caliber_region.owner_agent_id is 'The agent it belongs to.';
comment on column @extschema@.caliber_region.team_id is 'The owner''s team, which a team region is open to.';
comment on column @extschema@.caliber_region.name is 'What it is called; unique among its owner''s regions.';
comment on column @extschema@.caliber_region.region_type is 'Who gets in, besides those listed.';
comment on column @extschema@.caliber_region.conflict_resolution is 'What becomes of a write against an old version.';
comment on column @extschema@.caliber_region.version_tracking is 'Whether every version of every key is kept.';
comment on column @extschema@.caliber_region.require_lock is 'Whether a writer must hold the lock on the region and show its fence.';
comment on column @extschema@.caliber_region.description is 'What it is for.';
comment on column @extschema@.caliber_region.created_at is 'When it was made.';

create table @extschema@.caliber_region_member (
    region_id uuid not null,
    agent_id uuid not null,
    access @extschema@.caliber_access not null,
    granted_by name not null,
    granted_at timestamptz not null default pg_catalog.clock_timestamp(),
    constraint caliber_region_member_pkey primary key (region_id, agent_id),
    constraint caliber_region_member_region_fkey foreign key (region_id)
    references @extschema@.caliber_region (region_id),
    constraint caliber_region_member_agent_fkey foreign key (agent_id)
    references @extschema@.caliber_agent (agent_id)
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_region_member', '');
create index caliber_region_member_agent_idx on @extschema@.caliber_region_member (agent_id);

comment on table @extschema@.caliber_region_member is 'Readers and writers a region''s owner has listed.';
comment on column @extschema@.caliber_region_member.region_id is 'The region.';
comment on column @extschema@.caliber_region_member.agent_id is 'The agent listed.';
comment on column @extschema@.caliber_region_member.access is 'As a reader, or as a writer who also reads.';
comment on column @extschema@.caliber_region_member.granted_by is 'The role that listed it.';
comment on column @extschema@.caliber_region_member.granted_at is 'When it was listed with this access.';

-- What stands now, one row a key. A row is never deleted: the version must not start again.
create table @extschema@.caliber_region_entry (
    region_id uuid not null,
    key text not null,
    version bigint not null default 1,
    value jsonb,
    -- No foreign key: agents are never deleted, and the check would cost every write.
    written_by uuid not null,
    written_at timestamptz not null default pg_catalog.clock_timestamp(),
    constraint caliber_region_entry_pkey primary key (region_id, key),
    constraint caliber_region_entry_region_fkey foreign key (region_id)
    references @extschema@.caliber_region (region_id),
    constraint caliber_region_entry_key_length check (pg_catalog.length(key) between 1 and 200),
    constraint caliber_region_entry_version_positive check (version > 0)
)
with (fillfactor = 80);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_region_entry', '');

comment on table @extschema@.caliber_region_entry is
'What stands in the regions now, one row a key; read it with caliber_region_get.';
comment on column @extschema@.caliber_region_entry.region_id is 'The region.';
comment on column @extschema@.caliber_region_entry.key is 'The key in it.';
comment on column @extschema@.caliber_region_entry.version is 'Counts the writes of this key from 1; only rises.';
comment on column @extschema@.caliber_region_entry.value is 'The value; null once it was removed.';
comment on column @extschema@.caliber_region_entry.written_by is 'The agent that wrote this version.';
comment on column @extschema@.caliber_region_entry.written_at is 'When it was written.';

create table @extschema@.caliber_region_version (
    region_id uuid not null,
    key text not null,
    version bigint not null,
    value jsonb,
    written_by uuid not null,
    written_at timestamptz not null,
    constraint caliber_region_version_pkey primary key (region_id, key, version),
    constraint caliber_region_version_entry_fkey foreign key (region_id, key)
    references @extschema@.caliber_region_entry (region_id, key)
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_region_version', '');

comment on table @extschema@.caliber_region_version is
'Every version of every key of the regions that track versions, the newest included; append-only.';
comment on column @extschema@.caliber_region_version.region_id is 'The region.';
comment on column @extschema@.caliber_region_version.key is 'The key in it.';
comment on column @extschema@.caliber_region_version.version is 'The version, without gaps from 1.';
comment on column @extschema@.caliber_region_version.value is 'The value it had; null where it was removed.';
comment on column @extschema@.caliber_region_version.written_by is 'The agent that wrote it.';
comment on column @extschema@.caliber_region_version.written_at is 'When it was written.';

create table @extschema@.caliber_region_conflict (
    conflict_id uuid not null default @extschema@.caliber_uuid_v7(),
    region_id uuid not null,
    key text not null,
    agent_id uuid not null,
    other_agent_id uuid not null,
    seen_version bigint not null,
    found_version bigint not null,
    written_version bigint,
    conflict_resolution @extschema@.caliber_conflict_resolution not null,
    outcome @extschema@.caliber_region_outcome not null,
    lost_value jsonb,
    detected_at timestamptz not null default pg_catalog.clock_timestamp(),
    constraint caliber_region_conflict_pkey primary key (conflict_id),
    constraint caliber_region_conflict_entry_fkey foreign key (region_id, key)
    references @extschema@.caliber_region_entry (region_id, key),
    constraint caliber_region_conflict_versions check (
        seen_version >= 0 and found_version > seen_version and written_version > found_version
    )
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_region_conflict', '');
create index caliber_region_conflict_region_idx
on @extschema@.caliber_region_conflict (region_id, key, conflict_id);

comment on table @extschema@.caliber_region_conflict is
'Writes to regions that had seen an old version, and what became of them; append-only.';
comment on column @extschema@.caliber_region_conflict.conflict_id is 'Its id.';
comment on column @extschema@.caliber_region_conflict.region_id is 'The region.';
comment on column @extschema@.caliber_region_conflict.key is 'The key in it.';
comment on column @extschema@.caliber_region_conflict.agent_id is 'The agent whose write came against an old version.';
comment on column @extschema@.caliber_region_conflict.other_agent_id is 'The agent that had written the version found.';
comment on column @extschema@.caliber_region_conflict.seen_version is 'The version the writer had seen; 0 is none.';
comment on column @extschema@.caliber_region_conflict.found_version is 'The version that stood there.';
comment on column @extschema@.caliber_region_conflict.written_version is 'The version that was written; null when the value was kept.';
comment on column @extschema@.caliber_region_conflict.conflict_resolution is 'The region''s policy.';
comment on column @extschema@.caliber_region_conflict.outcome is 'What became of the write.';
comment on column @extschema@.caliber_region_conflict.lost_value is
'What does not stand as it was given: the overwritten value, the one that was merged, or the one put aside. A rejected one stays with its writer.';
comment on column @extschema@.caliber_region_conflict.detected_at is 'When the write came.';
