"""Sixteen clients count in the shared state or take turns, and all processes of the server are killed
in the middle. Each remembers what it was told."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
from harness.cluster import Cluster
from psycopg.types.json import Jsonb

CLIENTS = 16
LOST = (psycopg.OperationalError, psycopg.InterfaceError)


@dataclass
class Client:
    """Does its rounds and connects again when the server goes away under it."""

    cluster: Cluster
    agent_id: object
    rounds: int
    done: int = 0
    unknown: int = 0
    reconnects: int = 0
    turns: list[int] = field(default_factory=list)

    def connect(self) -> psycopg.Connection:
        while True:
            try:
                conn = self.cluster.connect()
                conn.execute("listen caliber_token")
                return conn
            except LOST:
                time.sleep(0.05)

    def run(self, step: Callable[[Client, psycopg.Connection], None]) -> None:
        conn = self.connect()
        while self.done < self.rounds:
            try:
                step(self, conn)
            except LOST:
                conn.close()
                conn = self.connect()
                self.reconnects += 1

    def increment(self, conn: psycopg.Connection) -> None:
        time.sleep(random.random() * 0.01)
        query = "select value, version from caliber_state_get('s', 'count')"
        value, version = conn.execute(query).fetchone() or (0, 0)
        try:
            query = "select caliber_state_set('s', 'count', %s, %s)"
            row = conn.execute(query, (Jsonb(value + 1), version)).fetchone()
        except LOST:
            self.unknown += 1  # it may have been written or not
            raise
        self.done += row is not None and row[0] is not None

    def play(self, conn: psycopg.Connection) -> None:
        query = "select granted, turn from caliber_token_request(%s, 'review')"
        granted, turn = conn.execute(query, (self.agent_id,)).fetchone() or (False, None)
        if not granted:
            for _ in conn.notifies(timeout=0.2, stop_after=1):
                pass
            return
        # The same turn again after the server came back; another agent's would be two holders.
        query = """
            insert into played as p values (%s, %s)
            on conflict (turn) do update set agent_id = p.agent_id
            returning p.agent_id
        """
        row = conn.execute(query, (turn, self.agent_id)).fetchone()
        assert row
        assert row[0] == self.agent_id, f"two holders of turn {turn}"
        conn.execute("select caliber_token_release(%s, 'review', '', %s)", (self.agent_id, turn))
        self.turns.append(turn)
        self.done += 1


def prepare(cluster: Cluster) -> None:
    with cluster.connect() as setup:
        setup.execute("create extension caliber cascade")
        setup.execute("select caliber_team_create('default')")
        setup.execute("create table played (turn bigint primary key, agent_id uuid not null)")


def run(cluster: Cluster, step: Callable[[Client, psycopg.Connection], None], rounds: int) -> list[Client]:
    """All clients to the end, with the server killed and started again half-way."""
    with cluster.connect() as conn:
        query = "select caliber_agent_register('critic') from generate_series(1, %s)"
        clients = [Client(cluster, agent_id, rounds) for (agent_id,) in conn.execute(query, (CLIENTS,))]
    threads = [threading.Thread(target=client.run, args=(step,)) for client in clients]
    for thread in threads:
        thread.start()
    while sum(client.done for client in clients) < CLIENTS * rounds / 2:
        assert any(thread.is_alive() for thread in threads)
        time.sleep(0.01)
    cluster.kill()
    cluster.start()
    for thread in threads:
        thread.join()
    assert all(client.done == rounds for client in clients), "a client has failed"
    assert sum(client.reconnects for client in clients) > 0, "the kill met nobody"
    return clients


def counted(cluster: Cluster) -> tuple[int, int, int]:
    """The version that was reached, how many up to it are missing, and how many have another's value."""
    with cluster.connect() as conn:
        row = conn.execute(
            "select value::bigint, version, version - (select count(*) from caliber_state_version),"
            " (select count(*) from caliber_state_version as v where v.value::bigint <> v.version)"
            " from caliber_state_get('s', 'count')"
        ).fetchone()
    assert row
    value, version, gaps, wrong = row
    return version, gaps, wrong + (value != version)
