"""Shared state: compare and set, delete, retention. The contract is in sql/schema/state.sql.

A write is one statement: it locks the key's row, decides on it and appends the version. Only when
that wrote nothing do further statements find out why.
"""

from __future__ import annotations

from typing import Any, NoReturn

import plpy

from caliber import acting, callers, checks, errors
from caliber.plans import Statement, plan

MAX_NAMESPACE = 200
MAX_KEY = 500
MAX_TTL_MS = 10 * 366 * 24 * 60 * 60 * 1000
MAX_PURGE = 100_000
DEFAULT_TEAM = "default"

# Each loss in between means that another session has written the key.
_TRIES = 10

# $1 namespace, $2 key, $3 agent, $4 team's name, $5 expected version; the rest is each verb's own.
_KEY_TYPES = ("text", "text", "uuid", "text", "int8")
_SET_TYPES = ("jsonb", "@extschema@.caliber_state_type", "int8", "bool")

_LIVE = "k.live_until > pg_catalog.clock_timestamp()"

# Who writes, as the team whose state it is: an agent, or an admin that acts for none.
_BY_AGENT = """
    select a.team_id
    from @extschema@.caliber_agent as a
    where a.agent_id = $3
        and a.terminated_at is null
        and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
"""
_BY_ADMIN = """
    select t.team_id
    from @extschema@.caliber_team as t
    where t.name = $4 and @extschema@._caliber_is_admin()
"""

# An owner's key is its own; one that everybody writes cannot be taken from them by a write.
_AGENT_MAY = f"""
    and (not {_LIVE} or k.owner_agent_id = $3 or (k.owner_agent_id is null and $9 is not true))
"""

# A loser sees another version in its snapshot already, or finds it when the winner has ended.
_UPDATE = f"""
    update @extschema@.caliber_state_key as k
    set
        version = k.version + 1,
        value_type = coalesce($7, case when $5 > 0 or {_LIVE} then k.value_type end, 'json'),
        live_until = coalesce(pg_catalog.clock_timestamp() + $8 * interval '1 ms', 'infinity'),
        owner_agent_id = case
            when $9 then $3
            when $9 is null and ($5 > 0 or {_LIVE}) then k.owner_agent_id
        end,
        changed_at = greatest(k.changed_at, pg_catalog.clock_timestamp())
    where k.team_id = (%(team)s)
        and k.namespace = $1
        and k.key = $2
        and ($5 is null or case when {_LIVE} then k.version else 0 end = $5)
        and @extschema@._caliber_state_fits(
            coalesce($7, case when {_LIVE} then k.value_type end, 'json'), $6
        )
        %(may)s
    returning k.*
"""

_INSERT = """
    insert into @extschema@.caliber_state_key as k (
        team_id, namespace, key, version, value_type, live_until, owner_agent_id, changed_at
    )
    select
        w.team_id, $1, $2, 1, coalesce($7, 'json'),
        coalesce(pg_catalog.clock_timestamp() + $8 * interval '1 ms', 'infinity'),
        case when $9 then $3 end,
        pg_catalog.clock_timestamp()
    from (%(team)s) as w
    where coalesce($5, 0) = 0 and @extschema@._caliber_state_fits(coalesce($7, 'json'), $6)
    on conflict (team_id, namespace, key) do nothing
    returning k.*
"""

_DELETE = f"""
    update @extschema@.caliber_state_key as k
    set
        version = k.version + 1,
        live_until = '-infinity',
        owner_agent_id = null,
        changed_at = greatest(k.changed_at, pg_catalog.clock_timestamp())
    where k.team_id = (%(team)s)
        and k.namespace = $1
        and k.key = $2
        and {_LIVE}
        and ($5 is null or k.version = $5)
        %(may)s
    returning k.*
"""

_APPEND = """
    with changed as (%(change)s)
    insert into @extschema@.caliber_state_version as v (
        team_id, namespace, key, version, value, value_type, owner_agent_id, expires_at,
        changed_at, changed_by, actor
    )
    select
        c.team_id, c.namespace, c.key, c.version, %(value)s, c.value_type, c.owner_agent_id,
        case when pg_catalog.isfinite(c.live_until) then c.live_until end,
        c.changed_at, $3, @extschema@._caliber_actor()
    from changed as c
    returning
        v.version,
        @extschema@._caliber_state_notify(v.team_id, v.namespace, v.key, v.version) as notified
"""


def _write(change: str, value: str, types: tuple[str, ...], team: str, may: str = "") -> Statement:
    return plan(_APPEND % {"change": change % {"team": team, "may": may}, "value": value}, *types)


_ALL_TYPES = _KEY_TYPES + _SET_TYPES
_DELETE_MAY = "and (k.owner_agent_id is null or k.owner_agent_id = $3)"

_UPDATE_AS_AGENT = _write(_UPDATE, "$6", _ALL_TYPES, _BY_AGENT, _AGENT_MAY)
_UPDATE_AS_ADMIN = _write(_UPDATE, "$6", _ALL_TYPES, _BY_ADMIN)
_INSERT_AS_AGENT = _write(_INSERT, "$6", _ALL_TYPES, _BY_AGENT)
_INSERT_AS_ADMIN = _write(_INSERT, "$6", _ALL_TYPES, _BY_ADMIN)
_DELETE_AS_AGENT = _write(_DELETE, "null", _KEY_TYPES, _BY_AGENT, _DELETE_MAY)
_DELETE_AS_ADMIN = _write(_DELETE, "null", _KEY_TYPES, _BY_ADMIN)

_LOOK = plan(
    f"""
    select
        k.version, k.owner_agent_id, k.value_type, {_LIVE} as live,
        @extschema@._caliber_state_fits(coalesce($5, k.value_type), $4) as fits
    from @extschema@.caliber_state_key as k
    where k.team_id = $1 and k.namespace = $2 and k.key = $3
    """,
    "uuid",
    "text",
    "text",
    "jsonb",
    "@extschema@.caliber_state_type",
)

_FITS = plan(
    "select @extschema@._caliber_state_fits($1, $2) as fits", "@extschema@.caliber_state_type", "jsonb"
)

_TEAM = plan("select t.team_id from @extschema@.caliber_team as t where t.name = $1", "text")

_PURGE = plan(
    """
    with old as (
        select v.team_id, v.namespace, v.key, v.version
        from @extschema@.caliber_state_version as v
        inner join @extschema@.caliber_state_key as k
            on v.team_id = k.team_id and v.namespace = k.namespace and v.key = k.key
        where v.version < k.version
            -- A time that stays the same during the statement can be looked up by index.
            and v.changed_at < pg_catalog.statement_timestamp() - pg_catalog.make_interval(
                days => @extschema@._caliber_config_value('state_retention_days')::integer
            )
        -- The oldest first, so that what is left of a key has no gap.
        order by v.changed_at, v.version
        limit $1
        for update of v skip locked
    ),
    gone as (
        delete from @extschema@.caliber_state_version as v
        using old
        where v.team_id = old.team_id and v.namespace = old.namespace and v.key = old.key
            and v.version = old.version
        returning v.version
    )
    select pg_catalog.count(*) as deleted from gone
    """,
    "int4",
)


def _changed_meanwhile(namespace: str | None, key: str | None) -> NoReturn:
    errors.fail(
        "40001",
        "the key kept changing while it was written",
        detail=f"Key {errors.shown(key)} of namespace {errors.shown(namespace)}.",
        hint="Try again.",
    )


def set_value(
    namespace: str | None,
    key: str | None,
    value: str | None,
    expected_version: int | None,
    agent_id: str | None,
    value_type: str | None,
    ttl_ms: int | None,
    exclusive: bool | None,
    team: str | None,
    incarnation: int | None,
) -> int | None:
    _check_key(namespace, key, expected_version)
    _check_value(value)
    if ttl_ms is not None:
        checks.between("ttl_ms", ttl_ms, 1, MAX_TTL_MS)
    agent_id, team = _writer(agent_id, team, incarnation)
    if exclusive and agent_id is None:
        errors.invalid(
            "exclusive", exclusive, "must not be true where no agent writes that could own the key"
        )
    update, insert = (
        (_UPDATE_AS_AGENT, _INSERT_AS_AGENT) if agent_id else (_UPDATE_AS_ADMIN, _INSERT_AS_ADMIN)
    )
    given = (namespace, key, agent_id, team, expected_version, value, value_type, ttl_ms, exclusive)
    for _ in range(_TRIES):
        row = _attempt(update, given) if expected_version else update.one(*given)
        if row is None and not expected_version:
            row = insert.one(*given)
        if row is not None:
            return int(row["version"])
        found = _look(given)
        if found is None or not found["live"]:
            _check_type(value_type or "json", value)
            lost = bool(expected_version)
        else:
            _check_owner(found, agent_id, exclusive)
            lost = expected_version not in (None, found["version"])
            if not lost and not found["fits"]:
                _misfit(value_type or found["value_type"], value)
        if lost:
            return None
    _changed_meanwhile(namespace, key)


def delete(
    namespace: str | None,
    key: str | None,
    expected_version: int | None,
    agent_id: str | None,
    team: str | None,
    incarnation: int | None,
) -> int | None:
    _check_key(namespace, key, expected_version)
    agent_id, team = _writer(agent_id, team, incarnation)
    statement = _DELETE_AS_AGENT if agent_id else _DELETE_AS_ADMIN
    given = (namespace, key, agent_id, team, expected_version)
    for _ in range(_TRIES):
        row = _attempt(statement, given)
        if row is not None:
            return int(row["version"])
        found = _look((*given, None, None))
        if found is None or not found["live"]:
            return None
        _check_owner(found, agent_id, None)
        if expected_version not in (None, found["version"]):
            return None
    _changed_meanwhile(namespace, key)


def purge(max_versions: int | None) -> int:
    callers.require_admin("delete versions of the shared state")
    checks.required("max_versions", max_versions)
    checks.between("max_versions", max_versions, 1, MAX_PURGE)
    row = _PURGE.one(max_versions)
    return int(row["deleted"]) if row else 0


class _LostError(Exception):
    """Rolls back what an attempt has locked."""


def _attempt(statement: Statement, given: tuple[Any, ...]) -> dict[str, Any] | None:
    """A loser that had to wait has the row locked: it gives it back now, not when its commit
    is on disk, or those behind it would wait for one commit after the other."""
    try:
        with plpy.subtransaction():
            row = statement.one(*given)
            if row is None:
                raise _LostError
            return row
    except _LostError:
        return None


def _check_key(namespace: str | None, key: str | None, expected_version: int | None) -> None:
    if not namespace or len(namespace) > MAX_NAMESPACE:
        errors.invalid("namespace", namespace, f"must be 1 to {MAX_NAMESPACE} characters")
    if not key or len(key) > MAX_KEY:
        errors.invalid("key", key, f"must be 1 to {MAX_KEY} characters")
    if expected_version is not None and expected_version < 0:
        errors.invalid("expected_version", expected_version, "must not be negative; 0 expects no value")


def _check_value(value: str | None) -> None:
    if value is None:
        errors.fail(
            errors.INVALID,
            "value must not be null",
            hint="caliber_state_delete deletes a key; the json null is 'null'.",
        )
    # A character is at most 4 bytes: most values need no counting.
    if len(value) > checks.MAX_PAYLOAD // 4 and len(value.encode()) > checks.MAX_PAYLOAD:
        errors.invalid("value", value, f"must be at most {checks.MAX_PAYLOAD} bytes of json")


def _writer(agent_id: str | None, team: str | None, incarnation: int | None) -> tuple[str | None, str | None]:
    """The agent that writes and no team, or no agent and the team an admin writes for."""
    if agent_id is None:
        agent_id = acting.own_agent_or_admin("write state without acting for an agent")
    if agent_id is None:
        if incarnation is not None:
            errors.invalid("incarnation", incarnation, "must not be given without agent_id")
        return None, team or DEFAULT_TEAM
    if team is not None:
        errors.invalid("team", team, "must be left out for an agent, which writes its own team's state")
    if incarnation is not None:
        acting.agent(agent_id, incarnation)
    return agent_id, None


def _look(given: tuple[Any, ...]) -> dict[str, Any] | None:
    """The key as it is now, for a caller that may write it or is told why not."""
    namespace, key, agent_id, team, _, value, value_type, *_ = given
    if agent_id:
        team_id = acting.agent(agent_id, None)["team_id"]
    else:
        row = _TEAM.one(team)
        if row is None:
            errors.not_found("team", team)
        team_id = row["team_id"]
    return _LOOK.one(team_id, namespace, key, value, value_type)


def _check_owner(found: dict[str, Any], agent_id: str | None, exclusive: bool | None) -> None:
    if agent_id is None or found["owner_agent_id"] == agent_id:
        return
    if found["owner_agent_id"]:
        errors.fail(
            errors.NOT_PERMITTED,
            "the key belongs to another agent",
            detail=f"Its owner is agent {found['owner_agent_id']}.",
            hint="The owner can share it with exclusive => false, or delete it.",
        )
    if exclusive:
        errors.fail(
            errors.WRONG_STATE,
            "the key is shared, a write cannot make it your own",
            detail=f"It is at version {found['version']}.",
            hint="Delete it first, then set it with exclusive => true and expected_version => 0.",
        )


def _check_type(value_type: str, value: Any) -> None:
    row = _FITS.one(value_type, value) or {}
    if not row["fits"]:
        _misfit(value_type, value)


def _misfit(value_type: str, value: Any) -> NoReturn:
    errors.fail(
        errors.INVALID,
        f"value does not fit the type {value_type} of the key",
        detail=f"value is {errors.shown(value)}.",
        hint="Pass value_type to give the key another type.",
    )
