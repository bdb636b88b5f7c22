"""Rows of the bench about conflicts."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rows import Options, Row
from server import DATABASE, Session, connect, scratch

DATA = Path(__file__).resolve().parents[1] / "tests/data"
THRESHOLD = 0.85
DIMENSIONS = 1536
CHECKED = 128
# A call of some milliseconds is measured more often.
SECOND_CALLS = 7

METHOD = """\
- Conflicts: facts of {dimensions} dimensions at random, every tenth of them close to another. The self
  join is the rule in SQL. Bare numpy fetches the same vectors as bytes, in a program of its own that
  has numpy loaded, multiplies the matrix with itself and picks the pairs; it writes nothing. The session
  that detects has done so before in another trajectory. Medians of {rounds} calls; all find the same
  pairs. Extra memory is how far the peak of the server
  process rises, or the largest amount it had so far. The second call comes after 10 more facts, in the
  same session, and in a new one; there it is held against a first call in a new one, and both have
  their share of starting Python. By pgvector and by numpy: the same call by either way, in sessions of
  their own; the constants in plpython/caliber/conflicts_pairs.py follow from these rows.
- Check of a fact: {checked} dimensions, by the index; both are the median of calls in turns.
- Precision and recall: 300 hand-written pairs with embeddings of all-MiniLM-L6-v2; the unseen half was
  not looked at while the rules were made.
"""

JOIN = """
    select a.artifact_id, b.artifact_id
    from caliber_artifact as a
    join caliber_artifact as b on a.artifact_id < b.artifact_id
    where a.trajectory_id = %s and b.trajectory_id = a.trajectory_id and a.artifact_type = 'fact'
        and b.artifact_type = 'fact' and a.content_hash <> b.content_hash
        and 1 - (a.embedding <=> b.embedding) > 0.85
"""
DETECT = "select item_a_id, item_b_id from caliber_detect_conflicts(%s) where similarity > 0.85"
FETCH = "select artifact_id, vector_send(embedding) from caliber_artifact where trajectory_id = %s"


def rows(options: Options) -> Iterator[Row]:
    with scratch(DATABASE):
        yield from quality()
        yield from all_pairs(options.rounds)
        yield from both_ways(options.rounds)
        yield from memory()
        yield from checks(options.vectors, max(10, options.calls // 20))


class Facts:
    """A trajectory with facts that are close to each other in places."""

    def __init__(self, session: Session, name: str) -> None:
        self.session = session
        self.rng = np.random.default_rng(7)
        agent = one(session, "select caliber_agent_register('coder', name => %s)", name)
        self.trajectory = one(session, "select caliber_trajectory_start('work', %s)", agent)

    def vectors(self, count: int, dimensions: int) -> np.ndarray[Any, Any]:
        made = self.rng.standard_normal((count, dimensions), dtype=np.float32)
        near = np.arange(9, count, 10)
        made[near] = made[near - 1] + 0.5 * made[near]
        return made

    def add(self, vectors: np.ndarray[Any, Any], contents: list[str] | None = None) -> None:
        """As bytes: a vector is its dimensions, two bytes of nothing, and its numbers."""
        head = np.array([vectors.shape[1], 0], ">u2").tobytes()
        with self.session.cursor() as cursor:
            cursor.execute("create temp table if not exists given (content text, embedding vector)")
            cursor.execute("truncate given")
            with cursor.copy("copy given from stdin (format binary)") as copy:
                copy.set_types(["text"])
                copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8))
                for n, row in enumerate(vectors.astype(">f4")):
                    text = (contents[n] if contents else f"fact {self.rng.bytes(8).hex()}").encode()
                    value = head + row.tobytes()
                    copy.write(
                        b"\0\2" + len(text).to_bytes(4, "big") + text + len(value).to_bytes(4, "big") + value
                    )
                copy.write(b"\xff\xff")
            cursor.execute(
                """
                insert into caliber_artifact (scope_id, trajectory_id, agent_id, team_id, artifact_type,
                    content, content_hash, token_count, embedding)
                select s.scope_id, s.trajectory_id, s.agent_id, s.team_id, 'fact', content,
                    sha256(convert_to(content, 'UTF8')), 1, embedding
                from caliber_scope as s, given
                where s.trajectory_id = %s
                """,
                [self.trajectory],
            )
            cursor.execute("drop table given")
        # As autovacuum would, which a few more do not call.
        if len(vectors) >= 100:
            self.session.execute("vacuum analyze caliber_artifact")

    def forget_last(self, count: int) -> None:
        """As if the last ones had not been compared."""
        last = "select artifact_id from caliber_artifact where trajectory_id = %s order by 1 desc limit %s"
        for table, key in (("caliber_conflict_compared", "artifact_id"), ("caliber_conflict", "item_b_id")):
            self.session.execute(
                f"delete from {table} where {key} in ({last})".encode(), [self.trajectory, count]
            )

    def forget(self) -> None:
        """As if nothing had been compared."""
        self.session.execute("truncate caliber_conflict, caliber_conflict_compared, caliber_conflict_scan")


def one(session: Session, query: str, *values: object) -> Any:
    row = session.execute(query, values).fetchone()
    assert row
    return row[0]


def taken(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def timed(session: Session, facts: Facts) -> float:
    return taken(lambda: session.execute(DETECT, [facts.trajectory]))


def peak(pid: int) -> float:
    """The largest resident size so far, in MB, without the buffers that all processes share."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = {
        line.split(":")[0]: line.split()[1] for line in status.splitlines() if line.startswith(("Vm", "Rss"))
    }
    return (int(found["VmHWM"]) - int(found["RssShmem"])) / 1024


def bare_numpy(session: Session, trajectory: object) -> set[frozenset[object]]:
    with session.cursor(binary=True) as cursor:
        rows = cursor.execute(FETCH, [trajectory]).fetchall()
    layout = np.dtype([("head", "S4"), ("numbers", ">f4", (DIMENSIONS,))])
    matrix = np.frombuffer(b"".join(row[1] for row in rows), layout)["numbers"].astype(np.float32)
    matrix /= np.sqrt(np.einsum("ij,ij->i", matrix, matrix))[:, None]
    left, right = (np.triu(matrix @ matrix.T, 1) > THRESHOLD).nonzero()
    return {frozenset((rows[a][0], rows[b][0])) for a, b in zip(left, right, strict=True)}


def all_pairs(rounds: int) -> Iterator[Row]:
    """2,000 facts: by detection, by a self-join, by numpy."""
    with connect(DATABASE) as session:
        facts = Facts(session, "pairs")
        facts.add(facts.vectors(2000, DIMENSIONS))
        joined = {frozenset(row) for row in session.execute(JOIN, [facts.trajectory])}
        ours, theirs, second, again, cold = [], [], [], [], []
        some = Facts(session, "warm")
        some.add(some.vectors(700, DIMENSIONS))
        for _ in range(rounds):
            facts.forget()
            with connect(DATABASE) as fresh:
                # As in a session that has detected before, only elsewhere.
                fresh.execute(DETECT, [some.trajectory])
                began = time.perf_counter()
                found = {frozenset(row) for row in fresh.execute(DETECT, [facts.trajectory])}
                ours.append((time.perf_counter() - began) * 1000)
                assert found == joined, "not the pairs of the self-join"
                assert bare_numpy(session, facts.trajectory) == joined, "not the pairs of numpy"
                began = time.perf_counter()
                bare_numpy(session, facts.trajectory)
                theirs.append((time.perf_counter() - began) * 1000)
                for _ in range(SECOND_CALLS):
                    facts.add(facts.vectors(10, DIMENSIONS))
                    second.append(timed(fresh, facts))
            facts.add(facts.vectors(10, DIMENSIONS))
            with connect(DATABASE) as other:
                again.append(timed(other, facts))
            facts.forget()
            with connect(DATABASE) as other:
                cold.append(timed(other, facts))
            session.execute(
                "delete from caliber_artifact where artifact_id in (select artifact_id from caliber_artifact"
                " where trajectory_id = %s order by artifact_id desc limit %s)",
                [facts.trajectory, 10 * (SECOND_CALLS + 1)],
            )
        join = taken(lambda: session.execute(JOIN, [facts.trajectory]))
        mine, other_ms, first = (statistics.median(times) for times in (ours, theirs, cold))
        what = f"detect conflicts, 2,000 × {DIMENSIONS:,}"
        yield Row(what, f"{mine:.0f} ms", f"{join:,.0f} ms SQL self-join", join / mine, at_least=40)
        yield Row(what, f"{mine:.0f} ms", f"{other_ms:.0f} ms bare numpy", mine / other_ms, at_most=2)
        what += ", first call of a session"
        yield Row(what, f"{first:.0f} ms", f"{join:,.0f} ms SQL self-join", join / first)
        later = statistics.median(second)
        what = "detect again after 10 new facts, the same session"
        against = f"{mine:.0f} ms the first call"
        yield Row(what, f"{later:.1f} ms", against, later / mine, at_most=0.05, less=True)
        later = statistics.median(again)
        what = "detect again after 10 new facts, a new session"
        against = f"{first:.0f} ms the first call in a new session"
        yield Row(what, f"{later:.1f} ms", against, later / first, less=True)


PYTHON = "do language plpython3u $$ from caliber import conflicts_pairs as pairs; {} $$"
WAY = "pairs.PAIRS_PER_READ = pairs.PAIRS_PER_IMPORT = {}"


def python(session: Session, code: str) -> None:
    session.execute(PYTHON.format(code).encode())


def by(way: str, facts: Facts, few: Facts) -> float:
    """Detection by pgvector or by numpy, in a session that has all but numpy."""
    many, none = 10**9, -1
    with connect(DATABASE) as session:
        session.execute("select caliber_config_get('event_level')")
        python(session, WAY.format(many))
        session.execute(DETECT, [few.trajectory])
        if way == "loaded":
            python(session, "pairs.load_numpy()")
        python(session, WAY.format(many if way == "pgvector" else none))
        return timed(session, facts)


def both_ways(rounds: int) -> Iterator[Row]:
    """Where pgvector ends and numpy begins."""
    with connect(DATABASE) as session:
        few = Facts(session, "start")
        few.add(few.vectors(5, DIMENSIONS))
        for new, known in ((100, 0), (200, 0), (400, 0), (800, 0), (10, 2000), (50, 2000), (200, 2000)):
            facts = Facts(session, f"new-{new}-known-{known}")
            if known:
                facts.add(facts.vectors(known, DIMENSIONS))
                timed(session, facts)
            facts.add(facts.vectors(new, DIMENSIONS))
            times: dict[str, list[float]] = {"pgvector": [], "numpy": [], "loaded": []}
            for _ in range(max(3, rounds)):
                for way, took in times.items():
                    facts.forget_last(new)
                    took.append(by(way, facts, few))
            one, other, loaded = (statistics.median(took) for took in times.values())
            what = f"by pgvector, {new} new against {known:,} × {DIMENSIONS:,}"
            against = f"{other:.0f} ms by numpy, {loaded:.0f} ms where it is loaded"
            yield Row(what, f"{one:.0f} ms", against, one / other, less=True)


def memory() -> Iterator[Row]:
    """10,000 facts, by a server process that has done nothing else."""
    with connect(DATABASE) as session:
        facts = Facts(session, "memory")
        facts.add(facts.vectors(10_000, DIMENSIONS))
        with connect(DATABASE) as fresh:
            fresh.execute("select caliber_uuid_v7(), caliber_config_get('event_level')")
            before = peak(fresh.info.backend_pid)
            spent = timed(fresh, facts)
            more = peak(fresh.info.backend_pid) - before
        what = f"detect conflicts, 10,000 × {DIMENSIONS:,}, extra memory"
        ours = f"{more:.0f} MB, {spent / 1000:.1f} s"
        yield Row(what, ours, "1,024 MB allowed", more / 1024, at_most=1)


def checks(many: int, calls: int) -> Iterator[Row]:
    """One fact against few and against many, of which the index finds the nearest."""
    check = "select * from caliber_check_fact(%s, 'fact 0', %s::vector)"
    with connect(DATABASE) as session:
        small, large = Facts(session, "few"), Facts(session, "many")
        small.add(small.vectors(1000, CHECKED))
        large.add(large.vectors(many, CHECKED))
        session.execute("set maintenance_work_mem = '1GB'")
        one(session, "select caliber_embedding_index(%s)", CHECKED)
        session.execute("vacuum analyze caliber_artifact")
        scans = "select sum(idx_scan) from pg_stat_user_indexes where indexrelname like %s"
        index = f"caliber_artifact_embedding_{CHECKED}%"
        before = one(session, scans, index)
        times: dict[int, list[float]] = {1000: [], many: []}
        for call in range(calls + 5):
            vector = str(small.rng.standard_normal(CHECKED).round(4).tolist())
            for facts, size in ((small, 1000), (large, many)):
                began = time.perf_counter()
                session.execute(check, [facts.trajectory, vector], prepare=True)
                if call >= 5:
                    times[size].append((time.perf_counter() - began) * 1000)
        session.execute("select pg_stat_force_next_flush()")
        used = one(session, scans, index) - before
        mine, other = statistics.median(times[many]), statistics.median(times[1000])
        what = f"check of a fact against {many:,}, {used} scans of the index"
        yield Row(what, f"{mine:.1f} ms", f"{other:.1f} ms against 1,000", mine / other, at_most=3)


def quality() -> Iterator[Row]:
    """How right the verdicts are on real sentences that the rules were not made with."""
    lines = (DATA / "conflict_pairs.tsv").read_text().splitlines()
    pairs = [line.split("\t") for line in lines if not line.startswith("#")]
    vectors = np.fromfile(DATA / "conflict_pairs.f16", "<f2").reshape(-1, 384).astype(np.float32)
    with connect(DATABASE) as session:
        facts = Facts(session, "quality")
        facts.add(vectors, [sentence for pair in pairs for sentence in pair[1:]])
        session.execute(DETECT, [facts.trajectory])
        query = (
            "select content_a, content_b, verdict::text, similarity"
            " from caliber_conflicts where trajectory_id = %s"
        )
        verdicts = {frozenset(row[:2]): row[2:] for row in session.execute(query, [facts.trajectory])}
    unseen = [p for p in pairs if hashlib.sha256(f"{p[1]}\t{p[2]}".encode()).digest()[0] % 2 == 1]
    true = sum(label == "contradicting" for label, *_ in unseen)
    for kind in ("candidate", "contradiction"):
        flagged = [
            label == "contradicting"
            for label, *texts in unseen
            if (found := verdicts.get(frozenset(texts)))
            and (found[0] == kind if kind == "contradiction" else found[1] > THRESHOLD)
        ]
        bar = 0.7 if kind == "contradiction" else None
        for name, others, count in (
            ("precision", "flagged", len(flagged)),
            ("recall", "contradictions", true),
        ):
            what = f"{kind} on {len(unseen)} unseen pairs, {name}"
            share = sum(flagged) / count
            yield Row(what, f"{sum(flagged)} right", f"{count} {others}", share, at_least=bar)
