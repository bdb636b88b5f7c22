"""Checks of arguments, shared by all verbs. Each raises 22023 or returns what it accepted.

json and re are imported where they are used: they cost a session's first call 5 ms, and most
calls need neither.
"""

from __future__ import annotations

from typing import Any

from caliber import errors

MAX_NAME = 63
MAX_LABEL = 200
MAX_LIST = 100
MAX_PAYLOAD = 256 * 1024
MAX_DEPTH = 64

_ENDS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_SLUG = _ENDS | frozenset("_.-")


def required(argument: str, value: Any) -> None:
    if value is None:
        errors.invalid(argument, value, "must not be null")


def slug(argument: str, value: str | None) -> str:
    """A name people type: of a team, an agent, an agent's type, a capability."""
    if (
        not isinstance(value, str)
        or not value
        or len(value) > MAX_NAME
        or not _SLUG.issuperset(value)
        or not _ENDS.issuperset(value[0] + value[-1])
    ):
        errors.invalid(
            argument,
            value,
            f"must be 1 to {MAX_NAME} of a-z, 0-9, dot, dash or underscore, "
            "with a letter or digit at both ends",
        )
    return value


def slugs(argument: str, values: list[str | None] | None, wildcard: str | None = None) -> list[str]:
    """A set of names, or the wildcard; twice the same is once, order is kept."""
    given = values or []
    if len(given) > MAX_LIST:
        errors.invalid(argument, f"{len(given)} names", f"must hold at most {MAX_LIST} names")
    return list(dict.fromkeys(v if v and v == wildcard else slug(argument, v) for v in given))


def label(argument: str, value: str | None, longest: int = MAX_LABEL) -> str | None:
    """Free text of bounded length; an empty one is as good as none."""
    if value is not None and len(value) > longest:
        errors.invalid(argument, value, f"must be at most {longest} characters")
    return value or None


def between(argument: str, value: Any, lowest: float, highest: float) -> None:
    """A number in a closed range; null passes, for arguments that may be left out."""
    # NaN is the one value that is not itself; a comparison with it would raise or pass.
    if value is not None and (value != value or not lowest <= value <= highest):
        errors.invalid(argument, value, f"must be between {lowest} and {highest}")


def json_object(argument: str, text: str | None) -> dict[str, Any]:
    """A jsonb argument, which arrives as text, that must be an object of bounded size."""
    if text is None:
        errors.invalid(argument, None, "must be a json object")
    if len(text.encode()) > MAX_PAYLOAD:
        errors.invalid(argument, text, f"must be at most {MAX_PAYLOAD} bytes of json")
    shallow(argument, text)
    import json

    try:
        value = json.loads(text)
    except ValueError:  # the json is well formed, but Python bounds the digits of a number
        errors.invalid(argument, text, "must not hold numbers of thousands of digits")
    if not isinstance(value, dict):
        errors.invalid(argument, text, "must be a json object")
    return value


def json_text(argument: str, text: str) -> str:
    """Any json of bounded size and depth, left as text: it goes on to the database as it is."""
    if len(text) * 4 > MAX_PAYLOAD and len(text.encode()) > MAX_PAYLOAD:
        errors.invalid(argument, text, f"must be at most {MAX_PAYLOAD} bytes of json")
    # What opens few brackets cannot nest deeply; most need no closer look.
    if text.count("{") + text.count("[") > MAX_DEPTH:
        shallow(argument, text)
    return text


def shallow(argument: str, text: str) -> None:
    """Counted on the text: a parser that recurses must not see what is too deep for it."""
    import re

    depth = 0
    in_string = False
    for token in re.finditer(r'\\.|["{}\[\]]', text):
        found = token[0]
        if found == '"':
            in_string = not in_string
        elif not in_string and found in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                errors.invalid(argument, text, f"must not nest deeper than {MAX_DEPTH} levels")
        elif not in_string and found in "}]":
            depth -= 1
