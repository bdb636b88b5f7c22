"""Rows of the bench about messages beside queues that others made for PostgreSQL: procrastinate, a
queue of jobs, and PgQ, a queue of batches. None of them has a bar."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Iterator
from pathlib import Path

import messages_rows as messages
from rows import Options, Row
from server import CLIENTS, DATABASE, Session, connect, pgbench, scratch

BACKLOG = 1_000
BATCH = 100

METHOD = """\
- Peers: both sides by their SQL functions, which pgbench calls with as many clients and durable commits,
  each step a transaction of its own; no client library is measured. Same payload. Nothing is deleted.
- procrastinate: a job is deferred, fetched and finished by any of {clients} workers of one queue, ours
  is sent to a type, received by any of its agents and acknowledged; {backlog} wait beforehand on both
  sides. procrastinate notifies twice per job, ours once in `always`; `armed` wakes only who
  waits, and here nobody does. procrastinate checks no caller and no recipient.
- PgQ: {batch} events in one statement, a tick, and the consumer's next batch, read and finished; a queue
  and a consumer for each client, ours an inbox. PgQ keeps a position for each consumer and no state for
  an event: no claim, no receipt, no priority. Its ticker is a daemon, here the client makes its tick.
  Wake-ups are off, as PgQ has none.
"""


def rows(options: Options) -> Iterator[Row]:
    with scratch(DATABASE), connect(DATABASE) as session:
        session.execute("select caliber_config_set('message_queue_limit', '0')")
        yield from procrastinate_rows(session, options)
    with scratch(DATABASE), connect(DATABASE) as session:
        session.execute("select caliber_config_set('message_queue_limit', '0')")
        session.execute("select caliber_config_set('notify_mode', 'off')")
        # Plans of empty tables would be others.
        messages.fill(session, 10 * BACKLOG)
        yield from pgq_rows(session, options)


def in_turns(what: str, ours: str, other: str, name: str, options: Options, each: int = 1) -> Row:
    mine: list[float] = []
    theirs: list[float] = []
    for _ in range(options.rounds):
        mine.append(each * pgbench(ours, options.seconds))
        theirs.append(each * pgbench(other, options.seconds))
    rate, against = statistics.median(mine), statistics.median(theirs)
    return Row(what, f"{rate:,.0f}/s", f"{against:,.0f}/s {name}", rate / against)


# --- procrastinate ---


def procrastinate_schema() -> str | None:
    """What it installs into a database, without importing it; None where it is not installed."""
    found = importlib.util.find_spec("procrastinate")
    if found is None or found.origin is None:
        return None
    return (Path(found.origin).parent / "sql/schema.sql").read_text()


def procrastinate_rows(session: Session, options: Options) -> Iterator[Row]:
    schema = procrastinate_schema()
    if schema is None:
        yield Row("message send, receive, acknowledge", "", "procrastinate: not installed", None)
        return
    session.execute(schema)
    wait(session)
    files = "peers_job_ours.sql", "peers_job_procrastinate.sql", "procrastinate"
    for mode in ("always", "armed"):
        session.execute("select caliber_config_set('notify_mode', %s)", [mode])
        yield in_turns(f"send, receive, acknowledge, 8 clients, {mode}", *files, options)
    session.execute("select caliber_config_set('notify_mode', 'always')")
    # Last, because it leaves what it sent.
    files = "peers_send_ours.sql", "peers_send_procrastinate.sql", "procrastinate, defer"
    yield in_turns("send to a type, 8 clients, always", *files, options)


def wait(session: Session) -> None:
    """A backlog on both sides, so that no worker ever finds nothing; and the workers themselves."""
    session.execute(
        "select caliber_message_send(agent_id, null, 'coder', 'task_request')"
        " from caliber_agent, generate_series(1, %s / 1000)",
        [BACKLOG],
    )
    session.execute(
        "select procrastinate_defer_jobs_v1(array_agg(row('coder', 'task_request', 0, null, null, '{}',"
        " null)::procrastinate_job_to_defer_v1)) from generate_series(1, %s)",
        [BACKLOG],
    )
    session.execute(
        "insert into procrastinate_workers (last_heartbeat) select now() from generate_series(1, %s)",
        [CLIENTS],
    )
    session.execute("vacuum analyze")


# --- PgQ ---


def pgq_rows(session: Session, options: Options) -> Iterator[Row]:
    available = session.execute("select from pg_available_extensions where name = 'pgq'").fetchone()
    if available is None:
        yield Row(f"batches of {BATCH}", "", "PgQ: not installed", None)
        return
    session.execute("create extension pgq")
    for client in range(CLIENTS):
        queue = f"queue_{client}"
        session.execute("select pgq.create_queue(%s)", [queue])
        session.execute("select pgq.register_consumer(%s, 'bench')", [queue])
        # A tick whenever there is an event, so that a batch is what one statement put there.
        session.execute("select pgq.set_queue_config(%s, 'ticker_max_count', '1')", [queue])
        session.execute("select pgq.set_queue_config(%s, 'ticker_max_lag', '0')", [queue])
    what = f"batches of {BATCH}: send, receive, acknowledge, 8 clients"
    files = "peers_batch_ours.sql", "peers_batch_pgq.sql", "PgQ"
    yield in_turns(what, *files, options, each=BATCH)
    files = "peers_batch_send_ours.sql", "peers_batch_send_pgq.sql", "PgQ, insert"
    yield in_turns(f"batches of {BATCH}: send, 8 clients", *files, options, each=BATCH)
