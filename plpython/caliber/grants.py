"""Grants: rights of one agent on another. The contract is in sql/schema/grants.sql."""

from __future__ import annotations

from typing import Any

from caliber import callers, checks, errors
from caliber.plans import plan

ADMINISTER = "administer_grants"

# Nobody else decides about this target until the transaction ends. An agent that has nothing
# to do with it finds nothing, and so cannot hold it up either.
_TARGET = plan(
    """
    select a.agent_id, a.name, a.status, a.team_id
    from @extschema@.caliber_agent as a
    where a.agent_id = $1
        and (
            $2 is null
            or exists (
                select from @extschema@.caliber_grant as g
                where g.target_agent_id = $1 and $2 in (g.grantee_agent_id, g.grantor_agent_id)
            )
        )
    for no key update
    """,
    "uuid",
    "uuid",
)

# A statement of its own, behind the one that may have waited, to see what is there now.
_GRANTS = plan(
    """
    select
        g.grantee_agent_id, g.capability, g.grantor_agent_id, g.is_root
    from @extschema@.caliber_grant as g
    where g.target_agent_id = $1
    """,
    "uuid",
)

# An agent that gives learns nothing about one of another team, not even what it is called.
_AGENT = plan(
    """
    select case when a.team_id <> $2 then a.agent_id::text else a.name end as name, a.status
    from @extschema@.caliber_agent as a
    where a.agent_id = $1
    for key share
    """,
    "uuid",
    "uuid",
)

_GIVE = plan(
    """
    with given as (
        insert into @extschema@.caliber_grant as g (
            target_agent_id, grantee_agent_id, capability, grantor_agent_id, is_root
        )
        values ($1, $2, $3, $4, $4 is null)
        on conflict (grantee_agent_id, target_agent_id, capability, grantor_agent_id) do nothing
        returning g.target_agent_id
    )
    select @extschema@._caliber_log(
        'access_granted', 'coordination', 'info', $5, $4, $6,
        reference_type => 'agent',
        reference_id => $1::text,
        details => pg_catalog.jsonb_build_object('grantee', $2, 'target', $1, 'capability', $3)
    )
    from given
    """,
    "uuid",
    "uuid",
    "@extschema@.caliber_capability",
    "uuid",
    "text",
    "uuid",
)

_REVOKE = plan(
    """
    with revoked as (
        delete from @extschema@.caliber_grant as g
        using rows from (pg_catalog.unnest($2), pg_catalog.unnest($3), pg_catalog.unnest($4))
            as gone (grantee_agent_id, capability, grantor_agent_id)
        where g.target_agent_id = $1
            and g.grantee_agent_id = gone.grantee_agent_id
            and g.capability = gone.capability
            and g.grantor_agent_id is not distinct from gone.grantor_agent_id
        returning g.grantee_agent_id, g.capability
    )
    select @extschema@._caliber_log(
        'access_revoked', 'coordination', 'info', $5, $6, $7,
        reference_type => 'agent',
        reference_id => $1::text,
        details => pg_catalog.jsonb_build_object('target', $1, 'revoked', (
            select pg_catalog.jsonb_agg(
                pg_catalog.jsonb_build_object('grantee', r.grantee_agent_id, 'capability', r.capability)
            )
            from revoked as r
        ))
    )
    """,
    "uuid",
    "uuid[]",
    "@extschema@.caliber_capability[]",
    "uuid[]",
    "text",
    "uuid",
    "uuid",
)


def give(
    target_agent_id: str | None,
    grantee_agent_id: str | None,
    capability: str | None,
    grantor_agent_id: str | None,
) -> bool:
    grantor = _grantor(grantor_agent_id)
    _required(target_agent_id, grantee_agent_id, capability)
    if target_agent_id == grantee_agent_id:
        errors.invalid("grantee_agent_id", grantee_agent_id, "must be another agent than the target")
    found = _TARGET.one(target_agent_id, grantor)
    if grantor is not None:
        _refuse_widening(str(target_agent_id), grantor, str(capability))
    target = _not_ended(found, target_agent_id)
    own_team = None if grantor is None else target["team_id"]
    grantee = _not_ended(_AGENT.one(grantee_agent_id, own_team), grantee_agent_id)
    summary = f"{grantee['name']} got {capability} on {target['name']}"
    return bool(
        _GIVE.rows(target_agent_id, grantee_agent_id, capability, grantor, summary, target["team_id"])
    )


def revoke(
    target_agent_id: str | None,
    grantee_agent_id: str | None,
    capability: str | None,
    grantor_agent_id: str | None,
) -> int:
    grantor = _grantor(grantor_agent_id)
    _required(target_agent_id, grantee_agent_id, capability)
    target = _TARGET.one(target_agent_id, grantor)
    if target is None:
        return 0
    grants = [dict(grant) for grant in _GRANTS.rows(target_agent_id)]
    kept = [
        grant
        for grant in grants
        if (grant["grantee_agent_id"], grant["capability"]) != (grantee_agent_id, capability)
        or grantor not in (None, grant["grantor_agent_id"])
    ]
    left = standing(kept)
    gone = [grant for grant in grants if grant not in left]
    if len(kept) == len(grants):
        return 0
    _REVOKE.rows(
        target_agent_id,
        [grant["grantee_agent_id"] for grant in gone],
        [grant["capability"] for grant in gone],
        [grant["grantor_agent_id"] for grant in gone],
        f"{len(gone)} grants on {target['name']} revoked",
        grantor,
        target["team_id"],
    )
    return len(gone)


def standing(grants: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those grants on one target that are roots or stand, over others, on a root."""
    stand = [grant for grant in grants if grant["is_root"]]
    waiting = [grant for grant in grants if not grant["is_root"]]
    while True:
        held = _held(stand)
        more = [grant for grant in waiting if _may_pass_on(held, grant)]
        if not more:
            return stand
        stand += more
        waiting = [grant for grant in waiting if grant not in more]


def _held(grants: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(grant["grantee_agent_id"], grant["capability"]) for grant in grants}


def _may_pass_on(held: set[tuple[str, str]], grant: dict[str, Any]) -> bool:
    grantor = grant["grantor_agent_id"]
    return (grantor, ADMINISTER) in held and (grantor, grant["capability"]) in held


def _refuse_widening(target_agent_id: str, grantor: str, capability: str) -> None:
    held = _held(list(_GRANTS.rows(target_agent_id)))
    if not _may_pass_on(held, {"grantor_agent_id": grantor, "capability": capability}):
        errors.fail(
            errors.NOT_PERMITTED,
            f"you may not give {capability} on this agent",
            detail=f"Agent {grantor} does not hold both {ADMINISTER} and {capability} on {target_agent_id}.",
            hint="Whoever spawned the agent, or an admin, can give it.",
        )


def _not_ended(agent: dict[str, Any] | None, agent_id: str | None) -> dict[str, Any]:
    if agent is None:
        errors.not_found("agent", agent_id)
    if agent["status"] == "terminated":
        errors.fail(
            errors.WRONG_STATE,
            "the agent is terminated",
            detail=f"The agent is {agent['name']}, {agent_id}.",
            hint="Grants are for agents that can still act.",
        )
    return agent


def _grantor(grantor_agent_id: str | None) -> str | None:
    """The agent that acts: the caller's own, or whom an admin names; none for an admin itself."""
    caller = callers.who()
    own: str | None = caller["agent_id"]
    if caller["is_admin"]:
        return grantor_agent_id
    if own is None or grantor_agent_id not in (None, own):
        callers.not_yours(str(grantor_agent_id or "none"), caller["actor"])
    return own


def _required(target_agent_id: str | None, grantee_agent_id: str | None, capability: str | None) -> None:
    checks.required("target_agent_id", target_agent_id)
    checks.required("grantee_agent_id", grantee_agent_id)
    checks.required("capability", capability)
