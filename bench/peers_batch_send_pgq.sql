select count(pgq.insert_event('queue_' || :client_id, 'task_request', :payload))
from generate_series(1, 100);
