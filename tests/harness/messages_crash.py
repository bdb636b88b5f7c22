"""What messages promise, while the whole server is killed: cd tests && python -m harness.messages_crash

Senders and readers work on a cluster of their own. Now and then every process of the server gets
SIGKILL, and it is started again. In the end: no message whose send returned is missing, none was
acknowledged twice or held by two readers at once, and what nobody ever settles was handed out
exactly as often as it may be, and is dead.

A mutant breaks the server on purpose; the harness is worth something only if it notices.
"""

from __future__ import annotations

import argparse
import itertools
import random
import threading
import time
import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import psycopg
from harness import mutants
from harness.cluster import Cluster

LEASE_MS = 1500
POISON_EVERY = 40
TRIES = 3
MUTANTS = ("claim_without_row_lock", "synchronous_commit_off")


@dataclass
class Record:
    """What the clients saw with their own eyes."""

    sent: dict[str, int] = field(default_factory=dict)
    handed: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    acknowledged: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    done: threading.Event = field(default_factory=threading.Event)


class Run:
    def __init__(self, cluster: Cluster, sends: int, kills: int, clients: int, mutant: str | None) -> None:
        self.cluster, self.sends, self.kills, self.mutant = cluster, sends, kills, mutant
        self.clients = clients
        self.database = f"crash_{uuid.uuid4().hex[:8]}"
        self.record = Record()
        self.failure: BaseException | None = None
        with cluster.connect("postgres") as admin:
            admin.execute(f"create database {self.database}")
        with cluster.connect(self.database) as session:
            session.execute("create extension caliber cascade")
            session.execute("select caliber_config_set('message_queue_limit', '0')")
            session.execute("select caliber_config_set('notify_mode', 'off')")
            register = "select caliber_agent_register(%s, name => %s)::text"
            self.sender = self.one(session, register, "planner", "sender")
            self.readers = [self.one(session, register, "worker", f"w{n}") for n in range(3)]
            if mutant:
                self.break_it(session, mutant)

    @staticmethod
    def one(session: psycopg.Connection[Any], query: str, *arguments: object) -> Any:
        row = session.execute(query, arguments).fetchone()
        return row[0] if row else None

    def break_it(self, session: psycopg.Connection[Any], mutant: str) -> None:
        if mutant == "synchronous_commit_off":
            session.execute(f"alter database {self.database} set synchronous_commit = off")
            return
        mutants.claim_without_row_lock(session)

    def loop(self, work: Any) -> None:
        """Do it again and again; a lost connection is made again."""
        session: psycopg.Connection[Any] | None = None
        while not self.record.done.is_set():
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
                self.record.done.set()
                raise

    def send_all(self, client: int) -> None:
        numbers = iter(range(client, self.sends, self.clients // 2))
        current = [next(numbers, None)]

        def work(session: psycopg.Connection[Any]) -> bool:
            n = current[0]
            if n is None:
                return False
            to = (self.readers[n % 3], None) if n % 4 else (None, "worker")
            # The key makes it safe to repeat a send whose answer was lost.
            message = self.one(
                session,
                "select caliber_message_send(%s, %s, %s, 'nudge', jsonb_build_object('n', %s::int),"
                " idempotency_key => %s)::text",
                self.sender, *to, n, str(n),
            )  # fmt: skip
            self.record.sent[message] = n
            current[0] = next(numbers, None)
            return True

        self.loop(work)

    def read_all(self, client: int) -> None:
        agent = self.readers[client % 3]
        luck = random.Random(client)
        query = (
            "select message_id::text, receipt, (payload ->> 'n')::int, extract(epoch from clock_timestamp())"
            " from caliber_message_receive(%s, max_messages => 4, visibility_ms => %s)"
        )

        def work(session: psycopg.Connection[Any]) -> bool:
            rows = session.execute(query, (agent, LEASE_MS)).fetchall()
            for message, receipt, n, at in rows:
                with self.record.lock:
                    self.record.handed[message].append((float(at), receipt))
                if n % POISON_EVERY and self.acknowledge(session, message, receipt):
                    with self.record.lock:
                        self.record.acknowledged[message] += 1
            if not rows:
                time.sleep(luck.uniform(0.001, 0.02))
            return True

        self.loop(work)

    def acknowledge(self, session: psycopg.Connection[Any], message: str, receipt: int) -> bool:
        try:
            return bool(self.one(session, "select caliber_message_acknowledge(%s, %s)", message, receipt))
        except psycopg.OperationalError:
            raise
        except psycopg.Error as error:
            if error.sqlstate not in ("KA001", "KA007"):
                raise
            return False

    def go(self) -> list[str]:
        half = self.clients // 2
        senders = [threading.Thread(target=self.send_all, args=(n,), daemon=True) for n in range(half)]
        readers = [threading.Thread(target=self.read_all, args=(n,), daemon=True) for n in range(half)]
        for thread in senders + readers:
            thread.start()
        for kill in range(self.kills):
            while len(self.record.sent) < self.sends * (kill + 1) // (self.kills + 1):
                if self.record.done.is_set():
                    break
                time.sleep(0.002)
            self.cluster.kill()
            self.cluster.start()
        for thread in senders:
            thread.join()
        self.drain()
        self.record.done.set()
        for thread in readers:
            thread.join()
        if self.failure:
            raise self.failure
        return self.judge()

    def drain(self) -> None:
        """Until nothing is open; what is open for ever is a finding of its own."""
        ends = time.monotonic() + 60 + LEASE_MS * TRIES / 1000
        query = "select count(*) from caliber_delivery where processed_at is null and dead_at is null"
        with self.cluster.connect(self.database) as session:
            while self.one(session, query) and time.monotonic() < ends and not self.record.done.is_set():
                time.sleep(0.2)

    def judge(self) -> list[str]:
        with self.cluster.connect(self.database) as session:
            rows = session.execute(
                "select m.message_id::text, (m.payload ->> 'n')::int, d.status::text, d.attempts"
                " from caliber_message as m join caliber_delivery as d using (message_id)"
            ).fetchall()
        stored = {message: (n, status, attempts) for message, n, status, attempts in rows}
        found: Counter[str] = Counter()
        for message in self.record.sent:
            found["lost: its send had returned"] += message not in stored
        for message, (n, status, attempts) in stored.items():
            handed = sorted(self.record.handed[message])
            found["acknowledged twice"] += self.record.acknowledged[message] > 1
            found["held by two at once"] += any(
                later[0] - earlier[0] < LEASE_MS / 1000 - 0.05
                for earlier, later in itertools.pairwise(handed)
            )
            if n % POISON_EVERY:
                found["never processed"] += status != "processed"
                # Whose acknowledgement's answer was lost is processed without our knowing.
                found["processed and never handed out"] += not handed
            else:
                found["poisonous and not dead at the limit"] += (status, attempts) != ("dead", TRIES)
                found["poisonous and handed out too often"] += len(handed) > TRIES
        return [f"{times} × {what}" for what, times in sorted(found.items()) if times]

    def summary(self) -> str:
        handed = sum(len(times) for times in self.record.handed.values())
        return (
            f"{len(self.record.sent)} sends returned, {handed} times handed out,"
            f" {sum(self.record.acknowledged.values())} acknowledged, {self.kills} × kill -9"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sends", type=int, default=25_000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--mutant", choices=MUTANTS)
    options = parser.parse_args()
    cluster = Cluster()
    try:
        cluster.start()
        run = Run(cluster, options.sends, options.kills, options.clients, options.mutant)
        findings = run.go()
    finally:
        cluster.remove()
    print(run.summary())
    print("\n".join(findings) or "nothing lost, nothing twice")
    raise SystemExit(bool(findings))


if __name__ == "__main__":
    main()
