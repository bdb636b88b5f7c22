"""Handoffs: the messages about them. They are hints: what counts is the handoff itself."""

from __future__ import annotations

from typing import Any

import plpy

from caliber import errors, messages
from caliber.plans import plan

_SKIPPED = plan(
    """
    select @extschema@._caliber_log(
        'handoff_untold', 'coordination', 'warning', $1, $2, null, $3, 'handoff', $4
    )
    """,
    "text",
    "uuid",
    "uuid",
    "text",
)


def tell(
    handoff: dict[str, Any],
    kind: str,
    sender: str,
    recipient: str | None,
    subject: str,
    priority: str | None = None,
    to_type: str | None = None,
) -> None:
    """To an inbox that is full, or to an agent that has ended, nothing is sent."""
    import json

    payload = json.dumps({"handoff_id": handoff["handoff_id"], "handoff_type": handoff["handoff_type"]})
    try:
        with plpy.subtransaction():
            messages.send(
                sender, recipient, None if recipient else to_type, kind, payload,
                handoff["trajectory_id"], priority or handoff["priority"], subject[:200], None, None,
                None, None, None, False, None, None, None, None,
            )  # fmt: skip
    except errors.CaliberError as error:
        if error.sqlstate not in (errors.AT_CAPACITY, errors.UNAVAILABLE, errors.WRONG_STATE):
            raise
        _SKIPPED.rows(f"not told: {subject}"[:200], sender, handoff["trajectory_id"], handoff["handoff_id"])
