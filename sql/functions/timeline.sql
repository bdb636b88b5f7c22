-- Timeline: as rows for psql, and as a page for a browser. The contract is in schema/timeline_marks.sql.

create function @extschema@._caliber_timeline_limit(
    since timestamptz,
    until timestamptz,
    max_marks integer
)
returns integer
language sql
stable
return case
    when since > until
        then @extschema@._caliber_refuse('since', since::text, 'must not be after until')::integer
    when max_marks between 1 and 10000 then max_marks
    else @extschema@._caliber_refuse('max_marks', max_marks::text, 'must be between 1 and 10000')::integer
end;

comment on function @extschema@._caliber_timeline_limit(timestamptz, timestamptz, integer) is
'max_marks when the arguments of a timeline hold together; 22023 otherwise.';

create function @extschema@._caliber_timeline_names(
    agent_ids uuid[],
    others text
)
returns text
language sql
stable
begin atomic
    select coalesce(
        pg_catalog.string_agg(n.name, ', ' order by n.name)
        || case
            when pg_catalog.cardinality($1) > 3 then ' and ' || pg_catalog.cardinality($1) - 3 || ' more' else ''
        end,
        $2
    )
    from (
        select coalesce(a.name, 'agent …' || pg_catalog.right(w.agent_id::text, 6)) as name
        from pg_catalog.unnest($1[1:3]) as w (agent_id)
        left join @extschema@.caliber_agent as a on w.agent_id = a.agent_id
    ) as n;
end;

comment on function @extschema@._caliber_timeline_names(uuid[], text) is
'The names of some agents for people to read, the first three of many; of one that the caller cannot see, the end of its id.';

create function @extschema@.caliber_timeline(
    trajectory_id uuid,
    since timestamptz default null,
    until timestamptz default null,
    max_marks integer default 1000,
    children boolean default true
)
returns table (
    at timestamptz,
    elapsed interval,
    agent text,
    kind text,
    what text,
    details text,
    trajectory text,
    trajectory_id uuid,
    reference_id text
)
language sql
stable
rows 1000
begin atomic
    with tree as materialized (
        select
            @extschema@._caliber_timeline_tree($1, coalesce($5, true)) as ids,
            @extschema@._caliber_timeline_limit($2, $3, $4) as most
    ),

    found as materialized (
        select
            m.*,
            pg_catalog.row_number() over (
                order by m.at desc, m.kind desc, m.reference_id desc, m.step desc
            ) as place
        from tree as r
        cross join lateral @extschema@._caliber_timeline_marks(r.ids, $2, $3, r.most + 1) as m
    )

    select
        m.at,
        pg_catalog.date_trunc('milliseconds', m.at - first.created_at),
        case when m.agent_id is not null then @extschema@._caliber_timeline_names(array[m.agent_id], null) end,
        m.kind,
        m.what || coalesce(' → ' || @extschema@._caliber_timeline_names(m.to_agent_ids, m.to_others), ''),
        @extschema@._caliber_timeline_text(m.details, 100),
        t.name,
        m.trajectory_id,
        m.reference_id
    from found as m
    cross join (
        select f.created_at from @extschema@.caliber_trajectory as f where f.trajectory_id = $1
    ) as first
    left join @extschema@.caliber_trajectory as t on m.trajectory_id = t.trajectory_id
    where m.place <= (select r.most from tree as r)
    union all
    select
        c.at, null, null, 'cut', c.what, c.details, null, null, null
    from (
        select
            l.at,
            'earlier marks are left out' as what,
            'until => ''' || l.at || ''' shows them' as details
        from found as l
        inner join tree as r on l.place = r.most
        where exists (select from found as m where m.place > r.most)
        union all
        select
            null,
            'trajectories after the first 500 are left out',
            'call it for one of those below'
        from tree as r
        where pg_catalog.cardinality(r.ids) > 500
    ) as c
    order by 1 asc nulls first, 2 asc nulls first, 4 asc, 9 asc, 5 asc;
end;

comment on function @extschema@.caliber_timeline(uuid, timestamptz, timestamptz, integer, boolean) is
'What happened on a trajectory and, unless children is false, on those below it, the oldest first: the newest max_marks marks from since up to until that you can see. A row of kind cut says what was left out. P0002 when there is no such trajectory for you.';

-- Pure: it makes a page of what it is given, and reads nothing.
create function @extschema@._caliber_timeline_page(timeline json)
returns text
language plpython3u
immutable
security definer
set search_path = pg_catalog, pg_temp
as $python$ @timeline_page.page@ $python$;

comment on function @extschema@._caliber_timeline_page(json) is
'A timeline, as caliber_timeline_html collects it, as an HTML document.';

create function @extschema@.caliber_timeline_html(
    trajectory_id uuid,
    since timestamptz default null,
    until timestamptz default null,
    max_marks integer default 2000,
    children boolean default true
)
returns text
language sql
stable
begin atomic
    with tree as materialized (
        select
            @extschema@._caliber_timeline_tree($1, coalesce($5, true)) as ids,
            @extschema@._caliber_timeline_limit($2, $3, $4) as most
    ),

    found as materialized (
        select m.*
        from tree as r
        cross join lateral @extschema@._caliber_timeline_marks(r.ids, $2, $3, r.most + 1) as m
    ),

    agent as (
        select w.agent_id
        from found as m
        cross join lateral pg_catalog.unnest(m.to_agent_ids || m.agent_id) as w (agent_id)
        where w.agent_id is not null
        union
        select t.agent_id from @extschema@.caliber_trajectory as t where t.trajectory_id = $1
    )

    select @extschema@._caliber_timeline_page(pg_catalog.json_build_object(
        'trajectory_id', t.trajectory_id,
        'name', t.name,
        'status', t.status,
        'agent_id', t.agent_id,
        'outcome', @extschema@._caliber_timeline_text(t.outcome, 400),
        'start', pg_catalog.date_part('epoch', t.created_at),
        'finish', pg_catalog.date_part('epoch', t.finished_at),
        'began', pg_catalog.to_char(t.created_at, 'YYYY-MM-DD HH24:MI:SS'),
        'now', pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()),
        'made', pg_catalog.to_char(pg_catalog.clock_timestamp(), 'YYYY-MM-DD HH24:MI:SS'),
        'zone', pg_catalog.current_setting('TimeZone'),
        'since', $2::text,
        'until', $3::text,
        'most', (select r.most from tree as r),
        'trajectories', (select pg_catalog.cardinality(r.ids) from tree as r),
        'agents', (
            select pg_catalog.json_object_agg(
                g.agent_id, @extschema@._caliber_timeline_names(array[g.agent_id], null)
            )
            from agent as g
        ),
        'names', (
            select pg_catalog.json_object_agg(b.trajectory_id, @extschema@._caliber_timeline_text(b.name, 80))
            from @extschema@.caliber_trajectory as b
            where b.trajectory_id in (select m.trajectory_id from found as m)
        ),
        'marks', (
            select pg_catalog.json_agg(
                pg_catalog.json_build_object(
                    'at', pg_catalog.date_part('epoch', m.at),
                    'ends', pg_catalog.date_part('epoch', nullif(m.ends_at, 'infinity')),
                    'day', pg_catalog.to_char(m.at, 'YYYY-MM-DD'),
                    'clock', pg_catalog.to_char(m.at, 'HH24:MI:SS.MS'),
                    'trajectory_id', m.trajectory_id,
                    'agent_id', m.agent_id,
                    'to', m.to_agent_ids[1:12],
                    'others', m.to_others,
                    'target', @extschema@._caliber_timeline_names(m.to_agent_ids, m.to_others),
                    'kind', m.kind,
                    'step', m.step,
                    'what', m.what,
                    'details', m.details
                )
                order by m.at, m.kind, m.reference_id, m.step
            )
            from found as m
        )
    ))
    from @extschema@.caliber_trajectory as t
    inner join tree on t.trajectory_id = tree.ids[1];
end;

comment on function @extschema@.caliber_timeline_html(uuid, timestamptz, timestamptz, integer, boolean) is
'The same as one HTML document that needs nothing else: agents as lanes, time from left to right, a table of all marks below. psql -At -c writes it to a file.';

grant execute on function
    @extschema@._caliber_timeline_limit(timestamptz, timestamptz, integer),
    @extschema@._caliber_timeline_names(uuid[], text),
    @extschema@._caliber_timeline_page(json),
    @extschema@.caliber_timeline(uuid, timestamptz, timestamptz, integer, boolean),
    @extschema@.caliber_timeline_html(uuid, timestamptz, timestamptz, integer, boolean)
to caliber_admin, caliber_agent, caliber_observer;
