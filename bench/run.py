"""Measures CALIBER against plain SQL and writes bench/results.md. Every figure that counts is a
ratio of two things measured in turns, in one run, on one machine."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import conflicts_rows as conflicts
import delegations_rows as delegations
import measure_memory
import messages_rows as messages
import psycopg
from redis_server import leases_per_second

HERE = Path(__file__).resolve().parent
DATABASE = "caliber_bench"
SMALL = "caliber_bench_small"
CLIENTS = 8
SMALL_EVENTS = 1_000
VALUES = {
    "activity": "working",
    "turns": "1",
    "tokens": "100",
    "agent_type": "coder",
    "value": '{"step": 7, "files": ["a.py", "b.py"]}',
    "payload": messages.PAYLOAD,
}
READERS = {"a superuser": "none", "an observer": "caliber_observer", "an agent": "caliber_agent"}
BAR_WIDTH = 20

METHOD = """\
- Throughput: pgbench -M prepared, {clients} clients, 2 threads, durable commits; {rounds} rounds of
  {seconds} s for each side in turns, the median of each. Plain SQL is one prepared statement that makes
  the same checks and writes the same rows ({{heartbeat,register,region_put}}_plain.sql).
- Heartbeat: 1,000 agents, a random one each time; the id is made from a number on both sides.
- Locks: a lease of one of 1,000 resources of the client's own, taken in one transaction and given back
  in the next. Redis: a script that sets the key if it is not there and counts the fence, one that
  deletes it if it is the caller's; redis-benchmark over a Unix socket, both rates put together.
- Region put: 1,000 regions of 10 keys, a random key of a random one, every version kept.
- First call: {connections} new connections for each side in turns; the median time of the first
  statement. The other side is the same statement in a PL/pgSQL function.
- Own rows: an agent's 100 rows in a table of others', with and without row security, by index.
- Events: limit 100, a prepared statement with parameters on one connection, {calls} calls for each side
  in turns in batches, the median time. `middle` reads 100 events, `tail` the last 10.
- State: 1,000 keys, a random one each time, written by one of 1,000 agents; both sides append the
  version and notify. Compare and set reads the version first and writes against it.
- Turns: 1,000 scopes, a random one each time. Context: 10,000 artifacts and 10,000 turns of one
  trajectory, 16,000 tokens, durable; the other side only fetches the rows that were chosen, knowing how
  many they are. Search: the nearest 10 of {vectors} embeddings of 384 dimensions; the other side compares
  all of them. Both on one connection by turns, the median time.
"""


@dataclass(frozen=True)
class Options:
    rounds: int
    seconds: int
    connections: int
    calls: int
    events: int
    vectors: int
    held: int


FULL = Options(rounds=3, seconds=5, connections=30, calls=600, events=1_000_000, vectors=100_000, held=40)
QUICK = Options(rounds=1, seconds=2, connections=8, calls=100, events=100_000, vectors=5_000, held=8)


@dataclass(frozen=True)
class Row:
    what: str
    ours: str
    against: str
    value: float
    unit: str = "×"
    at_least: float | None = None
    at_most: float | None = None

    @property
    def required(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g} {self.unit}"
        return "" if self.at_most is None else f"≤ {self.at_most:g} {self.unit}"

    @property
    def verdict(self) -> str:
        if self.at_least is None and self.at_most is None:
            return ""
        met = self.value >= (self.at_least or 0) and self.value <= (self.at_most or float("inf"))
        return "met" if met else "NOT MET"

    @property
    def bar(self) -> str:
        """How much of the scale is filled: up to 1 for a ratio, up to twice what is allowed else."""
        full = 2 * self.at_most if self.at_most else 1.0
        filled = round(BAR_WIDTH * min(1.0, max(0.0, self.value / full)))
        return "█" * filled + "░" * (BAR_WIDTH - filled)

    def cells(self) -> list[str]:
        value = f"{self.value:.2f} {self.unit}"
        return [self.what, self.ours, self.against, value, self.bar, self.required, self.verdict]


HEADS = ["What", "Ours", "Against", "Ratio", "Bar", "Required", ""]


# --- the scratch databases ---


def connect(database: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(dbname=database, autocommit=True)


def script(name: str) -> str:
    return (HERE / name).read_text()


def drop(database: str) -> None:
    with connect("postgres") as admin:
        admin.execute("drop database if exists " + database + " with (force)")


@contextmanager
def scratch(database: str) -> Iterator[None]:
    drop(database)
    with connect("postgres") as admin:
        admin.execute("create database " + database)
    try:
        with connect(database) as session:
            session.execute("create extension caliber cascade")
            session.execute(script("setup.sql"))
            session.execute("vacuum analyze")
        yield
    finally:
        drop(database)


# --- throughput ---


def pgbench(name: str, seconds: int, clients: int = CLIENTS) -> float:
    bindir = Path(os.environ.get("PG_CONFIG", "/usr/lib/postgresql/15/bin/pg_config")).parent
    command = [str(bindir / "pgbench"), "-n", "-M", "prepared", "-c", str(clients), "-j", "2"]
    command += ["-T", str(seconds), "-f", str(HERE / name)]
    for key, value in VALUES.items():
        command += ["-D", f"{key}={value}"]
    done = subprocess.run([*command, DATABASE], capture_output=True, text=True, check=False)
    found = re.search(r"^tps = ([0-9.]+)", done.stdout, re.MULTILINE)
    failed = re.search(r"number of failed transactions: 0 ", done.stdout) is None
    if done.returncode or failed or not found:
        raise SystemExit(f"bench: {name} failed\n{done.stdout}{done.stderr}")
    return float(found[1])


def throughput(what: str, verb: str, options: Options, at_least: float | None) -> Row:
    ours: list[float] = []
    plain: list[float] = []
    for _ in range(options.rounds):
        ours.append(pgbench(f"{verb}_ours.sql", options.seconds))
        plain.append(pgbench(f"{verb}_plain.sql", options.seconds))
    mine, other = statistics.median(ours), statistics.median(plain)
    return Row(what, f"{mine:,.0f}/s", f"{other:,.0f}/s plain SQL", mine / other, at_least=at_least)


def register_silently(options: Options) -> Row:
    """Notifying commits one after the other; without it the verb's own cost shows."""
    with connect(DATABASE) as session:
        session.execute("select caliber_config_set('event_notify', 'off')")
        row = throughput("register, 8 clients, event_notify off", "register", options, None)
        session.execute("select caliber_config_reset('event_notify')")
    return row


def state_rows(options: Options) -> Iterator[Row]:
    with connect(DATABASE) as session:
        session.execute(script("state_setup.sql"))
        session.execute("vacuum analyze")
        yield throughput("state set, 8 clients", "state_set", options, None)
        session.execute("select caliber_config_set('state_notify', 'off')")
        yield throughput("state set, 8 clients, state_notify off", "state_set", options, None)
        yield throughput("state get and compare-and-set, 8 clients, off", "state_cas", options, None)
        session.execute("select caliber_config_reset('state_notify')")


# --- memory ---


def memory_rows(options: Options) -> Iterator[Row]:
    with connect(DATABASE) as session:
        session.execute(script("memory_setup.sql"))
        session.execute("vacuum analyze")
        yield throughput("turn add, 8 clients", "turn", options, None)
        mine, other = measure_memory.context(session, options.calls)
        against = f"{other:.2f} ms fetching it"
        yield Row("context, 10,000 artifacts and turns", f"{mine:.2f} ms", against, mine / other, at_most=5)
        mine, other, recall = measure_memory.search(session, options.vectors, max(10, options.calls // 20))
        what = f"search, {options.vectors:,} × 384, by the index, recall {recall:.2f}"
        yield Row(what, f"{mine:.2f} ms", f"{other:.1f} ms comparing all", mine / other, at_most=1)


# --- locks ---


def locks(options: Options) -> Iterator[Row]:
    with connect(DATABASE) as session:
        session.execute(script("locks.sql"))
        session.execute("vacuum analyze caliber_resource")
    row = throughput("lock acquire + release, 8 clients", "lock", options, 0.6)
    yield row
    redis = leases_per_second(CLIENTS)
    if redis is not None:
        ours = float(row.ours.removesuffix("/s").replace(",", ""))
        what = "lock acquire + release, 8 clients"
        yield Row(what, row.ours, f"{redis:,.0f}/s Redis, appendfsync always", ours / redis)


def region_puts(options: Options) -> Row:
    with connect(DATABASE) as session:
        session.execute(script("regions_setup.sql"))
        session.execute("vacuum analyze")
    return throughput("region put, 8 clients", "region_put", options, None)


# --- the first call of a connection ---


def milliseconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def first_call(statement: str) -> float:
    with connect(DATABASE) as session:
        return milliseconds(lambda: session.execute(statement).fetchall())


def first_calls(options: Options) -> Row:
    arguments = "('00000000-0000-7000-8000-000000000001', 'working', "
    ours: list[float] = []
    other: list[float] = []
    for _ in range(options.connections):
        ours.append(first_call("select caliber_agent_heartbeat" + arguments + "turns => 1, tokens => 100)"))
        other.append(first_call("select bench_heartbeat" + arguments + "turns => 1, tokens => 100)"))
    mine, theirs = statistics.median(ours), statistics.median(other)
    against = f"{theirs:.1f} ms PL/pgSQL"
    return Row("first call of a connection", f"{mine:.1f} ms", against, mine - theirs, "ms more", at_most=25)


# --- following events ---


def fill(database: str, events: int) -> None:
    with psycopg.connect(dbname=database, autocommit=True, cursor_factory=psycopg.ClientCursor) as session:
        session.execute(script("events.sql"), {"events": events})
        session.execute("update caliber_agent set login_role = 'caliber_agent' where name = 'coder-1'")
        session.execute("vacuum analyze")


def position(session: psycopg.Connection[tuple[object, ...]], left: int) -> str:
    """The cursor after which that many events are left."""
    found = session.execute(
        "select concat_ws('-', epoch, xid, event_id) from caliber_event"
        " order by epoch desc, xid desc, event_id desc offset %s limit 1",
        [left],
    ).fetchone()
    assert found
    return str(found[0])


def reads(session: psycopg.Connection[tuple[object, ...]], cursor: str, calls: int) -> list[float]:
    def read() -> object:
        statement = "select * from caliber_events_since(%s, 100)"
        rows = session.execute(statement, [cursor], prepare=True).fetchall()
        assert rows, "the reader sees no event"
        return rows

    return [milliseconds(read) for _ in range(calls)]


def follow(place: str, reader: str, left: Callable[[int], int], options: Options) -> Row:
    times: dict[str, list[float]] = {SMALL: [], DATABASE: []}
    with connect(SMALL) as small, connect(DATABASE) as large:
        sides = ((SMALL, small, SMALL_EVENTS), (DATABASE, large, options.events))
        cursors = {name: position(session, left(events)) for name, session, events in sides}
        for _, session, _ in sides:
            session.execute(f"set role {READERS[reader]}")
        for batch in range(7):
            for name, session, _ in sides:
                taken = reads(session, cursors[name], max(3, options.calls // 6))
                times[name] += taken if batch else []
    mine, other = statistics.median(times[DATABASE]), statistics.median(times[SMALL])
    what = f"events_since, {place}, as {reader}, {options.events:,} events"
    against = f"{other:.2f} ms at {SMALL_EVENTS:,}"
    return Row(what, f"{mine:.2f} ms", against, mine / other, at_most=1.2)


def events_rows(options: Options) -> Iterator[Row]:
    fill(SMALL, SMALL_EVENTS)
    fill(DATABASE, options.events)
    for reader in READERS:
        yield follow("middle", reader, lambda events: events // 2, options)
        yield follow("tail", reader, lambda events: 10, options)


# --- messages ---


def message_rows(options: Options) -> Iterator[Row]:
    with scratch(DATABASE), connect(DATABASE) as session:
        messages.prepare(session)
        messages.fill(session, options.rounds * options.seconds * 30_000)
        yield throughput("message send, 8 clients", "messages_send", options, 0.7)
        yield throughput("message receive + acknowledge, 8 clients", "messages_receive", options, 0.6)
        yield batches(options)
        yield modes(session, ("armed", "off"), 8, 0.85, options)
        with messages.listener(DATABASE):
            yield modes(session, ("armed", "always"), 32, 2, options)
    yield stored(options)
    yield held(options)


def batches(options: Options) -> Row:
    single = [pgbench("messages_send_ours.sql", options.seconds) for _ in range(options.rounds)]
    batch = [pgbench("messages_batch_ours.sql", options.seconds) * 100 for _ in range(options.rounds)]
    mine, other = statistics.median(batch), statistics.median(single)
    what = "message send in batches of 100, 8 clients"
    return Row(what, f"{mine:,.0f}/s", f"{other:,.0f}/s one by one", mine / other, at_least=8)


def modes(
    session: psycopg.Connection[tuple[object, ...]],
    names: tuple[str, str],
    clients: int,
    at_least: float,
    options: Options,
) -> Row:
    rates: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            messages.prepare(session, name)
            rates[name].append(pgbench("messages_send_ours.sql", options.seconds, clients))
    messages.prepare(session)
    mine, other = (statistics.median(rates[name]) for name in names)
    what = f"message send, notify_mode {names[0]}, {clients} clients"
    return Row(what, f"{mine:,.0f}/s", f"{other:,.0f}/s {names[1]}", mine / other, at_least=at_least)


def stored(options: Options) -> Row:
    times: dict[str, list[float]] = {SMALL: [], DATABASE: []}
    with scratch(DATABASE), scratch(SMALL), connect(SMALL) as small, connect(DATABASE) as large:
        for session, count in ((small, 2_000), (large, options.events)):
            messages.prepare(session)
            messages.fill(session, count)
            messages.process_all(session, 1_000)
        for batch in range(5):
            for name, session in ((SMALL, small), (DATABASE, large)):
                taken = messages.receive_times(session, options.calls // 5)
                times[name] += taken if batch else []
    mine, other = messages.median(times[DATABASE]), messages.median(times[SMALL])
    what = f"message receive, {options.events:,} stored"
    return Row(what, f"{mine:.2f} ms", f"{other:.2f} ms at 1,000", mine / other, at_most=1.2)


def held(options: Options) -> Row:
    rates = {}
    for hold in (False, True):
        with scratch(DATABASE), connect(DATABASE) as session:
            messages.prepare(session)
            rates[hold] = messages.held_rate(DATABASE, options.held, hold)
    what = f"message queue, a snapshot held open for {options.held} s"
    ratio = rates[True] / rates[False]
    return Row(what, f"{rates[True]:,.0f}/s", f"{rates[False]:,.0f}/s free", ratio, at_least=0.5)


# --- delegations ---


def delegation_rows(options: Options) -> Iterator[Row]:
    with scratch(DATABASE), connect(DATABASE) as session:
        delegations.prepare(session)
        what = "delegate, accept, complete, 8 clients"
        yield throughput(what, "delegations_life", options, 0.5)


# --- reading one's own rows under row security ---

# What an agent reads of its own, by table: a query of its id, and what makes 100 such rows.
OWN = {
    "events": (
        "select * from caliber_event where source_agent_id = %s",
        "insert into caliber_event (severity, category, event_type, actor, source_agent_id, team_id, summary)"
        " select 'info', 'agent', 'probe', 'x', %s, %s, 'own' from generate_series(1, 100)",
    ),
}


def lone_agent(session: psycopg.Connection[tuple[object, ...]]) -> tuple[object, object]:
    """An agent that is alone in its team, and whom the group's role is for the time being."""
    session.execute("update caliber_agent set login_role = null where login_role = 'caliber_agent'")
    team = session.execute("select caliber_team_create('lone')").fetchone()
    agent = session.execute("select caliber_agent_register('coder', team => 'lone')").fetchone()
    assert team
    assert agent
    session.execute("update caliber_agent set login_role = 'caliber_agent' where agent_id = %s", agent)
    return agent[0], team[0]


def own_rows(options: Options) -> Iterator[Row]:
    with connect(DATABASE) as session:
        agent, team = lone_agent(session)
        for what, (query, make) in OWN.items():
            session.execute(make, [agent, team])
            session.execute("vacuum analyze")
            times: dict[str, list[float]] = {"none": [], "caliber_agent": []}
            for batch in range(7):
                for role, taken in times.items():
                    session.execute(f"set role {role}")
                    read = partial(own, session, query, agent)
                    found = [milliseconds(read) for _ in range(options.calls // 6)]
                    taken += found if batch else []
            plan = "\n".join(str(row[0]) for row in session.execute("explain " + query, [agent]))
            session.execute("reset role")
            if "Seq Scan on caliber_event" in plan or "Index" not in plan:
                raise SystemExit(f"bench: own {what} are not read by index\n{plan}")
            mine, other = (statistics.median(times[role]) for role in ("caliber_agent", "none"))
            name = f"own 100 {what} of {options.events:,}, as an agent"
            against = f"{other:.2f} ms without row security"
            yield Row(name, f"{mine:.2f} ms", against, mine / other, at_most=2)


def own(session: psycopg.Connection[tuple[object, ...]], query: str, agent: object) -> None:
    rows = session.execute(query, [agent], prepare=True).fetchall()
    # With the one of its registration.
    assert len(rows) >= 100, "the agent does not see its own"


# --- conflicts ---


def conflict_rows(options: Options) -> Iterator[Row]:
    def open_session() -> psycopg.Connection[tuple[object, ...]]:
        return connect(DATABASE)

    with scratch(DATABASE):
        figures = [
            conflicts.quality(open_session),
            conflicts.all_pairs(open_session, options.rounds),
            conflicts.memory(open_session),
            conflicts.checks(open_session, options.vectors, max(10, options.calls // 20)),
        ]
        for part in figures:
            for what, ours, against, ratio, bars in part:
                yield Row(what, ours, against, ratio, **bars)


# --- the report ---


def measure(options: Options, only: str | None) -> Iterator[Row]:
    if only in (None, "foundation"):
        yield from foundation_rows(options)
    if only in (None, "messages"):
        yield from message_rows(options)
    if only in (None, "conflicts"):
        yield from conflict_rows(options)
    if only in (None, "delegations"):
        yield from delegation_rows(options)


def foundation_rows(options: Options) -> Iterator[Row]:
    with scratch(DATABASE):
        yield throughput("heartbeat, 8 clients", "heartbeat", options, 0.7)
        yield throughput("register, 8 clients", "register", options, None)
        yield register_silently(options)
        yield from locks(options)
        yield region_puts(options)
        yield first_calls(options)
        yield from state_rows(options)
        yield from memory_rows(options)
    with scratch(DATABASE), scratch(SMALL):
        yield from events_rows(options)
        yield from own_rows(options)


def table(rows: list[Row]) -> str:
    lines = [HEADS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADS))]
    padded = [" | ".join(cell.ljust(width) for cell, width in zip(x, widths, strict=True)) for x in lines]
    rule = "-|-".join("-" * width for width in widths)
    return "\n".join(f"| {line} |" for line in [padded[0], rule, *padded[1:]]) + "\n"


def machine() -> str:
    with connect("postgres") as session:
        found = session.execute("show server_version").fetchone()
    assert found
    cores = len(os.sched_getaffinity(0))
    return f"{platform.machine()}, {cores} cores, PostgreSQL {found[0]}"


def report(rows: list[Row], options: Options) -> str:
    method = (METHOD + messages.METHOD + conflicts.METHOD + delegations.METHOD).format(
        clients=CLIENTS, dimensions=conflicts.DIMENSIONS, checked=conflicts.CHECKED, **vars(options)
    )
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return (
        "# Speed\n\nMade by `make bench`; ratios count, bare figures are this machine's.\n\n"
        f"{machine()}, {today}.\n\n{table(rows)}\n## Method\n\n{method}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short runs, to see that it works; not saved")
    parts = ("foundation", "messages", "conflicts", "delegations")
    parser.add_argument("--only", choices=parts, help="a part; not saved")
    arguments = parser.parse_args()
    quick: bool = arguments.quick or arguments.only is not None
    options = QUICK if arguments.quick else FULL
    rows: list[Row] = []
    for row in measure(options, arguments.only):
        print(" ".join(row.cells()), flush=True)
        rows.append(row)
    text = report(rows, options)
    print("\n" + text)
    if not quick:
        (HERE / "results.md").write_text(text)


if __name__ == "__main__":
    main()
