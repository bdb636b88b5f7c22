"""Messages: bringing back the dead, and tidying. The contract is in sql/schema/messages.sql."""

from __future__ import annotations

from typing import Any

from caliber import callers, checks, errors, messages, messages_bury, messages_rules
from caliber.plans import plan

MAX_TIDY = 100_000

# A new place: below the old one readers may have stopped looking.
_REQUEUE = plan(
    f"""
    with back as (
        update @extschema@.caliber_delivery as d
        set
            status = 'pending',
            seq = {messages.SEQ},
            attempts = 0,
            visible_at = pg_catalog.clock_timestamp(),
            expires_at = pg_catalog.clock_timestamp() + $3 * interval '1 ms',
            receipt = null,
            delivered_at = null,
            read_at = null,
            agent_id = case when d.agent_id = d.queue_id then d.agent_id end,
            dead_at = null
        where d.message_id = $1
            and d.dead_at is not null
            and ($2 is null or d.agent_id = $2)
        returning d.message_id, d.queue_id, d.agent_id
    )
    select
        @extschema@._caliber_log(
            'message_requeued', 'message', 'info', 'a dead message is pending again',
            source_agent_id => back.agent_id,
            reference_type => 'message',
            reference_id => back.message_id::text
        ),
        {messages.WAKE.format()}
    from back
    """,
    "uuid",
    "uuid",
    "int8",
)

# What an agent has taken and not settled waits for another try: a message to a type is anybody's
# again, one to the agent its own again, and the receipts are void. What is being settled at this
# moment is left to that.
_GIVE_BACK = plan(
    f"""
    with had as (
        select d.message_id, d.queue_id
        from @extschema@.caliber_delivery as d
        where ($1 is null or d.agent_id = $1)
            and d.receipt is not null
            and d.processed_at is null
            and d.dead_at is null
        order by d.message_id, d.queue_id
        limit $2
        for no key update skip locked
    ),
    back as (
        update @extschema@.caliber_delivery as d
        set
            status = 'failed',
            visible_at = pg_catalog.clock_timestamp(),
            receipt = null,
            agent_id = case when d.agent_id = d.queue_id then d.agent_id end
        from had as h
        where d.message_id = h.message_id and d.queue_id = h.queue_id
        returning d.message_id, d.queue_id, d.agent_id
    )
    select
        back.message_id,
        {messages.WAKE.format()}
    from back
    """,
    "uuid",
    "int4",
)

_THERE = plan("select from @extschema@.caliber_message as m where m.message_id = $1", "uuid")

# Two at once could each leave a message for the other.
_ALONE = plan(
    """
    select pg_catalog.pg_try_advisory_xact_lock(
        '@extschema@.caliber_message'::pg_catalog.regclass::oid::bigint
    ) as alone
    """
)

# Messages go with their last delivery. Ids are ordered by time, and what was processed so long
# ago was sent before that: the oldest ids are all that has to be looked at.
_PURGE = plan(
    """
    with kept as materialized (
        select
            k.processed, k.dead,
            (
                pg_catalog.lpad(
                    pg_catalog.to_hex(
                        (pg_catalog.date_part('epoch', greatest(k.processed, k.dead)) * 1000)::bigint
                    ),
                    12, '0'
                )
                || pg_catalog.repeat('0', 20)
            )::uuid as first_id
        from (
            select
                pg_catalog.clock_timestamp() - pg_catalog.make_interval(
                    hours => @extschema@._caliber_config_value('message_retention_hours')::integer
                ) as processed,
                pg_catalog.clock_timestamp() - pg_catalog.make_interval(
                    days => @extschema@._caliber_config_value('dead_letter_retention_days')::integer
                ) as dead
        ) as k
    ),
    old as materialized (
        select d.message_id, d.queue_id
        from kept
        cross join @extschema@.caliber_delivery as d
        where d.message_id < kept.first_id
            and (d.processed_at < kept.processed or d.dead_at < kept.dead)
        order by d.message_id
        limit $1
        for update of d skip locked
    ),
    gone as (
        delete from @extschema@.caliber_delivery as d
        using old
        where d.message_id = old.message_id and d.queue_id = old.queue_id
        returning d.message_id
    )
    select g.message_id, pg_catalog.count(*) as deliveries from gone as g group by g.message_id
    """,
    "int4",
)

_PURGE_CONTENT = plan(
    """
    with gone as (
        delete from @extschema@.caliber_message as m
        where m.message_id = any ($1)
            and not exists (
                select from @extschema@.caliber_delivery as d where d.message_id = m.message_id
            )
        returning m.message_id
    )
    select pg_catalog.count(*) as messages from gone
    """,
    "uuid[]",
)


def requeue(message_id: str | None, agent_id: str | None, ttl_ms: int | None) -> int:
    callers.require_admin("bring messages back")
    checks.required("message_id", message_id)
    checks.between("ttl_ms", ttl_ms, 1, messages_rules.MAX_TTL_MS)
    back = len(_REQUEUE.rows(message_id, agent_id, ttl_ms))
    if not back and not _THERE.rows(message_id):
        errors.fail(
            errors.NOT_FOUND,
            "there is no such message",
            detail=f"Message {message_id} does not exist.",
            hint="caliber_dead_letter shows those that can be brought back.",
        )
    return back


def give_back(agent_id: str | None, most: int) -> int:
    """What this agent, or any, has taken; for reaping and after a restore."""
    return len(_GIVE_BACK.rows(agent_id, most))


def tidy(max_messages: int | None) -> list[dict[str, Any]]:
    callers.require_admin("tidy messages")
    checks.required("max_messages", max_messages)
    checks.between("max_messages", max_messages, 1, MAX_TIDY)
    if not (_ALONE.one() or {})["alone"]:
        return [{"expired": 0, "exhausted": 0, "purged": 0}]
    buried = messages_bury.everywhere(int(str(max_messages)))
    ids = [row["message_id"] for row in _PURGE.rows(max_messages)]
    row = _PURGE_CONTENT.one(ids) if ids else None
    purged = int(row["messages"]) if row else 0
    return [{"expired": buried["expired"], "exhausted": buried["exhausted"], "purged": purged}]
