-- One screen of `make top`. Each table is cut to what fits.
\pset footer off
\pset border 0
\pset null ''
\echo 'CALIBER, what there is'
select topic, amount, left(detail, 60) as detail from caliber_overview;
\echo 'What is wrong'
select severity, name, found, left(remedy, 70) as remedy from caliber_health where severity > 'info'
order by severity desc, name limit 6;
\echo 'Agents'
select name, agent_type, team, status, liveness, date_trunc('second', silent_for) as silent_for,
    left(activity, 40) as activity
from caliber_agents where status <> 'terminated' order by last_heartbeat_at desc limit 10;
\echo 'Queues'
select queue, kind, team, ready, taken, later, dead, date_trunc('second', oldest_ready_for) as for
from caliber_queue_stats order by ready desc, taken desc limit 8;
\echo 'Who waits for whom'
select waiting, blocking, waits_for, left(what, 50) as what from caliber_waits limit 8;
