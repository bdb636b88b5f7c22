"""Logins: a database role for one agent. What runs as whom is in sql/functions/logins.sql."""

from __future__ import annotations

import plpy

from caliber import callers, checks, errors
from caliber.plans import plan

GROUP = "caliber_agent"
NAMEDATALEN = 64
DEPENDENT_OBJECTS = "2BP01"
KEY_LENGTH = 44  # 32 bytes in base64
BASE64 = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")

_MAP = plan("select @extschema@._caliber_login_map($1, $2) as login", "uuid", "text")

_WRITE = plan(
    """
    with mapped as (
        update @extschema@.caliber_agent as a
        set login_role = $2
        where a.agent_id = $1
        returning a.agent_id, a.team_id, a.name
    )
    select @extschema@._caliber_log(
        case when $2 is null then 'agent_login_dropped' else 'agent_login_created' end,
        'agent', 'info',
        m.name || case when $2 is null then ' has no login' else ' logs in as ' || $2 end,
        m.agent_id, m.team_id
    )
    from mapped as m
    """,
    "uuid",
    "name",
)

_LOGIN = plan("select a.login_role from @extschema@.caliber_agent as a where a.agent_id = $1", "uuid")

_ROLE = plan(
    """
    select
        r.rolsuper or r.rolcreaterole or r.rolcreatedb or r.rolreplication or r.rolbypassrls as powerful,
        pg_catalog.pg_has_role(r.oid, 'caliber_admin', 'member')
        or pg_catalog.pg_has_role(r.oid, 'caliber_owner', 'member') as is_admin,
        pg_catalog.pg_has_role(r.oid, 'caliber_agent', 'member') as is_agent
    from pg_catalog.pg_roles as r
    where r.rolname = $1
    """,
    "name",
)

_MAY_MAKE_ROLES = plan(
    "select 1 from pg_catalog.pg_roles as r"
    " where r.rolname = current_user and (r.rolcreaterole or r.rolsuper)"
)


def create(agent_id: str | None, verifier: str | None, login: str | None) -> str:
    callers.require_admin("make logins")
    checks.required("agent_id", agent_id)
    if verifier is not None:
        _check_verifier(verifier)
    role = login if login is not None else f"caliber_agent_{str(agent_id).replace('-', '')}"
    if not 0 < len(role.encode()) < NAMEDATALEN:
        errors.invalid("login", login, f"must be 1 to {NAMEDATALEN - 1} bytes")
    _require_createrole()
    password = "null" if verifier is None else plpy.quote_literal(verifier)
    name = plpy.quote_ident(role)
    plpy.execute(f"create role {name} login password {password}")
    plpy.execute(f"grant {GROUP} to {name}")
    _MAP.rows(agent_id, role)
    return role


def drop(agent_id: str | None) -> str | None:
    callers.require_admin("drop logins")
    checks.required("agent_id", agent_id)
    _require_createrole()
    row = _MAP.one(agent_id, None) or {}
    role: str | None = row["login"]
    # Somebody may have dropped it by hand.
    if role is not None and _ROLE.one(role):
        _drop_role(role)
    return role


def _drop_role(role: str) -> None:
    """Any login can come to own something, if only default privileges. That must not keep it in."""
    name = plpy.quote_ident(role)
    try:
        with plpy.subtransaction():
            plpy.execute(f"drop role {name}")
    except plpy.SPIError as error:
        if error.sqlstate != DEPENDENT_OBJECTS:
            raise
        plpy.execute(f"revoke {GROUP} from {name}")
        plpy.execute(f"alter role {name} nologin password null")
        plpy.warning(
            f"caliber: role {role} owns something and stays, without login and rights",
            hint=f"Run DROP OWNED BY {name} in each database, then DROP ROLE {name}.",
        )


def map_role(agent_id: str | None, login: str | None) -> str | None:
    callers.require_admin("map logins")
    agent = callers.found(agent_id)
    before = _LOGIN.one(agent_id) or {}
    previous: str | None = before["login_role"]
    if login is not None:
        callers.refuse_ended(agent, None)
        _refuse_second(agent["name"], previous)
        _refuse_role(login)
    if login != previous:
        _WRITE.rows(agent_id, login)
    return previous


def _refuse_second(agent: str, login: str | None) -> None:
    if login is not None:
        errors.fail(
            errors.WRONG_STATE,
            "the agent has a login",
            detail=f"{agent} logs in as {login}.",
            hint="caliber_agent_login_drop takes it away.",
        )


def _refuse_role(login: str) -> None:
    """A role that could do more than an agent may must not be taken for one."""
    role = _ROLE.one(login)
    if role is None or role["powerful"] or role["is_admin"] or not role["is_agent"] or login == GROUP:
        errors.fail(
            errors.NOT_PERMITTED,
            "this role cannot be an agent",
            detail=f"login is {errors.shown(login)}.",
            hint=f"It must be in {GROUP}, in neither caliber_admin nor caliber_owner, and may only log in.",
        )


def _check_verifier(verifier: str) -> None:
    """SCRAM-SHA-256$<rounds>:<salt>$<stored key>:<server key>. The value is never shown."""
    method, _, rest = verifier.partition("$")
    salted, _, keys = rest.partition("$")
    rounds, _, salt = salted.partition(":")
    stored, _, server = keys.partition(":")
    parts = (salt, stored, server)
    if (
        method != "SCRAM-SHA-256"
        or not (rounds.isascii() and rounds.isdigit() and len(rounds) <= 9)
        or not all(part and BASE64.issuperset(part) for part in parts)
        or len(stored) != KEY_LENGTH
        or len(server) != KEY_LENGTH
    ):
        errors.fail(
            errors.INVALID,
            "verifier must be a SCRAM-SHA-256 verifier, not a password",
            hint="psql's \\password or libpq's PQencryptPasswordConn makes one on the client.",
        )


def _require_createrole() -> None:
    if _MAY_MAKE_ROLES.one() is None:
        errors.fail(
            errors.NOT_PERMITTED,
            "making and dropping logins needs CREATEROLE",
            hint="Call as a member of caliber_admin that has the attribute CREATEROLE.",
        )
