\set a random(1, 1000)
\set b random(1, 1000)
with made as (
    insert into caliber_message as m (
        message_id, from_agent_id, to_agent_id, message_type, payload, thread_id
    )
    select
        new.id, s.agent_id, r.agent_id, 'task_request', :payload, new.id
    from (select _caliber_uuid_v7((
        select s.value::integer from caliber_setting as s where s.key = 'shard_number'
    )) as id) as new,
        caliber_agent as s,
        caliber_agent as r
    where s.agent_id = ('00000000-0000-7000-8000-' || lpad(:a, 12, '0'))::uuid
        and s.terminated_at is null
        and (s.login_role = _caliber_actor() or _caliber_is_admin())
        and r.agent_id = ('00000000-0000-7000-8000-' || lpad(:b, 12, '0'))::uuid
        and r.terminated_at is null
        and (r.team_id = s.team_id or _caliber_is_admin())
        and exists (select from caliber_message_type as t where t.message_type = 'task_request')
        and octet_length(:payload) <= 262144
    returning m.message_id, m.from_agent_id, m.to_agent_id, m.created_at
)
insert into caliber_delivery (message_id, queue_id, from_agent_id, seq, visible_at, priority, agent_id)
select
    m.message_id, m.to_agent_id, m.from_agent_id, nextval('caliber_message_seq'), m.created_at, 'normal',
    m.to_agent_id
from made as m
returning
    message_id,
    case (select s.value from caliber_setting as s where s.key = 'notify_mode')
        when 'off' then null
        else pg_notify('caliber_agent_message', message_id::text)
    end;
