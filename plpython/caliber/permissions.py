"""Permissions: may an agent read or write a memory, and why. The contract is in
sql/functions/permissions.sql."""

from __future__ import annotations

from typing import Any

from caliber import callers, checks, errors
from caliber.plans import plan

TYPES = ("trajectory", "scope", "turn", "artifact", "note", "context", "region")
MAX_ROWS = 1000

_CHECK = plan(
    """
    select
        @extschema@._caliber_actor() as actor,
        @extschema@._caliber_sees_all()
        or coalesce(a.login_role = @extschema@._caliber_actor(), false) as may_ask,
        exists (
            select from @extschema@.caliber_memory as m
            where m.memory_type = $2
                and m.memory_id = $3
                and @extschema@._caliber_access_reason(a, m, $4) is not null
        ) as allowed
    from (select $1 as agent_id) as given
    left join @extschema@.caliber_agent as a on given.agent_id = a.agent_id
    """,
    "uuid",
    "text",
    "uuid",
    "@extschema@.caliber_access",
)

# Sorted before it is judged, so that judging ends when there are enough rows. What no scope
# and no grant of the agent takes in is left out cheaply.
_REACH = plan(
    """
    with asker as materialized (
        select
            a as agent, a.agent_id, a.team_id,
            pg_catalog.array_agg(p.permission ->> 'scope') as scopes,
            array(
                select g.target_agent_id from @extschema@.caliber_grant as g
                where g.grantee_agent_id = a.agent_id and g.capability = 'read_transcript'
            ) || a.agent_id as readable
        from @extschema@.caliber_agent as a
        left join lateral (
            select pg_catalog.jsonb_array_elements(
                (a.memory_access -> 'read') || (a.memory_access -> 'write')
            ) as permission
        ) as p on true
        where a.agent_id = $1
        group by a.agent_id
    )
    select
        judged.memory_type, judged.memory_id, judged.name,
        (select o.name from @extschema@.caliber_agent as o where o.agent_id = judged.agent_id) as belongs_to,
        judged.reads_because, judged.writes_because
    from (
        select m.memory_type, m.memory_id, w.agent
        from @extschema@.caliber_memory as m
        cross join asker as w
        where ($2 is null or m.memory_type = $2)
            and (
                m.memory_type = 'region'
                or 'global' = any(w.scopes)
                or ('team' = any(w.scopes) and m.team_id = w.team_id)
                or m.agent_id = any(w.readable)
                or m.trajectory_agent_id = any(w.readable)
            )
        order by m.created_at desc, m.memory_id desc
        offset 0
    ) as near
    cross join lateral (
        select
            m.memory_type, m.memory_id, m.name, m.agent_id,
            @extschema@._caliber_access_reason(near.agent, m, 'read') as reads_because,
            @extschema@._caliber_access_reason(near.agent, m, 'write') as writes_because
        from @extschema@.caliber_memory as m
        where m.memory_type = near.memory_type and m.memory_id = near.memory_id
        offset 0
    ) as judged
    where judged.reads_because is not null or judged.writes_because is not null
    limit $3
    """,
    "uuid",
    "text",
    "int4",
)

_ASKER = plan(
    """
    select
        a.agent_id,
        @extschema@._caliber_actor() as actor,
        @extschema@._caliber_sees_all() as sees_all,
        coalesce(a.login_role = @extschema@._caliber_actor(), false) as is_agent
    from (select $1 as agent_id) as given
    left join @extschema@.caliber_agent as a on given.agent_id = a.agent_id
    """,
    "uuid",
)


def check(agent_id: str | None, memory_type: str | None, memory_id: str | None, access: str | None) -> bool:
    checks.required("agent_id", agent_id)
    checks.required("memory_id", memory_id)
    checks.required("access", access)
    _require_type(memory_type)
    row = _CHECK.one(agent_id, memory_type, memory_id, access) or {}
    if not row["may_ask"]:
        callers.not_yours(str(agent_id), row["actor"])
    allowed: bool = row["allowed"]
    return allowed


def reach(agent_id: str | None, memory_type: str | None, max_rows: int | None) -> list[dict[str, Any]]:
    checks.required("agent_id", agent_id)
    checks.required("max_rows", max_rows)
    checks.between("max_rows", max_rows, 1, MAX_ROWS)
    if memory_type is not None:
        _require_type(memory_type)
    asker = _ASKER.one(agent_id) or {}
    if not (asker["sees_all"] or asker["is_agent"]):
        callers.not_yours(str(agent_id), asker["actor"])
    if asker["agent_id"] is None:
        errors.not_found("agent", agent_id)
    return list(_REACH.rows(agent_id, memory_type, max_rows))


def _require_type(memory_type: str | None) -> None:
    if memory_type not in TYPES:
        errors.invalid("memory_type", memory_type, f"must be one of {', '.join(TYPES)}")
