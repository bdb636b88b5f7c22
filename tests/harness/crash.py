"""What the crash harnesses share: a database of their own, clients that go on with a new connection
when theirs is lost, kills of every process of the server at a share of the work, and the program."""

from __future__ import annotations

import argparse
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, ClassVar

import psycopg
from harness import mutants
from harness.cluster import Cluster

Session = psycopg.Connection[Any]
Work = Callable[[Session], bool]


class Crash:
    """One run on a cluster that may be killed. A harness says what clients do and how it judges."""

    # Ways to break the sources, by name; commits that are not durable are known to every harness.
    broken: ClassVar[dict[str, tuple[tuple[str, str], ...]]] = {}

    def __init__(self, cluster: Cluster, size: int, kills: int, clients: int, mutant: str | None) -> None:
        self.cluster, self.size, self.kills, self.mutant = cluster, size, kills, mutant
        self.clients = clients
        self.database = f"crash_{uuid.uuid4().hex[:8]}"
        self.mutex = threading.Lock()
        self.done = threading.Event()
        self.failure: BaseException | None = None
        with cluster.connect() as admin:
            admin.execute(f"create database {self.database}")
        with cluster.connect(self.database) as session:
            session.execute("create extension caliber cascade")
            self.prepare(session)
            if mutant == "synchronous_commit_off":
                session.execute(f"alter database {self.database} set synchronous_commit = off")
            elif mutant:
                mutants.rewrite(session, *self.broken[mutant])

    def prepare(self, session: Session) -> None:
        raise NotImplementedError

    def judge(self) -> list[str]:
        raise NotImplementedError

    def summary(self) -> str:
        raise NotImplementedError

    def go(self) -> list[str]:
        raise NotImplementedError

    @staticmethod
    def one(session: Session, query: str, *arguments: object) -> Any:
        row = session.execute(query, arguments).fetchone()
        return row[0] if row else None

    def start(self, *loops: Callable[[int], None]) -> list[list[threading.Thread]]:
        """Half of the clients do the one, half the other."""
        share = self.clients // len(loops)
        threads = [
            [threading.Thread(target=loop, args=(n,), daemon=True) for n in range(share)] for loop in loops
        ]
        for each in threads:
            for thread in each:
                thread.start()
        return threads

    def loop(self, work: Work) -> None:
        """Do it again and again; a lost connection is made again. What else goes wrong ends the run."""
        session: Session | None = None
        while not self.done.is_set():
            try:
                if session is None:
                    session = self.cluster.connect(self.database)
                if not work(session):
                    return
            except psycopg.OperationalError:
                session = None
                time.sleep(0.05)
            except BaseException as error:
                self.failure = error
                self.done.set()

    def kill_at_shares(self, progress: Callable[[], int]) -> None:
        """So that all kills lie within the work, in equal parts of it."""
        for kill in range(self.kills):
            while progress() < self.size * (kill + 1) // (self.kills + 1) and not self.done.is_set():
                time.sleep(0.002)
            self.cluster.kill()
            self.cluster.start()

    def end(self, threads: list[list[threading.Thread]]) -> None:
        self.done.set()
        for each in threads:
            for thread in each:
                thread.join()


def moving(left: Callable[[], int], done: threading.Event, patience: float = 60) -> None:
    """Waits until nothing is left. What takes its time is not stuck, whatever the machine does besides:
    only when nothing moved for long is it given up, and found by whoever judges."""
    before, ends = None, 0.0
    while (now := left()) > 0 and not done.is_set():
        if now != before:
            before, ends = now, time.monotonic() + patience
        if time.monotonic() > ends:
            return
        time.sleep(0.05)


def program(description: str | None, size: int, names: tuple[str, ...], made: type[Crash], fine: str) -> None:
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=size, help="messages or tasks")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--mutant", choices=names)
    options = parser.parse_args()
    cluster = Cluster()
    try:
        cluster.start()
        run = made(cluster, options.size, options.kills, options.clients, options.mutant)
        findings = run.go()
    finally:
        cluster.remove()
    print(run.summary())
    print("\n".join(findings) or fine)
    sys.exit(bool(findings))
