-- 1,000 trajectories of one agent each, with an open scope whose id pgbench can make from a number;
-- and number 0, which turns are not added to.
update caliber_agent set memory_access = '{
    "read": [{"memory_type": "*", "scope": "own"}], "write": [{"memory_type": "*", "scope": "own"}]
}';

insert into caliber_trajectory (trajectory_id, name, agent_id, team_id, root_trajectory_id, scope_count)
select new.id, 'work ' || n, a.agent_id, a.team_id, new.id, 1
from generate_series(0, 1000) as n
cross join lateral (select ('00000000-0000-7000-8002-' || lpad(n::text, 12, '0'))::uuid as id) as new
join caliber_agent as a on a.name = 'coder-' || greatest(n, 1);

insert into caliber_scope (scope_id, trajectory_id, scope_no, agent_id, team_id)
select
    ('00000000-0000-7000-8001-' || right(t.trajectory_id::text, 12))::uuid, t.trajectory_id, 1,
    t.agent_id, t.team_id
from caliber_trajectory as t;
