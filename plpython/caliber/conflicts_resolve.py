"""Conflicts: taking one and deciding it. The decision is made on the locked conflict and its locked
artifacts, and applied to them in the same transaction."""

from __future__ import annotations

from typing import Any

from caliber import acting, checks, conflicts_escalate, errors, memory_rules, token_counts
from caliber.plans import plan

MAX_REASON = 1000
UNSAID_CONFIDENCE = 0.5

_FOUND = """
    select
        c.conflict_id, c.conflict_type, c.status, c.item_a_type, c.item_a_id, c.item_b_type, c.item_b_id,
        c.agent_a_id, c.agent_b_id, c.trajectory_id, c.details, c.evidence, c.escalated_to, c.needs_human,
        c.escalation_level, c.escalated_at is not null as was_escalated,
        t.agent_id as owner_id,
        a.agent_id, a.name,
        case c.conflict_type
            when 'concurrent_write' then a.agent_id in (c.agent_a_id, c.agent_b_id, g.owner_agent_id)
            when 'resource_contention' then
                c.team_id is not null and a.agent_id in (c.agent_a_id, c.agent_b_id)
            else
                t.agent_id = a.agent_id
                or not exists (
                    select from pg_catalog.unnest(array[c.agent_a_id, c.agent_b_id]) as w (agent_id)
                    where w.agent_id <> a.agent_id and not exists (
                        select from @extschema@.caliber_grant as g
                        where g.grantee_agent_id = a.agent_id and g.target_agent_id = w.agent_id
                            and g.capability = 'read_transcript'
                    )
                )
                or c.team_id = a.team_id
                and @extschema@._caliber_reach(a.memory_access, 'read', 'artifact') = 'team'
                or @extschema@._caliber_reach(a.memory_access, 'read', 'artifact') = 'global'
        end as may_see,
        a.agent_id in (c.agent_a_id, c.agent_b_id) as is_party,
        case c.conflict_type
            when 'concurrent_write' then g.owner_agent_id = a.agent_id
            when 'resource_contention' then c.agent_a_id = a.agent_id
            else @extschema@._caliber_allows(
                a.memory_access, 'write', 'artifact',
                case
                    when t.agent_id = a.agent_id or (c.agent_a_id = a.agent_id and c.agent_b_id = a.agent_id)
                        then 'own'
                    when c.team_id = a.team_id then 'team'
                    else 'other'
                end,
                pg_catalog.jsonb_build_object(
                    'artifact_type',
                    case c.conflict_type when 'contradicting_fact' then 'fact' else 'design_decision' end
                )
            )
        end as may_write,
        c.resolving_by is not null and c.resolving_by is distinct from a.agent_id and exists (
            select from @extschema@.caliber_agent as h
            where h.agent_id = c.resolving_by and h.terminated_at is null
        ) as taken,
        not exists (
            select from @extschema@.caliber_agent as h
            where h.agent_id = c.escalated_to and h.terminated_at is null
        ) as above_is_gone,
        @extschema@._caliber_config_value('conflict_confidence_margin')::float8 as margin
    from @extschema@.caliber_conflict as c
    left join @extschema@.caliber_trajectory as t on c.trajectory_id = t.trajectory_id
    left join @extschema@.caliber_region as g
        on c.conflict_type = 'concurrent_write' and c.item_a_id = g.region_id
    left join @extschema@.caliber_agent as a on a.agent_id = $2
    where c.conflict_id = $1
"""
# Who may not decide it learns so from this, and makes nobody wait.
_LOOK = plan(_FOUND, "uuid", "uuid")
_LOCK = plan(_FOUND + "for update of c", "uuid", "uuid")

_CLAIM = plan(
    """
    with taken as (
        update @extschema@.caliber_conflict as c
        set status = 'resolving', resolving_by = $2
        where c.conflict_id = $1
        returning c.conflict_id, c.conflict_type, c.team_id, c.trajectory_id
    )
    select @extschema@._caliber_log(
        'conflict_claimed', 'coordination', 'info', t.conflict_type || ' taken to be decided', $2, t.team_id,
        t.trajectory_id, 'conflict', t.conflict_id::text
    )
    from taken as t
    """,
    "uuid",
    "uuid",
)

# In the order of ids, as artifact_supersede does.
_ITEMS = plan(
    """
    select r.artifact_id, r.artifact_type, r.status, r.content, r.confidence, r.created_at
    from @extschema@.caliber_artifact as r
    where r.artifact_id in ($1, $2)
    order by r.artifact_id
    for no key update of r
    """,
    "uuid",
    "uuid",
)

_SUPERSEDE = plan(
    """
    with changed as (
        update @extschema@.caliber_artifact as r
        set status = 'superseded', superseded_by = $2, superseded_at = pg_catalog.clock_timestamp()
        where r.artifact_id = any($1) and r.status <> 'superseded'
        returning r.artifact_id, r.artifact_type, r.team_id, r.trajectory_id
    )
    select @extschema@._caliber_log(
        'artifact_superseded', 'state', 'info', c.artifact_type || ' superseded', $3, c.team_id,
        c.trajectory_id, 'artifact', c.artifact_id::text,
        pg_catalog.jsonb_build_object('superseded_by', $2, 'conflict_id', $4)
    )
    from changed as c
    """,
    "uuid[]",
    "uuid",
    "uuid",
    "uuid",
)

# Written by whoever decides, who need not be let into the trajectory otherwise; key share as all
# that write to a scope, so that it is not closed meanwhile.
_MERGED = plan(
    """
    with place as (
        select s.scope_id, s.trajectory_id, s.team_id, t.agent_id
        from @extschema@.caliber_scope as s
        inner join @extschema@.caliber_trajectory as t on s.trajectory_id = t.trajectory_id
        where s.trajectory_id = $1 and s.closed_at is null and s.suspended_at is null
            and t.status = 'active'
        order by s.scope_no desc
        limit 1
        for key share of s
    )
    insert into @extschema@.caliber_artifact as r (
        scope_id, trajectory_id, agent_id, team_id, artifact_type, content, content_hash,
        extraction_method, embedding, embedding_model, confidence, token_count, metadata
    )
    select
        p.scope_id, p.trajectory_id, coalesce($2, p.agent_id), p.team_id, $3, $4,
        pg_catalog.sha256(pg_catalog.convert_to($4, 'UTF8')),
        'inferred', @extschema@._caliber_vector($5), $6, $7, $8,
        pg_catalog.jsonb_build_object('merged_from', $9, 'conflict_id', $10)
    from place as p
    returning r.artifact_id
    """,
    "uuid",
    "uuid",
    "@extschema@.caliber_artifact_type",
    "text",
    "text",
    "text",
    "float4",
    "int4",
    "uuid[]",
    "uuid",
)

_RESOLVED = plan(
    """
    with changed as (
        update @extschema@.caliber_conflict as c
        set status = 'resolved',
            strategy = $2,
            winner = $3,
            merged_result_id = $4,
            reason = $5,
            resolved_by = coalesce($6::text, @extschema@._caliber_actor()::text),
            resolved_at = pg_catalog.clock_timestamp(),
            resolving_by = null,
            needs_human = false
        where c.conflict_id = $1
        returning c.*
    ),
    logged as (
        select @extschema@._caliber_log(
            'conflict_resolved', 'coordination', 'info', d.conflict_type || ' resolved: ' || $5, $6,
            d.team_id, d.trajectory_id, 'conflict', d.conflict_id::text,
            pg_catalog.jsonb_build_object('strategy', $2, 'winner', $3, 'merged_result_id', $4)
        )
        from changed as d
    )
    select c.* from changed as c, (select pg_catalog.count(*) from logged) as once
    """,
    "uuid",
    "@extschema@.caliber_resolution_strategy",
    "text",
    "uuid",
    "text",
    "uuid",
)


class Decision:
    """What a strategy comes to: one of the items, both merged, neither, or not to be decided here."""

    __slots__ = ("escalate", "merged_id", "reason", "winner")

    def __init__(self, winner: str | None, reason: str, escalate: bool = False) -> None:
        self.winner = winner
        self.reason = reason
        self.escalate = escalate
        self.merged_id: str | None = None


class Merged:
    """What whoever decides wants both to be merged into."""

    __slots__ = ("content", "embedding", "model")

    def __init__(self, content: str | None, embedding: str | None, model: str | None) -> None:
        self.content = content
        self.embedding = embedding
        self.model = model


def claim(conflict_id: str | None, agent_id: str | None, incarnation: int | None) -> bool:
    checks.required("conflict_id", conflict_id)
    checks.required("agent_id", agent_id)
    conflict = _locked(str(conflict_id), "claim", agent_id, incarnation)
    if conflict["status"] == "resolved" or conflict["taken"]:
        return False
    _CLAIM.rows(conflict_id, agent_id)
    return True


def resolve(
    conflict_id: str | None,
    strategy: str | None,
    agent_id: str | None,
    reason: str | None,
    merged_content: str | None,
    merged_embedding: str | None,
    merged_embedding_model: str | None,
    incarnation: int | None,
) -> list[dict[str, Any]]:
    checks.required("conflict_id", conflict_id)
    checks.required("strategy", strategy)
    reason = checks.label("reason", reason, MAX_REASON)
    if strategy != "merge" and (merged_content or merged_embedding or merged_embedding_model):
        errors.invalid("merged_content", merged_content, "must only be given to merge")
    if merged_content is not None:
        memory_rules.content("merged_content", merged_content)
    memory_rules.embedding(merged_embedding, merged_embedding_model)
    conflict = _locked(str(conflict_id), str(strategy), agent_id, incarnation)
    if conflict["status"] == "resolved" or (conflict["taken"] and conflict["agent_id"] is not None):
        return []
    merged = Merged(merged_content, merged_embedding, merged_embedding_model)
    decision = _settle(conflict, str(strategy), merged)
    said = f"{reason}: {decision.reason}" if reason else decision.reason
    if decision.escalate:
        return conflicts_escalate.escalate(conflict, said)
    winner = "merged" if decision.merged_id else decision.winner
    return list(_RESOLVED.rows(conflict_id, strategy, winner, decision.merged_id, said, conflict["agent_id"]))


def _locked(conflict_id: str, strategy: str, agent_id: str | None, incarnation: int | None) -> dict[str, Any]:
    """The conflict, locked, if the caller may decide it."""
    if agent_id is None:
        agent_id = acting.own_agent_or_admin("decide a conflict as nobody")
    if agent_id is not None:
        acting.agent(agent_id, incarnation)
    _refuse(_LOOK.one(conflict_id, agent_id), conflict_id, strategy)
    # Meanwhile another may have passed it up.
    return _refuse(_LOCK.one(conflict_id, agent_id), conflict_id, strategy)


def _refuse(conflict: dict[str, Any] | None, conflict_id: str, strategy: str) -> dict[str, Any]:
    if conflict is None:
        memory_rules.missing("conflict", conflict_id)
    if conflict["agent_id"] is None:  # an admin
        return conflict
    above = conflict["escalated_to"] == conflict["agent_id"]
    if not (conflict["may_see"] or above):
        memory_rules.missing("conflict", conflict_id)
    if conflict["was_escalated"]:
        allowed = above or (strategy == "escalate" and conflict["above_is_gone"])
    else:
        allowed = conflict["may_write"] or (strategy == "escalate" and conflict["is_party"])
    if not (allowed or conflict["status"] == "resolved"):
        errors.fail(
            errors.NOT_PERMITTED,
            "the agent may not decide this conflict",
            detail=f"{conflict['name']} may not decide conflict {conflict_id}"
            + (", which was escalated." if conflict["was_escalated"] else "."),
            hint="Who has the trajectory, may write its artifacts or owns the region may; once it was "
            "escalated, the agent it was escalated to and admins.",
        )
    return conflict


def _settle(conflict: dict[str, Any], strategy: str, merged: Merged) -> Decision:
    if strategy == "escalate":
        return Decision(None, "requires the decision of a supervisor or a person", escalate=True)
    if conflict["item_a_type"] == "artifact":
        return _artifacts(conflict, strategy, merged)
    # Rare, and they need more modules.
    from caliber import conflicts_others

    if conflict["conflict_type"] == "concurrent_write":
        return conflicts_others.region_write(conflict, strategy, merged.content)
    return conflicts_others.contention(conflict, strategy)


def _artifacts(conflict: dict[str, Any], strategy: str, merged: Merged) -> Decision:
    items = {row["artifact_id"]: row for row in _ITEMS.rows(conflict["item_a_id"], conflict["item_b_id"])}
    a, b = items.get(conflict["item_a_id"]), items.get(conflict["item_b_id"])
    decision = _decide(strategy, a, b, conflict["margin"])
    if a is not None and b is not None and not decision.escalate:
        decision.merged_id = _apply(strategy, decision, conflict, a, b, merged)
    return decision


def _decide(strategy: str, a: dict[str, Any] | None, b: dict[str, Any] | None, margin: float) -> Decision:
    if a is None or b is None:
        return Decision(None, "an item is gone", escalate=True)
    overtaken = [row for row in (a, b) if row["status"] == "superseded"]
    if len(overtaken) == 2:
        return Decision(None, "both were superseded already")
    if overtaken:
        winner = "b" if overtaken[0] is a else "a"
        return Decision(winner, "the other was superseded already")
    if strategy in ("last_write_wins", "first_write_wins"):
        return _by_time(strategy, a, b)
    if strategy == "highest_confidence":
        return _by_confidence(a, b, margin)
    return Decision(None, "merged" if strategy == "merge" else "both rejected")


def _by_time(strategy: str, a: dict[str, Any], b: dict[str, Any]) -> Decision:
    # Timestamps come as text of one zone and can be told apart, not compared; see _later.
    if a["created_at"] == b["created_at"]:
        return Decision(None, "both were written at the same moment", escalate=True)
    later = "b" if _later(a, b) else "a"
    if strategy == "last_write_wins":
        return Decision(later, "it was written last")
    return Decision("a" if later == "b" else "b", "it was written first")


_LATER = plan(
    """
    select b.created_at > a.created_at as later
    from @extschema@.caliber_artifact as a, @extschema@.caliber_artifact as b
    where a.artifact_id = $1 and b.artifact_id = $2
    """,
    "uuid",
    "uuid",
)


def _later(a: dict[str, Any], b: dict[str, Any]) -> bool:
    row = _LATER.one(a["artifact_id"], b["artifact_id"]) or {}
    return bool(row["later"])


def _by_confidence(a: dict[str, Any], b: dict[str, Any], margin: float) -> Decision:
    # Single precision: 0.8 - 0.7 must not come out below 0.1.
    one, other = (
        UNSAID_CONFIDENCE if row["confidence"] is None else round(row["confidence"], 6) for row in (a, b)
    )
    if round(abs(one - other), 6) < margin or one == other:
        return Decision(None, f"the confidences are too close: {one:g} and {other:g}", escalate=True)
    winner = "a" if one > other else "b"
    return Decision(winner, f"its confidence is {max(one, other):g} against {min(one, other):g}")


def _apply(
    strategy: str,
    decision: Decision,
    conflict: dict[str, Any],
    a: dict[str, Any],
    b: dict[str, Any],
    merged: Merged,
) -> str | None:
    """Supersedes what lost; returns the artifact that both were merged into, if they were."""
    if "superseded" in (a["status"], b["status"]):
        return None
    both = [a["artifact_id"], b["artifact_id"]]
    successor: str | None = None
    merged_id: str | None = None
    losers = both
    if strategy == "merge":
        successor = merged_id = _merge(conflict, a, b, merged)
    elif strategy != "reject_both":
        successor = a["artifact_id"] if decision.winner == "a" else b["artifact_id"]
        losers = [one for one in both if one != successor]
    _SUPERSEDE.rows(losers, successor, conflict["agent_id"], conflict["conflict_id"])
    return merged_id


def _merge(conflict: dict[str, Any], a: dict[str, Any], b: dict[str, Any], merged: Merged) -> str:
    content = memory_rules.content("merged_content", merged.content or f"{a['content']}\n{b['content']}")
    confidences = [row["confidence"] for row in (a, b) if row["confidence"] is not None]
    row = _MERGED.one(
        conflict["trajectory_id"],
        conflict["agent_id"],
        a["artifact_type"],
        content,
        merged.embedding,
        merged.model or None,
        min(confidences) if confidences else None,
        token_counts.counted(content, None),
        [a["artifact_id"], b["artifact_id"]],
        conflict["conflict_id"],
    )
    if row is None:
        errors.fail(
            errors.WRONG_STATE,
            "the trajectory has no open scope for the merged artifact",
            detail=f"The trajectory is {conflict['trajectory_id']}.",
            hint="caliber_scope_open opens one, while the trajectory is active.",
        )
    return str(row["artifact_id"])
