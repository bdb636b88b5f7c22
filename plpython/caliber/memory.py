"""Memory: artifacts and notes. The contract is in sql/schema/memory.sql."""

from __future__ import annotations

from typing import Any, NoReturn

from caliber import callers, checks, errors, memory_rules, token_counts, turns
from caliber.plans import plan

_ARTIFACT = plan(
    f"""
    with place as (
        select s.scope_id, s.trajectory_id, s.team_id, a.agent_id
        from @extschema@.caliber_scope as s
        inner join @extschema@.caliber_trajectory as t on s.trajectory_id = t.trajectory_id
        inner join @extschema@.caliber_agent as a on {memory_rules.WRITER_IS}
        where s.scope_id = $1
            and s.trajectory_id = coalesce($3, s.trajectory_id)
            and s.closed_at is null
            and s.suspended_at is null
            and t.status = 'active'
            and a.terminated_at is null
            and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
            and @extschema@._caliber_allows(
                a.memory_access, 'write', 'artifact',
                {memory_rules.BELONGS},
                pg_catalog.jsonb_build_object('artifact_type', $4)
            )
        for key share of s
    )
    insert into @extschema@.caliber_artifact as r (
        scope_id, trajectory_id, agent_id, team_id, artifact_type, content, content_hash,
        extraction_method, embedding, confidence, name, path, status, embedding_model, token_count, metadata
    )
    select
        p.scope_id, p.trajectory_id, p.agent_id, p.team_id, $4, $5,
        pg_catalog.sha256(pg_catalog.convert_to($5, 'UTF8')),
        $6, @extschema@._caliber_vector($7), $8, $9, $10, $11, $12, $13, $14
    from place as p
    returning r.artifact_id, r.trajectory_id
    """,
    "uuid",
    "uuid",
    "uuid",
    "@extschema@.caliber_artifact_type",
    "text",
    "@extschema@.caliber_extraction_method",
    "text",
    "float4",
    "text",
    "text",
    "@extschema@.caliber_artifact_status",
    "text",
    "int4",
    "jsonb",
)

_OLD_ARTIFACT = plan(
    f"""
    select {
        memory_rules.writer(
            own="a.agent_id in (r.agent_id, t.agent_id)",
            attributes="pg_catalog.jsonb_build_object('artifact_type', r.artifact_type)",
        )
    }
    from @extschema@.caliber_artifact as r
    inner join @extschema@.caliber_trajectory as t on r.trajectory_id = t.trajectory_id
    left join @extschema@.caliber_agent as a on {memory_rules.WRITER_IS}
    where r.artifact_id = $1
    """,
    "uuid",
    "uuid",
    "text",
)

# In one order, whoever supersedes what: two that would supersede each other meet here, and
# the second sees what the first has done.
_LOCK_ARTIFACTS = plan(
    """
    select
        r.artifact_id, r.status, r.superseded_by,
        @extschema@._caliber_is_admin() or a.agent_id is not null as may_see
    from @extschema@.caliber_artifact as r
    left join @extschema@.caliber_agent as a
        on a.agent_id = $3
        and (
            r.agent_id = a.agent_id
            or @extschema@._caliber_reach(a.memory_access, 'read', 'artifact') = 'global'
            or (r.team_id = a.team_id
                and @extschema@._caliber_reach(a.memory_access, 'read', 'artifact') = 'team')
            or exists (
                select from @extschema@.caliber_trajectory as t
                where t.trajectory_id = r.trajectory_id and t.agent_id = a.agent_id
            )
        )
    where r.artifact_id in ($1, $2)
    order by r.artifact_id
    for no key update of r
    """,
    "uuid",
    "uuid",
    "uuid",
)

_SUPERSEDE = plan(
    """
    with changed as (
        update @extschema@.caliber_artifact as r
        set status = 'superseded', superseded_by = $2, superseded_at = pg_catalog.clock_timestamp()
        where r.artifact_id = $1
        returning r.artifact_id, r.artifact_type, r.team_id, r.trajectory_id
    )
    select @extschema@._caliber_log(
        'artifact_superseded', 'state', 'info', c.artifact_type || ' superseded', $3, c.team_id,
        c.trajectory_id, 'artifact', c.artifact_id::text,
        pg_catalog.jsonb_build_object('superseded_by', $2, 'reason', $4)
    )
    from changed as c
    """,
    "uuid",
    "uuid",
    "uuid",
    "text",
)

_NOTE = plan(
    """
    with author as (
        select a.agent_id, a.team_id
        from @extschema@.caliber_agent as a
        where a.agent_id = $1
            and a.terminated_at is null
            and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
            and @extschema@._caliber_allows(
                a.memory_access, 'write', 'note', 'own', pg_catalog.jsonb_build_object('note_type', $2)
            )
            and ($4 is null or exists (
                select from @extschema@.caliber_trajectory as t
                where t.trajectory_id = $4
                    and (
                        t.team_id = a.team_id
                        or t.agent_id = a.agent_id
                        or @extschema@._caliber_reach(a.memory_access, 'read', 'trajectory') = 'global'
                        or @extschema@._caliber_is_admin()
                    )
            ))
    ),
    made as (
        insert into @extschema@.caliber_note as n (
            agent_id, team_id, note_type, content, content_hash, trajectory_id, level, name, confidence,
            embedding, embedding_model, tags, token_count, metadata
        )
        select
            w.agent_id, w.team_id, $2, $3, pg_catalog.sha256(pg_catalog.convert_to($3, 'UTF8')), $4, $5,
            $6, $7, @extschema@._caliber_vector($8), $9, $10, $11, $12
        from author as w
        returning n.note_id, n.agent_id, n.team_id, n.trajectory_id, n.note_type, n.name
    )
    select
        m.note_id,
        @extschema@._caliber_log(
            'note_added', 'state', 'info', m.note_type || ' note' || coalesce(': ' || m.name, ''),
            m.agent_id, m.team_id, m.trajectory_id, 'note', m.note_id::text
        )
    from made as m
    """,
    "uuid",
    "@extschema@.caliber_note_type",
    "text",
    "uuid",
    "@extschema@.caliber_note_level",
    "text",
    "float4",
    "text",
    "text",
    "text[]",
    "int4",
    "jsonb",
)

_AUTHOR = plan(
    """
    select
        a.agent_id, a.name, a.status,
        @extschema@._caliber_allows(
            a.memory_access, 'write', 'note', 'own', pg_catalog.jsonb_build_object('note_type', $2)
        ) as may_write
    from @extschema@.caliber_agent as a
    where a.agent_id = $1
        and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
    """,
    "uuid",
    "text",
)

_RETIRE = plan(
    """
    with changed as (
        update @extschema@.caliber_note as n
        set retired_at = pg_catalog.clock_timestamp()
        from @extschema@.caliber_agent as a
        where n.note_id = $1
            and n.retired_at is null
            and a.agent_id = coalesce(
                $2, @extschema@._caliber_my_agent(),
                case when @extschema@._caliber_is_admin() then n.agent_id end
            )
            and a.terminated_at is null
            and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
            and @extschema@._caliber_allows(
                a.memory_access, 'write', 'note',
                case
                    when n.agent_id = a.agent_id or exists (
                        select from @extschema@.caliber_trajectory as t
                        where t.trajectory_id = n.trajectory_id and t.agent_id = a.agent_id
                    ) then 'own'
                    when n.team_id = a.team_id then 'team'
                end,
                pg_catalog.jsonb_build_object('note_type', n.note_type)
            )
        returning n.note_id, n.team_id, n.trajectory_id, n.note_type, a.agent_id
    )
    select @extschema@._caliber_log(
        'note_retired', 'state', 'info', c.note_type || ' note retired', c.agent_id, c.team_id,
        c.trajectory_id, 'note', c.note_id::text, pg_catalog.jsonb_build_object('reason', $3)
    )
    from changed as c
    """,
    "uuid",
    "uuid",
    "text",
)

_NOTE_STATE = plan(
    """
    select
        n.retired_at,
        @extschema@._caliber_is_admin()
        or n.agent_id = @extschema@._caliber_my_agent()
        or exists (
            select from @extschema@.caliber_trajectory as t
            where t.trajectory_id = n.trajectory_id and t.agent_id = @extschema@._caliber_my_agent()
        )
        or n.team_id = @extschema@._caliber_reads_team('note')
        or @extschema@._caliber_reads_all('note') as may_see
    from @extschema@.caliber_note as n
    where n.note_id = $1
    """,
    "uuid",
)


def artifact_create(
    scope_id: str | None,
    trajectory_id: str | None,
    artifact_type: str | None,
    content: str | None,
    extraction_method: str | None,
    embedding: str | None,
    confidence: float | None,
    name: str | None,
    path: str | None,
    status: str | None,
    embedding_model: str | None,
    token_count: int | None,
    agent_id: str | None,
    metadata: str | None,
    incarnation: int | None,
    detect_conflicts: bool | None = False,
) -> str:
    checks.required("scope_id", scope_id)
    checks.required("artifact_type", artifact_type)
    checks.required("extraction_method", extraction_method)
    if status not in ("draft", "final"):
        errors.invalid("status", status, "must be draft or final")
    content = memory_rules.content("content", content)
    memory_rules.embedding(embedding, embedding_model)
    memory_rules.confidence(confidence)
    name = checks.label("name", name)
    path = checks.label("path", path, 1000)
    metadata = memory_rules.metadata(metadata)
    count = token_counts.counted(content, token_count)
    memory_rules.fence(agent_id, incarnation)
    row = _ARTIFACT.one(
        scope_id, agent_id, trajectory_id, artifact_type, content, extraction_method, embedding,
        confidence, name, path, status, embedding_model or None, count, metadata,
    )  # fmt: skip
    if row is None:
        attributes = f'{{"artifact_type": "{artifact_type}"}}'
        turns.refuse(str(scope_id), agent_id, "artifact", attributes, 0, trajectory_id)
    if detect_conflicts:
        from caliber import conflicts_check

        conflicts_check.detect_new(
            row["artifact_id"], row["trajectory_id"], str(artifact_type), embedding, embedding_model
        )
    return str(row["artifact_id"])


def artifact_supersede(
    artifact_id: str | None,
    superseded_by: str | None,
    reason: str | None,
    agent_id: str | None,
    incarnation: int | None,
) -> bool:
    memory_rules.acts_for(agent_id)
    checks.required("artifact_id", artifact_id)
    checks.required("superseded_by", superseded_by)
    reason = checks.label("reason", reason, 1000)
    if artifact_id == superseded_by:
        errors.invalid("superseded_by", superseded_by, "must be another artifact")
    memory_rules.fence(agent_id, incarnation)
    row = _OLD_ARTIFACT.one(artifact_id, agent_id, "artifact")
    writer = memory_rules.allowed(row, "artifact", str(artifact_id), agent_id, "artifact")
    found = {
        r["artifact_id"]: r for r in _LOCK_ARTIFACTS.rows(artifact_id, superseded_by, writer["agent_id"])
    }
    old, new = found[artifact_id], found.get(superseded_by)
    if new is None or not new["may_see"]:
        memory_rules.missing("artifact", superseded_by)
    if old["superseded_by"] == superseded_by:
        return False
    for artifact in (old, new):
        if artifact["status"] == "superseded":
            _superseded(artifact)
    _SUPERSEDE.rows(artifact_id, superseded_by, writer["agent_id"], reason)
    return True


def _superseded(artifact: dict[str, Any]) -> NoReturn:
    errors.fail(
        errors.WRONG_STATE,
        "the artifact is superseded",
        detail=f"Artifact {artifact['artifact_id']} was superseded by {artifact['superseded_by']}.",
        hint="Take the last of the chain; caliber_artifact_latest finds it.",
    )


def note_add(
    agent_id: str | None,
    note_type: str | None,
    content: str | None,
    trajectory_id: str | None,
    level: str | None,
    name: str | None,
    confidence: float | None,
    embedding: str | None,
    embedding_model: str | None,
    tags: list[str | None] | None,
    token_count: int | None,
    metadata: str | None,
    incarnation: int | None,
) -> str:
    checks.required("agent_id", agent_id)
    checks.required("note_type", note_type)
    checks.required("level", level)
    content = memory_rules.content("content", content)
    if note_type == "handoff":
        checks.required("trajectory_id", trajectory_id)
    name = checks.label("name", name)
    memory_rules.confidence(confidence)
    memory_rules.embedding(embedding, embedding_model)
    labels = _tags(tags)
    metadata = memory_rules.metadata(metadata)
    count = token_counts.counted(content, token_count)
    memory_rules.fence(agent_id, incarnation)
    row = _NOTE.one(
        agent_id, note_type, content, trajectory_id, level, name, confidence, embedding,
        embedding_model or None, labels, count, metadata,
    )  # fmt: skip
    if row is None:
        _refuse_note(str(agent_id), str(note_type), trajectory_id)
    return str(row["note_id"])


def _tags(given: list[str | None] | None) -> list[str]:
    tags = given or []
    if len(tags) > checks.MAX_LIST:
        errors.invalid("tags", f"{len(tags)} tags", f"must hold at most {checks.MAX_LIST} tags")
    for tag in tags:
        if not checks.label("tags", tag, checks.MAX_NAME):
            errors.invalid("tags", tag, "must not hold a null or empty one")
    return list(dict.fromkeys(str(tag) for tag in tags))


def _refuse_note(agent_id: str, note_type: str, trajectory_id: str | None) -> NoReturn:
    author = _AUTHOR.one(agent_id, note_type)
    if author is None:
        callers.refuse_agent(agent_id)
    callers.refuse_ended(author, None)
    if not author["may_write"]:
        errors.fail(
            errors.NOT_PERMITTED,
            "the agent's memory_access does not let it write this note",
            detail=f"The agent is {author['name']}, {agent_id}; the note's type is {note_type}.",
            hint="memory_access.write needs note, or *.",
        )
    memory_rules.missing("trajectory", trajectory_id)


def note_retire(
    note_id: str | None, reason: str | None, agent_id: str | None, incarnation: int | None
) -> bool:
    memory_rules.acts_for(agent_id)
    checks.required("note_id", note_id)
    reason = checks.label("reason", reason, 1000)
    memory_rules.fence(agent_id, incarnation)
    if _RETIRE.one(note_id, agent_id, reason):
        return True
    note = _NOTE_STATE.one(note_id)
    if note is None or not note["may_see"]:
        memory_rules.missing("note", note_id)
    if note["retired_at"] is None:
        errors.fail(
            errors.NOT_PERMITTED,
            "the agent may not retire this note",
            detail=f"The note is {note_id}.",
            hint="Its author may, who has its trajectory, and whose memory_access.write reaches it.",
        )
    return False
