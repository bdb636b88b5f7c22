-- Checkpoints: saving and finding them. The contract is in schema/checkpoints.sql.

create function @extschema@.caliber_checkpoint_save(
    agent_id uuid,
    checkpoint_type text,
    reference_id text,
    agent_state jsonb default null,
    trajectory_id uuid default null,
    incarnation bigint default null
)
returns bigint
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @checkpoints.save@ $python$;

comment on function @extschema@.caliber_checkpoint_save(uuid, text, text, jsonb, uuid, bigint) is
'Saves how far an agent has come and returns the checkpoint''s number. Call it in the transaction that did the work. Without a trajectory it names the agent''s current one.';

create function @extschema@.caliber_checkpoint_list(
    agent_id uuid,
    reference_id text default null,
    checkpoint_type text default null,
    before_id bigint default null,
    max_checkpoints integer default 100
)
returns setof @extschema@.caliber_checkpoint
language sql
stable
begin atomic
    select c.*
    from @extschema@.caliber_checkpoint as c
    where c.agent_id = $1
        and ($2 is null or c.reference_id = $2)
        and ($3 is null or c.checkpoint_type = $3)
        and ($4 is null or c.checkpoint_id < $4)
    order by c.checkpoint_id desc
    limit case
        when $5 between 1 and 1000 then $5
        else @extschema@._caliber_refuse('max_checkpoints', $5::text, 'must be between 1 and 1000')::integer
    end;
end;

comment on function @extschema@.caliber_checkpoint_list(uuid, text, text, bigint, integer) is
'An agent''s checkpoints, newest first, of one reference or one type when given; before_id continues a list.';

create function @extschema@.caliber_checkpoint_latest(
    agent_id uuid,
    reference_id text default null,
    checkpoint_type text default null
)
returns setof @extschema@.caliber_checkpoint
language sql
stable
rows 1
begin atomic
    select c.*
    from @extschema@.caliber_checkpoint as c
    where c.agent_id = $1
        and ($2 is null or c.reference_id = $2)
        and ($3 is null or c.checkpoint_type = $3)
    order by c.checkpoint_id desc
    limit 1;
end;

comment on function @extschema@.caliber_checkpoint_latest(uuid, text, text) is
'An agent''s latest checkpoint, of one reference or one type when given: where a process that starts again goes on. No row when there is none.';

create function @extschema@.caliber_checkpoint_prune(
    agent_id uuid,
    keep integer default 100,
    incarnation bigint default null
)
returns integer
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @checkpoints.prune@ $python$;

comment on function @extschema@.caliber_checkpoint_prune(uuid, integer, bigint) is
'Deletes an agent''s checkpoints but for the latest few of each type, 10,000 at most, and returns how many.';

grant select on @extschema@.caliber_checkpoint to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_checkpoint_list(uuid, text, text, bigint, integer),
    @extschema@.caliber_checkpoint_latest(uuid, text, text)
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_checkpoint_save(uuid, text, text, jsonb, uuid, bigint),
    @extschema@.caliber_checkpoint_prune(uuid, integer, bigint)
to caliber_admin, caliber_agent;
