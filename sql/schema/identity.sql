-- Identity. Four group roles say what a login may do; nobody logs in as one of them.
--   caliber_owner     owns every object of the extension; SECURITY DEFINER verbs run as it
--   caliber_admin     the trusted orchestrator: may act for any agent and change settings
--   caliber_agent     what the logins of agents belong to
--   caliber_observer  reads everything, writes nothing
-- Roles belong to the cluster, so they may be there already (another database has the
-- extension) and they stay when the extension is dropped.

do $$
declare
    wanted text;
begin
    foreach wanted in array array[
        'caliber_owner', 'caliber_admin', 'caliber_agent', 'caliber_observer'
    ] loop
        begin
            execute pg_catalog.format('create role %I nologin', wanted);
        exception
            -- Two databases may install at once: the loser finds the role made.
            when duplicate_object or unique_violation then null;
        end;
        -- A role made by somebody else beforehand must not carry power we would lend it.
        perform from pg_catalog.pg_roles as r
        where r.rolname = wanted
            and (r.rolsuper or r.rolcanlogin or r.rolbypassrls or r.rolcreaterole or r.rolreplication);
        if found then
            raise exception using
                errcode = '42501',
                message = pg_catalog.format('role %s exists and is more than a group', wanted),
                hint = pg_catalog.format(
                    'Run ALTER ROLE %I NOSUPERUSER NOLOGIN NOBYPASSRLS NOCREATEROLE NOREPLICATION, '
                    'or drop the role, then install again.',
                    wanted
                );
        end if;
    end loop;
    perform from pg_catalog.pg_auth_members as m
    where m.member = 'caliber_owner'::pg_catalog.regrole;
    if found then
        raise exception using
            errcode = '42501',
            message = 'role caliber_owner is a member of another role',
            hint = 'What caliber_owner may do, every verb does for its caller. Revoke the membership, then install again.';
    end if;
    -- Nor may somebody stand behind it: a member of the owner owns everything.
    select m.member::regrole::text into wanted
    from pg_catalog.pg_auth_members as m
    inner join pg_catalog.pg_roles as r on m.member = r.oid and not r.rolsuper
    where m.roleid = 'caliber_owner'::regrole
        or (
            m.roleid = 'caliber_admin'::regrole
            and m.member in ('caliber_agent'::regrole, 'caliber_observer'::regrole)
        )
    limit 1;
    if found then
        raise exception using
            errcode = '42501',
            message = pg_catalog.format('role %s is a member of a group that it must not be in', wanted),
            detail = 'caliber_owner has no members; caliber_agent and caliber_observer are not in caliber_admin.',
            hint = pg_catalog.format('Run REVOKE caliber_owner, caliber_admin FROM %s, then install again.', wanted);
    end if;
    -- A grant made here would be taken for the extension's own, and with it all the schema's
    -- grants would be missing from dumps. So whoever installs has to make it.
    if not pg_catalog.has_schema_privilege('caliber_owner', '@extschema@'::pg_catalog.regnamespace, 'usage') then
        raise warning using
            message = 'nobody but its owner can use caliber in this schema yet',
            hint = 'Run: grant usage on schema @extschema@ to caliber_owner, caliber_admin, caliber_agent, '
                'caliber_observer;';
    end if;
end
$$;

-- How often this database has been restored from a dump, plus one. Transaction ids and
-- leases of before a restore mean nothing after it; what is compared across one carries
-- the epoch. The dumped rows pass through the trigger on their way in, which moves each
-- on by one, and the row of the fresh install is number one: so the highest grows.
create table @extschema@.caliber_epoch (
    epoch integer not null,
    began_at timestamptz not null default pg_catalog.clock_timestamp(),
    constraint caliber_epoch_pkey primary key (epoch)
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_epoch', '');

comment on table @extschema@.caliber_epoch is
'One row for each time this database came to be: the install, then every restore from a dump.';
comment on column @extschema@.caliber_epoch.epoch is 'Counts from 1; the highest is now.';
comment on column @extschema@.caliber_epoch.began_at is 'When the rows of this epoch came in.';
