"""Rows of the bench about messages; run by run.py in its scratch database."""

from __future__ import annotations

import contextlib
import statistics
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

HERE = Path(__file__).resolve().parent
AGENT = "('00000000-0000-7000-8000-' || lpad('{n}', 12, '0'))::uuid"
PAYLOAD = '{"task": "review", "file": "src/auth.py", "lines": [1, 2, 3]}'

METHOD = """\
- Messages: 1,000 agents, sender and recipient at random, a payload of 60 bytes; the queue limit is
  off, wake-ups are off but where the row says so. Receive takes one message of a random inbox and
  acknowledges it; plain SQL does so with one prepared statement each and knows inboxes only, no
  queues of types. Batches are 100 messages a call, per message. `always` has one listener.
- Receive with 1,000 and with 1,000,000 stored messages: both databases have 1,000 open ones, the
  others are processed; the median of calls in turns. Held snapshot: a transaction that keeps a
  snapshot open while messages are sent, taken and acknowledged in one queue for {held} s, in the
  last quarter of that time, against the same without.
"""


def fill(session: psycopg.Connection[Any], messages: int) -> None:
    text = (HERE / "messages_fill.sql").read_text().replace(":messages", str(messages))
    session.execute(text)
    session.execute("vacuum analyze caliber_message, caliber_delivery")


def prepare(session: psycopg.Connection[Any], mode: str = "off") -> None:
    session.execute("select caliber_config_set('message_queue_limit', '0')")
    session.execute("select caliber_config_set('notify_mode', %s)", [mode])


def process_all(session: psycopg.Connection[Any], keep: int) -> None:
    """All but the last ones are processed, as after a day of work."""
    session.execute(
        "update caliber_delivery set status = 'processed', processed_at = now()"
        " where seq <= (select max(seq) - %s from caliber_delivery)",
        [keep],
    )
    session.execute("vacuum analyze caliber_message, caliber_delivery")


class Work(threading.Thread):
    """One agent's queue: send, take, acknowledge, over and over; counts how often."""

    def __init__(self, database: str, agent: int) -> None:
        super().__init__()
        self.database, self.agent = database, agent
        self.count = 0
        self.ending = threading.Event()

    def run(self) -> None:
        me = AGENT.format(n=self.agent)
        send = f"select caliber_message_send({me}, {me}, null, 'nudge')"
        take = f"select message_id, receipt from caliber_message_receive({me}, max_messages => 1)"
        with psycopg.connect(dbname=self.database, autocommit=True) as session:
            while not self.ending.is_set():
                session.execute(send, prepare=True)
                row = session.execute(take, prepare=True).fetchone()
                if row:
                    session.execute("select caliber_message_acknowledge(%s, %s)", row, prepare=True)
                self.count += 1


def held_rate(database: str, seconds: float, hold: bool) -> float:
    """How often a second in the last quarter of the time, with or without an old snapshot."""
    with contextlib.ExitStack() as stack:
        if hold:
            holder = stack.enter_context(psycopg.connect(dbname=database))
            holder.execute("set transaction isolation level repeatable read")
            holder.execute("select count(*) from caliber_delivery")
        workers = [Work(database, agent) for agent in (1, 1, 2, 2)]
        for worker in workers:
            worker.start()
        pause = threading.Event()
        pause.wait(seconds * 3 / 4)
        before = sum(worker.count for worker in workers)
        pause.wait(seconds / 4)
        after = sum(worker.count for worker in workers)
        for worker in workers:
            worker.ending.set()
        for worker in workers:
            worker.join()
    return (after - before) / (seconds / 4)


@contextlib.contextmanager
def listener(database: str) -> Iterator[None]:
    with psycopg.connect(dbname=database, autocommit=True) as session:
        session.execute("listen caliber_agent_message")
        ending = threading.Event()

        def read() -> None:
            while not ending.is_set():
                for _ in session.notifies(timeout=0.2):
                    pass

        thread = threading.Thread(target=read)
        thread.start()
        yield
        ending.set()
        thread.join()


def receive_times(session: psycopg.Connection[Any], calls: int) -> list[float]:
    """Milliseconds of taking a message of a random inbox; it is given back at once."""
    import random
    import time

    luck = random.Random(calls)
    times = []
    for _ in range(calls):
        agent = AGENT.format(n=luck.randint(1, 1000))
        began = time.perf_counter()
        rows = session.execute(
            f"select message_id, receipt from caliber_message_receive({agent}, max_messages => 1)"
        ).fetchall()
        times.append((time.perf_counter() - began) * 1000)
        if rows:
            session.execute("select caliber_message_acknowledge(%s, %s)", rows[0])
    return times


def median(times: list[float]) -> float:
    return statistics.median(times)
