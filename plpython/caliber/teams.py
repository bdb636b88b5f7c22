"""Teams: the owners of agents."""

from __future__ import annotations

from caliber import callers, checks, errors
from caliber.plans import plan

_INSERT = plan(
    """
    with made as (
        insert into @extschema@.caliber_team as t (name, display_name)
        values ($1, $2)
        on conflict (name) do nothing
        returning t.team_id, t.name
    )
    select
        m.team_id,
        @extschema@._caliber_log(
            'team_created', 'agent', 'info', 'team ' || m.name || ' created', team_id => m.team_id
        )
    from made as m
    """,
    "text",
    "text",
)

_FIND = plan("select t.team_id from @extschema@.caliber_team as t where t.name = $1", "text")


def create(name: str | None, display_name: str | None) -> str:
    callers.require_admin("make teams")
    return get_or_make(checks.slug("name", name), checks.label("display_name", display_name))


def get_or_make(name: str, display_name: str | None = None) -> str:
    # The loser of a race inserts nothing, and its next statement sees the winner's row.
    found = _FIND.one(name) or _INSERT.one(name, display_name) or _FIND.one(name)
    if found is None:
        # Only under repeatable read, where the winner's row stays out of sight.
        errors.fail(
            "40001", "could not see the team that another session made", hint="Retry the transaction."
        )
    return str(found["team_id"])


def find(name: str) -> str | None:
    found = _FIND.one(name)
    return str(found["team_id"]) if found else None
