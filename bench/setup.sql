-- 1,000 agents whose ids pgbench can make from a number, at the same cost on both sides.
insert into caliber_team (name) values ('default') on conflict do nothing;

insert into caliber_agent (agent_id, team_id, agent_type, name, memory_access)
select
    ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, t.team_id, 'coder', 'coder-' || n,
    '{"read": [], "write": []}'
from generate_series(1, 1000) as n, caliber_team as t
where t.name = 'default';

insert into caliber_agent_beat (agent_id, team_id) select agent_id, team_id from caliber_agent;

-- What a first call is compared with: the same statement in PL/pgSQL, definer and pinned too.
create function bench_heartbeat(agent_id uuid, activity text, turns bigint, tokens bigint)
returns caliber_agent_status
language plpgsql
security definer
set search_path = pg_catalog, public, pg_temp
as $$
declare
    found_status caliber_agent_status;
begin
    if length(activity) > 500 or turns not between 0 and 1000000000000000
        or tokens not between 0 and 1000000000000000 then
        raise exception 'out of range';
    end if;
    update caliber_agent_beat as b
    set
        beat_at = clock_timestamp(),
        activity = coalesce($2, b.activity),
        turns = b.turns + coalesce($3, 0),
        tokens = b.tokens + coalesce($4, 0)
    from caliber_agent as a
    where b.agent_id = $1
        and a.agent_id = $1
        and not b.ended
        and (a.login_role = _caliber_actor() or _caliber_is_admin())
    returning a.status into strict found_status;
    return found_status;
end
$$;
alter function bench_heartbeat(uuid, text, bigint, bigint) owner to caliber_owner;
