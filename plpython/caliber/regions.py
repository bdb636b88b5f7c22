"""Regions: making them and saying who gets in. The contract is in sql/schema/regions.sql."""

from __future__ import annotations

from typing import Any, NoReturn

from caliber import callers, checks, errors
from caliber.plans import plan

_INSERT = plan(
    """
    with made as (
        insert into @extschema@.caliber_region as r (
            owner_agent_id, team_id, name, region_type, conflict_resolution, version_tracking,
            require_lock, description, region_id
        )
        select
            a.agent_id, a.team_id,
            coalesce($3, $2 || '-' || pg_catalog.right(new.id::text, 12)),
            $2,
            coalesce(
                $7,
                case $2 when 'private' then 'last_write_wins' else 'reject' end
                ::@extschema@.caliber_conflict_resolution
            ),
            $8, $6, $9, new.id
        from @extschema@.caliber_agent as a
        cross join (select @extschema@.caliber_uuid_v7() as id) as new
        where a.agent_id = $1
            and a.terminated_at is null
            and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
        on conflict (owner_agent_id, name) do nothing
        returning r.region_id, r.owner_agent_id, r.team_id, r.name
    ),
    listed as (
        insert into @extschema@.caliber_region_member (region_id, agent_id, access, granted_by)
        select m.region_id, l.agent_id, pg_catalog.max(l.access), @extschema@._caliber_actor()
        from made as m
        cross join (
            select pg_catalog.unnest($4) as agent_id, 'read'::@extschema@.caliber_access as access
            union all
            select pg_catalog.unnest($5), 'write'
        ) as l
        where l.agent_id <> m.owner_agent_id
        group by m.region_id, l.agent_id
    )
    select
        m.region_id,
        @extschema@._caliber_log(
            'region_created', 'state', 'info', 'region ' || m.name || ' created',
            m.owner_agent_id, m.team_id, reference_type => 'region', reference_id => m.region_id::text,
            details => pg_catalog.jsonb_build_object('region_type', $2, 'readers', $4, 'writers', $5)
        )
    from made as m
    """,
    "uuid",
    "@extschema@.caliber_region_type",
    "text",
    "uuid[]",
    "uuid[]",
    "bool",
    "@extschema@.caliber_conflict_resolution",
    "bool",
    "text",
)

# Agents that cannot be listed. They are never deleted, so whoever is found stays found.
_UNLISTABLE = plan(
    """
    select given.agent_id
    from pg_catalog.unnest($1) as given (agent_id)
    left join @extschema@.caliber_agent as a on given.agent_id = a.agent_id
    where a.agent_id is null or a.terminated_at is not null
    limit 1
    """,
    "uuid[]",
)

# A process that has been replaced must not write after it waited for somebody's row: the
# share keeps the number as it is until this transaction ends.
_HOLD = plan(
    """
    select a.agent_id, a.name, a.status, b.incarnation
    from @extschema@.caliber_agent as a
    inner join @extschema@.caliber_agent_beat as b on a.agent_id = b.agent_id
    where a.agent_id = $1
        and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
    for share of b
    """,
    "uuid",
)

_SEE = plan(
    """
    select
        a.agent_id, a.name, a.status, b.incarnation,
        @extschema@._caliber_actor() as actor,
        @extschema@._caliber_sees_all() as sees_all,
        @extschema@._caliber_is_admin() as is_admin,
        coalesce(a.login_role = @extschema@._caliber_actor(), false) as is_agent,
        r.region_id, r.region_type, r.conflict_resolution, r.version_tracking, r.require_lock,
        r.name as region_name, r.team_id,
        @extschema@._caliber_region_reason(
            r.region_type, r.owner_agent_id = a.agent_id, r.team_id = a.team_id, m.access, $3
        ) as reason
    from (select $1 as agent_id, $2 as region_id) as given
    left join @extschema@.caliber_agent as a on given.agent_id = a.agent_id
    left join @extschema@.caliber_agent_beat as b on given.agent_id = b.agent_id
    left join @extschema@.caliber_region as r on given.region_id = r.region_id
    left join @extschema@.caliber_region_member as m
        on given.region_id = m.region_id and given.agent_id = m.agent_id
    """,
    "uuid",
    "uuid",
    "@extschema@.caliber_access",
)

# The region, if the caller may change its list.
_MANAGED = """
    managed as (
        select r.region_id, r.name, r.team_id, r.owner_agent_id
        from @extschema@.caliber_region as r
        inner join @extschema@.caliber_agent as o on r.owner_agent_id = o.agent_id
        where r.region_id = $1
            and (
                (o.login_role = @extschema@._caliber_actor() and o.terminated_at is null)
                or @extschema@._caliber_is_admin()
            )
    )
"""

_GRANT = plan(
    f"""
    with {_MANAGED},
    listed as (
        insert into @extschema@.caliber_region_member as m (region_id, agent_id, access, granted_by)
        select r.region_id, a.agent_id, $3, @extschema@._caliber_actor()
        from managed as r
        inner join @extschema@.caliber_agent as a on a.agent_id = $2
        where a.terminated_at is null and a.agent_id <> r.owner_agent_id
        on conflict (region_id, agent_id) do update
        set
            access = excluded.access,
            granted_by = excluded.granted_by,
            granted_at = excluded.granted_at
        where m.access < excluded.access
        returning m.agent_id
    )
    select
        @extschema@._caliber_log(
            'region_granted', 'state', 'info', $3 || ' on region ' || r.name || ' granted to '
            || case when a.team_id = r.team_id then a.name else a.agent_id::text end,
            r.owner_agent_id, r.team_id, reference_type => 'region', reference_id => r.region_id::text,
            details => pg_catalog.jsonb_build_object('agent_id', a.agent_id, 'access', $3)
        )
    from managed as r
    cross join listed as l
    inner join @extschema@.caliber_agent as a on l.agent_id = a.agent_id
    """,
    "uuid",
    "uuid",
    "@extschema@.caliber_access",
)

_REVOKED = """
    select
        @extschema@._caliber_log(
            'region_revoked', 'state', 'info',
            coalesce($3::text, 'access') || ' on region ' || r.name || ' revoked from '
            || case when a.team_id = r.team_id then a.name else a.agent_id::text end,
            r.owner_agent_id, r.team_id, reference_type => 'region', reference_id => r.region_id::text,
            details => pg_catalog.jsonb_build_object('agent_id', a.agent_id, 'access', $3)
        )
    from managed as r
    cross join gone as g
    inner join @extschema@.caliber_agent as a on g.agent_id = a.agent_id
"""

_UNLIST = plan(
    f"""
    with {_MANAGED},
    gone as (
        delete from @extschema@.caliber_region_member as m
        using managed as r
        where m.region_id = r.region_id and m.agent_id = $2
        returning m.agent_id
    )
    {_REVOKED}
    """,
    "uuid",
    "uuid",
    "@extschema@.caliber_access",
)

_READ_ONLY = plan(
    f"""
    with {_MANAGED},
    gone as (
        update @extschema@.caliber_region_member as m
        set access = 'read', granted_by = @extschema@._caliber_actor()
        from managed as r
        where m.region_id = r.region_id and m.agent_id = $2 and m.access = 'write'
        returning m.agent_id
    )
    {_REVOKED}
    """,
    "uuid",
    "uuid",
    "@extschema@.caliber_access",
)

_CAN_MANAGE = plan(f"with {_MANAGED} select from managed", "uuid")


def create(
    owner_agent_id: str | None,
    region_type: str | None,
    name: str | None,
    readers: list[str | None] | None,
    writers: list[str | None] | None,
    require_lock: bool | None,
    conflict_resolution: str | None,
    version_tracking: bool | None,
    description: str | None,
    incarnation: int | None,
) -> str:
    checks.required("owner_agent_id", owner_agent_id)
    checks.required("region_type", region_type)
    if name is not None:
        checks.slug("name", name)
    checks.label("description", description, 1000)
    if readers or writers:
        # Who may not make the region is not told which agents there are.
        refuse_caller(_SEE.one(owner_agent_id, None, "write") or {}, str(owner_agent_id), None)
    for argument, agents in (("readers", readers), ("writers", writers)):
        _refuse_unlistable(argument, agents or [])
    if incarnation is not None:
        hold(str(owner_agent_id), incarnation)
    row = _INSERT.one(
        owner_agent_id, region_type, name, readers or [], writers or [], bool(require_lock),
        conflict_resolution, version_tracking is not False, description,
    )  # fmt: skip
    if row is None:
        refuse_caller(_SEE.one(owner_agent_id, None, "write") or {}, str(owner_agent_id), incarnation)
        errors.fail(
            errors.DUPLICATE,
            "the agent has a region of this name",
            detail=f"name is {errors.shown(name)}.",
            hint="caliber_region_list(name => …) shows it.",
        )
    return str(row["region_id"])


def grant(region_id: str | None, agent_id: str | None, access: str | None) -> bool:
    checks.required("access", access)
    _require_ids(region_id, agent_id)
    if _GRANT.one(region_id, agent_id, access) is not None:
        return True
    _require_manager(str(region_id))
    _refuse_unlistable("agent_id", [agent_id])
    return False


def revoke(region_id: str | None, agent_id: str | None, access: str | None) -> bool:
    _require_ids(region_id, agent_id)
    statement = _READ_ONLY if access == "write" else _UNLIST
    if statement.one(region_id, agent_id, access) is not None:
        return True
    _require_manager(str(region_id))
    return False


def hold(agent_id: str, incarnation: int) -> None:
    """KA001 unless this is the agent's newest process, which it stays while we write."""
    agent = _HOLD.one(agent_id)
    if agent is None:
        callers.refuse_agent(agent_id)
    callers.refuse_ended(agent, incarnation)


def allowed(agent_id: str, region_id: str, access: str, incarnation: int | None = None) -> dict[str, Any]:
    """The region as the agent may use it; raises why not when it may not."""
    seen = _SEE.one(agent_id, region_id, access) or {}
    refuse_caller(seen, agent_id, incarnation, reads=access == "read")
    if seen["region_id"] is None and seen["sees_all"]:
        errors.not_found("region", region_id)
    if seen["reason"] is None:
        # The same for a region that does not exist: a stranger is not told.
        errors.fail(
            errors.NOT_PERMITTED,
            f"the agent may not {access} this region",
            detail=f"The agent is {seen['name']}, {agent_id}; the region is {region_id}.",
            hint="Its owner lists readers and writers with caliber_region_grant.",
        )
    return seen


def refuse(agent_id: str | None, region_id: str | None, access: str) -> NoReturn:
    _require_ids(region_id, agent_id)
    allowed(str(agent_id), str(region_id), access)
    errors.fail("40001", "access to the region changed meanwhile", hint="Try again.")


def refuse_caller(seen: dict[str, Any], agent_id: str, incarnation: int | None, reads: bool = False) -> None:
    """The caller must be allowed to act for the agent, and the agent must not have ended."""
    may_act = seen["is_agent"] or seen["is_admin"] or (reads and seen["sees_all"])
    if seen["agent_id"] is None and may_act:
        errors.not_found("agent", agent_id)
    if not may_act:
        callers.not_yours(agent_id, seen["actor"])
    callers.refuse_ended(seen, incarnation)


def _require_ids(region_id: str | None, agent_id: str | None) -> None:
    checks.required("region_id", region_id)
    checks.required("agent_id", agent_id)


def _refuse_unlistable(argument: str, agents: list[str | None]) -> None:
    if len(agents) > checks.MAX_LIST:
        errors.invalid(argument, f"{len(agents)} agents", f"must hold at most {checks.MAX_LIST} agents")
    if None in agents:
        errors.invalid(argument, None, "must not hold null")
    if agents and (row := _UNLISTABLE.one(agents)):
        errors.fail(
            errors.NOT_FOUND,
            "an agent that is listed must exist and not be terminated",
            detail=f"{argument}: {row['agent_id']}.",
            hint="caliber_agent_list() shows the agents there are.",
        )


def _require_manager(region_id: str) -> None:
    if _CAN_MANAGE.one(region_id) is None:
        seen = _SEE.one(None, region_id, "write") or {}
        if seen["is_admin"]:
            errors.not_found("region", region_id)
        errors.fail(
            errors.NOT_PERMITTED,
            "only a region's owner or an admin may change who is listed",
            detail=f"You are {seen['actor']}; the region is {region_id}.",
        )
