"""The crash harness of handoffs, in small; how much is in the environment. In full:
handoffs_crash.py itself."""

from __future__ import annotations

import os

import pytest
from harness.cluster import Cluster
from harness.handoffs_crash import Run

CLIENTS = int(os.environ.get("CALIBER_HANDOFF_CLIENTS", "6"))
KILLS = int(os.environ.get("CALIBER_HANDOFF_KILLS", "1"))


def test_a_server_killed_at_each_step_leaves_exactly_one_owner(cluster: Cluster) -> None:
    assert Run(cluster, KILLS, 1, clients=CLIENTS).go() == []


def test_an_owner_left_behind_is_noticed(cluster: Cluster) -> None:
    run = Run(cluster, 1, 1, "owner_left_behind")
    run.round("accept", 16)
    assert any("not one owner" in finding for finding in run.findings())


def test_answers_that_are_not_durable_are_noticed(cluster: Cluster) -> None:
    run = Run(cluster, 1, 1, "synchronous_commit_off")
    # It takes an answer in the moment before the kill, so a round may have luck.
    for _ in range(10):
        run.round("withdraw", 8)
        if any("is lost" in finding for finding in run.findings()):
            return
    pytest.fail("nothing was lost")
