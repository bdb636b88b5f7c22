"""Every error caliber raises from Python, with its SQLSTATE.

Class KA is ours, for what a client branches on; elsewhere a standard code is used.
"""

from __future__ import annotations

from typing import NoReturn

import plpy

INVALID = "22023"
NOT_PERMITTED = "42501"
NOT_FOUND = "P0002"
DUPLICATE = "23505"
LIMIT_EXCEEDED = "54000"
DEADLOCK = "40P01"
LOCK_TIMEOUT = "55P03"
BUSY = "40001"
STALE = "KA001"
TOO_DEEP = "KA002"
CYCLE = "KA003"
UNAVAILABLE = "KA004"
BUDGET_EXHAUSTED = "KA005"
AT_CAPACITY = "KA006"
WRONG_STATE = "KA007"
DISABLED = "KA008"

_SHOWN = 80


class CaliberError(plpy.Error):
    """PL/Python puts the class's name before the message; see below for which."""


# psql then shows «ERROR:  caliber: agent … is terminated».
CaliberError.__module__ = "builtins"
CaliberError.__name__ = "caliber"


def fail(sqlstate: str, message: str, detail: str | None = None, hint: str | None = None) -> NoReturn:
    error = CaliberError(message)
    error.sqlstate = sqlstate
    error.detail = detail
    error.hint = hint
    raise error


def invalid(argument: str, value: object, rule: str) -> NoReturn:
    """The argument's value breaks its rule: «must be …» or «must not be …»."""
    fail(
        INVALID,
        f"{argument} {rule}",
        detail=f"{argument} is {shown(value)}.",
    )


def not_found(kind: str, key: object) -> NoReturn:
    fail(
        NOT_FOUND,
        f"there is no such {kind}",
        detail=f"{kind} {shown(key)} does not exist.",
        hint=f"caliber_{kind}_list() shows those that do.",
    )


def admins_only(action: str, actor: str) -> NoReturn:
    fail(
        NOT_PERMITTED,
        f"only an admin may {action}",
        detail=f"You are {actor}.",
        hint="Call as a member of caliber_admin.",
    )


def shown(value: object) -> str:
    """A value as an error tells it: short, whatever was passed."""
    if value is None:
        return "null"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"
