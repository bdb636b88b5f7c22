"""Who reads memory through a verb that sees all and must show only what row security would.

Search and context run as the owner, because under row security a full text or vector operator
may not be used before the policy has passed a row, and then no index serves. So they say the
policy's condition themselves; it is written once, here.
"""

from __future__ import annotations

from typing import Any

from caliber import callers
from caliber.plans import plan

# The agent given, else the one that is calling; neither for observers and admins, who read all.
_READER = plan(
    """
    select
        a.agent_id, a.name, a.status, a.team_id,
        given.agent_id is null and @extschema@._caliber_sees_all() as sees_all,
        @extschema@._caliber_actor() as actor,
        coalesce(a.login_role = @extschema@._caliber_actor(), false)
        or @extschema@._caliber_is_admin() as may_act,
        @extschema@._caliber_reach(a.memory_access, 'read', 'trajectory') as trajectory,
        @extschema@._caliber_reach(a.memory_access, 'read', 'turn') as turn,
        @extschema@._caliber_reach(a.memory_access, 'read', 'artifact') as artifact,
        @extschema@._caliber_reach(a.memory_access, 'read', 'note') as note,
        array(
            select a.agent_id
            where a.agent_id is not null
            union all
            select g.target_agent_id
            from @extschema@.caliber_grant as g
            where g.grantee_agent_id = a.agent_id and g.capability = 'read_transcript'
        ) as readable
    from (
        select coalesce(
            $1, case when not @extschema@._caliber_sees_all() then @extschema@._caliber_my_agent() end
        ) as agent_id
    ) as given
    left join @extschema@.caliber_agent as a on given.agent_id = a.agent_id
    """,
    "uuid",
)


class Reader:
    """What a reader may see: everything, or a team's rows and those of some agents."""

    __slots__ = ("agent_id", "reach", "readable", "sees_all", "team_id")

    def __init__(self, row: dict[str, Any]) -> None:
        self.sees_all: bool = row["sees_all"]
        self.agent_id: str | None = row["agent_id"]
        self.team_id: str | None = row["team_id"]
        self.readable: list[str] = row["readable"]
        self.reach: dict[str, str | None] = {t: row[t] for t in ("trajectory", "turn", "artifact", "note")}

    def all_of(self, memory_type: str) -> bool:
        return self.sees_all or self.reach[memory_type] == "global"

    def team_of(self, memory_type: str) -> str | None:
        """The team whose rows of that type it reads, beside its own; as _caliber_reads_team."""
        return self.team_id if self.reach[memory_type] in ("team", "global") else None


def reader(agent_id: str | None) -> Reader:
    row: dict[str, Any] = _READER.one(agent_id) or {}
    if not row["sees_all"]:
        if row["agent_id"] is None:
            callers.refuse_agent(str(agent_id))
        if not row["may_act"]:
            callers.not_yours(str(row["agent_id"]), row["actor"])
        callers.refuse_ended(row, None)
    return Reader(row)


def everything() -> Reader:
    """Who sees all, for what is decided and not shown."""
    reach = dict.fromkeys(("trajectory", "turn", "artifact", "note"))
    return Reader({"sees_all": True, "agent_id": None, "team_id": None, "readable": [], **reach})


def condition(alias: str, team: str, readable: str) -> str:
    """The policy of turns, artifacts and notes, with parameters for the team and the agents."""
    return f"""(
        {alias}.team_id = {team}
        or {alias}.agent_id = any({readable})
        or exists (
            select from @extschema@.caliber_trajectory as own
            where own.trajectory_id = {alias}.trajectory_id and own.agent_id = any({readable})
        )
    )"""
