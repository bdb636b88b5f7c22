"""Handoffs, the decisions that need no database: who can take one, and what arguments may be."""

from __future__ import annotations

from typing import Any

from caliber import checks, errors
from caliber.agents_rules import RISKS

MAX_TEXT = 10_000
MAX_STEP = 1000
MAX_ITEMS = 100
MAX_TIME_MS = 30 * 24 * 60 * 60 * 1000
INCLUDES = ("system_messages", "tool_calls", "tool_results", "agent_reasoning")

# How much of what was said goes along, unless the sender says otherwise.
HISTORY = {
    "sequential": "relevant_only",
    "delegation": "summary",
    "broadcast": "summary",
    "escalation": "full",
}
MOVES = ("sequential", "escalation")


# What an agent has to do: trajectories that are its own, those within another of its own not counted
# again. Tasks and handoffs it has taken are among them; those that ran out are not work any more.
LOAD = """
    select pg_catalog.count(*)
    from @extschema@.caliber_trajectory as w
    where w.agent_id = {agent}
        and w.status = 'active'
        and not exists (
            select from @extschema@.caliber_trajectory as p
            where p.trajectory_id = w.parent_trajectory_id
                and p.agent_id = w.agent_id
                and p.status = 'active'
        )
        and not exists (
            select from @extschema@.caliber_delegation as d
            where d.child_trajectory_id = w.trajectory_id
                and d.ended_at is null
                and d.expires_at <= pg_catalog.clock_timestamp()
        )
        and not exists (
            select from @extschema@.caliber_handoff as r
            where r.received_trajectory_id = w.trajectory_id
                and r.status in ('accepted', 'in_progress')
                and r.returned_at is null
                and r.lapses_at <= pg_catalog.clock_timestamp()
        )
"""


def judge(handoff: dict[str, Any], agent: dict[str, Any], load: int) -> tuple[str | None, list[str]]:
    """Why the agent cannot take it, or None, and what is to be warned of."""
    if load >= agent["max_tasks"]:
        return f"at_capacity: {load} of {agent['max_tasks']} tasks", []
    if autonomy := _autonomy(handoff, agent):
        return autonomy, []
    required: list[str] = handoff["required_capabilities"]
    gaps = _gaps(handoff, agent)
    if required and len(gaps) == len(required):
        return "capability: " + ", ".join(gaps), []
    return None, ["missing capability: " + gap for gap in gaps]


def _autonomy(handoff: dict[str, Any], agent: dict[str, Any]) -> str | None:
    if RISKS.index(handoff["risk_level"]) > RISKS.index(agent["max_risk"]):
        return f"autonomy: risk {handoff['risk_level']} is above {agent['max_risk']}"
    wanted, limit = handoff["autonomy_budget"], agent["autonomy_budget"]
    if wanted is not None and limit is not None and float(wanted) > float(limit):
        return f"autonomy: budget {wanted} is above {limit}"
    return None


def _gaps(handoff: dict[str, Any], agent: dict[str, Any]) -> list[str]:
    """What is required and not there; a proficiency nobody stated does not meet a minimum."""
    import json

    known: dict[str, Any] = json.loads(agent["proficiency"])
    least: dict[str, Any] = handoff["min_proficiency"]
    gaps = []
    for name in handoff["required_capabilities"]:
        if name not in agent["capabilities"]:
            gaps.append(name)
        elif name in least and float(known.get(name, 0)) < float(least[name]):
            gaps.append(f"{name} at {least[name]}")
    return gaps


def texts(argument: str, values: list[str | None] | None) -> list[str]:
    given = values or []
    if len(given) > MAX_ITEMS:
        errors.invalid(argument, f"{len(given)} items", f"must hold at most {MAX_ITEMS} items")
    for value in given:
        if not checks.label(argument, value, MAX_STEP):
            errors.invalid(argument, value, "must not hold a null or empty one")
    return [str(value) for value in given]


def ids(argument: str, values: list[str | None] | None) -> list[str]:
    given = values or []
    if len(given) > MAX_ITEMS:
        errors.invalid(argument, f"{len(given)} ids", f"must hold at most {MAX_ITEMS} ids")
    if None in given:
        errors.invalid(argument, None, "must not hold null")
    return list(dict.fromkeys(str(value) for value in given))


def proficiency(text: str | None, required: list[str]) -> dict[str, Any]:
    given = checks.json_object("min_proficiency", text)
    for name, least in given.items():
        if name not in required:
            errors.invalid("min_proficiency", name, "must name required capabilities")
        if isinstance(least, bool) or not isinstance(least, int | float) or not 0 <= least <= 1:
            errors.invalid("min_proficiency", least, "must be between 0 and 1")
    return given


def include(text: str | None) -> dict[str, Any]:
    given = checks.json_object("history_include", text)
    for name, wanted in given.items():
        if name not in INCLUDES or not isinstance(wanted, bool):
            errors.invalid("history_include", name, f"must hold booleans: {', '.join(INCLUDES)}")
    return {name: given.get(name, True) for name in INCLUDES}


def milliseconds(argument: str, value: int | None) -> None:
    checks.between(argument, value, 1, MAX_TIME_MS)
