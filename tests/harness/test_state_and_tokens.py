"""Sixteen clients, all processes of the server killed in the middle: no increment of the shared
state that was acknowledged is lost, no version is missing, and a token has one holder a turn,
before and after. And it is seen when commits are not durable.

CALIBER_HARNESS_ROUNDS=500 makes it longer."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from harness import mutants
from harness.cluster import Cluster
from harness.state_crash import Client, counted, prepare, run

ROUNDS = int(os.environ.get("CALIBER_HARNESS_ROUNDS", "15"))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    try:
        made.start()
        prepare(made)
        yield made
    finally:
        made.remove()


def test_no_acknowledged_increment_is_lost(cluster: Cluster) -> None:
    clients = run(cluster, Client.increment, ROUNDS)
    acknowledged, unknown = sum(c.done for c in clients), sum(c.unknown for c in clients)
    version, gaps, wrong = counted(cluster)
    assert (gaps, wrong) == (0, 0)
    assert acknowledged <= version <= acknowledged + unknown


def test_commits_that_are_not_durable_are_caught(cluster: Cluster) -> None:
    with cluster.connect() as setup:
        mutants.synchronous_commit_off(setup)
    done = 0
    # By luck all was written when the server died; then once more.
    for _ in range(4):
        done += sum(c.done for c in run(cluster, Client.increment, ROUNDS))
        if counted(cluster)[0] < done:
            return
    pytest.fail("four kills lost nothing")


def test_a_turn_has_one_holder(cluster: Cluster) -> None:
    clients = run(cluster, Client.play, ROUNDS)
    turns = sorted(turn for client in clients for turn in client.turns)
    assert len(turns) == len(set(turns))
    with cluster.connect() as conn:
        query = "select status::text, turn, waiting from caliber_token_status('review')"
        status = conn.execute(query).fetchone()
        played = conn.execute("select count(*), max(turn) from played").fetchone()
    assert played is not None
    assert status == ("available", played[1], 0)
    assert played == (played[1], played[1])
