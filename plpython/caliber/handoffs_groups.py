"""Handoffs: broadcasts, which are handoffs of one thing to several agents, taken together."""

from __future__ import annotations

from typing import Any

from caliber import callers, checks, errors, handoffs_rules, memory_rules, messages_rules
from caliber.plans import plan

MAX_MEMBERS = 50

_SETTING = plan("select @extschema@._caliber_config_value($1)::bigint as value", "text")

_NEW = plan(
    """
    insert into @extschema@.caliber_handoff_group as g (
        broadcast_group_id, team_id, from_agent_id, trajectory_id, aggregation, members
    )
    values (@extschema@.caliber_uuid_v7(), $1, $2, $3, $4, $5)
    returning g.broadcast_group_id
    """,
    "uuid",
    "uuid",
    "uuid",
    "@extschema@.caliber_aggregation",
    "int4",
)

# Decided once, on the locked row: what is needed has succeeded, or can no more.
_COUNT = plan(
    """
    update @extschema@.caliber_handoff_group as g
    set
        succeeded = g.succeeded + $2,
        failed = g.failed + 1 - $2,
        outcome = coalesce(g.outcome, case
            when g.succeeded + $2 >= n.needed then case
                when g.failed + 1 - $2 > 0 then 'partial' else 'success'
            end
            when g.failed + 1 - $2 > g.members - n.needed then 'failed'
        end::@extschema@.caliber_return_status),
        decided_at = coalesce(g.decided_at, case
            when g.succeeded + $2 >= n.needed or g.failed + 1 - $2 > g.members - n.needed
                then pg_catalog.clock_timestamp()
        end)
    from @extschema@.caliber_handoff_group as x
    cross join lateral (
        select case x.aggregation
            when 'all' then x.members when 'any' then 1 else x.members / 2 + 1
        end as needed
    ) as n
    where g.broadcast_group_id = $1 and x.broadcast_group_id = $1
    returning g.outcome
    """,
    "uuid",
    "int4",
)


_GROUP = plan(
    """
    select g.broadcast_group_id, g.from_agent_id
    from @extschema@.caliber_handoff_group as g
    where g.broadcast_group_id = $1
    """,
    "uuid",
)

_OPEN = plan(
    """
    select h.handoff_id, h.to_agent_id
    from @extschema@.caliber_handoff as h
    where h.broadcast_group_id = $1 and h.resolved_at is null and h.returned_at is null
    order by h.handoff_id
    """,
    "uuid",
)

# All that count are counted by now. Where none did, nothing was asked for but to be told.
_DECIDE = plan(
    """
    update @extschema@.caliber_handoff_group as g
    set
        outcome = coalesce(g.outcome, 'success'),
        decided_at = coalesce(g.decided_at, pg_catalog.clock_timestamp())
    where g.broadcast_group_id = $1
    returning g.outcome
    """,
    "uuid",
)


def setting(name: str) -> int:
    return int((_SETTING.one(name) or {})["value"])


def count(handoff: dict[str, Any], success: bool) -> None:
    """One of a broadcast has ended; those that need not return do not count."""
    if handoff.get("broadcast_group_id") and handoff["return_expected"]:
        _COUNT.rows(handoff["broadcast_group_id"], int(success))


def broadcast(
    from_agent_id: str | None,
    to_agent_ids: list[str | None] | None,
    trajectory_id: str | None,
    reason: str | None,
    handoff_notes: str | None,
    next_steps: list[str | None] | None,
    aggregation: str | None,
    return_timeout_ms: int | None,
    return_expected: list[bool | None] | None,
    on_timeout: str | None,
    task_id: str | None,
    variables: str | None,
    artifact_ids: list[str | None] | None,
    required_capabilities: list[str | None] | None,
    risk_level: str | None,
    priority: str | None,
    token_budget: int | None,
    incarnation: int | None,
) -> list[dict[str, Any]]:
    from caliber import handoffs, handoffs_route, handoffs_store

    memory_rules.acts_for(from_agent_id)
    checks.required("from_agent_id", from_agent_id)
    checks.required("aggregation", aggregation)
    targets = handoffs_rules.ids("to_agent_ids", to_agent_ids)
    if not 1 <= len(targets) <= MAX_MEMBERS:
        errors.invalid("to_agent_ids", f"{len(targets)} agents", f"must hold 1 to {MAX_MEMBERS} agents")
    # Before anything is looked up or locked: nothing tells of agents that are not the sender's to know.
    for target in targets:
        messages_rules.refuse_recipient(str(from_agent_id), target)
    packet = handoffs.arguments(
        reason, handoff_notes, next_steps, "broadcast", "explicit_request", None, None, task_id, None,
        risk_level, priority, variables, artifact_ids, None, None, "{}", token_budget,
        required_capabilities, "{}", None, None, None, return_timeout_ms, on_timeout, False, False, None,
    )  # fmt: skip
    packet["priority"] = packet["priority"] or "normal"
    returns = _returns(return_expected, len(targets))
    sender, trajectory, _ = handoffs.sender_of(from_agent_id, trajectory_id, incarnation)
    members = sum(returns) or len(targets)
    group = _NEW.one(trajectory["team_id"], from_agent_id, trajectory_id, aggregation, members) or {}
    group_id = group["broadcast_group_id"]
    whole = handoffs.complete_packet(packet, sender, trajectory)
    rows = []
    for target, wanted in zip(targets, returns, strict=True):
        handoff = {
            **whole,
            "handoff_id": (handoffs.NEW_ID.one() or {})["id"],
            "broadcast_group_id": group_id,
            "to_agent_id": target,
            "to_agent_type": None,
            "return_expected": wanted,
        }
        handoffs_route.first(handoff, sender)
        handoff_id = handoffs.begin(handoff, sender)
        status = handoffs_store.peek(handoff_id)["status"]
        rows.append(
            {
                "broadcast_group_id": group_id,
                "handoff_id": handoff_id,
                "to_agent_id": target,
                "status": status,
            }
        )
    return rows


def _returns(given: list[bool | None] | None, targets: int) -> list[bool]:
    if not given:
        return [True] * targets
    if len(given) not in (1, targets) or None in given:
        errors.invalid("return_expected", given, "must hold one boolean, or one for each agent")
    return [bool(value) for value in given] * (targets if len(given) == 1 else 1)


def close(
    broadcast_group_id: str | None, agent_id: str | None, reason: str | None, incarnation: int | None
) -> str:
    """The sender waits for no more of them: offers are withdrawn, work is stopped, and what came counts."""
    from caliber import handoffs_store

    memory_rules.acts_for(agent_id)
    checks.required("broadcast_group_id", broadcast_group_id)
    checks.required("agent_id", agent_id)
    reason = checks.label("reason", reason, 1000) or "the broadcast was closed"
    group = _GROUP.one(broadcast_group_id)
    if group is None or group["from_agent_id"] != agent_id:
        memory_rules.missing("handoff_group", broadcast_group_id)
    receivers = [row["to_agent_id"] for row in _OPEN.rows(broadcast_group_id)]
    found = handoffs_store.agents(agent_id, *receivers)
    memory_rules.fence(agent_id, incarnation)
    callers.refuse_ended(found[str(agent_id)], None)
    group = _GROUP.one(broadcast_group_id) or {}
    if group["from_agent_id"] != agent_id:
        memory_rules.missing("handoff_group", broadcast_group_id)
    rows = list(_OPEN.rows(broadcast_group_id))
    # Also who was handed a part of it while the others were waited for.
    found |= handoffs_store.agents(*(row["to_agent_id"] for row in rows if row["to_agent_id"] not in found))
    for row in rows:
        _stop(handoffs_store.lock(row["handoff_id"]), found, reason)
    return str((_DECIDE.one(broadcast_group_id) or {})["outcome"])


def _stop(handoff: dict[str, Any], found: dict[str, dict[str, Any]], reason: str) -> None:
    from caliber import handoffs, handoffs_move, handoffs_store, handoffs_tell

    if handoff["status"] in handoffs_store.PENDING:
        handoffs.take_back(handoff, reason)
    else:
        taker = found[handoff["to_agent_id"]]
        handoffs_store.audit(handoff, "failed", reason, outcome="failed", closed=True)
        handoffs_move.finish_child(handoff["received_trajectory_id"], "failed", reason)
        handoffs_move.take_off(taker, handoff["received_trajectory_id"])
        ended = {"status": "failed", "status_reason": reason, "return_status": "failed"}
        handoffs_store.save(handoff, ended, {"resolved_at": 0, "due_at": None})
        count(handoff, success=False)
    handoffs_tell.tell(
        handoff, "notification", handoff["from_agent_id"], handoff["to_agent_id"], f"closed: {reason}"
    )
