"""Many clients take, hold, oversleep, guard, extend and release locks, the server is killed under
them, and a checker looks at what they were told. Times are the database's."""

from __future__ import annotations

import datetime
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import psycopg

TABLES = """
    create table note (resource text primary key, writes bigint not null default 0);
    create table note_log (
        seq bigint generated always as identity, resource text, fence bigint, writes bigint
    );
"""

# The lease of the old protocol: an advisory lock says whether it is free, and a row says until
# when. The one ends with the transaction, the other does not know.
ADVISORY = """
    create table mutant (resource text primary key, fence bigint, lock_id uuid, expires_at timestamptz);
    create function mutant_acquire(agent uuid, resource_id text, lease_ms bigint)
    returns table (lock_id uuid, fence bigint, acquired_at timestamptz, expires_at timestamptz)
    language sql as $$
        insert into mutant as m
        select $2, 1, gen_random_uuid(), clock_timestamp() + $3 * interval '1 ms'
        where pg_try_advisory_xact_lock(hashtextextended($2, 0))
        on conflict (resource) do update
        set fence = m.fence + 1, lock_id = excluded.lock_id, expires_at = excluded.expires_at
        returning m.lock_id, m.fence, m.expires_at - $3 * interval '1 ms', m.expires_at
    $$;
"""


@dataclass(frozen=True)
class Engine:
    """The statements of one way to lock."""

    setup: str
    acquire: tuple[str, ...]
    guard: str
    extend: str | None
    release: str
    stale: str


# Parameters by name; each acquire returns lock_id, fence, since when, until when.
CALIBER = Engine(
    setup="",
    acquire=(
        # One row decides.
        """
        with taken as materialized (
            select caliber_lock_acquire(
                %(agent)s, 'note', %(resource)s::text, 'exclusive', %(lease)s, %(wait)s
            ) as lock_id
        )
        select lock_id, null, null, null from taken
        """,
        # Under a turn.
        """
        select lock_id, fence, expires_at - %(lease)s * interval '1 ms', expires_at
        from caliber_lock_acquire_many(
            %(agent)s, 'note', array[%(resource)s], 'exclusive', %(lease)s, %(wait)s
        )
        """,
    ),
    guard="select caliber_lock_guard('note', %(resource)s::text, %(fence)s)",
    extend="select caliber_lock_extend(%(lock)s, 50)",
    release="select caliber_lock_release(%(lock)s)",
    stale="KA001",
)
MUTANT = Engine(
    setup=ADVISORY,
    acquire=("select * from mutant_acquire(%(agent)s, %(resource)s, %(lease)s)",),
    guard="select 1 / count(*) from mutant where resource = %(resource)s and fence = %(fence)s"
    " and expires_at > clock_timestamp()",
    extend=None,
    release="update mutant set expires_at = clock_timestamp() where lock_id = %(lock)s",
    stale="22012",
)
ENOUGH = 30
LEASE = "select fence, acquired_at, expires_at from caliber_resource where lock_id = %s"

Time = datetime.datetime


@dataclass
class Lease:
    resource: str
    agent: object
    lock: object
    fence: int
    since: Time
    until: Time


@dataclass
class History:
    leases: list[Lease] = field(default_factory=list)
    stale_refused: int = 0
    stale_accepted: int = 0
    fresh_accepted: int = 0
    lost_calls: int = 0
    mutex: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class Verdict:
    overlaps: int
    regressions: int
    late_writes: int
    stale_accepted: int
    lost_writes: int

    @property
    def clean(self) -> bool:
        return not any(vars(self).values())


def check(history: History, log: list[tuple[str, int, int]]) -> Verdict:
    """log: resource, fence and count of each guarded write, in the order they were made."""
    by_resource: dict[str, list[Lease]] = {}
    for lease in sorted(history.leases, key=lambda one: one.since):
        by_resource.setdefault(lease.resource, []).append(lease)
    overlaps = regressions = 0
    for leases in by_resource.values():
        for earlier, later in pairwise(leases):
            overlaps += later.since < earlier.until
            regressions += later.fence <= earlier.fence
    last: dict[str, int] = {}
    late = 0
    for resource, fence, _ in log:
        late += fence < last.get(resource, 0)
        last[resource] = max(fence, last.get(resource, 0))
    return Verdict(
        overlaps, regressions, late, history.stale_accepted, max(0, history.fresh_accepted - len(log))
    )


class Client:
    def __init__(
        self,
        engine: Engine,
        connect: Callable[[], psycopg.Connection],
        agent: object,
        history: History,
        seed: int,
        stop: threading.Event,
        resources: int,
    ) -> None:
        self.engine, self.agent, self.history, self.stop = engine, agent, history, stop
        self.resources = resources
        self.connect = connect
        self.random = random.Random(seed)
        self.known: dict[object, Lease] = {}

    def run(self) -> None:
        """Goes on with a new connection when the server goes away."""
        while not self.stop.is_set():
            try:
                with self.connect() as connection:
                    while not self.stop.is_set():
                        self.turn(connection)
            except psycopg.OperationalError:
                with self.history.mutex:
                    self.history.lost_calls += 1
                time.sleep(0.05)

    def turn(self, connection: psycopg.Connection) -> None:
        lease_ms = self.random.randint(10, 80)
        resource = f"r{self.random.randrange(self.resources)}"
        lease = self.acquire(connection, resource, lease_ms)
        if lease is None:
            return
        if known := self.known.get(lease.lock):
            # Not released last time, and taken again while it ran: the same lease.
            known.until = lease.until
            lease = known
        else:
            self.known[lease.lock] = lease
            with self.history.mutex:
                self.history.leases.append(lease)
        for _ in range(self.random.randint(1, 3)):
            time.sleep(self.random.random() * lease_ms / 1000)
            self.write(connection, lease)
            if self.engine.extend and self.random.random() < 0.3:
                self.extend(connection, lease)
        if self.random.random() < 0.5:
            self.release(connection, lease)

    def acquire(self, connection: psycopg.Connection, resource: str, lease_ms: int) -> Lease | None:
        wait = self.random.choice((0, 0, 50, 300))
        query = self.random.choice(self.engine.acquire)
        values = {"agent": self.agent, "resource": resource, "lease": lease_ms, "wait": wait}
        row = connection.execute(query.encode(), values).fetchone()
        if row is None or row[0] is None:
            return None
        lock, fence, since, until = row
        if fence is None:
            found = connection.execute(LEASE, [lock]).fetchone()
            if found is None:
                return None  # run out and gone to another already
            fence, since, until = found
        return Lease(resource, self.agent, lock, fence, since, until)

    def write(self, connection: psycopg.Connection, lease: Lease) -> None:
        """A guarded write; one that begins after the end of the lease has to be refused."""
        values = {"resource": lease.resource, "fence": lease.fence}
        stale = accepted = False
        try:
            with connection.transaction():
                row = connection.execute("select clock_timestamp() >= %s", [lease.until]).fetchone()
                stale = bool(row and row[0])
                connection.execute(self.engine.guard.encode(), values)
                accepted = True
                connection.execute(
                    "with written as (insert into note as n values (%(resource)s, 1)"
                    " on conflict (resource) do update set writes = n.writes + 1 returning writes)"
                    " insert into note_log (resource, fence, writes)"
                    " select %(resource)s, %(fence)s, writes from written",
                    values,
                )
        except psycopg.Error as error:
            if error.sqlstate != self.engine.stale:
                raise
        with self.history.mutex:
            self.history.stale_accepted += stale and accepted
            self.history.stale_refused += stale and not accepted
            self.history.fresh_accepted += accepted

    def extend(self, connection: psycopg.Connection, lease: Lease) -> None:
        assert self.engine.extend
        try:
            row = connection.execute(self.engine.extend.encode(), {"lock": lease.lock}).fetchone()
        except psycopg.Error as error:
            if error.sqlstate != self.engine.stale:
                raise
            return
        assert row
        lease.until = row[0]

    def release(self, connection: psycopg.Connection, lease: Lease) -> None:
        """Over from before the call: that is when it may be another's."""
        row = connection.execute("select clock_timestamp()").fetchone()
        assert row
        lease.until = min(lease.until, row[0])
        connection.execute(self.engine.release.encode(), {"lock": lease.lock})


def run(
    engine: Engine,
    connect: Callable[[], psycopg.Connection],
    clients: int,
    seconds: float,
    disturb: Callable[[], None],
    resources: int = 3,
) -> tuple[History, list[tuple[str, int, int]]]:
    """disturb is called once, in the middle, and not before there is something to lose."""
    history, stop = History(), threading.Event()
    with connect() as setup:
        setup.execute((TABLES + engine.setup).encode())
        agents = [setup.execute("select caliber_agent_register('coder')").fetchone() for _ in range(clients)]
    workers = [
        Client(engine, connect, agent[0], history, seed, stop, resources)
        for seed, agent in enumerate(agents)
        if agent
    ]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        time.sleep(seconds / 2)
        while len(history.leases) < ENOUGH and any(thread.is_alive() for thread in threads):
            time.sleep(0.05)
        disturb()
        time.sleep(seconds / 2)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    with connect() as look:
        rows = look.execute("select resource, fence, writes from note_log order by seq").fetchall()
    return history, [(str(r[0]), int(r[1]), int(r[2])) for r in rows]
