-- Config. What may be set, its type, range and default is code (functions/config.sql);
-- this table holds only what somebody has set, so a dump carries choices, not defaults.

create table @extschema@.caliber_setting (
    key text not null,
    value text not null,
    set_at timestamptz not null default pg_catalog.clock_timestamp(),
    set_by name not null,
    constraint caliber_setting_pkey primary key (key),
    constraint caliber_setting_key_length check (pg_catalog.length(key) between 1 and 63),
    constraint caliber_setting_value_length check (pg_catalog.length(value) <= 1000)
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_setting', '');

comment on table @extschema@.caliber_setting is
'Settings that differ from their default; read them through the view caliber_config.';
comment on column @extschema@.caliber_setting.key is 'One of the keys of caliber_config.';
comment on column @extschema@.caliber_setting.value is 'The value as text, checked when set.';
comment on column @extschema@.caliber_setting.set_at is 'When it was set.';
comment on column @extschema@.caliber_setting.set_by is 'The role that set it.';
