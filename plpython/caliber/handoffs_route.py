"""Handoffs: whom to ask. The first one, the next after one did not take it, and who is above."""

from __future__ import annotations

from typing import Any

from caliber import checks, errors, handoffs_rules, handoffs_store, memory_rules, messages_rules
from caliber.plans import plan

MAX_DEPTH = 3
MAX_REROUTES = 3
REROUTED_FROM = ("initiated", "deferred", "rejected", "timed_out")

# Of the team, able to work and alive, the best match first and the least busy of these.
_CANDIDATES = plan(
    f"""
    select
        a.agent_id, a.name, a.capabilities, a.proficiency, a.autonomy_budget, a.max_risk,
        a.max_concurrent_tasks as max_tasks, busy.load
    from @extschema@.caliber_agents as a
    cross join lateral (select ({handoffs_rules.LOAD.format(agent="a.agent_id")}) as load) as busy
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
    """One that could not take it anyway is not asked; that is an outcome, not an error. It is judged
    again when it accepts, so nobody is kept waiting for this."""
    from caliber import handoffs_accept

    refusal, _ = handoffs_accept.judged(handoff, handoffs_store.look(handoff["to_agent_id"]))
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
    current, walked = agent_id, {agent_id}
    while (row := _ABOVE.one(current)) is not None and row["agent_id"] not in walked:
        current = row["agent_id"]
        if current not in passed and row["status"] not in ("terminated", "failed", "completed"):
            return str(current)
        walked.add(current)
    return None


def elsewhere(handoff: dict[str, Any], agent_id: str | None = None) -> bool:
    """Ask another agent; False when three were asked already or nobody is left."""
    from caliber import handoffs, handoffs_accept

    if handoff["reroutes"] >= MAX_REROUTES or handoffs_store.late(handoff):
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
    refusal, _ = handoffs_accept.judged(handoff, handoffs_store.look(found))
    if refusal is not None:
        giver = handoffs_store.look(handoff["from_agent_id"])
        handoff.update(handoffs_accept.turn_down(handoff, giver, refusal))
    else:
        handoffs.offer(handoff)
    return True


def reroute(
    handoff_id: str | None, agent_id: str | None, to_agent_id: str | None, incarnation: int | None
) -> str:
    """By the sender: somebody else is asked, or a human when nobody is left."""
    from caliber import handoffs

    memory_rules.acts_for(agent_id)
    checks.required("handoff_id", handoff_id)
    checks.required("agent_id", agent_id)
    messages_rules.refuse_recipient(str(agent_id), to_agent_id)
    handoff = handoffs_store.peek(handoff_id)
    if handoff["from_agent_id"] != agent_id:
        memory_rules.missing("handoff", handoff_id)
    if to_agent_id == agent_id:
        errors.invalid("to_agent_id", to_agent_id, "must be another agent")
    _, _, locked = handoffs.sender_of(agent_id, handoff["trajectory_id"], incarnation)
    handoff = handoffs_store.lock(handoff_id)
    if handoff["from_agent_id"] != agent_id:
        memory_rules.missing("handoff", handoff_id)
    if handoff["status"] not in REROUTED_FROM or handoffs_store.late(handoff):
        handoffs_store.wrong_state(handoff, "rerouted")
    if handoff["resolved_at"] is not None:
        if handoff["broadcast_group_id"] is not None:
            handoffs_store.wrong_state(handoff, "rerouted", "counted in its broadcast")
        if handoff["handoff_type"] in handoffs_rules.MOVES:
            handoffs.one_offer(handoff["trajectory_id"], locked)
    handoff["status_reason"] = "rerouted by its sender"
    if not elsewhere(handoff, to_agent_id):
        handoffs_store.audit(handoff, "escalated", "human: nobody else can take it")
        handoffs_store.save(handoff, {"needs_human": True})
    return str(handoff["status"])
