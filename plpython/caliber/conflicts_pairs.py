"""Conflicts: which artifacts are alike, by embedding. All pairs with a fresh one in them, among
artifacts of one kind, model and dimension.

Few pairs are compared by pgvector. Many are compared by numpy, a part of them at a time: vectors come
as bytes and become a matrix of rows of length 1; a strip of one part times another part gives the
similarities of all their pairs. Reading the vectors takes longer than that, so each is read once, and
what was read is kept for the next call while it fits.

So numpy pays where many vectors are compared with many, or few with many that it has. To import it
takes a tenth of a second, and to read a vector as long as pgvector takes for a number of pairs.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from caliber.plans import plan

# How many pairs pgvector compares while numpy is imported, and while numpy reads one vector more than
# pgvector does. The bench measures both ways; docs/conflicts.md has the figures.
PAIRS_PER_IMPORT = 80_000
PAIRS_PER_READ = 40
# Artifacts of a part, rows of a strip, and how many bytes of matrices one call holds at a time.
PART = 1024
STRIP = 512
HELD_BYTES = 256 * 1024 * 1024
# Pairs between two chances for a cancel: some milliseconds.
BREATH = 500_000
# Parts beyond which they are joined into one.
MAX_PARTS = 16
# Single precision against pgvector's double: nearer than this to a threshold, pgvector decides.
SLACK = 1e-4

_VECTORS = plan(
    """
    select
        r.artifact_id as id, @extschema@._caliber_vector_bytes(r.embedding) as raw,
        pg_catalog.substr(r.content_hash, 1, 8) as hash
    from @extschema@.caliber_artifact as r
    where r.artifact_id = any($1)
    """,
    "uuid[]",
)

_DIMENSIONS = plan(
    """
    select
        r.artifact_id as id,
        case
            when @extschema@._caliber_vector_is_zero(r.embedding) then 0
            else @extschema@._caliber_vector_dims(r.embedding)
        end as dimensions
    from @extschema@.caliber_artifact as r
    where r.artifact_id = any($1)
    """,
    "uuid[]",
)

# A vector of more than 2 kB lies beside its row, and to fetch it takes ten times as long as to compare
# it. So each is fetched once: the fresh ones wait, and all others pass by them.
_FEW = plan(
    """
    with fresh as materialized (
        select
            n.artifact_id, n.content_hash, @extschema@._caliber_vector_fetched(n.embedding) as embedding
        from @extschema@.caliber_artifact as n
        where n.artifact_id = any($1)
    )

    select p.artifact_id as one, r.artifact_id as other, p.similarity
    from (
        select
            r.artifact_id, r.content_hash, @extschema@._caliber_vector_fetched(r.embedding) as embedding,
            r.artifact_id = any($1) as fresh
        from @extschema@.caliber_artifact as r
        where r.artifact_id = any($2)
        offset 0
    ) as r
    cross join lateral (
        select n.artifact_id, @extschema@._caliber_similarity(n.embedding, r.embedding) as similarity
        from fresh as n
        where (not r.fresh or r.artifact_id < n.artifact_id) and r.content_hash <> n.content_hash
        offset 0
    ) as p
    where p.similarity >= $3
    limit $4
    """,
    "uuid[]",
    "uuid[]",
    "float8",
    "int8",
)

_BREATHE = plan("select 1")


def breathe() -> None:
    """Lets a cancel or a timeout in: they do not reach Python while it computes."""
    _BREATHE.rows()


class Group:
    """Artifacts of one kind and model: those compared already, by dimension, and the fresh ones."""

    __slots__ = ("fresh", "key", "known")

    def __init__(self, key: tuple[Any, ...]) -> None:
        self.key = key
        self.known: dict[int, list[str]] = {}
        self.fresh: list[str] = []


class Found:
    __slots__ = ("compared", "dropped", "pairs")

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str, float]] = []
        # Fresh ones that are compared now, by dimension; 0 is a vector of zeros, like nothing.
        self.compared: dict[int, list[str]] = {}
        self.dropped = 0


class Part:
    """Some artifacts of one dimension and, while it is held, the matrix of their vectors and the hashes
    of their texts: the same text twice is no conflict, and must not use up the limit."""

    __slots__ = ("hashes", "ids", "matrix")

    def __init__(self, ids: list[str], matrix: Any = None, hashes: Any = None) -> None:
        self.ids = ids
        self.matrix = matrix
        self.hashes = hashes


class Hits:
    """Pairs found; the most alike of them, where there are more than the limit."""

    __slots__ = ("dropped", "limit", "pairs")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.pairs: list[tuple[float, str, str]] = []
        self.dropped = 0

    def add(self, similarities: Any, least: float, start: int, one: Part, other: Part) -> None:
        """Those of a strip of one, from start on, with other; with itself only what comes before."""
        rows, columns = (similarities >= least).nonzero()
        wanted = one.hashes[rows + start] != other.hashes[columns]
        if one is other:
            wanted &= columns < rows + start
        rows, columns = rows[wanted], columns[wanted]
        values = similarities[rows, columns]
        if len(values) > self.limit:
            most = values.argpartition(len(values) - self.limit)[len(values) - self.limit :]
            self.dropped += len(values) - self.limit
            values, rows, columns = values[most], rows[most], columns[most]
        for value, row, column in zip(values.tolist(), rows.tolist(), columns.tolist(), strict=True):
            self.pairs.append((value, one.ids[row + start], other.ids[column]))
        if len(self.pairs) > 2 * self.limit:
            self.trim()

    def trim(self) -> None:
        if len(self.pairs) > self.limit:
            self.pairs.sort(reverse=True)
            self.dropped += len(self.pairs) - self.limit
            del self.pairs[self.limit :]


# What the last calls read, by group and dimension. Embeddings never change: an id is enough to know one.
_kept: dict[tuple[Any, ...], list[Part]] = {}


def alike(group: Group, least: float, limit: int, cache: int) -> Found:
    """Pairs at least so similar. Stops once there are limit of them, after the part it is at."""
    known = sum(len(ids) for ids in group.known.values())
    pairs = len(group.fresh) * (known + len(group.fresh) // 2)
    found = _by_pgvector(group, least, limit) if pairs <= _few(group, known) else None
    # Too many are alike: numpy picks the most alike of them.
    return found or _by_numpy(group, least - SLACK, limit, cache)


def _few(group: Group, known: int) -> int:
    """Up to how many pairs pgvector is faster."""
    kept = sum(
        len(part.ids) for dimensions in group.known for part in _kept.get((*group.key, dimensions), ())
    )
    unread = len(group.fresh) + max(0, known - kept)
    return PAIRS_PER_READ * unread + (0 if "numpy" in sys.modules else PAIRS_PER_IMPORT)


def load_numpy() -> Any:
    """numpy, without threads of its own: signals are for the one thread of a server process."""
    if "numpy" not in sys.modules:
        for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = "1"
    import numpy

    return numpy


def _by_pgvector(group: Group, least: float, limit: int) -> Found | None:
    """None where more pairs than the limit are alike."""
    found = Found()
    for row in _DIMENSIONS.rows(group.fresh):
        found.compared.setdefault(row["dimensions"], []).append(row["id"])
    for dimensions, fresh in found.compared.items():
        if dimensions > 0:
            rows = _FEW.rows(fresh, [*group.known.get(dimensions, []), *fresh], least, limit + 1)
            if len(rows) > limit - len(found.pairs):
                return None
            for row in rows:
                similarity = _number(row)
                if similarity >= least:
                    found.pairs.append((row["one"], row["other"], similarity))
    return found


def _number(row: dict[str, Any]) -> float:
    """Of the largest and the smallest vectors pgvector says that their likeness is not a number."""
    if row["similarity"] <= 1 + SLACK:
        return float(row["similarity"])
    matrix = next(iter(_read([row["one"], row["other"]]).values())).matrix
    return float(matrix[0] @ matrix[1])


def _by_numpy(group: Group, least: float, limit: int, cache: int) -> Found:
    found = Found()
    parts = {dimensions: _known_parts(group.key, dimensions, ids) for dimensions, ids in group.known.items()}
    for start in range(0, len(group.fresh), PART):
        if len(found.pairs) >= limit:
            break
        for dimensions, part in _read(group.fresh[start : start + PART]).items():
            found.compared.setdefault(dimensions, []).extend(part.ids)
            if dimensions > 0:
                hits = Hits(limit)
                _compare(part, parts.setdefault(dimensions, []), least, hits)
                parts[dimensions].append(part)
                found.dropped += hits.dropped
                found.pairs += [(one, other, value) for value, one, other in hits.pairs]
    for dimensions, all_parts in parts.items():
        _keep((*group.key, dimensions), all_parts, cache)
    return found


def _known_parts(key: tuple[Any, ...], dimensions: int, ids: list[str]) -> list[Part]:
    """What was compared before: as far as it was kept, and still holds, without reading it again."""
    parts: list[Part] = []
    missing = ids
    kept = _kept.get((*key, dimensions))
    if kept:
        alive = set(ids)
        for part in kept:
            if alive.issuperset(part.ids):
                parts.append(part)
                continue
            rows = [row for row, one in enumerate(part.ids) if one in alive]
            if rows:
                parts.append(Part([part.ids[row] for row in rows], part.matrix[rows], part.hashes[rows]))
        for part in parts:
            alive.difference_update(part.ids)
        missing = list(alive)
    return parts + [Part(missing[start : start + PART]) for start in range(0, len(missing), PART)]


def _read(ids: list[str]) -> dict[int, Part]:
    """The vectors of these, by dimension; those of zeros as dimension 0, without a matrix."""
    np = load_numpy()
    read: dict[int, tuple[list[str], list[bytes], list[bytes]]] = {}
    for row in _VECTORS.rows(ids):
        raw: bytes = row["raw"]
        names, vectors, texts = read.setdefault((len(raw) - 4) // 4, ([], [], []))
        names.append(row["id"])
        vectors.append(raw)
        texts.append(row["hash"])
    parts: dict[int, Part] = {}
    for dimensions, (names, vectors, texts) in read.items():
        layout = np.dtype([("head", "S4"), ("numbers", ">f4", (dimensions,))])
        matrix = np.frombuffer(b"".join(vectors), layout)["numbers"].astype(np.float32)
        hashes = np.frombuffer(b"".join(texts), np.int64)
        there = _normalise(matrix)
        if len(there) < len(names):
            gone = set(range(len(names))).difference(there)
            parts.setdefault(0, Part([])).ids.extend(names[row] for row in gone)
            names, matrix, hashes = [names[row] for row in there], matrix[there], hashes[there]
        if names:
            parts[dimensions] = Part(names, matrix, hashes)
    return parts


def _normalise(matrix: Any) -> list[int]:
    """Makes each row of length 1, in place; returns the rows that are not all zeros."""
    np = load_numpy()
    squares = np.einsum("ij,ij->i", matrix, matrix)
    # The square of a very large or very small number is infinite or zero.
    for odd in np.flatnonzero(~np.isfinite(squares) | (squares < 1e-30)):
        largest = np.abs(matrix[odd]).max()
        if largest > 0:
            matrix[odd] = matrix[odd].astype(np.float64) / largest
        squares[odd] = (matrix[odd] ** 2).sum()
    there: list[int] = np.flatnonzero(squares).tolist()
    squares[squares == 0] = 1
    matrix /= np.sqrt(squares)[:, None]
    return there


def _compare(part: Part, others: list[Part], least: float, hits: Hits) -> None:
    """A fresh part with all before it, and within itself: every pair once."""
    pairs = 0
    for other in others:
        _load(other, others, part.matrix.nbytes)
        for start in range(0, len(part.ids), STRIP):
            hits.add(part.matrix[start : start + STRIP] @ other.matrix.T, least, start, part, other)
        pairs += len(part.ids) * len(other.ids)
        if pairs >= BREATH:
            breathe()
            pairs = 0
    for start in range(0, len(part.ids), STRIP):
        strip = part.matrix[start : start + STRIP]
        hits.add(strip @ part.matrix[: start + len(strip)].T, least, start, part, part)
    breathe()
    hits.trim()


def _load(part: Part, parts: list[Part], more: int) -> None:
    """Makes sure that a part is held, and lets others go when that is too much."""
    if part.matrix is not None:
        return
    held = [other for other in parts if other.matrix is not None]
    size = more + sum(other.matrix.nbytes for other in held)
    while held and size + more > HELD_BYTES:
        last = held.pop()
        size -= last.matrix.nbytes
        last.matrix = None
    for read in _read(part.ids).values():
        part.ids, part.matrix, part.hashes = read.ids, read.matrix, read.hashes


def _keep(key: tuple[Any, ...], parts: list[Part], cache: int) -> None:
    """For the next call, while it fits. Older ones give way."""
    _kept.pop(key, None)
    if not parts or any(part.matrix is None for part in parts):
        return
    size = sum(part.matrix.nbytes for part in parts)
    if size > cache:
        return
    for other in list(_kept):
        if size + sum(part.matrix.nbytes for kept in _kept.values() for part in kept) <= cache:
            break
        del _kept[other]
    if len(parts) > MAX_PARTS:
        np = load_numpy()
        ids = [one for part in parts for one in part.ids]
        matrix, hashes = (
            np.concatenate(of) for of in zip(*((p.matrix, p.hashes) for p in parts), strict=True)
        )
        parts = [Part(ids, matrix, hashes)]
    _kept[key] = parts
