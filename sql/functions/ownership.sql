-- Ownership, in one place and last: whatever the script made belongs to caliber_owner, and
-- nothing can be called by everybody. Runs at install and at the end of every upgrade.

do $$
declare
    member record;
begin
    for member in
        select
            d.classid,
            case d.classid
                when 'pg_catalog.pg_proc'::regclass then
                    pg_catalog.format('routine %s', d.objid::regprocedure)
                when 'pg_catalog.pg_type'::regclass then
                    pg_catalog.format('type %s', d.objid::regtype)
                when 'pg_catalog.pg_class'::regclass then
                    pg_catalog.format(
                        '%s %s',
                        case c.relkind when 'v' then 'view' when 'S' then 'sequence' else 'table' end,
                        d.objid::regclass
                    )
            end as name
        from pg_catalog.pg_depend as d
        inner join pg_catalog.pg_extension as x
            on d.refobjid = x.oid and x.extname = 'caliber'
        left join pg_catalog.pg_class as c
            on d.classid = 'pg_catalog.pg_class'::regclass and d.objid = c.oid
        left join pg_catalog.pg_type as t
            on d.classid = 'pg_catalog.pg_type'::regclass and d.objid = t.oid
        where d.refclassid = 'pg_catalog.pg_extension'::regclass
            and d.deptype = 'e'
            -- Indexes and identity sequences follow their table; so do row and array types.
            and coalesce(c.relkind in ('r', 'p', 'v'), true)
            and coalesce(t.typtype in ('e', 'd') or (t.typtype = 'c' and t.typrelid in (
                select r.oid from pg_catalog.pg_class as r where r.relkind = 'c'
            )), true)
            and d.classid in (
                'pg_catalog.pg_proc'::regclass,
                'pg_catalog.pg_type'::regclass,
                'pg_catalog.pg_class'::regclass
            )
    loop
        execute pg_catalog.format('alter %s owner to caliber_owner', member.name);
        if member.classid = 'pg_catalog.pg_proc'::regclass then
            execute pg_catalog.format('revoke all on %s from public', member.name);
        end if;
    end loop;
end
$$;
