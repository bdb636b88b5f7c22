"""Handoffs: parts of a work that are out while the whole changes hands.

Who takes a trajectory takes the sender's place in what was handed out of it and has not ended: results,
leases and answers go to who has the whole. A part that the new owner works on itself stays its sender's on
paper, since nobody hands to itself; the owner may complete it, as it may every part.
"""

from __future__ import annotations

from typing import Any

from caliber import handoffs_move, handoffs_store, messages
from caliber.plans import plan

# Called with both agents and the trajectory held, so nobody else takes or returns one of its own.
_OUT = plan(
    """
    select h.handoff_id
    from @extschema@.caliber_handoff as h
    where h.trajectory_id = $1
        and h.resolved_at is null
        and h.from_agent_id <> $2
        and (h.handoff_type in ('delegation', 'broadcast') or h.returned_at is not null)
    order by h.handoff_id
    """,
    "uuid",
    "uuid",
)

_BROADCASTS = plan(
    """
    update @extschema@.caliber_handoff_group as g
    set from_agent_id = $2
    where g.trajectory_id = $1 and g.from_agent_id <> $2
    """,
    "uuid",
    "uuid",
)


def inherit(trajectory_id: str, giver: dict[str, Any], taker: dict[str, Any]) -> None:
    """From one owner to the next; what was promised to the one before stays promised."""
    locked = [handoffs_store.lock(row["handoff_id"]) for row in _OUT.rows(trajectory_id, taker["agent_id"])]
    out = [part for part in locked if part["resolved_at"] is None]
    for part in out:
        _pass(part, giver, taker)
    if out:
        _BROADCASTS.rows(trajectory_id, taker["agent_id"])
    if giver["status"] == "waiting" and any(part["sender_waits"] for part in out):
        handoffs_move.resume(giver)


def _pass(part: dict[str, Any], giver: dict[str, Any], taker: dict[str, Any]) -> None:
    if part["to_agent_id"] == taker["agent_id"]:
        if part["status"] in handoffs_store.PENDING:
            from caliber import handoffs

            handoffs.take_back(part, "its receiver has the whole")
        return
    changes = {"from_agent_id": taker["agent_id"], "sender_waits": False}
    handoffs_store.audit({**part, **changes}, "inherited", f"{taker['name']} has the whole")
    handoffs_store.save(part, changes)
    returned = part["returned_at"] is not None
    messages.notice(
        giver["agent_id"], taker["agent_id"], None, "task_result" if returned else "notification",
        f'{{"handoff_id": "{part["handoff_id"]}", "handoff_type": "{part["handoff_type"]}"}}',
        part["trajectory_id"], "high" if returned else part["priority"],
        f"{'returned: ' + part['return_status'] if returned else 'yours to wait for'}: "
        f"{part['handoff_notes']}"[:200],
        f"handoff:{part['handoff_id']}",
    )  # fmt: skip
