-- Audit: verifying the chains. The contract is in schema/audit.sql. Every step is a sort or a join by equality,
-- so that it takes as long as there are records, whatever somebody did to them.

create function @extschema@.caliber_audit_verify(
    team_id uuid default null,
    known_no bigint default null,
    known_hash bytea default null
)
returns table (
    problem text,
    audit_no bigint,
    handoff_id uuid,
    event_type text,
    detail text,
    team_id_of_chain uuid
)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
begin atomic
    with link as (
        select
            r.team_id,
            r.audit_no,
            r.handoff_id,
            r.event_type,
            r.recorded_at,
            r.is_escalation,
            r.content_hash,
            r.prev_hash,
            r.hash,
            false as pruned,
            r.content_hash = pg_catalog.sha256(
                pg_catalog.convert_to(@extschema@._caliber_audit_content(r)::text, 'UTF8')
            ) as content_holds
        from @extschema@.caliber_audit as r
        where $1 is null or r.team_id = $1
        union all
        select
            p.team_id,
            p.audit_no,
            null,
            null,
            p.recorded_at,
            p.is_escalation,
            p.content_hash,
            p.prev_hash,
            p.hash,
            true,
            -- The least that the settings allow: what was purged before one was raised was purged rightly.
            p.recorded_at < pg_catalog.clock_timestamp()
            - case when p.is_escalation then interval '180 days' else interval '90 days' end
        from @extschema@.caliber_audit_pruned as p
        where $1 is null or p.team_id = $1
    ),

    judged as (
        select
            l.*,
            l.hash = @extschema@._caliber_audit_hash(
                l.prev_hash, l.content_hash, l.team_id, l.audit_no, l.recorded_at, l.is_escalation
            ) as hash_holds,
            pg_catalog.lag(l.audit_no) over chain as before_no,
            pg_catalog.lag(l.hash) over chain as before_hash,
            coalesce(pg_catalog.lag(l.hash) over written <> l.prev_hash, true) as starts
        from link as l
        window
            chain as (partition by l.team_id order by l.audit_no),
            written as (partition by l.team_id order by l.recorded_at, l.audit_no)
    ),

    -- Each record names the one before it, so those that were written one after the other are known as a
    -- run, wherever they stand now. One that is in its place tells where all of its run were.
    run as (
        select
            j.*,
            pg_catalog.count(*) filter (where j.starts) over written as run_no,
            pg_catalog.lag(j.content_holds and j.hash_holds) over chain as before_holds
        from judged as j
        window
            chain as (partition by j.team_id order by j.audit_no),
            written as (partition by j.team_id order by j.recorded_at, j.audit_no)
    ),

    numbered as (
        select
            r.*,
            pg_catalog.row_number() over (partition by r.team_id, r.run_no order by r.recorded_at, r.audit_no) as step
        from run as r
    ),

    placed as (
        select
            n.*,
            pg_catalog.min(n.audit_no - n.step) filter (where n.hash_holds) over whole as base,
            pg_catalog.count(*) over whole as steps
        from numbered as n
        window whole as (partition by n.team_id, n.run_no)
    ),

    -- Of a run of which nothing is in its place the ends are tried at every number; of the longest only, so
    -- that who mixes up a chain does not make it costly to say so.
    ends as (
        select p.*
        from placed as p
        where p.base is null and p.step in (1, p.steps)
        order by p.steps desc, p.team_id asc, p.run_no asc
        limit 20
    ),

    number as (
        select
            l.team_id,
            pg_catalog.row_number() over (partition by l.team_id) as audit_no
        from link as l
        where exists (select from ends)
        union
        select
            l.team_id,
            l.audit_no
        from link as l
        where exists (select from ends)
    ),

    searched as (
        select
            e.team_id,
            e.run_no,
            pg_catalog.min(n.audit_no - e.step) as base
        from ends as e
        inner join number as n on e.team_id = n.team_id
        where e.hash = @extschema@._caliber_audit_hash(
            e.prev_hash, e.content_hash, e.team_id, n.audit_no, e.recorded_at, e.is_escalation
        )
        group by e.team_id, e.run_no
    ),

    -- A record that does not fit its own place may fit another: then it was moved.
    bad as (
        select
            p.*,
            case
                when p.hash = @extschema@._caliber_audit_hash(
                    p.prev_hash, p.content_hash, p.team_id, coalesce(p.base, s.base) + p.step, p.recorded_at,
                    p.is_escalation
                ) then coalesce(p.base, s.base) + p.step
            end as moved_from
        from placed as p
        left join searched as s on p.team_id = s.team_id and p.run_no = s.run_no
        where not p.content_holds or not p.hash_holds
    ),

    total as (
        select
            l.team_id,
            pg_catalog.max(l.audit_no) as last_no
        from link as l
        group by l.team_id
    ),

    last as (
        select
            h.team_id,
            h.audit_no,
            h.hash,
            t.last_no,
            l.hash as last_hash
        from @extschema@.caliber_audit_head as h
        left join total as t on h.team_id = t.team_id
        left join link as l on h.team_id = l.team_id and h.audit_no = l.audit_no
        where $1 is null or h.team_id = $1
    ),

    found as (
        select
            case
                when b.pruned and not b.content_holds then 'removed'
                when b.content_holds and b.moved_from is not null then 'reordered'
                else 'changed'
            end as problem,
            b.audit_no,
            b.handoff_id,
            b.event_type,
            case
                when b.pruned and not b.content_holds
                    then 'is marked as past its retention, which it is not'
                when b.content_holds and b.moved_from is not null
                    then 'was written as number ' || b.moved_from
                when not b.content_holds then 'is not what was written'
                else 'does not fit its hash, or was not written here'
            end as detail,
            b.team_id
        from bad as b
        union all
        -- What is missing between two, or at the beginning.
        select
            'removed',
            coalesce(j.before_no, 0) + 1,
            null,
            null,
            case
                when j.audit_no - coalesce(j.before_no, 0) = 2 then 'the record is missing'
                else 'the records up to ' || j.audit_no - 1 || ' are missing'
            end,
            j.team_id
        from judged as j
        where j.audit_no > coalesce(j.before_no, 0) + 1
            and not (j.before_no is null and j.pruned)
        union all
        -- Fits itself, but not the one before.
        select
            'changed',
            j.audit_no,
            j.handoff_id,
            j.event_type,
            'does not follow the record before it',
            j.team_id
        from run as j
        where j.content_holds
            and j.hash_holds
            and j.before_holds is not false
            and (
                (j.before_no = j.audit_no - 1 and j.prev_hash <> j.before_hash)
                or (j.audit_no = 1 and j.prev_hash <> pg_catalog.decode(pg_catalog.repeat('00', 32), 'hex'))
            )
        union all
        select
            'removed',
            coalesce(e.last_no, 0) + 1,
            null,
            null,
            'the chain ends before its head, number ' || e.audit_no,
            e.team_id
        from last as e
        where coalesce(e.last_no, 0) < e.audit_no
        union all
        select
            'inserted',
            j.audit_no,
            j.handoff_id,
            j.event_type,
            'stands behind the head of the chain',
            j.team_id
        from judged as j
        left join last as e on j.team_id = e.team_id
        where j.audit_no > coalesce(e.audit_no, 0)
        union all
        select
            'changed',
            e.audit_no,
            null,
            null,
            'the head of the chain has another hash',
            e.team_id
        from last as e
        where e.last_hash <> e.hash
        union all
        select
            'changed',
            $2,
            null,
            null,
            'is not the record whose hash you know',
            $1
        where $2 is not null
            and not exists (
                select from judged as j
                where j.audit_no = $2 and j.hash = $3
            )
            -- Of what retention has deleted from the beginning only the last hash is left to compare.
            and not exists (
                select from judged as j
                where j.pruned and j.before_no is null and j.audit_no > $2 and j.content_holds and j.hash_holds
            )
    )

    select
        f.problem,
        f.audit_no,
        f.handoff_id,
        f.event_type,
        f.detail,
        f.team_id
    from found as f
    order by f.team_id, f.audit_no, f.problem;
end;

comment on function @extschema@.caliber_audit_verify(uuid, bigint, bytea) is
'Every record that was changed, removed, inserted or reordered, of one team''s chain or of all; no row when all is as it was written. With a number and a hash kept from caliber_audit_head, whether that record is still what it was.';

-- Who sees only a part of a chain cannot tell whether it is whole.
grant execute on function @extschema@.caliber_audit_verify(uuid, bigint, bytea)
to caliber_admin, caliber_observer;
