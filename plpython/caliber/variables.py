"""Context variables: writing one. The contract is in sql/schema/variables.sql."""

from __future__ import annotations

from typing import Any

from caliber import checks, errors, memory_rules
from caliber.plans import plan

SEEN = ("task_status", "decisions_made", "files_in_progress")
MAX_VARIABLES = 200

# Share-locked: who writes has the trajectory until the transaction ends.
_TRAJECTORY = plan(
    f"""
    select
        {memory_rules.writer()},
        (
            select pg_catalog.count(*)
            from @extschema@.caliber_variable as v
            where v.root_trajectory_id = t.root_trajectory_id
        ) as variables
    from @extschema@.caliber_trajectory as t
    left join @extschema@.caliber_agent as a on {memory_rules.WRITER_IS}
    where t.trajectory_id = $1
    for share of t
    """,
    *memory_rules.WRITER_TYPES,
)

_HAS = plan(
    "select v.version from @extschema@.caliber_variable as v where v.trajectory_id = $1 and v.name = $2",
    "uuid",
    "text",
)

_SET = plan(
    """
    insert into @extschema@.caliber_variable as v (
        trajectory_id, name, root_trajectory_id, value, agent_id
    )
    select $1, $2, $3, $4, $5
    where coalesce($6, 0) = 0 or exists (
        select from @extschema@.caliber_variable as x where x.trajectory_id = $1 and x.name = $2
    )
    on conflict (trajectory_id, name) do update
    set
        value = excluded.value,
        version = v.version + 1,
        agent_id = excluded.agent_id,
        written_at = pg_catalog.clock_timestamp()
    where $6 is null or v.version = $6
    returning v.version
    """,
    "uuid",
    "text",
    "uuid",
    "jsonb",
    "uuid",
    "int8",
)

# What a receiver returns goes to the sender's trajectory; names in order, for whoever does so too.
_SET_ALL = plan(
    """
    insert into @extschema@.caliber_variable as v (
        trajectory_id, name, root_trajectory_id, value, agent_id
    )
    select t.trajectory_id, e.key, t.root_trajectory_id, e.value, $3
    from @extschema@.caliber_trajectory as t
    cross join pg_catalog.jsonb_each($2) as e
    where t.trajectory_id = $1
    order by e.key
    on conflict (trajectory_id, name) do update
    set
        value = excluded.value,
        version = v.version + 1,
        agent_id = excluded.agent_id,
        written_at = pg_catalog.clock_timestamp()
    """,
    "uuid",
    "jsonb",
    "uuid",
)


def set_variable(
    trajectory_id: str | None,
    name: str | None,
    value: str | None,
    expected_version: int | None,
    agent_id: str | None,
    incarnation: int | None,
) -> int | None:
    memory_rules.acts_for(agent_id)
    checks.required("trajectory_id", trajectory_id)
    if value is None:
        errors.invalid("value", None, "must not be null; write the json null instead")
    checks.json_text("value", value)
    checks.between("expected_version", expected_version, 0, 2**62)
    memory_rules.fence(agent_id, incarnation)
    row = _TRAJECTORY.one(trajectory_id, agent_id, "trajectory", "{}")
    writer = memory_rules.allowed(row, "trajectory", str(trajectory_id), agent_id, "trajectory")
    _in_scope(writer)
    name = _name(name)
    if writer["status"] in ("completed", "failed"):
        memory_rules.not_active(writer, "takes no variables")
    if writer["variables"] >= MAX_VARIABLES and _HAS.one(trajectory_id, name) is None:
        errors.fail(
            errors.LIMIT_EXCEEDED,
            "the workflow has too many variables",
            detail=f"There may be {MAX_VARIABLES}.",
            hint="Keep larger things as artifacts, or in the shared state.",
        )
    stored = _SET.one(
        trajectory_id, name, writer["root_trajectory_id"], value, writer["agent_id"], expected_version
    )
    return int(stored["version"]) if stored else None


def _in_scope(writer: dict[str, Any]) -> None:
    from caliber import callers

    if writer["agent_id"] != writer["owner_id"] and not callers.who()["is_admin"]:
        errors.fail(
            errors.NOT_PERMITTED,
            "only the agent that has the trajectory writes its variables",
            detail=f"Trajectory {writer['trajectory_id']} is not {writer['agent_name']}'s.",
            hint="Write to a trajectory of your own; the orchestrator resolves what contradicts.",
        )


def _name(name: str | None) -> str:
    checked = checks.slug("name", name)
    if checked in SEEN:
        errors.invalid("name", name, "must not be one of those that are seen and not written")
    return checked


def mapping(argument: str, text: str | None) -> str:
    """Variables by name, as a handoff or its return carries them; they go on as they were written."""
    text = text if text is not None else "{}"
    given = checks.json_object(argument, text)
    if len(given) > MAX_VARIABLES:
        errors.invalid(argument, f"{len(given)} names", f"must hold at most {MAX_VARIABLES} names")
    for name in given:
        _name(name)
    return text


def set_all(trajectory_id: str, variables: str, agent_id: str) -> None:
    if variables not in ("{}", None):
        _SET_ALL.rows(trajectory_id, variables, agent_id)
