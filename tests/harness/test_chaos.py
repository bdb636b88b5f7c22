"""The chaos run in small, and that it sees what it is there to see. In full: make chaos.

CALIBER_CHAOS_SECONDS=300 and CALIBER_CHAOS_SEED make it longer, and another."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from harness.chaos import Chaos
from harness.cluster import Cluster

SECONDS = float(os.environ.get("CALIBER_CHAOS_SECONDS", "5"))
SEED = int(os.environ.get("CALIBER_CHAOS_SEED", "1"))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    try:
        made.start()
        yield made
    finally:
        made.remove()


def test_every_promise_is_kept(cluster: Cluster) -> None:
    run = Chaos(cluster, SEED, SECONDS, max(1, int(SECONDS / 30)), None)
    found = run.go()
    assert not any(found.values()), run.report(found)
    assert all(actor.done for actor in run.actors), run.report(found)


@pytest.mark.parametrize(
    ("mutant", "broken"),
    [
        ("claim_without_row_lock", "message"),
        ("lease_by_advisory_lock", "lock"),
        ("synchronous_commit_off", "lost"),
    ],
)
def test_a_mutant_is_caught(cluster: Cluster, mutant: str, broken: str) -> None:
    run = Chaos(cluster, SEED, 3, 0, mutant)
    found = run.go()
    report = run.report({promise: against for promise, against in found.items() if against})
    assert broken in report, report
