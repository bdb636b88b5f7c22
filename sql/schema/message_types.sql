-- Message types and schemas: what kinds of message there are, and what a typed one must hold.
--
-- A message names its type, one of this table; admins add more. A message may also name a
-- schema of the registry, and then its payload is checked against it before it is stored. A
-- schema never changes: registering its name again adds a version, and a message remembers
-- the version it was checked against.
--
-- Rows that come with the extension are marked, so that a dump carries only those added.

create table @extschema@.caliber_message_type (
    message_type text not null,
    topic text not null default 'custom',
    description text not null default '',
    built_in boolean not null default false,
    added_at timestamptz,
    constraint caliber_message_type_pkey primary key (message_type),
    constraint caliber_message_type_length check (
        pg_catalog.length(message_type) between 1 and 63
        and pg_catalog.length(topic) between 1 and 63
        and pg_catalog.length(description) <= 500
    )
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_message_type', 'where not built_in');

comment on table @extschema@.caliber_message_type is 'The types a message may have; admins add to them.';
comment on column @extschema@.caliber_message_type.message_type is 'What a message names.';
comment on column @extschema@.caliber_message_type.topic is 'What the type is about, for people who look for one.';
comment on column @extschema@.caliber_message_type.description is 'What such a message says.';
comment on column @extschema@.caliber_message_type.built_in is 'Whether it came with the extension.';
comment on column @extschema@.caliber_message_type.added_at is 'When it was added; null for built-in ones.';

create table @extschema@.caliber_message_schema (
    schema_name text not null,
    version integer not null,
    json_schema jsonb not null,
    description text not null default '',
    built_in boolean not null default false,
    added_at timestamptz,
    constraint caliber_message_schema_pkey primary key (schema_name, version),
    constraint caliber_message_schema_length check (
        pg_catalog.length(schema_name) between 1 and 63
        and pg_catalog.length(description) <= 500
        and version > 0
    )
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_message_schema', 'where not built_in');

comment on table @extschema@.caliber_message_schema is
'What the payload of a typed message must look like: JSON Schema, draft 2020-12, by name and version.';
comment on column @extschema@.caliber_message_schema.schema_name is 'What a message names.';
comment on column @extschema@.caliber_message_schema.version is 'Counts from 1; new messages are checked against the highest.';
comment on column @extschema@.caliber_message_schema.json_schema is 'The schema.';
comment on column @extschema@.caliber_message_schema.description is 'What such a message holds.';
comment on column @extschema@.caliber_message_schema.built_in is 'Whether it came with the extension.';
comment on column @extschema@.caliber_message_schema.added_at is 'When it was registered; null for built-in ones.';
