-- Delegations: giving, taking and ending tasks. The contract is in schema/delegations.sql.

create function @extschema@.caliber_delegate_task(
    delegator_agent_id uuid,
    delegatee_agent_type text,
    task_description text,
    parent_trajectory_id uuid default null,
    shared_artifacts uuid[] default null,
    deadline timestamptz default null,
    delegatee_agent_id uuid default null,
    parent_delegation_id uuid default null,
    task_type @extschema@.caliber_task_type default 'execute',
    title text default null,
    context text default null,
    expected_output text default null,
    input_artifacts text[] default null,
    shared_notes uuid[] default null,
    constraints jsonb default null,
    priority @extschema@.caliber_message_priority default 'normal',
    required_capabilities text[] default null,
    delegates text[] default null,
    max_tokens integer default null,
    max_tool_calls integer default null,
    timeout_seconds integer default null,
    max_retries integer default null,
    budget_tokens bigint default null,
    budget_cost numeric default null,
    model_tier text default null,
    incarnation bigint default null,
    idempotency_key text default null
)
returns uuid
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @delegations.delegate@ $python$;

comment on function @extschema@.caliber_delegate_task(
    uuid, text, text, uuid, uuid[], timestamptz, uuid, uuid, @extschema@.caliber_task_type, text, text, text,
    text[], uuid[], jsonb, @extschema@.caliber_message_priority, text[], text[], integer, integer, integer,
    integer, bigint, numeric, text, bigint, text
) is
'Gives a task to an agent of a type, or to a certain one, and returns its id. With parent_delegation_id, or on the trajectory of a task the agent works on, it is a part of that. KA002 too deep, KA003 an agent twice in a chain, KA004 nobody available, KA005 no budget left. The same idempotency_key again returns the first id.';

create function @extschema@.caliber_accept_delegation(
    delegation_id uuid,
    delegatee_agent_id uuid,
    incarnation bigint default null
)
returns uuid
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @delegations_take.accept@ $python$;

comment on function @extschema@.caliber_accept_delegation(uuid, uuid, bigint) is
'Takes a pending task and returns the trajectory to work on it, with copies of what was shared; null when another was first or it has ended. Who has it already gets the same trajectory. KA006 when the agent has as many tasks as it may have.';

create function @extschema@.caliber_reject_delegation(
    delegation_id uuid,
    delegatee_agent_id uuid,
    reason text default null,
    incarnation bigint default null
)
returns @extschema@.caliber_delegation_status
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @delegations_take.reject@ $python$;

comment on function @extschema@.caliber_reject_delegation(uuid, uuid, text, bigint) is
'Turns a pending task down: rejected, or pending still when it is for a type and others of it are left; null when it is pending no more. Said again, nothing changes.';

create function @extschema@.caliber_start_delegation(
    delegation_id uuid,
    agent_id uuid default null,
    incarnation bigint default null
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @delegations_take.start@ $python$;

comment on function @extschema@.caliber_start_delegation(uuid, uuid, bigint) is
'Says that work on a task that was taken has begun; false when it had. KA007 in any other state.';

create function @extschema@.caliber_progress_delegation(
    delegation_id uuid,
    tokens bigint default 0,
    tool_calls integer default 0,
    cost numeric default 0,
    progress real default null,
    note text default null,
    agent_id uuid default null,
    incarnation bigint default null
)
returns table (
    status @extschema@.caliber_delegation_status,
    tokens_left bigint,
    tool_calls_left integer,
    budget_tokens_left bigint,
    budget_cost_left numeric,
    expires_at timestamptz
)
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @delegations_work.progress@ $python$;

comment on function @extschema@.caliber_progress_delegation(
    uuid, bigint, integer, numeric, real, text, uuid, bigint
) is
'Counts what was used for a task since the last report and says what is left; a note goes to the delegator. KA005 when a budget does not suffice, and then nothing is counted. After its end, what was used is still counted.';

create function @extschema@.caliber_complete_delegation(
    delegation_id uuid,
    result_status @extschema@.caliber_delegation_result default 'success',
    summary text default null,
    produced_artifacts uuid[] default null,
    produced_notes uuid[] default null,
    result_artifacts text[] default null,
    tokens bigint default 0,
    tool_calls integer default 0,
    cost numeric default 0,
    agent_id uuid default null,
    incarnation bigint default null
)
returns @extschema@.caliber_delegation_status
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @delegations_work.complete@ $python$;

comment on function @extschema@.caliber_complete_delegation(
    uuid, @extschema@.caliber_delegation_result, text, uuid[], uuid[], text[], bigint, integer, numeric, uuid,
    bigint
) is
'Ends a task with its result: completed, or failed when that is failure. KA007 when its time has run out, it has ended or sub-tasks are open; the hint then says how to count what was used. The same result again changes nothing. KA005 when it used more than it had.';

create function @extschema@.caliber_fail_delegation(
    delegation_id uuid,
    error text default null,
    retry boolean default true,
    tokens bigint default 0,
    tool_calls integer default 0,
    cost numeric default 0,
    agent_id uuid default null,
    incarnation bigint default null
)
returns @extschema@.caliber_delegation_status
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @delegations_work.fail@ $python$;

comment on function @extschema@.caliber_fail_delegation(
    uuid, text, boolean, bigint, integer, numeric, uuid, bigint
) is
'Ends an attempt at a task: pending when it is tried again, dead after the last retry, failed when it is not to be retried. Open sub-tasks are cancelled.';

create function @extschema@.caliber_cancel_delegation(
    delegation_id uuid,
    reason text default null,
    agent_id uuid default null,
    incarnation bigint default null
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @delegations_stop.cancel@ $python$;

comment on function @extschema@.caliber_cancel_delegation(uuid, text, uuid, bigint) is
'Stops a task and everything below it, for its delegator, and tells who works on it; false when it had ended.';

create function @extschema@.caliber_retry_delegation(
    delegation_id uuid,
    deadline timestamptz default null,
    agent_id uuid default null,
    incarnation bigint default null
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @delegations_stop.retry@ $python$;

comment on function @extschema@.caliber_retry_delegation(uuid, timestamptz, uuid, bigint) is
'Opens a task that failed, timed out, is dead or was rejected again, for its delegator, with all its retries; false when it is open.';

create function @extschema@.caliber_delegation_wait(
    delegation_id uuid,
    timeout_ms integer default 10000
)
returns @extschema@.caliber_delegation_status
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @delegations_lapse.wait@ $python$;

comment on function @extschema@.caliber_delegation_wait(uuid, integer) is
'Waits until a task has ended, at most timeout_ms and never more than 30 s, and returns how; null when it has not: ask again.';

create function @extschema@._caliber_delegations_expire(max_tasks integer default 100)
returns integer
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @delegations_lapse.expire@ $python$;

comment on function @extschema@._caliber_delegations_expire(integer) is
'Makes final what has run out of time: back to pending while retries are left, else timed out or dead; returns how many. Tasks that another session holds are left out. Admins only.';

create function @extschema@._caliber_delegations_give_back(
    agent_id uuid,
    max_tasks integer default 100
)
returns integer
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @delegations_lapse.give_back@ $python$;

comment on function @extschema@._caliber_delegations_give_back(uuid, integer) is
'Ends the attempts of an agent that is gone: its tasks are tried again while they may be, else dead; returns how many. Admins only.';

grant select on @extschema@.caliber_delegation to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_delegate_task(
        uuid, text, text, uuid, uuid[], timestamptz, uuid, uuid, @extschema@.caliber_task_type, text, text, text,
        text[], uuid[], jsonb, @extschema@.caliber_message_priority, text[], text[], integer, integer, integer,
        integer, bigint, numeric, text, bigint, text
    ),
    @extschema@.caliber_accept_delegation(uuid, uuid, bigint),
    @extschema@.caliber_reject_delegation(uuid, uuid, text, bigint),
    @extschema@.caliber_start_delegation(uuid, uuid, bigint),
    @extschema@.caliber_progress_delegation(uuid, bigint, integer, numeric, real, text, uuid, bigint),
    @extschema@.caliber_complete_delegation(
        uuid, @extschema@.caliber_delegation_result, text, uuid[], uuid[], text[], bigint, integer, numeric, uuid,
        bigint
    ),
    @extschema@.caliber_fail_delegation(uuid, text, boolean, bigint, integer, numeric, uuid, bigint),
    @extschema@.caliber_cancel_delegation(uuid, text, uuid, bigint),
    @extschema@.caliber_retry_delegation(uuid, timestamptz, uuid, bigint),
    @extschema@.caliber_delegation_wait(uuid, integer)
to caliber_admin, caliber_agent;
grant execute on function
    @extschema@._caliber_delegations_expire(integer),
    @extschema@._caliber_delegations_give_back(uuid, integer)
to caliber_admin;
