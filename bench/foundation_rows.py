"""Rows of the bench about agents, locks, regions, state, memory and first calls."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import measure_memory
from redis_server import leases_per_second
from rows import Options, Row
from server import CLIENTS, DATABASE, connect, in_turns, milliseconds, scratch, script, throughput

METHOD = """\
- Throughput: pgbench -M prepared, {clients} clients, 2 threads, durable commits; {rounds} rounds of
  {seconds} s, after {warm_up} s that warm the connections up, for each side in turns, the median of
  each. Plain SQL is one prepared statement that makes
  the same checks and writes the same rows ({{heartbeat,register,region_put}}_plain.sql).
- Heartbeat: 1,000 agents, a random one each time; the id is made from a number on both sides.
- Locks: a lease of one of 1,000 resources of the client's own, taken in one transaction and given back
  in the next. Redis: a script that sets the key if it is not there and counts the fence, one that
  deletes it if it is the caller's; redis-benchmark over a Unix socket, both rates put together. A
  file's lease, one of 1,000 in a directory, is held against that of an artifact: it has to see to leases
  of the directory above and to whoever queues for one.
- Region put: 1,000 regions of 10 keys, a random key of a random one, every version kept.
- First call: {connections} new connections for each side in turns; the median time of the first
  statement. The other side is the same statement in a PL/pgSQL function.
- State: 1,000 keys, a random one each time, written by one of 1,000 agents; both sides append the
  version and notify. Compare and set reads the version first and writes against it.
- Turns: 1,000 scopes, a random one each time. Context: 10,000 artifacts and 10,000 turns of one
  trajectory, 16,000 tokens, durable; the other side only fetches the rows that were chosen, knowing how
  many they are. Search: the nearest 10 of {vectors} embeddings of 384 dimensions; the other side compares
  all of them. Both on one connection by turns, the median time.
"""


def rows(options: Options) -> Iterator[Row]:
    with scratch(DATABASE):
        yield throughput("heartbeat, 8 clients", "heartbeat", options, 0.7)
        yield throughput("register, 8 clients", "register", options, None)
        yield register_silently(options)
        yield from locks(options)
        yield region_puts(options)
        yield first_calls(options)
        yield from state_rows(options)
        yield from memory_rows(options)


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
    what = "lock acquire + release of a file, 8 clients"
    yield in_turns(what, "lock_file_ours.sql", "lock_ours.sql", "of an artifact", options, None)


def region_puts(options: Options) -> Row:
    with connect(DATABASE) as session:
        session.execute(script("regions_setup.sql"))
        session.execute("vacuum analyze")
    return throughput("region put, 8 clients", "region_put", options, None)


# --- the first call of a connection ---


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
