"""Handoffs: initiating and withdrawing one. The contract is in sql/schema/handoffs.sql."""

from __future__ import annotations

from typing import Any

from caliber import (
    callers,
    checks,
    errors,
    handoffs_groups,
    handoffs_locks,
    handoffs_route,
    handoffs_rules,
    handoffs_store,
    handoffs_task,
    handoffs_tell,
    memory_rules,
    messages_rules,
    variables,
)
from caliber.plans import plan

NEW_ID = plan("select @extschema@.caliber_uuid_v7() as id")

_SCOPE = plan(
    """
    select s.scope_id
    from @extschema@.caliber_scope as s
    where s.trajectory_id = $1 and s.closed_at is null
    """,
    "uuid",
)

_ARTIFACTS = plan(
    """
    select r.artifact_id
    from @extschema@.caliber_artifact as r
    inner join @extschema@.caliber_trajectory as t on r.trajectory_id = t.trajectory_id
    where r.artifact_id = any($1) and t.root_trajectory_id = $2
    """,
    "uuid[]",
    "uuid",
)

OFFERED = plan(
    """
    select h.handoff_id, h.handoff_type, h.to_agent_id, h.due_at <= pg_catalog.clock_timestamp() as due
    from @extschema@.caliber_handoff as h
    where h.trajectory_id = $1
        and h.status in ('initiated', 'deferred')
        and h.handoff_type in ('sequential', 'escalation')
    """,
    "uuid",
)

_OWNER = plan("select t.agent_id from @extschema@.caliber_trajectory as t where t.trajectory_id = $1", "uuid")

_LEFT = plan(
    """
    select pg_catalog.ceil(
        pg_catalog.date_part('epoch', $1 - pg_catalog.clock_timestamp()) * 1000
    )::bigint as ms
    """,
    "timestamptz",
)

# The escalation by which the sender has the trajectory: passing it on is one step further up.
_HELD_BY = plan(
    """
    select h.handoff_id, h.escalation_depth, h.priority
    from @extschema@.caliber_handoff as h
    where h.trajectory_id = $1
        and h.to_agent_id = $2
        and h.handoff_type = 'escalation'
        and h.status in ('accepted', 'in_progress')
        and h.returned_at is null
    """,
    "uuid",
    "uuid",
)


def initiate(
    from_agent_id: str | None,
    to_agent_type: str | None,
    trajectory_id: str | None,
    reason: str | None,
    handoff_notes: str | None,
    next_steps: list[str | None] | None,
    to_agent_id: str | None,
    handoff_type: str | None,
    triggered_by: str | None,
    blockers: list[str | None] | None,
    open_questions: list[str | None] | None,
    task_id: str | None,
    decision_rationale: str | None,
    risk_level: str | None,
    priority: str | None,
    variables_given: str | None,
    artifact_ids: list[str | None] | None,
    lock_ids: list[str | None] | None,
    history_mode: str | None,
    max_messages: int | None,
    history_include: str | None,
    token_budget: int | None,
    required_capabilities: list[str | None] | None,
    min_proficiency: str | None,
    autonomy_budget: Any,
    budget: Any,
    deadline: str | None,
    return_timeout_ms: int | None,
    on_timeout: str | None,
    sender_waits: bool | None,
    reroute: bool | None,
    ack_timeout_ms: int | None,
    incarnation: int | None,
) -> str:
    memory_rules.acts_for(from_agent_id)
    checks.required("from_agent_id", from_agent_id)
    # First of all, so that nothing else tells of an agent that is not the sender's to know.
    messages_rules.refuse_recipient(str(from_agent_id), to_agent_id)
    packet = arguments(
        reason, handoff_notes, next_steps, handoff_type, triggered_by, blockers, open_questions, task_id,
        decision_rationale, risk_level, priority, variables_given, artifact_ids, history_mode,
        max_messages, history_include, token_budget, required_capabilities, min_proficiency,
        autonomy_budget, budget, deadline, return_timeout_ms, on_timeout, sender_waits, reroute,
        ack_timeout_ms,
    )  # fmt: skip
    if handoff_type == "broadcast":
        errors.invalid("handoff_type", handoff_type, "must not be broadcast; see caliber_broadcast_handoff")
    sender, trajectory, locked = sender_of(from_agent_id, trajectory_id, incarnation)
    if packet["handoff_type"] in handoffs_rules.MOVES:
        one_offer(str(trajectory_id), locked)
    packet["lock_ids"] = handoffs_rules.ids("lock_ids", lock_ids)
    handoffs_locks.named(packet["lock_ids"], sender["agent_id"])
    handoff = complete_packet(packet, sender, trajectory)
    _trigger(handoff, sender)
    _depth(handoff, sender)
    handoff["to_agent_type"] = to_agent_type if to_agent_type is None else checks.slug(
        "to_agent_type", to_agent_type
    )  # fmt: skip
    handoff["to_agent_id"] = to_agent_id
    handoffs_route.first(handoff, sender)
    return begin(handoff, sender)


def arguments(
    reason: str | None,
    handoff_notes: str | None,
    next_steps: list[str | None] | None,
    handoff_type: str | None,
    triggered_by: str | None,
    blockers: list[str | None] | None,
    open_questions: list[str | None] | None,
    task_id: str | None,
    decision_rationale: str | None,
    risk_level: str | None,
    priority: str | None,
    variables_given: str | None,
    artifact_ids: list[str | None] | None,
    history_mode: str | None,
    max_messages: int | None,
    history_include: str | None,
    token_budget: int | None,
    required_capabilities: list[str | None] | None,
    min_proficiency: str | None,
    autonomy_budget: Any,
    budget: Any,
    deadline: str | None,
    return_timeout_ms: int | None,
    on_timeout: str | None,
    sender_waits: bool | None,
    reroute: bool | None,
    ack_timeout_ms: int | None,
) -> dict[str, Any]:
    for name, value in (
        ("reason", reason), ("handoff_type", handoff_type), ("triggered_by", triggered_by),
        ("risk_level", risk_level), ("token_budget", token_budget),
    ):  # fmt: skip
        checks.required(name, value)
    if not checks.label("handoff_notes", handoff_notes, handoffs_rules.MAX_TEXT):
        errors.invalid("handoff_notes", handoff_notes, "must not be null or empty")
    required = checks.slugs("required_capabilities", required_capabilities)
    checks.between("max_messages", max_messages, 0, 10_000)
    checks.between("token_budget", token_budget, 100, 1_000_000)
    checks.between("autonomy_budget", autonomy_budget, 0, 10**15)
    checks.between("budget", budget, 0, 10**15)
    handoffs_rules.milliseconds("return_timeout_ms", return_timeout_ms)
    handoffs_rules.milliseconds("ack_timeout_ms", ack_timeout_ms)
    kind = str(handoff_type)
    if kind in ("delegation", "broadcast"):
        checks.required("return_timeout_ms", return_timeout_ms)
    if deadline is not None and int((_LEFT.one(deadline) or {})["ms"]) <= 0:
        errors.invalid("deadline", deadline, "must be in the future")
    rationale = checks.label("decision_rationale", decision_rationale, handoffs_rules.MAX_TEXT)
    if kind == "escalation" and not rationale:
        errors.invalid("decision_rationale", rationale, "must be given for an escalation")
    return {
        "reason": reason,
        "handoff_notes": handoff_notes,
        "next_steps": handoffs_rules.texts("next_steps", next_steps),
        "blockers": handoffs_rules.texts("blockers", blockers),
        "open_questions": handoffs_rules.texts("open_questions", open_questions),
        "handoff_type": kind,
        "triggered_by": triggered_by,
        "task_id": checks.label("task_id", task_id, 200),
        "decision_rationale": rationale,
        "risk_level": risk_level,
        "priority": priority,
        "variables": variables.mapping("variables", variables_given),
        "artifact_ids": handoffs_rules.ids("artifact_ids", artifact_ids),
        "history_mode": history_mode or handoffs_rules.HISTORY[kind],
        "max_messages": max_messages,
        "history_include": handoffs_rules.include(history_include),
        "token_budget": token_budget,
        "required_capabilities": required,
        "min_proficiency": handoffs_rules.proficiency(min_proficiency, required),
        "autonomy_budget": None if autonomy_budget is None else str(autonomy_budget),
        "budget": None if budget is None else str(budget),
        "deadline": deadline,
        "return_expected": kind != "sequential",
        "return_timeout_ms": return_timeout_ms,
        "on_timeout": on_timeout or "fail",
        "sender_waits": bool(sender_waits) and kind != "sequential",
        "reroute": bool(reroute),
        "ack_timeout_ms": ack_timeout_ms or handoffs_groups.setting("handoff_ack_ms"),
    }


def sender_of(
    agent_id: str | None, trajectory_id: str | None, incarnation: int | None, also: str | None = None
) -> tuple[dict[str, Any], dict[str, Any], dict[str, dict[str, Any]]]:
    """The agent that hands over and the trajectory that it has, both locked; and all agents that are:
    one more if asked for, and who did not answer an offer that is to be ended."""
    checks.required("from_agent_id", agent_id)
    checks.required("trajectory_id", trajectory_id)
    # Before anything is locked, so that nobody holds up what is not its own.
    _refuse_not_owner(str(trajectory_id), str(agent_id))
    open_offer = OFFERED.one(trajectory_id) or {}
    found = handoffs_store.agents(agent_id, also, open_offer.get("to_agent_id"))
    sender = found[str(agent_id)]
    memory_rules.fence(agent_id, incarnation)
    callers.refuse_ended(sender, None)
    trajectory = handoffs_task.hold(str(trajectory_id))
    _refuse_not_owner(str(trajectory_id), str(agent_id))
    if trajectory["status"] != "active":
        memory_rules.not_active(trajectory, "cannot be handed over")
    return sender, trajectory, found


def _refuse_not_owner(trajectory_id: str, agent_id: str) -> None:
    if (_OWNER.one(trajectory_id) or {}).get("agent_id") == agent_id:
        return
    memory_rules.workable(trajectory_id, None, agent_id)
    errors.fail(
        errors.NOT_PERMITTED,
        "only the agent that has a trajectory hands it over",
        detail=f"Trajectory {trajectory_id} is another agent's.",
    )


def one_offer(trajectory_id: str, locked: dict[str, dict[str, Any]]) -> None:
    """Refuse a second offer; one that nobody answered in time is ended, if who was asked is locked."""
    offered = OFFERED.one(trajectory_id)
    if offered is not None and offered["due"] and (offered["to_agent_id"] or "") in {"", *locked}:
        from caliber import handoffs_expire

        handoffs_expire.settle(offered["handoff_id"])
        offered = OFFERED.one(trajectory_id)
    if offered is not None:
        errors.fail(
            errors.WRONG_STATE,
            "the trajectory is offered already",
            detail=f"Handoff {offered['handoff_id']} is open.",
            hint="Wait for its answer, or take it back with caliber_withdraw_handoff.",
        )


def complete_packet(
    packet: dict[str, Any], sender: dict[str, Any], trajectory: dict[str, Any]
) -> dict[str, Any]:
    known = {
        r["artifact_id"] for r in _ARTIFACTS.rows(packet["artifact_ids"], trajectory["root_trajectory_id"])
    }
    for artifact_id in packet["artifact_ids"]:
        if artifact_id not in known:
            memory_rules.missing("artifact", artifact_id)
    scope = _SCOPE.one(trajectory["trajectory_id"])
    return {
        "lock_ids": [],
        "left_ms": None if packet["deadline"] is None else int((_LEFT.one(packet["deadline"]) or {})["ms"]),
        **packet,
        "handoff_id": (NEW_ID.one() or {})["id"],
        "team_id": trajectory["team_id"],
        "status": "initiated",
        "status_reason": None,
        "needs_human": False,
        "from_agent_id": sender["agent_id"],
        "tried_agent_ids": [],
        "trajectory_id": trajectory["trajectory_id"],
        "scope_id": scope["scope_id"] if scope else None,
        "moved_lock_ids": [],
        "joint_locks": [],
        "attempts": 1,
        "reroutes": 0,
        "escalation_depth": 0,
        "variables_changed": "{}",
        "artifacts_produced": [],
        "warnings": [],
    }


def _trigger(handoff: dict[str, Any], sender: dict[str, Any]) -> None:
    """What the trigger claims has to be so."""
    if handoff["triggered_by"] == "capability_mismatch":
        if not set(handoff["required_capabilities"]) - set(sender["capabilities"]):
            errors.invalid(
                "required_capabilities",
                handoff["required_capabilities"],
                "must name a capability the sender lacks, for a capability mismatch",
            )
    elif handoff["triggered_by"] == "escalation" and handoff["handoff_type"] != "escalation":
        errors.invalid("handoff_type", handoff["handoff_type"], "must be escalation when that triggers it")


def _depth(handoff: dict[str, Any], sender: dict[str, Any]) -> None:
    """How far up it is, and how urgent: as the task or the escalation it comes from."""
    above = _HELD_BY.one(handoff["trajectory_id"], sender["agent_id"])
    if handoff["handoff_type"] == "sequential" and above:
        errors.fail(
            errors.WRONG_STATE,
            "a trajectory that is held by an escalation cannot be given away",
            detail=f"It is held by handoff {above['handoff_id']}.",
            hint="Return it, or escalate it further.",
        )
    inherited = None
    if handoff["handoff_type"] == "escalation":
        inherited = above["priority"] if above else handoffs_task.priority(handoff["trajectory_id"])
    handoff["priority"] = handoff["priority"] or inherited or "normal"
    if handoff["handoff_type"] != "escalation":
        return
    handoff["escalation_depth"] = above["escalation_depth"] + 1 if above else 1
    if above:
        handoff["parent_handoff_id"] = above["handoff_id"]


def begin(handoff: dict[str, Any], sender: dict[str, Any]) -> str:
    """Record it, write it, tell the one it is for; or turn it down at once, or ask for a human."""
    refusal = handoff.pop("refusal", None)
    reason = str(handoff["reason"])
    if handoff.get("parent_handoff_id"):
        handoffs_store.chains(handoff)
    handoffs_store.audit(
        handoff, "initiated", reason, handoff["decision_rationale"], triggered_by=handoff["triggered_by"]
    )
    if handoff.get("parent_handoff_id"):
        # Each level adds its assessment to the trail of the one below.
        below = handoffs_store.peek(handoff["parent_handoff_id"])
        handoffs_store.audit(below, "escalated", reason, handoff["decision_rationale"])
    handoffs_store.insert(handoff)
    if handoff["needs_human"]:
        for_human(handoff, handoff["status_reason"] or "nobody is left to turn to")
    elif refusal:
        from caliber import handoffs_accept

        handoffs_accept.turn_down(handoff, sender, refusal)
    else:
        offer(handoff)
    return str(handoff["handoff_id"])


def offer(handoff: dict[str, Any], pause_ms: int = 0) -> None:
    """From here on somebody may accept it, until it is due."""
    wait = handoffs_store.within(handoff, pause_ms + handoff["ack_timeout_ms"])
    handoffs_store.save(
        handoff,
        {"status": "initiated", "to_agent_id": handoff["to_agent_id"]},
        {"available_at": pause_ms or None, "ack_by": wait, "due_at": wait},
    )
    handoffs_tell.tell(
        handoff, "handoff", handoff["from_agent_id"], handoff["to_agent_id"],
        f"{handoff['handoff_type']} handoff: {handoff['handoff_notes']}", "critical",
        handoff["to_agent_type"],
    )  # fmt: skip


def for_human(handoff: dict[str, Any], why: str) -> None:
    """Nobody else can be asked. The sender has the work until a human decides."""
    handoffs_store.audit(handoff, "escalated", f"human: {why}"[:1000])
    handoffs_store.save(
        handoff,
        {"status": "escalated", "status_reason": why[:1000], "needs_human": True},
        {"resolved_at": 0, "ack_by": None, "due_at": None, "available_at": None},
    )


def withdraw(
    handoff_id: str | None, agent_id: str | None, reason: str | None, incarnation: int | None
) -> bool:
    memory_rules.acts_for(agent_id)
    checks.required("agent_id", agent_id)
    checks.required("handoff_id", handoff_id)
    reason = checks.label("reason", reason, 1000) or "withdrawn"
    handoff = handoffs_store.peek(handoff_id)
    if handoff["from_agent_id"] != agent_id:
        memory_rules.missing("handoff", handoff_id)
    sender = handoffs_store.agents(agent_id)[str(agent_id)]
    memory_rules.fence(agent_id, incarnation)
    callers.refuse_ended(sender, None)
    handoff = handoffs_store.lock(handoff_id)
    if handoff["from_agent_id"] != agent_id:
        memory_rules.missing("handoff", handoff_id)
    if handoff["status"] not in handoffs_store.PENDING:
        handoffs_store.wrong_state(handoff, "withdrawn")
    take_back(handoff, reason)
    return True


def take_back(handoff: dict[str, Any], reason: str) -> None:
    """An open offer ends by its sender's wish. Nothing has moved."""
    handoffs_store.audit(handoff, "failed", reason, outcome="failed", withdrawn=True)
    handoffs_store.save(
        handoff,
        {"status": "failed", "status_reason": reason},
        {"resolved_at": 0, "due_at": None, "ack_by": None, "available_at": None},
    )
    handoffs_groups.count(handoff, success=False)
