"""Rows of the bench about messages."""

from __future__ import annotations

import contextlib
import random
import statistics
import threading
import time
from collections.abc import Iterator

import psycopg
from rows import Options, Row
from server import DATABASE, SMALL, Session, connect, pgbench, scratch, script, throughput

AGENT = "('00000000-0000-7000-8000-' || lpad('{n}', 12, '0'))::uuid"

# 100 messages from others to one agent; the second argument is its team, which they do not need.
MAKE_OWN = """
    with made as (
        insert into caliber_message (message_id, from_agent_id, to_agent_id, message_type, payload, thread_id)
        select new.id, a.agent_id, %s, 'nudge', '{}', new.id
        from caliber_agent as a, lateral (select _caliber_uuid_v7(null) as id, a.agent_id) as new
        where a.team_id <> %s
        limit 100
        returning message_id, from_agent_id, to_agent_id
    )
    insert into caliber_delivery (message_id, queue_id, from_agent_id, seq, priority, agent_id)
    select
        m.message_id, m.to_agent_id, m.from_agent_id, nextval('caliber_message_seq'), 'normal', m.to_agent_id
    from made as m
"""

METHOD = """\
- Messages: 1,000 agents, sender and recipient at random, a payload of 60 bytes; the queue limit is
  off, wake-ups are off but where the row says so. Receive takes one message of a random inbox and
  acknowledges it; plain SQL does so with one prepared statement each and knows inboxes only, no
  queues of types. Batches are 100 messages a call, per message. `always` has one listener.
- Receive with 1,000 and with many stored messages: both databases have 1,000 open ones, the
  others are processed, and no inbox is empty; the median of calls in turns. Held snapshot: a transaction
  keeps one open while messages are sent, taken and acknowledged in one queue for {held} s, in the
  last quarter of that time, against the same without.
"""


def fill(session: Session, messages: int) -> None:
    text = script("messages_fill.sql").replace(":messages", str(messages))
    session.execute(text)
    session.execute("vacuum analyze caliber_message, caliber_delivery")


def prepare(session: Session, mode: str = "off") -> None:
    session.execute("select caliber_config_set('message_queue_limit', '0')")
    session.execute("select caliber_config_set('notify_mode', %s)", [mode])


def process_all(session: Session, keep: int) -> None:
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


def receive_times(session: Session, calls: int, luck: random.Random) -> list[float]:
    """Milliseconds of taking a message of a random inbox. One is put there before and settled after,
    so that no inbox is empty and as many stay open."""
    times = []
    for _ in range(calls):
        agent = AGENT.format(n=luck.randint(1, 1000))
        session.execute(f"select caliber_message_send({agent}, {agent}, null, 'nudge')")
        began = time.perf_counter()
        rows = session.execute(
            f"select message_id, receipt from caliber_message_receive({agent}, max_messages => 1)"
        ).fetchall()
        times.append((time.perf_counter() - began) * 1000)
        session.execute("select caliber_message_acknowledge(%s, %s)", rows[0])
    return times


# --- the rows ---


def rows(options: Options) -> Iterator[Row]:
    with scratch(DATABASE), connect(DATABASE) as session:
        prepare(session)
        fill(session, options.rounds * options.seconds * 30_000)
        yield throughput("message send, 8 clients", "messages_send", options, 0.7)
        yield throughput("message receive + acknowledge, 8 clients", "messages_receive", options, 0.6)
        yield batches(options)
        yield modes(session, ("armed", "off"), 8, 0.85, options)
        with listener(DATABASE):
            yield modes(session, ("armed", "always"), 32, 2, options)
    yield stored(options)
    yield held(options)


def batches(options: Options) -> Row:
    single: list[float] = []
    batch: list[float] = []
    for _ in range(options.rounds):
        single.append(pgbench("messages_send_ours.sql", options.seconds))
        batch.append(100 * pgbench("messages_batch_ours.sql", options.seconds))
    mine, other = statistics.median(batch), statistics.median(single)
    what = "message send in batches of 100, 8 clients"
    return Row(what, f"{mine:,.0f}/s", f"{other:,.0f}/s one by one", mine / other, at_least=8)


def modes(
    session: Session,
    names: tuple[str, str],
    clients: int,
    at_least: float,
    options: Options,
) -> Row:
    rates: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            prepare(session, name)
            rates[name].append(pgbench("messages_send_ours.sql", options.seconds, clients))
    prepare(session)
    mine, other = (statistics.median(rates[name]) for name in names)
    what = f"message send, notify_mode {names[0]}, {clients} clients"
    return Row(what, f"{mine:,.0f}/s", f"{other:,.0f}/s {names[1]}", mine / other, at_least=at_least)


def stored(options: Options) -> Row:
    times: dict[str, list[float]] = {SMALL: [], DATABASE: []}
    with scratch(DATABASE), scratch(SMALL), connect(SMALL) as small, connect(DATABASE) as large:
        for session, count in ((small, 1_000), (large, options.events)):
            prepare(session)
            fill(session, count)
            process_all(session, 1_000)
        luck = random.Random(7)
        for batch in range(5):
            for name, session in ((SMALL, small), (DATABASE, large)):
                taken = receive_times(session, options.calls // 5, luck)
                times[name] += taken if batch else []
    mine, other = statistics.median(times[DATABASE]), statistics.median(times[SMALL])
    what = f"message receive, {options.events:,} stored"
    return Row(what, f"{mine:.2f} ms", f"{other:.2f} ms at 1,000", mine / other, at_most=1.2)


def held(options: Options) -> Row:
    rates = {}
    for hold in (False, True):
        with scratch(DATABASE), connect(DATABASE) as session:
            prepare(session)
            rates[hold] = held_rate(DATABASE, options.held, hold)
    what = f"message queue, a snapshot held open for {options.held} s"
    ratio = rates[True] / rates[False]
    return Row(what, f"{rates[True]:,.0f}/s", f"{rates[False]:,.0f}/s free", ratio, at_least=0.5)
