\set n random(1, 1000)
select s.version
from caliber_state as s
where s.team = 'default' and s.namespace = 'bench' and s.key = 'key-' || :n
\gset
with changed as (
    update caliber_state_key as k
    set
        version = k.version + 1,
        live_until = 'infinity',
        changed_at = greatest(k.changed_at, clock_timestamp())
    where k.team_id = (
            select a.team_id
            from caliber_agent as a
            where a.agent_id = ('00000000-0000-7000-8000-' || lpad(:n, 12, '0'))::uuid
                and a.terminated_at is null
                and (a.login_role = _caliber_actor() or _caliber_is_admin())
        )
        and k.namespace = 'bench'
        and k.key = 'key-' || :n
        and length('key-' || :n) between 1 and 500
        and case when k.live_until > clock_timestamp() then k.version else 0 end = :version
        and octet_length(:value::text) <= 262144
        and _caliber_state_fits(k.value_type, :value::jsonb)
        and (
            not k.live_until > clock_timestamp()
            or k.owner_agent_id = ('00000000-0000-7000-8000-' || lpad(:n, 12, '0'))::uuid
            or k.owner_agent_id is null
        )
    returning k.*
)
insert into caliber_state_version as v (
    team_id, namespace, key, version, value, value_type, owner_agent_id, expires_at, changed_at, changed_by, actor
)
select
    c.team_id, c.namespace, c.key, c.version, :value::jsonb, c.value_type, c.owner_agent_id,
    case when isfinite(c.live_until) then c.live_until end,
    c.changed_at, ('00000000-0000-7000-8000-' || lpad(:n, 12, '0'))::uuid, _caliber_actor()
from changed as c
returning v.version, _caliber_state_notify(v.team_id, v.namespace, v.key, v.version);
