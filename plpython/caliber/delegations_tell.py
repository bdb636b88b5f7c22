"""Delegations: what is told to whom. Each message is of the transaction that made the step."""

from __future__ import annotations

from typing import Any

from caliber import messages


def announced(task: dict[str, Any]) -> None:
    """To the delegatee, or to whoever of the type comes first: this is to be done."""
    urgent = task["priority"] in ("low", "normal") and task["deadline"] is not None
    named = task["delegatee_agent_type"] is None
    messages.notice(
        task["delegator_agent_id"],
        task["delegatee_agent_id"] if named else None,
        task["delegatee_agent_type"],
        "task_delegation",
        f'{{"delegation_id": "{task["delegation_id"]}", "attempt": {task["attempts"] + 1}}}',
        task["parent_trajectory_id"],
        "high" if urgent else task["priority"],
        task["title"],
        f"task:{task['delegation_id']}",
    )


def signalled(task: dict[str, Any], sender: str, recipient: str | None, event: str, priority: str) -> None:
    """Something happened to the task that the recipient did not do itself."""
    if recipient is None:
        return
    child = task["child_trajectory_id"]
    trajectory = "null" if child is None else f'"{child}"'
    messages.notice(
        sender,
        recipient,
        None,
        "coordination_signal",
        f'{{"event": "delegation_{event}", "delegation_id": "{task["delegation_id"]}",'
        f' "child_trajectory_id": {trajectory}}}',
        task["parent_trajectory_id"],
        priority,
        task["title"],
        f"task:{task['delegation_id']}",
    )


def resulted(task: dict[str, Any], sender: str, payload: str) -> None:
    """To the delegator: this came of it."""
    messages.notice(
        sender,
        task["delegator_agent_id"],
        None,
        "task_result",
        payload,
        task["parent_trajectory_id"],
        "high",
        task["title"],
        f"task:{task['delegation_id']}",
    )


def progressed(task: dict[str, Any], payload: str) -> None:
    messages.notice(
        task["delegatee_agent_id"],
        task["delegator_agent_id"],
        None,
        "task_progress",
        payload,
        task["parent_trajectory_id"],
        "low",
        task["title"],
        f"task:{task['delegation_id']}",
    )
