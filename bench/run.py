"""Measures CALIBER against plain SQL and its peers, and writes docs/benchmarks.md and its chart. Every
figure that counts is a ratio of two things measured in turns, in one run, on one machine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import chart
import conflicts_rows as conflicts
import delegations_rows as delegations
import events_rows as events
import foundation_rows as foundation
import messages_rows as messages
import page
import peers_rows as peers
from rows import FULL, QUICK, Options, Row
from server import CLIENTS, WARM_UP

DOCS = Path(__file__).resolve().parents[1] / "docs"
# In this order: each has rows(options), and METHOD, which says how they were measured.
PARTS = {
    "foundation": foundation,
    "events": events,
    "messages": messages,
    "peers": peers,
    "conflicts": conflicts,
    "delegations": delegations,
}


def measure(options: Options, only: str | None) -> Iterator[Row]:
    for name, part in PARTS.items():
        if only in (None, name):
            yield from part.rows(options)


def method(options: Options, only: str | None) -> str:
    text = "".join(part.METHOD for name, part in PARTS.items() if only in (None, name))
    return text.format(
        clients=CLIENTS,
        warm_up=WARM_UP,
        dimensions=conflicts.DIMENSIONS,
        checked=conflicts.CHECKED,
        backlog=peers.BACKLOG,
        batch=peers.BATCH,
        **vars(options),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short runs, to see that it works; not saved")
    parser.add_argument("--only", choices=PARTS, help="a part; not saved")
    parser.add_argument("--to", type=Path, metavar="DIR", help="save there, whatever was measured")
    arguments = parser.parse_args()
    options = QUICK if arguments.quick else FULL
    rows: list[Row] = []
    for row in measure(options, arguments.only):
        print(" | ".join(row.cells()), flush=True)
        rows.append(row)
    text = page.page(rows, page.machine(), method(options, arguments.only), arguments.quick)
    print("\n" + text)
    whole = not (arguments.quick or arguments.only)
    place: Path | None = arguments.to or (DOCS if whole else None)
    if place:
        (place / "benchmarks.md").write_text(text)
        (place / "benchmarks.svg").write_text(chart.draw(rows))


if __name__ == "__main__":
    main()
