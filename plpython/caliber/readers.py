"""Who reads memory through a verb that sees all and must show only what row security would.

Search and context run as the owner, because under row security a full text or vector operator
may not be used before the policy has passed a row, and then no index serves. So they say the
policy's condition themselves; it is written once, here.
"""

from __future__ import annotations

from typing import Any

from caliber import callers, memory_rules
from caliber.plans import plan

# The reader that given.agent_id is. Who is none reads everything, if it is an observer or an admin.
_READER = """
    select
        a.agent_id, a.name, a.status, a.team_id, a.memory_access,
        given.agent_id is null and @extschema@._caliber_sees_all() as sees_all,
        coalesce(a.login_role = @extschema@._caliber_actor(), false)
        or @extschema@._caliber_is_admin() as may_act,
        array(
            select a.agent_id
            where a.agent_id is not null
            union all
            select g.target_agent_id
            from @extschema@.caliber_grant as g
            where g.grantee_agent_id = a.agent_id and g.capability = 'read_transcript'
        ) as readable{more}
    from ({given}) as given
    left join @extschema@.caliber_agent as a on given.agent_id = a.agent_id
"""

# The agent given, else the one that is calling; neither for observers and admins.
_ANYWHERE = plan(
    _READER.format(
        more="",
        given="""
            select coalesce(
                $1, case when not @extschema@._caliber_sees_all() then @extschema@._caliber_my_agent() end
            ) as agent_id
        """,
    ),
    "uuid",
)

# As who writes there is found: an admin that names no agent reads as the one that has the trajectory.
_OF_TRAJECTORY = plan(
    _READER.format(
        more=", given.trajectory_id, given.owner_id, given.trajectory_team_id",
        given="""
            select
                t.trajectory_id, t.agent_id as owner_id, t.team_id as trajectory_team_id,
                coalesce(
                    $1, @extschema@._caliber_my_agent(),
                    case when @extschema@._caliber_is_admin() then t.agent_id end
                ) as agent_id
            from @extschema@.caliber_trajectory as t
            where t.trajectory_id = $2
        """,
    ),
    "uuid",
    "uuid",
)


class Reader:
    """What a reader may see: everything, or a team's rows and those of some agents."""

    __slots__ = ("_access", "agent_id", "readable", "sees_all", "team_id")

    def __init__(self, row: dict[str, Any]) -> None:
        self.sees_all: bool = row["sees_all"]
        self.agent_id: str | None = row["agent_id"]
        self.team_id: str | None = row["team_id"]
        self.readable: list[str] = row["readable"]
        self._access: str = row["memory_access"]

    def all_of(self, memory_type: str) -> bool:
        return self.sees_all or "global" in self._scopes(memory_type)

    def team_of(self, memory_type: str) -> str | None:
        """The team whose rows of that type it reads, beside its own; as _caliber_reads_team."""
        return self.team_id if self._scopes(memory_type) & {"team", "global"} else None

    def _scopes(self, memory_type: str) -> set[str]:
        """As _caliber_reach says it, but only when asked, which who owns what it reads never is."""
        import json

        permissions: list[dict[str, Any]] = json.loads(self._access)["read"] if self._access else []
        return {
            p["scope"] for p in permissions if p["memory_type"] in ("*", memory_type) and not p.get("filter")
        }


def reader(agent_id: str | None) -> Reader:
    """Who reads, wherever it is."""
    row = _ANYWHERE.one(agent_id) or {}
    return Reader(row) if row["sees_all"] else _agent(row, agent_id)


def reader_of(trajectory_id: str, agent_id: str | None) -> tuple[Reader, str, str]:
    """Who reads a trajectory that it can see, and the agent and the team that have it."""
    row = _OF_TRAJECTORY.one(agent_id, trajectory_id)
    if row is None:
        # Who may not act for the agent is told that, and not whether the trajectory exists.
        reader(agent_id)
        memory_rules.missing("trajectory", trajectory_id)
    found = _agent(row, agent_id)
    owner, team = str(row["owner_id"]), str(row["trajectory_team_id"])
    if not (owner in found.readable or team == found.team_id or found.all_of("trajectory")):
        memory_rules.missing("trajectory", trajectory_id)
    return found, owner, team


def _agent(row: dict[str, Any], agent_id: str | None) -> Reader:
    if row["agent_id"] is None or not row["may_act"]:
        # By one way, so that nothing tells an agent that exists from one that does not.
        callers.refuse_agent(str(agent_id))
    callers.refuse_ended(row, None)
    return Reader(row)


def everything() -> Reader:
    """Who sees all, for what is decided and not shown."""
    return Reader(
        {"sees_all": True, "agent_id": None, "team_id": None, "readable": [], "memory_access": None}
    )


def condition(alias: str, team: str | None, readable: str, by_index: bool) -> str:
    """The policy of artifacts and notes, with parameters for the team, if any, and the agents.

    By index it is written so that each part of it can be looked up, for when it leaves few rows;
    else so that a row is judged fast, whatever the agents have.
    """
    own = f"from @extschema@.caliber_trajectory as own where own.agent_id = any({readable})"
    parts = [
        f"{alias}.agent_id = any({readable})",
        f"{alias}.trajectory_id = any(array(select own.trajectory_id {own}))"
        if by_index
        else f"exists (select {own} and own.trajectory_id = {alias}.trajectory_id)",
    ]
    if team is not None:
        parts.append(f"{alias}.team_id = {team}")
    return f"({' or '.join(parts)})"
