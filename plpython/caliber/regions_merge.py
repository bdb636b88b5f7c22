"""Regions, the policy merge: what a writer changed is laid over what stands.

Values are merged as json, with numbers kept as they were written: Python's would lose digits.
"""

from __future__ import annotations

import json
from typing import Any

from caliber import checks, errors


class _Number(str):
    __slots__ = ()


def merge(base: str | None, current: str | None, incoming: str) -> str:
    """Objects are merged key by key and level by level; of anything else the incoming wins.

    What the writer left as it was in base, the version it had seen, is not a change of its
    own, so another's change of it stays. Without a base all that is given counts as changed.
    Nothing is removed by leaving it out.
    """
    if current is None:
        return incoming
    merged = _text(_merged(None if base is None else _value(base), _value(current), _value(incoming)))
    if len(merged.encode()) > checks.MAX_PAYLOAD:
        errors.fail(
            errors.LIMIT_EXCEEDED,
            "the merged value is too large",
            detail=f"It would have {len(merged.encode())} bytes of {checks.MAX_PAYLOAD}.",
            hint="Read the key and write a smaller value with its version.",
        )
    return merged


def _merged(base: Any, current: Any, incoming: Any) -> Any:
    if not (isinstance(current, dict) and isinstance(incoming, dict)):
        return incoming
    seen = base if isinstance(base, dict) else {}
    result = dict(current)
    for key, value in incoming.items():
        if key in seen and _text(seen[key]) == _text(value):
            continue
        result[key] = _merged(seen.get(key), current[key], value) if key in current else value
    return result


def _value(text: str) -> Any:
    return json.loads(text, parse_int=_Number, parse_float=_Number)


def _text(value: Any) -> str:
    """As json; also how values are compared, since 1, true and "1" are alike to Python."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    return json.dumps(value)
