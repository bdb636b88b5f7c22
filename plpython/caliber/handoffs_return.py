"""Handoffs: what comes back, and the end. The contract is in sql/schema/handoffs.sql."""

from __future__ import annotations

from typing import Any, NoReturn

from caliber import (
    callers,
    checks,
    errors,
    handoffs_accept,
    handoffs_groups,
    handoffs_locks,
    handoffs_move,
    handoffs_rules,
    handoffs_store,
    handoffs_task,
    handoffs_tell,
    memory_rules,
    trajectories,
    variables,
)
from caliber.plans import plan

RESULT_TYPES = ("text", "json", "artifact_ref")

_PRODUCED = plan(
    """
    select r.artifact_id
    from @extschema@.caliber_artifact as r
    where r.artifact_id = any($1) and (r.agent_id = $2 or r.trajectory_id = $3)
    """,
    "uuid[]",
    "uuid",
    "uuid",
)

# Into the sender's scope, where it can read them.
_COPY = plan(
    """
    insert into @extschema@.caliber_artifact (
        scope_id, trajectory_id, agent_id, team_id, artifact_type, status, name, path, content,
        content_hash, token_count, extraction_method, confidence, embedding, embedding_model, metadata
    )
    select
        s.scope_id, s.trajectory_id, r.agent_id, s.team_id, r.artifact_type, 'final', r.name, r.path,
        r.content, r.content_hash, r.token_count, r.extraction_method, r.confidence, r.embedding,
        r.embedding_model, r.metadata || pg_catalog.jsonb_build_object('copied_from', r.artifact_id)
    from @extschema@.caliber_artifact as r
    cross join @extschema@.caliber_scope as s
    where r.artifact_id = any($1)
        and r.trajectory_id <> $2
        and s.trajectory_id = $2
        and s.closed_at is null
    """,
    "uuid[]",
    "uuid",
)

_OWNER = plan("select t.agent_id from @extschema@.caliber_trajectory as t where t.trajectory_id = $1", "uuid")

_PREVIOUS = plan(
    """
    select h.handoff_id, h.from_agent_id, h.handoff_type, h.status, h.returned_at, h.moved_lock_ids,
        h.joint_locks::text as joint_locks
    from @extschema@.caliber_handoff as h
    where h.trajectory_id = $1
        and h.to_agent_id = $2
        and h.accepted_at is not null
        and h.handoff_type in ('sequential', 'escalation')
    order by h.accepted_at desc
    limit 1
    """,
    "uuid",
    "uuid",
)

_RELEASE = plan(
    """
    update @extschema@.caliber_resource as r
    set lock_id = null, holder_agent_id = null, acquired_at = null, expires_at = null, reason = null
    where r.lock_id = any($1) and r.holder_agent_id = $2
    """,
    "uuid[]",
    "uuid",
)

_RELEASE_SHARED = plan(
    """
    delete from @extschema@.caliber_lock_shared as s
    where s.lock_id = any($1) and s.holder_agent_id = $2
    """,
    "uuid[]",
    "uuid",
)


def give(
    handoff_id: str | None,
    agent_id: str | None,
    return_status: str | None,
    result: str | None,
    notes: str | None,
    result_type: str | None,
    variables_changed: str | None,
    artifacts_produced: list[str | None] | None,
    tokens_consumed: int | None,
    incarnation: int | None,
) -> str:
    memory_rules.acts_for(agent_id)
    if return_status not in ("success", "partial", "failed"):
        errors.invalid("return_status", return_status, "must be success, partial or failed")
    if result_type not in RESULT_TYPES:
        errors.invalid("result_type", result_type, f"must be one of {', '.join(RESULT_TYPES)}")
    if result is not None:
        checks.json_text("result", result)
    notes = checks.label("notes", notes, handoffs_rules.MAX_TEXT)
    checks.between("tokens_consumed", tokens_consumed, 0, 10**15)
    changed = variables.mapping("variables_changed", variables_changed)
    produced = handoffs_rules.ids("artifacts_produced", artifacts_produced)
    handoff, giver, taker = handoffs_accept.running(handoff_id, agent_id, incarnation, "returned")
    if not handoff["return_expected"]:
        handoffs_store.wrong_state(handoff, "returned", "not to be returned")
    if handoffs_move.passed_on(handoff):
        handoffs_store.wrong_state(handoff, "returned", "passed on")
    known = _PRODUCED.rows(produced, agent_id, handoff["received_trajectory_id"])
    if len(known) != len(produced):
        errors.invalid("artifacts_produced", produced, "must hold artifacts of the receiver's own")
    handoff.update(tokens_consumed=tokens_consumed, artifacts_produced=produced)
    handoffs_store.chains(handoff)
    handoffs_store.audit(handoff, "returned", notes or str(return_status), notes, outcome=return_status)
    success = return_status != "failed"
    warnings = handoffs_move.give_back(handoff, giver, taker, success, notes or f"returned: {return_status}")
    handoffs_store.save(
        handoff,
        {
            "status": "in_progress",
            "return_status": return_status,
            "result_type": result_type,
            "result": result,
            "return_notes": notes,
            "variables_changed": changed,
            "artifacts_produced": produced,
            "tokens_consumed": tokens_consumed,
            "warnings": handoff["warnings"] + warnings,
        },
        {"returned_at": 0, "due_at": None},
    )
    handoffs_groups.count(handoff, success)
    handoffs_tell.tell(
        handoff, "task_result", taker["agent_id"], giver["agent_id"], f"returned: {return_status}", "high"
    )
    return str(return_status)


def complete(
    handoff_id: str | None,
    agent_id: str | None,
    outcome: str | None,
    notes: str | None,
    tokens_consumed: int | None,
    incarnation: int | None,
) -> str:
    """By the sender what was returned to it, by the receiver what needs no return."""
    memory_rules.acts_for(agent_id)
    checks.required("handoff_id", handoff_id)
    checks.required("agent_id", agent_id)
    if outcome not in (None, "success", "partial", "failed"):
        errors.invalid("outcome", outcome, "must be success, partial or failed")
    notes = checks.label("notes", notes, handoffs_rules.MAX_TEXT)
    checks.between("tokens_consumed", tokens_consumed, 0, 10**15)
    handoff = handoffs_store.peek(handoff_id)
    if handoff["return_expected"]:
        return _by_sender(handoff, agent_id, outcome, notes, incarnation)
    handoff, giver, taker = handoffs_accept.running(handoff_id, agent_id, incarnation, "completed")
    handoff["tokens_consumed"] = tokens_consumed
    result = outcome or "success"
    status = _end(handoff, result, notes)
    if handoff["handoff_type"] == "broadcast":
        handoffs_move.finish_child(
            handoff["received_trajectory_id"], "failed" if status == "failed" else "completed", result
        )
        handoffs_move.take_off(taker, handoff["received_trajectory_id"])
    _RELEASE.rows(handoff["moved_lock_ids"], taker["agent_id"])
    _RELEASE_SHARED.rows(handoff["moved_lock_ids"], taker["agent_id"])
    handoffs_locks.part(handoff["joint_locks"], taker["agent_id"])
    handoffs_tell.tell(handoff, "task_complete", taker["agent_id"], giver["agent_id"], f"completed: {result}")
    return status


def _by_sender(
    handoff: dict[str, Any],
    agent_id: str | None,
    outcome: str | None,
    notes: str | None,
    incarnation: int | None,
) -> str:
    """Or by whoever has the whole now: what came of a part is the whole's, whoever ends it."""
    _may_end(handoff, agent_id)
    sender = handoffs_store.agents(agent_id)[str(agent_id)]
    memory_rules.fence(agent_id, incarnation)
    callers.refuse_ended(sender, None)
    trajectory = handoffs_store.trajectory(handoff["trajectory_id"])
    handoff = handoffs_store.lock(handoff["handoff_id"])
    _may_end(handoff, agent_id)
    if handoff["status"] not in handoffs_store.RUNNING:
        handoffs_store.wrong_state(handoff, "completed")
    if handoff["returned_at"] is None:
        handoffs_store.wrong_state(handoff, "completed", "not returned")
    status = _end(handoff, outcome or str(handoff["return_status"]), notes)
    if trajectory["status"] in ("active", "suspended"):
        _has_scope(handoff)
        variables.set_all(handoff["trajectory_id"], handoff["variables_changed"], handoff["to_agent_id"])
        _COPY.rows(handoff["artifacts_produced"], handoff["trajectory_id"])
    return status


def _may_end(handoff: dict[str, Any], agent_id: str | None) -> None:
    if handoff["from_agent_id"] == agent_id:
        return
    if (_OWNER.one(handoff["trajectory_id"]) or {})["agent_id"] != agent_id:
        memory_rules.missing("handoff", handoff["handoff_id"])


def _has_scope(handoff: dict[str, Any]) -> None:
    """Artifacts go into a scope; rather than lose them, the step is refused."""
    if handoff["artifacts_produced"] and trajectories.OPEN_SCOPE.one(handoff["trajectory_id"]) is None:
        errors.fail(
            errors.WRONG_STATE,
            "there is no open scope to take the artifacts",
            detail=f"Trajectory {handoff['trajectory_id']} has none.",
            hint="caliber_scope_open opens one; then complete the handoff again.",
        )


def _end(handoff: dict[str, Any], outcome: str, notes: str | None) -> str:
    status = "failed" if outcome == "failed" else "completed"
    handoffs_store.audit(handoff, status, notes or outcome, notes, outcome=outcome)
    handoffs_store.save(
        handoff,
        {"status": status, "status_reason": notes[:1000] if notes else None,
         "return_status": outcome, "tokens_consumed": handoff["tokens_consumed"]},
        {"resolved_at": 0, "due_at": None},
    )  # fmt: skip
    return status


def resolve(handoff_id: str | None, decision: str | None) -> str:
    """What a human decided about a handoff that asked for one."""
    callers.require_admin("answer for a human")
    checks.required("handoff_id", handoff_id)
    if not checks.label("decision", decision, handoffs_rules.MAX_TEXT):
        errors.invalid("decision", decision, "must not be null or empty")
    # As everybody who changes a handoff: its sender first.
    handoff, found = handoffs_store.parties(handoff_id)
    handoffs_task.hold(handoff["trajectory_id"])
    handoff = handoffs_store.lock(handoff_id)
    if not _for_human(handoff, found[handoff["from_agent_id"]]):
        handoffs_store.wrong_state(handoff, "decided by a human")
    handoffs_store.audit(handoff, "completed", "human", decision, outcome="success")
    handoffs_store.save(
        handoff,
        {"needs_human": False, "status": "completed", "return_status": "success", "return_notes": decision},
        {"resolved_at": 0, "due_at": None, "ack_by": None, "available_at": None},
    )
    if handoff["resolved_at"] is None and handoff["returned_at"] is None:
        handoffs_groups.count(handoff, success=True)
    return "completed"


def _for_human(handoff: dict[str, Any], sender: dict[str, Any]) -> bool:
    """It was asked for one, or was returned to an agent that has ended and will never complete it."""
    if handoff["status"] in handoffs_store.RUNNING:
        return handoff["returned_at"] is not None and sender["status"] == "terminated"
    return bool(handoff["needs_human"])


def to_previous(
    trajectory_id: str | None, agent_id: str | None, notes: str | None, incarnation: int | None
) -> list[dict[str, Any]]:
    """Back to who had it before, at once: nobody is asked who has done it before."""
    from caliber import handoffs

    memory_rules.acts_for(agent_id)
    notes = checks.label("notes", notes, handoffs_rules.MAX_TEXT) or "back to who had it before"
    before = _PREVIOUS.one(trajectory_id, agent_id)
    previous_id = before["from_agent_id"] if before else None
    sender, trajectory, locked = handoffs.sender_of(agent_id, trajectory_id, incarnation, previous_id)
    # The agent's row is locked, and with it what it was handed.
    before = _PREVIOUS.one(trajectory_id, agent_id)
    if before is None or before["from_agent_id"] not in locked:
        _nobody_before(str(trajectory_id))
    if before["handoff_type"] == "escalation" and before["returned_at"] is None:
        give(before["handoff_id"], agent_id, "success", None, notes, "text", "{}", None, None, incarnation)
        returned = handoffs_store.peek(before["handoff_id"])
        return [{**handoffs_accept._outcome(returned), "trajectory_id": trajectory_id, "scope_id": None}]
    packet = handoffs.arguments(
        "specialization", notes, None, "sequential", "explicit_request", None, None, None, None, "low",
        "normal", "{}", None, None, None, "{}", 16000, None, "{}", None, None, None, None, None, False,
        False, None,
    )  # fmt: skip
    packet["priority"] = "normal"
    handoffs.one_offer(str(trajectory_id), locked)
    handoff = handoffs.complete_packet(packet, sender, trajectory)
    # The leases that came with it go back with it, as far as they still run.
    handoff.update(
        to_agent_id=before["from_agent_id"],
        to_agent_type=None,
        lock_ids=before["moved_lock_ids"],
        joint_locks=handoffs_store.loads(before["joint_locks"]),
    )
    previous = locked[before["from_agent_id"]]
    callers.refuse_ended(previous, None)
    handoffs_store.chains(handoff)
    handoffs_store.audit(handoff, "initiated", "return to previous")
    handoffs_store.insert(handoff)
    handoff = handoffs_store.lock(handoff["handoff_id"])
    refusal, warnings = handoffs_accept.judged(handoff, previous)
    if refusal is not None:
        return [handoffs_accept._outcome(handoffs_accept.turn_down(handoff, sender, refusal))]
    return [handoffs_accept._outcome(handoffs_accept.take(handoff, sender, previous, warnings, None))]


def _nobody_before(trajectory_id: str) -> NoReturn:
    errors.fail(
        errors.WRONG_STATE,
        "nobody had this trajectory before",
        detail=f"The trajectory is {trajectory_id}.",
        hint="caliber_initiate_handoff hands it to anybody.",
    )
