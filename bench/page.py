"""The page of the bench, docs/benchmarks.md: the machine, the versions, the rows and the method."""

from __future__ import annotations

import datetime
import os
import platform
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from rows import HEADS, Row
from server import DATABASE, connect, scratch

SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "jit")


def table(lines: list[list[str]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    padded = [" | ".join(cell.ljust(width) for cell, width in zip(x, widths, strict=True)) for x in lines]
    rule = "-|-".join("-" * width for width in widths)
    return "\n".join(f"| {line} |" for line in [padded[0], rule, *padded[1:]]) + "\n"


def summary(rows: list[Row]) -> str:
    """How many bars are reached, and which are not by how much."""
    judged = [row for row in rows if row.met is not None]
    missed = [row for row in judged if not row.met]
    text = f"{len(judged) - len(missed)} of {len(judged)} bars are met."
    if missed:
        text += " Not met:\n\n"
        text += "\n".join(
            f"- {row.what}: {row.value:.2f} {row.unit}, required {row.required}, {row.verdict}"
            for row in missed
        )
    return text + "\n"


def processor() -> str:
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def redis_version() -> str:
    program = shutil.which("redis-server")
    if not program:
        return "not installed"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\S+)", said)
    return found[1] if found else said.strip()


def package_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def machine() -> list[list[str]]:
    """What was measured where, as lines of a table. The versions are those of the scratch database."""
    with scratch(DATABASE), connect(DATABASE) as session:
        extensions: dict[str, str] = dict(
            session.execute("select name, coalesce(installed_version, default_version)"
                            " from pg_available_extensions where name in ('caliber', 'vector', 'pgq')")
        )  # fmt: skip
        version = session.execute("show server_version").fetchall()[0][0]
        settings: dict[str, str] = dict(
            session.execute(
                "select name, current_setting(name) from pg_settings where name = any(%s)", [list(SETTINGS)]
            )
        )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        ["Part", "Which"],
        ["Machine", f"{processor()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GB"],
        ["System", f"{platform.system()} {platform.release()}, {platform.machine()}"],
        ["PostgreSQL", version],
        ["CALIBER", extensions["caliber"]],
        ["pgvector", extensions["vector"]],
        ["Settings", ", ".join(f"{name} {settings[name]}" for name in SETTINGS)],
        ["procrastinate", package_version("procrastinate")],
        ["PgQ", extensions.get("pgq", "not installed")],
        ["Redis", redis_version()],
    ]


def page(rows: list[Row], about: list[list[str]], method: str, quick: bool) -> str:
    today = datetime.datetime.now(tz=datetime.UTC).date()
    rough = "\nA quick run, to see that it works: the figures are rough.\n" if quick else ""
    return f"""\
# Benchmarks

Made by `make bench` on {today}; edit nothing here. Every figure that counts is a ratio of two things
measured in turns, in one run, on one machine; bare figures are this machine's.
{rough}
{summary(rows)}
![CALIBER beside what it is measured against](benchmarks.svg)

## Rows

Rows without a requirement are there to compare.

{table([HEADS, *(row.cells() for row in rows)])}
## Machine and versions

{table(about)}
## Method

{method}"""
