"""Messages: giving up what has expired or was tried too often, and what is for an agent that ended.

Whoever takes messages passes such a one over, so that nothing is wrong before this has run.
"""

from __future__ import annotations

from typing import Any

from caliber.plans import plan

MAX_BURIED = 100

_BURY = """
    with most as materialized (
        select 1 + coalesce(
            (
                select s.value::integer from @extschema@.caliber_setting as s
                where s.key = 'message_max_retries'
            ),
            2
        ) as attempts
    ),
    found as materialized (
        select d.ctid as place
        from most
        cross join @extschema@.caliber_delivery as d
        where d.processed_at is null
            and d.dead_at is null
            {where}
            -- Whoever has it was given it in time, and may settle it in time.
            and d.visible_at <= pg_catalog.clock_timestamp()
            and (
                d.expires_at <= pg_catalog.clock_timestamp()
                or d.attempts >= most.attempts
                {or_ended}
            )
        limit $1
        for no key update of d skip locked
    ),
    buried as (
        update @extschema@.caliber_delivery as d
        set
            status = 'dead',
            dead_at = pg_catalog.clock_timestamp(),
            receipt = null,
            error = case
                when d.expires_at <= pg_catalog.clock_timestamp() then 'expired'
                when d.attempts < (select m.attempts from most as m) then 'its recipient is terminated'
                else coalesce(d.error, 'taken ' || d.attempts || ' times and never settled')
            end
        where d.ctid = any (array(select f.place from found as f))
        returning d.message_id, d.agent_id, d.attempts, d.error
    )
    select
        pg_catalog.count(*) filter (where b.error = 'expired')::integer as expired,
        pg_catalog.count(*) filter (where b.error <> 'expired')::integer as exhausted,
        pg_catalog.count(@extschema@._caliber_log(
            'message_dead', 'message', 'warning', 'a message is dead: ' || b.error,
            source_agent_id => b.agent_id,
            reference_type => 'message',
            reference_id => b.message_id::text,
            details => pg_catalog.jsonb_build_object('attempts', b.attempts, 'error', b.error)
        )) as logged
    from buried as b
"""

# Nobody reads the inbox of an agent that ended, so only tidying comes by.
_OR_ENDED = """
                or exists (
                    select from @extschema@.caliber_agent as a
                    where a.agent_id = d.queue_id and a.terminated_at is not null
                )
"""
_EVERYWHERE = plan(_BURY.format(where="", or_ended=_OR_ENDED), "int4")
_IN_QUEUES = plan(
    _BURY.format(where="and d.queue_id = any ($2) and d.seq >= $3", or_ended=""),
    "int4",
    "uuid[]",
    "int8",
)

_ANY = plan(
    """
    select
    from @extschema@.caliber_delivery as d
    where d.queue_id = any ($1)
        and d.seq >= $2
        and d.processed_at is null
        and d.dead_at is null
        and d.visible_at <= pg_catalog.clock_timestamp()
        and (d.expires_at <= pg_catalog.clock_timestamp() or d.attempts > 0)
    limit 1
    """,
    "uuid[]",
    "int8",
)


def everywhere(most: int) -> dict[str, Any]:
    return _EVERYWHERE.one(most) or {}


def bury(queues: list[str], low: int) -> None:
    """In the queues of a reader that found nothing, which then hold no more than what is taken."""
    if _ANY.rows(queues, low):
        _IN_QUEUES.rows(MAX_BURIED, queues, low)
