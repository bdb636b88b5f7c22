-- Trajectories: verbs and views of trajectories, scopes and turns. The contract is in
-- schema/trajectories.sql.
--
-- Every verb takes agent_id, who writes. Left out it is the agent whose login is calling, or,
-- for an admin, the one that has the trajectory.

create function @extschema@.caliber_trajectory_start(
    name text,
    agent_id uuid,
    parent_trajectory_id uuid default null,
    scope_name text default null,
    token_budget bigint default null,
    metadata jsonb default '{}',
    incarnation bigint default null
)
returns uuid
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @trajectories.trajectory_start@ $python$;

comment on function @extschema@.caliber_trajectory_start(text, uuid, uuid, text, bigint, jsonb, bigint) is
'Starts a trajectory that the agent has, opens its first scope with that name and token budget, and returns its id. KA007 when the parent is finished.';

create function @extschema@.caliber_trajectory_finish(
    trajectory_id uuid,
    status @extschema@.caliber_trajectory_status default 'completed',
    outcome text default null,
    agent_id uuid default null,
    incarnation bigint default null
)
returns @extschema@.caliber_trajectory_status
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @trajectories.trajectory_finish@ $python$;

comment on function @extschema@.caliber_trajectory_finish(
    uuid, @extschema@.caliber_trajectory_status, text, uuid, bigint
) is
'Completes or fails a trajectory for good, closes its open scope, and returns the status before. KA007 when it is finished already.';

create function @extschema@.caliber_trajectory_suspend(
    trajectory_id uuid,
    reason text default null,
    agent_id uuid default null,
    incarnation bigint default null
)
returns @extschema@.caliber_trajectory_status
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @trajectories.trajectory_suspend@ $python$;

comment on function @extschema@.caliber_trajectory_suspend(uuid, text, uuid, bigint) is
'Lets a trajectory rest: it takes no turns or artifacts until it is resumed. Returns the status before; KA007 unless it is active.';

create function @extschema@.caliber_trajectory_resume(
    trajectory_id uuid,
    agent_id uuid default null,
    incarnation bigint default null
)
returns @extschema@.caliber_trajectory_status
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @trajectories.trajectory_resume@ $python$;

comment on function @extschema@.caliber_trajectory_resume(uuid, uuid, bigint) is
'Makes a suspended trajectory active again and returns the status before. KA007 unless it is suspended.';

create function @extschema@.caliber_scope_open(
    trajectory_id uuid,
    name text default null,
    token_budget bigint default null,
    agent_id uuid default null,
    incarnation bigint default null
)
returns uuid
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @trajectories.scope_open@ $python$;

comment on function @extschema@.caliber_scope_open(uuid, text, bigint, uuid, bigint) is
'Opens the next scope of a trajectory and returns its id. KA007 while another is open, or when the trajectory is not active.';

create function @extschema@.caliber_scope_close(
    scope_id uuid,
    summary text default null,
    checkpoint jsonb default null,
    agent_id uuid default null,
    incarnation bigint default null
)
returns timestamptz
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @trajectories.scope_close@ $python$;

comment on function @extschema@.caliber_scope_close(uuid, text, jsonb, uuid, bigint) is
'Closes a scope for good and returns when; it takes no turn or artifact from then on. KA007 when it is closed already.';

create function @extschema@.caliber_scope_checkpoint(
    scope_id uuid,
    checkpoint jsonb,
    agent_id uuid default null,
    incarnation bigint default null
)
returns timestamptz
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @trajectories.scope_checkpoint@ $python$;

comment on function @extschema@.caliber_scope_checkpoint(uuid, jsonb, uuid, bigint) is
'Sets the checkpoint of an open scope, in place of the one before, and returns when. KA007 when the scope is closed.';

create function @extschema@.caliber_scope_current(trajectory_id uuid)
returns setof @extschema@.caliber_scope
language sql
stable
begin atomic
    select s.* from @extschema@.caliber_scope as s where s.trajectory_id = $1 and s.closed_at is null;
end;

comment on function @extschema@.caliber_scope_current(uuid) is
'The open scope of a trajectory; no row when none is open or you cannot see it.';

create function @extschema@.caliber_turn_add(
    scope_id uuid,
    role @extschema@.caliber_turn_role,
    content text,
    tokens integer default null,
    agent_id uuid default null,
    metadata jsonb default '{}',
    incarnation bigint default null
)
returns integer
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @turns.turn_add@ $python$;

comment on function @extschema@.caliber_turn_add(
    uuid, @extschema@.caliber_turn_role, text, integer, uuid, jsonb, bigint
) is
'Adds a turn to an open scope and returns its number there, one more than the last. Tokens left out are estimated. KA007 when the scope is closed, KA005 when its token budget does not allow it.';

-- The top of a tree is what has no parent, or none that the reader can see.
create view @extschema@.caliber_trajectory_tree with (security_invoker = true) as
with recursive tree as (
    select
        t.trajectory_id,
        0 as level,
        array[t.trajectory_id] as path
    from @extschema@.caliber_trajectory as t
    where not exists (
            select from @extschema@.caliber_trajectory as p
            where p.trajectory_id = t.parent_trajectory_id
        )
    union all
    select
        t.trajectory_id,
        r.level + 1,
        r.path || t.trajectory_id
    from @extschema@.caliber_trajectory as t
    inner join tree as r on t.parent_trajectory_id = r.trajectory_id
)

select
    pg_catalog.repeat('   ', r.level - 1)
    || case when r.level > 0 then '└─ ' else '' end
    || t.name as tree,
    t.status,
    a.name as agent,
    held.scopes,
    held.turns,
    held.tokens,
    held.open_scope,
    t.outcome,
    t.created_at,
    t.finished_at,
    t.trajectory_id,
    t.parent_trajectory_id,
    t.root_trajectory_id,
    t.agent_id,
    t.team_id,
    r.level,
    r.path
from tree as r
inner join @extschema@.caliber_trajectory as t on r.trajectory_id = t.trajectory_id
left join @extschema@.caliber_agent as a on t.agent_id = a.agent_id
cross join lateral (
    select
        pg_catalog.count(*) as scopes,
        coalesce(pg_catalog.sum(s.turn_count), 0)::bigint as turns,
        coalesce(pg_catalog.sum(s.token_count), 0)::bigint as tokens,
        pg_catalog.max(s.scope_no) filter (where s.closed_at is null) as open_scope
    from @extschema@.caliber_scope as s
    where s.trajectory_id = t.trajectory_id
) as held
order by r.path;

comment on view @extschema@.caliber_trajectory_tree is
'The trajectories you can see as trees: parents before children, with state, agent and how much was said.';

grant select on
    @extschema@.caliber_trajectory,
    @extschema@.caliber_scope,
    @extschema@.caliber_turn,
    @extschema@.caliber_trajectory_tree
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function @extschema@.caliber_scope_current(uuid)
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_trajectory_start(text, uuid, uuid, text, bigint, jsonb, bigint),
    @extschema@.caliber_trajectory_finish(uuid, @extschema@.caliber_trajectory_status, text, uuid, bigint),
    @extschema@.caliber_trajectory_suspend(uuid, text, uuid, bigint),
    @extschema@.caliber_trajectory_resume(uuid, uuid, bigint),
    @extschema@.caliber_scope_open(uuid, text, bigint, uuid, bigint),
    @extschema@.caliber_scope_close(uuid, text, jsonb, uuid, bigint),
    @extschema@.caliber_scope_checkpoint(uuid, jsonb, uuid, bigint),
    @extschema@.caliber_turn_add(
        uuid, @extschema@.caliber_turn_role, text, integer, uuid, jsonb, bigint
    )
to caliber_admin, caliber_agent;
