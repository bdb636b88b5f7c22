"""Agents, the decisions that need no database: which step of status makes sense, what
memory_access may look like, and what a parent may pass on to a child."""

from __future__ import annotations

from typing import Any

from caliber import checks, errors

# From each status, the ones it may go to. Terminated is reached by caliber_agent_terminate
# and left by nothing. A failed agent has to become idle or start over before it works again.
STEPS: dict[str, frozenset[str]] = {
    "initializing": frozenset({"idle", "active", "failed"}),
    "idle": frozenset({"active", "waiting", "blocked", "completed", "failed"}),
    "active": frozenset({"idle", "waiting", "blocked", "completed", "failed"}),
    "waiting": frozenset({"idle", "active", "blocked", "completed", "failed"}),
    "blocked": frozenset({"idle", "active", "waiting", "completed", "failed"}),
    "completed": frozenset({"initializing", "idle", "active"}),
    "failed": frozenset({"initializing", "idle"}),
    "terminated": frozenset(),
}

# Statuses from which an agent can be put to work.
CAN_WORK = frozenset({"initializing", "idle", "active", "waiting", "blocked"})

RISKS = ("low", "medium", "high")
SCOPES = ("own", "team", "global")
ANY = "*"

OWN_MEMORY = {
    "read": [{"memory_type": ANY, "scope": "own"}],
    "write": [{"memory_type": ANY, "scope": "own"}],
}


def refuse_step(agent: dict[str, Any], status: str) -> None:
    """KA007 unless the agent may go from its status to this one."""
    if status not in STEPS[agent["status"]]:
        allowed = ", ".join(s for s in STEPS if s in STEPS[agent["status"]])
        errors.fail(
            errors.WRONG_STATE,
            f"an agent that is {agent['status']} cannot become {status}",
            detail=f"The agent is {agent['name']}, {agent['agent_id']}.",
            hint=f"From {agent['status']} it can become {allowed}.",
        )
    if status == "idle" and agent["current_trajectory_id"] is not None:
        errors.fail(
            errors.WRONG_STATE,
            "an agent that works on a trajectory cannot become idle",
            detail=f"{agent['name']} works on trajectory {agent['current_trajectory_id']}.",
            hint="caliber_agent_release takes it off its trajectory and makes it idle.",
        )


def memory_access(text: str | None) -> dict[str, list[dict[str, Any]]]:
    """The argument as stored: lists read and write of memory_type, scope and filter."""
    given = checks.json_object("memory_access", text)
    if unknown := set(given) - {"read", "write"}:
        errors.invalid("memory_access", sorted(unknown)[0], "must hold only read and write")
    return {side: _permissions(side, given.get(side, [])) for side in ("read", "write")}


def _permissions(side: str, given: object) -> list[dict[str, Any]]:
    argument = f"memory_access.{side}"
    if not isinstance(given, list) or len(given) > checks.MAX_LIST:
        errors.invalid(argument, given, f"must be a list of at most {checks.MAX_LIST} permissions")
    return [_permission(argument, permission) for permission in given]


def _permission(argument: str, given: object) -> dict[str, Any]:
    if not isinstance(given, dict) or set(given) - {"memory_type", "scope", "filter"}:
        errors.invalid(argument, given, "must hold objects of memory_type, scope and filter")
    memory_type, scope, kept = given.get("memory_type"), given.get("scope"), given.get("filter")
    if memory_type != ANY:
        if not isinstance(memory_type, str):
            errors.invalid(f"{argument}.memory_type", memory_type, "must be a name or *")
        checks.slug(f"{argument}.memory_type", memory_type)
    if scope not in SCOPES:
        errors.invalid(f"{argument}.scope", scope, f"must be one of {', '.join(SCOPES)}")
    if kept is not None and not isinstance(kept, dict):
        errors.invalid(f"{argument}.filter", kept, "must be a json object")
    permission = {"memory_type": memory_type, "scope": scope}
    return permission if kept is None else {**permission, "filter": kept}


def proficiency(text: str | None, capabilities: list[str]) -> None:
    """How well an agent does what it can do: a number from 0 to 1 for a capability it has."""
    given = checks.json_object("proficiency", text)
    for capability, level in given.items():
        if capability not in capabilities:
            errors.invalid("proficiency", capability, "must name capabilities the agent has")
        # A bool is an int to Python.
        if isinstance(level, bool) or not isinstance(level, int | float) or not 0 <= level <= 1:
            errors.invalid(f"proficiency.{capability}", level, "must be between 0 and 1")


def refuse_widening(parent: dict[str, Any], child: dict[str, Any]) -> None:
    """42501 when a child would get more than its parent has."""
    held, wanted = memory_access(parent["memory_access"]), memory_access(child["memory_access"])
    for side in ("read", "write"):
        for permission in wanted[side]:
            if not any(_covers(other, permission) for other in held[side]):
                _wider(f"memory_access.{side}", permission)
    if ANY not in parent["can_delegate_to"]:
        for agent_type in child["can_delegate_to"]:
            if agent_type not in parent["can_delegate_to"]:
                _wider("can_delegate_to", agent_type)
    limit = parent["autonomy_budget"]
    if limit is not None and child["autonomy_budget"] > limit:
        _wider("autonomy_budget", child["autonomy_budget"])
    limit = parent["max_concurrent_tasks"]
    if limit is not None and child["max_concurrent_tasks"] > limit:
        _wider("max_concurrent_tasks", child["max_concurrent_tasks"])
    if RISKS.index(child["max_risk"]) > RISKS.index(parent["max_risk"]):
        _wider("max_risk", child["max_risk"])


def _covers(held: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return (
        held["memory_type"] in (ANY, wanted["memory_type"])
        and SCOPES.index(held["scope"]) >= SCOPES.index(wanted["scope"])
        # By text: to Python true is 1 and 1 is 1.0. Keys of jsonb come in one order.
        and ("filter" not in held or repr(held["filter"]) == repr(wanted.get("filter")))
    )


def _wider(argument: str, value: object) -> None:
    errors.fail(
        errors.NOT_PERMITTED,
        f"a child may not have more {argument} than its parent",
        detail=f"{argument} is {errors.shown(value)}.",
        hint="Leave the argument out to inherit what the parent has.",
    )
