"""Events: recording one's own, and retention. The contract is in sql/schema/events.sql."""

from __future__ import annotations

from caliber import callers, checks, errors
from caliber.plans import plan

MAX_SUMMARY = 1000
MAX_PURGE = 100_000

_RECORD = plan(
    """
    select @extschema@._caliber_log(
        $1, $4, $5, $2,
        source_agent_id => a.agent_id,
        team_id => a.team_id,
        trajectory_id => $7,
        reference_type => $8,
        reference_id => $9,
        details => $6,
        reported => true
    ) as event_id
    from (select $3 as agent_id) as given
    left join @extschema@.caliber_agent as a on given.agent_id = a.agent_id
    where case
        when given.agent_id is null then @extschema@._caliber_is_admin()
        else a.agent_id is not null
            and (
                @extschema@._caliber_is_admin()
                or (a.login_role = @extschema@._caliber_actor() and a.terminated_at is null)
            )
    end
    """,
    "text",
    "text",
    "uuid",
    "@extschema@.caliber_event_category",
    "@extschema@.caliber_event_severity",
    "jsonb",
    "uuid",
    "text",
    "text",
)

_PURGE = plan(
    """
    with old as (
        select e.event_id
        from @extschema@.caliber_event as e
        where e.recorded_at < (
            select pg_catalog.clock_timestamp() - pg_catalog.make_interval(
                days => @extschema@._caliber_config_value('event_retention_days')::integer
            )
        )
        limit $1
        for update skip locked
    ),
    gone as (
        delete from @extschema@.caliber_event as e
        using old
        where e.event_id = old.event_id
        returning e.event_id
    )
    select
        counted.deleted,
        case
            when counted.deleted > 0 then @extschema@._caliber_log(
                'events_purged', 'system', 'info', counted.deleted || ' old events deleted', always => true
            )
        end
    from (select pg_catalog.count(*) as deleted from gone) as counted
    """,
    "int4",
)


def record(
    event_type: str | None,
    summary: str | None,
    agent_id: str | None,
    category: str | None,
    severity: str | None,
    details: str | None,
    trajectory_id: str | None,
    reference_type: str | None,
    reference_id: str | None,
) -> int | None:
    checks.slug("event_type", event_type)
    if not checks.label("summary", summary, MAX_SUMMARY):
        errors.invalid("summary", summary, "must not be empty")
    checks.required("category", category)
    checks.required("severity", severity)
    checks.json_object("details", details)
    checks.label("reference_type", reference_type, checks.MAX_NAME)
    checks.label("reference_id", reference_id, MAX_SUMMARY)
    row = _RECORD.one(
        event_type, summary, agent_id, category, severity, details,
        trajectory_id, reference_type, reference_id,
    )  # fmt: skip
    if row is None:
        if agent_id is None:
            callers.require_admin("record an event of no agent")
        callers.refuse_agent(str(agent_id))
    event_id: int | None = row["event_id"]
    return event_id


def purge(max_events: int | None) -> int:
    callers.require_admin("delete events")
    checks.required("max_events", max_events)
    checks.between("max_events", max_events, 1, MAX_PURGE)
    row = _PURGE.one(max_events)
    return int(row["deleted"]) if row else 0
