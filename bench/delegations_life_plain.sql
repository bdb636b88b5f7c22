\set a random(1, 500)
\set b random(501, 1000)
with made as (
    insert into caliber_delegation as d (
        delegation_id, root_delegation_id, team_id, delegator_agent_id, delegatee_agent_id, chain, title,
        instructions, parent_trajectory_id, timeout_seconds, max_tokens, max_tool_calls, max_retries
    )
    select
        new.id, new.id, s.team_id, s.agent_id, r.agent_id, array[s.agent_id],
        'review the module and say what is wrong', 'review the module and say what is wrong',
        t.trajectory_id, 120, 4000, 10, 2
    from (select _caliber_uuid_v7(null) as id) as new,
        caliber_agent as s, caliber_agent as r, caliber_agent_beat as b, caliber_trajectory as t
    where s.agent_id = ('00000000-0000-7000-8000-' || lpad(:a, 12, '0'))::uuid
        and s.terminated_at is null
        and (s.login_role = _caliber_actor() or _caliber_is_admin())
        and r.agent_id = ('00000000-0000-7000-8000-' || lpad(:b, 12, '0'))::uuid
        and r.terminated_at is null
        and r.status not in ('completed', 'failed')
        and r.agent_id <> s.agent_id
        and (r.team_id = s.team_id or _caliber_is_admin())
        and s.can_delegate_to && array[r.agent_type, '*']
        and b.agent_id = r.agent_id
        and (
            (select value from caliber_setting where key = 'delegation_to_silent') = 'on'
            or b.beat_at > clock_timestamp() - interval '30 s'
        )
        and t.trajectory_id = ('00000000-0000-7000-8000-' || lpad(:a, 12, '0'))::uuid
        and t.finished_at is null
        and (t.team_id = s.team_id or t.agent_id = s.agent_id)
        and t.parent_trajectory_id is null
        and not exists (
            select from caliber_delegation as o where o.child_trajectory_id = t.trajectory_id
        )
    returning d.delegation_id, d.delegator_agent_id, d.delegatee_agent_id, d.title, d.team_id,
        d.parent_trajectory_id
),
recorded as (
    insert into caliber_event (
        event_type, category, severity, summary, actor, source_agent_id, team_id, trajectory_id,
        reference_type, reference_id, details
    )
    select
        'delegation_created', 'coordination', 'info', 'task: ' || m.title, _caliber_actor(),
        m.delegator_agent_id, m.team_id, m.parent_trajectory_id, 'delegation', m.delegation_id::text, '{}'
    from made as m
    where _caliber_config_value('event_level')::caliber_event_severity <= 'info'
),
sent as (
    insert into caliber_message as x (
        message_id, from_agent_id, to_agent_id, message_type, payload, thread_id, subject, channel,
        trajectory_id
    )
    select
        new.id, m.delegator_agent_id, m.delegatee_agent_id, 'task_delegation',
        jsonb_build_object('delegation_id', m.delegation_id), new.id, m.title, 'task:' || m.delegation_id,
        m.parent_trajectory_id
    from made as m, (select _caliber_uuid_v7(null) as id) as new
    returning x.message_id, x.from_agent_id, x.to_agent_id, x.created_at
),
put as (
    insert into caliber_delivery (message_id, queue_id, from_agent_id, seq, visible_at, priority, agent_id)
    select
        s.message_id, s.to_agent_id, s.from_agent_id, nextval('caliber_message_seq'), s.created_at, 'normal',
        s.to_agent_id
    from sent as s
)
select m.delegation_id as task from made as m
\gset
begin;
select a.team_id as team, coalesce(a.max_concurrent_tasks, 5) as most
from caliber_agent as a
where a.agent_id = ('00000000-0000-7000-8000-' || lpad(:b, 12, '0'))::uuid
    and a.terminated_at is null
    and (a.login_role = _caliber_actor() or _caliber_is_admin())
for no key update
\gset
with taken as (
    update caliber_delegation as d
    set
        status = 'accepted',
        child_trajectory_id = new.id,
        attempts = d.attempts + 1,
        accepted_at = clock_timestamp(),
        expires_at = least(d.deadline, clock_timestamp() + d.timeout_seconds * interval '1 s')
    from (select _caliber_uuid_v7(null) as id) as new
    where d.delegation_id = :task
        and d.status = 'pending'
        and (d.expires_at is null or d.expires_at > clock_timestamp())
        and d.delegatee_agent_id = ('00000000-0000-7000-8000-' || lpad(:b, 12, '0'))::uuid
        and not d.delegatee_agent_id = any (d.chain)
        and (
            select count(*) from caliber_delegation as o
            where o.delegatee_agent_id = ('00000000-0000-7000-8000-' || lpad(:b, 12, '0'))::uuid
                and o.ended_at is null and o.status <> 'pending' and o.expires_at > clock_timestamp()
        ) < :most
    returning d.*
),
started as (
    insert into caliber_trajectory (
        trajectory_id, name, agent_id, team_id, parent_trajectory_id, root_trajectory_id, depth, scope_count
    )
    select
        t.child_trajectory_id, t.title, t.delegatee_agent_id, :team, t.parent_trajectory_id,
        p.root_trajectory_id, p.depth + 1, 1
    from taken as t join caliber_trajectory as p on p.trajectory_id = t.parent_trajectory_id
),
opened as (
    insert into caliber_scope (trajectory_id, scope_no, agent_id, team_id)
    select t.child_trajectory_id, 1, t.delegatee_agent_id, :team from taken as t
),
recorded as (
    insert into caliber_event (
        event_type, category, severity, summary, actor, source_agent_id, team_id, trajectory_id,
        reference_type, reference_id, details
    )
    select
        'delegation_accepted', 'coordination', 'info', 'task taken: ' || t.title, _caliber_actor(),
        t.delegatee_agent_id, t.team_id, t.child_trajectory_id, 'delegation', t.delegation_id::text, '{}'
    from taken as t
    where _caliber_config_value('event_level')::caliber_event_severity <= 'info'
),
sent as (
    insert into caliber_message as x (
        message_id, from_agent_id, to_agent_id, message_type, payload, thread_id, subject, channel,
        trajectory_id
    )
    select
        new.id, t.delegatee_agent_id, t.delegator_agent_id, 'coordination_signal',
        jsonb_build_object(
            'event', 'delegation_accepted', 'delegation_id', t.delegation_id, 'child_trajectory_id',
            t.child_trajectory_id
        ), new.id, t.title, 'task:' || t.delegation_id, t.parent_trajectory_id
    from taken as t, (select _caliber_uuid_v7(null) as id) as new
    returning x.message_id, x.from_agent_id, x.to_agent_id, x.created_at
)
insert into caliber_delivery (message_id, queue_id, from_agent_id, seq, visible_at, priority, agent_id)
select
    s.message_id, s.to_agent_id, s.from_agent_id, nextval('caliber_message_seq'), s.created_at, 'normal',
    s.to_agent_id
from sent as s;
commit;
with over as (
    update caliber_delegation as d
    set
        status = 'completed',
        result_status = 'success',
        summary = 'three issues',
        tokens_used = d.tokens_used + 100,
        progress = 1,
        ended_at = clock_timestamp()
    from caliber_agent as a
    where d.delegation_id = :task
        and d.parent_delegation_id is null
        and d.status in ('accepted', 'in_progress')
        and d.expires_at > clock_timestamp()
        and a.agent_id = d.delegatee_agent_id
        and a.terminated_at is null
        and (a.login_role = _caliber_actor() or _caliber_is_admin())
        and d.tokens_used + 100 <= d.max_tokens
        and (
            d.budget_tokens is null
            or d.tokens_used + 100 + d.tokens_below + d.tokens_reserved <= d.budget_tokens
        )
        and d.open_children = 0
    returning d.*
),
finished as (
    update caliber_trajectory as t
    set
        status = 'completed',
        outcome = 'three issues',
        status_changed_at = clock_timestamp(),
        finished_at = clock_timestamp()
    from over as o
    where t.trajectory_id = o.child_trajectory_id and t.finished_at is null
    returning t.trajectory_id
),
closed as (
    update caliber_scope as s
    set closed_at = clock_timestamp()
    from (
        select x.scope_id from caliber_scope as x
        join finished as f on x.trajectory_id = f.trajectory_id
        where x.closed_at is null
        for update of x
    ) as open
    where s.scope_id = open.scope_id
),
recorded as (
    insert into caliber_event (
        event_type, category, severity, summary, actor, source_agent_id, team_id, trajectory_id,
        reference_type, reference_id, details
    )
    select
        'delegation_completed', 'coordination', 'info', 'task completed: ' || o.title, _caliber_actor(),
        o.delegatee_agent_id, o.team_id, o.child_trajectory_id, 'delegation', o.delegation_id::text, '{}'
    from over as o
    where _caliber_config_value('event_level')::caliber_event_severity <= 'info'
),
sent as (
    insert into caliber_message as x (
        message_id, from_agent_id, to_agent_id, message_type, payload, thread_id, subject, channel,
        trajectory_id, priority
    )
    select
        new.id, o.delegatee_agent_id, o.delegator_agent_id, 'task_result',
        jsonb_build_object(
            'delegation_id', o.delegation_id, 'status', 'completed', 'result',
            jsonb_build_object('status', 'success', 'summary', 'three issues')
        ), new.id, o.title, 'task:' || o.delegation_id, o.parent_trajectory_id, 'high'
    from over as o, (select _caliber_uuid_v7(null) as id) as new
    returning x.message_id, x.from_agent_id, x.to_agent_id, x.created_at
)
insert into caliber_delivery (message_id, queue_id, from_agent_id, seq, visible_at, priority, agent_id)
select
    s.message_id, s.to_agent_id, s.from_agent_id, nextval('caliber_message_seq'), s.created_at, 'high',
    s.to_agent_id
from sent as s;
