"""Rows of the bench about delegations."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from rows import Options, Row
from server import DATABASE, connect, pgbench, scratch, script

METHOD = """\
- Delegations: one of 500 agents delegates on a trajectory of its own to one of 500 others, who takes
  the task and completes it, each step a transaction of its own; wake-ups and the queue limit are off.
  Plain SQL does the same with a prepared statement for each step (two for taking: the agent is locked
  before its tasks are counted) and writes the same rows: task, messages, trajectory, scope, events.
  At least five short turns each, one right after the other and each side first in every other one; the
  ratio is the median of those of the turns, since commits of one moment are not those of the next.
"""

TURNS = 5


def _life(options: Options) -> Row:
    sides = ("ours", "plain")
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    # What a new session and an empty cache cost is in neither.
    for side in sides:
        pgbench(f"delegations_life_{side}.sql", 1)
    for turn in range(max(TURNS, options.rounds)):
        for side in sides if turn % 2 else reversed(sides):
            speeds[side].append(pgbench(f"delegations_life_{side}.sql", options.seconds))
    ratio = statistics.median(
        mine / other for mine, other in zip(speeds["ours"], speeds["plain"], strict=True)
    )
    mine, other = (statistics.median(speeds[side]) for side in sides)
    return Row(
        "delegate, accept, complete, 8 clients", f"{mine:,.0f}/s", f"{other:,.0f}/s plain SQL", ratio,
        at_least=0.5,
    )  # fmt: skip


def rows(options: Options) -> Iterator[Row]:
    with scratch(DATABASE):
        with connect(DATABASE) as session:
            session.execute(script("delegations_setup.sql"))
            session.execute("vacuum analyze")
        yield _life(options)
