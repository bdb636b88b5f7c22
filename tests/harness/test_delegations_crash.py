"""The crash harness of delegations, in small; how much is in the environment. In full:
delegations_crash.py itself."""

from __future__ import annotations

import os

import pytest
from harness.cluster import Cluster
from harness.delegations_crash import Run

TASKS = int(os.environ.get("CALIBER_CRASH_TASKS", "100"))
KILLS = int(os.environ.get("CALIBER_CRASH_KILLS", "1"))


def test_a_killed_server_keeps_every_promise(cluster: Cluster) -> None:
    run = Run(cluster, TASKS, KILLS, 16, None)
    assert run.go() == []
    assert len(run.record.given) == TASKS


@pytest.mark.parametrize(
    ("mutant", "finding"),
    [("take_without_asking", ("taken by two",)), ("spend_without_the_tree", ("add up", "check constraint"))],
)
def test_a_broken_step_is_noticed(cluster: Cluster, mutant: str, finding: tuple[str, ...]) -> None:
    # It takes two at the same moment, so a run may have luck.
    runs = (Run(cluster, 100, 0, 16, mutant).go() for _ in range(5))
    assert any(what in line for findings in runs for line in findings for what in finding)


def test_commits_that_are_not_durable_are_noticed(cluster: Cluster) -> None:
    runs = (Run(cluster, 100, 1, 16, "synchronous_commit_off").go() for _ in range(3))
    assert any("lost" in line or "not there" in line for findings in runs for line in findings)
