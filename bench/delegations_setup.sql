-- The agents of setup.sql may delegate, and each has a trajectory of its own number.
update caliber_agent set can_delegate_to = '{coder,tester,reviewer}';

insert into caliber_trajectory (trajectory_id, name, agent_id, team_id, root_trajectory_id, scope_count)
select a.agent_id, 'work', a.agent_id, a.team_id, a.agent_id, 0 from caliber_agent as a;

select caliber_config_set('message_queue_limit', '0');
select caliber_config_set('notify_mode', 'off');
select caliber_config_set('event_notify', 'off');
select caliber_config_set('delegation_to_silent', 'on');

-- 20,000 tasks that were done, so that both sides plan for a table that is in use.
insert into caliber_delegation (
    delegation_id, root_delegation_id, team_id, delegator_agent_id, delegatee_agent_id, chain, title,
    instructions, parent_trajectory_id, child_trajectory_id, timeout_seconds, max_tokens, max_tool_calls,
    max_retries, attempts, status, expires_at, ended_at
)
select
    new.id, new.id, a.team_id, a.agent_id, b.agent_id, array[a.agent_id], 'review', 'review', a.agent_id,
    gen_random_uuid(), 120, 4000, 10, 2, 1, 'completed', now(), now()
from generate_series(1, 20000) as n
cross join lateral (select caliber_uuid_v7() as id where n > 0) as new
join caliber_agent as a on a.agent_id = ('00000000-0000-7000-8000-' || lpad((n % 500 + 1)::text, 12, '0'))::uuid
join caliber_agent as b on b.agent_id = ('00000000-0000-7000-8000-' || lpad((n % 500 + 501)::text, 12, '0'))::uuid;

insert into caliber_trajectory (trajectory_id, name, agent_id, team_id, root_trajectory_id, scope_count)
select d.child_trajectory_id, 'review', d.delegatee_agent_id, d.team_id, d.child_trajectory_id, 1
from caliber_delegation as d;

insert into caliber_scope (trajectory_id, scope_no, agent_id, team_id, closed_at)
select d.child_trajectory_id, 1, d.delegatee_agent_id, d.team_id, now() from caliber_delegation as d;
