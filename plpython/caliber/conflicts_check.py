"""Conflicts of one fact, before it is written and as it is: by the index, so that its cost does not
grow with the number of facts. What the index overlooks, caliber_detect_conflicts finds later."""

from __future__ import annotations

from typing import Any

from caliber import checks, conflicts, errors, evidence, memory_rules, readers, search
from caliber.evidence_text import Text
from caliber.plans import plan

MAX_RESULTS = 100
# The nearest that are judged; a contradiction need not be the nearest of all.
NEAREST = 40

_KNOWN = plan(
    """
    select
        r.artifact_id, r.content, r.confidence, r.agent_id, r.created_at,
        r.content_hash = pg_catalog.sha256(pg_catalog.convert_to($2, 'UTF8')) as same
    from @extschema@.caliber_artifact as r
    where r.artifact_id = any($1)
    """,
    "uuid[]",
    "text",
)


def check_fact(
    trajectory_id: str | None,
    content: str | None,
    embedding: str | None,
    artifact_type: str | None,
    embedding_model: str | None,
    max_results: int | None,
    agent_id: str | None,
) -> list[dict[str, Any]]:
    checks.required("trajectory_id", trajectory_id)
    content = memory_rules.content("content", content)
    checks.required("embedding", embedding)
    memory_rules.embedding(embedding, embedding_model)
    if artifact_type not in conflicts.TYPES:
        errors.invalid("artifact_type", artifact_type, "must be fact or design_decision")
    checks.required("max_results", max_results)
    checks.between("max_results", max_results, 1, MAX_RESULTS)
    reader = readers.reader(agent_id)
    conflicts.visible(str(trajectory_id), reader)
    settings: dict[str, Any] = conflicts.SETTINGS.one() or {}
    wanted = _wanted(reader, str(trajectory_id), str(artifact_type), str(embedding), embedding_model or None)
    wanted.candidates = max(NEAREST, 4 * int(max_results or 0))
    near = _near(wanted, settings)
    found = _against(content, near, settings)
    return found[:max_results]


def detect_new(
    artifact_id: str,
    trajectory_id: str,
    artifact_type: str,
    embedding: str | None,
    embedding_model: str | None,
) -> int:
    """Keeps the conflicts of an artifact just written; returns how many there were."""
    if embedding is None or artifact_type not in conflicts.TYPES:
        return 0
    settings: dict[str, Any] = conflicts.SETTINGS.one() or {}
    wanted = _wanted(readers.everything(), trajectory_id, artifact_type, embedding, embedding_model or None)
    wanted.candidates = NEAREST + 1
    pairs = [
        (artifact_id, known, similarity)
        for known, similarity in _near(wanted, settings).items()
        if known != artifact_id
    ]
    return len(conflicts.keep(conflicts.TYPES[artifact_type], pairs, settings))


def _wanted(
    reader: readers.Reader, trajectory_id: str, artifact_type: str, embedding: str, model: str | None
) -> search.Wanted:
    wanted = search.Wanted(reader, embedding, NEAREST)
    wanted.trajectory_id = trajectory_id
    wanted.artifact_types = [artifact_type]
    wanted.embedding_model = model
    wanted.same_model = True
    return wanted


def _near(wanted: search.Wanted, settings: dict[str, Any]) -> dict[str, float]:
    least = min(settings["floor"], settings["candidate"])
    matches = search.nearest(wanted, "artifact")
    return {m.id: m.similarity for m in matches if m.similarity is not None and m.similarity >= least}


def _against(content: str, near: dict[str, float], settings: dict[str, Any]) -> list[dict[str, Any]]:
    text = Text(content)
    found: list[dict[str, Any]] = []
    for row in _KNOWN.rows(list(near), content) if near else []:
        if row["same"]:
            continue
        similarity = near[row["artifact_id"]]
        score, words = evidence.judge(Text(row["content"]), text)
        verdict = conflicts.verdict(similarity, score, settings)
        if verdict:
            found.append(
                {
                    "verdict": verdict,
                    "similarity": similarity,
                    "contradiction_score": score,
                    "evidence": words or None,
                    "known_content": row["content"],
                    "known_confidence": row["confidence"],
                    "known_artifact_id": row["artifact_id"],
                    "known_agent_id": row["agent_id"],
                    "known_since": row["created_at"],
                }
            )
    found.sort(key=lambda f: (f["verdict"] == "candidate", -f["contradiction_score"], -f["similarity"]))
    return found
