"""Conflicts: passing one up. It goes to the agent that whoever has it reports to, from there to the
next, and when there is nobody above, it waits for a person."""

from __future__ import annotations

from typing import Any

import plpy

from caliber import errors
from caliber.plans import plan

# As deep as no order of agents is: whoever has passed it on in a circle so often needs a person.
MAX_LEVELS = 32

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
            escalation_message_id = $6,
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
                'escalated_to', $2, 'needs_human', $2 is null, 'level', d.escalation_level,
                'message_id', $6
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
    "uuid",
)

# The first of these that still is, for a message must have a sender.
_SENDER = plan(
    """
    select a.agent_id
    from rows from (pg_catalog.unnest($1)) with ordinality as s (agent_id, place)
    inner join @extschema@.caliber_agent as a on s.agent_id = a.agent_id
    where a.terminated_at is null
    order by s.place
    limit 1
    """,
    "uuid[]",
)

_AS_IT_IS = plan("select c.* from @extschema@.caliber_conflict as c where c.conflict_id = $1", "uuid")


def escalate(conflict: dict[str, Any], reason: str) -> list[dict[str, Any]]:
    """Passes a locked conflict up, tells whom it is passed to, and returns it."""
    if conflict["status"] == "escalated" and conflict["needs_human"]:
        return list(_AS_IT_IS.rows(conflict["conflict_id"]))
    above = _above(conflict)
    to, name = (above["agent_id"], above["name"]) if above else (None, None)
    message_id = _tell(conflict, to, reason) if to else None
    return list(_ESCALATED.rows(conflict["conflict_id"], to, reason, conflict["agent_id"], name, message_id))


def _above(conflict: dict[str, Any]) -> dict[str, Any] | None:
    """Of whoever has it now; at first, of whoever decides, else of those whose items these are."""
    if conflict["escalation_level"] >= MAX_LEVELS:
        return None
    if conflict["was_escalated"]:
        return _ABOVE.one(conflict["escalated_to"])
    for agent in (
        conflict["agent_id"], conflict["agent_b_id"], conflict["agent_a_id"], conflict["owner_id"],
    ):  # fmt: skip
        above = _ABOVE.one(agent) if agent else None
        if above:
            return above
    return None


def _tell(conflict: dict[str, Any], to: str, reason: str) -> str | None:
    """Sends the message; None where it may not be sent or the queue is full. It is a hint: the
    conflict says itself whom it waits for."""
    # Not above: messages are many modules, and few conflicts get here.
    import json

    from caliber import messages

    kind = conflict["conflict_type"]
    payload = {
        "conflict_id": conflict["conflict_id"],
        "conflict_type": kind,
        "reason": reason,
        "evidence": conflict["evidence"],
        "level": conflict["escalation_level"] + 1,
    }
    artifacts = (
        [conflict["item_a_id"], conflict["item_b_id"]] if conflict["item_a_type"] == "artifact" else None
    )
    sender = _sender(conflict, to)
    if sender is None:
        return None
    try:
        with plpy.subtransaction():
            return messages.send(
                sender, to, None, "escalate", json.dumps(payload), conflict["trajectory_id"], "high",
                f"{kind} to be decided", f"{reason}. caliber_resolve_conflict decides it.", None, artifacts,
                None, None, True, None, None, None, None,
            )  # fmt: skip
    except (plpy.SPIError, errors.CaliberError) as error:
        if error.sqlstate not in (errors.NOT_PERMITTED, errors.UNAVAILABLE, errors.AT_CAPACITY):
            raise
        return None


def _sender(conflict: dict[str, Any], to: str) -> str | None:
    """Whoever passes it up; where that is nobody, whoever had it."""
    if conflict["agent_id"] is not None:
        return str(conflict["agent_id"])
    before = ("escalated_to", "agent_b_id", "agent_a_id", "owner_id")
    row = _SENDER.one([conflict[one] for one in before if conflict[one] not in (None, to)])
    return str(row["agent_id"]) if row else None
