"""The agent a verb acts for: found, the caller's to act for, not ended, not replaced."""

from __future__ import annotations

from typing import Any

from caliber import callers, checks, errors
from caliber.plans import Statement, plan


def _agent(lock: str) -> Statement:
    return plan(
        f"""
        select
            a.agent_id, a.team_id, a.name, a.status, b.incarnation
        from @extschema@.caliber_agent as a
        inner join @extschema@.caliber_agent_beat as b on a.agent_id = b.agent_id
        where a.agent_id = $1
            and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
        {lock}
        """,
        "uuid",
    )


_FIND = _agent("")

# Whoever takes the agent over changes this row: it waits until the caller's transaction has
# ended, or has come first and is seen here. Beats wait as well, so only where it is asked for.
_HOLD = _agent("for share of b")

_ADMIN = plan("select @extschema@._caliber_is_admin() as is_admin")

_MINE = plan(
    """
    select @extschema@._caliber_my_agent() as agent_id, @extschema@._caliber_actor() as actor
    """
)


def agent(agent_id: str | None, incarnation: int | None) -> dict[str, Any]:
    """With an incarnation, no other process becomes this agent before the transaction ends."""
    checks.required("agent_id", agent_id)
    found = (_FIND if incarnation is None else _HOLD).one(agent_id)
    if found is None:
        callers.refuse_agent(str(agent_id))
    callers.refuse_ended(found, incarnation)
    return found


def own_agent_or_admin(action: str) -> str | None:
    """For verbs that let agent_id be left out: the agent whose login calls, none for an admin."""
    row = _ADMIN.one() or {}
    if row["is_admin"]:
        return None
    row = _MINE.one() or {}
    if row["agent_id"] is None:
        errors.admins_only(action, row["actor"])
    return str(row["agent_id"])
