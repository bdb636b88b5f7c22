"""Maintenance: the steps of caliber_tick. The contract is in sql/schema/maintenance.sql."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import plpy

from caliber import (
    audit,
    callers,
    checks,
    context,
    delegations_lapse,
    errors,
    events,
    handoffs_expire,
    maintenance_leases,
    maintenance_marks,
    maintenance_reap,
    messages_tidy,
    state,
    tokens,
)
from caliber.plans import plan

MAX_ROWS = 10_000

# Somebody else is at it, or has what is wanted; the next call will find it free.
BUSY = (errors.LOCK_TIMEOUT, errors.DEADLOCK, "40001")
_CANCELLED = "57014"


def _messages(most: int) -> int:
    return sum(messages_tidy.tidy(most)[0].values())


def _contexts(most: int) -> int:
    return context.purge(min(most, context.MAX_PURGE))


def _tasks(most: int) -> int:
    return delegations_lapse.expire(min(most, delegations_lapse.MAX_EXPIRE))


def _dead_agents(most: int) -> int:
    return len(maintenance_reap.reap_when_wanted(min(most, maintenance_reap.MAX_AGENTS)))


def _handoffs(most: int) -> int:
    gone = maintenance_reap.find_when_wanted(min(most, maintenance_reap.MAX_AGENTS))
    return handoffs_expire.settle_due(min(most, handoffs_expire.MAX_BATCH), gone)


# Everything caliber_tick does, a line a step: what it reports, and what does at most so many rows
# of it and returns how many. What must see a transaction that has written nothing comes first;
# what locks rows that agents wait for comes last, since locks are kept until the end.
STEPS: tuple[tuple[str, Callable[[int], int]], ...] = (
    ("queue marks raised", maintenance_marks.raise_marks),
    ("old events deleted", events.purge),
    ("old contexts deleted", _contexts),
    ("old versions of state deleted", state.purge),
    ("old audit records deleted", audit.purge),
    ("messages given up or deleted", _messages),
    ("leases that ran out cleared", maintenance_leases.clear),
    ("turns that ran out passed on", tokens.sweep),
    ("tasks that ran out ended", _tasks),
    ("handoffs that were due settled", _handoffs),
    ("agents reaped", _dead_agents),
)

_LOG = plan(
    """
    select @extschema@._caliber_log(
        'tick_step_failed', 'system', 'error', 'a step of caliber_tick failed: ' || $1,
        details => pg_catalog.jsonb_build_object('step', $1, 'problem', $2)
    )
    """,
    "text",
    "text",
)


def tick(max_rows: int | None) -> list[dict[str, Any]]:
    callers.require_admin("tidy up")
    checks.required("max_rows", max_rows)
    checks.between("max_rows", max_rows, 1, MAX_ROWS)
    return [_run(step, work, int(max_rows or 0)) for step, work in STEPS]


def _run(step: str, work: Callable[[int], int], most: int) -> dict[str, Any]:
    """One step, alone: what it did is undone when it fails, and the others go on."""
    try:
        with plpy.subtransaction():
            return {"step": step, "done": work(most), "problem": None}
    except (plpy.Error, plpy.SPIError) as error:
        if error.sqlstate == _CANCELLED:
            raise
        if error.sqlstate in BUSY:
            return {"step": step, "done": 0, "problem": "busy, left to the next call"}
        problem = f"{error.sqlstate}: {error}"
        _LOG.rows(step, problem[:500])
        return {"step": step, "done": 0, "problem": problem}
