"""Locks: waiting in the queue, and who waits for whom. The contract is in sql/schema/locks.sql."""

from __future__ import annotations

import time
from typing import Any

import plpy

from caliber import errors, locks_take
from caliber.locks_take import Wants
from caliber.plans import plan

CHECK_SECONDS = 1.0
SHORTEST_SLEEP = 0.005
LONGEST_SLEEP = 0.1
LISTEN_SECONDS = 60
GIVE_UP_SECONDS = 0.05
MAX_PLACE = 20

_TIMEOUT = plan("select pg_catalog.set_config('lock_timeout', $1, true)", "text")
# What the verbs set so that leases are read by index is not for these statements: they read whole views.
_AS_USUAL = plan(
    """
    select
        pg_catalog.set_config('plan_cache_mode', 'auto', true),
        pg_catalog.set_config('enable_seqscan', 'on', true)
    """
)
_SLEEP = plan("select pg_catalog.pg_sleep($1)", "float8")

# Shared advisory locks; pg_locks shows them to everybody at once. One that cannot be had is of a
# lease whose release is under way: there is no need to tell it.
_TELL = plan(
    """
    select
        pg_catalog.pg_advisory_xact_lock_shared(@extschema@._caliber_lock_waiter($1))::text,
        pg_catalog.count(
            pg_catalog.pg_try_advisory_xact_lock_shared(@extschema@._caliber_lock_obstacle(l.lock_id))
        )
    from pg_catalog.unnest($2) as l (lock_id)
    """,
    "uuid",
    "uuid[]",
)

# The calls that wait for each other in a circle with this one: those it waits for, through others
# or not, and that wait for it. A lease comes free no sooner than the calls of its holder that
# wait; in the queue a call waits for a call, whosever it is.
_CIRCLE = plan(
    """
    with recursive waits as materialized (
        select w.pid, w.waiting_agent_id, w.waiting, w.blocking_agent_id, w.blocking_pid
        from @extschema@.caliber_lock_waits as w
    ),
    steps as materialized (
        select w.pid, w.blocking_pid as next_pid from waits as w where w.blocking_pid is not null
        union
        select w.pid, h.pid
        from waits as w
        inner join waits as h on w.blocking_agent_id = h.waiting_agent_id
        where w.blocking_pid is null
    ),
    before as (
        select s.next_pid as pid from steps as s where s.pid = pg_catalog.pg_backend_pid()
        union
        select s.next_pid from steps as s inner join before as b on s.pid = b.pid
    ),
    behind as (
        select s.pid from steps as s where s.next_pid = pg_catalog.pg_backend_pid()
        union
        select s.pid from steps as s inner join behind as b on s.next_pid = b.pid
    )
    select distinct w.pid, w.waiting as name, w.pid = pg_catalog.pg_backend_pid() as own
    from before
    inner join behind using (pid)
    inner join waits as w using (pid)
    order by w.pid
    """
)

# Rows that are locked are left alone: their holder is busy with them.
_MARK = plan(
    """
    with wanted as (
        select r.resource_type, r.resource_id
        from @extschema@.caliber_resource as r
        where r.lock_id = any($1)
            or (r.resource_type, r.resource_id) in (
                select s.resource_type, s.resource_id
                from @extschema@.caliber_lock_shared as s
                where s.lock_id = any($1)
            )
        for no key update skip locked
    )
    update @extschema@.caliber_resource as r
    set wanted_until = pg_catalog.clock_timestamp() + $2 * interval '1 s'
    from wanted as w
    where r.resource_type = w.resource_type and r.resource_id = w.resource_id
    """,
    "uuid[]",
    "int4",
)

_IN_VAIN = plan(
    "select @extschema@._caliber_conflict_of_lease($1, $2, $3)", "uuid[]", "uuid", locks_take.MODE
)


def wait(
    wants: Wants, wait_ms: int, blocking: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]] | None, list[dict[str, Any]]]:
    """The leases, or None and what was in the way last. Everything done here is undone by the
    caller's subtransaction when there is no lease."""
    deadline = time.monotonic() + wait_ms / 1000
    try:
        _AS_USUAL.rows()
        _tell(wants, blocking)
        _refuse_deadlock()
        _lock_timeout(deadline)
        locks_take.turns(wants)
        return _look_until(deadline, wants, blocking)
    except plpy.SPIError as error:
        if error.sqlstate != errors.LOCK_TIMEOUT:
            raise
        return None, blocking


def _look_until(
    deadline: float, wants: Wants, blocking: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]] | None, list[dict[str, Any]]]:
    began = checked = time.monotonic()
    told = {row["lock_id"] for row in blocking}
    while True:
        _lock_timeout(deadline)
        leases, found = locks_take.attempt(wants)
        now = time.monotonic()
        if leases is not None or now >= deadline:
            return leases, blocking
        blocking = found
        new = {row["lock_id"] for row in blocking} - told
        if new or now - checked >= CHECK_SECONDS:
            checked = now
            told |= new
            _tell(wants, blocking)
            _refuse_deadlock()
        _SLEEP.rows(_pause(now - began, deadline - now, blocking))


def _pause(waited: float, left: float, blocking: list[dict[str, Any]]) -> float:
    """Longer the longer it takes, but not past the end of a lease or of the wait."""
    pause = min(LONGEST_SLEEP, SHORTEST_SLEEP + waited / 20, left)
    for row in blocking:
        pause = min(pause, max(float(row["seconds"]), 0.001))
    return max(pause, 0.001)


def mark(wants: Wants, blocking: list[dict[str, Any]]) -> None:
    """Whoever releases these tells listeners, for a while; that it was in vain is a conflict."""
    _AS_USUAL.rows()
    leases = [row["lock_id"] for row in blocking]
    _MARK.rows(leases, LISTEN_SECONDS)
    _IN_VAIN.rows(leases, wants.agent_id, wants.mode)


def _lock_timeout(deadline: float) -> None:
    left = max(1, round((deadline - time.monotonic()) * 1000))
    _TIMEOUT.rows(f"{left}ms")


def _tell(wants: Wants, blocking: list[dict[str, Any]]) -> None:
    _TELL.rows(wants.agent_id, [row["lock_id"] for row in blocking])


def _refuse_deadlock() -> None:
    """Of several that close a circle at once all see it. So each looks again after a pause of its
    own, and finds that one before it has given up, or gives up itself."""
    circle = [row["own"] for row in _CIRCLE.rows()]
    if not circle:
        return
    place = circle.index(True) if True in circle else 0
    _SLEEP.rows(min(place, MAX_PLACE) * GIVE_UP_SECONDS)
    found = _CIRCLE.rows()
    if found:
        names = ", ".join(dict.fromkeys(row["name"] for row in found))
        errors.fail(
            errors.DEADLOCK,
            "waiting for this lock would never end",
            detail=f"Waiting for each other: {names}.",
            hint="Release what you hold, then acquire all of it with caliber_lock_acquire_many.",
        )
