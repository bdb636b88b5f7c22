-- Shared state: values that agents of a team keep under a namespace and a key, with versions.
--
-- A writer shows the version it read; when somebody else was faster, its write is not done and
-- it reads again. No update is lost. caliber_state_key has one narrow row a key: its version and
-- how long it lives. Whoever writes locks that row, decides on it and appends the value to
-- caliber_state_version in the same statement, so versions count from 1 without a gap: either
-- both rows are written or none. Deleting is a version too, and a key that is set again goes on
-- counting, so a version never means two things. That is why keys are never removed.
--
-- A value with a time to live is gone once that has passed, by the database clock, when it is
-- read or compared; nothing has to run for that. A key may have an owner: then only it writes.

create type @extschema@.caliber_state_type as enum ('json', 'string', 'integer', 'boolean');
comment on type @extschema@.caliber_state_type is
'What a key of the shared state holds; json is anything, integer fits a bigint.';

-- Half a page free and no index but the key: a new version stays on its page (HOT).
create table @extschema@.caliber_state_key (
    team_id uuid not null,
    namespace text collate "C" not null,
    key text collate "C" not null,
    version bigint not null,
    value_type @extschema@.caliber_state_type not null,
    live_until timestamptz not null,
    owner_agent_id uuid,
    changed_at timestamptz not null,
    constraint caliber_state_key_pkey primary key (team_id, namespace, key),
    constraint caliber_state_key_team_fkey foreign key (team_id)
    references @extschema@.caliber_team (team_id),
    constraint caliber_state_key_owner_fkey foreign key (owner_agent_id)
    references @extschema@.caliber_agent (agent_id),
    constraint caliber_state_key_length check (
        pg_catalog.length(namespace) between 1 and 200 and pg_catalog.length(key) between 1 and 500
    ),
    constraint caliber_state_key_version_positive check (version > 0)
)
with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_state_key', '');

comment on table @extschema@.caliber_state_key is
'The keys of the shared state and the version each is at; the view caliber_state adds the values.';
comment on column @extschema@.caliber_state_key.team_id is 'The team whose state it is.';
comment on column @extschema@.caliber_state_key.namespace is 'What the key is about, such as session.';
comment on column @extschema@.caliber_state_key.key is 'Its name in the namespace.';
comment on column @extschema@.caliber_state_key.version is 'The latest version; only rises.';
comment on column @extschema@.caliber_state_key.value_type is 'What values it takes.';
comment on column @extschema@.caliber_state_key.live_until is 'When its value ends: infinity without a time to live, -infinity once deleted.';
comment on column @extschema@.caliber_state_key.owner_agent_id is 'The only agent that may write it; null is everybody in the team.';
comment on column @extschema@.caliber_state_key.changed_at is 'When the latest version was written; never goes back.';

-- No foreign keys: the row it belongs to is locked by the statement that writes here, and
-- agents are never deleted.
create table @extschema@.caliber_state_version (
    team_id uuid not null,
    namespace text collate "C" not null,
    key text collate "C" not null,
    version bigint not null,
    value jsonb,
    value_type @extschema@.caliber_state_type not null,
    owner_agent_id uuid,
    expires_at timestamptz,
    changed_at timestamptz not null,
    changed_by uuid,
    actor text not null,
    constraint caliber_state_version_pkey primary key (team_id, namespace, key, version)
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_state_version', '');

-- Versions come in by time, so a few pages of ranges find the old ones.
create index caliber_state_version_changed_idx on @extschema@.caliber_state_version
using brin (changed_at);

comment on table @extschema@.caliber_state_version is
'Every version of every key, never changed; the current one is the value of the key.';
comment on column @extschema@.caliber_state_version.team_id is 'The team whose state it is.';
comment on column @extschema@.caliber_state_version.namespace is 'The namespace of the key.';
comment on column @extschema@.caliber_state_version.key is 'The key.';
comment on column @extschema@.caliber_state_version.version is 'Counts from 1 for each key, without a gap.';
comment on column @extschema@.caliber_state_version.value is 'The value; null where this version deleted the key.';
comment on column @extschema@.caliber_state_version.value_type is 'The type it was checked against.';
comment on column @extschema@.caliber_state_version.owner_agent_id is 'Who owned the key from then on.';
comment on column @extschema@.caliber_state_version.expires_at is 'When it ends, where it had a time to live.';
comment on column @extschema@.caliber_state_version.changed_at is 'When it was written.';
comment on column @extschema@.caliber_state_version.changed_by is 'The agent that wrote it; null for an admin that acted for none.';
comment on column @extschema@.caliber_state_version.actor is 'The database role that wrote it.';

alter table @extschema@.caliber_state_key enable row level security;
create policy caliber_state_key_read on @extschema@.caliber_state_key for select
using (
    (select @extschema@._caliber_sees_all())
    or team_id = (select @extschema@._caliber_my_team())
);

alter table @extschema@.caliber_state_version enable row level security;
create policy caliber_state_version_read on @extschema@.caliber_state_version for select
using (
    (select @extschema@._caliber_sees_all())
    or team_id = (select @extschema@._caliber_my_team())
);
