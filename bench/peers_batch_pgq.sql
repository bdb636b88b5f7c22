select count(pgq.insert_event('queue_' || :client_id, 'task_request', :payload))
from generate_series(1, 100);
select pgq.ticker('queue_' || :client_id);
select pgq.next_batch('queue_' || :client_id, 'bench') as batch
\gset
-- As on the other side, what a batch holds is counted and not sent to pgbench.
select count(ev_data) as events, 1 / (count(*) = 100)::integer as whole
from pgq.get_batch_events(:batch);
select pgq.finish_batch(:batch);
