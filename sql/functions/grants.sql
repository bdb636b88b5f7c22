-- Grants: giving, revoking and looking at them. The contract is in schema/grants.sql.

-- The helper every policy on agents' data calls: definer, because agents' policies must not
-- lead back to themselves. As an array in a subselect it is read once a statement, a revoked
-- grant is gone with the next one, and an index on the agent's column can be used.
create function @extschema@._caliber_readable_agents()
returns uuid[]
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
begin atomic
    -- One look at the agent, not a call of _caliber_my_agent(): a statement asks this up to six times.
    select array[a.agent_id] || array(
        select g.target_agent_id
        from @extschema@.caliber_grant as g
        where g.grantee_agent_id = a.agent_id
            and g.capability = 'read_transcript'
    )
    from @extschema@.caliber_agent as a
    where a.login_role = @extschema@._caliber_actor() and a.terminated_at is null;
end;

comment on function @extschema@._caliber_readable_agents() is
'The calling agent and those it holds read_transcript on; null for anybody else.';

create function @extschema@._caliber_administered_agents()
returns uuid[]
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select pg_catalog.array_agg(g.target_agent_id)
    from @extschema@.caliber_grant as g
    where g.grantee_agent_id = @extschema@._caliber_my_agent()
        and g.capability = 'administer_grants';
end;

comment on function @extschema@._caliber_administered_agents() is
'The agents on which the calling agent may pass rights on.';

create function @extschema@._caliber_may_send(
    sender uuid,
    recipient uuid
)
returns boolean
language sql
stable
begin atomic
    select exists (
        select from @extschema@.caliber_agent as s
        inner join @extschema@.caliber_agent as r on s.team_id = r.team_id
        where s.agent_id = sender and r.agent_id = recipient
    )
    or exists (
        select from @extschema@.caliber_grant as g
        where g.grantee_agent_id = sender
            and g.target_agent_id = recipient
            and g.capability = 'send_messages'
    );
end;

comment on function @extschema@._caliber_may_send(uuid, uuid) is
'Whether one agent may write to another: both are in one team, or it holds send_messages.';

create function @extschema@.caliber_grant_access(
    target_agent_id uuid,
    grantee_agent_id uuid,
    capability @extschema@.caliber_capability,
    grantor_agent_id uuid default null
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @grants.give@ $python$;

comment on function @extschema@.caliber_grant_access(
    uuid, uuid, @extschema@.caliber_capability, uuid
) is
'Gives an agent a right on another; false when it was given before. An agent must hold administer_grants and the right itself (42501); an admin gives any, or acts for the grantor it names.';

create function @extschema@.caliber_revoke_access(
    target_agent_id uuid,
    grantee_agent_id uuid,
    capability @extschema@.caliber_capability,
    grantor_agent_id uuid default null
)
returns integer
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @grants.revoke@ $python$;

comment on function @extschema@.caliber_revoke_access(
    uuid, uuid, @extschema@.caliber_capability, uuid
) is
'Takes a right back, with all that was given on the strength of it, and returns how many grants went. An agent takes back what it gave; an admin what anybody gave, unless it names the grantor.';

create view @extschema@.caliber_my_access with (security_invoker = true) as
select
    target.name as target,
    g.capability,
    grantor.name as given_by,
    g.is_root,
    g.granted_at,
    g.target_agent_id,
    g.grantor_agent_id
from @extschema@.caliber_grant as g
left join @extschema@.caliber_agent as target on g.target_agent_id = target.agent_id
left join @extschema@.caliber_agent as grantor on g.grantor_agent_id = grantor.agent_id
where g.grantee_agent_id = (select @extschema@._caliber_my_agent());

comment on view @extschema@.caliber_my_access is
'What the calling agent may do with others, and who gave it that; names only of agents it can see.';

create view @extschema@.caliber_access_to_me with (security_invoker = true) as
select
    grantee.name as grantee,
    g.capability,
    grantor.name as given_by,
    g.is_root,
    g.granted_at,
    g.grantee_agent_id,
    g.grantor_agent_id
from @extschema@.caliber_grant as g
left join @extschema@.caliber_agent as grantee on g.grantee_agent_id = grantee.agent_id
left join @extschema@.caliber_agent as grantor on g.grantor_agent_id = grantor.agent_id
where g.target_agent_id = (select @extschema@._caliber_my_agent());

comment on view @extschema@.caliber_access_to_me is
'Who may read, write to or hand on the calling agent, and who allowed it.';

create function @extschema@.caliber_grant_list(
    agent_id uuid default null,
    max_grants integer default 100
)
returns table (
    grantee text,
    capability @extschema@.caliber_capability,
    target text,
    given_by text,
    is_root boolean,
    granted_at timestamptz,
    grantee_agent_id uuid,
    target_agent_id uuid,
    grantor_agent_id uuid
)
language sql
stable
begin atomic
    select
        grantee.name as grantee,
        g.capability,
        target.name as target,
        grantor.name as given_by,
        g.is_root,
        g.granted_at,
        g.grantee_agent_id,
        g.target_agent_id,
        g.grantor_agent_id
    from @extschema@.caliber_grant as g
    left join @extschema@.caliber_agent as grantee on g.grantee_agent_id = grantee.agent_id
    left join @extschema@.caliber_agent as target on g.target_agent_id = target.agent_id
    left join @extschema@.caliber_agent as grantor on g.grantor_agent_id = grantor.agent_id
    where $1 is null or $1 in (g.grantee_agent_id, g.target_agent_id)
    order by g.granted_at, g.grantee_agent_id, g.capability
    limit case
        when $2 between 1 and 1000 then $2
        else @extschema@._caliber_refuse('max_grants', $2::text, 'must be between 1 and 1000')::integer
    end;
end;

comment on function @extschema@.caliber_grant_list(uuid, integer) is
'The grants you can see, those that an agent has or that are on it when one is named.';

grant select on
    @extschema@.caliber_grant,
    @extschema@.caliber_my_access,
    @extschema@.caliber_access_to_me
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@._caliber_readable_agents(),
    @extschema@._caliber_administered_agents(),
    @extschema@.caliber_grant_list(uuid, integer)
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_grant_access(uuid, uuid, @extschema@.caliber_capability, uuid),
    @extschema@.caliber_revoke_access(uuid, uuid, @extschema@.caliber_capability, uuid)
to caliber_admin, caliber_agent;
