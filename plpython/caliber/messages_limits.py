"""Messages: the limit of a queue, without a count for each message.

A session counts a queue now and then. What it finds free is divided by eight: that many
messages it may send before it counts again, so that a few senders at once do not overrun the
limit, and one alone is held to it exactly. The setting itself is compared in the statement
that sends.
"""

from __future__ import annotations

from caliber import errors, messages_rules, messages_settings
from caliber.plans import plan

_SHARE = 8
_MOST_QUEUES = 10_000

_PROBE = plan(
    """
    with queue as materialized (
        select
            coalesce(
                $2,
                (
                    select @extschema@._caliber_type_queue(a.team_id, $3)
                    from @extschema@.caliber_agent as a
                    where a.agent_id = $1
                )
            ) as id
    )
    select (
        select pg_catalog.count(*)
        from (
            select
            from @extschema@.caliber_delivery as d
            where d.queue_id = q.id
                and d.processed_at is null
                and d.dead_at is null
                and (d.expires_at is null or d.expires_at > pg_catalog.clock_timestamp())
                and d.seq >= coalesce(
                    (select m.low from @extschema@.caliber_queue_mark as m where m.queue_id = q.id), 0
                )
            limit $4
        ) as open
    ) as waiting
    from queue as q
    """,
    "uuid",
    "uuid",
    "text",
    "int8",
)

# By queue: how many may go without a count.
_free: dict[tuple[str, str | None], int] = {}


def take(limit: int, sender: str, agent: str | None, agent_type: str | None, wanted: int = 1) -> None:
    """Makes room for as many messages, or raises."""
    if limit == 0:
        return
    queue = (agent, None) if agent is not None else (sender, agent_type)
    free = _free.get(queue, 0)
    if free < wanted:
        free = _count(queue, sender, agent, agent_type, wanted)
    _free[queue] = free - wanted


def forget() -> None:
    _free.clear()


def _count(
    queue: tuple[str, str | None],
    sender: str,
    agent: str | None,
    agent_type: str | None,
    wanted: int,
) -> int:
    if len(_free) > _MOST_QUEUES:
        _free.clear()
    # Nobody is refused by a limit that is no more.
    limit = messages_settings.fresh().queue_limit
    if limit == 0:
        return wanted
    waiting = int((_PROBE.one(sender, agent, agent_type, limit) or {})["waiting"])
    room = limit - waiting
    if room < wanted:
        _free.pop(queue, None)
        # Who may not send there is not told that it is full.
        messages_rules.acting(sender, None)
        messages_rules.refuse_recipient(sender, agent)
        whose = f"type {agent_type}" if agent is None else f"agent {agent}"
        errors.fail(
            errors.AT_CAPACITY,
            "the queue is full",
            detail=f"{waiting} messages wait for {whose}; the limit is {limit}.",
            hint="Send again later; the setting message_queue_limit says how many may wait.",
        )
    return max(wanted, room // _SHARE)
