"""Who is calling and for which agent: locking the agent, and saying why a call is refused."""

from __future__ import annotations

from typing import Any, NoReturn

import plpy

from caliber import checks, errors
from caliber.plans import plan

_CALLER = plan(
    """
    select
        @extschema@._caliber_actor() as actor,
        @extschema@._caliber_is_admin() as is_admin,
        @extschema@._caliber_my_agent() as agent_id
    """
)

# Both rows, so that after waiting for another session both are its newest.
_LOCKED = """
    select
        a.agent_id, a.team_id, a.name, a.status, a.status_reason, a.current_trajectory_id, a.current_scope_id,
        b.incarnation
    from @extschema@.caliber_agent as a
    inner join @extschema@.caliber_agent_beat as b on a.agent_id = b.agent_id
    where a.agent_id = $1
"""
LOCK = plan(_LOCKED + "for no key update of a, b", "uuid")

# Only what the caller may act for is locked: nobody waits for, or holds up, another's agent.
_LOCK_OWN = plan(
    _LOCKED
    + """
        and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
    for no key update of a, b
    """,
    "uuid",
)


def locked(agent_id: str | None, incarnation: int | None) -> dict[str, Any]:
    """The agent, locked, that the caller may act for and that has not ended."""
    agent = found(agent_id)
    refuse_ended(agent, incarnation)
    return agent


def found(agent_id: str | None) -> dict[str, Any]:
    """The agent, locked, that the caller may act for, whatever became of it."""
    checks.required("agent_id", agent_id)
    agent = _LOCK_OWN.one(agent_id)
    if agent is None:
        refuse_agent(str(agent_id))
    return agent


def who() -> dict[str, Any]:
    """The caller: its role, whether it is an admin, and the agent it is, if any."""
    return _CALLER.one() or {}


def may_speak(agent_id: str) -> bool:
    """Whether the caller may do something in this agent's name: it is the agent, or orchestrates."""
    caller = who()
    return bool(caller["is_admin"] or caller["agent_id"] == agent_id)


def refuse_agent(agent_id: str) -> NoReturn:
    """No such agent, to an admin. Others are not told whether an id exists."""
    caller = who()
    if caller["is_admin"]:
        errors.not_found("agent", agent_id)
    not_yours(agent_id, caller["actor"])


def not_yours(agent_id: str, actor: str) -> NoReturn:
    # An event would be undone with the transaction; the server's log keeps this.
    plpy.log(f"caliber: role {actor} was refused to act for agent {agent_id}")
    errors.fail(
        errors.NOT_PERMITTED,
        "you may not act for this agent",
        detail=f"You are {actor}; the agent is {agent_id}.",
        hint="An agent passes its own id; a member of caliber_admin may act for any.",
    )


def require_admin(action: str) -> None:
    caller = who()
    if not caller["is_admin"]:
        errors.admins_only(action, caller["actor"])


def refuse_ended(agent: dict[str, Any], incarnation: int | None) -> None:
    """An agent that is terminated does nothing; a process that was replaced does nothing."""
    if agent["status"] == "terminated":
        errors.fail(
            errors.WRONG_STATE,
            "the agent is terminated",
            detail=f"The agent is {agent['name']}, {agent['agent_id']}.",
            hint="caliber_agent_register makes a new one; the name is free.",
        )
    if incarnation is not None and incarnation != agent["incarnation"]:
        errors.fail(
            errors.STALE,
            "another process has taken this agent over",
            detail=f"You are incarnation {incarnation}; the agent is at {agent['incarnation']}.",
            hint="Stop, or take it back with caliber_agent_resume.",
        )
