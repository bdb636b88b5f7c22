"""Every promise with its number: make promises.

Each is put to the test with sixteen clients and kill -9 of all processes of the server in the middle,
by the same harness that make test runs in small, and whose mutants are caught there. In the end one
table: what is required, what was counted, what was found against it.

What is only counted while everything is mixed (broadcasts, events, budgets, conflicts) comes from the
chaos run, of those alone."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
from conftest import Connection
from harness import (
    delegations_crash,
    handoffs_crash,
    lock_history,
    messages_crash,
    races,
    state_crash,
)
from harness.chaos import Chaos
from harness.cluster import Cluster
from psycopg.rows import dict_row

CLIENTS = 16
INSTALL = "create extension caliber cascade"


@dataclass
class Promise:
    name: str
    required: str
    counted: str
    # Enough was done to say something.
    enough: bool
    against: Counter[str] = field(default_factory=Counter)

    @property
    def verdict(self) -> str:
        return "BROKEN" if +self.against else "kept" if self.enough else "TOO LITTLE"


@dataclass(frozen=True)
class Sizes:
    """Those of the design, divided where somebody only wants to see it run."""

    part: int = 1

    def of(self, number: int, least: int = 1) -> int:
        return max(least, number // self.part)


@contextmanager
def server(*statements: str) -> Iterator[Cluster]:
    """One that is nobody else's, prepared by what harnesses do not do themselves."""
    made = Cluster()
    try:
        made.start()
        with made.connect() as session:
            for statement in statements:
                session.execute(statement.encode())
        yield made
    finally:
        made.remove()


def locks(sizes: Sizes) -> Iterator[Promise]:
    with server(INSTALL) as cluster:

        def disturb() -> None:
            cluster.kill()
            cluster.start()

        engine = lock_history.CALIBER
        history, log = lock_history.run(engine, cluster.connect, CLIENTS, sizes.of(60, 4), disturb)
    refused, taken = history.stale_refused, history.stale_accepted
    yield Promise(
        "lock",
        "0 overlaps, 0 regressions, 100 % of stale refused",
        f"{len(history.leases):,} leases, {len(log):,} writes,"
        f" {refused:,} of {refused + taken:,} stale refused",
        len(history.leases) > 20 and refused > 10 and history.lost_calls > 0,
        Counter(vars(lock_history.check(history, log))),
    )


def messages(sizes: Sizes) -> Iterator[Promise]:
    wanted = sizes.of(25_000)
    with server() as cluster:
        run = messages_crash.Run(cluster, wanted, 3, CLIENTS, None)
        found = parsed(run.go())
    poisoned = -(-wanted // messages_crash.POISON_EVERY)
    yield Promise(
        "message",
        f"≥ {wanted:,} sends, 0 lost, 0 double acks, dead at {messages_crash.TRIES}",
        f"{len(run.record.sent):,} sends, {poisoned:,} of them poisonous, 3 × kill -9",
        len(run.record.sent) >= wanted,
        found,
    )


def delegations(sizes: Sizes) -> Iterator[Promise]:
    wanted = sizes.of(2_000)
    with server(INSTALL) as cluster:

        def connect() -> Connection:
            return psycopg.connect(
                host=str(cluster.home),
                user="postgres",
                dbname="postgres",
                autocommit=True,
                row_factory=dict_row,
            )

        tasks, won = races.race_for_tasks(connect(), connect, wanted)
        run = delegations_crash.Run(cluster, wanted, 3, CLIENTS, None)
        found = parsed(run.go())
    found["accepts of a task but one"] = sum(abs(Counter(won)[task] - 1) for task in tasks)
    yield Promise(
        "delegation",
        f"{CLIENTS} race for {wanted:,} tasks: {wanted:,} accepts",
        f"{len(won):,} accepts of {len(tasks):,} tasks; {len(run.record.taken):,} more, 3 × kill -9",
        len(tasks) == wanted == len(run.record.given),
        found,
    )


def handoffs(sizes: Sizes) -> Iterator[Promise]:
    with server() as cluster:
        run = handoffs_crash.Run(cluster, sizes.of(3), 1)
        found = parsed(run.go())
    yield Promise(
        "handoff",
        "killed at each step, never 0 or 2 owners",
        f"{run.done['before'] + run.done['after']:,} handoffs, {run.done['kills']} × kill -9"
        f" at {len(handoffs_crash.STEPS)} steps",
        run.done["kills"] >= len(handoffs_crash.STEPS) and run.done["before"] * run.done["after"] > 0,
        found,
    )


def state(sizes: Sizes) -> Iterator[Promise]:
    rounds = sizes.of(1_000)
    with server() as cluster:
        state_crash.prepare(cluster)
        clients = state_crash.run(cluster, state_crash.Client.increment, rounds)
        version, gaps, wrong = state_crash.counted(cluster)
    told, unknown = sum(c.done for c in clients), sum(c.unknown for c in clients)
    yield Promise(
        "state",
        f"{CLIENTS} × {rounds:,} increments = {CLIENTS * rounds:,}, no gap",
        f"{told:,} acknowledged, version {version:,}, {unknown} answers lost by 1 × kill -9",
        told == CLIENTS * rounds,
        Counter(
            {"lost": max(0, told - version), "too many": max(0, version - told - unknown), "gaps": gaps,
             "wrong values": wrong}
        ),
    )  # fmt: skip


# Of the chaos run: the beginning of the promise's name, what is required, what an operation is.
MIXED = {
    "broadcast": ("each recipient gets each", "broadcasts"),
    "events": ("16 writers with delays, 0 missed", "events with delays"),
    "budget": ("16 spenders, never above the cap", "reports of use"),
    "conflict": ("16 detectors, 0 duplicates", "facts and runs"),
}


def mixed(sizes: Sizes) -> Iterator[Promise]:
    with server() as cluster:
        run = Chaos(cluster, 1, sizes.of(120, 4), sizes.of(4), only=("message", *MIXED))
        found = run.go()
    for actor in run.actors:
        name = actor.promise.partition(":")[0]
        if name in MIXED:
            required, what = MIXED[name]
            counted = f"{actor.done:,} {what}, {run.breaks['kill -9 of all processes']} × kill -9"
            yield Promise(name, required, counted, actor.done > 0, found[actor.promise])


def parsed(findings: list[str]) -> Counter[str]:
    """Lines like «3 × lost»."""
    return Counter({what: int(times) for times, _, what in (line.partition(" × ") for line in findings)})


PIECES: dict[str, Callable[[Sizes], Iterator[Promise]]] = {
    "lock": locks,
    "message": messages,
    "delegation": delegations,
    "handoff": handoffs,
    "state": state,
    "mixed": mixed,
}


def report(promises: list[Promise]) -> str:
    heads = ("promise", "required", "counted")
    rows = [heads, *((one.name, one.required, one.counted) for one in promises)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    start = ["  ".join(map(str.ljust, row, widths)) for row in rows]
    lines = [f"{start[0]}  violations  verdict"]
    for promise, cells in zip(promises, start[1:], strict=True):
        lines.append(f"{cells}  {(+promise.against).total():10,}  {promise.verdict}")
        lines += [f"    {times:,} × {what}" for what, times in (+promise.against).items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=PIECES, action="append", help="some of them")
    parser.add_argument("--part", type=int, default=1, help="a size's divisor, to see it run")
    options = parser.parse_args()
    promises: list[Promise] = []
    for name in options.only or PIECES:
        began = time.monotonic()
        promises += PIECES[name](Sizes(options.part))
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    print(report(promises))
    sys.exit(any(promise.verdict != "kept" for promise in promises))


if __name__ == "__main__":
    main()
