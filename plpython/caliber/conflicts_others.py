"""Conflicts that are not between artifacts: a write to a region that was put aside, and a lease that
another waited for in vain. Decided on the locked row of the key, or of the lease."""

from __future__ import annotations

from typing import Any

from caliber import checks, errors, regions_merge, regions_put
from caliber.conflicts_resolve import Decision
from caliber.plans import plan

# What was put aside. The json value null is a value; SQL's null is the removal of the key.
_WRITE = plan(
    """
    select
        w.region_id, w.key, w.agent_id, w.seen_version, w.found_version, w.lost_value,
        g.name as region_name, g.require_lock
    from @extschema@.caliber_region_conflict as w
    inner join @extschema@.caliber_region as g on w.region_id = g.region_id
    where w.conflict_id = $1
    """,
    "uuid",
)

# The holder writes with its fence, and nobody beside it. The key share lock keeps its lease from
# being given to anybody before this transaction ends.
_LOCKED_REGION = plan(
    """
    select r.holder_agent_id
    from @extschema@.caliber_resource as r
    where r.resource_type = 'region' and r.resource_id = $1
    for key share of r
    """,
    "text",
)

# Ends the lease as its release does; a guard under way is waited for.
_END_LEASE = plan(
    """
    with freed as (
        update @extschema@.caliber_resource as r
        set lock_id = null, holder_agent_id = null, acquired_at = null, expires_at = null, reason = null
        where r.lock_id = $1 and r.expires_at > pg_catalog.clock_timestamp()
        returning r.wanted_until
    ),
    left_alone as (
        delete from @extschema@.caliber_lock_shared as s
        where s.lock_id = $1 and s.expires_at > pg_catalog.clock_timestamp()
        returning s.resource_type, s.resource_id
    )
    select @extschema@._caliber_lock_tell($1, f.wanted_until) as told
    from freed as f
    union all
    select @extschema@._caliber_lock_tell($1, r.wanted_until)
    from left_alone as l
    inner join @extschema@.caliber_resource as r
        on l.resource_type = r.resource_type and l.resource_id = r.resource_id
    """,
    "uuid",
)

_LEASE = plan(
    """
    select r.lock_id
    from @extschema@.caliber_resource as r
    where r.lock_id = $1 and r.expires_at > pg_catalog.clock_timestamp()
    union all
    select s.lock_id
    from @extschema@.caliber_lock_shared as s
    where s.lock_id = $1 and s.expires_at > pg_catalog.clock_timestamp()
    """,
    "uuid",
)


def region_write(conflict: dict[str, Any], strategy: str, merged: str | None) -> Decision:
    """A write that was put aside comes to stand after all, or does not."""
    write = _WRITE.one(conflict["item_b_id"])
    entry = regions_put.LOCK.one(write["region_id"], write["key"]) if write else None
    if write is None or entry is None:
        return Decision(None, "the write is gone", escalate=True)
    if entry["version"] > write["found_version"]:
        return Decision(None, "the key has been written since")
    if strategy == "first_write_wins":
        return Decision("a", "what was written first stands")
    if strategy == "last_write_wins":
        _put(write, write["lost_value"])
        return Decision("b", "it was written last")
    before = regions_put.OLD.one(write["region_id"], write["key"], write["seen_version"])
    if strategy == "merge":
        return _merge(write, entry["value"], before, merged)
    if strategy == "reject_both" and (before is not None or write["seen_version"] == 0):
        _put(write, before["value"] if before else None)
        return Decision(None, "back to what both had seen")
    if strategy == "reject_both":
        return Decision(None, "what both had seen is not kept", escalate=True)
    return Decision(None, "writes to regions have no confidence", escalate=True)


def _merge(
    write: dict[str, Any], current: str | None, before: dict[str, Any] | None, merged: str | None
) -> Decision:
    value = merged
    if value is not None:
        checks.json_text("merged_content", value)
    elif write["lost_value"] is None or current is None:
        return Decision(None, "a removal cannot be merged", escalate=True)
    else:
        value = regions_merge.merge(before["value"] if before else None, current, write["lost_value"])
    _put(write, value)
    return Decision("merged", "merged into a new version of the key")


def _put(write: dict[str, Any], value: str | None) -> None:
    if write["require_lock"]:
        _refuse_locked(write)
    regions_put.settle(write, write["key"], value, "written")


def _refuse_locked(write: dict[str, Any]) -> None:
    lease = _LOCKED_REGION.one(write["region_id"])
    if lease is not None and lease["holder_agent_id"] is not None:
        errors.fail(
            errors.WRONG_STATE,
            "the region is locked",
            detail=f"Region {write['region_name']} requires a lock, and it is held.",
            hint="Decide when it is released, or let its holder write the key.",
        )


def contention(conflict: dict[str, Any], strategy: str) -> Decision:
    """The holder keeps its lease, or it ends; what it wrote with its fence from then on is refused."""
    import json

    lock_id = json.loads(conflict["details"])["lock_id"]
    if _LEASE.one(lock_id) is None:
        return Decision(None, "the lease has ended")
    if strategy == "first_write_wins":
        return Decision("a", "the holder keeps its lease")
    if strategy in ("last_write_wins", "reject_both"):
        _END_LEASE.rows(lock_id)
        return Decision("b" if strategy == "last_write_wins" else None, "the lease was ended")
    return Decision(None, f"a lease cannot be decided by {strategy}", escalate=True)
