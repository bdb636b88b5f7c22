"""Rows of the bench about delegations; run by run.py in its scratch database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

HERE = Path(__file__).resolve().parent

METHOD = """\
- Delegations: one of 500 agents delegates on a trajectory of its own to one of 500 others, who takes
  the task and completes it, each step a transaction of its own; wake-ups and the queue limit are off.
  Plain SQL does the same with a prepared statement for each step (two for taking: the agent is locked
  before its tasks are counted) and writes the same rows: task, messages, trajectory, scope, events.
"""


def prepare(session: psycopg.Connection[Any]) -> None:
    session.execute((HERE / "delegations_setup.sql").read_text())
    session.execute("vacuum analyze")
