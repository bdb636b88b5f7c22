"""Memory: who may write where, and what may be written. The contract is in sql/functions/reach.sql
and sql/schema/trajectories.sql."""

from __future__ import annotations

from typing import Any, NoReturn

from caliber import callers, checks, errors
from caliber.plans import plan

# Of the numbers of an embedding the largest has at least this size, and at most its inverse.
LEAST_NUMBER = 1e-12

# To an agent a, a trajectory t is its own, its team's, or somebody else's.
BELONGS = (
    "case when t.agent_id = a.agent_id then 'own' when t.team_id = a.team_id then 'team' else 'other' end"
)

# A trajectory t with the agent a that is to write, and what it may do there.
_WRITER = """
    t.trajectory_id, t.name, t.status, t.agent_id as owner_id, t.team_id, t.depth,
    t.root_trajectory_id, a.agent_id, a.name as agent_name, a.status as agent_status,
    coalesce(a.login_role = @extschema@._caliber_actor(), false)
    or @extschema@._caliber_is_admin() as may_act,
    @extschema@._caliber_is_admin()
    or coalesce(
        a.team_id = t.team_id
        or a.agent_id = t.agent_id
        or @extschema@._caliber_reach(a.memory_access, 'read', 'trajectory') = 'global',
        false
    ) as may_see,
    @extschema@._caliber_allows(
        a.memory_access, 'write', $3,
        case when {own} then 'own' when t.team_id = a.team_id then 'team' else 'other' end,
        {attributes}
    ) as may_write
"""
# Who writes: the agent given, else the one whose login is calling, else, for an admin, the one
# that has the trajectory.
WRITER_IS = """
    a.agent_id = coalesce(
        $2, @extschema@._caliber_my_agent(), case when @extschema@._caliber_is_admin() then t.agent_id end
    )
"""
WRITER_TYPES = ("uuid", "uuid", "text", "jsonb")


def writer(own: str = "t.agent_id = a.agent_id", attributes: str = "$4") -> str:
    """The columns that allowed() judges; own says when what is written is the agent's own."""
    return _WRITER.format(own=own, attributes=attributes)


_ACTS = plan(
    """
    select a.agent_id, a.name, a.status
    from @extschema@.caliber_agent as a
    where a.agent_id = $1
        and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
    """,
    "uuid",
)


def acts_for(agent_id: str | None) -> None:
    """Refuse who passes for another or has ended, before anything is looked up or locked for it."""
    if agent_id is None:
        return
    agent = _ACTS.one(agent_id)
    if agent is None:
        callers.refuse_agent(agent_id)
    callers.refuse_ended(agent, None)


_FENCE = plan(
    """
    select a.agent_id, a.name, a.status, b.incarnation
    from @extschema@.caliber_agent as a
    inner join @extschema@.caliber_agent_beat as b on a.agent_id = b.agent_id
    where a.agent_id = coalesce($1, @extschema@._caliber_my_agent())
        and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
    for share of b
    """,
    "uuid",
)


def fence(agent_id: str | None, incarnation: int | None) -> None:
    """Refuse a process that was replaced, and keep it from being so until this transaction ends."""
    if incarnation is None:
        return
    agent = _FENCE.one(agent_id)
    if agent is None:
        callers.refuse_agent(str(agent_id))
    callers.refuse_ended(agent, incarnation)


# Share-locked, so that it cannot be finished before the assignment is done.
_WORK = plan(
    """
    select
        t.trajectory_id, t.name, t.status, s.scope_id, s.scope_no, s.closed_at,
        @extschema@._caliber_is_admin() or coalesce(
            a.team_id = t.team_id
            or a.agent_id = t.agent_id
            or @extschema@._caliber_reach(a.memory_access, 'read', 'trajectory') = 'global',
            false
        ) as may_see
    from @extschema@.caliber_trajectory as t
    inner join @extschema@.caliber_agent as a on a.agent_id = $3
    left join @extschema@.caliber_scope as s on s.scope_id = $2 and t.trajectory_id = s.trajectory_id
    where t.trajectory_id = $1
    for share of t
    """,
    "uuid",
    "uuid",
    "uuid",
)


def workable(trajectory_id: str, scope_id: str | None, agent_id: str) -> str:
    """The name of a trajectory that an agent can be put to work on, in a scope of it if one is given."""
    work = _WORK.one(trajectory_id, scope_id, agent_id)
    if work is None or not work["may_see"]:
        missing("trajectory", trajectory_id)
    if work["status"] in ("completed", "failed"):
        not_active(work, "cannot be worked on")
    if scope_id is not None:
        if work["scope_id"] is None:
            errors.invalid("scope_id", scope_id, "must be a scope of the trajectory")
        if work["closed_at"] is not None:
            closed(work)
    return str(work["name"])


def allowed(row: dict[str, Any] | None, kind: str, key: str, agent_id: str | None, memory_type: str) -> Any:
    """The row with the columns of writer(), or why its agent may not write there."""
    if row is None:
        missing(kind, key)
    if row["agent_id"] is None or not row["may_act"]:
        # By one way, so that nothing tells an agent that exists from one that does not.
        callers.refuse_agent(str(agent_id))
    if row["agent_status"] == "terminated":
        callers.refuse_ended(
            {"status": "terminated", "name": row["agent_name"], "agent_id": row["agent_id"]}, None
        )
    if not (row["may_see"] or row["may_write"]):
        missing(kind, key)
    if not row["may_write"]:
        errors.fail(
            errors.NOT_PERMITTED,
            f"the agent's memory_access does not let it write this {memory_type}",
            detail=f"{row['agent_name']} is not let into trajectory {row['trajectory_id']} "
            f"of agent {row['owner_id']}.",
            hint="memory_access.write needs the memory type, or *, with scope own, team or global.",
        )
    return row


def missing(kind: str, key: object) -> NoReturn:
    """Also for what the caller may not see: nobody learns from an error that an id exists."""
    errors.fail(
        errors.NOT_FOUND,
        f"there is no such {kind}",
        detail=f"{kind} {errors.shown(key)} does not exist, or is not yours to see.",
        hint=f"select * from caliber_{kind} shows those you can see.",
    )


def content(argument: str, value: str | None) -> str:
    """Text to be kept: not null, not empty, of bounded size."""
    if not value:
        errors.invalid(argument, value, "must not be null or empty")
    size = len(value.encode())
    if size > checks.MAX_PAYLOAD:
        errors.fail(
            errors.LIMIT_EXCEEDED,
            f"{argument} must be at most {checks.MAX_PAYLOAD} bytes",
            detail=f"{argument} has {size} bytes.",
            hint="Split it, or keep it elsewhere and store its address as path.",
        )
    return value


def embedding(value: str | None, model: str | None = None) -> None:
    if value is None:
        if model is not None:
            errors.invalid("embedding_model", model, "must not be given without an embedding")
        return
    checks.label("embedding_model", model)
    # pgvector squares in single precision: what under- or overflows there is like everything, or
    # like nothing. Zeros have no direction at all.
    largest = max(abs(float(number)) for number in value.strip("[]").split(","))
    if not LEAST_NUMBER <= largest <= 1 / LEAST_NUMBER:
        errors.invalid(
            "embedding",
            value,
            f"must not be all zeros, nor all below {LEAST_NUMBER} or any above its inverse",
        )


def confidence(value: float | None) -> None:
    # Written so that nan is refused too.
    if value is not None and not 0 <= value <= 1:
        errors.invalid("confidence", value, "must be between 0 and 1")


def metadata(value: str | None) -> str:
    """An object of the caller's; most calls leave it empty, and that needs no parser."""
    if value != "{}":
        checks.json_object("metadata", value)
    return value or "{}"


def closed(scope: dict[str, Any]) -> NoReturn:
    errors.fail(
        errors.WRONG_STATE,
        "the scope is closed",
        detail=f"Scope {scope['scope_no']} of trajectory {scope['trajectory_id']} "
        f"was closed at {scope['closed_at']}.",
        hint="caliber_scope_open opens the next one.",
    )


def not_active(trajectory: dict[str, Any], action: str) -> NoReturn:
    errors.fail(
        errors.WRONG_STATE,
        f"a trajectory that is {trajectory['status']} {action}",
        detail=f"The trajectory is {errors.shown(trajectory['name'])}, {trajectory['trajectory_id']}.",
        hint="caliber_trajectory_resume makes it active again."
        if trajectory["status"] == "suspended"
        else "caliber_trajectory_start starts another, which can have this one as its parent.",
    )
