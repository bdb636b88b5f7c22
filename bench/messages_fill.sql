-- As many messages as asked for, in the inboxes of 1,000 agents; none of them processed yet.
with made as (
    insert into caliber_message (message_id, from_agent_id, to_agent_id, message_type, payload, thread_id)
    select
        new.id, ('00000000-0000-7000-8000-' || lpad((1 + new.n / 7 % 1000)::text, 12, '0'))::uuid,
        ('00000000-0000-7000-8000-' || lpad((1 + new.n % 1000)::text, 12, '0'))::uuid,
        'task_request', '{"task": "review", "file": "src/auth.py", "lines": [1, 2, 3]}', new.id
    from (select n, _caliber_uuid_v7(null) as id from generate_series(1, :messages) as n) as new
    returning message_id, from_agent_id, to_agent_id
)
insert into caliber_delivery (message_id, queue_id, from_agent_id, seq, priority, agent_id)
select m.message_id, m.to_agent_id, m.from_agent_id, nextval('caliber_message_seq'), 'normal', m.to_agent_id
from made as m;
