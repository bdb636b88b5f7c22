"""Sixteen clients, pauses beyond the lease, all processes of the server killed in the middle: one
holder at a time, fences that rise, no late write. And the checker sees it when that is not so.

CALIBER_HARNESS_SECONDS=60 makes it longer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from harness import lock_history, mutants
from harness.cluster import Cluster
from harness.lock_history import CALIBER, MUTANT, Engine, History, Lease, Verdict

SECONDS = float(os.environ.get("CALIBER_HARNESS_SECONDS", "6"))
CLIENTS = 16


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    try:
        made.start()
        with made.connect() as setup:
            setup.execute("create extension caliber cascade")
        yield made
    finally:
        made.remove()


def judged(cluster: Cluster, engine: Engine, seconds: float, kill: bool) -> tuple[History, Verdict]:
    def disturb() -> None:
        if kill:
            cluster.kill()
            cluster.start()

    history, log = lock_history.run(engine, cluster.connect, CLIENTS, seconds, disturb)
    verdict = lock_history.check(history, log)
    print(f"{len(history.leases)} leases, {len(log)} writes, {history.stale_refused} refused, {verdict}")
    return history, verdict


def test_locks_keep_their_promise_when_the_server_is_killed(cluster: Cluster) -> None:
    history, verdict = judged(cluster, CALIBER, SECONDS, kill=True)
    assert verdict.clean, verdict
    assert len(history.leases) > 20
    assert history.stale_refused > 10
    assert history.lost_calls >= CLIENTS / 2


def test_a_lease_by_advisory_lock_is_caught(cluster: Cluster) -> None:
    _, verdict = judged(cluster, MUTANT, 2, kill=False)
    assert verdict.overlaps > 0


def test_commits_that_are_not_durable_are_caught(cluster: Cluster) -> None:
    with cluster.connect() as setup:
        mutants.synchronous_commit_off(setup)
    _, verdict = judged(cluster, CALIBER, 4, kill=True)
    assert verdict.regressions + verdict.lost_writes + verdict.overlaps > 0


# --- the checker itself ---

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def lease(fence: int, since: int, until: int, resource: str = "r") -> Lease:
    return Lease(
        resource, fence, fence, fence, NOON + timedelta(seconds=since), NOON + timedelta(seconds=until)
    )


@pytest.mark.parametrize(
    ("leases", "log", "verdict"),
    [
        ([lease(1, 0, 5), lease(2, 5, 9)], [("r", 1, 1), ("r", 2, 2)], Verdict(0, 0, 0, 0, 0)),
        ([lease(1, 0, 5), lease(2, 4, 9)], [], Verdict(1, 0, 0, 0, 0)),
        ([lease(1, 0, 5), lease(1, 5, 9)], [], Verdict(0, 1, 0, 0, 0)),
        ([lease(2, 0, 5), lease(1, 5, 9)], [], Verdict(0, 1, 0, 0, 0)),
        ([lease(1, 0, 5), lease(1, 4, 9, "s")], [], Verdict(0, 0, 0, 0, 0)),
        ([], [("r", 2, 1), ("r", 1, 2)], Verdict(0, 0, 1, 0, 0)),
        ([], [("r", 2, 1), ("s", 1, 1), ("r", 2, 2)], Verdict(0, 0, 0, 0, 0)),
    ],
)
def test_the_checker_sees(leases: list[Lease], log: list[tuple[str, int, int]], verdict: Verdict) -> None:
    assert lock_history.check(History(leases), log) == verdict
