"""Rows of the bench about delegations."""

from __future__ import annotations

from collections.abc import Iterator

from rows import Options, Row
from server import DATABASE, connect, scratch, script, throughput

METHOD = """\
- Delegations: one of 500 agents delegates on a trajectory of its own to one of 500 others, who takes
  the task and completes it, each step a transaction of its own; wake-ups and the queue limit are off.
  Plain SQL does the same with a prepared statement for each step (two for taking: the agent is locked
  before its tasks are counted) and writes the same rows: task, messages, trajectory, scope, events.
"""


def rows(options: Options) -> Iterator[Row]:
    with scratch(DATABASE):
        with connect(DATABASE) as session:
            session.execute(script("delegations_setup.sql"))
            session.execute("vacuum analyze")
        yield throughput("delegate, accept, complete, 8 clients", "delegations_life", options, 0.5)
