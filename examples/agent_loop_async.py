"""The loop of agent_loop.py with asyncio: several messages at once over one connection.

python examples/agent_loop_async.py "$(make -s dsn)" AGENT_ID
"""

from __future__ import annotations

import asyncio
import sys

import psycopg
from psycopg.rows import dict_row

STALE = "KA001"
AT_ONCE = 5
Connection = psycopg.AsyncConnection[dict[str, object]]


async def handle(message: dict[str, object]) -> None:
    """The work, such as a call of a model. May be done twice for one message."""
    print(f"{message['message_type']}: {message['payload']}", flush=True)
    await asyncio.sleep(0)


async def settle(conn: Connection, message: dict[str, object]) -> None:
    key = [message["message_id"], message["receipt"]]
    try:
        await handle(message)
    except Exception as error:
        statement = "select caliber_message_reject(%s, %s, %s)"
        arguments = [key[0], str(error)[:2000], key[1]]
    else:
        statement, arguments = "select caliber_message_acknowledge(%s, %s)", key
    try:
        await conn.execute(statement, arguments)
    except psycopg.Error as error:
        # Somebody else has it now, because it took too long here: nothing was changed.
        if error.sqlstate != STALE:
            raise


async def listen(conn: Connection, agent_id: str) -> None:
    cursor = await conn.execute("select caliber_message_channels(%s) as name", [agent_id])
    for row in await cursor.fetchall():
        await conn.execute(f"listen {row['name']}")


async def read_for_ever(conn: Connection, agent_id: str) -> None:
    await listen(conn, agent_id)
    receive = "select * from caliber_message_receive(%s, max_messages => %s)"
    while True:
        cursor = await conn.execute(receive, [agent_id, AT_ONCE])
        messages = await cursor.fetchall()
        if messages:
            await asyncio.gather(*(settle(conn, message) for message in messages))
            continue
        cursor = await conn.execute("select state, wait_ms from caliber_message_arm(%s)", [agent_id])
        found = await cursor.fetchone()
        assert found
        seconds = float(str(found["wait_ms"])) / 1000
        if found["state"] == "armed":
            if not [note async for note in conn.notifies(timeout=seconds, stop_after=1)]:
                # Nobody called: perhaps the setting notify_mode, and with it the channel, has changed.
                await listen(conn, agent_id)
        elif found["state"] == "poll":
            await asyncio.sleep(min(seconds, 0.5))


async def main() -> None:
    dsn, agent_id = sys.argv[1:3]
    while True:
        try:
            connect = psycopg.AsyncConnection.connect
            async with await connect(dsn, autocommit=True, row_factory=dict_row) as conn:
                await read_for_ever(conn, agent_id)
        except psycopg.OperationalError as error:
            print(f"connection lost, trying again: {error}", file=sys.stderr, flush=True)
            await asyncio.sleep(0.5)


if __name__ == "__main__":
    asyncio.run(main())
