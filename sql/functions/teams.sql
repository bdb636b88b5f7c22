-- Teams: making and listing them.

create function @extschema@.caliber_team_create(
    name text,
    display_name text default null
)
returns uuid
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @teams.create@ $python$;

comment on function @extschema@.caliber_team_create(text, text) is
'Makes a team and returns its id; a team of that name that exists is returned as it is. Admins only.';

create function @extschema@.caliber_team_list()
returns table (
    team_id uuid,
    name text,
    display_name text,
    created_at timestamptz
)
language sql
stable
begin atomic
    select
        t.team_id,
        t.name,
        t.display_name,
        t.created_at
    from @extschema@.caliber_team as t
    order by t.name;
end;

comment on function @extschema@.caliber_team_list() is
'The teams you can see: all of them, or an agent''s own.';

grant select on @extschema@.caliber_team to caliber_admin, caliber_agent, caliber_observer;
grant execute on function @extschema@.caliber_team_list()
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function @extschema@.caliber_team_create(text, text) to caliber_admin;
