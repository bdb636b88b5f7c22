"""Maintenance: marks of queues, below which nothing is open, for sessions that are new to a queue.

As in messages_marks, where it says why: note the last place drawn, then take a transaction id;
once all transactions below that id have ended, nothing can appear up to the place. What one call
noted, a later one uses, so the note is in a table. It is true after a restore as well: places
are not drawn twice, and who would have used one is gone. Only its transaction id may lie in the
future of a new cluster; then it is noted anew.
"""

from __future__ import annotations

from caliber.plans import plan

# A mark that would rise by less is not worth the write.
_WORTH = 1000

# Null when this transaction has written: it would have an id below some place it did not see drawn.
_DRAWN = plan(
    """
    select s.last_value as drawn
    from @extschema@.caliber_message_seq as s
    where pg_catalog.pg_current_xact_id_if_assigned() is null
        and pg_catalog.current_setting('transaction_isolation') = 'read committed'
    """
)

_NOTED = plan(
    """
    select
        n.drawn,
        n.until <= pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot()) as over,
        n.until > pg_catalog.pg_current_xact_id() as foreign
    from @extschema@.caliber_tick_note as n
    for update skip locked
    """
)

_NOTE = plan(
    """
    insert into @extschema@.caliber_tick_note as n (drawn, until)
    values ($1, pg_catalog.pg_current_xact_id())
    on conflict (one) do update
    set drawn = excluded.drawn, until = excluded.until, noted_at = excluded.noted_at
    """,
    "int8",
)

# $1 how many queues, $2 the place up to which nothing can appear. In no order, so that all have
# their turn.
_RAISE = plan(
    """
    with queue as (
        select q.queue_id, coalesce(m.low, 0) as low
        from (
            select a.agent_id as queue_id
            from @extschema@.caliber_agent as a
            where a.terminated_at is null
            union
            select @extschema@._caliber_type_queue(t.team_id, t.agent_type)
            from (
                select distinct a.team_id, a.agent_type
                from @extschema@.caliber_agent as a
                where a.terminated_at is null
            ) as t
        ) as q
        left join @extschema@.caliber_queue_mark as m on q.queue_id = m.queue_id
        where $2 - coalesce(m.low, 0) >= $3
        order by pg_catalog.random()
        limit $1
    ),
    raised as (
        select
            q.queue_id,
            q.low,
            least(
                $2 + 1,
                (
                    select pg_catalog.min(first.seq)
                    from pg_catalog.unnest(
                        pg_catalog.enum_range(null::@extschema@.caliber_message_priority)
                    ) as lane (priority)
                    cross join lateral (
                        select d.seq
                        from @extschema@.caliber_delivery as d
                        where d.queue_id = q.queue_id
                            and d.priority = lane.priority
                            and d.seq >= q.low
                            and d.processed_at is null
                            and d.dead_at is null
                        order by d.seq
                        limit 1
                    ) as first
                )
            ) as high
        from queue as q
    )
    insert into @extschema@.caliber_queue_mark as m (queue_id, low)
    select r.queue_id, r.high
    from raised as r
    where r.high - r.low >= $3
    order by r.queue_id
    on conflict (queue_id) do update
    set low = excluded.low, marked_at = excluded.marked_at
    where m.low < excluded.low
    returning m.queue_id
    """,
    "int4",
    "int8",
    "int8",
)

_RAN = plan("update @extschema@.caliber_tick_note as n set noted_at = pg_catalog.clock_timestamp()")

_ANY = plan("select from @extschema@.caliber_tick_note as n limit 1")


def raise_marks(most: int) -> int:
    now = _DRAWN.one()
    if now is None:
        return 0
    note = _NOTED.one()
    if note is None:
        # Another call has it, or there is none yet.
        if not _ANY.rows():
            _NOTE.rows(now["drawn"])
        return 0
    raised = len(_RAISE.rows(most, note["drawn"], _WORTH)) if note["over"] else 0
    if note["over"] or note["foreign"]:
        _NOTE.rows(now["drawn"])
    else:
        _RAN.rows()
    return raised
