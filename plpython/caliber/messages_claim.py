"""Messages: taking them. The contract is in sql/schema/messages.sql.

One statement looks through the lanes of the agent, from critical to low, its inbox before the
queue of its type, and takes the first that are free. SKIP LOCKED passes over what another
session is taking, and the row lock decides: whoever has it sees the newest state of the row.

Messages pass through Python as the text of a row each, which Postgres itself writes and reads:
a column that becomes a Python object and back costs as much as finding the message.
"""

from __future__ import annotations

from caliber import checks, errors, messages_bury, messages_marks, messages_rules
from caliber.plans import Statement, places, plan

MAX_BATCH = 1000
MAX_VISIBILITY_MS = 24 * 60 * 60 * 1000

# The lateral joins keep the planner to one index probe a lane and a row, however large the
# tables are, and stop at the limit: a row that is not taken is not locked either. The limit is
# written out and what is not used is left out, or Postgres would plan each call anew. How often
# a message may be taken is looked up only for one that was taken before.
# $1 agent, $2 visibility_ms, $3 and $4 where its inbox and the queue of its type begin.
_RECEIVE = """
    update @extschema@.caliber_delivery as d
    set
        status = case when d.status = 'read' then d.status else 'delivered' end,
        attempts = d.attempts + 1,
        agent_id = $1,
        receipt = pg_catalog.nextval('@extschema@.caliber_message_seq'),
        visible_at = pg_catalog.clock_timestamp() + $2 * interval '1 ms',
        delivered_at = pg_catalog.clock_timestamp()
    where d.ctid = any (array(
        select free.place
        from (
            select
                a.agent_id as own,
                @extschema@._caliber_type_queue(a.team_id, {queue_type}) as shared
            from @extschema@.caliber_agent as a
            where a.agent_id = $1
                and a.terminated_at is null
                and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
                {type_check}
                {incarnation}
            offset 0
        ) as me
        cross join lateral (
            values
            ('critical'::@extschema@.caliber_message_priority, false),
            ('critical', true),
            ('high', false),
            ('high', true),
            ('normal', false),
            ('normal', true),
            ('low', false),
            ('low', true)
        ) as lane (priority, is_shared)
        cross join lateral (
            select o.ctid as place
            from @extschema@.caliber_delivery as o
            where o.queue_id = case when lane.is_shared then me.shared else me.own end
                and o.priority = lane.priority
                and o.seq >= case when lane.is_shared then $4 else $3 end
                and o.processed_at is null
                and o.dead_at is null
                and o.visible_at <= pg_catalog.clock_timestamp()
                and (
                    o.attempts = 0
                    or o.attempts < 1 + coalesce(
                        (
                            select s.value::integer from @extschema@.caliber_setting as s
                            where s.key = 'message_max_retries'
                        ),
                        2
                    )
                )
                and (o.expires_at is null or o.expires_at > pg_catalog.clock_timestamp())
                {types}
            order by o.seq
            limit {limit}
            for no key update skip locked
        ) as free
        limit {limit}
    ))
    returning
        d.priority,
        d.seq,
        (
            select row(
                d.message_id, d.receipt, m.from_agent_id, m.message_type, d.priority, m.subject, m.body,
                m.payload, m.requires_response, m.in_reply_to, m.thread_id, m.trajectory_id, m.scope_id,
                m.artifact_ids, m.channel, m.to_agent_type, m.schema_name, m.created_at, d.expires_at,
                d.attempts
            )::text
            from @extschema@.caliber_message as m
            where m.message_id = d.message_id
        ) as message
"""

_IN_ORDER = "with taken as ({receive}) select t.message from taken as t order by t.priority desc, t.seq"

_TYPE_CHECK = "and ({agent_type} = a.agent_type or @extschema@._caliber_is_admin())"
# Not exists, which would be joined, and in a plan made while the queue was short by reading all messages.
_TYPES = """
                and (
                    select m.message_type from @extschema@.caliber_message as m
                    where m.message_id = o.message_id
                ) = any ({message_types})
"""
_INCARNATION = """
            and exists (
                select from @extschema@.caliber_agent_beat as b
                where b.agent_id = $1 and b.incarnation = {incarnation}
            )
"""
_GIVEN = {"agent_type": "text", "message_types": "text[]", "incarnation": "int8"}
_MOST_PLANS = 50
_plans: dict[tuple[int, bool, bool, bool], Statement] = {}


def _statement(limit: int, agent_type: bool, message_types: bool, incarnation: bool) -> Statement:
    found = _plans.get((limit, agent_type, message_types, incarnation))
    if found is None:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        place = places(5, agent_type=agent_type, message_types=message_types, incarnation=incarnation)
        text = _RECEIVE.format(
            limit=limit,
            queue_type=place.get("agent_type", "a.agent_type"),
            type_check=_TYPE_CHECK.format(**place) if agent_type else "",
            types=_TYPES.format(**place) if message_types else "",
            incarnation=_INCARNATION.format(**place) if incarnation else "",
        )
        if limit > 1:
            text = _IN_ORDER.format(receive=text)
        found = plan(text, "uuid", "int4", "int8", "int8", *[_GIVEN[name] for name in place])
        _plans[limit, agent_type, message_types, incarnation] = found
    return found


def receive(
    agent_id: str | None,
    agent_type: str | None,
    max_messages: int | None,
    message_types: list[str | None] | None,
    visibility_ms: int | None,
    incarnation: int | None,
) -> list[str]:
    if max_messages is None or not 1 <= max_messages <= MAX_BATCH:
        errors.invalid("max_messages", max_messages, f"must be between 1 and {MAX_BATCH}")
    if visibility_ms is None or not 1 <= visibility_ms <= MAX_VISIBILITY_MS:
        errors.invalid("visibility_ms", visibility_ms, f"must be between 1 and {MAX_VISIBILITY_MS}")
    refuse_types(message_types)
    marks = messages_marks.of(agent_id, agent_type)
    statement = _statement(
        max_messages, agent_type is not None, message_types is not None, incarnation is not None
    )
    given = [value for value in (agent_type, message_types, incarnation) if value is not None]
    rows = statement.rows(agent_id, visibility_ms, marks.own, marks.shared, *given)
    if not rows:
        permit(agent_id, agent_type, incarnation)
        # What was tried too often is passed over, and given up when there is nothing else to do.
        messages_bury.bury(marks.queues(), min(marks.own, marks.shared))
        return []
    return [row["message"] for row in rows]


def refuse_types(message_types: list[str | None] | None) -> None:
    if message_types is not None and len(message_types) > checks.MAX_LIST:
        errors.invalid(
            "message_types", f"{len(message_types)} types", f"must hold at most {checks.MAX_LIST} types"
        )


def permit(agent_id: str | None, agent_type: str | None, incarnation: int | None) -> None:
    """Refuses a caller who may not take messages as this agent, and says why."""
    agent = messages_rules.acting(agent_id, incarnation)
    if agent_type is not None and agent_type != agent["agent_type"] and not agent["is_admin"]:
        errors.fail(
            errors.NOT_PERMITTED,
            "an agent takes messages of its own type only",
            detail=f"The agent's type is {agent['agent_type']}, not {errors.shown(agent_type)}.",
            hint="Leave agent_type out.",
        )
