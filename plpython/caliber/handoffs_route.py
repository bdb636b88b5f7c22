"""Handoffs: whom to ask. The first one, the next after one did not take it, and who is above."""

from __future__ import annotations

from typing import Any

from caliber import errors, handoffs_rules, handoffs_store
from caliber.plans import plan

MAX_DEPTH = 3
MAX_REROUTES = 3

# Of the team, able to work and alive, the best match first and the least busy of these.
_CANDIDATES = plan(
    """
    select
        a.agent_id, a.name, a.capabilities, a.proficiency, a.autonomy_budget, a.max_risk,
        a.max_concurrent_tasks as max_tasks, busy.load
    from @extschema@.caliber_agents as a
    cross join lateral (
        select pg_catalog.count(*) as load
        from @extschema@.caliber_handoff as h
        where h.to_agent_id = a.agent_id and h.status in ('accepted', 'in_progress')
            and h.returned_at is null
    ) as busy
    where a.team_id = $1
        and a.status in ('initializing', 'idle', 'active', 'waiting', 'blocked')
        and a.liveness <> 'unavailable'
        and a.agent_id <> all($2)
        and ($3 is null or a.agent_type = $3)
    order by
        pg_catalog.cardinality(array(
            select c.name from pg_catalog.unnest(a.capabilities) as c (name) where c.name = any($4)
        )) desc,
        busy.load,
        a.name
    limit 100
    """,
    "uuid",
    "uuid[]",
    "text",
    "text[]",
)

_ABOVE = plan(
    """
    select s.agent_id, s.name, s.status
    from @extschema@.caliber_agent as a
    inner join @extschema@.caliber_agent as s on a.reports_to = s.agent_id
    where a.agent_id = $1
    """,
    "uuid",
)


def first(handoff: dict[str, Any], sender: dict[str, Any]) -> None:
    """Set who is asked: the agent or type given, who is above, or who has the capability."""
    from caliber import handoffs

    if handoff["to_agent_id"] is not None and handoff["to_agent_type"] is not None:
        errors.fail(
            errors.INVALID,
            "a handoff goes to one agent or to one type of agent",
            detail="Both are given.",
            hint="caliber_broadcast_handoff hands over to several.",
        )
    if handoff["handoff_type"] == "escalation" and handoff["escalation_depth"] > MAX_DEPTH:
        handoff.update(to_agent_id=None, to_agent_type=None, needs_human=True)
        handoff["status_reason"] = f"escalated {MAX_DEPTH} times already"
        return
    if handoff["to_agent_id"] is None and handoff["to_agent_type"] is None:
        _choose(handoff, sender)
    if handoff["to_agent_id"] is not None:
        if handoff["to_agent_id"] == sender["agent_id"]:
            errors.invalid("to_agent_id", handoff["to_agent_id"], "must be another agent")
        handoffs.visible_target(sender, handoff["to_agent_id"])
        _check(handoff)


def _choose(handoff: dict[str, Any], sender: dict[str, Any]) -> None:
    if handoff["handoff_type"] == "escalation":
        handoff["to_agent_id"] = above(sender["agent_id"], [sender["agent_id"]])
    elif handoff["required_capabilities"]:
        handoff["to_agent_id"] = candidate(handoff)
    else:
        errors.fail(
            errors.INVALID,
            "a handoff goes to one agent or to one type of agent",
            detail="Neither is given, and no capability to look for one by.",
        )
    if handoff["to_agent_id"] is None:
        handoff.update(needs_human=True, status_reason="no agent is there to be asked")


def _check(handoff: dict[str, Any]) -> None:
    """One that could not take it anyway is not asked; that is an outcome, not an error."""
    target = handoffs_store.agents(handoff["to_agent_id"])[handoff["to_agent_id"]]
    refusal, _ = handoffs_rules.judge(handoff, target, handoffs_store.load(handoff["to_agent_id"]))
    if refusal is not None:
        handoff["refusal"] = refusal


def candidate(handoff: dict[str, Any]) -> str | None:
    """Somebody that was not asked yet and could take it."""
    asked = [handoff["from_agent_id"], *handoff["tried_agent_ids"]]
    if handoff["to_agent_id"]:
        asked.append(handoff["to_agent_id"])
    rows = _CANDIDATES.rows(
        handoff["team_id"], asked, handoff["to_agent_type"], handoff["required_capabilities"]
    )
    for row in rows:
        if handoffs_rules.judge(handoff, row, row["load"])[0] is None:
            return str(row["agent_id"])
    return None


def above(agent_id: str, passed: list[str]) -> str | None:
    """Who the agent reports to, or the next above who is there; nobody twice."""
    current, seen = agent_id, set(passed)
    while (row := _ABOVE.one(current)) is not None and row["agent_id"] != agent_id:
        if row["agent_id"] not in seen and row["status"] not in ("terminated", "failed", "completed"):
            return str(row["agent_id"])
        if len(seen) > 100:
            return None
        current = row["agent_id"]
        seen.add(current + ":seen" if current in seen else current)
    return None


def elsewhere(handoff: dict[str, Any], agent_id: str | None = None) -> bool:
    """Ask another agent; False when three were asked already or nobody is left."""
    from caliber import handoffs

    if handoff["reroutes"] >= MAX_REROUTES:
        return False
    found = agent_id or candidate(handoff)
    if found is None:
        return False
    tried = handoff["tried_agent_ids"] + ([handoff["to_agent_id"]] if handoff["to_agent_id"] else [])
    changes = {
        "status": "initiated",
        "status_reason": None,
        "to_agent_id": found,
        "tried_agent_ids": tried,
        "reroutes": handoff["reroutes"] + 1,
        "attempts": 1,
        "needs_human": False,
    }
    handoffs_store.audit({**handoff, **changes}, "rerouted", handoff["status_reason"] or "rerouted")
    handoff.update(handoffs_store.save(handoff, changes, {"resolved_at": None}))
    handoffs.offer(handoff)
    return True
