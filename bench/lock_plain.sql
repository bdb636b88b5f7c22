\set n random(1, 1000)
\set agent 1 + :client_id
with taken as (
    insert into caliber_resource as r (
        resource_type, resource_id, fence, lock_id, holder_agent_id, acquired_at, expires_at
    )
    select
        'artifact', 'a-' || :agent || '-' || :n, 1, caliber_uuid_v7(), a.agent_id, now.at, now.at + interval '1 min'
    from caliber_agent as a, (select clock_timestamp() as at) as now
    where a.agent_id = ('00000000-0000-7000-8000-' || lpad(:agent, 12, '0'))::uuid
        and a.terminated_at is null
        and (a.login_role = _caliber_actor() or _caliber_is_admin())
        and length('a-' || :agent || '-' || :n) <= 1000
    on conflict (resource_type, resource_id) do update
    set
        fence = r.fence + 1,
        lock_id = excluded.lock_id,
        holder_agent_id = excluded.holder_agent_id,
        acquired_at = clock_timestamp(),
        expires_at = clock_timestamp() + interval '1 min'
    where (r.lock_id is null or r.expires_at <= excluded.acquired_at) and not r.shared
    returning r.lock_id
)
select lock_id as lock from taken
\gset
update caliber_resource as r
set lock_id = null, holder_agent_id = null, acquired_at = null, expires_at = null, reason = null
from caliber_agent as a
where r.lock_id = :lock
    and r.expires_at > clock_timestamp()
    and a.agent_id = r.holder_agent_id
    and (a.login_role = _caliber_actor() or _caliber_is_admin())
returning case when r.wanted_until > clock_timestamp() then pg_notify('caliber_lock', r.resource_id) end;
