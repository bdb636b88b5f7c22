-- Maintenance: tidying up, reaping, and what to do after a restore. The contract is in
-- schema/maintenance.sql.

create function @extschema@.caliber_agent_reap(max_agents integer default 100)
returns table (
    agent_id uuid,
    name text,
    incarnation bigint,
    silent_for interval,
    given_back integer
)
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '1s'
as $python$ @maintenance_reap.reap@ $python$;

comment on function @extschema@.caliber_agent_reap(integer) is
'Takes agents that are unavailable out of service: a new incarnation, status failed, and their leases, turns and messages given back, each agent whole or not at all. Also what terminated agents still held. Returns a row for each. Admins only.';

create function @extschema@.caliber_tick(max_rows integer default 1000)
returns table (
    step text,
    done integer,
    problem text
)
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '1s'
as $python$ @maintenance.tick@ $python$;

comment on function @extschema@.caliber_tick(integer) is
'Tidies up: reaps dead agents, clears what ran out, deletes what is past its retention; at most max_rows of each kind a call. For a scheduler, every few seconds to minutes; safe at any time, from anywhere, concurrently. Admins only.';

create function @extschema@._caliber_restored()
returns table (
    step text,
    done integer,
    problem text
)
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @maintenance_restore.invalidate@ $python$;

comment on function @extschema@._caliber_restored() is
'The steps of caliber_after_restore that need the rights of the owner. Admins only.';

-- Invoker, because only who owns the tables may index them.
create function @extschema@.caliber_after_restore()
returns table (
    step text,
    done integer,
    problem text
)
language plpython3u
set search_path = pg_catalog, pg_temp
as $python$ @maintenance_restore.after_restore@ $python$;

comment on function @extschema@.caliber_after_restore() is
'To be called once after a backup was restored, or a standby took over that may lack the last commits, before agents come back: no lease, turn, claim or incarnation of before is valid any more, no number is handed out twice, and indexes on embeddings that the dump left out are made again. Admins only.';

-- Row security leaves agents nothing of it.
grant select on @extschema@.caliber_tick_note to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_agent_reap(integer),
    @extschema@.caliber_tick(integer),
    @extschema@._caliber_restored(),
    @extschema@.caliber_after_restore()
to caliber_admin;
