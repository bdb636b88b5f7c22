-- Locks: their verbs and views. The contract is in schema/locks.sql.

-- Keys of advisory locks, one seed for each use.
create function @extschema@._caliber_lock_turn(
    resource_type text,
    place text
)
returns bigint
language sql
immutable
parallel safe
return pg_catalog.hashtextextended(resource_type || pg_catalog.chr(31) || place, 7011);

comment on function @extschema@._caliber_lock_turn(text, text) is
'The advisory lock that is the turn for a resource; of a file, for its path without a slash at the end.';

create function @extschema@._caliber_lock_waiter(agent_id uuid)
returns bigint
language sql
immutable
parallel safe
return pg_catalog.hashtextextended(agent_id::text, 7012);

comment on function @extschema@._caliber_lock_waiter(uuid) is
'The advisory lock that says: this agent waits for a lease.';

create function @extschema@._caliber_lock_obstacle(lock_id uuid)
returns bigint
language sql
immutable
parallel safe
return pg_catalog.hashtextextended(lock_id::text, 7013);

comment on function @extschema@._caliber_lock_obstacle(uuid) is
'The advisory lock that says: this lease is waited for.';

-- For lists; taking a lease works the same out in Python, see locks_paths. A path with and without
-- a slash at the end is one thing on disk.
create function @extschema@._caliber_lock_names(path text)
returns text[]
language sql
immutable
parallel safe
return array(
    select pg_catalog.array_to_string(parts.parts[:n.n], '/') || '/'
    from (select pg_catalog.string_to_array(pg_catalog.rtrim(path, '/'), '/') as parts) as parts
    cross join lateral pg_catalog.generate_series(
        1, greatest(pg_catalog.cardinality(parts.parts), 1)
    ) as n (n)
) || pg_catalog.rtrim(path, '/');

comment on function @extschema@._caliber_lock_names(text) is
'The ids of files of which each covers the path: its own, and those of the directories above.';

-- Whoever waits for the lease says so with a shared lock that conflicts with this one. That
-- it can be had does no harm: it is a lock on a lease that is over.
create function @extschema@._caliber_lock_tell(
    lock_id uuid,
    wanted_until timestamptz
)
returns boolean
language sql
volatile
return case
    -- A full queue would fail the commit. Whoever can connect can listen, so no name is told.
    when pg_catalog.pg_notification_queue_usage() > 0.25 then false
    when wanted_until > pg_catalog.clock_timestamp()
        or not pg_catalog.pg_try_advisory_xact_lock(@extschema@._caliber_lock_obstacle(lock_id))
        then pg_catalog.pg_notify(
            'caliber_lock', pg_catalog.json_build_object('lock_id', lock_id)::text
        ) is not null
    else false
end;

comment on function @extschema@._caliber_lock_tell(uuid, timestamptz) is
'Notifies caliber_lock that a lease was released, if somebody waits or waited for it; whether it did.';

create view @extschema@.caliber_lock with (security_invoker = true) as
select
    r.lock_id,
    r.resource_type,
    r.resource_id,
    r.holder_agent_id,
    'exclusive'::@extschema@.caliber_lock_mode as mode,
    r.fence,
    r.acquired_at,
    r.expires_at,
    r.reason
from @extschema@.caliber_resource as r
where r.lock_id is not null and r.expires_at > pg_catalog.clock_timestamp()
union all
select
    s.lock_id,
    s.resource_type,
    s.resource_id,
    s.holder_agent_id,
    'shared'::@extschema@.caliber_lock_mode as mode,
    s.fence,
    s.acquired_at,
    s.expires_at,
    s.reason
from @extschema@.caliber_lock_shared as s
where s.expires_at > pg_catalog.clock_timestamp();

comment on view @extschema@.caliber_lock is
'The leases of now that you can see: who has which resource until when, how, and with which fence.';

create view @extschema@.caliber_lock_waits with (security_invoker = true) as
with told as (
    select
        p.pid,
        (p.classid::bigint << 32) | p.objid::bigint as key
    from pg_catalog.pg_locks as p
    where p.locktype = 'advisory'
        and p.objsubid = 1
        and p.granted
        and p.database = (
            select d.oid from pg_catalog.pg_database as d where d.datname = pg_catalog.current_database()
        )
),

waiting as (
    select
        t.pid,
        a.agent_id,
        a.name
    from @extschema@.caliber_agent as a
    inner join told as t on @extschema@._caliber_lock_waiter(a.agent_id) = t.key
)

select
    w.name as waiting,
    h.name as blocking,
    l.resource_type,
    l.resource_id,
    l.mode,
    l.expires_at,
    w.agent_id as waiting_agent_id,
    l.holder_agent_id as blocking_agent_id,
    l.lock_id,
    w.pid,
    null::integer as blocking_pid
from waiting as w
inner join told as t on w.pid = t.pid
inner join @extschema@.caliber_lock as l on t.key = @extschema@._caliber_lock_obstacle(l.lock_id)
inner join @extschema@.caliber_agent as h on l.holder_agent_id = h.agent_id
union all
-- Behind another in the queue.
select
    w.name as waiting,
    b.name as blocking,
    null as resource_type,
    null as resource_id,
    null as mode,
    null as expires_at,
    w.agent_id as waiting_agent_id,
    b.agent_id as blocking_agent_id,
    null as lock_id,
    w.pid,
    ahead.pid as blocking_pid
from waiting as w
cross join lateral pg_catalog.unnest(pg_catalog.pg_blocking_pids(w.pid)) as ahead (pid)
inner join waiting as b on ahead.pid = b.pid;

comment on view @extschema@.caliber_lock_waits is
'Who waits for whom at this moment: one row for each lease in the way of a waiting agent, and one without a resource for each agent before it in the queue.';

create function @extschema@.caliber_lock_get(lock_id uuid)
returns setof @extschema@.caliber_lock
language sql
stable
begin atomic
    select l.* from @extschema@.caliber_lock as l where l.lock_id = $1;
end;

comment on function @extschema@.caliber_lock_get(uuid) is
'One lease as caliber_lock shows it; no row when it has ended or you cannot see it.';

create function @extschema@.caliber_lock_list(
    agent_id uuid default null,
    resource_type text default null,
    resource_id text default null,
    max_locks integer default 100
)
returns setof @extschema@.caliber_lock
language sql
stable
begin atomic
    select l.*
    from @extschema@.caliber_lock as l
    where ($1 is null or l.holder_agent_id = $1)
        and ($2 is null or l.resource_type = $2)
        and (
            $3 is null
            or l.resource_id = $3
            or (
                l.resource_type = 'file'
                and (
                    l.resource_id = any(@extschema@._caliber_lock_names($3))
                    or (pg_catalog.right($3, 1) = '/' and pg_catalog.starts_with(l.resource_id, $3))
                )
            )
        )
    order by l.resource_type, l.resource_id, l.fence
    limit case
        when $4 between 1 and 1000 then $4
        else @extschema@._caliber_refuse('max_locks', $4::text, 'must be between 1 and 1000')::integer
    end;
end;

comment on function @extschema@.caliber_lock_list(uuid, text, text, integer) is
'The leases you can see that match every filter given; for a path also those of directories above it and, of a directory, of all below.';

create function @extschema@.caliber_lock_acquire(
    agent_id uuid,
    resource_type text,
    resource_id text,
    mode @extschema@.caliber_lock_mode default 'exclusive',
    timeout_ms bigint default 60000,
    wait_ms integer default 0,
    reason text default null,
    incarnation bigint default null
)
returns uuid
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '200ms'
-- Plans are kept, and read by index also when made while there was next to nothing to read.
set plan_cache_mode = 'force_generic_plan'
set enable_seqscan = off
as $python$ @locks.acquire@ $python$;

comment on function @extschema@.caliber_lock_acquire(
    uuid, text, text, @extschema@.caliber_lock_mode, bigint, integer, text, bigint
) is
'Leases a resource to an agent for timeout_ms and returns the lock''s id; null when it is not to be had within wait_ms, at most 30000. A holder gets its own lease again, extended. 40P01 when the wait would never end.';

create function @extschema@.caliber_lock_acquire(
    agent_id uuid,
    resource_type text,
    resource_id uuid,
    mode @extschema@.caliber_lock_mode default 'exclusive',
    timeout_ms bigint default 60000,
    wait_ms integer default 0,
    reason text default null,
    incarnation bigint default null
)
returns uuid
language sql
volatile
return @extschema@.caliber_lock_acquire($1, $2, $3::text, $4, $5, $6, $7, $8);

comment on function @extschema@.caliber_lock_acquire(
    uuid, text, uuid, @extschema@.caliber_lock_mode, bigint, integer, text, bigint
) is
'The same for a resource whose id is a uuid; it is the resource with that id as text.';

create function @extschema@.caliber_lock_acquire_many(
    agent_id uuid,
    resource_type text,
    resource_ids text[],
    mode @extschema@.caliber_lock_mode default 'exclusive',
    timeout_ms bigint default 60000,
    wait_ms integer default 0,
    reason text default null,
    incarnation bigint default null
)
returns table (
    resource_type text,
    resource_id text,
    mode @extschema@.caliber_lock_mode,
    lock_id uuid,
    fence bigint,
    expires_at timestamptz
)
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '200ms'
-- Plans are kept, and read by index also when made while there was next to nothing to read.
set plan_cache_mode = 'force_generic_plan'
set enable_seqscan = off
as $python$ @locks.acquire_many@ $python$;

comment on function @extschema@.caliber_lock_acquire_many(
    uuid, text, text[], @extschema@.caliber_lock_mode, bigint, integer, text, bigint
) is
'Leases up to 100 resources to an agent, all or none, and returns the leases with their fences; no row when they are not all to be had within wait_ms. What a directory in the list covers gets no lease of its own.';

create function @extschema@.caliber_lock_release(lock_id uuid)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @locks.release@ $python$;

comment on function @extschema@.caliber_lock_release(uuid) is
'Gives a lease back; false when it had ended. Notifies caliber_lock when somebody waits. The holder''s only: 42501.';

create function @extschema@.caliber_lock_release_all(agent_id uuid)
returns integer
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @locks.release_all@ $python$;

comment on function @extschema@.caliber_lock_release_all(uuid) is
'Gives back every lease of an agent, also of one that is terminated, and returns how many still ran.';

create function @extschema@.caliber_lock_extend(
    lock_id uuid,
    additional_ms bigint
)
returns timestamptz
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @locks.extend@ $python$;

comment on function @extschema@.caliber_lock_extend(uuid, bigint) is
'Lengthens a lease its holder still has and returns the new end. KA001 when it is gone.';

create function @extschema@.caliber_lock_guard(
    resource_type text,
    resource_id text,
    fence bigint
)
returns timestamptz
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @locks.guard@ $python$;

comment on function @extschema@.caliber_lock_guard(text, text, bigint) is
'Call it in the transaction of a write that needs the lease: raises KA001 when the lease with that fence is gone, otherwise keeps it from being taken until the transaction ends, and returns when it would run out.';

create function @extschema@.caliber_lock_guard(
    resource_type text,
    resource_id uuid,
    fence bigint
)
returns timestamptz
language sql
volatile
return @extschema@.caliber_lock_guard($1, $2::text, $3);

comment on function @extschema@.caliber_lock_guard(text, uuid, bigint) is
'The same for a resource whose id is a uuid.';

grant select on
    @extschema@.caliber_resource,
    @extschema@.caliber_lock_shared,
    @extschema@.caliber_lock,
    @extschema@.caliber_lock_waits
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@._caliber_lock_waiter(uuid),
    @extschema@._caliber_lock_obstacle(uuid),
    @extschema@._caliber_lock_turn(text, text),
    @extschema@._caliber_lock_names(text),
    @extschema@.caliber_lock_get(uuid),
    @extschema@.caliber_lock_list(uuid, text, text, integer)
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_lock_acquire(
        uuid, text, text, @extschema@.caliber_lock_mode, bigint, integer, text, bigint
    ),
    @extschema@.caliber_lock_acquire(
        uuid, text, uuid, @extschema@.caliber_lock_mode, bigint, integer, text, bigint
    ),
    @extschema@.caliber_lock_acquire_many(
        uuid, text, text[], @extschema@.caliber_lock_mode, bigint, integer, text, bigint
    ),
    @extschema@.caliber_lock_release(uuid),
    @extschema@.caliber_lock_release_all(uuid),
    @extschema@.caliber_lock_extend(uuid, bigint),
    @extschema@.caliber_lock_guard(text, text, bigint),
    @extschema@.caliber_lock_guard(text, uuid, bigint)
to caliber_admin, caliber_agent;
