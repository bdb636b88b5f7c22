"""The reference in docs/ says what the catalog says."""

from __future__ import annotations

import psycopg
from build_reference import render
from conftest import ROOT


def test_the_reference_is_not_stale(postgresql: psycopg.Connection) -> None:
    written = (ROOT / "docs/reference.md").read_text()
    assert render(postgresql) == written, "run: make docs"
