"""Delegations: what a task leaves to its sub-tasks. Never more than it has itself."""

from __future__ import annotations

from typing import Any

from caliber import delegations_rules as rules
from caliber.delegations_settings import Settings
from caliber.delegations_tree import Row, Tree
from caliber.plans import plan

_EARLIER = plan(
    """
    select
        least($1, $2) as deadline,
        coalesce($1 > $2, false) as later,
        pg_catalog.date_part('epoch', $2 - pg_catalog.clock_timestamp()) as seconds
    """,
    "timestamptz",
    "timestamptz",
)


def opened(
    task: dict[str, Any], limits: dict[str, Any], parent_id: str, settings: Settings
) -> tuple[dict[str, Any], Tree]:
    """Where the sub-task stands, and its tree: locked, with room in its budgets, to be written once
    the task is. task and limits hold what it may have at most."""
    tree = Tree(parent_id)
    parent = tree.task(parent_id)
    delegator = task["delegator_agent_id"]
    if parent["delegatee_agent_id"] != delegator:
        rules.missing(parent_id)
    if parent["status"] not in ("accepted", "in_progress") or parent["lapsed"]:
        rules.wrong_state(parent, "passed on")
    depth = parent["depth"] + 1
    if depth > settings.max_depth:
        rules.too_deep(depth, settings.max_depth)
    if task["parent_trajectory_id"] is None:
        task["parent_trajectory_id"] = parent["child_trajectory_id"]
    _narrowed(task, limits, parent, settings)
    _reserved(limits, parent, tree)
    place = {
        "parent": parent_id,
        "root": parent["root_delegation_id"],
        "depth": depth,
        "chain": parent["chain"],
        "delegates": parent["delegates"],
    }
    return place, tree


def _narrowed(task: dict[str, Any], limits: dict[str, Any], parent: Row, settings: Settings) -> None:
    time = _EARLIER.one(task["deadline"], parent["expires_at"]) or {}
    if time["later"]:
        rules.wider("deadline", task["deadline"], parent["expires_at"])
    task["deadline"] = time["deadline"]
    for name in ("max_tokens", "max_tool_calls"):
        if limits[name] is None:
            limits[name] = min(getattr(settings, name), parent[name])
        elif limits[name] > parent[name]:
            rules.wider(name, limits[name], parent[name])
    held = parent["delegates"]
    if held is not None and "*" not in held:
        if task["delegates"] is None:
            task["delegates"] = held
        for kind in task["delegates"]:
            if kind not in held:
                rules.wider("delegates", kind, ", ".join(held))


def _reserved(limits: dict[str, Any], parent: Row, tree: Tree) -> None:
    """A sub-task of a task with a budget of tokens has one too: as many as it may use, if so many
    are left. Cost has no limit by default, so without one of its own it is spent from above."""
    left = tree.left(parent, "tokens")
    if limits["budget_tokens"] is None and left is not None:
        if left <= 0:
            rules.over_budget("tokens", 1, left, parent["budget_tokens"], parent["delegation_id"])
        limits["budget_tokens"] = limits["max_tokens"] = min(limits["max_tokens"], left)
    tree.adopt(parent, {"tokens": limits["budget_tokens"], "cost": limits["budget_cost"]})
