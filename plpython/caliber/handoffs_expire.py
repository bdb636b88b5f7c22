"""Handoffs: what time does to them: reminders, further attempts, other agents, escalations, ends."""

from __future__ import annotations

from typing import Any

import plpy

from caliber import (
    callers,
    checks,
    errors,
    handoffs_groups,
    handoffs_move,
    handoffs_route,
    handoffs_store,
    handoffs_task,
    handoffs_tell,
)
from caliber.plans import plan

MAX_ATTEMPTS = 3
BACKOFF_MS = 2000
MAX_BATCH = 10_000

_DUE = plan(
    """
    select h.handoff_id
    from @extschema@.caliber_handoff as h
    where h.due_at <= pg_catalog.clock_timestamp()
    order by h.due_at
    limit $1
    """,
    "int4",
)

# The teams in whose audit chains settling them may be recorded. Looked up one by one, so that no plan
# reads a table through.
_TEAMS = plan(
    """
    select distinct c.team_id
    from pg_catalog.unnest($1) as w (handoff_id)
    cross join lateral (
        select x.trajectory_id
        from @extschema@.caliber_handoff as x
        where x.handoff_id = w.handoff_id
        offset 0
    ) as h
    cross join lateral (
        select t.team_id from @extschema@.caliber_trajectory as t where t.trajectory_id = h.trajectory_id
        union all
        select o.team_id
        from @extschema@.caliber_handoff as o
        where o.trajectory_id = h.trajectory_id and o.resolved_at is null
    ) as c
    """,
    "uuid[]",
)

_HEAD = plan(
    "select from @extschema@.caliber_audit_head as c where c.team_id = $1 for update",
    "uuid",
)

# Whether nobody else has one of them; then they are locked.
_HEADS_FREE = plan(
    """
    select
        (
            select pg_catalog.count(*)
            from (
                select c.team_id
                from @extschema@.caliber_audit_head as c
                where c.team_id = any($1)
                for update skip locked
            ) as free
        ) = (
            select pg_catalog.count(*) from @extschema@.caliber_audit_head as c where c.team_id = any($1)
        ) as free
    """,
    "uuid[]",
)

# Both parties, the trajectory, the handoff and the root of the task behind it, where nobody else is at them:
# then nothing is waited for while the locks of those before are held, the audit chains' among them.
_FREE = plan(
    """
    select
        (
            select pg_catalog.count(*)
            from (
                select a.agent_id
                from @extschema@.caliber_agent as a
                where a.agent_id in (h.from_agent_id, h.to_agent_id)
                order by a.agent_id
                for no key update skip locked
            ) as free
        ) = 1 + (h.to_agent_id is not null)::integer
        and exists (
            select from (
                select t.trajectory_id
                from @extschema@.caliber_trajectory as t
                where t.trajectory_id = h.trajectory_id
                for no key update skip locked
            ) as free
        )
        and not exists (
            select from @extschema@.caliber_delegation as d
            where d.child_trajectory_id = h.trajectory_id
                and d.ended_at is null
                and not exists (
                    select from (
                        select r.delegation_id
                        from @extschema@.caliber_delegation as r
                        where r.delegation_id = d.root_delegation_id
                        for no key update skip locked
                    ) as root
                )
        ) as parties
    from @extschema@.caliber_handoff as h
    where h.handoff_id = $1
    for update skip locked
    """,
    "uuid",
)

_HELD = plan(
    """
    select h.handoff_id
    from @extschema@.caliber_handoff as h
    where h.to_agent_id = $1
        and h.resolved_at is null
        and (
            h.status in ('initiated', 'deferred')
            or (h.status in ('accepted', 'in_progress') and h.return_expected and h.returned_at is null)
        )
    order by h.handoff_id
    """,
    "uuid",
)

_FAILED = plan(
    """
    select @extschema@._caliber_log(
        'handoff_unsettled', 'coordination', 'error', 'a handoff that is due could not be settled: ' || $2,
        reference_type => 'handoff', reference_id => $1
    )
    """,
    "text",
    "text",
)

_BUSY = (errors.LOCK_TIMEOUT, errors.DEADLOCK, "40001")
_CANCELLED = "57014"


def expire(max_handoffs: int | None) -> int:
    callers.require_admin("settle handoffs")
    checks.required("max_handoffs", max_handoffs)
    checks.between("max_handoffs", max_handoffs, 1, MAX_BATCH)
    return settle_due(max_handoffs, [])


def settle_due(max_handoffs: int | None, gone: list[str]) -> int:
    """And lock what giving back for these agents will need in this transaction."""
    due = [row["handoff_id"] for row in _DUE.rows(max_handoffs)]
    _lock_heads(due + _held_by(gone))
    return sum(_alone(handoff_id) for handoff_id in due)


def lock_heads(agents: list[str]) -> None:
    """Before giving back for them, in a transaction that has locked none yet."""
    _lock_heads(_held_by(agents))


def heads_free(agent_id: str) -> bool:
    """Whether giving back for it would wait for nobody's audit chain."""
    return _heads_free(_held_by([agent_id]))


def _held_by(agents: list[str]) -> list[str]:
    return [row["handoff_id"] for agent_id in agents for row in _HELD.rows(agent_id)]


def _lock_heads(handoffs: list[str]) -> None:
    """Of those whose audit chain is free or becomes so in time. In one order, as whoever else locks several,
    since all of them are kept until the end; one that somebody keeps holds up only its own team."""
    for team in sorted(row["team_id"] for row in _TEAMS.rows(handoffs)):
        try:
            with plpy.subtransaction():
                _HEAD.rows(team)
        except plpy.SPIError as error:
            if error.sqlstate not in _BUSY:
                raise


def _heads_free(handoffs: list[str]) -> bool:
    """Without waiting, since others are held and this one may come before them."""
    teams = [row["team_id"] for row in _TEAMS.rows(handoffs)]
    return bool((_HEADS_FREE.one(teams) or {})["free"])


class _Taken(Exception):
    """Leaves a subtransaction, which gives back what was locked to find out."""


def _claim(handoff_id: str) -> None:
    free = _FREE.one(handoff_id)
    if not free or not free["parties"] or not _heads_free([handoff_id]):
        raise _Taken


def _alone(handoff_id: str) -> bool:
    """One, whole or not at all; what is in somebody's hands is left to the next call."""
    try:
        with plpy.subtransaction():
            _claim(handoff_id)
            return settle(handoff_id)
    except _Taken:
        return False
    except (plpy.Error, plpy.SPIError) as error:
        if error.sqlstate == _CANCELLED:
            raise
        if error.sqlstate not in _BUSY:
            _FAILED.rows(handoff_id, f"{error.sqlstate}: {error}"[:300])
        return False


def settle(handoff_id: str) -> bool:
    """Do what is due; False when somebody else just did."""
    handoff = handoffs_store.peek(handoff_id)
    found = handoffs_store.agents(handoff["from_agent_id"], handoff["to_agent_id"])
    handoffs_task.hold(handoff["trajectory_id"])
    asked = handoff["to_agent_id"]
    handoff = handoffs_store.lock(handoff_id)
    if not handoff["due"] or handoff["to_agent_id"] != asked or handoff["from_agent_id"] not in found:
        return False
    handoffs_store.chains(handoff)
    giver = found[handoff["from_agent_id"]]
    if handoff["status"] in handoffs_store.PENDING:
        _unanswered(handoff, giver, "no acknowledgement in time")
    elif not handoff["lapsed"]:
        _remind(handoff)
    elif handoffs_move.passed_on(handoff):
        _postpone(handoff)
    else:
        _lapsed(handoff, giver, found[handoff["to_agent_id"]], "nothing was returned in time")
    return True


def give_back(agent_id: str) -> int:
    """For an agent that is gone: what it was asked is as not answered, what it was lent goes back.
    What was given to it for good stays its own. Whose other party is busy is left to the next call."""
    return sum(_without(row["handoff_id"], agent_id) for row in list(_HELD.rows(agent_id)))


def _without(handoff_id: str, agent_id: str) -> bool:
    try:
        with plpy.subtransaction():
            _claim(handoff_id)
            return _gone(handoff_id, agent_id)
    except _Taken:
        return False


def _gone(handoff_id: str, agent_id: str) -> bool:
    handoff = handoffs_store.peek(handoff_id)
    found = handoffs_store.agents(handoff["from_agent_id"], agent_id)
    handoffs_task.hold(handoff["trajectory_id"])
    handoff = handoffs_store.lock(handoff_id)
    gone = handoff["to_agent_id"] != agent_id or handoff["from_agent_id"] not in found
    if gone or handoff["resolved_at"] or handoff["returned_at"]:
        # Taken back, sent to another or inherited since it was found.
        return False
    handoffs_store.chains(handoff)
    giver, why = found[handoff["from_agent_id"]], f"{found[agent_id]['name']} is gone"
    if handoff["status"] in handoffs_store.PENDING:
        _unanswered(handoff, giver, why)
    elif handoffs_move.passed_on(handoff):
        return False
    else:
        _lapsed(handoff, giver, found[agent_id], why)
    return True


def _postpone(handoff: dict[str, Any]) -> None:
    """It cannot be returned before it has come back itself; then there is this much time again."""
    grace = handoffs_groups.setting("handoff_reminder_ms")
    handoffs_store.audit(handoff, "reminded", "it was passed on and has not come back")
    handoffs_store.save(handoff, {}, {"due_at": grace, "lapses_at": grace})


def _remind(handoff: dict[str, Any]) -> None:
    if handoff["lapses_at"] is None:
        # Given for good: nobody takes it away, but both are told.
        handoffs_store.audit(handoff, "timeout", "the deadline has passed")
        _tell(handoff, "task_failed", handoff["from_agent_id"], "the deadline has passed")
    else:
        handoffs_store.audit(handoff, "reminded", "the time to return is up")
    handoffs_store.save(handoff, {"due_at": handoff["lapses_at"]}, {"reminded_at": 0})
    _tell(handoff, "nudge", handoff["to_agent_id"], "please return it, the time is up")


def _unanswered(handoff: dict[str, Any], giver: dict[str, Any], why: str) -> None:
    """Nothing has moved yet. What is urgent goes up at once, else another may be asked."""
    handoffs_store.audit(handoff, "timeout", why)
    handoffs_store.audit(handoff, "rejected", why, outcome="failed")
    if handoffs_store.late(handoff):
        _end(handoff, "timed_out", "the deadline has passed", needs_human=True)
    elif handoff["priority"] == "critical" or handoff["handoff_type"] == "escalation":
        _escalate(handoff, giver, why)
    elif handoff["reroute"]:
        handoff["status_reason"] = why
        if not handoffs_route.elsewhere(handoff):
            _end(handoff, "timed_out", why, needs_human=True)
    else:
        _end(handoff, "timed_out", why, needs_human=False)


def _lapsed(handoff: dict[str, Any], giver: dict[str, Any], taker: dict[str, Any], why: str) -> None:
    """What was lent goes back first; then the policy."""
    handoffs_store.audit(handoff, "timeout", why, outcome="failed", on_timeout=handoff["on_timeout"])
    handoffs_move.give_back(handoff, giver, taker, False, why)
    policy = "fail" if handoffs_store.late(handoff) else handoff["on_timeout"]
    if policy == "retry" and handoff["attempts"] < MAX_ATTEMPTS:
        _retry(handoff)
    elif policy == "escalate":
        _escalate(handoff, giver, why)
    else:
        _end(handoff, "failed" if policy == "fail" else "timed_out", why, needs_human=True)


def _retry(handoff: dict[str, Any]) -> None:
    from caliber import handoffs

    again = {
        "attempts": handoff["attempts"] + 1,
        "status": "initiated",
        "received_trajectory_id": None,
        "received_scope_id": None,
        "lock_ids": handoff["lock_ids"],
        "moved_lock_ids": [],
        "joint_locks": [],
    }
    pause = BACKOFF_MS * 2 ** (handoff["attempts"] - 1)
    handoffs_store.audit(handoff, "retried", f"attempt {again['attempts']} of {MAX_ATTEMPTS}")
    times: dict[str, int | None] = dict.fromkeys(
        ("accepted_at", "started_at", "return_by", "lapses_at", "reminded_at"), None
    )
    handoffs.offer(handoffs_store.save(handoff, again, times), pause)


def _escalate(handoff: dict[str, Any], giver: dict[str, Any], why: str) -> None:
    """The same packet to who is above, marked with the timeout; in the end to a human."""
    from caliber import handoffs

    below = handoff["to_agent_id"] or giver["agent_id"]
    passed = [giver["agent_id"], *handoff["tried_agent_ids"], below]
    target = handoffs_route.above(below, passed) or handoffs_route.above(giver["agent_id"], passed)
    depth = handoff["escalation_depth"] + 1
    handoffs_store.audit(handoff, "escalated", why)
    if target is None or depth > handoffs_route.MAX_DEPTH:
        _end(handoff, "escalated", why, needs_human=True)
        return
    trajectory = handoffs_store.trajectory(handoff["trajectory_id"])
    if trajectory["agent_id"] != giver["agent_id"] or trajectory["status"] != "active":
        _end(handoff, "escalated", why, needs_human=False)
        return
    beside = handoffs.OFFERED.one(handoff["trajectory_id"])
    if beside is not None and beside["handoff_id"] != handoff["handoff_id"]:
        # The work is offered to one at a time. Where it goes up already there is nothing to add.
        _end(handoff, "escalated", why, needs_human=beside["handoff_type"] != "escalation")
        return
    _end(handoff, "escalated", why, needs_human=False)
    packet = {key: value for key, value in handoff.items() if key in _PACKET}
    packet.update(
        handoff_type="escalation",
        triggered_by="timeout",
        reason="timeout",
        handoff_notes=f"[timeout: {why}] {handoff['handoff_notes']}"[:10_000],
        decision_rationale=handoff["decision_rationale"] or why,
        return_expected=True,
    )
    new = handoffs.complete_packet(packet, giver, trajectory)
    new.update(
        to_agent_id=target, to_agent_type=None, escalation_depth=depth,
        parent_handoff_id=handoff["handoff_id"], tried_agent_ids=passed[1:],
    )  # fmt: skip
    handoffs_store.audit(new, "initiated", "timeout", why)
    handoffs_store.insert(new)
    handoffs.offer(new)


_PACKET = frozenset(
    {
        "handoff_notes", "next_steps", "blockers", "open_questions", "task_id", "risk_level", "priority",
        "variables", "artifact_ids", "lock_ids", "history_mode", "max_messages", "history_include",
        "token_budget", "required_capabilities", "min_proficiency", "autonomy_budget", "budget",
        "deadline", "return_timeout_ms", "on_timeout", "sender_waits", "reroute", "ack_timeout_ms",
    }
)  # fmt: skip


def _end(handoff: dict[str, Any], status: str, why: str, needs_human: bool) -> None:
    if status != "escalated":
        handoffs_store.audit(handoff, "failed", why, outcome="failed", needs_human=needs_human)
    ended = {
        "status": status,
        "status_reason": why,
        "needs_human": needs_human,
        "lock_ids": handoff["lock_ids"],
    }
    if handoff["accepted_at"] is not None:
        ended["return_status"] = "timeout"
    handoffs_store.save(handoff, ended, {"resolved_at": 0, "due_at": None, "ack_by": None})
    handoffs_groups.count(handoff, success=False)
    _tell(handoff, "task_failed", handoff["from_agent_id"], f"{status}: {why}")


def _tell(handoff: dict[str, Any], kind: str, recipient: str | None, subject: str) -> None:
    """In the other party's name; where the caller cannot speak for it, nobody is told."""
    parties = (handoff["from_agent_id"], handoff["to_agent_id"])
    sender = parties[0] if recipient == parties[1] else parties[1]
    if recipient is not None and sender is not None and callers.may_speak(sender):
        handoffs_tell.tell(handoff, kind, sender, recipient, subject, "high")
