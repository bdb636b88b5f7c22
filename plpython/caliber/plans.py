"""Prepared statements: written at module level, prepared at first use, kept by the session."""

from __future__ import annotations

from typing import Any

import plpy

# The schema the extension lives in, quoted; _caliber_boot() puts it here before this runs.
SCHEMA: str = globals()["EXTENSION_SCHEMA"]


class Statement:
    __slots__ = ("_plan", "_text", "_types")

    def __init__(self, text: str, types: tuple[str, ...]) -> None:
        self._text = text
        self._types = types
        self._plan: plpy.Plan | None = None

    def rows(self, *arguments: Any) -> plpy.Result:
        plan = self._plan
        if plan is None:
            text = self._text.replace("@extschema@", SCHEMA)
            types = [t.replace("@extschema@", SCHEMA) for t in self._types]
            plan = self._plan = plpy.prepare(text, types)
        return plan.execute(arguments)

    def one(self, *arguments: Any) -> dict[str, Any] | None:
        found = self.rows(*arguments)
        return found[0] if found else None


def plan(text: str, *types: str) -> Statement:
    """A statement; types are those of $1, $2 and so on."""
    return Statement(text, types)
