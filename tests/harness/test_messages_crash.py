"""The crash harness, in small; how much is in the environment. In full: messages_crash.py itself."""

from __future__ import annotations

import os

from harness.cluster import Cluster
from harness.messages_crash import Run

SENDS = int(os.environ.get("CALIBER_CRASH_SENDS", "400"))
KILLS = int(os.environ.get("CALIBER_CRASH_KILLS", "1"))


def test_a_killed_server_keeps_every_promise(cluster: Cluster) -> None:
    run = Run(cluster, SENDS, KILLS, 16, None)
    assert run.go() == []
    assert len(run.record.sent) == SENDS


def test_claiming_without_a_row_lock_is_noticed(cluster: Cluster) -> None:
    # It takes two readers at the same moment, so a run may have luck.
    runs = (Run(cluster, SENDS, 0, 16, "claim_without_row_lock").go() for _ in range(10))
    assert any("held by two" in finding for findings in runs for finding in findings)


def test_commits_that_are_not_durable_are_noticed(cluster: Cluster) -> None:
    findings = Run(cluster, 2 * SENDS, 2, 16, "synchronous_commit_off").go()
    assert any("lost" in finding for finding in findings)
