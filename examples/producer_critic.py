"""A producer and a critic take turns on a draft until the critic approves it.

    python examples/producer_critic.py "$(make dsn)"

Each would be a process of its own; here they are two threads with a connection each. The token
says whose turn it is, the shared state holds the draft, and a checkpoint says how far each came.
What a turn does and its end are one transaction: either the other finds the new draft and has
the turn, or nothing has happened. A process that dies in its turn loses it when its hold ends.
"""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

Connection = psycopg.Connection[tuple[Any, ...]]
Draft = dict[str, Any]

# What an agent makes of the draft; None when there is nothing for it to do.
Move = Callable[[Draft | None], Draft | None]


def produce(draft: Draft | None) -> Draft | None:
    if draft is None:
        return {"number": 1, "text": "Locks are leases.", "verdict": None}
    if draft["verdict"] == "revise":
        return {"number": draft["number"] + 1, "text": draft["text"] + " See why.", "verdict": None}
    return None


def criticise(draft: Draft | None) -> Draft | None:
    if draft is None or draft["verdict"]:
        return None
    return {**draft, "verdict": "approved" if draft["number"] == 3 else "revise"}


def wait_for_turn(conn: Connection, agent_id: str, scope: str) -> int:
    """The number of the turn. Asking again keeps the place in line and claims the turn when it
    has come; a notification says when, and should it be lost, half a second does."""
    while True:
        query = "select granted, turn from caliber_token_request(%s, 'producer_critic', %s, 60)"
        row = conn.execute(query, [agent_id, scope]).fetchone()
        assert row
        if row[0]:
            return int(row[1])
        for _ in conn.notifies(timeout=0.5, stop_after=1):
            pass


def take_turn(
    conn: Connection, name: str, agent_id: str, scope: str, move: Move
) -> tuple[Draft | None, bool]:
    """Waits for a turn, moves and hands over; returns the draft and whether there was a move."""
    turn = wait_for_turn(conn, agent_id, scope)
    with conn.transaction():
        # From here to the commit the turn cannot be lost; KA001 if it is already.
        conn.execute("select caliber_token_guard(%s, 'producer_critic', %s, %s)", [agent_id, scope, turn])
        query = "select value, version from caliber_state_get('producer_critic', %s)"
        draft, version = conn.execute(query, [scope]).fetchone() or (None, 0)
        made = move(draft)
        if made is not None:
            conn.execute(
                "select caliber_state_set('producer_critic', %s, %s, %s, agent_id => %s)",
                [scope, Jsonb(made), version, agent_id],
            )
            conn.execute(
                "select caliber_checkpoint_save(%s, 'turn_taken', %s, %s)",
                [agent_id, f"{scope}/{turn}", Jsonb({"draft": made["number"]})],
            )
            # Said within the turn, so that nobody speaks out of turn.
            print(f"{name}: draft {made['number']}, {made['verdict'] or 'please review'}", flush=True)
        conn.execute("select caliber_token_release(%s, 'producer_critic', %s, %s)", [agent_id, scope, turn])
    return made or draft, made is not None


def work(dsn: str, name: str, agent_id: str, scope: str, move: Move) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("listen caliber_token")
        conn.execute("listen caliber_state")
        while True:
            draft, moved = take_turn(conn, name, agent_id, scope, move)
            if draft and draft["verdict"] == "approved":
                return
            if not moved:
                # Nothing to do yet: until the draft changes.
                for _ in conn.notifies(timeout=0.5, stop_after=1):
                    pass


def main(dsn: str) -> None:
    scope = f"draft-{uuid.uuid4().hex[:8]}"
    threads = []
    with psycopg.connect(dsn, autocommit=True) as conn:
        for kind, move in (("producer", produce), ("critic", criticise)):
            row = conn.execute("select caliber_agent_register(%s)", [kind]).fetchone()
            assert row
            arguments = (dsn, kind, str(row[0]), scope, move)
            threads.append(threading.Thread(target=work, args=arguments))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1])
