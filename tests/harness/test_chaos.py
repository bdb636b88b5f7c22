"""The chaos run in small, and that it sees what it is there to see. In full: make chaos.

CALIBER_CHAOS_SECONDS=300 and CALIBER_CHAOS_SEED make it longer, and another."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from harness.chaos import Chaos
from harness.cluster import Cluster
from harness.mutants import MUTANTS

SECONDS = float(os.environ.get("CALIBER_CHAOS_SECONDS", "5"))
SEED = int(os.environ.get("CALIBER_CHAOS_SEED", "1"))


@contextmanager
def copied(model: Cluster) -> Iterator[Cluster]:
    made = Cluster(like=model)
    try:
        made.start()
        yield made
    finally:
        made.remove()


@pytest.fixture
def cluster(model: Cluster) -> Iterator[Cluster]:
    with copied(model) as made:
        yield made


def test_every_promise_is_kept(cluster: Cluster) -> None:
    run = Chaos(cluster, SEED, SECONDS, max(1, int(SECONDS / 30)))
    found = run.go()
    assert not any(found.values()), run.report(found)
    assert all(actor.done for actor in run.actors if actor.weight), run.report(found)


RACES = [name for name, (_, promise) in MUTANTS.items() if promise]


@pytest.mark.parametrize("mutants", [RACES[:3], RACES[3:]], ids="+".join)
def test_mutants_are_caught(cluster: Cluster, mutants: list[str]) -> None:
    """Several at once, since each breaks a promise of its own."""
    run = Chaos(cluster, SEED, 7, 0, *mutants)
    found = run.go()
    broken = {promise.partition(":")[0] for promise, against in found.items() if against}
    assert {MUTANTS[name][1] for name in mutants} <= broken, run.report(found)


def test_commits_that_are_not_durable_are_caught(model: Cluster) -> None:
    # The server may have written all of it just before the kill, so a run may have luck.
    for _ in range(4):
        with copied(model) as cluster:
            run = Chaos(cluster, SEED, 4, 1, "synchronous_commit_off")
            found = run.go()
        if any("lost" in what for against in found.values() for what in against):
            return
    pytest.fail(run.report(found))
