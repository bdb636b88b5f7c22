"""Messages: where a session starts to look in a queue.

Under an old snapshot nothing that was processed can be removed, and whoever looks for the
first open delivery would pass all of them each time. A mark says: below this place nothing is
open, and nothing can appear. It is found in two steps. First the session notes the last place
that was drawn, and then takes a transaction id. Whoever had drawn a place by then has a lower
id. Once a later snapshot shows that all transactions below that id have ended, everything up
to the noted place is visible or will never be, and the mark may rise to the lowest that is
open. (A snapshot's own upper end would not do: it is the last id that ended, and older ones
may be under way above it.)

What is open is judged only in a transaction that has written nothing, because its own changes
could be rolled back while the session keeps the mark; and only where a statement sees what was
committed before it. A mark stays true for ever: what is
brought back from the dead gets a new place.
"""

from __future__ import annotations

from caliber.plans import plan

# Looks in a queue between two refreshes, and how far ahead of the stored mark a session may be
# before it stores its own for those that come after it.
EVERY = 32
STORE_AFTER = 10_000
_MOST_QUEUES = 10_000

_START = plan(
    """
    select
        q.agent_id as own_id,
        q.shared as shared_id,
        coalesce(o.low, 0) as own,
        coalesce(s.low, 0) as shared
    from (
        select a.agent_id, @extschema@._caliber_type_queue(a.team_id, coalesce($2, a.agent_type)) as shared
        from @extschema@.caliber_agent as a
        where a.agent_id = $1
    ) as q
    left join @extschema@.caliber_queue_mark as o on q.agent_id = o.queue_id
    left join @extschema@.caliber_queue_mark as s on q.shared = s.queue_id
    """,
    "uuid",
    "text",
)

_STORED = plan("select from @extschema@.caliber_queue_mark as m order by m.queue_id limit 1")

_DRAWN = plan(
    """
    select
        coalesce(pg_catalog.pg_sequence_last_value('@extschema@.caliber_message_seq'), 0) as drawn
    where pg_catalog.pg_current_xact_id_if_assigned() is null
        and pg_catalog.current_setting('transaction_isolation') = 'read committed'
    """
)

_LOOK = plan(
    """
    select
        pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::bigint as oldest,
        pg_catalog.pg_current_xact_id()::text::bigint as own,
        (
            select pg_catalog.min(first.seq)
            from pg_catalog.unnest(
                pg_catalog.enum_range(null::@extschema@.caliber_message_priority)
            ) as lane (priority)
            cross join lateral (
                select d.seq
                from @extschema@.caliber_delivery as d
                where d.queue_id = $1
                    and d.priority = lane.priority
                    and d.seq >= $2
                    and d.processed_at is null
                    and d.dead_at is null
                order by d.seq
                limit 1
            ) as first
        ) as lowest
    """,
    "uuid",
    "int8",
)

# Who stores one in a transaction that stays open is not waited for.
_STORE = plan(
    """
    insert into @extschema@.caliber_queue_mark as m (queue_id, low)
    select $1, $2
    where pg_catalog.pg_try_advisory_xact_lock(pg_catalog.uuid_hash_extended($1, 1))
    on conflict (queue_id) do update
    set low = excluded.low, marked_at = excluded.marked_at
    where m.low < excluded.low
    """,
    "uuid",
    "int8",
)


class Queue:
    """What this session knows about one queue."""

    __slots__ = ("drawn", "low", "queue_id", "stored", "until")

    def __init__(self, queue_id: str, low: int) -> None:
        self.queue_id = queue_id
        self.low = self.stored = low
        self.drawn: int | None = None
        self.until = 0

    def refresh(self, drawn: int) -> None:
        row = _LOOK.one(self.queue_id, self.low) or {}
        if self.drawn is None or row["oldest"] >= self.until:
            if self.drawn is not None:
                bound = self.drawn + 1
                lowest = row["lowest"]
                self.low = max(self.low, bound if lowest is None else min(lowest, bound))
            self.drawn, self.until = drawn, row["own"]
        if self.low - self.stored > STORE_AFTER:
            _STORE.rows(self.queue_id, self.low)
            self.stored = self.low


class Marks:
    """The two queues an agent takes from; which they are is looked up when it is asked for."""

    __slots__ = ("_agent", "_calls", "_found", "own", "shared")

    def __init__(self, agent_id: str | None, agent_type: str | None) -> None:
        self._agent = (agent_id, agent_type)
        self._found: tuple[Queue, ...] = ()
        self.own = self.shared = 0
        self._calls = 0

    def found(self) -> tuple[Queue, ...]:
        """Its inbox and the queue of its type; nothing when there is no such agent."""
        if not self._found:
            row = _START.one(*self._agent)
            if row is not None:
                self._found = (Queue(row["own_id"], row["own"]), Queue(row["shared_id"], row["shared"]))
                self.own, self.shared = row["own"], row["shared"]
        return self._found

    def queues(self) -> list[str]:
        return [queue.queue_id for queue in self.found()]

    def count(self) -> None:
        self._calls += 1
        if self._calls % EVERY == 0:
            drawn = _DRAWN.one()
            if drawn is not None and self.found():
                for queue in self._found:
                    queue.refresh(drawn["drawn"])
                self.own, self.shared = (queue.low for queue in self._found)


_marks: dict[tuple[str | None, str | None], Marks] = {}
_any_stored = False


def of(agent_id: str | None, agent_type: str | None) -> Marks:
    marks = _marks.get((agent_id, agent_type))
    if marks is None:
        marks = _begun(agent_id, agent_type)
    marks.count()
    return marks


def _begun(agent_id: str | None, agent_type: str | None) -> Marks:
    """Most databases have stored no mark at all. Then a session that serves many agents need not
    ask for those of each, and looks now and then whether that is still so."""
    global _any_stored
    if len(_marks) > _MOST_QUEUES:
        _marks.clear()
    if not _any_stored and len(_marks) % EVERY == 0:
        _any_stored = bool(_STORED.rows())
    marks = _marks[agent_id, agent_type] = Marks(agent_id, agent_type)
    if _any_stored:
        marks.found()
    return marks
