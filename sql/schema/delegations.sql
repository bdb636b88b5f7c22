-- Delegations: tasks that one agent gives to another, and their limits.
--
--     pending → accepted → in_progress → completed        taken by one, worked on, done
--        ↘ rejected                    ↘ failed           nobody wants it; it did not work out
--        ↖──────────── retry ───────────↙ ↘ dead          tried too often
--     cancelled, timed_out: from wherever it was before it ended
--
-- A task goes to a named agent or to a type of agent, of which one takes it: accepting is one
-- update of the row that is still pending. Whoever takes it gets a trajectory for it, with copies of
-- what was shared. Every step is told to the other side by a message of the same transaction.
--
-- Limits hold for whoever comes at once. How many tasks an agent has is counted under a lock of its
-- row. Tasks that a delegatee passes on form a tree; whatever concerns more than one task of a tree
-- (a new sub-task, spending from a budget, an end that frees a reservation or takes sub-tasks with
-- it) is decided under a lock of the tree's root, then of the others from the top down. Locks are
-- taken in the order agent, root, other tasks, trajectory, scope.
--
-- A budget (budget_tokens, budget_cost) is for a task and everything below it. What is used, what
-- ended sub-tasks used and what is reserved for open ones never adds up to more. A sub-task with a
-- budget of its own reserves it above, in the nearest task that has one, and its end gives back what
-- is left; one without spends what is above directly.
--
-- expires_at is when the state ends by itself: a pending task at its deadline, an attempt after
-- timeout_seconds or at the deadline. It is judged when read, by the database clock. Making it
-- final, which is to try again or to end it, is left to the next one who touches the task or to
-- _caliber_delegations_expire.
--
-- There are no foreign keys to agents and trajectories: neither is ever deleted, the verbs write
-- what exists, and a check would lock the agent's row for each task.

create type @extschema@.caliber_delegation_status as enum (
    'pending', 'accepted', 'in_progress', 'completed', 'rejected', 'failed', 'cancelled', 'timed_out', 'dead'
);
comment on type @extschema@.caliber_delegation_status is
'Where a task stands: waiting, taken, worked on, or ended in one of six ways; dead is tried too often.';

create type @extschema@.caliber_delegation_result as enum ('success', 'partial', 'failure');
comment on type @extschema@.caliber_delegation_result is 'What came of a task, as its delegatee says.';

create type @extschema@.caliber_task_type as enum (
    'research', 'review', 'analyze', 'generate', 'summarize', 'validate', 'plan', 'execute'
);
comment on type @extschema@.caliber_task_type is 'What kind of work a task is.';

create table @extschema@.caliber_delegation (
    delegation_id uuid not null,
    root_delegation_id uuid not null,
    parent_delegation_id uuid,
    team_id uuid not null,
    delegator_agent_id uuid not null,
    delegatee_agent_id uuid,
    delegatee_agent_type text,
    chain uuid[] not null,
    depth integer not null default 1,
    status @extschema@.caliber_delegation_status not null default 'pending',
    task_type @extschema@.caliber_task_type not null default 'execute',
    priority @extschema@.caliber_message_priority not null default 'normal',
    title text not null,
    instructions text not null,
    context text,
    expected_output text,
    input_artifacts text[],
    shared_artifacts uuid[],
    shared_notes uuid[],
    constraints jsonb,
    required_capabilities text[],
    delegates text[],
    model_tier text,
    parent_trajectory_id uuid,
    child_trajectory_id uuid,
    deadline timestamptz,
    expires_at timestamptz,
    timeout_seconds integer not null,
    max_tokens integer not null,
    max_tool_calls integer not null,
    max_retries integer not null,
    attempts integer not null default 0,
    rejected_by uuid[],
    tokens_used bigint not null default 0,
    tool_calls_used integer not null default 0,
    cost_used numeric not null default 0,
    budget_tokens bigint,
    budget_cost numeric,
    tokens_reserved bigint not null default 0,
    cost_reserved numeric not null default 0,
    tokens_below bigint not null default 0,
    cost_below numeric not null default 0,
    open_children integer not null default 0,
    progress real,
    result_status @extschema@.caliber_delegation_result,
    summary text,
    result_artifacts text[],
    produced_artifacts uuid[],
    produced_notes uuid[],
    error text,
    created_at timestamptz not null default pg_catalog.clock_timestamp(),
    accepted_at timestamptz,
    started_at timestamptz,
    ended_at timestamptz,
    idempotency_key text,
    constraint caliber_delegation_pkey primary key (delegation_id),
    constraint caliber_delegation_parent_fkey foreign key (parent_delegation_id)
    references @extschema@.caliber_delegation (delegation_id),
    -- What the verbs see to already; few constraints, because each costs every write its parsing.
    constraint caliber_delegation_text_length check (
        pg_catalog.length(title) between 1 and 200
        and pg_catalog.octet_length(instructions) <= 262144
        and pg_catalog.octet_length(context) <= 262144
        and pg_catalog.length(expected_output) <= 10000
        and pg_catalog.length(summary) <= 65536
        and pg_catalog.length(error) <= 2000
        and pg_catalog.length(model_tier) <= 63
        and pg_catalog.length(idempotency_key) between 1 and 200
    ),
    constraint caliber_delegation_limits check (
        delegatee_agent_id is distinct from delegator_agent_id
        and depth > 0
        and tokens_used + tokens_below >= 0
        and tokens_reserved >= 0
        and cost_reserved >= 0
        and open_children >= 0
        and (ended_at is null) = (status in ('pending', 'accepted', 'in_progress'))
    )
)
with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_delegation', '');

create index caliber_delegation_delegator_idx
on @extschema@.caliber_delegation (delegator_agent_id, ended_at);
create unique index caliber_delegation_idempotency_idx
on @extschema@.caliber_delegation (delegator_agent_id, idempotency_key)
where idempotency_key is not null;
create index caliber_delegation_delegatee_idx
on @extschema@.caliber_delegation (delegatee_agent_id, ended_at)
where delegatee_agent_id is not null;
-- What waits for an agent of a type.
create index caliber_delegation_open_idx
on @extschema@.caliber_delegation (team_id, delegatee_agent_type, delegation_id)
where delegatee_agent_id is null and ended_at is null;
create index caliber_delegation_parent_idx on @extschema@.caliber_delegation (parent_delegation_id)
where parent_delegation_id is not null;
create index caliber_delegation_child_idx on @extschema@.caliber_delegation (child_trajectory_id)
where child_trajectory_id is not null;
create index caliber_delegation_dead_idx on @extschema@.caliber_delegation (ended_at)
where status = 'dead';
create index caliber_delegation_expires_idx on @extschema@.caliber_delegation (expires_at)
where ended_at is null;

comment on table @extschema@.caliber_delegation is
'Tasks that agents gave to agents; the view caliber_delegations adds names and judges timeouts.';
comment on column @extschema@.caliber_delegation.delegation_id is 'Its id, ordered by time.';
comment on column @extschema@.caliber_delegation.root_delegation_id is 'The top of its tree; itself when it has no parent.';
comment on column @extschema@.caliber_delegation.parent_delegation_id is 'The task that this is a part of.';
comment on column @extschema@.caliber_delegation.team_id is 'The team of the delegator.';
comment on column @extschema@.caliber_delegation.delegator_agent_id is 'The agent that gave it.';
comment on column @extschema@.caliber_delegation.delegatee_agent_id is 'The agent it is for; of a type, the agent that took it.';
comment on column @extschema@.caliber_delegation.delegatee_agent_type is 'The type of agent it is for, when it is for any of a type.';
comment on column @extschema@.caliber_delegation.chain is 'The agents above it, from the first delegator to this one; none may take it.';
comment on column @extschema@.caliber_delegation.depth is 'How many delegations deep it is, from 1.';
comment on column @extschema@.caliber_delegation.status is 'Where it stands, as last written; caliber_delegations judges whether its time has run out.';
comment on column @extschema@.caliber_delegation.task_type is 'What kind of work it is.';
comment on column @extschema@.caliber_delegation.priority is 'How urgent it is.';
comment on column @extschema@.caliber_delegation.title is 'What it is, in a line.';
comment on column @extschema@.caliber_delegation.instructions is 'What is to be done.';
comment on column @extschema@.caliber_delegation.context is 'What the delegatee should know.';
comment on column @extschema@.caliber_delegation.expected_output is 'What the result should look like.';
comment on column @extschema@.caliber_delegation.input_artifacts is 'What to work on: paths, addresses, ids.';
comment on column @extschema@.caliber_delegation.shared_artifacts is 'Artifacts that are copied into the trajectory of whoever takes it.';
comment on column @extschema@.caliber_delegation.shared_notes is 'Notes that are copied for whoever takes it.';
comment on column @extschema@.caliber_delegation.constraints is 'Conditions of the delegator''s own, any json.';
comment on column @extschema@.caliber_delegation.required_capabilities is 'What whoever takes it must be able to do.';
comment on column @extschema@.caliber_delegation.delegates is 'Types of agent that parts of it may be passed on to; null is any.';
comment on column @extschema@.caliber_delegation.model_tier is 'The model tier to use; null leaves it open.';
comment on column @extschema@.caliber_delegation.parent_trajectory_id is 'The delegator''s trajectory that it is a part of.';
comment on column @extschema@.caliber_delegation.child_trajectory_id is 'The trajectory of the last attempt.';
comment on column @extschema@.caliber_delegation.deadline is 'By when it must have ended, retries included.';
comment on column @extschema@.caliber_delegation.expires_at is 'When the state it is in ends by itself.';
comment on column @extschema@.caliber_delegation.timeout_seconds is 'How long an attempt may take.';
comment on column @extschema@.caliber_delegation.max_tokens is 'Tokens that all attempts together may use.';
comment on column @extschema@.caliber_delegation.max_tool_calls is 'Tool calls that all attempts together may make.';
comment on column @extschema@.caliber_delegation.max_retries is 'How often it is tried again before it is dead.';
comment on column @extschema@.caliber_delegation.attempts is 'How often it was taken.';
comment on column @extschema@.caliber_delegation.rejected_by is 'Agents of the type that do not want it.';
comment on column @extschema@.caliber_delegation.tokens_used is 'Tokens its delegatees used for it.';
comment on column @extschema@.caliber_delegation.tool_calls_used is 'Tool calls they made.';
comment on column @extschema@.caliber_delegation.cost_used is 'What that cost.';
comment on column @extschema@.caliber_delegation.budget_tokens is 'Tokens for it and everything below it; null is no limit of its own.';
comment on column @extschema@.caliber_delegation.budget_cost is 'Cost of it and of everything below it; null is no limit of its own.';
comment on column @extschema@.caliber_delegation.tokens_reserved is 'Tokens that are reserved for open sub-tasks.';
comment on column @extschema@.caliber_delegation.cost_reserved is 'Cost that is reserved for open sub-tasks.';
comment on column @extschema@.caliber_delegation.tokens_below is 'Tokens used below it, as far as they are not in a reservation.';
comment on column @extschema@.caliber_delegation.cost_below is 'Cost below it, as far as it is not in a reservation.';
comment on column @extschema@.caliber_delegation.open_children is 'Sub-tasks that have not ended.';
comment on column @extschema@.caliber_delegation.progress is 'How far it is, 0 to 1.';
comment on column @extschema@.caliber_delegation.result_status is 'What came of it.';
comment on column @extschema@.caliber_delegation.summary is 'The result in words.';
comment on column @extschema@.caliber_delegation.result_artifacts is 'What was made, outside the database: paths, addresses.';
comment on column @extschema@.caliber_delegation.produced_artifacts is 'Artifacts that were made.';
comment on column @extschema@.caliber_delegation.produced_notes is 'Notes that were written.';
comment on column @extschema@.caliber_delegation.error is 'Why it last failed, was rejected or was cancelled.';
comment on column @extschema@.caliber_delegation.created_at is 'When it was given.';
comment on column @extschema@.caliber_delegation.accepted_at is 'When it was last taken.';
comment on column @extschema@.caliber_delegation.started_at is 'When work on it last began.';
comment on column @extschema@.caliber_delegation.ended_at is 'When it ended; null while it is open.';
comment on column @extschema@.caliber_delegation.idempotency_key is 'The delegator''s own key for it: given twice, it is there once.';

-- An agent sees what it gave and what was made of that further down, what it took, and what waits
-- for any agent of its type.
alter table @extschema@.caliber_delegation enable row level security;
create policy caliber_delegation_read on @extschema@.caliber_delegation for select
using (
    (select @extschema@._caliber_sees_all())
    or delegator_agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
    or delegatee_agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
    or chain && (select @extschema@._caliber_readable_agents())
    or (
        team_id = (select @extschema@._caliber_my_team())
        and delegatee_agent_id is null
        and delegatee_agent_type = (
            select a.agent_type from @extschema@.caliber_agent as a
            where a.agent_id = (select @extschema@._caliber_my_agent())
        )
    )
);
