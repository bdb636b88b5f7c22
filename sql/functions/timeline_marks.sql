-- Timeline: the marks of a trajectory, from every table that has some. The contract is in
-- schema/timeline_marks.sql.

create function @extschema@._caliber_timeline_text(
    given text,
    most integer
)
returns text
language sql
immutable
parallel safe
return (
    select case when pg_catalog.length(t.line) > most then pg_catalog.left(t.line, most - 1) || '…' else t.line end
    from (
        select pg_catalog.btrim(
            pg_catalog.regexp_replace(pg_catalog.left(given, most * 4), '[[:space:][:cntrl:]]+', ' ', 'g')
        ) as line
    ) as t
);

comment on function @extschema@._caliber_timeline_text(text, integer) is
'The beginning of a text, on one line.';

create function @extschema@._caliber_timeline_missing(trajectory_id uuid)
returns uuid
language plpython3u
stable
security definer
set search_path = pg_catalog, pg_temp
as $python$ @timeline.missing@ $python$;

comment on function @extschema@._caliber_timeline_missing(uuid) is
'Raises: the trajectory is null, does not exist, or the caller cannot see it. Never returns.';

-- The trajectory and those below it that the caller can see; one more than a timeline shows, so that
-- it can tell that there are more.
create function @extschema@._caliber_timeline_tree(
    trajectory_id uuid,
    children boolean
)
returns uuid[]
language sql
stable
begin atomic
    with recursive tree as (
        select
            t.trajectory_id,
            t.created_at,
            0 as level
        from @extschema@.caliber_trajectory as t
        where t.trajectory_id = $1
        union all
        select
            t.trajectory_id,
            t.created_at,
            r.level + 1
        from @extschema@.caliber_trajectory as t
        inner join tree as r on t.parent_trajectory_id = r.trajectory_id
        where $2
    )

    select case
        when pg_catalog.count(*) = 0 then array[@extschema@._caliber_timeline_missing($1)]
        else pg_catalog.array_agg(found.trajectory_id order by found.place)
    end
    from (
        select
            t.trajectory_id,
            pg_catalog.row_number() over (order by t.level, t.created_at, t.trajectory_id) as place
        from tree as t
        order by place
        limit 501
    ) as found;
end;

comment on function @extschema@._caliber_timeline_tree(uuid, boolean) is
'A trajectory and, if wanted, those below it, as far as the caller can see them; P0002 when it cannot.';

-- One row a mark: when, until when if it lasts, whose, to whom, what. Of each table, for each
-- trajectory, the newest so many at least.
create function @extschema@._caliber_timeline_marks(
    trajectory_ids uuid[],
    since timestamptz,
    until timestamptz,
    most integer
)
returns table (
    at timestamptz,
    ends_at timestamptz,
    trajectory_id uuid,
    agent_id uuid,
    to_agent_ids uuid[],
    to_others text,
    kind text,
    step text,
    what text,
    details text,
    reference_id text
)
language sql
stable
rows 1000
begin atomic
    with asked as (
        select
            w.trajectory_id,
            w.place,
            coalesce($2, '-infinity') as since,
            coalesce($3, 'infinity') as until
        from pg_catalog.unnest($1) with ordinality as w (trajectory_id, place)
        where w.place <= 500
    ),

    task as (
        select d.*
        from asked as w
        cross join lateral (
            select d.*
            from @extschema@.caliber_delegation as d
            where d.parent_trajectory_id = w.trajectory_id and d.created_at < w.until
            order by d.created_at desc
            limit 10000
        ) as d
        union
        select d.*
        from asked as w
        inner join @extschema@.caliber_delegation as d on w.trajectory_id = d.child_trajectory_id
        where w.place = 1
    ),

    clash as (
        select c.*
        from asked as w
        cross join lateral (
            select c.*
            from @extschema@.caliber_conflict as c
            where c.trajectory_id = w.trajectory_id
            order by c.conflict_id desc
            limit 10000
        ) as c
    ),

    record as (
        select r.*
        from asked as w
        cross join lateral (
            select r.*
            from @extschema@.caliber_audit as r
            where r.trajectory_id = w.trajectory_id and r.recorded_at >= w.since and r.recorded_at < w.until
            order by r.recorded_at desc
            limit $4
        ) as r
        union
        select r.*
        from asked as w
        inner join @extschema@.caliber_handoff as h on w.trajectory_id = h.received_trajectory_id
        inner join @extschema@.caliber_audit as r on h.handoff_id = r.handoff_id
        where w.place = 1
    ),

    note as (
        select n.*
        from asked as w
        inner join @extschema@.caliber_note as n on w.trajectory_id = n.trajectory_id
    ),

    -- What the tables themselves show needs no event to say it again.
    shown as (
        select
            'delegation' as reference_type,
            d.delegation_id::text as reference_id
        from task as d
        union all
        select 'conflict', c.conflict_id::text from clash as c
        union all
        select 'handoff', r.handoff_id::text from record as r
        union all
        select 'note', n.note_id::text from note as n
    ),

    mark as (
        select
            t.created_at as at,
            t.finished_at as ends_at,
            t.trajectory_id,
            coalesce(
                (
                    select s.agent_id from @extschema@.caliber_scope as s
                    where s.trajectory_id = t.trajectory_id and s.scope_no = 1
                ),
                t.agent_id
            ) as agent_id,
            null::uuid[] as to_agent_ids,
            null::text as to_others,
            'trajectory' as kind,
            'started' as step,
            'started ' || t.name as what,
            null::text as details,
            t.trajectory_id::text as reference_id
        from asked as w
        inner join @extschema@.caliber_trajectory as t on w.trajectory_id = t.trajectory_id
        union all
        select
            t.finished_at, null, t.trajectory_id, t.agent_id, null, null,
            'trajectory', t.status::text, t.status || ' ' || t.name, t.outcome, t.trajectory_id::text
        from asked as w
        inner join @extschema@.caliber_trajectory as t on w.trajectory_id = t.trajectory_id
        where t.finished_at is not null
        union all
        select
            s.opened_at, s.closed_at, s.trajectory_id, s.agent_id, null, null,
            'scope', 'opened', 'opened scope ' || s.scope_no || coalesce(': ' || s.name, ''),
            s.token_budget || ' tokens at most', s.scope_id::text
        from asked as w
        inner join @extschema@.caliber_scope as s on w.trajectory_id = s.trajectory_id
        union all
        select
            s.closed_at, null, s.trajectory_id, s.agent_id, null, null,
            'scope', 'closed', 'closed scope ' || s.scope_no || coalesce(': ' || s.name, ''),
            pg_catalog.concat_ws(' · ', s.turn_count || ' turns, ' || s.token_count || ' tokens', s.summary),
            s.scope_id::text
        from asked as w
        inner join @extschema@.caliber_scope as s on w.trajectory_id = s.trajectory_id
        where s.closed_at is not null
        union all
        select
            u.created_at, null, u.trajectory_id, u.agent_id, null, null,
            'turn', u.role::text, u.role || ' turn ' || u.turn_no, u.content, u.turn_id::text
        from asked as w
        inner join @extschema@.caliber_scope as s
            on w.trajectory_id = s.trajectory_id
            and w.until > s.opened_at
            and w.since <= coalesce(s.closed_at, 'infinity')
        cross join lateral (
            select u.*
            from @extschema@.caliber_turn as u
            where u.scope_id = s.scope_id and u.created_at >= w.since and u.created_at < w.until
            order by u.turn_no desc
            limit $4
        ) as u
        union all
        select
            a.created_at, null, a.trajectory_id, a.agent_id, null, null,
            'artifact', a.artifact_type::text,
            a.artifact_type || coalesce(' ' || coalesce(a.name, a.path), ''), a.content, a.artifact_id::text
        from asked as w
        inner join @extschema@.caliber_artifact as a on w.trajectory_id = a.trajectory_id
        union all
        select
            n.created_at, null, n.trajectory_id, n.agent_id, null, null,
            'note', n.note_type::text, n.note_type || ' note' || coalesce(' ' || n.name, ''), n.content,
            n.note_id::text
        from note as n
        union all
        select
            v.written_at, null, v.trajectory_id, v.agent_id, null, null,
            'variable', 'set', 'set ' || v.name || ', version ' || v.version, v.value::text, v.name
        from asked as w
        inner join @extschema@.caliber_variable as v on w.trajectory_id = v.trajectory_id
        union all
        select
            c.saved_at, null, c.trajectory_id, c.agent_id, null, null,
            'checkpoint', c.checkpoint_type, 'saved ' || c.checkpoint_type || ' checkpoint', c.reference_id,
            c.checkpoint_id::text
        from asked as w
        cross join lateral (
            select c.*
            from @extschema@.caliber_checkpoint as c
            where c.trajectory_id = w.trajectory_id and c.saved_at >= w.since and c.saved_at < w.until
            order by c.checkpoint_id desc
            limit $4
        ) as c
        union all
        select
            c.created_at, null, c.trajectory_id, c.agent_id, null, null,
            'context', 'assembled', 'assembled its context', c.token_count || ' of ' || c.token_budget || ' tokens',
            c.context_id::text
        from asked as w
        cross join lateral (
            select c.*
            from @extschema@.caliber_context as c
            where c.trajectory_id = w.trajectory_id and c.created_at >= w.since and c.created_at < w.until
            order by c.context_id desc
            limit $4
        ) as c
        union all
        select
            m.created_at, null, m.trajectory_id, m.from_agent_id, r.agent_ids,
            case when r.agent_ids is null then coalesce('any ' || m.to_agent_type, 'nobody') end,
            'message', m.message_type,
            m.message_type || case when m.in_reply_to is null then '' else ' in reply' end,
            pg_catalog.concat_ws(
                ' · ',
                coalesce(
                    m.subject,
                    nullif(pg_catalog.left(m.body, 400), ''),
                    nullif(pg_catalog.left(m.payload::text, 400), '{}')
                ),
                case when m.priority <> 'normal' then m.priority end,
                r.became
            ),
            m.message_id::text
        from asked as w
        cross join lateral (
            select m.*
            from @extschema@.caliber_message as m
            where m.trajectory_id = w.trajectory_id and m.created_at >= w.since and m.created_at < w.until
            order by m.created_at desc
            limit $4
        ) as m
        cross join lateral (
            select
                pg_catalog.array_agg(d.agent_id) filter (where d.agent_id is not null) as agent_ids,
                case
                    when pg_catalog.count(*) = 1 then pg_catalog.min(d.status::text)
                    when pg_catalog.count(*) > 1
                        then pg_catalog.count(*) filter (where d.status = 'processed')
                            || ' of ' || pg_catalog.count(*) || ' processed'
                end as became
            from (
                select
                    d.agent_id,
                    d.status
                from @extschema@.caliber_delivery as d
                where d.message_id = m.message_id
                order by d.queue_id
                limit 1000
            ) as d
        ) as r
        union all
        select
            s.at, case s.step when 'accepted' then d.ended_at end,
            coalesce(d.parent_trajectory_id, d.child_trajectory_id),
            case s.step
                when 'delegated' then d.delegator_agent_id else coalesce(d.delegatee_agent_id, d.delegator_agent_id)
            end,
            case
                when
                    s.step = 'delegated'
                    then case when d.delegatee_agent_id is not null then array[d.delegatee_agent_id] end
                when d.delegatee_agent_id is not null then array[d.delegator_agent_id]
            end,
            case when s.step = 'delegated' and d.delegatee_agent_id is null then 'any ' || d.delegatee_agent_type end,
            'delegation', s.step, s.step || ' ' || d.title,
            case s.step
                when 'delegated' then pg_catalog.concat_ws(' · ', d.task_type, pg_catalog.left(d.instructions, 400))
                when 'accepted' then d.max_tokens || ' tokens, ' || d.max_tool_calls || ' tool calls at most'
                else
                    pg_catalog.concat_ws(
                        ' · ', d.result_status, coalesce(d.summary, d.error), d.tokens_used || ' tokens'
                    )
            end,
            d.delegation_id::text
        from task as d
        cross join lateral (
            values
            (d.created_at, 'delegated'),
            (d.accepted_at, 'accepted'),
            (d.ended_at, d.status::text)
        ) as s (at, step)
        where s.at is not null
        union all
        -- Who acts: the sender to begin with and when time runs out, else the receiver.
        select
            r.recorded_at, null, r.trajectory_id,
            case when x.by_receiver then r.to_agent_id else r.from_agent_id end,
            case
                when x.by_receiver then array[r.from_agent_id]
                when r.to_agent_id is not null then array[r.to_agent_id]
            end,
            case when r.to_agent_id is null then coalesce('any ' || r.to_agent_type, 'a human') end,
            'handoff', r.event_type,
            r.handoff_type || ' handoff ' || pg_catalog.replace(r.event_type, '_', ' '),
            pg_catalog.concat_ws(
                ' · ', r.reason, r.outcome, case when r.risk_level <> 'low' then r.risk_level || ' risk' end
            ),
            r.handoff_id::text
        from record as r
        cross join lateral (
            select r.to_agent_id is not null
                and r.event_type in (
                    'accepted', 'rejected', 'deferred', 'started', 'returned', 'completed', 'failed', 'in_progress'
                ) as by_receiver
        ) as x
        union all
        select
            l.acquired_at, l.expires_at, w.trajectory_id, l.holder_agent_id, null, null,
            'lock', l.mode::text, 'has ' || l.resource_type || ' ' || l.resource_id,
            pg_catalog.concat_ws(' · ', l.mode, l.reason), l.lock_id::text
        from @extschema@.caliber_lock as l
        inner join @extschema@.caliber_agent as a on l.holder_agent_id = a.agent_id
        inner join asked as w on a.current_trajectory_id = w.trajectory_id
        union all
        select
            s.at, null, c.trajectory_id,
            case s.step
                when 'escalated' then coalesce(c.agent_b_id, c.agent_a_id) else coalesce(c.agent_a_id, c.agent_b_id)
            end,
            case
                when s.step = 'escalated' then case when c.escalated_to is not null then array[c.escalated_to] end
                when c.agent_b_id <> c.agent_a_id then array[c.agent_b_id]
            end,
            case when s.step = 'escalated' and c.escalated_to is null then 'a human' end,
            'conflict', s.step,
            pg_catalog.replace(c.conflict_type::text, '_', ' ') || ' ' || s.step,
            case s.step
                when 'detected' then pg_catalog.concat_ws(
                    ' · ', c.verdict, 'similarity ' || pg_catalog.round(c.similarity::numeric, 2), c.evidence
                )
                else pg_catalog.concat_ws(' · ', c.strategy, c.reason)
            end,
            c.conflict_id::text
        from clash as c
        cross join lateral (
            values
            (c.detected_at, 'detected'),
            (c.escalated_at, 'escalated'),
            (c.resolved_at, 'resolved')
        ) as s (at, step)
        where s.at is not null
        union all
        select
            e.recorded_at, null, e.trajectory_id, e.source_agent_id, null, null,
            case
                when e.reported then 'event'
                when e.reference_type in ('delegation', 'handoff', 'conflict', 'message', 'note', 'artifact')
                    then e.reference_type
                when e.event_type like 'trajectory\_%' then 'trajectory'
                when e.event_type in ('conflicts_detected', 'region_conflict') then 'conflict'
                else 'event'
            end,
            e.event_type, pg_catalog.replace(e.event_type, '_', ' '), e.summary, e.event_id::text
        from asked as w
        cross join lateral (
            select e.*
            from @extschema@.caliber_event as e
            where e.trajectory_id = w.trajectory_id
                -- Not for an index: a trajectory has few, and a range of time has many.
                and (e.recorded_at >= w.since and e.recorded_at < w.until) is true
                and (
                    e.reported
                    or (
                        e.event_type not in (
                            'trajectory_started', 'trajectory_finished', 'scope_opened', 'scope_closed'
                        )
                        and (
                            e.event_type in (
                                'delegation_retried', 'delegation_rejected', 'delegation_reopened',
                                'conflict_claimed', 'handoff_untold', 'note_retired'
                            )
                            or e.reference_id is null
                            or (e.reference_type, e.reference_id) not in (
                                select
                                    s.reference_type,
                                    s.reference_id
                                from shown as s
                            )
                        )
                        and (
                            e.event_type <> 'conflicts_detected'
                            or not exists (select from clash as c where c.trajectory_id = e.trajectory_id)
                        )
                    )
                )
            order by e.event_id desc
            limit $4
        ) as e
    )

    select
        m.at,
        m.ends_at,
        m.trajectory_id,
        m.agent_id,
        m.to_agent_ids,
        m.to_others,
        m.kind,
        m.step,
        @extschema@._caliber_timeline_text(m.what, 200),
        @extschema@._caliber_timeline_text(nullif(m.details, ''), 200),
        m.reference_id
    from mark as m
    where m.at >= coalesce($2, '-infinity') and m.at < coalesce($3, 'infinity')
    order by m.at desc, m.kind desc, m.reference_id desc, m.step desc
    limit $4;
end;

comment on function @extschema@._caliber_timeline_marks(uuid[], timestamptz, timestamptz, integer) is
'The marks of some trajectories that the caller can see, the newest so many of them, newest first.';

grant execute on function
    @extschema@._caliber_timeline_text(text, integer),
    @extschema@._caliber_timeline_missing(uuid),
    @extschema@._caliber_timeline_tree(uuid, boolean),
    @extschema@._caliber_timeline_marks(uuid[], timestamptz, timestamptz, integer)
to caliber_admin, caliber_agent, caliber_observer;
