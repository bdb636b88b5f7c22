"""Messages: taking them. The contract is in sql/schema/messages.sql.

One statement looks through the lanes of the agent, from critical to low, its inbox before the
queue of its type, and takes the first that are free. SKIP LOCKED passes over what another
session is taking, and the row lock decides: whoever has it sees the newest state of the row.

Messages pass through Python as the text of a row each, which Postgres itself writes and reads:
a column that becomes a Python object and back costs as much as finding the message.
"""

from __future__ import annotations

from typing import NoReturn

from caliber import checks, errors, messages_bury, messages_marks, messages_rules
from caliber.plans import Statement, plan

MAX_BATCH = 1000
MAX_VISIBILITY_MS = 24 * 60 * 60 * 1000

# The lateral joins keep the planner to one index probe a lane and a row, however large the
# tables are, and stop at the limit: a row that is not taken is not locked either. The limit is
# written out and what is not used is left out, or Postgres would plan each call anew.
_RECEIVE = """
    with me as materialized (
        select
            a.agent_id,
            @extschema@._caliber_type_queue(a.team_id, {agent_type}) as shared,
            1 + coalesce(
                (
                    select s.value::integer from @extschema@.caliber_setting as s
                    where s.key = 'message_max_retries'
                ),
                2
            ) as most
        from @extschema@.caliber_agent as a
        where a.agent_id = $1
            and a.terminated_at is null
            and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
            {type_check}
            {incarnation}
    ),
    picked as materialized (
        select free.place
        from me
        cross join lateral (
            values
            (me.agent_id, 'critical'::@extschema@.caliber_message_priority, $6),
            (me.shared, 'critical', $7),
            (me.agent_id, 'high', $6),
            (me.shared, 'high', $7),
            (me.agent_id, 'normal', $6),
            (me.shared, 'normal', $7),
            (me.agent_id, 'low', $6),
            (me.shared, 'low', $7)
        ) as lane (queue_id, priority, low)
        cross join lateral (
            select d.ctid as place
            from @extschema@.caliber_delivery as d
            where d.queue_id = lane.queue_id
                and d.priority = lane.priority
                and d.seq >= lane.low
                and d.processed_at is null
                and d.dead_at is null
                and d.visible_at <= pg_catalog.clock_timestamp()
                and d.attempts < me.most
                and (d.expires_at is null or d.expires_at > pg_catalog.clock_timestamp())
                {types}
            order by d.seq
            limit {limit}
            for no key update skip locked
        ) as free
        limit {limit}
    ),
    taken as (
        update @extschema@.caliber_delivery as d
        set
            status = case when d.status = 'read' then d.status else 'delivered' end,
            attempts = d.attempts + 1,
            agent_id = $1,
            receipt = pg_catalog.nextval('@extschema@.caliber_message_seq'),
            visible_at = pg_catalog.clock_timestamp() + $4 * interval '1 ms',
            delivered_at = pg_catalog.clock_timestamp()
        where d.ctid = any (array(select p.place from picked as p))
        returning d.message_id, d.seq, d.priority, d.attempts, d.receipt, d.expires_at
    )
    select
        case when t.message_id is not null then row(
            t.message_id, t.receipt, m.from_agent_id, m.message_type, t.priority, m.subject, m.body,
            m.payload, m.requires_response, m.in_reply_to, m.thread_id, m.trajectory_id, m.scope_id,
            m.artifact_ids, m.channel, m.to_agent_type, m.schema_name, m.created_at, t.expires_at,
            t.attempts
        )::text end as message
    from me
    left join (
        taken as t
        cross join lateral (
            select c.* from @extschema@.caliber_message as c where c.message_id = t.message_id offset 0
        ) as m
    ) on true
    {order}
"""

_TYPE_CHECK = "and ($2 = a.agent_type or @extschema@._caliber_is_admin())"
_TYPES = """
                and exists (
                    select from @extschema@.caliber_message as m
                    where m.message_id = d.message_id and m.message_type = any ($3)
                )
"""
_INCARNATION = """
            and exists (
                select from @extschema@.caliber_agent_beat as b
                where b.agent_id = $1 and b.incarnation = $5
            )
"""
_MOST_PLANS = 50
_plans: dict[tuple[int, bool, bool, bool], Statement] = {}


def _statement(limit: int, agent_type: bool, types: bool, incarnation: bool) -> Statement:
    found = _plans.get((limit, agent_type, types, incarnation))
    if found is None:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        text = _RECEIVE.format(
            limit=limit,
            agent_type="$2" if agent_type else "a.agent_type",
            type_check=_TYPE_CHECK if agent_type else "",
            types=_TYPES if types else "",
            incarnation=_INCARNATION if incarnation else "",
            order="order by t.priority desc, t.seq" if limit > 1 else "",
        )
        found = plan(text, "uuid", "text", "text[]", "int4", "int8", "int8", "int8")
        _plans[limit, agent_type, types, incarnation] = found
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
    rows = statement.rows(
        agent_id, agent_type, message_types, visibility_ms, incarnation, marks.own, marks.shared
    )
    if not rows:
        refuse(agent_id, agent_type, incarnation)
    if rows[0]["message"] is None:
        # What was tried too often is passed over, and given up when there is nothing else to do.
        messages_bury.bury(marks.queues(), min(marks.own, marks.shared))
        return []
    return [row["message"] for row in rows]


def refuse_types(message_types: list[str | None] | None) -> None:
    if message_types is not None and len(message_types) > checks.MAX_LIST:
        errors.invalid(
            "message_types", f"{len(message_types)} types", f"must hold at most {checks.MAX_LIST} types"
        )


def refuse(agent_id: str | None, agent_type: str | None, incarnation: int | None) -> NoReturn:
    """Says why this caller may not take messages as this agent."""
    agent = messages_rules.acting(agent_id, incarnation)
    if agent_type is not None and agent_type != agent["agent_type"] and not agent["is_admin"]:
        errors.fail(
            errors.NOT_PERMITTED,
            "an agent takes messages of its own type only",
            detail=f"The agent's type is {agent['agent_type']}, not {errors.shown(agent_type)}.",
            hint="Leave agent_type out.",
        )
    errors.fail("40001", "the agent changed while it received", hint="Receive again.")
