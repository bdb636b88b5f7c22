"""Regions: writing keys, and what a write against an old version comes to."""

from __future__ import annotations

from typing import Any

from caliber import checks, errors, regions
from caliber.plans import plan

MAX_KEY = 200
MAX_VERSION = 2**62

# The way of nearly every write, one statement: allowed, no lock asked for, not against an
# old version. What the version is compared with is the row as locked, so the answer holds
# after waiting for another writer too. No row means that _decided has to look closer.
_PUT = plan(
    """
    with target as (
        select
            r.region_id, r.version_tracking,
            r.conflict_resolution = 'last_write_wins' and r.region_type <> 'collaborative' as blindly
        from @extschema@.caliber_region as r
        inner join @extschema@.caliber_agent as a on a.agent_id = $1
        left join @extschema@.caliber_region_member as m
            on r.region_id = m.region_id and a.agent_id = m.agent_id
        where r.region_id = $2
            and a.terminated_at is null
            and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
            and @extschema@._caliber_region_reason(
                r.region_type, r.owner_agent_id = a.agent_id, r.team_id = a.team_id, m.access, 'write'
            ) is not null
            and (not r.require_lock or $6)
            -- A key that was never written has no version to have been seen, nor to remove.
            and (
                (coalesce($5, 0) = 0 and $4 is not null)
                or exists (
                    select from @extschema@.caliber_region_entry as e
                    where e.region_id = $2 and e.key = $3
                )
            )
    ),
    written as (
        insert into @extschema@.caliber_region_entry as e (region_id, key, value, written_by)
        select t.region_id, $3, $4, $1 from target as t
        on conflict (region_id, key) do update
        set
            version = e.version + 1,
            value = excluded.value,
            written_by = excluded.written_by,
            written_at = pg_catalog.clock_timestamp()
        where case
            when e.value is null and ($4 is null or coalesce($5, 0) = 0) then $4 is not null
            when $5 is null then (select t.blindly from target as t)
            else e.version = $5
        end
        returning e.region_id, e.key, e.version, e.value, e.written_by, e.written_at
    ),
    kept as (
        insert into @extschema@.caliber_region_version (
            region_id, key, version, value, written_by, written_at
        )
        select w.region_id, w.key, w.version, w.value, w.written_by, w.written_at
        from written as w
        inner join target as t on w.region_id = t.region_id
        where t.version_tracking
    )
    select
        'written' as outcome, w.version, null::jsonb as current_value, null::uuid as conflict_id
    from written as w
    """,
    "uuid",
    "uuid",
    "text",
    "jsonb",
    "int8",
    "bool",
)

# A row whose update the where clause above refused is locked all the same; this waits only
# for one that came to be since.
LOCK = plan(
    """
    select e.version, e.value
    from @extschema@.caliber_region_entry as e
    where e.region_id = $1 and e.key = $2
    for update
    """,
    "uuid",
    "text",
)

OLD = plan(
    """
    select h.value
    from @extschema@.caliber_region_version as h
    where h.region_id = $1 and h.key = $2 and h.version = $3
    """,
    "uuid",
    "text",
    "int8",
)

# The guard has seen a lease with this fence and keeps it as it is: is it the writer's own?
_HOLDER = plan(
    """
    select r.lock_id
    from @extschema@.caliber_resource as r
    where r.resource_type = 'region'
        and r.resource_id = $1
        and r.fence = $2
        and r.holder_agent_id = $3
    """,
    "text",
    "int8",
    "uuid",
)

# The row is locked by now. $5 says whether to write $4; $6 is the version seen, null when
# there is no conflict to record; $8 is what the record keeps.
_SETTLE = plan(
    """
    with before as (
        select e.region_id, e.key, e.version, e.value, e.written_by
        from @extschema@.caliber_region_entry as e
        where e.region_id = $2 and e.key = $3
    ),
    written as (
        update @extschema@.caliber_region_entry as e
        set
            version = e.version + 1,
            value = $4,
            written_by = $1,
            written_at = pg_catalog.clock_timestamp()
        where e.region_id = $2 and e.key = $3 and $5
        returning e.region_id, e.key, e.version, e.value, e.written_by, e.written_at
    ),
    kept as (
        insert into @extschema@.caliber_region_version (
            region_id, key, version, value, written_by, written_at
        )
        select w.region_id, w.key, w.version, w.value, w.written_by, w.written_at
        from written as w
        inner join @extschema@.caliber_region as r on w.region_id = r.region_id
        where r.version_tracking
    ),
    recorded as (
        insert into @extschema@.caliber_region_conflict as c (
            region_id, key, agent_id, other_agent_id, seen_version, found_version, written_version,
            conflict_resolution, outcome, lost_value
        )
        select
            b.region_id, b.key, $1, b.written_by, $6, b.version, w.version, r.conflict_resolution, $7, $8
        from before as b
        inner join @extschema@.caliber_region as r on b.region_id = r.region_id
        left join written as w on b.region_id = w.region_id
        where $6 is not null
        returning c.conflict_id
    )
    select
        $7 as outcome,
        coalesce(w.version, b.version) as version,
        c.conflict_id,
        case when c.conflict_id is not null then @extschema@._caliber_log(
            'region_conflict', 'state', $9,
            'write to ' || b.key || ' of region ' || r.name || ' had seen version ' || $6
            || ' and found ' || b.version || ': ' || $7,
            $1, r.team_id,
            trajectory_id => (
                select w.current_trajectory_id from @extschema@.caliber_agent as w where w.agent_id = $1
            ),
            reference_type => 'region', reference_id => b.region_id::text,
            details => pg_catalog.jsonb_build_object('conflict_id', c.conflict_id, 'outcome', $7)
        ) end as event_id,
        case when c.conflict_id is not null then @extschema@._caliber_conflict_of_write(
            c.conflict_id, b.region_id, b.written_by, $1, r.conflict_resolution, $7, r.team_id,
            pg_catalog.jsonb_build_object('key', b.key, 'seen_version', $6, 'found_version', b.version)
        ) end as listed_id
    from before as b
    inner join @extschema@.caliber_region as r on b.region_id = r.region_id
    left join written as w on b.region_id = w.region_id
    left join recorded as c on true
    """,
    "uuid",
    "uuid",
    "text",
    "jsonb",
    "bool",
    "int8",
    "@extschema@.caliber_region_outcome",
    "jsonb",
    "@extschema@.caliber_event_severity",
)


def put(
    agent_id: str | None,
    region_id: str | None,
    key: str | None,
    value: str | None,
    expected_version: int | None,
    incarnation: int | None,
    fence: int | None,
) -> list[dict[str, Any]]:
    if value is None:
        errors.fail(
            errors.INVALID,
            "value must not be null",
            hint="caliber_region_remove removes a key; json has a null of its own.",
        )
    checks.json_text("value", value)
    return _write(agent_id, region_id, key, value, expected_version, incarnation, fence)


def remove(
    agent_id: str | None,
    region_id: str | None,
    key: str | None,
    expected_version: int | None,
    incarnation: int | None,
    fence: int | None,
) -> list[dict[str, Any]]:
    return _write(agent_id, region_id, key, None, expected_version, incarnation, fence)


def _write(
    agent_id: str | None,
    region_id: str | None,
    key: str | None,
    value: str | None,
    expected: int | None,
    incarnation: int | None,
    fence: int | None,
) -> list[dict[str, Any]]:
    checks.required("agent_id", agent_id)
    checks.required("region_id", region_id)
    if not checks.label("key", key, MAX_KEY):
        errors.invalid("key", key, f"must be 1 to {MAX_KEY} characters")
    checks.between("expected_version", expected, 0, MAX_VERSION)
    if incarnation is not None:
        regions.hold(str(agent_id), incarnation)
    row = _PUT.one(agent_id, region_id, key, value, expected, False)
    if row is not None:
        return [row]
    region = regions.allowed(str(agent_id), str(region_id), "write", incarnation)
    if region["require_lock"]:
        _require_fence(region, fence)
        row = _PUT.one(agent_id, region_id, key, value, expected, True)
        if row is not None:
            return [row]
    return _decided(region, str(key), value, expected)


def _require_fence(region: dict[str, Any], fence: int | None) -> None:
    """The region's lock is the agent's alone, and stays so until this transaction ends."""
    # Here, because only regions that ask for a lock need it.
    from caliber import locks

    if fence is None:
        errors.fail(
            errors.INVALID,
            "fence must not be null in a region that requires a lock",
            detail=f"The region is {region['region_name']}, {region['region_id']}.",
            hint="Acquire the lock on resource type region and this id; caliber_lock_get shows its fence.",
        )
    locks.guard("region", region["region_id"], fence)
    if _HOLDER.one(region["region_id"], fence, region["agent_id"]) is None:
        errors.fail(
            errors.STALE,
            "the agent does not hold the lock on this region exclusively",
            detail=f"The agent is {region['name']}; the region is {region['region_name']}; fence {fence}.",
            hint="A writer holds an exclusive lock of its own.",
        )


def _decided(
    region: dict[str, Any], key: str, value: str | None, expected: int | None
) -> list[dict[str, Any]]:
    """A write that was not plain: the policy decides, on the locked row."""
    entry = LOCK.one(region["region_id"], key)
    if value is None and (entry is None or entry["value"] is None):
        return []
    if entry is None or (expected or 0) > entry["version"]:
        errors.fail(
            errors.INVALID,
            "expected_version is newer than the key's version",
            detail=f"expected_version is {expected}; the key's is {entry['version'] if entry else 0}.",
            hint="Pass the version that caliber_region_get showed, 0 for a new key.",
        )
    policy = region["conflict_resolution"]
    if expected == entry["version"]:
        return settle(region, key, value, "written")
    # Who patches without saying what it saw overrules nobody it knows of.
    patches = expected is None and policy == "merge" and region["region_type"] != "collaborative"
    seen = None if patches else expected or 0
    if policy == "last_write_wins":
        return settle(region, key, value, "written", seen, lost=entry["value"])
    if policy == "merge" and (value is not None or patches):
        merged = None
        if value is not None:
            # Here, because json costs a session 5 ms that no other policy needs.
            from caliber import regions_merge

            merged = regions_merge.merge(_base(region, key, seen), entry["value"], value)
        return settle(region, key, merged, "merged" if merged else "written", seen, lost=value)
    if policy == "reject":
        outcome, lost = "rejected", None
    else:
        # Manual, or a removal that another's change stands against.
        outcome, lost = "kept", value
    return settle(region, key, entry["value"], outcome, seen, lost)


def _base(region: dict[str, Any], key: str, seen: int | None) -> str | None:
    """What the writer had seen, where the region keeps it."""
    old = OLD.one(region["region_id"], key, seen) if seen else None
    return old["value"] if old else None


def settle(
    region: dict[str, Any],
    key: str,
    value: str | None,
    outcome: str,
    seen: int | None = None,
    lost: str | None = None,
) -> list[dict[str, Any]]:
    row = _SETTLE.one(
        region["agent_id"],
        region["region_id"],
        key,
        value,
        outcome in ("written", "merged"),
        seen,
        outcome,
        lost,
        "warning" if outcome == "kept" else "debug",
    )
    # What the writer gave, it knows.
    shown = None if outcome == "written" else value
    return [{**(row or {}), "current_value": shown}]
