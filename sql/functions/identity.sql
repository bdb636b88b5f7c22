-- Identity: who is calling, and which cluster epoch this is.

create function @extschema@._caliber_epoch_next()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    new.epoch := new.epoch + 1;
    new.began_at := pg_catalog.clock_timestamp();
    return new;
end
$$;

comment on function @extschema@._caliber_epoch_next() is
'Trigger: a row that comes in, from the install or from a dump, opens the epoch after its own.';

create trigger caliber_epoch_next before insert on @extschema@.caliber_epoch
for each row execute function @extschema@._caliber_epoch_next();

insert into @extschema@.caliber_epoch (epoch)
select 0
where not exists (select from @extschema@.caliber_epoch);

create function @extschema@._caliber_epoch_now()
returns integer
language sql
stable
parallel safe
begin atomic
    select pg_catalog.max(e.epoch) from @extschema@.caliber_epoch as e;
end;

comment on function @extschema@._caliber_epoch_now() is
'The current epoch: 1 after the install, one more after every restore from a dump.';

-- Who is calling: the role the session has set, else the one it logged in with. Both
-- survive SECURITY DEFINER, and neither can be set to a role one is not a member of.
-- Never an argument and never a custom setting, which anybody could fill in.
create function @extschema@._caliber_actor()
returns name
language sql
stable
parallel safe
return coalesce(
    nullif(pg_catalog.current_setting('role'), 'none')::name,
    session_user
);

comment on function @extschema@._caliber_actor() is
'The role on whose behalf this session acts: SET ROLE''s where there is one, else the login''s.';

create function @extschema@._caliber_is_admin()
returns boolean
language sql
stable
parallel safe
return pg_catalog.pg_has_role(@extschema@._caliber_actor(), 'caliber_admin', 'usage');

comment on function @extschema@._caliber_is_admin() is
'Whether the caller has the rights of caliber_admin, by membership it inherits; superusers have.';

create function @extschema@._caliber_sees_all()
returns boolean
language sql
stable
parallel safe
return pg_catalog.pg_has_role(@extschema@._caliber_actor(), 'caliber_observer', 'usage')
    or pg_catalog.pg_has_role(@extschema@._caliber_actor(), 'caliber_admin', 'usage');

comment on function @extschema@._caliber_sees_all() is
'Whether row security lets the caller read every row: observers and admins.';

grant execute on function
    @extschema@._caliber_epoch_now(),
    @extschema@._caliber_actor(),
    @extschema@._caliber_is_admin(),
    @extschema@._caliber_sees_all()
to caliber_admin, caliber_agent, caliber_observer;
-- For the few verbs that run as their caller.
grant execute on function @extschema@._caliber_intrusions(regnamespace) to caliber_admin;
grant select on @extschema@.caliber_epoch to caliber_admin, caliber_agent, caliber_observer;

-- Lets a plain SQL read refuse bad input as clearly as a verb does.
create function @extschema@._caliber_refuse(
    argument text,
    value text,
    rule text
)
returns text
language plpython3u
stable
security definer
set search_path = pg_catalog, pg_temp
as $python$ @errors.invalid@ $python$;

comment on function @extschema@._caliber_refuse(text, text, text) is
'Raises 22023 for an argument; called from SQL functions, never returns.';
grant execute on function @extschema@._caliber_refuse(text, text, text)
to caliber_admin, caliber_agent, caliber_observer;
