"""Search of artifacts and notes: by embedding, by words, or both. The contract is in
sql/functions/search.sql."""

from __future__ import annotations

from typing import Any

import plpy

from caliber import checks, errors, memory_rules, readers
from caliber.plans import SCHEMA, Statement, plan

MAX_RESULTS = 100
MAX_INDEXED = 2000
MAX_HALF_INDEXED = 4000
# Statements are made for each dimension and set of filters; a session keeps so many.
MAX_STATEMENTS = 64
# Reciprocal rank fusion: a match at rank r of a list scores 1 / (60 + r).
RANK_OFFSET = 60

KINDS = {
    "artifact": ("caliber_artifact", "artifact_id", "r.status <> 'superseded'"),
    "note": ("caliber_note", "note_id", "r.retired_at is null"),
}

_SETTINGS = plan(
    """
    select
        @extschema@._caliber_config_value('search_exact_rows')::integer as exact_rows,
        (
            select n.nspname from pg_catalog.pg_extension as x
            inner join pg_catalog.pg_namespace as n on x.extnamespace = n.oid
            where x.extname = 'vector'
        ) as vector_schema
    """
)

_ITERATIVE = plan(
    """
    select
        pg_catalog.current_setting('hnsw.iterative_scan', true) as scan,
        pg_catalog.current_setting('hnsw.ef_search', true) as ef
    """
)
_SET_SCAN = plan(
    """
    select
        pg_catalog.set_config('hnsw.iterative_scan', $1, true),
        pg_catalog.set_config('hnsw.ef_search', $2, true)
    """,
    "text",
    "text",
)

_FETCH = plan(
    """
    select
        'artifact' as kind, r.artifact_id as id, r.artifact_type::text as type, r.name, r.content,
        r.confidence, r.agent_id as written_by, r.trajectory_id as found_in, r.created_at
    from @extschema@.caliber_artifact as r
    where r.artifact_id = any($1)
    union all
    select
        'note', n.note_id, n.note_type::text, n.name, n.content, n.confidence, n.agent_id, n.trajectory_id,
        n.created_at
    from @extschema@.caliber_note as n
    where n.note_id = any($2)
    """,
    "uuid[]",
    "uuid[]",
)

_statements: dict[tuple[Any, ...], Statement] = {}


class Wanted:
    """One search, its arguments checked."""

    __slots__ = (
        "artifact_types", "candidates", "dimensions", "embedding", "embedding_model", "exact_rows",
        "query", "reader", "same_model", "trajectory_id", "vector",
    )  # fmt: skip

    def __init__(self, reader: readers.Reader, embedding: str | None, candidates: int) -> None:
        settings = _SETTINGS.one() or {}
        self.reader = reader
        self.embedding = embedding
        self.dimensions = embedding.count(",") + 1 if embedding else 0
        self.candidates = candidates
        self.exact_rows: int = settings["exact_rows"]
        # The schema of pgvector, quoted.
        self.vector = plpy.quote_ident(settings["vector_schema"])
        self.query: str | None = None
        self.trajectory_id: str | None = None
        self.artifact_types: list[str] | None = None
        self.embedding_model: str | None = None
        # Rows that name no model are then a kind of their own.
        self.same_model = False


class Match:
    __slots__ = ("id", "kind", "score", "similarity", "text_rank")

    def __init__(
        self, kind: str, key: str, similarity: float | None = None, text_rank: float | None = None
    ) -> None:
        self.kind = kind
        self.id = key
        self.similarity = similarity
        self.text_rank = text_rank
        self.score = 0.0


class Filter:
    """A condition of a statement. In its text {n} is the number of its parameter."""

    __slots__ = ("argument", "indexed", "name", "text", "type")

    def __init__(self, name: str, text: str, kind: str, argument: Any, indexed: bool = False) -> None:
        self.name = name
        self.text = text
        self.type = kind
        self.argument = argument
        self.indexed = indexed


def search(
    query: str | None,
    embedding: str | None,
    max_results: int | None,
    trajectory_id: str | None,
    kinds: list[str | None] | None,
    artifact_types: list[str] | None,
    embedding_model: str | None,
    min_similarity: float | None,
    agent_id: str | None,
) -> list[dict[str, Any]]:
    if query is None and embedding is None:
        errors.invalid("query", query, "or embedding must be given")
    checks.label("query", query, 10_000)
    checks.required("max_results", max_results)
    checks.between("max_results", max_results, 1, MAX_RESULTS)
    checks.between("min_similarity", min_similarity, -1, 1)
    for kind in kinds or []:
        if kind not in KINDS:
            errors.invalid("kinds", kind, "must hold artifact, note or both")
    memory_rules.embedding(embedding)
    limit = int(max_results or 0)
    # Of two lists that are to be joined, more than what is shown in the end.
    candidates = max(4 * limit, 40) if query and embedding else limit
    wanted = Wanted(readers.reader(agent_id), embedding, candidates)
    wanted.query = query or None
    wanted.trajectory_id = trajectory_id
    wanted.artifact_types = artifact_types
    wanted.embedding_model = embedding_model
    found = _matches(wanted, [str(kind) for kind in dict.fromkeys(kinds or KINDS)], min_similarity)
    return _shown(found[:limit])


def _matches(wanted: Wanted, kinds: list[str], min_similarity: float | None) -> list[Match]:
    """Best first; equal scores in a fixed order, so that the same search gives the same list."""
    matches: dict[str, Match] = {}
    if wanted.embedding is not None:
        near = [match for kind in kinds for match in nearest(wanted, kind)]
        near.sort(key=lambda m: (-(m.similarity or 0), m.id))
        least = -1.0 if min_similarity is None else min_similarity
        for rank, match in enumerate(near[: wanted.candidates], 1):
            if (match.similarity or 0) >= least:
                match.score = 1 / (RANK_OFFSET + rank)
                matches[match.id] = match
    if wanted.query is not None:
        worded = [match for kind in kinds for match in _worded(wanted, kind)]
        worded.sort(key=lambda m: (-(m.text_rank or 0), m.id))
        for rank, match in enumerate(worded[: wanted.candidates], 1):
            known = matches.setdefault(match.id, match)
            known.text_rank = match.text_rank
            known.score += 1 / (RANK_OFFSET + rank)
    return sorted(matches.values(), key=lambda m: (-m.score, m.id))


def nearest(wanted: Wanted, kind: str) -> list[Match]:
    """By cosine distance: exact among few rows, else by the index where there is one."""
    rows_there = _rows_there(wanted, kind)
    if not rows_there:
        return []
    rows: Any = None
    if rows_there > wanted.exact_rows:
        before = _iterative(wanted.candidates)
        rows = _ordered(wanted, kind, _filters(wanted, kind, few=False), _cast(wanted))
        _restore(before)
    # An index gives up when the filters pass too little of what is near; then look at all.
    if rows is None or len(rows) < min(wanted.candidates, rows_there):
        rows = _ordered(wanted, kind, _filters(wanted, kind, few=True), "")
    return [Match(kind, row["id"], similarity=row["similarity"]) for row in rows]


def _ordered(wanted: Wanted, kind: str, filters: list[Filter], cast: str) -> Any:
    key = ("nearest", kind, wanted.dimensions, wanted.vector, cast, *(f.name for f in filters))
    statement = _statement(key, lambda: _nearest(wanted, kind, filters, cast))
    return statement.rows(wanted.embedding, wanted.candidates, *(f.argument for f in filters))


def _rows_there(wanted: Wanted, kind: str) -> int:
    """How many rows could match at most, counted only to one more than are compared one by one.

    Of the filters only those count that an index serves, so this reads few rows or ends soon.
    """
    filters = [f for f in _filters(wanted, kind, few=True) if f.indexed]
    statement = _statement(("count", kind, *(f.name for f in filters)), lambda: _count(kind, filters))
    row = statement.one(wanted.exact_rows + 1, *(f.argument for f in filters)) or {}
    return int(row["rows"])


def _worded(wanted: Wanted, kind: str) -> list[Match]:
    # A common word is in many rows; who reads few had better start from those.
    limited = wanted.trajectory_id is None and not wanted.reader.all_of(kind)
    few = limited and _rows_there(wanted, kind) <= wanted.exact_rows
    filters = [f for f in _filters(wanted, kind, few) if f.name != "model"]
    statement = _statement(("words", kind, *(f.name for f in filters)), lambda: _words(kind, filters))
    rows = statement.rows(wanted.query, wanted.candidates, *(f.argument for f in filters))
    return [Match(kind, row["id"], text_rank=row["text_rank"]) for row in rows]


def _filters(wanted: Wanted, kind: str, few: bool) -> list[Filter]:
    """Only what is asked for: a plan that covers what is left out as well is good for neither.

    Few says that they are thought to leave few rows, which are then looked up.
    """
    reader = wanted.reader
    found: list[Filter] = []
    if wanted.trajectory_id is not None:
        found.append(
            Filter("trajectory", "r.trajectory_id = ${n}", "uuid", wanted.trajectory_id, indexed=True)
        )
    if wanted.artifact_types is not None and kind == "artifact":
        types = "@extschema@.caliber_artifact_type[]"
        found.append(Filter("types", "r.artifact_type = any(${n})", types, wanted.artifact_types))
    if wanted.same_model:
        same = "r.embedding_model is not distinct from ${n}"
        found.append(Filter("same model", same, "text", wanted.embedding_model))
    elif wanted.embedding_model is not None:
        found.append(Filter("model", "r.embedding_model = ${n}", "text", wanted.embedding_model))
    if not reader.all_of(kind):
        team = reader.team_of(kind)
        # In a trajectory there is no need to look up what else is within reach.
        by_index = few and wanted.trajectory_id is None
        # One parameter: the team, if any, and then the agents.
        its_team, agents = (None, "${n}") if team is None else ("(${n})[1]", "(${n})[2:]")
        name = f"{'team' if team else 'own'} reach{' by index' if by_index else ''}"
        scope = reader.readable if team is None else [team, *reader.readable]
        text = readers.condition("r", its_team, agents, by_index)
        found.append(Filter(name, text, "uuid[]", scope, indexed=by_index))
    return found


def _where(kind: str, filters: list[Filter], first: int) -> str:
    conditions = [KINDS[kind][2]]
    conditions += [f.text.replace("{n}", str(n)) for n, f in enumerate(filters, first)]
    return "\n and ".join(conditions)


def _statement(key: tuple[Any, ...], made: Any) -> Statement:
    statement = _statements.get(key)
    if statement is None:
        if len(_statements) >= MAX_STATEMENTS:
            _statements.clear()
        statement = _statements[key] = made()
    return statement


def _count(kind: str, filters: list[Filter]) -> Statement:
    text = f"""
        select pg_catalog.count(*) as rows from (
            select from @extschema@.{KINDS[kind][0]} as r
            where {_where(kind, filters, 2)}
            limit $1
        ) as few
    """
    return plan(text, "int4", *(f.type for f in filters))


def _cast(wanted: Wanted) -> str:
    """What the column is cast to in the index of this dimension; nothing where there can be none."""
    if wanted.dimensions <= MAX_INDEXED:
        return f"::{wanted.vector}.vector({wanted.dimensions})"
    if wanted.dimensions <= MAX_HALF_INDEXED:
        return f"::{wanted.vector}.halfvec({wanted.dimensions})"
    return ""


def _nearest(wanted: Wanted, kind: str, filters: list[Filter], cast: str) -> Statement:
    table, key, _ = KINDS[kind]
    cosine = f"operator({wanted.vector}.<=>)"
    text = f"""
        select r.{key} as id, 1 - (r.embedding {cosine} $1) as similarity
        from @extschema@.{table} as r
        where {_where(kind, filters, 3)}
            and {wanted.vector}.vector_dims(r.embedding) = {wanted.dimensions}
        order by (r.embedding{cast}) {cosine} (select $1{cast})
        limit $2
    """
    return plan(text, f"{wanted.vector}.vector", "int4", *(f.type for f in filters))


def _words(kind: str, filters: list[Filter]) -> Statement:
    table, key, _ = KINDS[kind]
    text = f"""
        select r.{key} as id, pg_catalog.ts_rank_cd(r.words, q.query) as text_rank
        from @extschema@.{table} as r,
            pg_catalog.websearch_to_tsquery('pg_catalog.english', $1) as q (query)
        where r.words @@ q.query and {_where(kind, filters, 3)}
        order by 2 desc, 1
        limit $2
    """
    return plan(text, "text", "int4", *(f.type for f in filters))


def _iterative(candidates: int) -> dict[str, Any] | None:
    """Let the index go on until enough rows pass the filters; pgvector can since 0.8."""
    before = _ITERATIVE.one() or {}
    if before["scan"] is None:
        return None
    _SET_SCAN.rows("strict_order", str(min(1000, max(int(before["ef"]), candidates))))
    return before


def _restore(before: dict[str, Any] | None) -> None:
    if before is not None:
        _SET_SCAN.rows(before["scan"], before["ef"])


def _shown(matches: list[Match]) -> list[dict[str, Any]]:
    ids: dict[str, list[str]] = {kind: [m.id for m in matches if m.kind == kind] for kind in KINDS}
    rows = {row["id"]: row for row in _FETCH.rows(ids["artifact"], ids["note"])}
    return [
        {
            **rows[match.id],
            "score": match.score,
            "similarity": match.similarity,
            "text_rank": match.text_rank,
        }
        for match in matches
    ]


# A statement of its own: who has waited then sees what the other has made.
_ONE_AT_A_TIME = plan(
    "select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext('caliber_embedding_index'))"
)

_MAY_INDEX = plan(
    """
    select
        pg_catalog.pg_has_role('caliber_owner', 'usage')
        and pg_catalog.has_schema_privilege(c.relnamespace, 'create') as may_index,
        current_user as actor,
        pg_catalog.to_regclass($1 || '.caliber_artifact_embedding_' || $2 || '_idx') is not null as artifact,
        pg_catalog.to_regclass($1 || '.caliber_note_embedding_' || $2 || '_idx') is not null as note,
        pg_catalog.to_regtype($3 || '.halfvec') is not null as halfvec
    from pg_catalog.pg_class as c
    where c.oid = pg_catalog.to_regclass($1 || '.caliber_artifact')
    """,
    "text",
    "text",
    "text",
)


def vector_schema() -> str:
    """Where pgvector is, quoted."""
    return plpy.quote_ident((_SETTINGS.one() or {})["vector_schema"])


def embedding_index(dim: int | None) -> int:
    checks.required("dim", dim)
    checks.between("dim", dim, 1, MAX_HALF_INDEXED)
    vector = vector_schema()
    _ONE_AT_A_TIME.rows()
    found = _MAY_INDEX.one(SCHEMA, str(dim), vector) or {}
    if not found["may_index"]:
        errors.fail(
            errors.NOT_PERMITTED,
            "only who owns the tables may index them",
            detail=f"You are {found['actor']}.",
            hint="Call as a superuser, or as a member of caliber_owner that may create in the schema.",
        )
    half = int(dim or 0) > MAX_INDEXED
    if half and not found["halfvec"]:
        errors.invalid("dim", dim, f"must be at most {MAX_INDEXED} with this version of pgvector")
    kind = "halfvec" if half else "vector"
    made = 0
    for name, (table, _, kept) in KINDS.items():
        if not found[name]:
            plpy.execute(
                f"create index {table}_embedding_{dim}_idx on {SCHEMA}.{table}"
                f" using hnsw ((embedding::{vector}.{kind}({dim})) {vector}.{kind}_cosine_ops)"
                f" where {vector}.vector_dims(embedding) = {dim} and {kept.replace('r.', '')}"
            )
            made += 1
    return made
