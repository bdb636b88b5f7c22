-- Grants: what one agent may do with another. An agent always reads what is its own; a grant
-- lets it read what is another's (read_transcript), write to it across teams (send_messages),
-- or pass those rights on (administer_grants).
--
-- Whoever spawns an agent gets all three on it; an admin can give any. These are roots: they
-- stand by themselves. Every other grant stands on its grantor, who must hold
-- administer_grants and the very right it passes on, so nothing widens on the way. When a
-- grant goes, all that no longer stands on a root goes with it, in circles too.
--
-- Giving and revoking lock the target's agent row, so that what is decided about one target
-- is decided one after the other.

create type @extschema@.caliber_capability as enum (
    'read_transcript', 'send_messages', 'administer_grants'
);
comment on type @extschema@.caliber_capability is
'What a grant allows: reading what is the target''s, sending to it, passing rights on it on.';

create table @extschema@.caliber_grant (
    target_agent_id uuid not null,
    grantee_agent_id uuid not null,
    capability @extschema@.caliber_capability not null,
    grantor_agent_id uuid,
    is_root boolean not null,
    granted_at timestamptz not null default pg_catalog.clock_timestamp(),
    constraint caliber_grant_key unique nulls not distinct (
        grantee_agent_id, target_agent_id, capability, grantor_agent_id
    ),
    constraint caliber_grant_target_fkey foreign key (target_agent_id)
    references @extschema@.caliber_agent (agent_id),
    constraint caliber_grant_grantee_fkey foreign key (grantee_agent_id)
    references @extschema@.caliber_agent (agent_id),
    constraint caliber_grant_grantor_fkey foreign key (grantor_agent_id)
    references @extschema@.caliber_agent (agent_id),
    constraint caliber_grant_to_another check (grantee_agent_id <> target_agent_id),
    constraint caliber_grant_of_nobody_is_root check (grantor_agent_id is not null or is_root)
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_grant', '');
create index caliber_grant_target_idx on @extschema@.caliber_grant (target_agent_id);

comment on table @extschema@.caliber_grant is
'Who may do what with which agent; the views caliber_my_access and caliber_access_to_me read better.';
comment on column @extschema@.caliber_grant.target_agent_id is 'The agent the right is on.';
comment on column @extschema@.caliber_grant.grantee_agent_id is 'The agent that has the right.';
comment on column @extschema@.caliber_grant.capability is 'The right.';
comment on column @extschema@.caliber_grant.grantor_agent_id is 'The agent that gave it; null when an admin did.';
comment on column @extschema@.caliber_grant.is_root is 'Whether it stands by itself: given by an admin, or by spawning.';
comment on column @extschema@.caliber_grant.granted_at is 'When it was given.';
