"""Locks: taking leases where more than one row counts. The contract is in sql/schema/locks.sql.

An attempt is a subtransaction that is rolled back unless it takes everything, so whoever gets
nothing keeps nothing: no turn, no row lock, no mark in pg_locks.

What is free takes three statements: a look, the turns, and one that looks again and takes. Each is
planned once; what follows from the paths is passed to them, see locks_paths.
"""

from __future__ import annotations

from typing import Any

import plpy

from caliber import epochs, errors, ids, locks, locks_paths
from caliber.plans import Statement, plan

MODE = "@extschema@.caliber_lock_mode"

# Leases of others that do not go together with what is wanted, those that ran out included.
_IN_THE_WAY = """
    select
        o.lock_id,
        pg_catalog.date_part('epoch', o.expires_at - pg_catalog.clock_timestamp()) as seconds
    from ({overlaps}) as o
    where o.holder_agent_id <> $1
"""

_EXTENDED = """
    update @extschema@.{table} as l
    set
        expires_at = greatest(l.expires_at, pg_catalog.clock_timestamp() + $4 * interval '1 ms'),
        reason = coalesce($5, l.reason)
    from agent as a
    where l.resource_type = $2
        and l.resource_id = any($3)
        and l.holder_agent_id = a.agent_id
        and l.expires_at > pg_catalog.clock_timestamp()
    returning
        l.resource_type, l.resource_id, '{mode}'::@extschema@.caliber_lock_mode as mode,
        l.lock_id, l.fence, l.expires_at
"""

_KEPT = {
    "exclusive": f"kept as ({_EXTENDED.format(table='caliber_resource', mode='exclusive')})",
    "shared": f"""
        kept_exclusive as ({_EXTENDED.format(table="caliber_resource", mode="exclusive")}),
        kept_shared as ({_EXTENDED.format(table="caliber_lock_shared", mode="shared")}),
        kept as (select * from kept_exclusive union all select * from kept_shared)
    """,
}

# What the agent has already is extended; a lease that runs needs no turn. What is in the way has no
# resource here, and one more row says that the agent may do this, and in what transaction.
_LOOK = """
    with agent as ({agent}),
    {kept},
    in_the_way as ({in_the_way})
    select k.*, null::float8 as seconds, null::text as level from kept as k
    union all
    select null, null, null, w.lock_id, null, null, w.seconds, null from in_the_way as w
    union all
    select null, null, null, null, null, null, null, pg_catalog.current_setting('transaction_isolation')
    from agent as a
"""

# With the turns held. An exclusive lease replaces what shared ones there are: the agent's own, and
# those that ran out.
_TAKEN = {
    "exclusive": f"""
    taken as (
        insert into @extschema@.caliber_resource as r (
            resource_type, resource_id, fence, lock_id, holder_agent_id, acquired_at, expires_at, reason
        )
        select
            $2, w.resource_id, {epochs.FLOOR} + 1, {ids.NEW}, $1,
            pg_catalog.clock_timestamp(), pg_catalog.clock_timestamp() + $4 * interval '1 ms', $5
        from pg_catalog.unnest($3) as w (resource_id)
        where not exists (select from in_the_way)
        on conflict (resource_type, resource_id) do update
        set
            fence = greatest(r.fence + 1, excluded.fence),
            shared = false,
            lock_id = excluded.lock_id,
            holder_agent_id = excluded.holder_agent_id,
            acquired_at = pg_catalog.clock_timestamp(),
            expires_at = pg_catalog.clock_timestamp() + $4 * interval '1 ms',
            reason = excluded.reason
        where r.lock_id is null or r.expires_at <= pg_catalog.clock_timestamp()
        returning r.resource_type, r.resource_id, r.lock_id, r.fence, r.expires_at
    ),
    replaced as (
        delete from @extschema@.caliber_lock_shared as s
        where s.resource_type = $2 and s.resource_id = any($3) and exists (select from taken)
    )
    """,
    "shared": f"""
    joined as (
        insert into @extschema@.caliber_resource as r (resource_type, resource_id, fence, shared)
        select $2, w.resource_id, {epochs.FLOOR} + 1, true
        from pg_catalog.unnest($3) as w (resource_id)
        where not exists (select from in_the_way)
        on conflict (resource_type, resource_id) do update
        set
            fence = greatest(r.fence + 1, excluded.fence),
            shared = true,
            lock_id = null,
            holder_agent_id = null,
            acquired_at = null,
            expires_at = null,
            reason = null
        where r.lock_id is null or r.expires_at <= pg_catalog.clock_timestamp()
        returning r.resource_type, r.resource_id, r.fence
    ),
    taken as (
        insert into @extschema@.caliber_lock_shared as s (
            lock_id, resource_type, resource_id, holder_agent_id, fence, acquired_at, expires_at, reason
        )
        select
            {ids.NEW}, j.resource_type, j.resource_id, $1, j.fence,
            pg_catalog.clock_timestamp(), pg_catalog.clock_timestamp() + $4 * interval '1 ms', $5
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
    """,
}
_TAKE = """
    with in_the_way as materialized ({in_the_way}),
    {taken}
    select t.*, '{mode}'::@extschema@.caliber_lock_mode as mode, null::float8 as seconds from taken as t
    union all
    select null, null, w.lock_id, null, null, null, w.seconds from in_the_way as w
"""


def _plans(text: str) -> dict[str, Statement]:
    """For each mode; they take what Wants.given() has."""
    tables = {"exclusive": ("caliber_resource", "caliber_lock_shared"), "shared": ("caliber_resource",)}
    found: dict[str, Statement] = {}
    for mode, others in tables.items():
        overlaps = locks_paths.overlaps(others, "$2", "$7", "$8")
        filled = text.format(
            agent=locks.AGENT,
            kept=_KEPT[mode],
            in_the_way=_IN_THE_WAY.format(overlaps=overlaps),
            taken=_TAKEN[mode],
            mode=mode,
        )
        found[mode] = plan(filled, "uuid", "text", "text[]", "int8", "text", "int8", "text[]", "text[]")
    return found


_LOOK_FIRST = _plans(_LOOK)
_LOOK_AGAIN = _plans("{in_the_way}")
_LOOK_AND_TAKE = _plans(_TAKE)

_TURNS = plan(
    """
    select pg_catalog.count(
        case
            when t.alone
                then pg_catalog.pg_advisory_xact_lock(@extschema@._caliber_lock_turn($1, t.place))::text
            else pg_catalog.pg_advisory_xact_lock_shared(@extschema@._caliber_lock_turn($1, t.place))::text
        end
    )
    from rows from (pg_catalog.unnest($2), pg_catalog.unnest($3)) as t (place, alone)
    """,
    "text",
    "text[]",
    "bool[]",
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


class Wants:
    """What one call asks for."""

    __slots__ = (
        "agent_id", "covering", "directories", "incarnation", "mode", "reason", "resource_ids",
        "resource_type", "timeout_ms",
    )  # fmt: skip

    def __init__(
        self,
        agent_id: str,
        resource_type: str,
        resource_ids: list[str],
        mode: str,
        timeout_ms: int,
        reason: str | None,
        incarnation: int | None = None,
    ) -> None:
        self.agent_id = agent_id
        self.resource_type = resource_type
        self.mode = mode
        self.timeout_ms = timeout_ms
        self.reason = reason
        self.incarnation = incarnation
        self.want(resource_ids)

    def want(self, resource_ids: list[str]) -> None:
        """Of these resources: all, or those that are not had yet."""
        self.resource_ids = resource_ids
        self.covering = locks_paths.covering(self.resource_type, resource_ids)
        self.directories = locks_paths.directories(self.resource_type, resource_ids)

    def given(self) -> tuple[object, ...]:
        """As the statements take it."""
        return (
            self.agent_id, self.resource_type, self.resource_ids, self.timeout_ms, self.reason,
            self.incarnation, self.covering, self.directories,
        )  # fmt: skip


class Nothing(Exception):
    """Leaves a subtransaction, which undoes it."""


def take(wants: Wants, wait_ms: int) -> list[dict[str, Any]] | None:
    """All of it or nothing; nothing is None."""
    leases: list[dict[str, Any]] = []
    waited_for: list[dict[str, Any]] = []
    try:
        with plpy.subtransaction():
            leases, blocking, level = _look(wants)
            if leases:
                had = {row["resource_id"] for row in leases}
                wants.want([name for name in wants.resource_ids if name not in had])
            if wants.resource_ids:
                _refuse_fixed_snapshot(level)
                granted, waited_for = _take_new(wants, wait_ms, blocking)
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


def _look(wants: Wants) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    """What the agent had already, extended; what is in the way; and the isolation level."""
    rows = list(_LOOK_FIRST[wants.mode].rows(*wants.given()))
    leases = [row for row in rows if row["resource_id"] is not None]
    level = next((row["level"] for row in rows if row["level"] is not None), None)
    if level is None:
        locks.refuse_agent(wants.agent_id, wants.incarnation)
    return leases, _running(rows), level


def _take_new(
    wants: Wants, wait_ms: int, blocking: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]] | None, list[dict[str, Any]]]:
    if not blocking:
        try:
            turns(wants)
            granted, blocking = attempt(wants)
        except plpy.SPIError as error:
            if error.sqlstate != errors.LOCK_TIMEOUT:
                raise
            granted, blocking = None, in_the_way(wants) if wait_ms else []
        if granted is not None:
            return granted, []
    if not wait_ms:
        return None, []
    from caliber import locks_wait

    return locks_wait.wait(wants, wait_ms, blocking)


def turns(wants: Wants) -> None:
    """They are taken in the order of the list."""
    places, alone = locks_paths.turns(wants.resource_type, wants.resource_ids, wants.mode == "exclusive")
    _TURNS.rows(wants.resource_type, places, alone)


def in_the_way(wants: Wants) -> list[dict[str, Any]]:
    """Leases that run and do not go together with these wants."""
    return _running(_LOOK_AGAIN[wants.mode].rows(*wants.given()))


def attempt(wants: Wants) -> tuple[list[dict[str, Any]] | None, list[dict[str, Any]]]:
    """With the turns held: the leases, or None and what is in the way."""
    blocking: list[dict[str, Any]] = []
    try:
        with plpy.subtransaction():
            granted, found = _taken(wants)
            if found and not _running(found):
                # A guard or an extension may be under way on a lease that seems to have run out.
                _END_OLD.rows([row["lock_id"] for row in found])
                granted, found = _taken(wants)
            blocking = _running(found)
            if len(granted) != len(wants.resource_ids):
                raise Nothing
    except Nothing:
        return None, blocking
    return granted, []


def _taken(wants: Wants) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rows = list(_LOOK_AND_TAKE[wants.mode].rows(*wants.given()))
    return [row for row in rows if row["fence"] is not None], [row for row in rows if row["fence"] is None]


def _running(rows: Any) -> list[dict[str, Any]]:
    return [row for row in rows if row["seconds"] is not None and row["seconds"] > 0]


def _refuse_fixed_snapshot(level: str) -> None:
    if level != "read committed":
        errors.fail(
            "0A000",
            "shared, file, several and waiting locks need read committed",
            detail=f"The transaction is {level}: it would not see what others have taken meanwhile.",
            hint="Acquire the lock in a transaction of its own.",
        )
