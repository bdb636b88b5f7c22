\set n random(1, 1000)
with counted as (
    update caliber_scope as s
    set turn_count = s.turn_count + 1, token_count = s.token_count + :tokens
    from caliber_trajectory as t, caliber_agent as a
    where s.scope_id = ('00000000-0000-7000-8001-' || lpad(:n, 12, '0'))::uuid
        and s.closed_at is null
        and (s.token_budget is null or s.token_count + :tokens <= s.token_budget)
        and t.trajectory_id = s.trajectory_id
        and t.status = 'active'
        and a.agent_id = coalesce(_caliber_my_agent(), case when _caliber_is_admin() then t.agent_id end)
        and a.terminated_at is null
        and (a.login_role = _caliber_actor() or _caliber_is_admin())
        and _caliber_allows(a.memory_access, 'write', 'turn', 'own', '{"role": "user"}')
        and octet_length(:activity) between 1 and 262144
        and :tokens between 0 and 10000000
    returning s.scope_id, s.turn_count, s.trajectory_id, s.team_id, a.agent_id
)
insert into caliber_turn as u (
    scope_id, turn_no, trajectory_id, agent_id, team_id, role, content, token_count
)
select c.scope_id, c.turn_count, c.trajectory_id, c.agent_id, c.team_id, 'user', :activity, :tokens
from counted as c
returning u.turn_no;
