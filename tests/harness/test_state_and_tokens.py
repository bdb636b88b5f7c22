"""Sixteen clients, all processes of the server killed in the middle: no increment of the shared
state that was acknowledged is lost, no version is missing, and a token has one holder a turn,
before and after. And it is seen when commits are not durable.

CALIBER_HARNESS_ROUNDS=500 makes it longer."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psycopg
import pytest
from harness.cluster import Cluster
from psycopg.types.json import Jsonb

CLIENTS = 16
ROUNDS = int(os.environ.get("CALIBER_HARNESS_ROUNDS", "15"))
LOST = (psycopg.OperationalError, psycopg.InterfaceError)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    try:
        made.start()
        with made.connect() as setup:
            setup.execute("create extension caliber cascade")
            setup.execute("select caliber_team_create('default')")
            setup.execute("create table played (turn bigint primary key, agent_id uuid not null)")
        yield made
    finally:
        made.remove()


@dataclass
class Client:
    """Does its rounds and connects again when the server goes away under it."""

    cluster: Cluster
    agent_id: object
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
        while self.done < ROUNDS:
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


def run(cluster: Cluster, step: Callable[[Client, psycopg.Connection], None]) -> list[Client]:
    """All clients to the end, with the server killed and started again half-way."""
    with cluster.connect() as conn:
        query = "select caliber_agent_register('critic') from generate_series(1, %s)"
        clients = [Client(cluster, agent_id) for (agent_id,) in conn.execute(query, (CLIENTS,))]
    threads = [threading.Thread(target=client.run, args=(step,)) for client in clients]
    for thread in threads:
        thread.start()
    while sum(client.done for client in clients) < CLIENTS * ROUNDS / 2:
        assert any(thread.is_alive() for thread in threads)
        time.sleep(0.01)
    cluster.kill()
    cluster.start()
    for thread in threads:
        thread.join()
    assert all(client.done == ROUNDS for client in clients), "a client has failed"
    assert sum(client.reconnects for client in clients) > 0, "the kill met nobody"
    return clients


def counted(cluster: Cluster) -> int:
    """The count, and that every version up to it is there with its value."""
    with cluster.connect() as conn:
        row = conn.execute(
            "select max(version), count(*), bool_and(value::bigint = version)"
            " from caliber_state_version where key = 'count'"
        ).fetchone()
        now = conn.execute("select value, version from caliber_state_get('s', 'count')").fetchone()
    assert row is not None
    assert row == (row[0], row[0], True)
    assert now == (row[0], row[0])
    return int(row[0])


def test_no_acknowledged_increment_is_lost(cluster: Cluster) -> None:
    clients = run(cluster, Client.increment)
    acknowledged, unknown = sum(c.done for c in clients), sum(c.unknown for c in clients)
    assert acknowledged <= counted(cluster) <= acknowledged + unknown


def test_commits_that_are_not_durable_are_caught(cluster: Cluster) -> None:
    with cluster.connect() as setup:
        setup.execute("alter system set synchronous_commit = off")
        setup.execute("alter system set wal_writer_delay = '10s'")
        setup.execute("select pg_reload_conf()")
    clients = run(cluster, Client.increment)
    assert counted(cluster) < sum(c.done for c in clients)


def test_a_turn_has_one_holder(cluster: Cluster) -> None:
    clients = run(cluster, Client.play)
    turns = sorted(turn for client in clients for turn in client.turns)
    assert len(turns) == len(set(turns))
    with cluster.connect() as conn:
        query = "select status::text, turn, waiting from caliber_token_status('review')"
        status = conn.execute(query).fetchone()
        played = conn.execute("select count(*), max(turn) from played").fetchone()
    assert played is not None
    assert status == ("available", played[1], 0)
    assert played == (played[1], played[1])
