"""Timeline: refusing what cannot be shown. The contract is in sql/schema/timeline_marks.sql."""

from __future__ import annotations

from typing import NoReturn

from caliber import checks, memory_rules


def missing(trajectory_id: str | None) -> NoReturn:
    checks.required("trajectory_id", trajectory_id)
    memory_rules.missing("trajectory", trajectory_id)
