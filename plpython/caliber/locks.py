"""Locks: leases with fencing tokens. The contract is in sql/schema/locks.sql.

This is what is decided on one row. Several rows are in locks_take, waiting is in locks_wait.
"""

from __future__ import annotations

from typing import Any, NoReturn

import plpy

from caliber import callers, checks, epochs, errors, ids
from caliber.plans import plan

MAX_LEASE_MS = 24 * 60 * 60 * 1000
MAX_WAIT_MS = 30_000
MAX_ID = 1000
MAX_DEPTH = 100
MAX_REASON = 1000

# The lease is the caller's own and runs: it is extended. Judged by the time at which the
# statement began, on which a wait for the row can only be on the safe side.
_MINE = "r.holder_agent_id = excluded.holder_agent_id and r.expires_at > excluded.acquired_at"

# The agent, if the caller may take leases for it.
AGENT = """
    select a.agent_id
    from @extschema@.caliber_agent as a
    where a.agent_id = $1
        and a.terminated_at is null
        and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
        and (
            $6 is null
            or exists (
                select from @extschema@.caliber_agent_beat as b
                where b.agent_id = $1 and b.incarnation = $6
            )
        )
"""

# An exclusive lease of a resource that is no file. What is busy at first sight is not locked.
_TAKE = plan(
    f"""
    with agent as ({AGENT}),
    taken as (
        insert into @extschema@.caliber_resource as r (
            resource_type, resource_id, fence, lock_id, holder_agent_id, acquired_at, expires_at, reason
        )
        select
            $2, $3, {epochs.FLOOR} + 1, {ids.NEW}, a.agent_id,
            now.at, now.at + $4 * interval '1 ms', $5
        from agent as a
        cross join (select pg_catalog.clock_timestamp() as at) as now
        where not exists (
            select from @extschema@.caliber_resource as b
            where b.resource_type = $2
                and b.resource_id = $3
                and b.holder_agent_id <> $1
                and b.expires_at > now.at
        )
        on conflict (resource_type, resource_id) do update
        set
            fence = case when {_MINE} then r.fence else greatest(r.fence + 1, excluded.fence) end,
            lock_id = case when {_MINE} then r.lock_id else excluded.lock_id end,
            holder_agent_id = excluded.holder_agent_id,
            acquired_at = case when {_MINE} then r.acquired_at else pg_catalog.clock_timestamp() end,
            expires_at = case
                when {_MINE} and r.expires_at > excluded.expires_at then r.expires_at
                else pg_catalog.clock_timestamp() + $4 * interval '1 ms'
            end,
            reason = coalesce(excluded.reason, case when {_MINE} then r.reason end)
        where case
            when {_MINE} then true
            when r.shared or r.expires_at > excluded.acquired_at then false
            else pg_catalog.pg_try_advisory_xact_lock(@extschema@._caliber_lock_turn($2, $3))
        end
        returning r.lock_id
    )
    select
        exists (select from agent) as allowed,
        (select t.lock_id from taken as t) as lock_id,
        exists (
            select from @extschema@.caliber_resource as b
            where b.resource_type = $2 and b.resource_id = $3 and b.shared
        ) as shared
    """,
    "uuid",
    "text",
    "text",
    "int8",
    "text",
    "int8",
)

_AGENT = plan(
    """
    select
        a.agent_id, a.name, a.status, b.incarnation
    from @extschema@.caliber_agent as a
    inner join @extschema@.caliber_agent_beat as b on a.agent_id = b.agent_id
    where a.agent_id = $1
        and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
    """,
    "uuid",
)

# Told to listeners only when somebody waits, or left a mark.
_RELEASE = plan(
    """
    with freed as (
        update @extschema@.caliber_resource as r
        set lock_id = null, holder_agent_id = null, acquired_at = null, expires_at = null, reason = null
        from @extschema@.caliber_agent as a
        where r.lock_id = $1
            and r.expires_at > pg_catalog.clock_timestamp()
            and a.agent_id = r.holder_agent_id
            and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
        returning r.resource_type, r.resource_id, r.wanted_until
    ),
    left_alone as (
        delete from @extschema@.caliber_lock_shared as s
        using @extschema@.caliber_agent as a
        where s.lock_id = $1
            and s.expires_at > pg_catalog.clock_timestamp()
            and a.agent_id = s.holder_agent_id
            and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
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

# Whatever became of the agent; those that ran out are cleared away with the others. There may be
# any number, so who waits is looked up once: a lock for each would not fit into shared memory.
_RELEASE_ALL = plan(
    """
    with had as (
        select r.resource_type, r.resource_id, r.lock_id, r.expires_at, r.wanted_until
        from @extschema@.caliber_resource as r
        where r.holder_agent_id = $1 and r.lock_id is not null
        order by r.resource_type, r.resource_id
        for update
    ),
    freed as (
        update @extschema@.caliber_resource as r
        set lock_id = null, holder_agent_id = null, acquired_at = null, expires_at = null, reason = null
        from had as h
        where r.resource_type = h.resource_type and r.resource_id = h.resource_id
        returning h.lock_id, h.resource_type, h.resource_id, h.wanted_until, h.expires_at
    ),
    left_alone as (
        delete from @extschema@.caliber_lock_shared as s
        where s.holder_agent_id = $1
        returning s.lock_id, s.resource_type, s.resource_id, s.expires_at
    ),
    ended as (
        select f.lock_id, f.resource_type, f.resource_id, f.wanted_until, f.expires_at from freed as f
        union all
        select l.lock_id, l.resource_type, l.resource_id, r.wanted_until, l.expires_at
        from left_alone as l
        inner join @extschema@.caliber_resource as r
            on l.resource_type = r.resource_type and l.resource_id = r.resource_id
    )
    select
        pg_catalog.count(*) filter (where e.expires_at > pg_catalog.clock_timestamp()) as released,
        pg_catalog.count(
            pg_catalog.pg_notify(
                'caliber_lock', pg_catalog.json_build_object('lock_id', e.lock_id)::text
            )::text
        ) filter (
            where (
                e.wanted_until > pg_catalog.clock_timestamp()
                or @extschema@._caliber_lock_obstacle(e.lock_id) in (
                    select (p.classid::bigint << 32) | p.objid::bigint
                    from pg_catalog.pg_locks as p
                    where p.locktype = 'advisory' and p.objsubid = 1 and p.granted
                )
            )
            and pg_catalog.pg_notification_queue_usage() <= 0.25
        ) as told
    from ended as e
    """,
    "uuid",
)

_EXTEND = plan(
    """
    with longer as (
        update @extschema@.caliber_resource as r
        set expires_at = r.expires_at + $2 * interval '1 ms'
        from @extschema@.caliber_agent as a
        where r.lock_id = $1
            and r.expires_at > pg_catalog.clock_timestamp()
            and a.agent_id = r.holder_agent_id
            and a.terminated_at is null
            and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
        returning r.expires_at
    ),
    longer_shared as (
        update @extschema@.caliber_lock_shared as s
        set expires_at = s.expires_at + $2 * interval '1 ms'
        from @extschema@.caliber_agent as a
        where s.lock_id = $1
            and s.expires_at > pg_catalog.clock_timestamp()
            and a.agent_id = s.holder_agent_id
            and a.terminated_at is null
            and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
        returning s.expires_at
    )
    select
        l.expires_at,
        l.expires_at > pg_catalog.clock_timestamp() + $3 * interval '1 ms' as too_long
    from (select * from longer union all select * from longer_shared) as l
    """,
    "uuid",
    "int8",
    "int8",
)

# The key share lock conflicts with giving the lease to anybody else, not with extending it. The
# clock is looked at again once the row is locked: that may have taken a while.
_KEPT = """
    with kept as materialized (
        select l.expires_at
        from @extschema@.{leases} as l
        inner join @extschema@.caliber_agent as a on l.holder_agent_id = a.agent_id
        where l.resource_type = $1
            and l.resource_id = $2
            and l.fence = $3
            and l.expires_at > pg_catalog.clock_timestamp()
            and a.terminated_at is null
            and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
        for key share of l
    )
    select k.expires_at from kept as k where k.expires_at > pg_catalog.clock_timestamp()
"""
_GUARD = plan(_KEPT.format(leases="caliber_resource"), "text", "text", "int8")
_GUARD_SHARED = plan(_KEPT.format(leases="caliber_lock_shared"), "text", "text", "int8")

_LEASE = plan(
    """
    select
        l.lock_id, l.expires_at, a.name as holder, a.agent_id,
        @extschema@._caliber_actor() as actor,
        coalesce(a.login_role = @extschema@._caliber_actor(), false)
        or @extschema@._caliber_is_admin() as may_act
    from @extschema@.caliber_lock as l
    inner join @extschema@.caliber_agent as a on l.holder_agent_id = a.agent_id
    where l.lock_id = $1
    """,
    "uuid",
)

_FENCE = plan(
    """
    select
        r.fence,
        exists (
            select from @extschema@.caliber_lock as l
            inner join @extschema@.caliber_agent as a on l.holder_agent_id = a.agent_id
            where l.resource_type = $1
                and l.resource_id = $2
                and l.fence = $3
                and a.login_role is distinct from @extschema@._caliber_actor()
                and not @extschema@._caliber_is_admin()
        ) as others,
        @extschema@._caliber_actor() as actor
    from @extschema@.caliber_resource as r
    where r.resource_type = $1 and r.resource_id = $2
    """,
    "text",
    "text",
    "int8",
)


def acquire(
    agent_id: str | None,
    resource_type: str | None,
    resource_id: str | None,
    mode: str | None,
    timeout_ms: int | None,
    wait_ms: int | None,
    reason: str | None,
    incarnation: int | None,
) -> str | None:
    checks.required("agent_id", agent_id)
    checks.required("mode", mode)
    _lease_ms("timeout_ms", timeout_ms)
    _wait_ms(wait_ms)
    reason = checks.label("reason", reason, MAX_REASON)
    kind = checks.slug("resource_type", resource_type)
    name = _resource_id(kind, resource_id)
    if mode == "exclusive" and kind != "file":
        row = _take(agent_id, kind, name, timeout_ms, reason, incarnation)
        if not row["allowed"]:
            refuse_agent(agent_id, incarnation)
        if row["lock_id"] is not None:
            return str(row["lock_id"])
        if not row["shared"] and not wait_ms:
            return None
    leases = _several(agent_id, kind, [name], mode, timeout_ms, wait_ms, reason, incarnation)
    return str(leases[0]["lock_id"]) if leases else None


def _take(
    agent_id: str | None,
    kind: str,
    name: str,
    timeout_ms: int | None,
    reason: str | None,
    incarnation: int | None,
) -> dict[str, Any]:
    try:
        return _TAKE.one(agent_id, kind, name, timeout_ms, reason, incarnation) or {}
    except plpy.SPIError as error:
        if error.sqlstate != errors.LOCK_TIMEOUT:
            raise
        # A transaction that goes on has the row: as good as taken.
        _allowed(agent_id, incarnation)
        return {"allowed": True, "lock_id": None, "shared": False}


def acquire_many(
    agent_id: str | None,
    resource_type: str | None,
    resource_ids: list[str | None] | None,
    mode: str | None,
    timeout_ms: int | None,
    wait_ms: int | None,
    reason: str | None,
    incarnation: int | None,
) -> list[dict[str, Any]]:
    checks.required("agent_id", agent_id)
    checks.required("mode", mode)
    _lease_ms("timeout_ms", timeout_ms)
    _wait_ms(wait_ms)
    reason = checks.label("reason", reason, MAX_REASON)
    kind = checks.slug("resource_type", resource_type)
    if not resource_ids or len(resource_ids) > checks.MAX_LIST:
        errors.invalid("resource_ids", resource_ids, f"must hold 1 to {checks.MAX_LIST} ids")
    names = _outermost(kind, {_resource_id(kind, name) for name in resource_ids})
    return _several(agent_id, kind, names, mode, timeout_ms, wait_ms, reason, incarnation)


def _several(
    agent_id: Any,
    kind: str,
    names: list[str],
    mode: Any,
    timeout_ms: Any,
    wait_ms: Any,
    reason: str | None,
    incarnation: int | None,
) -> list[dict[str, Any]]:
    from caliber import locks_take

    wants = locks_take.Wants(agent_id, kind, names, mode, timeout_ms, reason, incarnation)
    return locks_take.take(wants, wait_ms) or []


def release(lock_id: str | None) -> bool:
    checks.required("lock_id", lock_id)
    if _RELEASE.one(lock_id) is not None:
        return True
    lease = _LEASE.one(lock_id)
    if lease is not None and not lease["may_act"]:
        callers.not_yours(lease["agent_id"], lease["actor"])
    return False


def release_all(agent_id: str | None) -> int:
    checks.required("agent_id", agent_id)
    agent = _AGENT.one(agent_id)
    if agent is None:
        callers.refuse_agent(str(agent_id))
    return give_back(str(agent_id))


def give_back(agent_id: str) -> int:
    """All leases of an agent; the caller has been found to be entitled to that."""
    row = _RELEASE_ALL.one(agent_id) or {}
    return int(row["released"])


def extend(lock_id: str | None, additional_ms: int | None) -> str:
    checks.required("lock_id", lock_id)
    _lease_ms("additional_ms", additional_ms)
    row = _EXTEND.one(lock_id, additional_ms, MAX_LEASE_MS)
    if row is None:
        lease = _LEASE.one(lock_id)
        if lease is not None and not lease["may_act"]:
            callers.not_yours(lease["agent_id"], lease["actor"])
        errors.fail(
            errors.STALE,
            "the lease is gone",
            detail=f"There is no lease {lock_id} that runs.",
            hint="Stop writing; acquire it again and begin from what is there then.",
        )
    if row["too_long"]:
        errors.invalid("additional_ms", additional_ms, f"must not leave the lease over {MAX_LEASE_MS} ms")
    expires_at: str = row["expires_at"]
    return expires_at


def guard(resource_type: str | None, resource_id: str | None, fence: int | None) -> str:
    checks.required("resource_type", resource_type)
    checks.required("resource_id", resource_id)
    checks.required("fence", fence)
    shown = (resource_type, resource_id, fence)
    row = _GUARD.one(*shown) or _GUARD_SHARED.one(*shown)
    if row is None:
        _refuse_fence(resource_type, resource_id, fence)
    expires_at: str = row["expires_at"]
    return expires_at


def _refuse_fence(resource_type: str | None, resource_id: str | None, fence: int | None) -> NoReturn:
    known = _FENCE.one(resource_type, resource_id, fence)
    if known is not None and known["others"]:
        errors.fail(
            errors.NOT_PERMITTED,
            "the lease is another agent's",
            detail=f"You are {known['actor']}; fence {fence} of {resource_type} {resource_id} is not yours.",
            hint="An agent guards with its own lease; a member of caliber_admin may act for any.",
        )
    latest = "none" if known is None else known["fence"]
    errors.fail(
        errors.STALE,
        "the lease is gone",
        detail=f"You show fence {fence} of {resource_type} {errors.shown(resource_id)}; it is at {latest}.",
        hint="Roll back, acquire the lock again and begin from what is there then.",
    )


def _lease_ms(argument: str, value: int | None) -> None:
    checks.required(argument, value)
    checks.between(argument, value, 1, MAX_LEASE_MS)


def _wait_ms(value: int | None) -> None:
    checks.required("wait_ms", value)
    checks.between("wait_ms", value, 0, MAX_WAIT_MS)


def _resource_id(kind: str, value: str | None) -> str:
    if not value or len(value) > MAX_ID:
        errors.invalid("resource_id", value, f"must be 1 to {MAX_ID} characters")
    if kind == "file":
        parts = value.removeprefix("/").removesuffix("/").split("/")
        # Two names of one file would be two locks.
        if value != "/" and ({"", ".", ".."} & set(parts)):
            errors.invalid("resource_id", value, "must be a path without empty, . or .. parts")
        if len(parts) > MAX_DEPTH:
            errors.invalid("resource_id", value, f"must have at most {MAX_DEPTH} parts")
    return value


def _outermost(kind: str, names: set[str]) -> list[str]:
    """Sorted, and without what a directory in the list covers anyhow."""
    kept: list[str] = []
    for name in sorted(names):
        if not (kind == "file" and kept and kept[-1].endswith("/") and name.startswith(kept[-1])):
            kept.append(name)
    return kept


def _allowed(agent_id: str | None, incarnation: int | None) -> None:
    agent = _AGENT.one(agent_id)
    if agent is None:
        callers.refuse_agent(str(agent_id))
    callers.refuse_ended(agent, incarnation)


def refuse_agent(agent_id: str | None, incarnation: int | None) -> NoReturn:
    """Says why. Should what stood in the way be gone by now, the call is due again."""
    _allowed(agent_id, incarnation)
    errors.fail("40001", "the agent changed while it acquired a lock", hint="Acquire it again.")
