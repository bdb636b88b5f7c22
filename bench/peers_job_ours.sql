\set a random(1, 1000)
select caliber_message_send(
    ('00000000-0000-7000-8000-' || lpad(:a, 12, '0'))::uuid, null, 'coder', 'task_request', :payload
);
select message_id, receipt
from caliber_message_receive(
    ('00000000-0000-7000-8000-' || lpad(:a, 12, '0'))::uuid, 'coder', max_messages => 1
)
\gset
select caliber_message_acknowledge(:message_id, :receipt);
