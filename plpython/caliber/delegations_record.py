"""Delegations: the event of a step, as a part of the statement that makes it.

As _caliber_log does it, for the steps that every task goes through: calling that costs as much as
the rest of such a statement.
"""

from __future__ import annotations

_SETTING = "coalesce((select v.value from @extschema@.caliber_setting as v where v.key = '{key}'), '{other}')"
_LEVEL = _SETTING.format(key="event_level", other="info")
_NOTIFY = _SETTING.format(key="event_notify", other="on")

_RECORDED = """
    recorded as (
        insert into @extschema@.caliber_event (
            event_type, category, severity, summary, actor, source_agent_id, team_id, trajectory_id,
            reference_type, reference_id, details, reported
        )
        select
            'delegation_' || {event}, 'coordination', 'info', pg_catalog.left({summary}, 1000),
            @extschema@._caliber_actor(), {agent}, o.team_id, {trajectory}, 'delegation',
            o.delegation_id::text, '{{}}', false
        from {source} as o
        where {level}::@extschema@.caliber_event_severity <= 'info'
        returning
            case
                when {notify} = 'on' and pg_catalog.pg_notification_queue_usage() <= 0.25
                    then pg_catalog.pg_notify('caliber_event', 'coordination')::text
            end as notified
    )
"""


def recorded(source: str, event: str, summary: str, agent: str, trajectory: str) -> str:
    """A part named recorded; the others are SQL over the rows o of the part source."""
    return _RECORDED.format(
        source=source,
        event=event,
        summary=summary,
        agent=agent,
        trajectory=trajectory,
        level=_LEVEL,
        notify=_NOTIFY,
    )


# Read by the statement, so that nothing of the part is left out.
COUNT = "(select pg_catalog.count(r.notified) from recorded as r) as recorded"
