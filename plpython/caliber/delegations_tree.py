"""Delegations: a tree under its lock, and its budgets. The contract is in sql/schema/delegations.sql.

Rows are locked from the root down, so what is read of them stays true until the transaction ends.
Budgets are reckoned here on those rows, and written back once.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from caliber import delegations_rules as rules
from caliber.plans import plan

Row: TypeAlias = "dict[str, Any]"
KINDS = ("tokens", "cost")

# The root is known without a lock: it never changes.
_ROOT = plan(
    """
    select r.delegation_id
    from @extschema@.caliber_delegation as r
    where r.delegation_id = (
            select d.root_delegation_id from @extschema@.caliber_delegation as d where d.delegation_id = $1
        )
    for no key update
    """,
    "uuid",
)

# A plan that is made while there are few tasks is kept when there are many. The offsets here, and the
# lock in a part of its own further down, keep what is looked up one by one from being joined.
_ABOVE = plan(
    """
    with recursive above as (
        select d.delegation_id, d.parent_delegation_id
        from @extschema@.caliber_delegation as d
        where d.delegation_id = $1
        union all
        select o.delegation_id, o.parent_delegation_id
        from above as a
        cross join lateral (
            select d.delegation_id, d.parent_delegation_id
            from @extschema@.caliber_delegation as d
            where d.delegation_id = a.parent_delegation_id
            offset 0
        ) as o
    )
    select a.delegation_id from above as a
    """,
    "uuid",
)

# A task that has ended has no open ones below it.
_BELOW = plan(
    """
    with recursive below as (
        select d.delegation_id
        from @extschema@.caliber_delegation as d
        where d.parent_delegation_id = $1 and d.ended_at is null
        union all
        select o.delegation_id
        from below as b
        cross join lateral (
            select d.delegation_id
            from @extschema@.caliber_delegation as d
            where d.parent_delegation_id = b.delegation_id and d.ended_at is null
            offset 0
        ) as o
    )
    select b.delegation_id from below as b
    """,
    "uuid",
)

# In the order given, from the top down.
_LOCK = plan(
    """
    select t.*
    from pg_catalog.unnest($1) as w (delegation_id)
    cross join lateral (
        select
            d.delegation_id, d.parent_delegation_id, d.root_delegation_id, d.team_id,
            d.delegator_agent_id, d.delegatee_agent_id, d.delegatee_agent_type, d.chain, d.depth,
            d.status, d.priority, d.title, d.delegates, d.rejected_by, d.parent_trajectory_id,
            d.child_trajectory_id, d.deadline, d.expires_at, d.timeout_seconds, d.max_tokens,
            d.max_tool_calls, d.max_retries, d.attempts, d.tokens_used, d.tool_calls_used, d.cost_used,
            d.budget_tokens, d.budget_cost, d.tokens_reserved, d.cost_reserved, d.tokens_below,
            d.cost_below, d.open_children, d.ended_at, d.error, d.result_status, d.summary,
            d.produced_artifacts, d.produced_notes, d.result_artifacts,
            d.status in ('accepted', 'in_progress') as accepted,
            coalesce(d.expires_at <= pg_catalog.clock_timestamp(), false) as lapsed,
            coalesce(d.deadline <= pg_catalog.clock_timestamp(), false) as too_late
        from @extschema@.caliber_delegation as d
        where d.delegation_id = w.delegation_id
        for no key update
    ) as t
    """,
    "uuid[]",
)

_WRITE = plan(
    """
    update @extschema@.caliber_delegation as d
    set
        tokens_reserved = $2,
        cost_reserved = $3,
        tokens_below = $4,
        cost_below = $5,
        open_children = $6
    where d.delegation_id = $1
    """,
    "uuid",
    "int8",
    "numeric",
    "int8",
    "numeric",
    "int4",
)

_COLUMNS = ("tokens_reserved", "cost_reserved", "tokens_below", "cost_below", "open_children")


class Tree:
    """A task and all above it, locked; those below it when asked for."""

    __slots__ = ("_changed", "_rows")

    def __init__(self, delegation_id: str) -> None:
        self._rows: dict[str, Row] = {}
        self._changed: set[str] = set()
        if not _ROOT.rows(delegation_id):
            rules.missing(delegation_id)
        self._lock([row["delegation_id"] for row in _ABOVE.rows(delegation_id)][::-1])

    def _lock(self, wanted: list[str]) -> list[Row]:
        locked = [dict(row) for row in _LOCK.rows([i for i in wanted if i not in self._rows])]
        for row in locked:
            self._rows[row["delegation_id"]] = row
        return locked

    def task(self, delegation_id: str) -> Row:
        return self._rows[delegation_id]

    def open_below(self, delegation_id: str) -> list[Row]:
        """The open sub-tasks, those of sub-tasks before them."""
        below = self._lock([row["delegation_id"] for row in _BELOW.rows(delegation_id)])
        return [row for row in reversed(below) if row["ended_at"] is None]

    def _above(self, task: Row) -> list[Row]:
        path = []
        while task["parent_delegation_id"] is not None:
            task = self._rows[task["parent_delegation_id"]]
            path.append(task)
        return path

    def adopt(self, parent: Row, amounts: dict[str, Any]) -> None:
        """A new sub-task, and what it reserves."""
        self._count(parent, 1)
        for kind in KINDS:
            if amounts[kind] is not None:
                self._move([parent, *self._above(parent)], kind, amounts[kind], 0)

    def leave(self, task: Row) -> None:
        """The task ends: its reservation is given back, and what was used of it is counted above. What
        came late may be more than was reserved; that keeps nothing from ending."""
        above = self._above(task)
        if above:
            self._count(above[0], -1)
        for kind in KINDS:
            if task[f"budget_{kind}"] is not None:
                self._move(above, kind, -task[f"budget_{kind}"], _spent(task, kind), check=False)

    def come_back(self, task: Row) -> None:
        """What leave() did, undone, if there is still room for it."""
        above = self._above(task)
        if above:
            self._count(above[0], 1)
        for kind in KINDS:
            if task[f"budget_{kind}"] is not None:
                self._move(above, kind, task[f"budget_{kind}"], -_spent(task, kind))

    def spend(self, task: Row, kind: str, amount: Any, late: bool) -> None:
        """Counts it in the task and, up to the first budget, above; raises when that is exhausted.
        What was used too late is used, so it is counted in any case."""
        if not amount:
            return
        task[f"{kind}_used"] += amount
        if not _budgeted(task, kind):
            self._move(self._above(task), kind, 0, amount, check=not late)
        elif not late:
            _refuse_over(task, kind, amount)

    def _move(self, above: list[Row], kind: str, reserved: Any, below: Any, check: bool = True) -> None:
        for row in above:
            row[f"{kind}_reserved"] += reserved
            row[f"{kind}_below"] += below
            self._changed.add(row["delegation_id"])
            if _budgeted(row, kind):
                if check and reserved + below > 0:
                    _refuse_over(row, kind, reserved + below)
                return

    def _count(self, parent: Row, by: int) -> None:
        parent["open_children"] += by
        self._changed.add(parent["delegation_id"])

    def left(self, task: Row, kind: str) -> Any:
        """What the nearest budget at or above the task still has; none when there is none."""
        for row in (task, *self._above(task)):
            if _budgeted(row, kind):
                return row[f"budget_{kind}"] - _spent(row, kind) - row[f"{kind}_reserved"]
        return None

    def write(self) -> None:
        for delegation_id in sorted(self._changed):
            row = self._rows[delegation_id]
            _WRITE.rows(delegation_id, *(row[column] for column in _COLUMNS))
        self._changed.clear()


def _budgeted(row: Row, kind: str) -> bool:
    """Whether spending stops here. What has ended has settled with those above, so that goes on there."""
    return row["ended_at"] is None and row[f"budget_{kind}"] is not None


def _spent(row: Row, kind: str) -> Any:
    return row[f"{kind}_used"] + row[f"{kind}_below"]


def _refuse_over(row: Row, kind: str, wanted: Any) -> None:
    left = row[f"budget_{kind}"] - _spent(row, kind) - row[f"{kind}_reserved"]
    if left < 0:
        rules.over_budget(kind, wanted, left + wanted, row[f"budget_{kind}"], row["delegation_id"])
