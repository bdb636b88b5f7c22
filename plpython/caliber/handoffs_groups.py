"""Handoffs: broadcasts, which are handoffs of one thing to several agents, taken together."""

from __future__ import annotations

from typing import Any

from caliber import checks, errors, handoffs_rules, memory_rules
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
    checks.required("aggregation", aggregation)
    packet = handoffs.arguments(
        reason, handoff_notes, next_steps, "broadcast", "explicit_request", None, None, task_id, None,
        risk_level, priority, variables, artifact_ids, None, None, "{}", token_budget,
        required_capabilities, "{}", None, None, None, return_timeout_ms, on_timeout, False, False, None,
    )  # fmt: skip
    targets = handoffs_rules.ids("to_agent_ids", to_agent_ids)
    if not 1 <= len(targets) <= MAX_MEMBERS:
        errors.invalid("to_agent_ids", f"{len(targets)} agents", f"must hold 1 to {MAX_MEMBERS} agents")
    returns = _returns(return_expected, len(targets))
    sender, trajectory = handoffs.sender_of(from_agent_id, trajectory_id, incarnation)
    # In one order, whoever broadcasts to some of the same.
    handoffs_store.agents(*targets)
    members = sum(returns) or len(targets)
    group = _NEW.one(trajectory["team_id"], from_agent_id, trajectory_id, aggregation, members) or {}
    group_id = group["broadcast_group_id"]
    rows = []
    for target, wanted in zip(targets, returns, strict=True):
        handoff = handoffs.complete_packet(packet, sender, trajectory)
        handoff.update(
            broadcast_group_id=group_id, to_agent_id=target, to_agent_type=None, return_expected=wanted
        )
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
