"""Agents: registering and spawning them. The contract is in sql/schema/agents.sql."""

from __future__ import annotations

import json
from typing import Any

from caliber import agents_rules, callers, checks, errors, teams
from caliber.plans import plan

DEFAULT_TEAM = "default"

_INSERT = plan(
    """
    with made as (
        insert into @extschema@.caliber_agent as a (
            team_id, agent_type, name, display_name, status, capabilities, proficiency,
            memory_access, can_delegate_to, reports_to, parent_id, spawn_depth, model,
            input_schema, output_schema, autonomy_budget, max_risk, max_concurrent_tasks,
            heartbeat_interval_ms, agent_id
        )
        select
            $1, $2, coalesce($3, pg_catalog.left($2, 50) || '-' || pg_catalog.right(new.id::text, 12)),
            $4, $5, $6, $7, '{"read": [], "write": []}'::jsonb || $8, $9, $10, $11,
            $12, $13, $14, $15, $16, $17, $18, $19, new.id
        from (select @extschema@.caliber_uuid_v7() as id) as new
        on conflict (team_id, name) where terminated_at is null do nothing
        returning a.agent_id, a.team_id, a.name
    ),
    beating as (
        insert into @extschema@.caliber_agent_beat (agent_id, team_id)
        select m.agent_id, m.team_id from made as m
    ),
    granted as (
        insert into @extschema@.caliber_grant (
            target_agent_id, grantee_agent_id, capability, grantor_agent_id, is_root
        )
        select m.agent_id, $11, c.capability, $11, true
        from made as m
        cross join pg_catalog.unnest(
            pg_catalog.enum_range(null::@extschema@.caliber_capability)
        ) as c (capability)
        where $11 is not null
    ),
    counted as (
        -- Also so that a terminate that does not see the child yet conflicts with its spawn.
        update @extschema@.caliber_agent as a
        set spawned = a.spawned + 1
        from made as m
        where a.agent_id = $11
    )
    select
        m.agent_id,
        @extschema@._caliber_log(
            $20, 'agent', 'info', m.name || $21, m.agent_id, m.team_id,
            details => pg_catalog.jsonb_build_object('agent_type', $2, 'parent_id', $11)
        )
    from made as m
    """,
    "uuid",
    "text",
    "text",
    "text",
    "@extschema@.caliber_agent_status",
    "text[]",
    "jsonb",
    "jsonb",
    "text[]",
    "uuid",
    "uuid",
    "int4",
    "text",
    "jsonb",
    "jsonb",
    "numeric",
    "@extschema@.caliber_risk",
    "int4",
    "int4",
    "text",
    "text",
)

# Termination of the parent waits, or has been waited for. The beat is locked too so that its
# incarnation is as new as the agent's row.
_PARENT = plan(
    """
    select
        a.agent_id, a.team_id, a.name, a.status, a.memory_access, a.can_delegate_to,
        a.autonomy_budget, a.max_risk, a.max_concurrent_tasks, a.heartbeat_interval_ms,
        a.spawn_depth, a.model, b.incarnation,
        @extschema@._caliber_config_value('agent_spawn_depth')::integer as deepest
    from @extschema@.caliber_agent as a
    inner join @extschema@.caliber_agent_beat as b on a.agent_id = b.agent_id
    where a.agent_id = $1
        and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
    for no key update of a, b
    """,
    "uuid",
)

_AGENT = plan(
    "select a.status from @extschema@.caliber_agent as a where a.agent_id = $1 for key share",
    "uuid",
)


def register(
    agent_type: str | None,
    capabilities: list[str | None] | None,
    memory_access: str | None,
    can_delegate_to: list[str | None] | None,
    reports_to: str | None,
    team: str | None,
    name: str | None,
    display_name: str | None,
    proficiency: str | None,
    model: str | None,
    input_schema: str | None,
    output_schema: str | None,
    autonomy_budget: Any,
    max_risk: str | None,
    max_concurrent_tasks: int | None,
    heartbeat_interval_ms: int | None,
) -> str:
    callers.require_admin("register agents")
    agent = _checked(
        agent_type, capabilities, can_delegate_to, name, display_name, proficiency, model,
        input_schema, output_schema, autonomy_budget, max_concurrent_tasks, heartbeat_interval_ms,
    )  # fmt: skip
    agent["memory_access"] = memory_access or json.dumps(agents_rules.OWN_MEMORY)
    agents_rules.memory_access(agent["memory_access"])
    agent["max_risk"] = max_risk or "medium"
    if reports_to is not None:
        _refuse_superior(reports_to)
    agent["reports_to"] = reports_to
    agent["team_id"] = _team(team)
    return _insert(agent, "idle", "agent_registered", " registered")


def spawn(
    parent_id: str | None,
    agent_type: str | None,
    capabilities: list[str | None] | None,
    memory_access: str | None,
    can_delegate_to: list[str | None] | None,
    name: str | None,
    display_name: str | None,
    proficiency: str | None,
    model: str | None,
    input_schema: str | None,
    output_schema: str | None,
    autonomy_budget: Any,
    max_risk: str | None,
    max_concurrent_tasks: int | None,
    heartbeat_interval_ms: int | None,
    incarnation: int | None,
) -> str:
    parent = _parent(parent_id, incarnation)
    agent = _checked(
        agent_type, capabilities, can_delegate_to, name, display_name, proficiency, model,
        input_schema, output_schema, autonomy_budget, max_concurrent_tasks, heartbeat_interval_ms,
    )  # fmt: skip
    if can_delegate_to is None:
        agent["can_delegate_to"] = parent["can_delegate_to"]
    if autonomy_budget is None:
        agent["autonomy_budget"] = parent["autonomy_budget"]
    for limit in ("max_concurrent_tasks", "heartbeat_interval_ms"):
        agent[limit] = agent[limit] or parent[limit]
    agent["memory_access"] = memory_access or parent["memory_access"]
    agent["max_risk"] = max_risk or parent["max_risk"]
    agents_rules.refuse_widening(parent, agent)
    agent["model"] = agent["model"] or parent["model"]
    agent["team_id"] = parent["team_id"]
    agent["parent_id"] = agent["reports_to"] = parent["agent_id"]
    agent["spawn_depth"] = parent["spawn_depth"] + 1
    return _insert(agent, "initializing", "agent_spawned", f" spawned by {parent['name']}")


def _refuse_superior(reports_to: str) -> None:
    superior = _AGENT.one(reports_to)
    if superior is None:
        errors.not_found("agent", reports_to)
    if superior["status"] == "terminated":
        errors.fail(
            errors.WRONG_STATE,
            "the agent to report to is terminated",
            detail=f"reports_to is {reports_to}.",
            hint="Escalations would reach nobody; name an agent that has not ended.",
        )


def _parent(parent_id: str | None, incarnation: int | None) -> dict[str, Any]:
    checks.required("parent_id", parent_id)
    parent = _PARENT.one(parent_id)
    if parent is None:
        callers.refuse_agent(str(parent_id))
    callers.refuse_ended(parent, incarnation)
    if parent["spawn_depth"] >= parent["deepest"]:
        errors.fail(
            errors.LIMIT_EXCEEDED,
            "agents may not spawn this deep",
            detail=f"{parent['name']} is at depth {parent['spawn_depth']} of {parent['deepest']}.",
            hint="The setting agent_spawn_depth says how deep.",
        )
    return parent


def _checked(
    agent_type: str | None,
    capabilities: list[str | None] | None,
    can_delegate_to: list[str | None] | None,
    name: str | None,
    display_name: str | None,
    proficiency: str | None,
    model: str | None,
    input_schema: str | None,
    output_schema: str | None,
    autonomy_budget: Any,
    max_concurrent_tasks: int | None,
    heartbeat_interval_ms: int | None,
) -> dict[str, Any]:
    """What register and spawn have in common, each value checked."""
    abilities = checks.slugs("capabilities", capabilities)
    agents_rules.proficiency(proficiency, abilities)
    checks.between("autonomy_budget", autonomy_budget, 0, 10**12)
    checks.between("max_concurrent_tasks", max_concurrent_tasks, 1, 10_000)
    checks.between("heartbeat_interval_ms", heartbeat_interval_ms, 100, 86_400_000)
    for argument, schema in (("input_schema", input_schema), ("output_schema", output_schema)):
        if schema is not None:
            checks.json_object(argument, schema)
    return {
        "agent_type": checks.slug("agent_type", agent_type),
        "name": None if name is None else checks.slug("name", name),
        "display_name": checks.label("display_name", display_name),
        "capabilities": abilities,
        "proficiency": proficiency,
        "can_delegate_to": checks.slugs("can_delegate_to", can_delegate_to, agents_rules.ANY),
        "model": checks.label("model", model),
        "input_schema": input_schema,
        "output_schema": output_schema,
        "autonomy_budget": autonomy_budget,
        "max_concurrent_tasks": max_concurrent_tasks,
        "heartbeat_interval_ms": heartbeat_interval_ms,
    }


def _team(name: str | None) -> str:
    if name is None or name == DEFAULT_TEAM:
        return teams.get_or_make(DEFAULT_TEAM)
    team_id = teams.find(name)
    if team_id is None:
        errors.fail(
            errors.NOT_FOUND,
            "there is no such team",
            detail=f"team is {errors.shown(name)}.",
            hint="caliber_team_create makes one.",
        )
    return team_id


def _insert(agent: dict[str, Any], status: str, event_type: str, happened: str) -> str:
    row = _INSERT.one(
        agent["team_id"],
        agent["agent_type"],
        agent["name"],
        agent["display_name"],
        status,
        agent["capabilities"],
        agent["proficiency"],
        agent["memory_access"],
        agent["can_delegate_to"],
        agent.get("reports_to"),
        agent.get("parent_id"),
        agent.get("spawn_depth", 0),
        agent["model"],
        agent["input_schema"],
        agent["output_schema"],
        agent["autonomy_budget"],
        agent["max_risk"],
        agent["max_concurrent_tasks"],
        agent["heartbeat_interval_ms"],
        event_type,
        happened,
    )
    if row is None:
        errors.fail(
            errors.DUPLICATE,
            "an agent of this name is in the team",
            detail=f"name is {errors.shown(agent['name'])}.",
            hint="A process that restarts takes its agent back with caliber_agent_resume.",
        )
    return str(row["agent_id"])
