"""Locks: taking leases where more than one row counts. The contract is in sql/schema/locks.sql.

An attempt is a subtransaction that is rolled back unless it takes everything, so whoever gets
nothing keeps nothing: no turn, no row lock, no mark in pg_locks.
"""

from __future__ import annotations

from typing import Any

import plpy

from caliber import errors
from caliber.plans import plan

MODE = "@extschema@.caliber_lock_mode"

_ISOLATION = plan("select pg_catalog.current_setting('transaction_isolation') as level")

# What the agent has already is extended; a lease that runs needs no turn.
_RENEW = plan(
    """
    with want as (
        select $2 as resource_type, w.resource_id
        from pg_catalog.unnest($3) as w (resource_id)
    ),
    kept as (
        update @extschema@.caliber_resource as r
        set
            expires_at = greatest(r.expires_at, pg_catalog.clock_timestamp() + $5 * interval '1 ms'),
            reason = coalesce($6, r.reason)
        from want as w
        where r.resource_type = w.resource_type
            and r.resource_id = w.resource_id
            and r.holder_agent_id = $1
            and r.expires_at > pg_catalog.clock_timestamp()
        returning
            r.resource_type, r.resource_id, 'exclusive'::@extschema@.caliber_lock_mode as mode,
            r.lock_id, r.fence, r.expires_at
    ),
    kept_shared as (
        update @extschema@.caliber_lock_shared as s
        set
            expires_at = greatest(s.expires_at, pg_catalog.clock_timestamp() + $5 * interval '1 ms'),
            reason = coalesce($6, s.reason)
        from want as w
        where $4 = 'shared'
            and s.resource_type = w.resource_type
            and s.resource_id = w.resource_id
            and s.holder_agent_id = $1
            and s.expires_at > pg_catalog.clock_timestamp()
        returning
            s.resource_type, s.resource_id, 'shared'::@extschema@.caliber_lock_mode as mode,
            s.lock_id, s.fence, s.expires_at
    )
    select * from kept
    union all
    select * from kept_shared
    """,
    "uuid",
    "text",
    "text[]",
    MODE,
    "int8",
    "text",
)

# One order for everybody: by place, and a directory comes before what is in it.
_TURNS = plan(
    """
    select pg_catalog.count(
        case
            when t.alone then pg_catalog.pg_advisory_xact_lock(t.turn)::text
            else pg_catalog.pg_advisory_xact_lock_shared(t.turn)::text
        end
    )
    from (
        select t.turn, pg_catalog.bool_or(t.own and ($3 = 'exclusive' or t.is_directory)) as alone
        from pg_catalog.unnest($2) as w (resource_id)
        cross join lateral @extschema@._caliber_lock_turns($1, w.resource_id) as t
        group by t.place, t.turn
        order by t.place
        offset 0
    ) as t
    """,
    "text",
    "text[]",
    MODE,
)

# Leases of others that do not go together with what is wanted, those that ran out included.
_IN_THE_WAY = plan(
    """
    select distinct
        l.lock_id, l.holder_agent_id,
        l.expires_at > pg_catalog.clock_timestamp() as runs,
        pg_catalog.date_part('epoch', l.expires_at - pg_catalog.clock_timestamp()) as seconds
    from pg_catalog.unnest($3) as w (resource_id)
    cross join lateral @extschema@._caliber_lock_overlaps($2, w.resource_id) as l
    where l.holder_agent_id <> $1
        and ($4 = 'exclusive' or l.mode = 'exclusive')
    """,
    "uuid",
    "text",
    "text[]",
    MODE,
)

# Ended, not only locked: a guard or an extension that waits for the row has to see that it was
# passed over. One that was faster is waited for, and the lease stays if it was extended.
_END_OLD = plan(
    """
    with old as (
        select r.lock_id from @extschema@.caliber_resource as r
        where r.lock_id = any($1)
        order by r.lock_id
        for update
    ),
    ended as (
        update @extschema@.caliber_resource as r
        set lock_id = null, holder_agent_id = null, acquired_at = null, expires_at = null, reason = null
        from old as o
        where r.lock_id = o.lock_id and r.expires_at <= pg_catalog.clock_timestamp()
    ),
    old_shared as (
        select s.lock_id from @extschema@.caliber_lock_shared as s
        where s.lock_id = any($1)
        order by s.lock_id
        for update
    )
    delete from @extschema@.caliber_lock_shared as s
    using old_shared as o
    where s.lock_id = o.lock_id and s.expires_at <= pg_catalog.clock_timestamp()
    """,
    "uuid[]",
)

# Called with the turns held and nothing in the way. An exclusive lease replaces what shared
# ones there are: the agent's own, and those that ran out.
_GRANT = plan(
    """
    with want as (
        select $2 as resource_type, w.resource_id
        from pg_catalog.unnest($3) as w (resource_id)
    ),
    taken as (
        insert into @extschema@.caliber_resource as r (
            resource_type, resource_id, fence, lock_id, holder_agent_id, acquired_at, expires_at, reason
        )
        select
            w.resource_type, w.resource_id, 1, @extschema@.caliber_uuid_v7(), $1,
            pg_catalog.clock_timestamp(), pg_catalog.clock_timestamp() + $5 * interval '1 ms', $6
        from want as w
        where $4 = 'exclusive'
        order by w.resource_type, w.resource_id
        on conflict (resource_type, resource_id) do update
        set
            fence = r.fence + 1,
            shared = false,
            lock_id = excluded.lock_id,
            holder_agent_id = excluded.holder_agent_id,
            acquired_at = pg_catalog.clock_timestamp(),
            expires_at = pg_catalog.clock_timestamp() + $5 * interval '1 ms',
            reason = excluded.reason
        where r.lock_id is null or r.expires_at <= pg_catalog.clock_timestamp()
        returning r.resource_type, r.resource_id, r.lock_id, r.fence, r.expires_at
    ),
    replaced as (
        delete from @extschema@.caliber_lock_shared as s
        using taken as t
        where s.resource_type = t.resource_type and s.resource_id = t.resource_id
    ),
    joined as (
        insert into @extschema@.caliber_resource as r (resource_type, resource_id, fence, shared)
        select w.resource_type, w.resource_id, 1, true
        from want as w
        where $4 = 'shared'
        order by w.resource_type, w.resource_id
        on conflict (resource_type, resource_id) do update
        set
            fence = r.fence + 1,
            shared = true,
            lock_id = null,
            holder_agent_id = null,
            acquired_at = null,
            expires_at = null,
            reason = null
        where r.lock_id is null or r.expires_at <= pg_catalog.clock_timestamp()
        returning r.resource_type, r.resource_id, r.fence
    ),
    sharing as (
        insert into @extschema@.caliber_lock_shared as s (
            lock_id, resource_type, resource_id, holder_agent_id, fence, acquired_at, expires_at, reason
        )
        select
            @extschema@.caliber_uuid_v7(), j.resource_type, j.resource_id, $1, j.fence,
            pg_catalog.clock_timestamp(), pg_catalog.clock_timestamp() + $5 * interval '1 ms', $6
        from joined as j
        on conflict on constraint caliber_lock_shared_holder_key do update
        set
            lock_id = excluded.lock_id,
            fence = excluded.fence,
            acquired_at = excluded.acquired_at,
            expires_at = excluded.expires_at,
            reason = excluded.reason
        returning s.resource_type, s.resource_id, s.lock_id, s.fence, s.expires_at
    )
    select t.*, $4 as mode from taken as t
    union all
    select s.*, $4 as mode from sharing as s
    """,
    "uuid",
    "text",
    "text[]",
    MODE,
    "int8",
    "text",
)


class Wants:
    """What one call asks for."""

    __slots__ = ("agent_id", "mode", "reason", "resource_ids", "resource_type", "timeout_ms")

    def __init__(
        self,
        agent_id: str,
        resource_type: str,
        resource_ids: list[str],
        mode: str,
        timeout_ms: int,
        reason: str | None,
    ) -> None:
        self.agent_id = agent_id
        self.resource_type = resource_type
        self.resource_ids = resource_ids
        self.mode = mode
        self.timeout_ms = timeout_ms
        self.reason = reason

    def written(self) -> tuple[object, ...]:
        """As the statements that write take it."""
        return (
            self.agent_id, self.resource_type, self.resource_ids, self.mode, self.timeout_ms, self.reason,
        )  # fmt: skip


class Nothing(Exception):
    """Leaves a subtransaction, which undoes it."""


def take(wants: Wants, wait_ms: int) -> list[dict[str, Any]] | None:
    """All of it or nothing; nothing is None."""
    leases: list[dict[str, Any]] = []
    waited_for: list[dict[str, Any]] = []
    try:
        with plpy.subtransaction():
            leases = renew(wants)
            had = {row["resource_id"] for row in leases}
            wants.resource_ids = [name for name in wants.resource_ids if name not in had]
            if wants.resource_ids:
                _refuse_fixed_snapshot()
                granted, waited_for = _take_new(wants, wait_ms)
                if granted is None:
                    raise Nothing
                leases += granted
    except plpy.SPIError as error:
        if error.sqlstate != errors.LOCK_TIMEOUT:
            raise
        return None
    except Nothing:
        if waited_for:
            from caliber import locks_wait

            locks_wait.mark(wants, waited_for)
        return None
    return sorted(leases, key=lambda row: str(row["resource_id"]))


def _take_new(wants: Wants, wait_ms: int) -> tuple[list[dict[str, Any]] | None, list[dict[str, Any]]]:
    blocking = in_the_way(wants)
    if not blocking:
        try:
            turns(wants)
            granted = attempt(wants)
        except plpy.SPIError as error:
            if error.sqlstate != errors.LOCK_TIMEOUT:
                raise
            granted = None
        if granted is not None:
            return granted, []
        blocking = in_the_way(wants)
    if not wait_ms:
        return None, []
    from caliber import locks_wait

    return locks_wait.wait(wants, wait_ms, blocking)


def renew(wants: Wants) -> list[dict[str, Any]]:
    return list(_RENEW.rows(*wants.written()))


def turns(wants: Wants) -> None:
    _TURNS.rows(wants.resource_type, wants.resource_ids, wants.mode)


def in_the_way(wants: Wants) -> list[dict[str, Any]]:
    """Leases that run and do not go together with these wants."""
    return [row for row in _found(wants) if row["runs"]]


def attempt(wants: Wants) -> list[dict[str, Any]] | None:
    """With the turns held: the leases, or None where something is in the way."""
    found = _found(wants)
    if any(row["runs"] for row in found):
        return None
    if found:
        # A guard or an extension may be under way on a lease that seems to have run out.
        _END_OLD.rows([row["lock_id"] for row in found])
        if in_the_way(wants):
            return None
    try:
        with plpy.subtransaction():
            granted = list(_GRANT.rows(*wants.written()))
            if len(granted) != len(wants.resource_ids):
                raise Nothing
    except Nothing:
        return None
    return granted


def _found(wants: Wants) -> list[dict[str, Any]]:
    return list(_IN_THE_WAY.rows(wants.agent_id, wants.resource_type, wants.resource_ids, wants.mode))


def _refuse_fixed_snapshot() -> None:
    level = (_ISOLATION.one() or {})["level"]
    if level != "read committed":
        errors.fail(
            "0A000",
            "shared, file, several and waiting locks need read committed",
            detail=f"The transaction is {level}: it would not see what others have taken meanwhile.",
            hint="Acquire the lock in a transaction of its own.",
        )
