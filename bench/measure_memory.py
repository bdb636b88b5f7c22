"""Memory: how long context assembly and search take, each beside what it is compared with."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

HERE = Path(__file__).resolve().parent
TRAJECTORY = "00000000-0000-7000-8002-000000000000"
INDEX = "caliber_artifact_embedding_384_idx"

Session = psycopg.Connection[tuple[Any, ...]]


def script(name: str) -> str:
    return (HERE / name).read_text()


def taken(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def in_turns(ours: Callable[[], object], other: Callable[[], object], calls: int) -> tuple[float, float]:
    """The median milliseconds of each, measured by turns; the first few are not counted."""
    mine: list[float] = []
    theirs: list[float] = []
    for call in range(calls + 10):
        pair = taken(ours), taken(other)
        if call >= 10:
            mine.append(pair[0])
            theirs.append(pair[1])
    return statistics.median(mine), statistics.median(theirs)


def context(session: Session, calls: int) -> tuple[float, float]:
    """Assembling a context of 16,000 tokens, and only fetching what it holds."""
    session.execute(script("memory_context.sql"))
    session.execute("vacuum analyze")
    assemble = "select * from caliber_context_assemble(%s)"
    made = session.execute(assemble, [TRAJECTORY]).fetchone()
    assert made
    counted = session.execute(
        "select section::text, count(item_id) from caliber_context_trace where context_id = %s group by 1",
        [made[0]],
    ).fetchall()
    chosen: dict[str, object] = {"trajectory": TRAJECTORY, **dict(counted)}
    plain = script("memory_context_plain.sql")
    fetched = session.execute(plain, chosen).fetchall()
    assert all(str(content) in str(made[5]) for _, content in fetched), "not the rows that were chosen"
    return in_turns(
        lambda: session.execute(assemble, [TRAJECTORY], prepare=True).fetchall(),
        lambda: session.execute(plain, chosen, prepare=True).fetchall(),
        calls,
    )


def search(session: Session, vectors: int, calls: int) -> tuple[float, float, float]:
    """Search by the index, and by comparing all; and how many of the nearest the index finds."""
    session.execute(script("memory_vectors.sql").replace("%(vectors)s", str(vectors)).replace("%%", "%"))
    session.execute("set maintenance_work_mem = '512MB'")
    session.execute("select caliber_embedding_index(384)")
    session.execute("vacuum analyze caliber_artifact")
    probes = [
        row[0]
        for row in session.execute(
            "select embedding::text from caliber_artifact tablesample bernoulli (1)"
            " where embedding is not null limit 20"
        )
    ]
    indexed = "select id from caliber_search(embedding => %s::vector, kinds => '{artifact}')"
    exact = (
        "select artifact_id from caliber_artifact"
        " where status <> 'superseded' and vector_dims(embedding) = 384"
        " order by embedding <=> %s::vector limit 10"
    )
    assert f"Index Scan using {INDEX}" in explained(session, indexed, probes[0]), "the index is not used"
    found = 0
    for probe in probes:
        near = {row[0] for row in session.execute(exact, [probe])}
        found += len(near & {row[0] for row in session.execute(indexed, [probe])})
    place = iter(range(10**9))

    def run(statement: str) -> object:
        return session.execute(statement, [probes[next(place) // 2 % len(probes)]], prepare=True).fetchall()

    mine, theirs = in_turns(lambda: run(indexed), lambda: run(exact), calls)
    return mine, theirs, found / (10 * len(probes))


def explained(session: Session, statement: str, *arguments: object) -> str:
    """The plans of all statements that a call ran inside."""
    said: list[str] = []

    def keep(notice: psycopg.errors.Diagnostic) -> None:
        said.append(notice.message_primary or "")

    session.execute("load 'auto_explain'")
    session.execute("set auto_explain.log_min_duration = 0")
    session.execute("set auto_explain.log_nested_statements = on")
    session.execute("set client_min_messages = log")
    session.add_notice_handler(keep)
    session.execute(statement, arguments)
    session.remove_notice_handler(keep)
    session.execute("reset client_min_messages")
    session.execute("set auto_explain.log_min_duration = -1")
    return "\n".join(said)
