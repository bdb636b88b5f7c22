"""Delegations: what an argument may be, and why a step is refused."""

from __future__ import annotations

from typing import Any, NoReturn

import plpy

from caliber import callers, checks, errors, memory_rules

MAX_TITLE = 200
MAX_SHARED = 100
MAX_TEXT = 10_000
MAX_SUMMARY = 65_536
MAX_ERROR = 2_000
MAX_TOKENS = 1_000_000_000
MAX_TOOL_CALLS = 1_000_000
MAX_SECONDS = 30 * 24 * 60 * 60
MAX_RETRIES = 100
MAX_COST = 10**12

# Statuses in which an agent takes no work.
AWAY = ("completed", "failed", "terminated")


def title(given: str | None, description: str) -> str:
    """As given, or the first line of what is to be done."""
    if given is not None and len(given) > MAX_TITLE:
        errors.invalid("title", given, f"must be at most {MAX_TITLE} characters")
    if given:
        return given
    line = description.strip().partition("\n")[0] or description
    return line if len(line) <= MAX_TITLE else line[: MAX_TITLE - 1] + "…"


def description(value: str | None) -> str:
    if not value or not value.strip():
        errors.invalid("task_description", value, "must not be null or empty")
    return bounded("task_description", value)


def bounded(argument: str, value: str) -> str:
    if len(value) * 4 > checks.MAX_PAYLOAD and len(value.encode()) > checks.MAX_PAYLOAD:
        errors.invalid(argument, value, f"must be at most {checks.MAX_PAYLOAD} bytes")
    return value


def ids(argument: str, given: list[str | None] | None) -> list[str | None] | None:
    """A list of ids, none for an empty one."""
    if not given:
        return None
    if len(given) > MAX_SHARED:
        errors.invalid(argument, f"{len(given)} ids", f"must hold at most {MAX_SHARED} ids")
    if None in given:
        errors.invalid(argument, None, "must not hold null")
    return list(dict.fromkeys(given))


def words(argument: str, given: list[str | None] | None) -> list[str | None] | None:
    """A list of paths, addresses or the like."""
    if not given:
        return None
    if len(given) > MAX_SHARED:
        errors.invalid(argument, f"{len(given)} entries", f"must hold at most {MAX_SHARED} entries")
    for word in given:
        if not checks.label(argument, word, 1000):
            errors.invalid(argument, word, "must not hold null or empty ones")
    return given


def usage(tokens: int | None, tool_calls: int | None, cost: Any) -> None:
    checks.between("tokens", tokens, 0, MAX_TOKENS)
    checks.between("tool_calls", tool_calls, 0, MAX_TOOL_CALLS)
    checks.between("cost", cost, 0, MAX_COST)


def missing(delegation_id: object) -> NoReturn:
    """Also for what the caller may not see."""
    memory_rules.missing("delegation", delegation_id)


def not_yours(task: dict[str, Any], side: str) -> NoReturn:
    """Somebody who sees the task, but is neither who has it nor who gave it, as the step needs."""
    actor = callers.who()["actor"]
    plpy.log(f"caliber: role {actor} was refused task {task['delegation_id']} of agent {task[side]}")
    errors.fail(
        errors.NOT_PERMITTED,
        "the task is not the agent's " + ("to work on" if side == "delegatee_agent_id" else "to decide on"),
        detail=f"Task {task['delegation_id']} has the {side.removesuffix('_agent_id')} "
        f"{errors.shown(task[side])}; you are {actor}.",
        hint="Its delegatee works on a task; its delegator cancels it or has it tried again.",
    )


def wrong_state(task: dict[str, Any], action: str, used: tuple[Any, ...] = ()) -> NoReturn:
    """used: agent, tokens, tool calls and cost that were reported with it. The error undoes their
    counting as well, so it says which call, by itself, counts them."""
    status = "timed_out" if task["lapsed"] and task["ended_at"] is None else task["status"]
    if any(used[1:]) and status != "completed":
        hint = f"What was used is not counted yet; this counts it: {_late_report(task, *used)}"
    elif status == "timed_out":
        hint = "Its time ran out; it is tried again by who takes it next."
    elif task["ended_at"] is not None:
        hint = "It has ended; caliber_retry_delegation opens it again, for its delegator."
    else:
        hint = "caliber_accept_delegation takes a pending task; then it can be worked on."
    errors.fail(
        errors.WRONG_STATE,
        f"a task that is {status} cannot be {action}",
        detail=f"The task is {errors.shown(task['title'])}, {task['delegation_id']}.",
        hint=hint,
    )


def _late_report(
    task: dict[str, Any], agent_id: str | None, tokens: int | None, tool_calls: int | None, cost: Any
) -> str:
    given = {"tokens": tokens, "tool_calls": tool_calls, "cost": cost}
    named = "".join(f", {name} => {value}" for name, value in given.items() if value)
    whose = "" if agent_id is None else f", agent_id => '{agent_id}'"
    return f"select * from caliber_progress_delegation('{task['delegation_id']}'{named}{whose})"


def children_open(task: dict[str, Any]) -> NoReturn:
    errors.fail(
        errors.WRONG_STATE,
        "the task has open sub-tasks",
        detail=f"{task['open_children']} of task {task['delegation_id']} have not ended.",
        hint="Wait for them with caliber_delegation_wait, or end them with caliber_cancel_delegation.",
    )


def over_budget(what: str, wanted: object, left: object, of: object, task_id: object) -> NoReturn:
    errors.fail(
        errors.BUDGET_EXHAUSTED,
        f"the budget of {what} does not suffice",
        detail=f"{wanted} are wanted, {left} are left of {of} in task {task_id}.",
        hint="Complete the task as partial, fail it, or ask its delegator for another.",
    )


def wider(argument: str, value: object, limit: object) -> NoReturn:
    errors.fail(
        errors.NOT_PERMITTED,
        f"a sub-task may not have more {argument} than its parent",
        detail=f"{argument} is {errors.shown(value)}; the parent has {errors.shown(limit)}.",
        hint="Leave the argument out to inherit what the parent has.",
    )


def other_task(key: object, delegation_id: object) -> NoReturn:
    errors.fail(
        errors.DUPLICATE,
        "the idempotency key belongs to another task",
        detail=f"Key {errors.shown(key)} was used for task {delegation_id}.",
        hint="Use a key for one task only, and the same key only to repeat it.",
    )


def cycle(agent_id: object, why: str) -> NoReturn:
    errors.fail(
        errors.CYCLE,
        why,
        detail=f"The agent is {agent_id}.",
        hint="Give the task to an agent that is not above it.",
    )


def too_deep(depth: int, limit: int) -> NoReturn:
    errors.fail(
        errors.TOO_DEEP,
        "tasks may not be delegated this deep",
        detail=f"This one would be at depth {depth}; the limit is {limit}.",
        hint="Do it yourself, or return it; the setting delegation_max_depth says how deep.",
    )


def unavailable(message: str, detail: str) -> NoReturn:
    errors.fail(
        errors.UNAVAILABLE,
        message,
        detail=detail,
        hint="caliber_agent_list() shows the agents there are, and caliber_agents whether they are alive.",
    )


def lacks(name: str, capabilities: set[str]) -> NoReturn:
    unavailable("the agent lacks a capability", f"{name} lacks {', '.join(sorted(capabilities))}.")


def changed() -> NoReturn:
    errors.fail("40001", "what the task depends on changed meanwhile", hint="Try it again.")
