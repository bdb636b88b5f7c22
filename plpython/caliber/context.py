"""Context: reading candidates, storing the snapshot. What is chosen is decided in context_rules.py;
the contract is in sql/schema/context.sql."""

from __future__ import annotations

from typing import Any

from caliber import callers, checks, context_rules, memory_rules, readers, search
from caliber.plans import Statement, plan

MIN_BUDGET = 100
MAX_BUDGET = 1_000_000
MAX_PURGE = 10_000

# For each section the newest items with their tokens, and how many there are, counted only so far:
# a count takes longer than all the rest of the statement. $2 is whose items may be read where not
# all may.
_SECTION = """
    select
        '{section}' as section,
        pg_catalog.array_agg(x.id) as ids,
        pg_catalog.array_agg(x.token_count) as tokens,
        (select pg_catalog.count(*) from (select {source} limit {most}) as y) as items
    from (select {key} as id, {table}.token_count {source} order by {key} desc limit {limit}) as x
"""
_NOTES = """
    from @extschema@.caliber_note as n
    where n.trajectory_id = $1 and n.note_type = 'handoff' and n.retired_at is null
        and ($3 or n.agent_id = any($2))
"""
_ARTIFACTS = """
    from @extschema@.caliber_artifact as r
    where r.trajectory_id = $1 and r.status <> 'superseded' and r.artifact_type in ({types})
        and ($4 or r.agent_id = any($2))
"""
_DECISIONS = _ARTIFACTS.format(types="'design_decision', 'constraint', 'user_preference', 'plan'")
_FACTS = _ARTIFACTS.format(types="'fact', 'summary'")

# Of the last scopes only as many as hold that many turns: a scope knows how many it has.
_TURNS = """
    select
        'turns',
        pg_catalog.array_agg(x.id),
        pg_catalog.array_agg(x.token_count),
        case
            when $5 then (
                select coalesce(pg_catalog.sum(s.turn_count), 0)
                from @extschema@.caliber_scope as s
                where s.trajectory_id = $1
            )
            else (
                select pg_catalog.count(*)
                from @extschema@.caliber_scope as s
                inner join @extschema@.caliber_turn as t on s.scope_id = t.scope_id
                where s.trajectory_id = $1 and t.agent_id = any($2)
            )
        end
    from (
        select u.id, u.token_count
        from (
            select
                s.scope_id, s.scope_no,
                pg_catalog.sum(s.turn_count) over (order by s.scope_no desc) - s.turn_count as later
            from @extschema@.caliber_scope as s
            where s.trajectory_id = $1
        ) as s
        cross join lateral (
            select t.turn_id as id, t.turn_no, t.token_count
            from @extschema@.caliber_turn as t
            where t.scope_id = s.scope_id and ($5 or t.agent_id = any($2))
            order by t.turn_no desc
            limit {limit}
        ) as u
        where s.later < {limit} or not $5
        order by s.scope_no desc, u.turn_no desc
        limit {limit}
    ) as x
"""


def _candidates_plan(limit: int) -> Statement:
    most = context_rules.MAX_ITEMS
    handoff = _SECTION.format(
        section="handoff", key="n.note_id", table="n", source=_NOTES, limit=limit, most=most
    )
    decisions, facts = (
        _SECTION.format(section=name, key="r.artifact_id", table="r", source=source, limit=limit, most=most)
        for name, source in (("decisions", _DECISIONS), ("facts", _FACTS))
    )
    text = " union all ".join((handoff, decisions, facts, _TURNS.format(limit=limit)))
    return plan(text, "uuid", "uuid[]", "bool", "bool", "bool")


# A first look at so many of each section is nearly always enough; else there is a second.
_FIRST_LOOK = 64
_CANDIDATES = _candidates_plan(_FIRST_LOOK)
_MORE_CANDIDATES = _candidates_plan(context_rules.MAX_ITEMS)

_NOTE_TOKENS = plan(
    "select n.note_id as id, n.token_count from @extschema@.caliber_note as n where n.note_id = any($1)",
    "uuid[]",
)

_CONTENT = plan(
    """
    select n.note_id as id, n.note_type::text as label, n.content
    from @extschema@.caliber_note as n
    where n.note_id = any($1)
    union all
    select
        r.artifact_id,
        r.artifact_type || case when r.status = 'draft' then ', draft' else '' end
        || coalesce(', ' || pg_catalog.round(r.confidence::numeric, 2), ''),
        r.content
    from @extschema@.caliber_artifact as r
    where r.artifact_id = any($2)
    union all
    select u.turn_id, s.scope_no || '.' || u.turn_no || ' ' || u.role, u.content
    from @extschema@.caliber_turn as u
    inner join @extschema@.caliber_scope as s on u.scope_id = s.scope_id
    where u.turn_id = any($3)
    """,
    "uuid[]",
    "uuid[]",
    "uuid[]",
)

_STORE = plan(
    """
    insert into @extschema@.caliber_context as c (
        trajectory_id, agent_id, team_id, token_budget, token_count, content, content_hash, embedding,
        shares, trace
    )
    values (
        $1, $2, $3, $4, $5, $6, pg_catalog.sha256(pg_catalog.convert_to($6, 'UTF8')),
        @extschema@._caliber_vector($7), $8, $9
    )
    returning c.context_id, pg_catalog.encode(c.content_hash, 'hex') as content_sha256
    """,
    "uuid",
    "uuid",
    "uuid",
    "int4",
    "int4",
    "text",
    "text",
    "jsonb",
    "json",
)

_PURGE = plan(
    """
    with old as (
        select c.context_id
        from @extschema@.caliber_context as c
        where c.created_at < pg_catalog.clock_timestamp() - pg_catalog.make_interval(
            days => @extschema@._caliber_config_value('context_retention_days')::integer
        )
        order by c.created_at
        limit $1
        for update skip locked
    ),
    gone as (
        delete from @extschema@.caliber_context as c
        using old
        where c.context_id = old.context_id
        returning c.context_id
    )
    select pg_catalog.count(*) as deleted from gone
    """,
    "int4",
)


def assemble(
    trajectory_id: str | None,
    token_budget: int | None,
    agent_id: str | None,
    embedding: str | None,
    shares: str | None,
    max_notes: int | None,
) -> list[dict[str, Any]]:
    checks.required("trajectory_id", trajectory_id)
    checks.required("token_budget", token_budget)
    checks.between("token_budget", token_budget, MIN_BUDGET, MAX_BUDGET)
    checks.required("max_notes", max_notes)
    checks.between("max_notes", max_notes, 1, 100)
    memory_rules.embedding(embedding, None)
    percent = context_rules.shares(shares)
    budget = int(token_budget or 0)
    reader, owner, team = readers.reader_of(str(trajectory_id), agent_id)
    whole = {
        kind: owner in reader.readable or reader.all_of(kind) or reader.team_of(kind) == team
        for kind in ("note", "artifact", "turn")
    }
    sections = _candidates(str(trajectory_id), reader, whole, _CANDIDATES)
    notes = _notes(reader, embedding, int(max_notes or 0), sections[0].ids)
    context_rules.choose([*sections, notes], budget, percent)
    if any(section.wants_more() for section in sections):
        sections = _candidates(str(trajectory_id), reader, whole, _MORE_CANDIDATES)
        notes.chosen.clear()
        context_rules.choose([*sections, notes], budget, percent)
    sections.append(notes)
    content = context_rules.render(sections, _contents(sections))
    return [_store(str(trajectory_id), team, reader, budget, embedding, percent, sections, content)]


def _candidates(
    trajectory_id: str, reader: readers.Reader, whole: dict[str, bool], statement: Statement
) -> list[context_rules.Section]:
    """The sections but the last, with what they could hold; whole says what is read of everybody."""
    found = statement.rows(trajectory_id, reader.readable, whole["note"], whole["artifact"], whole["turn"])
    return [
        context_rules.Section(row["section"], kind, row["ids"], row["tokens"], int(row["items"]))
        for row, kind in zip(found, ("note", "artifact", "artifact", "turn"), strict=True)
    ]


def _notes(
    reader: readers.Reader, embedding: str | None, most: int, shown: list[str]
) -> context_rules.Section:
    """The nearest notes, but those that are in the first section."""
    if embedding is None:
        return context_rules.Section("notes", "note", None, None, 0, "no embedding was given")
    near = [m.id for m in search.nearest(search.Wanted(reader, embedding, most), "note") if m.id not in shown]
    tokens = {row["id"]: row["token_count"] for row in _NOTE_TOKENS.rows(near)}
    return context_rules.Section("notes", "note", near, [tokens[key] for key in near], len(near))


def _contents(sections: list[context_rules.Section]) -> dict[str, dict[str, Any]]:
    ids: dict[str, list[str]] = {"note": [], "artifact": [], "turn": []}
    for section in sections:
        ids[section.kind] += [item.id for item in section.chosen]
    return {row["id"]: row for row in _CONTENT.rows(ids["note"], ids["artifact"], ids["turn"])}


def _store(
    trajectory_id: str,
    team_id: str,
    reader: readers.Reader,
    budget: int,
    embedding: str | None,
    percent: dict[str, int],
    sections: list[context_rules.Section],
    content: str,
) -> dict[str, Any]:
    import json

    trace = [row for section in sections for row in section.trace()]
    tokens = context_rules.cost(sections)
    stored = _STORE.one(
        trajectory_id, reader.agent_id, team_id, budget, tokens, content,
        embedding, json.dumps(percent), json.dumps(trace, separators=(",", ":")),
    ) or {}  # fmt: skip
    counts = {d: sum(r[3] for r in trace if r[1] == d) for d in ("included", "truncated", "excluded")}
    return {**stored, **counts, "token_count": tokens, "content": content}


def purge(max_contexts: int | None) -> int:
    callers.require_admin("delete contexts")
    checks.required("max_contexts", max_contexts)
    checks.between("max_contexts", max_contexts, 1, MAX_PURGE)
    row = _PURGE.one(max_contexts)
    return int(row["deleted"]) if row else 0
