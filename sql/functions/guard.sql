-- Guard, in one place and first: nothing is made, at install or at an upgrade, where somebody
-- who is not trusted could have laid out a name for the script to pick up.
--
-- Verbs run as caliber_owner and call helpers by name. Whoever may create functions beside them
-- could add one of the same name that fits a call better, and have it run as the owner. So the
-- schema must be closed to agents, hold nothing of theirs, and stay so: plans.py asks again
-- before it prepares a statement. Trusted are superusers, the owner of the database and the
-- roles that an administrator let into the schema by name, unless an agent or observer is a
-- member of them.

create function @extschema@._caliber_intrusions(place regnamespace)
returns table (
    what text,
    remedy text
)
language sql
stable
set search_path = pg_catalog, pg_temp
begin atomic
    select
        pg_catalog.format('%s may create in schema %s', g.name, place),
        pg_catalog.format('REVOKE CREATE ON SCHEMA %s FROM %s', place, g.name)
    from (
        select
            a.grantee,
            case a.grantee when 0 then 'PUBLIC' else a.grantee::regrole::text end as name
        from pg_catalog.pg_namespace as n
        cross join lateral pg_catalog.aclexplode(n.nspacl) as a
        where n.oid = place and a.privilege_type = 'CREATE' and a.grantee <> n.nspowner
    ) as g
    where g.grantee = 0
        or exists (
            with recursive admitted as (
                select g.grantee as role
                union
                select m.member
                from pg_catalog.pg_auth_members as m
                inner join admitted as d on m.roleid = d.role
            )

            select from admitted as d
            inner join pg_catalog.pg_roles as r on d.role = r.oid and not r.rolsuper
            -- Looked up when run: the groups do not exist before the first install.
            where pg_catalog.pg_has_role(r.oid, pg_catalog.to_regrole('caliber_agent'), 'member')
                or pg_catalog.pg_has_role(r.oid, pg_catalog.to_regrole('caliber_observer'), 'member')
        )
    union all
    select
        pg_catalog.format('function %s belongs to %s', p.oid::regprocedure, p.proowner::regrole),
        pg_catalog.format('DROP FUNCTION %s', p.oid::regprocedure)
    from pg_catalog.pg_proc as p
    inner join pg_catalog.pg_roles as r on p.proowner = r.oid
    where p.pronamespace = place
        -- As ranges, which the index on names can find.
        and (
            (p.proname >= '_caliber_' and p.proname < '_caliber`')
            or (p.proname >= 'caliber_' and p.proname < 'caliber`')
        )
        and p.proowner is distinct from pg_catalog.to_regrole('caliber_owner')
        and not r.rolsuper;
end;

comment on function @extschema@._caliber_intrusions(regnamespace) is
'Who may create objects in a schema and must not, and which functions there pass for ours; with what to do about it.';

do $$
declare
    place record;
    intrusion record;
begin
    -- The schema of the extension, and those of the extensions it needs.
    for place in
        select
            n.oid,
            n.nspname,
            r.rolname as owner,
            r.rolsuper or r.rolname = 'pg_database_owner' or r.rolname = current_user
            or exists (
                select from pg_catalog.pg_database as d
                where d.datname = pg_catalog.current_database() and d.datdba = n.nspowner
            ) as trusted
        from pg_catalog.pg_namespace as n
        inner join pg_catalog.pg_roles as r on n.nspowner = r.oid
        where n.nspname = any(pg_catalog.current_schemas(false))
            and n.nspname <> 'pg_catalog'
            and n.oid <> pg_catalog.pg_my_temp_schema()
    loop
        if not place.trusted then
            raise exception using
                errcode = '42501',
                message = pg_catalog.format('schema %s belongs to %s', place.nspname, place.owner),
                detail = 'Whoever owns the schema could replace what the extension relies on.',
                hint = 'Install into a schema of a superuser or of the owner of the database.';
        end if;
        for intrusion in
            select i.what, i.remedy
            from @extschema@._caliber_intrusions(place.oid::regnamespace) as i
        loop
            raise exception using
                errcode = '42501',
                message = intrusion.what,
                detail = 'A function beside the extension''s own could run with the rights of its owner.',
                hint = pg_catalog.format('Run %s, or install into a schema of its own.', intrusion.remedy);
        end loop;
    end loop;
    -- An operator on our types would be chosen before the one that fits any type.
    for intrusion in
        select b.oid::regoperator as what
        from pg_catalog.pg_operator as b
        inner join pg_catalog.pg_type as t on t.oid in (b.oprleft, b.oprright)
        inner join pg_catalog.pg_roles as r on b.oprowner = r.oid
        where t.typnamespace = '@extschema@'::regnamespace
            and t.typname ~ '^_*caliber_'
            and not r.rolsuper
            and r.rolname <> 'caliber_owner'
    loop
        raise exception using
            errcode = '42501',
            message = pg_catalog.format('operator %s is not ours', intrusion.what),
            hint = pg_catalog.format('Run DROP OPERATOR %s, then try again.', intrusion.what);
    end loop;
end
$$;
