"""The table of make promises: what it takes to be called kept."""

from __future__ import annotations

from collections import Counter

import pytest
from harness.promises import PIECES, Promise, Sizes, parsed, report


def test_a_finding_breaks_a_promise() -> None:
    found = parsed(["2 × lost: its send had returned", "1 × acknowledged twice"])
    assert found == {"lost: its send had returned": 2, "acknowledged twice": 1}
    promise = Promise("message", "0 lost", "10 sends", enough=True, against=found)
    assert promise.verdict == "BROKEN"
    lines = report([promise]).splitlines()
    assert lines[1].split()[-2:] == ["3", "BROKEN"]
    assert lines[2].split(" × ") == ["    2", "lost: its send had returned"]


@pytest.mark.parametrize(("enough", "verdict"), [(True, "kept"), (False, "TOO LITTLE")])
def test_without_a_finding_it_takes_enough_work(enough: bool, verdict: str) -> None:
    assert Promise("x", "y", "z", enough, Counter(lost=0)).verdict == verdict


def test_a_piece_runs_and_counts() -> None:
    [promise] = PIECES["state"](Sizes(200))
    assert (promise.verdict, promise.required) == ("kept", "16 × 5 increments = 80, no gap")
