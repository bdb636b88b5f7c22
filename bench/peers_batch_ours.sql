\set a 1 + :client_id
select count(*)
from caliber_message_send_batch(
    ('00000000-0000-7000-8000-' || lpad(:a, 12, '0'))::uuid,
    (
        select jsonb_agg(jsonb_build_object(
            'to_agent_id', '00000000-0000-7000-8000-' || lpad(:a, 12, '0'),
            'message_type', 'task_request',
            'payload', :payload::jsonb
        ))
        from generate_series(1, 100)
    )
);
select
    array_agg(message_id) as ids,
    array_agg(receipt) as receipts,
    1 / (count(*) = 100)::integer as whole
from caliber_message_receive(('00000000-0000-7000-8000-' || lpad(:a, 12, '0'))::uuid, max_messages => 100)
\gset
select caliber_message_acknowledge_batch(:ids::uuid[], :receipts::bigint[]);
