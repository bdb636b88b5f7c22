with made as (
    insert into caliber_agent as a (agent_id, team_id, agent_type, name, capabilities, memory_access)
    select
        new.id, t.team_id, :agent_type, left(:agent_type, 50) || '-' || right(new.id::text, 12),
        array['python', 'sql'],
        '{"read": [{"scope": "own", "memory_type": "*"}], "write": [{"scope": "own", "memory_type": "*"}]}'
    from (select caliber_uuid_v7() as id) as new, caliber_team as t
    where t.name = 'default'
        and _caliber_is_admin()
        and length(:agent_type) <= 63
        and :agent_type ~ '^[a-z0-9](?:[a-z0-9_.-]*[a-z0-9])?$'
    on conflict (team_id, name) where terminated_at is null do nothing
    returning a.agent_id, a.team_id, a.name
),
beating as (
    insert into caliber_agent_beat (agent_id, team_id) select m.agent_id, m.team_id from made as m
),
logged as (
    insert into caliber_event (
        event_type, category, severity, summary, actor, source_agent_id, team_id, details
    )
    select
        'agent_registered', 'agent', 'info', m.name || ' registered', _caliber_actor(), m.agent_id, m.team_id,
        jsonb_build_object('agent_type', :agent_type::text, 'parent_id', null)
    from made as m
    where 'info' >= _caliber_config_value('event_level')::caliber_event_severity
    returning source_agent_id
)
select
    l.source_agent_id,
    case
        when _caliber_config_value('event_notify') = 'on' and pg_notification_queue_usage() <= 0.25
            then pg_notify('caliber_event', 'agent')
    end
from logged as l;
