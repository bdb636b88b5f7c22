"""Prepared statements: written at module level, prepared at first use, kept by the session.

Names get their meaning when a statement is prepared. So it is then that nobody else may have put
one beside ours, or be able to; sql/functions/guard.sql says more.
"""

from __future__ import annotations

from typing import Any

import plpy

# The schema the extension lives in, quoted; _caliber_boot() puts it here before this runs.
SCHEMA: str = globals()["EXTENSION_SCHEMA"]

_suspicion: plpy.Plan | None = None


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
            _refuse_intrusion()
            plan = self._plan = plpy.prepare(text, types)
        return plan.execute(arguments)

    def one(self, *arguments: Any) -> dict[str, Any] | None:
        found = self.rows(*arguments)
        return found[0] if found else None


# Cheap, and rarely true: somebody but the owner may create here, or a function is not ours.
_SUSPICION = """
    select 1 as suspicious
    from pg_catalog.pg_namespace as n
    cross join lateral pg_catalog.aclexplode(n.nspacl) as a
    where n.oid = $1::pg_catalog.regnamespace and a.privilege_type = 'CREATE' and a.grantee <> n.nspowner
    union all
    select 1
    from pg_catalog.pg_proc as p
    where p.pronamespace = $1::pg_catalog.regnamespace
        and (
            (p.proname >= '_caliber_' and p.proname < '_caliber`')
            or (p.proname >= 'caliber_' and p.proname < 'caliber`')
        )
        and p.proowner <> 'caliber_owner'::pg_catalog.regrole
"""


def _refuse_intrusion() -> None:
    global _suspicion
    if _suspicion is None:
        _suspicion = plpy.prepare(_SUSPICION, ["text"])
    if not _suspicion.execute([SCHEMA], 1):
        return
    # One argument, of exactly this type: no other function can fit the call better.
    place = f"{plpy.quote_literal(SCHEMA)}::pg_catalog.regnamespace"
    for found in plpy.execute(f"select i.what, i.remedy from {SCHEMA}._caliber_intrusions({place}) as i", 1):
        from caliber import errors

        errors.fail(
            errors.NOT_PERMITTED,
            f"nothing is done while {found['what']}",
            detail="A function beside the extension's own could run with the rights of its owner.",
            hint=f"Run {found['remedy']}.",
        )


def plan(text: str, *types: str) -> Statement:
    """A statement; types are those of $1, $2 and so on."""
    return Statement(text, types)


def places(first: int, **given: bool) -> dict[str, str]:
    """The arguments that are given, and which $n each of them is; what is not given has none."""
    names = [name for name, is_given in given.items() if is_given]
    return {name: f"${number}" for number, name in enumerate(names, first)}
