-- Handoffs: the verbs. The contract is in schema/handoffs.sql.

create function @extschema@.caliber_initiate_handoff(
    from_agent_id uuid,
    to_agent_type text,
    trajectory_id uuid,
    reason @extschema@.caliber_handoff_reason,
    handoff_notes text,
    next_steps text[] default '{}',
    to_agent_id uuid default null,
    handoff_type @extschema@.caliber_handoff_type default 'sequential',
    triggered_by @extschema@.caliber_handoff_trigger default 'explicit_request',
    blockers text[] default '{}',
    open_questions text[] default '{}',
    task_id text default null,
    decision_rationale text default null,
    risk_level @extschema@.caliber_risk default 'low',
    priority @extschema@.caliber_message_priority default null,
    variables jsonb default '{}',
    artifact_ids uuid[] default '{}',
    lock_ids uuid[] default '{}',
    history_mode @extschema@.caliber_history_mode default null,
    max_messages integer default null,
    history_include jsonb default '{}',
    token_budget integer default 16000,
    required_capabilities text[] default '{}',
    min_proficiency jsonb default '{}',
    autonomy_budget numeric default null,
    budget numeric default null,
    deadline timestamptz default null,
    return_timeout_ms bigint default null,
    on_timeout @extschema@.caliber_on_timeout default null,
    sender_waits boolean default false,
    reroute boolean default false,
    ack_timeout_ms bigint default null,
    incarnation bigint default null
)
returns uuid
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @handoffs.initiate@ $python$;

comment on function @extschema@.caliber_initiate_handoff(
    uuid, text, uuid, @extschema@.caliber_handoff_reason, text, text[], uuid,
    @extschema@.caliber_handoff_type, @extschema@.caliber_handoff_trigger, text[], text[], text, text,
    @extschema@.caliber_risk, @extschema@.caliber_message_priority, jsonb, uuid[], uuid[],
    @extschema@.caliber_history_mode, integer, jsonb, integer, text[], jsonb, numeric, numeric,
    timestamptz, bigint, @extschema@.caliber_on_timeout, boolean, boolean, bigint, bigint
) is
'Offers a trajectory, or a part of its work, to an agent, to a type of agent, to whoever has the required capabilities, or for an escalation to whom the sender reports, and returns the handoff. Nothing moves before it is accepted. One who cannot take it is an outcome: the handoff is rejected, with the reason. An escalation is as urgent as the task it comes from, unless priority says otherwise. KA007 while the trajectory is offered already or held by an escalation, KA001 when a named lease is gone.';

create function @extschema@.caliber_broadcast_handoff(
    from_agent_id uuid,
    to_agent_ids uuid[],
    trajectory_id uuid,
    reason @extschema@.caliber_handoff_reason,
    handoff_notes text,
    next_steps text[] default '{}',
    aggregation @extschema@.caliber_aggregation default 'all',
    return_timeout_ms bigint default 600000,
    return_expected boolean[] default null,
    on_timeout @extschema@.caliber_on_timeout default 'fail',
    task_id text default null,
    variables jsonb default '{}',
    artifact_ids uuid[] default '{}',
    required_capabilities text[] default '{}',
    risk_level @extschema@.caliber_risk default 'low',
    priority @extschema@.caliber_message_priority default 'normal',
    token_budget integer default 16000,
    incarnation bigint default null
)
returns table (
    broadcast_group_id uuid,
    handoff_id uuid,
    to_agent_id uuid,
    status @extschema@.caliber_handoff_status
)
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @handoffs_groups.broadcast@ $python$;

comment on function @extschema@.caliber_broadcast_handoff(
    uuid, uuid[], uuid, @extschema@.caliber_handoff_reason, text, text[],
    @extschema@.caliber_aggregation, bigint, boolean[], @extschema@.caliber_on_timeout, text, jsonb,
    uuid[], text[], @extschema@.caliber_risk, @extschema@.caliber_message_priority, integer, bigint
) is
'Offers the same work to several agents at once, each with a copy of the context, and returns a handoff for each. caliber_handoff_group says when all, any or a majority of those that return have succeeded. The sender keeps the trajectory.';

create function @extschema@.caliber_accept_handoff(
    handoff_id uuid,
    accepting_agent_id uuid,
    estimated_completion timestamptz default null,
    incarnation bigint default null
)
returns table (
    status @extschema@.caliber_handoff_status,
    reason text,
    warnings text[],
    trajectory_id uuid,
    scope_id uuid,
    context_id uuid
)
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @handoffs_accept.accept@ $python$;

comment on function @extschema@.caliber_accept_handoff(uuid, uuid, timestamptz, bigint) is
'Takes a handoff: trajectory, assignment and named leases move now, in this transaction, and the context is assembled. An agent without any required capability, at capacity or without the autonomy for it gets the status rejected, with the reason; with some of the capabilities it gets warnings. Who has it gets the same answer again. KA007 when another was first, or it is too late.';

create function @extschema@.caliber_reject_handoff(
    handoff_id uuid,
    agent_id uuid,
    reason text,
    incarnation bigint default null
)
returns @extschema@.caliber_handoff_status
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @handoffs_accept.reject@ $python$;

comment on function @extschema@.caliber_reject_handoff(uuid, uuid, text, bigint) is
'Turns a handoff down and returns what it is then: rejected, or initiated when another agent is asked. The sender keeps what it has. KA007 unless it is open.';

create function @extschema@.caliber_defer_handoff(
    handoff_id uuid,
    agent_id uuid,
    reason text,
    defer_ms bigint default 60000,
    incarnation bigint default null
)
returns @extschema@.caliber_handoff_status
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @handoffs_accept.defer@ $python$;

comment on function @extschema@.caliber_defer_handoff(uuid, uuid, text, bigint, bigint) is
'Asks for time before a handoff is accepted; it stays open for that much longer. KA007 unless it is open.';

create function @extschema@.caliber_start_handoff(
    handoff_id uuid,
    agent_id uuid,
    incarnation bigint default null
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @handoffs_accept.start@ $python$;

comment on function @extschema@.caliber_start_handoff(uuid, uuid, bigint) is
'Says that the receiver has begun; false when it had. KA007 unless it has accepted.';

create function @extschema@.caliber_return_handoff(
    handoff_id uuid,
    agent_id uuid,
    return_status @extschema@.caliber_return_status default 'success',
    result jsonb default null,
    notes text default null,
    result_type text default 'json',
    variables_changed jsonb default '{}',
    artifacts_produced uuid[] default '{}',
    tokens_consumed bigint default null,
    incarnation bigint default null
)
returns @extschema@.caliber_return_status
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @handoffs_return.give@ $python$;

comment on function @extschema@.caliber_return_handoff(
    uuid, uuid, @extschema@.caliber_return_status, jsonb, text, text, jsonb, uuid[], bigint, bigint
) is
'Returns the result of a delegation, broadcast or escalation to its sender. What was lent goes back in this transaction: an escalated trajectory, the leases. KA007 when it is too late, or nothing is to be returned.';

create function @extschema@.caliber_complete_handoff(
    handoff_id uuid,
    agent_id uuid,
    outcome @extschema@.caliber_return_status default null,
    notes text default null,
    tokens_consumed bigint default null,
    incarnation bigint default null
)
returns @extschema@.caliber_handoff_status
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @handoffs_return.complete@ $python$;

comment on function @extschema@.caliber_complete_handoff(uuid, uuid, @extschema@.caliber_return_status, text, bigint, bigint) is
'Ends a handoff: by its sender, or who has the trajectory now, after the return, whose variables and artifacts are then the trajectory''s; or by the receiver where nothing is returned, whose leases are then released. KA007 unless it can be, or when there are artifacts and no open scope to take them.';

create function @extschema@.caliber_withdraw_handoff(
    handoff_id uuid,
    agent_id uuid,
    reason text default null,
    incarnation bigint default null
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @handoffs.withdraw@ $python$;

comment on function @extschema@.caliber_withdraw_handoff(uuid, uuid, text, bigint) is
'Takes back a handoff that nobody has accepted yet. KA007 when somebody has.';

create function @extschema@.caliber_reroute_handoff(
    handoff_id uuid,
    agent_id uuid,
    to_agent_id uuid default null,
    incarnation bigint default null
)
returns @extschema@.caliber_handoff_status
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @handoffs_route.reroute@ $python$;

comment on function @extschema@.caliber_reroute_handoff(uuid, uuid, uuid, bigint) is
'Asks another agent, the one given or one that can take it, to take a handoff that is open or was not taken, and returns its status: initiated, or as it was when three were asked already or nobody is left; then a human is asked for. For its sender. KA007 when somebody has taken it, or it is too late.';

create function @extschema@.caliber_close_broadcast(
    broadcast_group_id uuid,
    agent_id uuid,
    reason text default null,
    incarnation bigint default null
)
returns @extschema@.caliber_return_status
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @handoffs_groups.close@ $python$;

comment on function @extschema@.caliber_close_broadcast(uuid, uuid, text, bigint) is
'Ends what is still open of a broadcast: offers are withdrawn, what was taken and not returned is stopped, both count as failed. Returns what came of it. For its sender.';

create function @extschema@.caliber_handoff_return_to_previous(
    trajectory_id uuid,
    agent_id uuid,
    notes text default null,
    incarnation bigint default null
)
returns table (
    status @extschema@.caliber_handoff_status,
    reason text,
    warnings text[],
    trajectory_id uuid,
    scope_id uuid,
    context_id uuid
)
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @handoffs_return.to_previous@ $python$;

comment on function @extschema@.caliber_handoff_return_to_previous(uuid, uuid, text, bigint) is
'Gives a trajectory back to the agent that had it before, at once. KA007 when nobody had.';

create function @extschema@.caliber_handoff_resolve(
    handoff_id uuid,
    decision text
)
returns @extschema@.caliber_handoff_status
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @handoffs_return.resolve@ $python$;

comment on function @extschema@.caliber_handoff_resolve(uuid, text) is
'What a human decided about a handoff that asked for one, or that was returned to an agent that has ended. Admins only.';

create function @extschema@._caliber_handoffs_expire(
    max_handoffs integer default 100
)
returns integer
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @handoffs_expire.expire@ $python$;

comment on function @extschema@._caliber_handoffs_expire(integer) is
'Does what is due for at most that many handoffs: reminders, further attempts, other agents, escalations, ends; returns for how many. Safe to run at once from several sessions.';

grant execute on function
    @extschema@.caliber_initiate_handoff(
        uuid, text, uuid, @extschema@.caliber_handoff_reason, text, text[], uuid,
        @extschema@.caliber_handoff_type, @extschema@.caliber_handoff_trigger, text[], text[], text, text,
        @extschema@.caliber_risk, @extschema@.caliber_message_priority, jsonb, uuid[], uuid[],
        @extschema@.caliber_history_mode, integer, jsonb, integer, text[], jsonb, numeric, numeric,
        timestamptz, bigint, @extschema@.caliber_on_timeout, boolean, boolean, bigint, bigint
    ),
    @extschema@.caliber_broadcast_handoff(
        uuid, uuid[], uuid, @extschema@.caliber_handoff_reason, text, text[],
        @extschema@.caliber_aggregation, bigint, boolean[], @extschema@.caliber_on_timeout, text, jsonb,
        uuid[], text[], @extschema@.caliber_risk, @extschema@.caliber_message_priority, integer, bigint
    ),
    @extschema@.caliber_accept_handoff(uuid, uuid, timestamptz, bigint),
    @extschema@.caliber_reject_handoff(uuid, uuid, text, bigint),
    @extschema@.caliber_defer_handoff(uuid, uuid, text, bigint, bigint),
    @extschema@.caliber_start_handoff(uuid, uuid, bigint),
    @extschema@.caliber_return_handoff(
        uuid, uuid, @extschema@.caliber_return_status, jsonb, text, text, jsonb, uuid[], bigint, bigint
    ),
    @extschema@.caliber_complete_handoff(uuid, uuid, @extschema@.caliber_return_status, text, bigint, bigint),
    @extschema@.caliber_withdraw_handoff(uuid, uuid, text, bigint),
    @extschema@.caliber_reroute_handoff(uuid, uuid, uuid, bigint),
    @extschema@.caliber_close_broadcast(uuid, uuid, text, bigint),
    @extschema@.caliber_handoff_return_to_previous(uuid, uuid, text, bigint)
to caliber_admin, caliber_agent;
grant execute on function
    @extschema@.caliber_handoff_resolve(uuid, text),
    @extschema@._caliber_handoffs_expire(integer)
to caliber_admin;
