"""A standby takes over while sixteen clients work. In full: make failover.

CALIBER_FAILOVERS=5 and CALIBER_CHAOS_SEED make it longer, and another."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from harness.chaos import Chaos
from harness.cluster import Cluster, Pair

FAILOVERS = int(os.environ.get("CALIBER_FAILOVERS", "1"))
SEED = int(os.environ.get("CALIBER_CHAOS_SEED", "1"))
# That the harness sees a number handed out twice, in the longer version.
MUTANTS = [["numbers_without_timeline"]] if FAILOVERS > 1 else []
# What holds even when the standby lacked the last commits.
NEVER_TWICE = {"regressions", "a turn handed out twice", "handed out twice"}


@pytest.fixture
def pair(request: pytest.FixtureRequest, model: Cluster) -> Iterator[Pair]:
    made = Pair(getattr(request, "param", 0), model)
    try:
        made.start()
        yield made
    finally:
        made.remove()


def test_a_standby_takes_over_and_nothing_is_missing(pair: Pair) -> None:
    run = Chaos(pair, SEED, 5 * FAILOVERS, FAILOVERS)
    found = run.go()
    assert not any(found.values()), run.report(found)
    assert all(actor.done for actor in run.actors if actor.weight), run.report(found)
    with pair.connect() as session:
        row = session.execute("select timeline_id from pg_control_checkpoint()").fetchone()
    # One more at the end of the run.
    assert row == (FAILOVERS + 2,)


@pytest.mark.parametrize("pair", [0.5], indirect=True)
@pytest.mark.parametrize("mutants", [[], *MUTANTS], ids=",".join)
def test_a_standby_that_lacks_commits_hands_out_no_number_again(pair: Pair, mutants: list[str]) -> None:
    run = Chaos(pair, SEED, 3, 1, *mutants)
    found = run.go()
    against = {what for kind in found.values() for what in kind}
    assert bool(against & NEVER_TWICE) == bool(mutants), run.report(found)
    # That something is missing has to be seen, or the test above says nothing.
    assert against & {"lost", "lost_writes"}, run.report(found)
