"""Handoffs: the context the receiver gets, one text that never changes.

What the sender says comes first, then variables, artifacts and, as the mode has it, what was said.
"""

from __future__ import annotations

from typing import Any

from caliber import token_counts
from caliber.plans import plan

MAX_TURNS = 1000
CUT = " … [cut]"

# $5: words of what is handed over. Relevant is what shares one of them, or was said in the last scope.
_TURNS = plan(
    """
    select x.turn_id, x.label, x.content, x.token_count
    from (
        select
            u.turn_id, s.scope_no, u.turn_no, s.scope_no || '.' || u.turn_no || ' ' || u.role as label,
            u.content, u.token_count
        from @extschema@.caliber_turn as u
        inner join @extschema@.caliber_scope as s on u.scope_id = s.scope_id
        where u.trajectory_id = $1
            and ($3::jsonb -> 'system_messages' = 'true' or u.role <> 'system')
            and ($3::jsonb -> 'tool_results' = 'true' or u.role <> 'tool')
            and ($3::jsonb -> 'tool_calls' = 'true' or not u.metadata ? 'tool_calls')
            and ($3::jsonb -> 'agent_reasoning' = 'true' or not u.metadata ? 'reasoning')
            and (
                not $4
                or s.scope_id = $6
                or pg_catalog.to_tsvector('pg_catalog.english', u.content) @@ (
                    select pg_catalog.string_agg(w.word, ' | ')::pg_catalog.tsquery
                    from pg_catalog.unnest(pg_catalog.tsvector_to_array(
                        pg_catalog.to_tsvector('pg_catalog.english', $5)
                    )) as q (lexeme)
                    cross join lateral (select pg_catalog.quote_literal(q.lexeme) as word) as w
                )
            )
        order by s.scope_no desc, u.turn_no desc
        limit $2
    ) as x
    order by x.scope_no desc, x.turn_no desc
    """,
    "uuid",
    "int4",
    "jsonb",
    "bool",
    "text",
    "uuid",
)

_SUMMARIES = plan(
    """
    select s.scope_id as turn_id, 'scope ' || s.scope_no as label, s.summary as content,
        pg_catalog.length(s.summary) / 4 + 1 as token_count
    from @extschema@.caliber_scope as s
    where s.trajectory_id = $1 and s.summary is not null
    order by s.scope_no desc
    limit 100
    """,
    "uuid",
)

_ARTIFACTS = plan(
    """
    select r.artifact_id as turn_id, r.artifact_type || ', ' || r.status as label, r.content, r.token_count
    from @extschema@.caliber_artifact as r
    where r.artifact_id = any($1)
        or (
            $3 and r.trajectory_id = $2 and r.status <> 'superseded'
            and r.artifact_type in (
                'design_decision', 'constraint', 'user_preference', 'plan', 'fact', 'summary'
            )
        )
    order by r.artifact_id = any($1) desc, r.artifact_id desc
    limit 200
    """,
    "uuid[]",
    "uuid",
    "bool",
)

_VARIABLES = plan(
    """
    select v.name as label, v.value::text as content
    from @extschema@.caliber_context_variables($1) as v
    order by v.name
    """,
    "uuid",
)

_STORE = plan(
    """
    insert into @extschema@.caliber_context as c (
        trajectory_id, agent_id, team_id, token_budget, token_count, content, content_hash, shares, trace
    )
    values ($1, $2, $3, $4, $5, $6, pg_catalog.sha256(pg_catalog.convert_to($6, 'UTF8')), '{}', $7)
    returning c.context_id
    """,
    "uuid",
    "uuid",
    "uuid",
    "int4",
    "int4",
    "text",
    "json",
)


# Whoever accepts first of a broadcast; the others get the same, whatever was said meanwhile.
_SAME = plan(
    """
    select c.content, c.token_count, c.trace::text as trace
    from @extschema@.caliber_handoff as h
    inner join @extschema@.caliber_context as c on h.context_id = c.context_id
    where h.broadcast_group_id = $1
    order by h.accepted_at
    limit 1
    """,
    "uuid",
)


class _Text:
    """Lines within a budget, and what became of each item."""

    def __init__(self, budget: int) -> None:
        self.left = budget
        self.lines: list[str] = []
        self.trace: list[tuple[str, str, str, int, int, str, str | None]] = []

    def add(self, section: str, kind: str, title: str, items: list[dict[str, Any]], newest: bool) -> None:
        """Items come the most important first; shown oldest first where they were said in order."""
        chosen: list[str] = []
        for place, item in enumerate(items):
            tokens = int(item["token_count"]) + 8
            if tokens > self.left:
                rest = len(items) - place
                self.trace.append((section, "excluded", "the budget is used up", rest, 0, kind, None))
                break
            self.left -= tokens
            chosen.append(f"[{item['label']}] {item['content']}\n")
            self.trace.append((section, "included", "it fits", 1, tokens, kind, item["turn_id"]))
        if chosen:
            self.lines.append(f"## {title}\n")
            self.lines += chosen[::-1] if newest else chosen


def store(handoff: dict[str, Any], giver: dict[str, Any], taker: dict[str, Any]) -> str:
    import json

    same = _SAME.one(handoff["broadcast_group_id"]) if handoff.get("broadcast_group_id") else None
    if same is not None:
        return _keep(handoff, taker, same["token_count"], same["content"], same["trace"])
    text = _Text(handoff["token_budget"])
    _head(text, handoff, giver)
    trajectory = handoff["trajectory_id"]
    whole = handoff["handoff_type"] in ("sequential", "escalation")
    artifacts = list(_ARTIFACTS.rows(handoff["artifact_ids"], trajectory, whole))
    text.add("decisions", "artifact", "Artifacts", artifacts, newest=False)
    text.add("turns", "turn", "What was said", _said(handoff), newest=True)
    used = handoff["token_budget"] - text.left
    return _keep(handoff, taker, used, "\n".join(text.lines), json.dumps(text.trace))


def _keep(handoff: dict[str, Any], taker: dict[str, Any], tokens: int, content: str, trace: str) -> str:
    row = _STORE.one(
        handoff["received_trajectory_id"], taker["agent_id"], taker["team_id"], handoff["token_budget"],
        tokens, content, trace,
    ) or {}  # fmt: skip
    return str(row["context_id"])


def _head(text: _Text, handoff: dict[str, Any], giver: dict[str, Any]) -> None:
    lines = [
        f"# Handoff from {giver['name']}\n",
        f"Type: {handoff['handoff_type']}. Reason: {handoff['reason']}. Risk: {handoff['risk_level']}.",
    ]
    for name in ("task_id", "budget", "deadline"):
        if handoff.get(name) is not None:
            lines.append(f"{name}: {handoff[name]}")
    lines.append(f"\n{handoff['handoff_notes']}\n")
    if handoff["decision_rationale"]:
        lines.append(f"Rationale: {handoff['decision_rationale']}\n")
    for title, name in (
        ("Next steps", "next_steps"), ("Blockers", "blockers"), ("Open questions", "open_questions"),
    ):  # fmt: skip
        if handoff[name]:
            lines.append(f"## {title}\n")
            lines += [f"- {item}" for item in handoff[name]]
            lines.append("")
    # As the receiver will read them: what was given along counts before what is above.
    variables = _VARIABLES.rows(handoff["received_trajectory_id"])
    if variables:
        lines.append("## Context variables\n")
        lines += [f"{row['label']}: {row['content']}" for row in variables]
        lines.append("")
    head = "\n".join(lines)
    tokens = token_counts.counted(head, None)
    if tokens > text.left:
        head = head[: len(head) * text.left // tokens - len(CUT)] + CUT
        text.trace.append(("handoff", "truncated", f"cut from {tokens} tokens", 1, text.left, "note", None))
        tokens = text.left
    else:
        text.trace.append(("handoff", "included", "it fits", 1, tokens, "note", None))
    text.left -= tokens
    text.lines.append(head)


def _said(handoff: dict[str, Any]) -> list[dict[str, Any]]:
    import json

    mode = handoff["history_mode"]
    if mode == "summary":
        return list(_SUMMARIES.rows(handoff["trajectory_id"]))
    most = MAX_TURNS if handoff["max_messages"] is None else min(MAX_TURNS, handoff["max_messages"])
    words = " ".join([handoff["handoff_notes"], *handoff["next_steps"], handoff["task_id"] or ""])
    return list(
        _TURNS.rows(
            handoff["trajectory_id"], most, json.dumps(handoff["history_include"]),
            mode == "relevant_only", words, handoff["scope_id"],
        )
    )  # fmt: skip
