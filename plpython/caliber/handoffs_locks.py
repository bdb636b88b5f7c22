"""Handoffs: the leases that go with them. A lease that moves is a new one, with a higher fence."""

from __future__ import annotations

from typing import Any

from caliber import errors, handoffs_store, locks_paths, locks_take
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
    f"""
    select o.lock_id
    from ({locks_paths.overlaps(("caliber_resource", "caliber_lock_shared"), "$1", "$2", "$3")}) as o
    where o.holder_agent_id = $4 and o.expires_at > pg_catalog.clock_timestamp() and o.lock_id <> all($5)
    """,
    "text",
    "text[]",
    "text[]",
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

# The receiver's own of the same thing, if it shares already: locked, so that it stays as it is.
_OWN_SHARED = plan(
    """
    select pg_catalog.to_jsonb(s.expires_at)::text as until
    from @extschema@.caliber_lock_shared as s
    where s.resource_type = $1
        and s.resource_id = $2
        and s.holder_agent_id = $3
        and s.expires_at > pg_catalog.clock_timestamp()
    for update
    """,
    "text",
    "text",
    "uuid",
)

# A holder has one shared lease of a thing. One that runs keeps its id, for as long as the longer of the two;
# one that ran out is replaced, fence and all.
_JOIN = """
    on conflict on constraint caliber_lock_shared_holder_key do update
    set
        (lock_id, fence, acquired_at, reason) = (
            select s.lock_id, s.fence, s.acquired_at, s.reason where s.expires_at > excluded.acquired_at
            union all
            select excluded.lock_id, excluded.fence, excluded.acquired_at, excluded.reason
            limit 1
        ),
        expires_at = greatest(s.expires_at, excluded.expires_at)
"""

_MOVE_SHARED = plan(
    f"""
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
    {_JOIN}
    returning
        s.lock_id,
        pg_catalog.jsonb_build_object(
            'resource_type', s.resource_type,
            'resource_id', s.resource_id,
            'own_until', $4,
            'joint_until', s.expires_at,
            'given', (select pg_catalog.to_jsonb(g) from gone as g)
        )::text as joint
    """,
    "uuid",
    "uuid",
    "uuid",
    "jsonb",
)

# The holder has what it had, unless it has extended that itself since. It runs, so nobody else has had the
# thing to itself meanwhile, and whoever it was joined with has a part of it again.
_PART = plan(
    f"""
    with own as (
        update @extschema@.caliber_lock_shared as s
        set
            expires_at = case
                when s.expires_at = ($1 ->> 'joint_until')::timestamptz then ($1 ->> 'own_until')::timestamptz
                else s.expires_at
            end
        where s.resource_type = $1 ->> 'resource_type'
            and s.resource_id = $1 ->> 'resource_id'
            and s.holder_agent_id = $2
            and s.expires_at > pg_catalog.clock_timestamp()
        returning s.resource_type, s.resource_id
    ),
    raised as (
        update @extschema@.caliber_resource as r
        set fence = r.fence + 1
        from own as o
        where r.resource_type = o.resource_type and r.resource_id = o.resource_id and $3 is not null
        returning r.resource_type, r.resource_id, r.fence
    )
    insert into @extschema@.caliber_lock_shared as s (
        lock_id, resource_type, resource_id, holder_agent_id, fence, acquired_at, expires_at, reason
    )
    select
        @extschema@.caliber_uuid_v7(), r.resource_type, r.resource_id, $3, r.fence,
        pg_catalog.clock_timestamp(),
        greatest(
            g.expires_at,
            pg_catalog.clock_timestamp() + least(g.expires_at - g.acquired_at, interval '1 minute')
        ),
        g.reason
    from raised as r
    cross join pg_catalog.jsonb_populate_record(
        null::@extschema@.caliber_lock_shared, $1 -> 'given'
    ) as g
    {_JOIN}
    returning s.lock_id
    """,
    "jsonb",
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
    kind, names = lease["resource_type"], [lease["resource_id"]]
    covering, directories = locks_paths.covering(kind, names), locks_paths.directories(kind, names)
    return bool(_OVERLAPS.rows(kind, covering, directories, agent_id, lock_ids))


def move(
    lock_ids: list[str], giver: str, taker: str, joint: list[dict[str, Any]] | None = None
) -> tuple[list[str], list[dict[str, Any]], list[str]]:
    """The taker's leases, those that joined one it had, and a warning for each that was lost meanwhile.
    What had joined one of the giver's is parted from it."""
    joint = joint or []
    held = {row["lock_id"]: row for row in _FIND.rows(lock_ids)} if lock_ids else {}
    _turns([*held.values(), *joint], giver)
    moved: list[str] = []
    joined: list[dict[str, Any]] = []
    warnings: list[str] = []
    for lock_id in lock_ids:
        lease = held.get(lock_id)
        if lease is None or _overlap(lease, giver, lock_ids):
            warnings.append(f"lease lost: {lock_id}")
        elif lease["mode"] == "exclusive":
            _keep(_MOVE.one(lock_id, giver, taker), lock_id, moved, warnings)
        else:
            _share(lease, giver, taker, moved, joined, warnings)
    for part in joint:
        _keep(_PART.one(handoffs_store.dumps(part), giver, taker), part["resource_id"], moved, warnings)
    return moved, joined, warnings


def _turns(things: list[dict[str, Any]], agent_id: str) -> None:
    """Turns keep others, and the giver itself, from taking what overlaps meanwhile. One order for all."""
    for kind, name in sorted({(row["resource_type"], row["resource_id"]) for row in things}):
        locks_take.turns(locks_take.Wants(agent_id, kind, [name], "exclusive", 0, None))


def _share(
    lease: dict[str, Any],
    giver: str,
    taker: str,
    moved: list[str],
    joined: list[dict[str, Any]],
    warnings: list[str],
) -> None:
    own = _OWN_SHARED.one(lease["resource_type"], lease["resource_id"], taker)
    new = _MOVE_SHARED.one(lease["lock_id"], giver, taker, own["until"] if own else None)
    if new is not None and own is not None:
        joined.append(handoffs_store.loads(new["joint"]))
    else:
        _keep(new, lease["lock_id"], moved, warnings)


def _keep(new: dict[str, Any] | None, what: str, moved: list[str], warnings: list[str]) -> None:
    if new is None:
        warnings.append(f"lease lost: {what}")
    else:
        moved.append(str(new["lock_id"]))


def part(joint: list[dict[str, Any]], agent_id: str) -> None:
    """The agent keeps of them what it had itself; nobody gets the rest."""
    for row in joint:
        _PART.rows(handoffs_store.dumps(row), agent_id, None)
