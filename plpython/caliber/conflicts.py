"""Conflicts: detecting them and keeping them. The contract is in sql/schema/conflicts.sql."""

from __future__ import annotations

from typing import Any

from caliber import checks, conflicts_pairs, memory_rules, readers
from caliber.plans import plan

TYPES = {"fact": "contradicting_fact", "design_decision": "incompatible_decision"}
# Conflicts written by one statement, and how much is kept of what is said of them.
BATCH = 5000
MAX_EVIDENCE = 2000
# Seconds of judging between two chances for a cancel.
BREATH_S = 0.02

# One look at all of them: each look by itself goes through every setting there is.
SETTINGS = plan(
    """
    select
        pg_catalog.max(v.value) filter (where v.key = 'conflict_similarity')::float8 as candidate,
        pg_catalog.max(v.value) filter (where v.key = 'contradiction_similarity')::float8 as floor,
        pg_catalog.max(v.value) filter (where v.key = 'contradiction_score')::float8 as score,
        pg_catalog.max(v.value) filter (where v.key = 'conflict_max_pairs')::int4 as max_pairs,
        pg_catalog.max(v.value) filter (where v.key = 'conflict_cache_mb')::int8 * 1048576 as cache
    from (
        select k.key, coalesce(s.value, k.default_value) as value
        from @extschema@._caliber_config_key() as k
        left join @extschema@.caliber_setting as s on k.key = s.key
    ) as v
    """
)

_TRAJECTORY = plan(
    """
    select t.trajectory_id, t.agent_id, t.team_id
    from @extschema@.caliber_trajectory as t
    where t.trajectory_id = $1
    """,
    "uuid",
)

# Locks the trajectory's row: the second detector waits here for the first.
_BEGIN = plan(
    """
    insert into @extschema@.caliber_conflict_scan as s (trajectory_id, team_id, scans)
    values ($1, $2, 1)
    on conflict (trajectory_id) do update set scans = s.scans + 1
    """,
    "uuid",
    "uuid",
)

# What was compared has its dimensions kept beside it; a fresh one has none yet.
_ARTIFACTS = plan(
    """
    select
        r.artifact_type, r.embedding_model, k.dimensions,
        pg_catalog.array_agg(r.artifact_id) filter (where r.embedding is not null) as ids,
        pg_catalog.count(*) filter (where r.embedding is null) as without
    from @extschema@.caliber_artifact as r
    left join @extschema@.caliber_conflict_compared as k on r.artifact_id = k.artifact_id
    where r.trajectory_id = $1
        and r.artifact_type in ('fact', 'design_decision')
        and r.status <> 'superseded'
    group by 1, 2, 3
    """,
    "uuid",
)

TEXTS = plan(
    """
    select
        r.artifact_id, pg_catalog.left(r.content, 1000) as content,
        pg_catalog.encode(r.content_hash, 'hex') as hash
    from @extschema@.caliber_artifact as r
    where r.artifact_id = any($1)
    """,
    "uuid[]",
)

_EXACT = plan(
    """
    select p.one, p.other, @extschema@._caliber_similarity(a.embedding, b.embedding) as similarity
    from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2)) as p (one, other)
    inner join @extschema@.caliber_artifact as a on p.one = a.artifact_id
    inner join @extschema@.caliber_artifact as b on p.other = b.artifact_id
    """,
    "uuid[]",
    "uuid[]",
)

_INSERT = plan(
    """
    insert into @extschema@.caliber_conflict as c (
        conflict_type, verdict, similarity, contradiction_score, evidence, item_a_type, item_a_id,
        item_b_type, item_b_id, agent_a_id, agent_b_id, hash_a, hash_b, trajectory_id, team_id
    )
    select
        $1, p.verdict::@extschema@.caliber_conflict_verdict, p.similarity, p.score, p.evidence,
        'artifact', a.artifact_id, 'artifact', b.artifact_id, a.agent_id, b.agent_id,
        a.content_hash, b.content_hash, b.trajectory_id, b.team_id
    from rows from (
        pg_catalog.unnest($2), pg_catalog.unnest($3), pg_catalog.unnest($4), pg_catalog.unnest($5),
        pg_catalog.unnest($6), pg_catalog.unnest($7)
    ) as p (one, other, similarity, score, evidence, verdict)
    inner join @extschema@.caliber_artifact as a on least(p.one, p.other) = a.artifact_id
    inner join @extschema@.caliber_artifact as b on greatest(p.one, p.other) = b.artifact_id
    on conflict on constraint caliber_conflict_pair_key do nothing
    returning c.*
    """,
    "@extschema@.caliber_conflict_type",
    "uuid[]",
    "uuid[]",
    "float8[]",
    "float4[]",
    "text[]",
    "text[]",
)

_MARK = plan(
    """
    insert into @extschema@.caliber_conflict_compared (artifact_id, dimensions)
    select g.id, $2 from pg_catalog.unnest($1) as g (id)
    """,
    "uuid[]",
    "int4",
)

_FINISH = plan(
    """
    with done as (
        update @extschema@.caliber_conflict_scan as s
        set scanned_at = pg_catalog.clock_timestamp(),
            compared = s.compared + $2,
            without_embedding = $3,
            zero_embedding = s.zero_embedding + $4,
            found = s.found + $5,
            dropped = s.dropped + $6,
            complete = $7
        where s.trajectory_id = $1
        returning s.trajectory_id, s.team_id
    )
    select @extschema@._caliber_log(
        'conflicts_detected', 'coordination',
        case when $5 > 0 or $6 > 0 or not $7 then 'warning' else 'debug' end
        ::@extschema@.caliber_event_severity,
        $5 || ' conflicts found among ' || $2 || ' new facts and decisions',
        $8, d.team_id, d.trajectory_id, 'trajectory', d.trajectory_id::text,
        pg_catalog.jsonb_build_object(
            'found', $5, 'contradictions', $9, 'compared', $2, 'without_embedding', $3,
            'zero_embedding', $4, 'dropped', $6, 'complete', $7
        )
    )
    from done as d
    """,
    "uuid",
    "int8",
    "int8",
    "int8",
    "int8",
    "int8",
    "bool",
    "uuid",
    "int8",
)


class Pair:
    """Two artifacts that are alike, and what is to be said of them."""

    __slots__ = ("evidence", "one", "other", "score", "similarity", "verdict")

    def __init__(self, one: str, other: str, similarity: float) -> None:
        self.one = one
        self.other = other
        self.similarity = similarity
        self.score = 0.0
        self.evidence: str | None = None
        self.verdict: str | None = None

    def rank(self) -> tuple[Any, ...]:
        return (self.verdict == "candidate", -self.score, -self.similarity, self.one, self.other)


def detect(trajectory_id: str | None, agent_id: str | None) -> list[dict[str, Any]]:
    checks.required("trajectory_id", trajectory_id)
    reader = readers.reader(agent_id)
    trajectory = visible(str(trajectory_id), reader)
    _BEGIN.rows(trajectory_id, trajectory["team_id"])
    settings: dict[str, Any] = SETTINGS.one() or {}
    groups, without = _groups(str(trajectory_id))
    kept: list[dict[str, Any]] = []
    compared = zero = dropped = judged = 0
    complete = True
    least = min(settings["floor"], settings["candidate"])
    for group in groups:
        left = settings["max_pairs"] - judged
        if left <= 0:
            complete = False
            break
        found = conflicts_pairs.alike(group, least, left, settings["cache"])
        judged += len(found.pairs)
        dropped += found.dropped
        kept += keep(TYPES[group.key[1]], found.pairs, settings)
        for dimensions, ids in found.compared.items():
            _MARK.rows(ids, dimensions)
        done = sum(len(ids) for ids in found.compared.values())
        compared += done
        zero += len(found.compared.get(0, []))
        complete = complete and done == len(group.fresh)
    contradictions = sum(row["verdict"] == "contradiction" for row in kept)
    _FINISH.rows(
        trajectory_id, compared, without, zero, len(kept), dropped, complete, reader.agent_id, contradictions
    )
    return kept


def visible(trajectory_id: str, reader: readers.Reader) -> dict[str, Any]:
    """The trajectory, if the reader sees the artifacts of it."""
    trajectory = _TRAJECTORY.one(trajectory_id)
    if trajectory is None or not (
        reader.all_of("artifact")
        or trajectory["agent_id"] in reader.readable
        or trajectory["team_id"] == reader.team_of("artifact")
    ):
        memory_rules.missing("trajectory", trajectory_id)
    return trajectory


def _groups(trajectory_id: str) -> tuple[list[conflicts_pairs.Group], int]:
    """What there is to compare, and how many have no embedding."""
    groups: dict[tuple[Any, ...], conflicts_pairs.Group] = {}
    without = 0
    for row in _ARTIFACTS.rows(trajectory_id):
        without += row["without"]
        key = (trajectory_id, row["artifact_type"], row["embedding_model"])
        group = groups.setdefault(key, conflicts_pairs.Group(key))
        if row["dimensions"] is None:
            group.fresh = row["ids"] or []
        elif row["dimensions"] > 0:
            group.known[row["dimensions"]] = row["ids"]
    return [group for group in groups.values() if group.fresh], without


def keep(
    conflict_type: str, alike: list[tuple[str, str, float]], settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """Judges pairs and writes down those in conflict; returns what was not known yet."""
    found = [pair for pair in _judged(_settled(alike, settings), settings) if pair.verdict]
    found.sort(key=Pair.rank)
    kept: list[dict[str, Any]] = []
    for start in range(0, len(found), BATCH):
        some = found[start : start + BATCH]
        kept += _INSERT.rows(
            conflict_type,
            [pair.one for pair in some],
            [pair.other for pair in some],
            [pair.similarity for pair in some],
            [pair.score for pair in some],
            [pair.evidence for pair in some],
            [pair.verdict for pair in some],
        )
    return kept


def _settled(alike: list[tuple[str, str, float]], settings: dict[str, Any]) -> list[tuple[str, str, float]]:
    """Single precision may be wrong next to a threshold; there pgvector says what is right."""
    edges = (settings["floor"], settings["candidate"])
    near = [p for p in alike if any(abs(p[2] - edge) <= conflicts_pairs.SLACK for edge in edges)]
    if not near:
        return alike
    rows = _EXACT.rows([p[0] for p in near], [p[1] for p in near])
    # Of the largest and the smallest vectors pgvector says that it is not a number.
    exact = {(row["one"], row["other"]): row["similarity"] for row in rows if row["similarity"] <= 1}
    return [(one, other, exact.get((one, other), value)) for one, other, value in alike]


def _judged(alike: list[tuple[str, str, float]], settings: dict[str, Any]) -> list[Pair]:
    import time

    from caliber import evidence, evidence_text

    ids = {one for pair in alike for one in pair[:2]}
    rows = {row["artifact_id"]: row for row in TEXTS.rows(list(ids))} if ids else {}
    texts: dict[str, Any] = {}
    pairs: list[Pair] = []
    breathed = time.monotonic()
    for first, second, similarity in alike:
        one, other = sorted((first, second))  # as a and b
        if rows[one]["hash"] == rows[other]["hash"]:
            continue
        # Two long texts take a thousand times as long as two short ones.
        if time.monotonic() - breathed > BREATH_S:
            conflicts_pairs.breathe()
            breathed = time.monotonic()
        for each in (one, other):
            if each not in texts:
                texts[each] = evidence_text.Text(rows[each]["content"])
        pair = Pair(one, other, similarity)
        if similarity >= settings["floor"]:
            pair.score, words = evidence.judge(texts[one], texts[other])
            pair.evidence = words[:MAX_EVIDENCE] or None
        pair.verdict = verdict(similarity, pair.score, settings)
        pairs.append(pair)
    return pairs


def verdict(similarity: float, score: float, settings: dict[str, Any]) -> str | None:
    if similarity >= settings["floor"] and score >= settings["score"] and score > 0:
        return "contradiction"
    return "candidate" if similarity > settings["candidate"] else None
