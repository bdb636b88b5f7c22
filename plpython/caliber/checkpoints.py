"""Checkpoints: saving and pruning. The contract is in sql/schema/checkpoints.sql."""

from __future__ import annotations

from caliber import acting, checks, errors
from caliber.plans import plan

MAX_REFERENCE = 1000
MAX_KEEP = 100_000

_SAVE = plan(
    """
    insert into @extschema@.caliber_checkpoint as c (
        agent_id, checkpoint_type, reference_id, agent_state, trajectory_id, incarnation
    )
    select a.agent_id, $2, $3, $4, coalesce($5, a.current_trajectory_id), b.incarnation
    from @extschema@.caliber_agent as a
    inner join @extschema@.caliber_agent_beat as b on a.agent_id = b.agent_id
    where a.agent_id = $1
        and a.terminated_at is null
        and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
    returning c.checkpoint_id
    """,
    "uuid",
    "text",
    "text",
    "jsonb",
    "uuid",
)

_PRUNE = plan(
    """
    with old as (
        select c.checkpoint_id
        from (
            select
                n.checkpoint_id,
                pg_catalog.row_number() over (
                    partition by n.checkpoint_type order by n.checkpoint_id desc
                ) as place
            from @extschema@.caliber_checkpoint as n
            where n.agent_id = $1
        ) as c
        where c.place > $2
        order by c.checkpoint_id
        limit 10000
    ),
    gone as (
        delete from @extschema@.caliber_checkpoint as c
        using old
        where c.checkpoint_id = old.checkpoint_id
        returning c.checkpoint_id
    )
    select pg_catalog.count(*) as deleted from gone
    """,
    "uuid",
    "int4",
)


def save(
    agent_id: str | None,
    checkpoint_type: str | None,
    reference_id: str | None,
    agent_state: str | None,
    trajectory_id: str | None,
    incarnation: int | None,
) -> int:
    checks.slug("checkpoint_type", checkpoint_type)
    if not reference_id or len(reference_id) > MAX_REFERENCE:
        errors.invalid("reference_id", reference_id, f"must be 1 to {MAX_REFERENCE} characters")
    if agent_state is not None:
        checks.json_object("agent_state", agent_state)
    if incarnation is not None:
        acting.agent(agent_id, incarnation)
    row = _SAVE.one(agent_id, checkpoint_type, reference_id, agent_state, trajectory_id)
    if row is None:
        acting.agent(agent_id, incarnation)
        errors.fail("40001", "the agent changed while it saved a checkpoint", hint="Save again.")
    return int(row["checkpoint_id"])


def prune(agent_id: str | None, keep: int | None, incarnation: int | None) -> int:
    checks.required("keep", keep)
    checks.between("keep", keep, 1, MAX_KEEP)
    acting.agent(agent_id, incarnation)
    row = _PRUNE.one(agent_id, keep)
    return int(row["deleted"]) if row else 0
