-- Context: assembling, verifying and purging. The contract is in schema/context.sql.

-- Never changed, also not by a superuser's slip of the hand; only what is past its retention may go.
create function @extschema@._caliber_context_keep()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    keep_days integer := @extschema@._caliber_config_value('context_retention_days')::integer;
begin
    if tg_op = 'DELETE'
        and old.created_at < pg_catalog.clock_timestamp() - pg_catalog.make_interval(days => keep_days)
    then
        return old;
    end if;
    raise exception using
        errcode = '42501',
        message = pg_catalog.format('caliber: contexts never change, %s refused', pg_catalog.lower(tg_op)),
        detail = pg_catalog.format('Contexts are kept for %s days.', keep_days),
        hint = 'The setting context_retention_days says how long; caliber_context_purge deletes older ones.';
end
$$;

comment on function @extschema@._caliber_context_keep() is
'Trigger: refuses to update contexts, and to delete those younger than the retention.';

create trigger caliber_context_keep before update or delete on @extschema@.caliber_context
for each row execute function @extschema@._caliber_context_keep();

create view @extschema@.caliber_context_trace with (security_invoker = true) as
select
    c.context_id,
    t.place,
    (t.row ->> 0)::@extschema@.caliber_context_section as section,
    (t.row ->> 1)::@extschema@.caliber_context_decision as decision,
    t.row ->> 2 as reason,
    (t.row ->> 3)::integer as items,
    (t.row ->> 4)::integer as token_count,
    t.row ->> 5 as kind,
    (t.row ->> 6)::uuid as item_id
from @extschema@.caliber_context as c
cross join lateral pg_catalog.json_array_elements(c.trace) with ordinality as t (row, place);

comment on view @extschema@.caliber_context_trace is
'What was decided when a context was assembled, in its order: the items it has, whole or cut, with their tokens; and how many of each section were left out, and why.';

create function @extschema@.caliber_context_assemble(
    trajectory_id uuid,
    token_budget integer default 16000,
    agent_id uuid default null,
    embedding vector default null,
    shares jsonb default '{}',
    max_notes integer default 20
)
returns table (
    context_id uuid,
    token_count integer,
    included integer,
    truncated integer,
    excluded integer,
    content text,
    content_sha256 text
)
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
-- Its statements are long and their plans do not depend on the arguments.
set plan_cache_mode = 'force_generic_plan'
as $python$ @context.assemble@ $python$;

comment on function @extschema@.caliber_context_assemble(uuid, integer, uuid, vector, jsonb, integer) is
'Assembles what an agent should read of a trajectory within a budget of tokens, stores it as a snapshot that never changes, and returns it. Shares are percent of the budget for sections, such as {"facts": 50}. caliber_context_trace says what got in and what did not, and why.';

create function @extschema@.caliber_context_verify(context_id uuid)
returns boolean
language sql
stable
begin atomic
    select pg_catalog.sha256(pg_catalog.convert_to(c.content, 'UTF8')) = c.content_hash
    from @extschema@.caliber_context as c
    where c.context_id = $1;
end;

comment on function @extschema@.caliber_context_verify(uuid) is
'Whether a context is what it was when it was assembled, by its SHA-256; null when there is none that you can see.';

create function @extschema@.caliber_context_purge(max_contexts integer default 1000)
returns integer
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @context.purge@ $python$;

comment on function @extschema@.caliber_context_purge(integer) is
'Deletes at most that many contexts older than context_retention_days and returns how many. Admins only; call again until it returns 0.';

grant select on @extschema@.caliber_context, @extschema@.caliber_context_trace
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function @extschema@.caliber_context_verify(uuid)
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function @extschema@.caliber_context_assemble(uuid, integer, uuid, vector, jsonb, integer)
to caliber_admin, caliber_agent;
grant execute on function @extschema@.caliber_context_purge(integer) to caliber_admin;
