-- As many events as asked for, spread over the transaction ids that have been; every second one
-- is of another team than the reader's.
insert into caliber_event (
    xid, recorded_at, severity, category, event_type, actor, source_agent_id, team_id, summary, details
)
select
    (3 + n * (now_xid - 10) / %(events)s)::text::xid8,
    now() - interval '1 second' * (%(events)s - n),
    'info', 'agent', 'agent_status_changed', 'postgres',
    case when n %% 2 = 0 then ('00000000-0000-7000-8000-' || lpad((1 + n %% 1000)::text, 12, '0'))::uuid end,
    case when n %% 2 = 0 then t.team_id end,
    'coder-' || n %% 1000 || ' is active, was idle',
    '{"from": "idle", "to": "active"}'
from generate_series(1, %(events)s::bigint) as n,
    caliber_team as t,
    (select pg_snapshot_xmin(pg_current_snapshot())::text::bigint as now_xid) as snapshot
where t.name = 'default';
