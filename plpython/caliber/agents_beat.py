"""Agents: the heartbeat, apart from the rest because it is called first and most."""

from __future__ import annotations

from caliber import callers, checks, errors
from caliber.plans import plan

MAX_COUNT = 10**15

_HEARTBEAT = plan(
    """
    update @extschema@.caliber_agent_beat as b
    set
        beat_at = pg_catalog.clock_timestamp(),
        activity = coalesce($2, b.activity),
        progress = coalesce($3, b.progress),
        turns = b.turns + coalesce($4, 0),
        tokens = b.tokens + coalesce($5, 0),
        tool_calls = b.tool_calls + coalesce($6, 0),
        files = b.files + coalesce($7, 0),
        errors = b.errors + coalesce($8, 0),
        last_tool = coalesce($9, b.last_tool),
        last_file = coalesce($10, b.last_file)
    from @extschema@.caliber_agent as a
    where b.agent_id = $1
        and a.agent_id = $1
        and not b.ended
        and ($11 is null or b.incarnation = $11)
        and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
    returning a.status
    """,
    "uuid",
    "text",
    "float4",
    "int8",
    "int8",
    "int8",
    "int8",
    "int8",
    "text",
    "text",
    "int8",
)


def heartbeat(
    agent_id: str | None,
    activity: str | None,
    progress: float | None,
    turns: int | None,
    tokens: int | None,
    tool_calls: int | None,
    files: int | None,
    error_count: int | None,
    last_tool: str | None,
    last_file: str | None,
    incarnation: int | None,
) -> str:
    if activity is not None:
        checks.label("activity", activity, 500)
    if last_tool is not None:
        checks.label("last_tool", last_tool)
    if last_file is not None:
        checks.label("last_file", last_file, 1000)
    if progress is not None:
        checks.between("progress", progress, 0, 1)
    if turns or tokens or tool_calls or files or error_count:
        checks.between("turns", turns, 0, MAX_COUNT)
        checks.between("tokens", tokens, 0, MAX_COUNT)
        checks.between("tool_calls", tool_calls, 0, MAX_COUNT)
        checks.between("files", files, 0, MAX_COUNT)
        checks.between("errors", error_count, 0, MAX_COUNT)
    row = _HEARTBEAT.one(
        agent_id, activity, progress, turns, tokens, tool_calls, files, error_count,
        last_tool, last_file, incarnation,
    )  # fmt: skip
    if row is None:
        # Says why. Should what stood in the way be gone by now, the beat is due again.
        callers.locked(agent_id, incarnation)
        errors.fail("40001", "the agent changed while it beat", hint="Beat again.")
    status: str = row["status"]
    return status
