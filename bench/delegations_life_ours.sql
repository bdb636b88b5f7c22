\set a random(1, 500)
\set b random(501, 1000)
select caliber_delegate_task(
    ('00000000-0000-7000-8000-' || lpad(:a, 12, '0'))::uuid, null, 'review the module and say what is wrong',
    ('00000000-0000-7000-8000-' || lpad(:a, 12, '0'))::uuid,
    delegatee_agent_id => ('00000000-0000-7000-8000-' || lpad(:b, 12, '0'))::uuid
) as task
\gset
select caliber_accept_delegation(:task, ('00000000-0000-7000-8000-' || lpad(:b, 12, '0'))::uuid);
select caliber_complete_delegation(:task, 'success', 'three issues', tokens => 100);
