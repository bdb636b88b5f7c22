"""Turns, and why a scope takes no more. The contract is in sql/schema/trajectories.sql."""

from __future__ import annotations

from typing import NoReturn

from caliber import checks, errors, memory_rules, token_counts
from caliber.plans import plan

# One statement counts and writes. Whoever waits here for another writer counts on from what
# that one left, and sees on the same row whether the scope has been closed or suspended. It would
# not see that on the trajectory, which it knows as it was before it waited.
_TURN = plan(
    f"""
    with counted as (
        update @extschema@.caliber_scope as s
        set turn_count = s.turn_count + 1, token_count = s.token_count + $5
        from @extschema@.caliber_trajectory as t, @extschema@.caliber_agent as a
        where s.scope_id = $1
            and s.closed_at is null
            and (s.token_budget is null or s.token_count + $5 <= s.token_budget)
            and t.trajectory_id = s.trajectory_id
            and s.suspended_at is null
            and t.status = 'active'
            and {memory_rules.WRITER_IS}
            and a.terminated_at is null
            and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
            and @extschema@._caliber_allows(
                a.memory_access, 'write', 'turn',
                {memory_rules.BELONGS},
                pg_catalog.jsonb_build_object('role', $3)
            )
        returning s.scope_id, s.turn_count, s.trajectory_id, s.team_id, a.agent_id
    )
    insert into @extschema@.caliber_turn as u (
        scope_id, turn_no, trajectory_id, agent_id, team_id, role, content, token_count, metadata
    )
    select c.scope_id, c.turn_count, c.trajectory_id, c.agent_id, c.team_id, $3, $4, $5, $6
    from counted as c
    returning u.turn_no
    """,
    "uuid",
    "uuid",
    "@extschema@.caliber_turn_role",
    "text",
    "int4",
    "jsonb",
)

# For a verb that wrote nothing and must say why.
_SCOPE = plan(
    f"""
    select {memory_rules.writer()}, s.scope_id, s.scope_no, s.closed_at, s.token_budget, s.token_count
    from @extschema@.caliber_scope as s
    inner join @extschema@.caliber_trajectory as t on s.trajectory_id = t.trajectory_id
    left join @extschema@.caliber_agent as a on {memory_rules.WRITER_IS}
    where s.scope_id = $1
    """,
    *memory_rules.WRITER_TYPES,
)


def turn_add(
    scope_id: str | None,
    role: str | None,
    content: str | None,
    token_count: int | None,
    agent_id: str | None,
    metadata: str | None,
    incarnation: int | None,
) -> int:
    checks.required("scope_id", scope_id)
    checks.required("role", role)
    content = memory_rules.content("content", content)
    metadata = memory_rules.metadata(metadata)
    count = token_counts.counted(content, token_count)
    memory_rules.fence(agent_id, incarnation)
    row = _TURN.one(scope_id, agent_id, role, content, count, metadata)
    if row is None:
        refuse(str(scope_id), agent_id, "turn", f'{{"role": "{role}"}}', count)
    return int(row["turn_no"])


def refuse(
    scope_id: str,
    agent_id: str | None,
    memory_type: str,
    attributes: str,
    count: int,
    trajectory_id: str | None = None,
) -> NoReturn:
    """Why nothing could be added to a scope."""
    row = _SCOPE.one(scope_id, agent_id, memory_type, attributes)
    scope = memory_rules.allowed(row, "scope", scope_id, agent_id, memory_type)
    if trajectory_id not in (None, scope["trajectory_id"]):
        errors.invalid("trajectory_id", trajectory_id, "must be the trajectory of the scope")
    if scope["closed_at"] is not None:
        memory_rules.closed(scope)
    if scope["status"] != "active":
        memory_rules.not_active(scope, f"takes no {memory_type}")
    budget = scope["token_budget"]
    if budget is not None and scope["token_count"] + count > budget:
        errors.fail(
            errors.BUDGET_EXHAUSTED,
            "the scope's token budget does not allow this turn",
            detail=f"The turn has {count} tokens; {scope['token_count']} of {budget} are used.",
            hint="Close the scope with a summary and open the next one.",
        )
    errors.fail("40001", "the scope changed meanwhile", hint="Try again.")
