"""Maintenance: leases that ran out. They are void anyhow; this keeps lists and indexes short."""

from __future__ import annotations

from caliber.plans import plan

# What a guard or a waiting call has locked is passed over. Whoever waited in vain is told.
_CLEAR = plan(
    """
    with old as (
        select r.resource_type, r.resource_id, r.lock_id, r.wanted_until
        from @extschema@.caliber_resource as r
        where r.lock_id is not null and r.expires_at <= pg_catalog.clock_timestamp()
        order by r.resource_type, r.resource_id
        limit $1
        for update skip locked
    ),
    freed as (
        update @extschema@.caliber_resource as r
        set lock_id = null, holder_agent_id = null, acquired_at = null, expires_at = null, reason = null
        from old as o
        where r.resource_type = o.resource_type and r.resource_id = o.resource_id
        returning o.lock_id, o.wanted_until
    ),
    old_shared as (
        select s.lock_id
        from @extschema@.caliber_lock_shared as s
        where s.expires_at <= pg_catalog.clock_timestamp()
        order by s.lock_id
        limit $1
        for update skip locked
    ),
    left_alone as (
        delete from @extschema@.caliber_lock_shared as s
        using old_shared as o
        where s.lock_id = o.lock_id
        returning s.lock_id, s.resource_type, s.resource_id
    )
    select @extschema@._caliber_lock_tell(f.lock_id, f.wanted_until) as told
    from freed as f
    union all
    select @extschema@._caliber_lock_tell(l.lock_id, r.wanted_until)
    from left_alone as l
    inner join @extschema@.caliber_resource as r
        on l.resource_type = r.resource_type and l.resource_id = r.resource_id
    """,
    "int4",
)


def clear(most: int) -> int:
    return len(_CLEAR.rows(most))
