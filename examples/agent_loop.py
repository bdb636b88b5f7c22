"""An agent that reads its messages: LISTEN, receive, work, acknowledge; with psycopg 3.

    python examples/agent_loop.py "$(make -s dsn)" AGENT_ID

It survives a lost connection: what it had taken comes again when the lease runs out.
"""

from __future__ import annotations

import sys
import time

import psycopg
from psycopg.rows import dict_row

STALE = "KA001"
Connection = psycopg.Connection[dict[str, object]]


def handle(message: dict[str, object]) -> None:
    """The work. May be done twice for one message: after a crash it comes again."""
    print(f"{message['message_type']}: {message['payload']}", flush=True)


def settle(conn: Connection, message: dict[str, object]) -> None:
    key = [message["message_id"], message["receipt"]]
    try:
        handle(message)
    except Exception as error:
        conn.execute("select caliber_message_reject(%s, %s, %s)", [key[0], str(error)[:2000], key[1]])
    else:
        conn.execute("select caliber_message_acknowledge(%s, %s)", key)


def listen(conn: Connection, agent_id: str) -> None:
    for row in conn.execute("select caliber_message_channels(%s) as name", [agent_id]).fetchall():
        conn.execute(f"listen {row['name']}")


def read_for_ever(conn: Connection, agent_id: str) -> None:
    listen(conn, agent_id)
    while True:
        messages = conn.execute("select * from caliber_message_receive(%s)", [agent_id]).fetchall()
        for message in messages:
            try:
                settle(conn, message)
            except psycopg.Error as error:
                if error.sqlstate != STALE:
                    raise
                # It took too long and somebody else has it now: nothing was changed.
        if messages:
            continue
        found = conn.execute("select state, wait_ms from caliber_message_arm(%s)", [agent_id]).fetchone()
        assert found
        seconds = float(str(found["wait_ms"])) / 1000
        if found["state"] == "armed":
            if not list(conn.notifies(timeout=seconds, stop_after=1)):
                # Nobody called: perhaps the setting notify_mode, and with it the channel, has changed.
                listen(conn, agent_id)
        elif found["state"] == "poll":
            time.sleep(min(seconds, 0.5))


def main() -> None:
    dsn, agent_id = sys.argv[1:3]
    while True:
        try:
            with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
                read_for_ever(conn, agent_id)
        except psycopg.OperationalError as error:
            print(f"connection lost, trying again: {error}", file=sys.stderr, flush=True)
            time.sleep(0.5)


if __name__ == "__main__":
    main()
