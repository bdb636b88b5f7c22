"""Races, written as isolation specs: tests/isolation/specs, each with its expected output."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, Connection

HERE = ROOT / "tests/isolation"
PGXS = Path(subprocess.check_output([os.environ["PG_CONFIG"], "--pgxs"], text=True).strip())
RUNNER = PGXS.parents[1] / "test/isolation/pg_isolation_regress"
SPECS = sorted(path.stem for path in (HERE / "specs").glob("*.spec"))


def test_there_are_specs() -> None:
    assert SPECS


@pytest.mark.parametrize("spec", SPECS)
def test_spec(spec: str, db: Connection, tmp_path: Path) -> None:
    bindir = subprocess.check_output([os.environ["PG_CONFIG"], "--bindir"], text=True).strip()
    command = [
        str(RUNNER),
        "--use-existing",
        f"--dbname={db.info.dbname}",
        f"--inputdir={HERE}",
        f"--outputdir={tmp_path}",
        f"--bindir={bindir}",
        spec,
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=RUNNER.parent)
    diff = tmp_path / "regression.diffs"
    assert done.returncode == 0, done.stdout + done.stderr + (diff.read_text() if diff.exists() else "")
