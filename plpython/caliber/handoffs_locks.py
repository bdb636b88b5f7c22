"""Handoffs: the leases that go with them. A lease that moves is a new one, with a higher fence."""

from __future__ import annotations

from typing import Any

from caliber import errors, locks_take
from caliber.plans import plan

_FIND = plan(
    """
    select l.lock_id, l.resource_type, l.resource_id, l.mode, l.holder_agent_id
    from @extschema@.caliber_lock as l
    where l.lock_id = any($1)
    order by l.resource_type, l.resource_id
    """,
    "uuid[]",
)

# Another lease of the sender that covers this one, or is covered, and stays: then both agents
# would have the same thing.
_OVERLAPS = plan(
    """
    select o.lock_id
    from @extschema@._caliber_lock_overlaps($1, $2) as o
    where o.holder_agent_id = $3 and o.expires_at > pg_catalog.clock_timestamp() and o.lock_id <> all($4)
    """,
    "text",
    "text",
    "uuid",
    "uuid[]",
)

# What is left of it, or as long as it was, up to a minute: how long a lease has been held by extending
# it says nothing of how long its next holder may be gone before others get it. The new lock_id waits
# for a guard under way, as any takeover.
_MOVE = plan(
    """
    update @extschema@.caliber_resource as r
    set
        fence = r.fence + 1,
        lock_id = @extschema@.caliber_uuid_v7(),
        holder_agent_id = $3,
        acquired_at = pg_catalog.clock_timestamp(),
        expires_at = greatest(
            r.expires_at,
            pg_catalog.clock_timestamp() + least(r.expires_at - r.acquired_at, interval '1 minute')
        )
    where r.lock_id = $1 and r.holder_agent_id = $2 and r.expires_at > pg_catalog.clock_timestamp()
    returning r.lock_id
    """,
    "uuid",
    "uuid",
    "uuid",
)

# Where the receiver shares already it keeps what it has.
_MOVE_SHARED = plan(
    """
    with gone as (
        delete from @extschema@.caliber_lock_shared as s
        where s.lock_id = $1 and s.holder_agent_id = $2 and s.expires_at > pg_catalog.clock_timestamp()
        returning s.resource_type, s.resource_id, s.acquired_at, s.expires_at, s.reason
    ),
    raised as (
        update @extschema@.caliber_resource as r
        set fence = r.fence + 1
        from gone as g
        where r.resource_type = g.resource_type and r.resource_id = g.resource_id
        returning r.resource_type, r.resource_id, r.fence
    )
    insert into @extschema@.caliber_lock_shared as s (
        lock_id, resource_type, resource_id, holder_agent_id, fence, acquired_at, expires_at, reason
    )
    select
        @extschema@.caliber_uuid_v7(), g.resource_type, g.resource_id, $3, r.fence,
        pg_catalog.clock_timestamp(),
        greatest(
            g.expires_at,
            pg_catalog.clock_timestamp() + least(g.expires_at - g.acquired_at, interval '1 minute')
        ),
        g.reason
    from gone as g
    inner join raised as r on g.resource_type = r.resource_type and g.resource_id = r.resource_id
    on conflict on constraint caliber_lock_shared_holder_key do update
    set expires_at = greatest(s.expires_at, excluded.expires_at)
    returning s.lock_id
    """,
    "uuid",
    "uuid",
    "uuid",
)


def named(lock_ids: list[str], agent_id: str) -> None:
    """At initiation: the sender holds them, and nothing that overlaps stays behind."""
    held = {row["lock_id"]: row for row in _FIND.rows(lock_ids)}
    for lock_id in lock_ids:
        lease = held.get(lock_id)
        if lease is None or lease["holder_agent_id"] != agent_id:
            errors.fail(
                errors.STALE,
                "the lease is gone",
                detail=f"The sender has no lease {lock_id} that runs.",
                hint="Acquire the lock again, and name the new lease.",
            )
        if _overlap(lease, agent_id, lock_ids):
            errors.invalid("lock_ids", lock_id, "must hold every lease of yours that overlaps with it")


def _overlap(lease: dict[str, Any], agent_id: str, lock_ids: list[str]) -> bool:
    return bool(_OVERLAPS.rows(lease["resource_type"], lease["resource_id"], agent_id, lock_ids))


def move(lock_ids: list[str], giver: str, taker: str) -> tuple[list[str], list[str]]:
    """The taker's leases, and a warning for each that was lost meanwhile."""
    moved: list[str] = []
    warnings: list[str] = []
    held = {row["lock_id"]: row for row in _FIND.rows(lock_ids)} if lock_ids else {}
    for row in held.values():
        # Turns keep others, and the giver itself, from taking what overlaps meanwhile.
        locks_take.turns(
            locks_take.Wants(giver, row["resource_type"], [row["resource_id"]], "exclusive", 0, None)
        )
    for lock_id in lock_ids:
        lease = held.get(lock_id)
        new = None
        if lease is not None and not _overlap(lease, giver, lock_ids):
            statement = _MOVE if lease["mode"] == "exclusive" else _MOVE_SHARED
            new = statement.one(lock_id, giver, taker)
        if new is None:
            warnings.append(f"lease lost: {lock_id}")
        else:
            moved.append(str(new["lock_id"]))
    return moved, warnings
