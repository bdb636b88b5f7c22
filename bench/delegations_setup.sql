-- The agents of setup.sql may delegate, and each has a trajectory of its own number.
update caliber_agent set can_delegate_to = '{coder,tester,reviewer}';

insert into caliber_trajectory (trajectory_id, name, agent_id, team_id, root_trajectory_id, scope_count)
select a.agent_id, 'work', a.agent_id, a.team_id, a.agent_id, 0 from caliber_agent as a;

select caliber_config_set('message_queue_limit', '0');
select caliber_config_set('notify_mode', 'off');
select caliber_config_set('event_notify', 'off');
select caliber_config_set('delegation_to_silent', 'on');
