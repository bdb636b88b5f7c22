-- Handoffs: reading them. Everything here shows what the caller may see, judged by the clock.

create view @extschema@.caliber_handoffs with (security_invoker = true) as
select
    h.handoff_id,
    h.handoff_type,
    case
        when h.status in ('initiated', 'deferred') and h.ack_by <= pg_catalog.clock_timestamp()
            then 'timed_out'
        when h.status in ('accepted', 'in_progress')
            and h.returned_at is null
            and h.lapses_at <= pg_catalog.clock_timestamp()
            then 'timed_out'
        else h.status
    end::@extschema@.caliber_handoff_status as status,
    h.status_reason,
    f.name as from_agent,
    coalesce(t.name, h.to_agent_type, case when h.needs_human then 'human' end) as to_agent,
    h.reason,
    h.handoff_notes,
    h.next_steps,
    h.blockers,
    h.open_questions,
    h.return_expected,
    h.return_status,
    h.result,
    h.returned_at is null
    and h.resolved_at is null
    and coalesce(h.return_by <= pg_catalog.clock_timestamp(), false) as overdue,
    h.needs_human,
    h.warnings,
    h.attempts,
    h.reroutes,
    h.escalation_depth,
    h.priority,
    h.risk_level,
    h.task_id,
    h.ack_by,
    h.return_by,
    h.lapses_at,
    h.initiated_at,
    h.accepted_at,
    h.returned_at,
    h.resolved_at,
    h.context_id,
    h.trajectory_id,
    h.received_trajectory_id,
    h.broadcast_group_id,
    h.parent_handoff_id,
    h.from_agent_id,
    h.to_agent_id,
    h.to_agent_type,
    h.team_id
from @extschema@.caliber_handoff as h
left join @extschema@.caliber_agent as f on h.from_agent_id = f.agent_id
left join @extschema@.caliber_agent as t on h.to_agent_id = t.agent_id;

comment on view @extschema@.caliber_handoffs is
'The handoffs you can see, with the agents'' names and the status that the clock leaves them.';

create function @extschema@.caliber_handoff_inbox(agent_id uuid)
returns setof @extschema@.caliber_handoffs
language sql
stable
begin atomic
    select v.*
    from @extschema@.caliber_handoffs as v
    left join @extschema@.caliber_agent as a on a.agent_id = $1
    where v.status in ('initiated', 'deferred', 'accepted', 'in_progress')
        and v.resolved_at is null
        and v.returned_at is null
        and (
            v.to_agent_id = $1
            or (v.to_agent_id is null and v.to_agent_type = a.agent_type and v.team_id = a.team_id)
        )
    order by v.priority desc, v.initiated_at asc;
end;

comment on function @extschema@.caliber_handoff_inbox(uuid) is
'What an agent is asked to take over, or has taken and not returned; the most urgent first.';

create function @extschema@.caliber_handoff_context(handoff_id uuid)
returns text
language sql
stable
begin atomic
    select c.content
    from @extschema@.caliber_handoff as h
    inner join @extschema@.caliber_context as c on h.context_id = c.context_id
    where h.handoff_id = $1;
end;

comment on function @extschema@.caliber_handoff_context(uuid) is
'What the receiver of a handoff was given to read, as text for a prompt; null before it was accepted.';

grant select on
    @extschema@.caliber_handoff,
    @extschema@.caliber_handoff_group,
    @extschema@.caliber_handoffs
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_handoff_inbox(uuid),
    @extschema@.caliber_handoff_context(uuid)
to caliber_admin, caliber_agent, caliber_observer;
