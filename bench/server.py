"""The bench's server: scratch databases, pgbench, and two sides measured in turns."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from rows import Options, Row

HERE = Path(__file__).resolve().parent
DATABASE = "caliber_bench"
SMALL = "caliber_bench_small"
CLIENTS = 8
VALUES = {
    "activity": "working",
    "turns": "1",
    "tokens": "100",
    "agent_type": "coder",
    "value": '{"step": 7, "files": ["a.py", "b.py"]}',
    "payload": '{"task": "review", "file": "src/auth.py", "lines": [1, 2, 3]}',
}

Session = psycopg.Connection[tuple[Any, ...]]


def connect(database: str) -> Session:
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


# What a connection costs once, its first calls above all, is measured by rows of their own.
WARM_UP = 2


def pgbench(name: str, seconds: int, clients: int = CLIENTS) -> float:
    """Transactions a second, once every connection has warmed up."""
    bindir = Path(os.environ.get("PG_CONFIG", "/usr/lib/postgresql/15/bin/pg_config")).parent
    command = [str(bindir / "pgbench"), "-n", "-M", "prepared", "-c", str(clients), "-j", "2"]
    command += ["-T", str(WARM_UP + seconds), "-P", "1", "-f", str(HERE / name)]
    for key, value in VALUES.items():
        command += ["-D", f"{key}={value}"]
    done = subprocess.run([*command, DATABASE], capture_output=True, text=True, check=False)
    rates = re.findall(r"^progress: ([0-9.]+) s, ([0-9.]+) tps", done.stderr, re.MULTILINE)
    found = [float(rate) for second, rate in rates if round(float(second)) > WARM_UP]
    failed = re.search(r"number of failed transactions: 0 ", done.stdout) is None
    if done.returncode or failed or not found:
        raise SystemExit(f"bench: {name} failed\n{done.stdout}{done.stderr}")
    return statistics.mean(found)


def throughput(what: str, verb: str, options: Options, at_least: float | None) -> Row:
    return in_turns(what, f"{verb}_ours.sql", f"{verb}_plain.sql", "plain SQL", options, at_least)


def in_turns(
    what: str, mine: str, other: str, other_is: str, options: Options, at_least: float | None
) -> Row:
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(options.rounds):
        ours.append(pgbench(mine, options.seconds))
        theirs.append(pgbench(other, options.seconds))
    rate, against = statistics.median(ours), statistics.median(theirs)
    return Row(what, f"{rate:,.0f}/s", f"{against:,.0f}/s {other_is}", rate / against, at_least=at_least)


def milliseconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000
