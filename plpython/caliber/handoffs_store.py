"""Handoffs: reading, locking and writing their rows. The contract is in sql/schema/handoffs.sql.

A handoff is a dict of its columns, as json has them; what changes is written back by name. Numbers
that somebody else will read go through as text, json and all: Python would round them.
"""

from __future__ import annotations

from typing import Any, NoReturn

import plpy

from caliber import errors, handoffs_rules, memory_rules
from caliber.plans import plan

PENDING = ("initiated", "deferred")
RUNNING = ("accepted", "in_progress")
TRIES = 5

_COLUMNS = """
    status, status_reason, needs_human, from_agent_id, sender_waits, to_agent_id, tried_agent_ids,
    scope_id, received_trajectory_id, received_scope_id, context_id, lock_ids, moved_lock_ids, joint_locks,
    attempts, reroutes, available_at, ack_by, return_by, lapses_at, due_at, reminded_at, estimated_completion,
    accepted_at, started_at, returned_at, resolved_at, return_status, result_type, result,
    variables_changed, artifacts_produced, tokens_consumed, return_notes, warnings
"""

# What the clock says of a handoff when it is read; left_ms is until its deadline.
CLOCK = ("early", "unanswered", "lapsed", "due", "left_ms")

_ROW = """
    pg_catalog.to_jsonb(h) || pg_catalog.jsonb_build_object(
        'variables', h.variables::text, 'variables_changed', h.variables_changed::text,
        'result', h.result::text, 'budget', h.budget::text, 'autonomy_budget', h.autonomy_budget::text
    )
"""

_READ = f"""
    select
        {_ROW} as handoff,
        coalesce(h.available_at > pg_catalog.clock_timestamp(), false) as early,
        coalesce(h.ack_by <= pg_catalog.clock_timestamp(), false) as unanswered,
        coalesce(h.lapses_at <= pg_catalog.clock_timestamp(), false) as lapsed,
        coalesce(h.due_at <= pg_catalog.clock_timestamp(), false) as due,
        pg_catalog.ceil(
            pg_catalog.date_part('epoch', h.deadline - pg_catalog.clock_timestamp()) * 1000
        )::bigint as left_ms
    from @extschema@.caliber_handoff as h
    where h.handoff_id = $1
"""
_PEEK = plan(_READ, "uuid")
_LOCK = plan(_READ + " for update", "uuid")

_AGENT = """
    select
        a.agent_id, a.team_id, a.name, a.agent_type, a.status, a.current_trajectory_id,
        a.current_scope_id, a.capabilities, a.proficiency, a.autonomy_budget, a.max_risk, a.reports_to,
        coalesce(
            a.max_concurrent_tasks,
            @extschema@._caliber_config_value('agent_max_concurrent_tasks')::integer
        ) as max_tasks
    from @extschema@.caliber_agent as a
    where a.agent_id = any($1)
"""
# In one order, parents before children as whoever ends a family: so one waits and none deadlocks.
_AGENTS = plan(_AGENT + " order by a.spawn_depth, a.agent_id for no key update of a", "uuid[]")
_LOOK = plan(_AGENT, "uuid[]")

_TRAJECTORY = plan(
    """
    select
        t.trajectory_id, t.name, t.status, t.agent_id, t.team_id, t.depth, t.root_trajectory_id
    from @extschema@.caliber_trajectory as t
    where t.trajectory_id = $1
    for no key update
    """,
    "uuid",
)

_INSERT = plan(
    """
    insert into @extschema@.caliber_handoff
    select r.*
    from pg_catalog.jsonb_populate_record(
        null::@extschema@.caliber_handoff,
        $1 || pg_catalog.jsonb_build_object(
            'initiated_at', pg_catalog.clock_timestamp(),
            'variables', ($1 ->> 'variables')::jsonb,
            'variables_changed', ($1 ->> 'variables_changed')::jsonb
        )
    ) as r
    """,
    "jsonb",
)

# $3 holds times as milliseconds from now.
_SAVE = plan(
    f"""
    update @extschema@.caliber_handoff as h
    set ({_COLUMNS}) = (
        select {_COLUMNS}
        from pg_catalog.jsonb_populate_record(
            h,
            $2 || coalesce(
                (
                    select pg_catalog.jsonb_object_agg(j.key, j.value::jsonb)
                    from pg_catalog.jsonb_each_text($2) as j
                    where j.key in ('variables_changed', 'result')
                ),
                '{{}}'
            ) || coalesce(
                (
                    select pg_catalog.jsonb_object_agg(
                        e.key, now.at + e.value::double precision * interval '1 ms'
                    )
                    from pg_catalog.jsonb_each_text($3) as e
                    cross join (select pg_catalog.clock_timestamp() as at) as now
                ),
                '{{}}'
            )
        )
    )
    where h.handoff_id = $1
    returning {_ROW} as handoff
    """,
    "uuid",
    "jsonb",
    "jsonb",
)

_AUDIT = plan(
    """
    insert into @extschema@.caliber_audit (
        team_id, event_type, handoff_id, handoff_type, trajectory_id, task_id, from_agent_id,
        to_agent_id, to_agent_type, reason, decision_rationale, risk_level, task_status,
        variables_sha256, artifact_count, duration_ms, tokens_consumed, outcome, details
    )
    select
        h.team_id, $2, h.handoff_id, h.handoff_type, h.trajectory_id, h.task_id, h.from_agent_id,
        h.to_agent_id, h.to_agent_type, pg_catalog.left($3, 1000), $4, h.risk_level, t.status,
        (
            select pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(
                coalesce(pg_catalog.jsonb_object_agg(v.name, v.value order by v.name), '{}')::text
                || h.variables::text, 'UTF8'
            )), 'hex')
            from @extschema@.caliber_variable as v
            where v.trajectory_id = h.trajectory_id
        ),
        pg_catalog.cardinality(h.artifact_ids) + pg_catalog.cardinality(h.artifacts_produced),
        (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - h.initiated_at) * 1000)::bigint,
        $6, $5, $7
    from pg_catalog.jsonb_populate_record(
        null::@extschema@.caliber_handoff,
        $1 || pg_catalog.jsonb_build_object('variables', ($1 ->> 'variables')::jsonb)
    ) as h
    inner join @extschema@.caliber_trajectory as t on h.trajectory_id = t.trajectory_id
    returning @extschema@._caliber_log(
        'handoff_' || event_type, 'coordination', $8,
        handoff_type || ' handoff ' || event_type || ': ' || reason, from_agent_id, team_id,
        trajectory_id, 'handoff', handoff_id::text, details
    )
    """,
    "jsonb",
    "text",
    "text",
    "text",
    "text",
    "int8",
    "jsonb",
    "@extschema@.caliber_event_severity",
)

# What is written about a trajectory may go to several chains: the teams of those that had it, and of what
# was passed on of it. Their heads in one order, before the first record; a chain that has no head yet
# cannot be waited for in another order, since nothing of it is open.
_CHAINS = plan(
    """
    select c.team_id
    from @extschema@.caliber_audit_head as c
    where c.team_id in (
        select t.team_id from @extschema@.caliber_trajectory as t where t.trajectory_id = $1
        union
        select h.team_id
        from @extschema@.caliber_handoff as h
        where h.trajectory_id = $1 and h.resolved_at is null
    )
    order by c.team_id
    for update
    """,
    "uuid",
)

_LOAD = plan(f"select ({handoffs_rules.LOAD.format(agent='$1')}) as load", "uuid")

_BAD = ("rejected", "failed", "timeout", "escalated")


def loads(text: str) -> Any:
    import json

    return json.loads(text)


def dumps(value: Any) -> str:
    import json

    return json.dumps(value)


def _read(row: dict[str, Any] | None, handoff_id: str | None) -> dict[str, Any]:
    if row is None:
        memory_rules.missing("handoff", handoff_id)
    return {**loads(row["handoff"]), **{name: row[name] for name in CLOCK}}


def peek(handoff_id: str | None) -> dict[str, Any]:
    return _read(_PEEK.one(handoff_id), handoff_id)


def lock(handoff_id: str | None) -> dict[str, Any]:
    return _read(_LOCK.one(handoff_id), handoff_id)


def agents(*ids: str | None) -> dict[str, dict[str, Any]]:
    wanted = [key for key in ids if key is not None]
    return {row["agent_id"]: dict(row) for row in _AGENTS.rows(wanted)}


class _Changed(Exception):
    """Leaves a subtransaction, which gives back its locks."""


def parties(handoff_id: str | None, *more: str | None) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The handoff and its sender, and more agents, locked. The sender is another by the time it is locked
    when the whole changed hands meanwhile: then from the beginning, so that the order of locks is kept."""
    for _ in range(TRIES - 1):
        if (locked := _parties(handoff_id, more)) is not None:
            return locked
    return _parties(handoff_id, more) or _changes(handoff_id)


def _parties(
    handoff_id: str | None, more: tuple[str | None, ...]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]] | None:
    handoff = peek(handoff_id)
    try:
        with plpy.subtransaction():
            found = agents(handoff["from_agent_id"], *more)
            if peek(handoff_id)["from_agent_id"] != handoff["from_agent_id"]:
                raise _Changed
    except _Changed:
        return None
    return handoff, found


def _changes(handoff_id: str | None) -> NoReturn:
    errors.fail(
        errors.BUSY,
        "the handoff changes hands",
        detail=f"Handoff {handoff_id} had another sender each of {TRIES} times.",
        hint="Call again.",
    )


def look(agent_id: str) -> dict[str, Any]:
    """An agent that exists, as it is now; nobody is kept waiting."""
    return dict(_LOOK.rows([agent_id])[0])


def trajectory(trajectory_id: str | None) -> dict[str, Any]:
    row = _TRAJECTORY.one(trajectory_id)
    if row is None:
        memory_rules.missing("trajectory", trajectory_id)
    return row


def insert(handoff: dict[str, Any]) -> None:
    _INSERT.rows(dumps(handoff))


def save(
    handoff: dict[str, Any], changes: dict[str, Any], times: dict[str, int | None] | None = None
) -> dict[str, Any]:
    """Write what changes; times are in milliseconds from now, None is never."""
    given = times or {}
    never = {name: None for name, ms in given.items() if ms is None}
    then = {name: ms for name, ms in given.items() if ms is not None}
    row = _SAVE.one(handoff["handoff_id"], dumps({**changes, **never}), dumps(then)) or {}
    return {**loads(row["handoff"]), **{name: handoff[name] for name in CLOCK if name in handoff}}


def late(handoff: dict[str, Any]) -> bool:
    """Whether its deadline has passed, so that nobody needs to be asked any more."""
    left: int | None = handoff["left_ms"]
    return left is not None and left <= 0


def within(handoff: dict[str, Any], ms: int) -> int:
    """A time from now, at most until the deadline."""
    left: int | None = handoff["left_ms"]
    return ms if left is None else max(0, min(ms, left))


def audit(
    handoff: dict[str, Any],
    event: str,
    reason: str | None,
    rationale: str | None = None,
    outcome: str | None = None,
    **details: Any,
) -> None:
    """Before the step it tells of takes effect."""
    _AUDIT.rows(
        dumps(handoff), event, reason or event, rationale, outcome, handoff.get("tokens_consumed"),
        dumps(details), "warning" if event in _BAD else "info",
    )  # fmt: skip


def chains(handoff: dict[str, Any]) -> None:
    """Before the first record of a step that may write to more than one chain."""
    _CHAINS.rows(handoff["trajectory_id"])


def load(agent_id: str) -> int:
    return int((_LOAD.one(agent_id) or {})["load"])


def wrong_state(handoff: dict[str, Any], action: str, why: str | None = None) -> None:
    errors.fail(
        errors.WRONG_STATE,
        f"a handoff that is {why or handoff['status']} cannot be {action}",
        detail=f"Handoff {handoff['handoff_id']} is {handoff['status']}"
        + (f": {handoff['status_reason']}." if handoff["status_reason"] else "."),
        hint="caliber_handoffs shows where it stands.",
    )
