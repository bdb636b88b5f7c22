-- Overview: what people look at in psql. One screen of everything, what is wrong and what to do
-- about it, how full the queues are, and who waits for whom. All of it is read at this moment;
-- nothing is collected beforehand. Everybody sees what row security shows them: admins and observers
-- all, an agent its own. What the server knows of other sessions it shows to members of pg_monitor.

create view @extschema@.caliber_queue_stats with (security_invoker = true) as
select
    coalesce(a.name, of_type.agent_type) as queue,
    case when a.agent_id is null then 'type' else 'agent' end as kind,
    t.name as team,
    counted.ready,
    counted.taken,
    counted.later,
    counted.dead,
    greatest(pg_catalog.clock_timestamp() - counted.oldest_ready, interval '0') as oldest_ready_for,
    counted.most_attempts,
    counted.queue_id
from (
    select
        d.queue_id,
        pg_catalog.count(*) filter (
            where d.dead_at is null and d.visible_at <= pg_catalog.clock_timestamp()
        ) as ready,
        pg_catalog.count(*) filter (
            where d.dead_at is null and d.visible_at > pg_catalog.clock_timestamp() and d.receipt is not null
        ) as taken,
        pg_catalog.count(*) filter (
            where d.dead_at is null and d.visible_at > pg_catalog.clock_timestamp() and d.receipt is null
        ) as later,
        pg_catalog.count(*) filter (where d.dead_at is not null) as dead,
        pg_catalog.min(d.visible_at) filter (
            where d.dead_at is null and d.visible_at <= pg_catalog.clock_timestamp()
        ) as oldest_ready,
        pg_catalog.max(d.attempts) as most_attempts
    from @extschema@.caliber_delivery as d
    where d.processed_at is null
    group by d.queue_id
) as counted
left join @extschema@.caliber_agent as a on counted.queue_id = a.agent_id
left join (
    select distinct
        o.team_id,
        o.agent_type
    from @extschema@.caliber_agent as o
) as of_type
    on counted.queue_id = @extschema@._caliber_type_queue(of_type.team_id, of_type.agent_type)
left join @extschema@.caliber_team as t on coalesce(a.team_id, of_type.team_id) = t.team_id;

comment on view @extschema@.caliber_queue_stats is
'Every queue in which something is not dealt with: how much is ready to be taken, taken, to be tried later, dead, and for how long the first has been ready.';

create view @extschema@.caliber_waits with (security_invoker = true) as
select
    l.waiting,
    l.blocking,
    'lock' as waits_for,
    coalesce(l.resource_type || ' ' || l.resource_id, 'its turn in the queue') as what,
    l.expires_at as at_most_until,
    l.waiting_agent_id,
    l.blocking_agent_id
from @extschema@.caliber_lock_waits as l
union all
select
    q.name as waiting,
    s.holder as blocking,
    'token' as waits_for,
    q.token_type || case when q.scope <> '' then ' ' || q.scope else '' end as what,
    s.expires_at as at_most_until,
    q.agent_id as waiting_agent_id,
    s.holder_agent_id as blocking_agent_id
from @extschema@.caliber_token_queue as q
inner join @extschema@.caliber_tokens as s on q.token_id = s.token_id
where s.holder_agent_id is not null
union all
select
    a.name as waiting,
    r.name as blocking,
    'reply' as waits_for,
    m.message_type || coalesce(': ' || m.subject, '') as what,
    m.expires_at as at_most_until,
    m.from_agent_id as waiting_agent_id,
    d.agent_id as blocking_agent_id
from @extschema@.caliber_message as m
inner join @extschema@.caliber_delivery as d on m.message_id = d.message_id
inner join @extschema@.caliber_agent as a on m.from_agent_id = a.agent_id
inner join @extschema@.caliber_agent as r on d.agent_id = r.agent_id
where m.requires_response
    and d.processed_at is null
    and d.dead_at is null
    and (m.expires_at is null or m.expires_at > pg_catalog.clock_timestamp())
    and not exists (
        select from @extschema@.caliber_message as answer
        where answer.in_reply_to = m.message_id and answer.from_agent_id = d.agent_id
    );

comment on view @extschema@.caliber_waits is
'Who waits for whom at this moment, for a lock, a token or a reply, and until when at most.';

-- A check is a branch: its name, how bad it is, what was found, and what to do about it.
create view @extschema@.caliber_health with (security_invoker = true) as
select
    checked.name,
    checked.severity::@extschema@.caliber_event_severity as severity,
    checked.found,
    case when checked.severity <> 'info' then checked.remedy end as remedy
from (
    select
        'agents' as name,
        case when pg_catalog.count(*) > 0 then 'warning' else 'info' end as severity,
        pg_catalog.count(*) || ' unavailable that nobody has reaped' as found,
        'select * from caliber_agent_reap(), or let caliber_tick run; see caliber_agent_liveness.' as remedy
    from @extschema@.caliber_agents as v
    where v.liveness = 'unavailable' and v.status <> 'failed'
    union all
    select
        'tick' as name,
        case when pg_catalog.count(*) > 0 then 'info' else 'warning' end as severity,
        coalesce(
            'ran ' || pg_catalog.date_trunc('second', pg_catalog.max(n.noted_at)), 'not within the last hour'
        ) as found,
        'Nothing is wrong, only untidy: schedule select caliber_tick(), every minute by pg_cron.' as remedy
    from @extschema@.caliber_tick_note as n
    where n.noted_at > pg_catalog.clock_timestamp() - interval '1 hour'
    union all
    select
        'queues' as name,
        case
            when pg_catalog.max(q.oldest_ready_for) > interval '1 hour' then 'critical'
            when pg_catalog.max(q.oldest_ready_for) > interval '5 minutes' then 'warning'
            else 'info'
        end as severity,
        coalesce(
            'the oldest message is ready for '
            || pg_catalog.date_trunc('second', pg_catalog.max(q.oldest_ready_for)),
            'nothing is ready'
        ) as found,
        'Nobody takes them: see caliber_queue_stats for which queue and caliber_agents for who lives.' as remedy
    from @extschema@.caliber_queue_stats as q
    union all
    select
        'queue limit' as name,
        case
            when pg_catalog.max(q.ready + q.taken + q.later) >= setting.most and setting.most > 0 then 'critical'
            when pg_catalog.max(q.ready + q.taken + q.later) >= 0.8 * setting.most and setting.most > 0
                then 'warning'
            else 'info'
        end as severity,
        coalesce(pg_catalog.max(q.ready + q.taken + q.later), 0) || ' in the fullest queue, '
        || setting.most || ' allowed' as found,
        'Sending there fails at the limit: add readers, or raise message_queue_limit.' as remedy
    from (
        select @extschema@._caliber_config_value('message_queue_limit')::integer as most
    ) as setting
    left join @extschema@.caliber_queue_stats as q on true
    group by setting.most
    union all
    select
        'dead letters' as name,
        case when pg_catalog.count(*) > 0 then 'warning' else 'info' end as severity,
        pg_catalog.count(*)::text as found,
        'See caliber_dead_letter for why; caliber_message_requeue tries one again.' as remedy
    from @extschema@.caliber_delivery as d
    where d.dead_at is not null
    union all
    select
        'notification queue' as name,
        case
            when pg_catalog.pg_notification_queue_usage() > 0.25 then 'critical'
            when pg_catalog.pg_notification_queue_usage() > 0.05 then 'warning'
            else 'info'
        end as severity,
        pg_catalog.round((100 * pg_catalog.pg_notification_queue_usage())::numeric, 1) || ' % full' as found,
        'A listener sits in a transaction; past 25 % nobody is notified. End its session.' as remedy
    union all
    select
        'open transactions' as name,
        case
            when pg_catalog.max(pg_catalog.clock_timestamp() - s.xact_start) > interval '1 hour' then 'critical'
            when pg_catalog.max(pg_catalog.clock_timestamp() - s.xact_start) > interval '1 minute' then 'warning'
            else 'info'
        end as severity,
        coalesce(
            'the oldest is open for '
            || pg_catalog.date_trunc(
                'second', pg_catalog.max(pg_catalog.clock_timestamp() - s.xact_start)
            )
            || ', process '
            || (pg_catalog.array_agg(s.pid order by s.xact_start))[1],
            'none that you may see'
        ) as found,
        'It holds back vacuum and readers of events: end it, and set idle_in_transaction_session_timeout.' as remedy
    from pg_catalog.pg_stat_activity as s
    where s.backend_type = 'client backend' and s.pid <> pg_catalog.pg_backend_pid()
    union all
    select
        'prepared transactions' as name,
        case when pg_catalog.count(*) > 0 then 'warning' else 'info' end as severity,
        pg_catalog.count(*) || ' older than a minute' as found,
        'Each holds back vacuum for ever: commit prepared or rollback prepared.' as remedy
    from pg_catalog.pg_prepared_xacts as x
    where x.prepared < pg_catalog.clock_timestamp() - interval '1 minute'
    union all
    select
        'replication slots' as name,
        case when pg_catalog.count(*) > 0 then 'warning' else 'info' end as severity,
        pg_catalog.count(*) || ' without a reader' as found,
        'Each keeps WAL, and may hold back vacuum: bring its reader back, or pg_drop_replication_slot.' as remedy
    from pg_catalog.pg_replication_slots as r
    where not r.active
    union all
    select
        'dead rows' as name,
        case when pg_catalog.count(*) > 0 then 'warning' else 'info' end as severity,
        coalesce(pg_catalog.string_agg(u.relname, ', '), 'few') as found,
        'Vacuum does not keep up: end old transactions, then vacuum these tables.' as remedy
    from pg_catalog.pg_stat_user_tables as u
    where u.relname like 'caliber\_%'
        and u.n_dead_tup > 100000
        and u.n_dead_tup > 2 * u.n_live_tup
    union all
    select
        'durability' as name,
        case
            when pg_catalog.current_setting('fsync') = 'off'
                or pg_catalog.current_setting('full_page_writes') = 'off' then 'critical'
            when pg_catalog.current_setting('synchronous_commit') = 'off' then 'warning'
            else 'info'
        end as severity,
        'fsync ' || pg_catalog.current_setting('fsync')
        || ', synchronous_commit ' || pg_catalog.current_setting('synchronous_commit') as found,
        'A crash may lose what was acknowledged, leases and messages too: switch them on.' as remedy
    union all
    select
        'transaction ids' as name,
        case
            when pg_catalog.age(d.datfrozenxid) > 1500000000 then 'critical'
            when pg_catalog.age(d.datfrozenxid) > 1000000000 then 'warning'
            else 'info'
        end as severity,
        pg_catalog.age(d.datfrozenxid) || ' since the last freeze' as found,
        'Vacuum is held back: end old transactions, then vacuum freeze.' as remedy
    from pg_catalog.pg_database as d
    where d.datname = pg_catalog.current_database()
) as checked;

comment on view @extschema@.caliber_health is
'Checks of this database, one row each: info when all is well, else how bad it is, what was found and what to do.';

create view @extschema@.caliber_overview with (security_invoker = true) as
with agents as (
    select
        v.liveness,
        pg_catalog.count(*) as agents,
        pg_catalog.string_agg(distinct v.status::text, ', ') as statuses
    from @extschema@.caliber_agents as v
    group by v.liveness
),

leases as (
    select
        pg_catalog.count(*) as leases,
        pg_catalog.count(distinct l.holder_agent_id) as holders,
        pg_catalog.min(l.expires_at) as first_end
    from @extschema@.caliber_lock as l
),

queues as (
    select
        coalesce(pg_catalog.sum(q.ready), 0) as ready,
        coalesce(pg_catalog.sum(q.taken), 0) as taken,
        coalesce(pg_catalog.sum(q.later), 0) as later,
        coalesce(pg_catalog.sum(q.dead), 0) as dead,
        pg_catalog.max(q.oldest_ready_for) as oldest
    from @extschema@.caliber_queue_stats as q
),

turns as (
    select
        pg_catalog.count(*) filter (where s.holder_agent_id is not null) as held,
        coalesce(pg_catalog.sum(s.waiting), 0) as waiting
    from @extschema@.caliber_tokens as s
),

server as (
    select
        pg_catalog.max(pg_catalog.age(s.backend_xmin)) as transactions,
        pg_catalog.max(pg_catalog.clock_timestamp() - s.xact_start) as since
    from pg_catalog.pg_stat_activity as s
    where s.pid <> pg_catalog.pg_backend_pid()
        and (s.backend_xmin is not null or s.state like 'idle in transaction%')
)

select
    lines.topic,
    lines.amount,
    lines.detail
from (
    select
        1 as place,
        'agents ' || a.liveness as topic,
        a.agents as amount,
        a.statuses as detail
    from agents as a
    union all
    select
        2 as place,
        'messages ready' as topic,
        q.ready as amount,
        'for ' || pg_catalog.date_trunc('second', q.oldest) as detail
    from queues as q
    union all
    select
        3 as place,
        'messages taken' as topic,
        q.taken as amount,
        q.later || ' to be tried later' as detail
    from queues as q
    union all
    select
        4 as place,
        'dead letters' as topic,
        q.dead as amount,
        case when q.dead > 0 then 'select * from caliber_dead_letter' end as detail
    from queues as q
    union all
    select
        5 as place,
        'leases' as topic,
        l.leases as amount,
        'of ' || l.holders || ' agents' as detail
    from leases as l
    union all
    select
        6 as place,
        'tokens held' as topic,
        t.held as amount,
        t.waiting || ' agents in line' as detail
    from turns as t
    union all
    select
        7 as place,
        'waits' as topic,
        pg_catalog.count(*) as amount,
        case when pg_catalog.count(*) > 0 then 'select * from caliber_waits' end as detail
    from @extschema@.caliber_waits as w
    union all
    select
        8 as place,
        'trajectories active' as topic,
        pg_catalog.count(*) as amount,
        null as detail
    from @extschema@.caliber_trajectory as j
    where j.status = 'active'
    union all
    select
        9 as place,
        'conflicts of writes to regions' as topic,
        pg_catalog.count(*) as amount,
        'in the last day' as detail
    from @extschema@.caliber_region_conflict as c
    where c.detected_at > pg_catalog.clock_timestamp() - interval '1 day'
    union all
    select
        10 as place,
        'oldest snapshot, transactions' as topic,
        s.transactions as amount,
        'for ' || pg_catalog.date_trunc('second', s.since) as detail
    from server as s
    union all
    select
        11 as place,
        'notification queue, percent' as topic,
        pg_catalog.floor(100 * pg_catalog.pg_notification_queue_usage())::bigint as amount,
        null as detail
    union all
    select
        12 as place,
        'problems' as topic,
        pg_catalog.count(*) as amount,
        pg_catalog.string_agg(h.name, ', ') as detail
    from @extschema@.caliber_health as h
    where h.severity > 'info'
) as lines
order by lines.place, lines.topic;

comment on view @extschema@.caliber_overview is
'Everything on one screen: agents, queues, leases, tokens, waits, the server''s own limits, and how many checks of caliber_health found something.';

grant select on
    @extschema@.caliber_health,
    @extschema@.caliber_overview,
    @extschema@.caliber_queue_stats,
    @extschema@.caliber_waits
to caliber_admin, caliber_agent, caliber_observer;
