"""Tokens: how many a text has when its writer does not say.

The built-in estimate is one token for four bytes of UTF-8, rounded up. The setting token_estimator
names a function that counts better. The count is stored with what it was made for, so what is
already written keeps it.

A count that no tokenizer comes to, fewer than one for 64 bytes, is refused: a budget of tokens is all
that bounds the size of a context.
"""

from __future__ import annotations

from typing import Any

import plpy

from caliber import checks, errors
from caliber.plans import Statement, plan

BYTES_PER_TOKEN = 4
MAX_BYTES_PER_TOKEN = 64
MAX_TOKENS = 10_000_000

_SETTING = plan("select @extschema@._caliber_config_value('token_estimator') as name")

# Whoever could name just any function would have it run as the owner of all tables, so it has
# to be a superuser's, who could do that anyway. Looked at each time: functions change hands.
_FUNCTION = plan(
    """
    select p.oid::pg_catalog.regproc::text as name
    from pg_catalog.pg_proc as p
    inner join pg_catalog.pg_roles as r on p.proowner = r.oid
    where p.oid = pg_catalog.to_regprocedure($1 || '(text)')
        and p.prorettype = 'pg_catalog.int4'::pg_catalog.regtype
        and p.prokind = 'f'
        and not p.proretset
        and r.rolsuper
    """,
    "text",
)

_calls: dict[str, Statement] = {}


def counted(content: str, given: int | None) -> int:
    """The caller's count where there is one, else the estimate."""
    size = len(content.encode())
    least = size // MAX_BYTES_PER_TOKEN
    if given is not None:
        checks.between("tokens", given, least, MAX_TOKENS)
        return given
    name = (_SETTING.one() or {})["name"]
    return -(-size // BYTES_PER_TOKEN) if name is None else _called(name, content, least)


def estimator(key: str, value: str) -> str:
    """The function that a setting names, as it is stored."""
    try:
        found = _FUNCTION.one(value)
    except plpy.SPIError:  # no name at all
        found = None
    if found is None:
        errors.invalid(
            key, value, "must name, with its schema, a superuser's function of (text) that returns integer"
        )
    return str(found["name"])


def _called(name: str, content: str, least: int) -> int:
    function = estimator("token_estimator", name)
    call = _calls.get(function)
    if call is None:
        call = _calls[function] = plan(f"select {function}($1) as tokens", "text")
    row: dict[str, Any] = call.one(content) or {}
    if row["tokens"] is None:
        errors.invalid("token_estimator", name, "must not return null")
    checks.between("token_estimator", row["tokens"], least, MAX_TOKENS)
    return int(row["tokens"])
