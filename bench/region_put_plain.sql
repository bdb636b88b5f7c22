\set n random(1, 1000)
\set k random(1, 10)
with target as (
    select r.region_id, a.agent_id, r.version_tracking
    from caliber_region as r
    join caliber_agent as a on a.agent_id = ('00000000-0000-7000-8000-' || lpad(:n, 12, '0'))::uuid
    left join caliber_region_member as m on r.region_id = m.region_id and a.agent_id = m.agent_id
    where r.region_id = ('00000000-0000-7000-8000-' || lpad(:n, 12, '0'))::uuid
        and a.terminated_at is null
        and (a.login_role = _caliber_actor() or _caliber_is_admin())
        and (
            r.owner_agent_id = a.agent_id or m.access = 'write'
            or (r.region_type = 'team' and r.team_id = a.team_id) or r.region_type = 'collaborative'
        )
        and not r.require_lock
        and r.conflict_resolution = 'last_write_wins'
),
written as (
    insert into caliber_region_entry as e (region_id, key, value, written_by)
    select region_id, 'key-' || :k,
        '{"state": "busy", "note": "a value of some length, as an agent would write it"}'::jsonb, agent_id
    from target
    on conflict (region_id, key) do update
    set version = e.version + 1, value = excluded.value, written_by = excluded.written_by,
        written_at = clock_timestamp()
    returning e.*
),
kept as (
    insert into caliber_region_version (region_id, key, version, value, written_by, written_at)
    select w.region_id, w.key, w.version, w.value, w.written_by, w.written_at
    from written as w join target as t on w.region_id = t.region_id
    where t.version_tracking
)
select 'written', version from written;
