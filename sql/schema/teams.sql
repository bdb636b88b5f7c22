-- Teams own agents. An agent sees its team; what is team-wide ends at its border.

create table @extschema@.caliber_team (
    team_id uuid not null default @extschema@.caliber_uuid_v7(),
    name text not null,
    display_name text,
    created_at timestamptz not null default pg_catalog.clock_timestamp(),
    constraint caliber_team_pkey primary key (team_id),
    constraint caliber_team_name_key unique (name),
    constraint caliber_team_name_length check (pg_catalog.length(name) between 1 and 63),
    constraint caliber_team_display_name_length check (pg_catalog.length(display_name) <= 200)
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_team', '');

comment on table @extschema@.caliber_team is 'Teams; every agent is in one.';
comment on column @extschema@.caliber_team.team_id is 'Its id.';
comment on column @extschema@.caliber_team.name is 'What it is called in commands; unique.';
comment on column @extschema@.caliber_team.display_name is 'What people read.';
comment on column @extschema@.caliber_team.created_at is 'When it was made.';
