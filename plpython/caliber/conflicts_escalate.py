"""Conflicts: passing one up. It goes to the agent that whoever has it reports to, from there to the
next, and when there is nobody above, it waits for a person."""

from __future__ import annotations

from typing import Any

from caliber.plans import plan

# Up from an agent, past those that are terminated; a circle of reports_to ends where it began.
_ABOVE = plan(
    """
    with recursive up as (
        select a.reports_to as agent_id, array[a.agent_id] as seen
        from @extschema@.caliber_agent as a
        where a.agent_id = $1
        union all
        select a.reports_to, u.seen || a.agent_id
        from up as u
        inner join @extschema@.caliber_agent as a on u.agent_id = a.agent_id
        where a.terminated_at is not null and pg_catalog.cardinality(u.seen) < 100
            and a.agent_id <> all(u.seen)
    )
    select a.agent_id, a.name
    from up as u
    inner join @extschema@.caliber_agent as a on u.agent_id = a.agent_id
    where a.terminated_at is null and a.agent_id <> all(u.seen)
    limit 1
    """,
    "uuid",
)

_ESCALATED = plan(
    """
    with changed as (
        update @extschema@.caliber_conflict as c
        set status = 'escalated',
            strategy = 'escalate',
            reason = $3,
            escalated_to = $2,
            escalated_at = pg_catalog.clock_timestamp(),
            escalation_level = c.escalation_level + 1,
            needs_human = $2 is null,
            resolving_by = null
        where c.conflict_id = $1
        returning c.*
    ),
    logged as (
        select @extschema@._caliber_log(
            'conflict_escalated', 'coordination', 'warning',
            d.conflict_type || ' escalated to ' || coalesce($5, 'a person') || ': ' || $3,
            $4, d.team_id, d.trajectory_id, 'conflict', d.conflict_id::text,
            pg_catalog.jsonb_build_object(
                'escalated_to', $2, 'needs_human', $2 is null, 'level', d.escalation_level
            )
        )
        from changed as d
    )
    select c.* from changed as c, (select pg_catalog.count(*) from logged) as once
    """,
    "uuid",
    "uuid",
    "text",
    "uuid",
    "text",
)

_AS_IT_IS = plan("select c.* from @extschema@.caliber_conflict as c where c.conflict_id = $1", "uuid")


def escalate(conflict: dict[str, Any], reason: str) -> list[dict[str, Any]]:
    """Passes a locked conflict up, tells whom it is passed to, and returns it."""
    if conflict["status"] == "escalated" and conflict["needs_human"]:
        return list(_AS_IT_IS.rows(conflict["conflict_id"]))
    above = _above(conflict)
    to, name = (above["agent_id"], above["name"]) if above else (None, None)
    return list(_ESCALATED.rows(conflict["conflict_id"], to, reason, conflict["agent_id"], name))


def _above(conflict: dict[str, Any]) -> dict[str, Any] | None:
    """Of whoever has it now; at first, of whoever decides, else of those whose items these are."""
    if conflict["status"] == "escalated" or conflict["escalated_to"] is not None:
        return _ABOVE.one(conflict["escalated_to"])
    for agent in (
        conflict["agent_id"], conflict["agent_b_id"], conflict["agent_a_id"], conflict["owner_id"],
    ):  # fmt: skip
        above = _ABOVE.one(agent) if agent else None
        if above:
            return above
    return None
