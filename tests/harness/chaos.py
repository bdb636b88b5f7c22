"""Sixteen clients use the whole API while the server is killed, connections break and clients pause:
make chaos, or make chaos ARGS="--seconds 600 --seed 7 --kills 20".

Half of the clients come through pgbouncer in transaction mode. What each client chooses, and what is
done to the server and when, follow from the seed: a run that failed is repeated by its seed, as far
as the machine lets it. Every promise is judged in the end, and the files of the server are checked."""

from __future__ import annotations

import argparse
import os
import random
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from typing import Any

import psycopg
from harness import lock_history
from harness.chaos_actors import (
    EXPECTED,
    Actor,
    Client,
    Events,
    Everything,
    Incarnations,
    Locks,
    Messages,
    Session,
    State,
    Tokens,
    one,
)
from harness.chaos_work import Budget, Conflicts, Delegations, Handoffs, Regions
from harness.cluster import Cluster, Pair
from harness.mutants import MUTANTS
from pooler import PORT, pooler

CLIENTS = 16
OTHERS: tuple[type[Actor], ...] = (
    Delegations, Handoffs, State, Budget, Conflicts, Regions, Tokens, Incarnations,
)  # fmt: skip
# So long a client may take to be back at work after the server was killed.
BACK_SECONDS = 30
LOST = (psycopg.OperationalError, psycopg.InterfaceError)


class Returned:
    """How long clients were without the server: from a lost connection to the next call that worked."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.since: dict[int, float] = {}
        self.took: dict[bool, list[float]] = {False: [], True: []}
        self.missing = 0

    def lost(self, client: int) -> None:
        with self.mutex:
            self.since.setdefault(client, time.monotonic())

    def all_lost(self, clients: int) -> None:
        for client in range(clients):
            self.lost(client)

    def works(self, client: int, pooled: bool) -> None:
        with self.mutex:
            if (since := self.since.pop(client, None)) is not None:
                self.took[pooled].append(time.monotonic() - since)

    def wait(self, stop: threading.Event) -> None:
        """Until everybody is back; whoever is not in time is a finding."""
        ends = time.monotonic() + BACK_SECONDS
        while self.since and time.monotonic() < ends and not stop.is_set():
            time.sleep(0.02)
        with self.mutex:
            self.missing += sum(since < ends - BACK_SECONDS for since in self.since.values())

    def report(self) -> list[str]:
        return [
            f"  back at work {'through pgbouncer' if pooled else 'directly'} {len(took)} times,"
            f" after {statistics.median(took):.2f} s in the middle and {max(took):.2f} s at worst"
            for pooled, took in self.took.items()
            if took
        ]


class Chaos:
    def __init__(
        self,
        cluster: Cluster | Pair,
        seed: int,
        seconds: float,
        kills: int,
        *mutants: str,
        only: Iterable[str] = (),
    ) -> None:
        self.cluster, self.seed, self.seconds, self.kills = cluster, seed, seconds, kills
        self.stop, self.luck = threading.Event(), random.Random(seed)
        self.breaks: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self.returned = Returned()
        with cluster.connect() as session:
            self.agents = self._prepare(session, mutants)
            engine = lock_history.MUTANT if "lease_by_advisory_lock" in mutants else lock_history.CALIBER
            self.locks, self.messages = Locks(self.agents, engine), Messages(self.agents)
            self.events, self.rest = Events(self.agents), Everything(self.agents)
            others = [kind(self.agents) for kind in OTHERS]
            told = [self.locks, self.messages, self.messages.broadcasts]
            self.actors: list[Actor] = [*told, *others, self.events, self.rest]
            for actor in self.actors:
                actor.setup(session)
        # What is broken happens seldom even so; it has to be tried often.
        tried = {MUTANTS[name][1] for name in mutants} | set(only)
        self.weights = [
            actor.weight if actor.promise.startswith(tuple(tried or [""])) else 0 for actor in self.actors
        ]

    @staticmethod
    def _prepare(session: Session, mutants: Iterable[str]) -> list[str]:
        session.execute("create extension if not exists caliber cascade")
        # Clients that pause are to be caught by the end of their leases, not reaped before it.
        settings = {
            "message_queue_limit": "0",
            "notify_mode": "armed",
            "agent_reap": "off",
            "token_claim_seconds": "1",
            "delegation_to_silent": "on",
        }
        for key, value in settings.items():
            session.execute("select caliber_config_set(%s, %s)", (key, value))
        # Broadcasts are for the team: whoever is to get none is apart.
        session.execute("select caliber_team_create('default'), caliber_team_create('apart')")
        for mutant in mutants:
            MUTANTS[mutant][0](session)
        query = "select caliber_agent_register('worker')::text from generate_series(1, %s)"
        return [row[0] for row in session.execute(query, (CLIENTS,))]

    # --- clients ---

    def client(self, number: int, pooled: str) -> None:
        """Goes on with a new connection when the old one is gone."""
        luck = random.Random(self.seed * 1000 + number)
        locks = lock_history.Client(
            self.locks.engine, self.cluster.connect, self.agents[number], self.locks.history,
            self.seed * 1000 + number, self.stop, 4,
        )  # fmt: skip
        me = Client(self.agents[number], luck, locks)
        through = pooled if number % 2 else ""
        session: Session | None = None
        tries = 0
        while not self.stop.is_set():
            try:
                if session is None:
                    session = self.connect(through)
                self.turn(me, session)
                self.returned.works(number, bool(through))
                tries = 0
            except LOST:
                # pgbouncer takes a client also when it has no server, and says so at the first call.
                self.breaks["attempts to connect in vain" if tries else "connections lost"] += 1
                self.returned.lost(number)
                session = None
                # Not all at the same time. Not of the client's luck, which would then depend on the server.
                time.sleep(random.uniform(0.5, 1) * min(0.05 * 2**tries, 0.4))
                tries += 1
            except BaseException as error:
                # Raised again where the run is waited for.
                self.failure = error
                self.stop.set()

    def connect(self, pooled: str) -> Session:
        if not pooled:
            return self.cluster.connect()
        return psycopg.connect(
            host=pooled, port=PORT, user="postgres", dbname="postgres", autocommit=True,
            prepare_threshold=None, connect_timeout=5,
        )  # fmt: skip

    def turn(self, me: Client, session: Session) -> None:
        actor = me.luck.choices(self.actors, self.weights)[0]
        try:
            actor.turn(me, session)
        except LOST:
            raise
        except psycopg.Error as error:
            if error.sqlstate is None:
                # Of the driver, about a connection that ended at the wrong moment.
                raise psycopg.OperationalError(str(error)) from error
            if error.sqlstate not in EXPECTED:
                self.rest.surprise(error)
        chance = me.luck.random()
        if chance < 0.003:
            # Gone without a word, as a machine that lost its network.
            self.breaks["connections cut"] += 1
            with socket.socket(fileno=os.dup(session.fileno())) as wire:
                wire.shutdown(socket.SHUT_RDWR)
        elif chance < 0.008:
            self.breaks["pauses"] += 1
            time.sleep(me.luck.uniform(0.5, 1.5))

    # --- what is done to the server ---

    def disturb(self) -> None:
        """Kills of everything at times that the seed says, and ends of single sessions between them."""
        began = time.monotonic()
        times = sorted(self.luck.uniform(0.2, 0.9) * self.seconds for _ in range(self.kills))
        while (passed := time.monotonic() - began) < self.seconds and not self.stop.is_set():
            if times and passed >= times[0]:
                times.pop(0)
                self.breaks["kill -9 of all processes"] += 1
                self.cluster.kill()
                self.returned.all_lost(CLIENTS)
                self.cluster.start()
                self.returned.wait(self.stop)
            with suppress(*LOST), self.cluster.connect() as session:
                self.breaks["sessions ended"] += 1
                one(
                    session,
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where backend_type = 'client backend' and pid <> pg_backend_pid()"
                    " order by random() limit 1",
                )
            time.sleep(self.luck.uniform(0.2, 1))

    def follow(self) -> None:
        while not self.stop.is_set():
            with suppress(*LOST), self.cluster.connect() as session:
                while not self.stop.is_set():
                    if not self.events.follow(session):
                        time.sleep(0.02)
            time.sleep(0.05)

    # --- the run ---

    def go(self) -> dict[str, Counter[str]]:
        """For each promise what was found against it."""
        before = pooler("postgres", CLIENTS, str(self.cluster.home), "5432")
        with before if self.cluster.pools else nullcontext("") as pooled:
            threads = [
                threading.Thread(target=self.client, args=(n, pooled), daemon=True) for n in range(CLIENTS)
            ]
            threads.append(threading.Thread(target=self.follow, daemon=True))
            for thread in threads:
                thread.start()
            try:
                self.disturb()
            finally:
                self.stop.set()
                for thread in threads:
                    thread.join()
        if self.failure:
            raise self.failure
        # What only looked durable is not.
        self.cluster.kill()
        self.cluster.start()
        return self.judge()

    def judge(self) -> dict[str, Counter[str]]:
        with self.cluster.connect() as session:
            last: Any = Client(self.agents[0], random.Random(self.seed), None)  # type: ignore[arg-type]
            self.messages.drain(last, session)
            found = {actor.promise: actor.check(session) for actor in self.actors}
        found["clients: all go on after every kill"] = Counter({"stayed away": self.returned.missing})
        found["files: pg_amcheck"] = self.cluster.amcheck()
        return {promise: +against for promise, against in found.items()}

    def report(self, found: dict[str, Counter[str]]) -> str:
        lines = [f"seed {self.seed}, {CLIENTS} clients, {self.seconds:g} s"]
        lines += [f"  {times} × {what}" for what, times in sorted(self.breaks.items())]
        lines += self.returned.report()
        done = {actor.promise: f"{actor.done:,}" for actor in self.actors}
        lines.append(f"{'promise':80} operations violations")
        for promise, against in found.items():
            lines.append(f"{promise:80} {done.get(promise, ''):>10} {against.total():10,}")
            lines += [f"    {times:,} × {what}" for what, times in against.items()]
        return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--mutant", choices=MUTANTS, action="append", default=[])
    options = parser.parse_args()
    cluster = Cluster()
    try:
        cluster.start()
        run = Chaos(cluster, options.seed, options.seconds, options.kills, *options.mutant)
        found = run.go()
    finally:
        cluster.remove()
    print(run.report(found))
    raise SystemExit(any(found.values()))


if __name__ == "__main__":
    main()
