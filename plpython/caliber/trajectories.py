"""Trajectories and their scopes. The contract is in sql/schema/trajectories.sql."""

from __future__ import annotations

from typing import Any

from caliber import callers, checks, errors, memory_rules
from caliber.plans import plan

MAX_DEPTH = 100
MAX_BUDGET = 10**12
MAX_NAME = 1000
MAX_TEXT = 10_000

# Where each status may go. What is finished stays finished.
STEPS: dict[str, frozenset[str]] = {
    "active": frozenset({"suspended", "completed", "failed"}),
    "suspended": frozenset({"active", "completed", "failed"}),
    "completed": frozenset(),
    "failed": frozenset(),
}

# Not share: two sessions that start and then assign would each wait for the other's share.
_AGENT = plan(
    """
    select
        a.agent_id, a.team_id, a.name, a.status, b.incarnation,
        @extschema@._caliber_allows(a.memory_access, 'write', 'trajectory', 'own') as may_write
    from @extschema@.caliber_agent as a
    inner join @extschema@.caliber_agent_beat as b on a.agent_id = b.agent_id
    where a.agent_id = $1
        and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
    for no key update of a
    """,
    "uuid",
)

# The parent is share-locked, so it cannot be finished meanwhile, or was and is refused.
_PARENT = plan(
    """
    select
        t.trajectory_id, t.name, t.status, t.depth, t.root_trajectory_id,
        @extschema@._caliber_is_admin() or t.team_id = $2 or t.agent_id = $3 or exists (
            select from @extschema@.caliber_agent as a
            where a.agent_id = $3
                and @extschema@._caliber_reach(a.memory_access, 'read', 'trajectory') = 'global'
        ) as may_see
    from @extschema@.caliber_trajectory as t
    where t.trajectory_id = $1
    for share of t
    """,
    "uuid",
    "uuid",
    "uuid",
)

_START = plan(
    """
    with made as (
        insert into @extschema@.caliber_trajectory as t (
            trajectory_id, name, agent_id, team_id, parent_trajectory_id, root_trajectory_id, depth,
            scope_count, metadata
        )
        select new.id, $1, $2, $3, $4, coalesce($5, new.id), $6, 1, $7
        from (select @extschema@.caliber_uuid_v7() as id) as new
        returning t.trajectory_id, t.agent_id, t.team_id
    ),
    opened as (
        insert into @extschema@.caliber_scope (
            trajectory_id, scope_no, agent_id, team_id, name, token_budget
        )
        select m.trajectory_id, 1, m.agent_id, m.team_id, $8, $9
        from made as m
    )
    select
        m.trajectory_id,
        @extschema@._caliber_log(
            'trajectory_started', 'coordination', 'info', $10, m.agent_id, m.team_id, m.trajectory_id,
            details => pg_catalog.jsonb_build_object('parent_trajectory_id', $4)
        )
    from made as m
    """,
    "text",
    "uuid",
    "uuid",
    "uuid",
    "uuid",
    "int4",
    "jsonb",
    "text",
    "int8",
    "text",
)

_TRAJECTORY = plan(
    f"""
    select {memory_rules.writer()}, t.scope_count
    from @extschema@.caliber_trajectory as t
    left join @extschema@.caliber_agent as a on {memory_rules.WRITER_IS}
    where t.trajectory_id = $1
    for no key update of t
    """,
    *memory_rules.WRITER_TYPES,
)

# Locked, in a statement of its own, so that a turn or an artifact on its way into the scope is waited
# for, and who comes behind is refused. An artifact holds only a key share lock.
OPEN_SCOPE = plan(
    """
    select s.scope_id, s.scope_no
    from @extschema@.caliber_scope as s
    where s.trajectory_id = $1 and s.closed_at is null
    for update
    """,
    "uuid",
)

_STEP = plan(
    """
    with moved as (
        update @extschema@.caliber_trajectory as t
        set
            status = $2,
            outcome = coalesce($3, t.outcome),
            status_changed_at = pg_catalog.clock_timestamp(),
            finished_at = case when $2 in ('completed', 'failed') then pg_catalog.clock_timestamp() end
        where t.trajectory_id = $1
        returning t.trajectory_id, t.team_id
    ),
    stopped as (
        update @extschema@.caliber_scope as s
        set
            closed_at = case when $2 in ('completed', 'failed') then pg_catalog.clock_timestamp() end,
            suspended_at = case when $2 = 'suspended' then pg_catalog.clock_timestamp() end
        from moved as m
        where s.trajectory_id = m.trajectory_id and s.closed_at is null
    )
    select @extschema@._caliber_log(
        $4, 'coordination', $5, $6, $7, m.team_id, m.trajectory_id,
        details => pg_catalog.jsonb_build_object('from', $8, 'to', $2)
    )
    from moved as m
    """,
    "uuid",
    "@extschema@.caliber_trajectory_status",
    "text",
    "text",
    "@extschema@.caliber_event_severity",
    "text",
    "uuid",
    "text",
)

_OPEN = plan(
    """
    with counted as (
        update @extschema@.caliber_trajectory as t
        set scope_count = t.scope_count + 1
        where t.trajectory_id = $1
        returning t.trajectory_id, t.team_id, t.scope_count
    ),
    opened as (
        insert into @extschema@.caliber_scope as s (
            trajectory_id, scope_no, agent_id, team_id, name, token_budget
        )
        select c.trajectory_id, c.scope_count, $2, c.team_id, $3, $4
        from counted as c
        returning s.scope_id, s.scope_no, s.trajectory_id, s.agent_id, s.team_id
    )
    select
        o.scope_id,
        @extschema@._caliber_log(
            'scope_opened', 'coordination', 'info', 'scope ' || o.scope_no || ' of ' || $5, o.agent_id,
            o.team_id, o.trajectory_id, 'scope', o.scope_id::text
        )
    from opened as o
    """,
    "uuid",
    "uuid",
    "text",
    "int8",
    "text",
)

_SCOPE_TRAJECTORY = plan(
    "select s.trajectory_id from @extschema@.caliber_scope as s where s.scope_id = $1", "uuid"
)

_SCOPE = plan(
    """
    select s.scope_id, s.scope_no, s.trajectory_id, s.closed_at
    from @extschema@.caliber_scope as s
    where s.scope_id = $1
    for update
    """,
    "uuid",
)

_CLOSE = plan(
    """
    with ended as (
        update @extschema@.caliber_scope as s
        set
            closed_at = pg_catalog.clock_timestamp(),
            summary = $2,
            checkpoint = coalesce($3, s.checkpoint),
            checkpoint_at = case
                when $3 is null then s.checkpoint_at else pg_catalog.clock_timestamp()
            end
        where s.scope_id = $1
        returning s.scope_id, s.scope_no, s.trajectory_id, s.team_id, s.turn_count, s.closed_at
    )
    select
        e.closed_at,
        @extschema@._caliber_log(
            'scope_closed', 'coordination', 'info', 'scope ' || e.scope_no || ' of ' || $4, $5,
            e.team_id, e.trajectory_id, 'scope', e.scope_id::text,
            pg_catalog.jsonb_build_object('turns', e.turn_count)
        )
    from ended as e
    """,
    "uuid",
    "text",
    "jsonb",
    "text",
    "uuid",
)

_CHECKPOINT = plan(
    """
    update @extschema@.caliber_scope as s
    set checkpoint = $2, checkpoint_at = pg_catalog.clock_timestamp()
    where s.scope_id = $1
    returning s.checkpoint_at
    """,
    "uuid",
    "jsonb",
)


def trajectory_start(
    name: str | None,
    agent_id: str | None,
    parent_trajectory_id: str | None,
    scope_name: str | None,
    token_budget: int | None,
    metadata: str | None,
    incarnation: int | None,
) -> str:
    if not checks.label("name", name, MAX_NAME):
        errors.invalid("name", name, "must not be null or empty")
    checks.label("scope_name", scope_name)
    checks.between("token_budget", token_budget, 1, MAX_BUDGET)
    metadata = memory_rules.metadata(metadata)
    checks.required("agent_id", agent_id)
    memory_rules.fence(agent_id, incarnation)
    agent = _starter(str(agent_id))
    parent = _parent(parent_trajectory_id, agent)
    row = _START.one(
        name, agent["agent_id"], agent["team_id"], parent_trajectory_id,
        parent["root_trajectory_id"], parent["depth"] + 1, metadata,
        scope_name or None, token_budget, f"{agent['name']} started {name}",
    ) or {}  # fmt: skip
    return str(row["trajectory_id"])


def _starter(agent_id: str) -> dict[str, Any]:
    agent = _AGENT.one(agent_id)
    if agent is None:
        callers.refuse_agent(agent_id)
    callers.refuse_ended(agent, None)
    if not agent["may_write"]:
        errors.fail(
            errors.NOT_PERMITTED,
            "the agent's memory_access does not let it start a trajectory",
            detail=f"The agent is {agent['name']}, {agent_id}.",
            hint="memory_access.write needs trajectory, or *.",
        )
    return agent


def _parent(trajectory_id: str | None, agent: dict[str, Any]) -> dict[str, Any]:
    if trajectory_id is None:
        return {"root_trajectory_id": None, "depth": -1}
    parent = _PARENT.one(trajectory_id, agent["team_id"], agent["agent_id"])
    if parent is None or not parent["may_see"]:
        memory_rules.missing("trajectory", trajectory_id)
    if parent["status"] in ("completed", "failed"):
        memory_rules.not_active(parent, "cannot get a child")
    if parent["depth"] >= MAX_DEPTH:
        errors.fail(
            errors.LIMIT_EXCEEDED,
            "trajectories may not nest this deep",
            detail=f"The parent is at depth {parent['depth']} of {MAX_DEPTH}.",
        )
    return parent


def trajectory_finish(
    trajectory_id: str | None,
    status: str | None,
    outcome: str | None,
    agent_id: str | None,
    incarnation: int | None,
) -> str:
    if status not in ("completed", "failed"):
        errors.invalid("status", status, "must be completed or failed")
    return _step(trajectory_id, status, outcome, agent_id, incarnation)


def trajectory_suspend(
    trajectory_id: str | None, reason: str | None, agent_id: str | None, incarnation: int | None
) -> str:
    return _step(trajectory_id, "suspended", reason, agent_id, incarnation)


def trajectory_resume(trajectory_id: str | None, agent_id: str | None, incarnation: int | None) -> str:
    return _step(trajectory_id, "active", None, agent_id, incarnation)


def _step(
    trajectory_id: str | None,
    status: str,
    outcome: str | None,
    agent_id: str | None,
    incarnation: int | None,
) -> str:
    outcome = checks.label("outcome", outcome, MAX_TEXT)
    trajectory = _locked(trajectory_id, agent_id, incarnation, "trajectory")
    before: str = trajectory["status"]
    if status not in STEPS[before]:
        memory_rules.not_active(trajectory, f"cannot become {status}")
    OPEN_SCOPE.rows(trajectory_id)
    _STEP.rows(
        trajectory_id, status, outcome, f"trajectory_{_EVENT[status]}",
        "warning" if status == "failed" else "info",
        f"{trajectory['name']} is {status}", trajectory["agent_id"], before,
    )  # fmt: skip
    return before


_EVENT = {"active": "resumed", "suspended": "suspended", "completed": "finished", "failed": "finished"}


def scope_open(
    trajectory_id: str | None,
    name: str | None,
    token_budget: int | None,
    agent_id: str | None,
    incarnation: int | None,
) -> str:
    name = checks.label("name", name)
    checks.between("token_budget", token_budget, 1, MAX_BUDGET)
    trajectory = _locked(trajectory_id, agent_id, incarnation, "scope")
    if trajectory["status"] != "active":
        memory_rules.not_active(trajectory, "cannot open a scope")
    # A statement of its own: it sees what whoever held the trajectory before has left.
    current = OPEN_SCOPE.one(trajectory_id)
    if current:
        errors.fail(
            errors.WRONG_STATE,
            "the trajectory has an open scope",
            detail=f"Scope {current['scope_no']}, {current['scope_id']}, is open.",
            hint="caliber_scope_close closes it first.",
        )
    row = _OPEN.one(trajectory_id, trajectory["agent_id"], name, token_budget, trajectory["name"]) or {}
    return str(row["scope_id"])


def scope_close(
    scope_id: str | None,
    summary: str | None,
    checkpoint: str | None,
    agent_id: str | None,
    incarnation: int | None,
) -> str:
    summary = checks.label("summary", summary, MAX_TEXT)
    if checkpoint is not None:
        checks.json_object("checkpoint", checkpoint)
    trajectory = _open_scope(scope_id, agent_id, incarnation)
    row = _CLOSE.one(scope_id, summary, checkpoint, trajectory["name"], trajectory["agent_id"]) or {}
    return str(row["closed_at"])


def scope_checkpoint(
    scope_id: str | None, checkpoint: str | None, agent_id: str | None, incarnation: int | None
) -> str:
    checks.json_object("checkpoint", checkpoint)
    _open_scope(scope_id, agent_id, incarnation)
    row = _CHECKPOINT.one(scope_id, checkpoint) or {}
    return str(row["checkpoint_at"])


def _open_scope(scope_id: str | None, agent_id: str | None, incarnation: int | None) -> dict[str, Any]:
    """The trajectory of a scope that is open, both locked, the trajectory first as everywhere."""
    memory_rules.acts_for(agent_id)
    checks.required("scope_id", scope_id)
    found = _SCOPE_TRAJECTORY.one(scope_id)
    if found is None:
        memory_rules.missing("scope", scope_id)
    memory_rules.fence(agent_id, incarnation)
    trajectory = _TRAJECTORY.one(found["trajectory_id"], agent_id, "scope", "{}")
    memory_rules.allowed(trajectory, "scope", str(scope_id), agent_id, "scope")
    scope = _SCOPE.one(scope_id) or {}
    if scope["closed_at"] is not None:
        memory_rules.closed(scope)
    return dict(trajectory or {})


def _locked(
    trajectory_id: str | None, agent_id: str | None, incarnation: int | None, memory_type: str
) -> dict[str, Any]:
    memory_rules.acts_for(agent_id)
    checks.required("trajectory_id", trajectory_id)
    memory_rules.fence(agent_id, incarnation)
    row = _TRAJECTORY.one(trajectory_id, agent_id, memory_type, "{}")
    trajectory: dict[str, Any] = memory_rules.allowed(
        row, "trajectory", str(trajectory_id), agent_id, memory_type
    )
    return trajectory
