-- Trajectories: what agents work on.
--
-- A trajectory is a piece of work that an agent has. Trajectories form trees: a child belongs
-- to its parent's work. A trajectory is worked on in scopes, one open at a time, numbered from
-- 1. A scope holds turns, what was said in order, and artifacts, what came out of it (memory).
--
-- Turns are numbered from 1 in their scope without gaps, whoever writes at once: the number is
-- counted in the scope's row, which a writer locks, so a turn that is rolled back leaves no hole.
--
-- A scope that is closed, or whose trajectory is finished, takes nothing more. Whoever closes a
-- scope locks its row FOR UPDATE; whoever adds to it holds at least a KEY SHARE lock, which is
-- what the foreign key takes anyway. So none slips in behind a close, and artifacts do not
-- wait for turns. Locks are taken from the agent down: agent, trajectory, scope.
--
-- Rows carry the agent that wrote them and its team, for row security. There are foreign keys
-- to the scope, but not from every turn to its agent: that would lock the agent's row each time,
-- and agents, trajectories and scopes are never deleted.

create type @extschema@.caliber_trajectory_status as enum ('active', 'suspended', 'completed', 'failed');
comment on type @extschema@.caliber_trajectory_status is
'State of a trajectory: active, suspended for a while, or finished, completed or failed, for good.';

create type @extschema@.caliber_turn_role as enum ('user', 'assistant', 'system', 'tool');
comment on type @extschema@.caliber_turn_role is 'Who speaks in a turn.';

create table @extschema@.caliber_trajectory (
    trajectory_id uuid not null default @extschema@.caliber_uuid_v7(),
    name text not null,
    status @extschema@.caliber_trajectory_status not null default 'active',
    agent_id uuid not null,
    team_id uuid not null,
    parent_trajectory_id uuid,
    root_trajectory_id uuid not null,
    depth integer not null default 0,
    scope_count integer not null default 0,
    outcome text,
    metadata jsonb not null default '{}',
    created_at timestamptz not null default pg_catalog.clock_timestamp(),
    status_changed_at timestamptz not null default pg_catalog.clock_timestamp(),
    finished_at timestamptz,
    constraint caliber_trajectory_pkey primary key (trajectory_id),
    constraint caliber_trajectory_agent_fkey foreign key (agent_id)
    references @extschema@.caliber_agent (agent_id),
    constraint caliber_trajectory_team_fkey foreign key (team_id)
    references @extschema@.caliber_team (team_id),
    constraint caliber_trajectory_parent_fkey foreign key (parent_trajectory_id)
    references @extschema@.caliber_trajectory (trajectory_id),
    constraint caliber_trajectory_root_fkey foreign key (root_trajectory_id)
    references @extschema@.caliber_trajectory (trajectory_id),
    constraint caliber_trajectory_no_own_parent check (parent_trajectory_id <> trajectory_id),
    constraint caliber_trajectory_root_has_no_parent check (
        (parent_trajectory_id is null) = (depth = 0)
        and (parent_trajectory_id is null) = (root_trajectory_id = trajectory_id)
    ),
    constraint caliber_trajectory_name_length check (pg_catalog.length(name) between 1 and 1000),
    constraint caliber_trajectory_outcome_length check (pg_catalog.length(outcome) <= 10000),
    constraint caliber_trajectory_finished_has_time check (
        (status in ('completed', 'failed')) = (finished_at is not null)
    )
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_trajectory', '');

create index caliber_trajectory_parent_idx on @extschema@.caliber_trajectory (parent_trajectory_id)
where parent_trajectory_id is not null;
create index caliber_trajectory_agent_idx on @extschema@.caliber_trajectory (agent_id);
create index caliber_trajectory_team_idx on @extschema@.caliber_trajectory (team_id);

comment on table @extschema@.caliber_trajectory is
'Pieces of work, in trees; the view caliber_trajectory_tree shows them as such.';
comment on column @extschema@.caliber_trajectory.trajectory_id is 'Its id.';
comment on column @extschema@.caliber_trajectory.name is 'What the work is.';
comment on column @extschema@.caliber_trajectory.status is 'Whether it goes on, rests or has ended.';
comment on column @extschema@.caliber_trajectory.agent_id is 'The agent that has it.';
comment on column @extschema@.caliber_trajectory.team_id is 'The team of that agent.';
comment on column @extschema@.caliber_trajectory.parent_trajectory_id is 'The work that this is a part of.';
comment on column @extschema@.caliber_trajectory.root_trajectory_id is 'The top of its tree; itself when it has no parent.';
comment on column @extschema@.caliber_trajectory.depth is 'How many parents it has above it.';
comment on column @extschema@.caliber_trajectory.scope_count is 'Scopes opened so far; the number of the last one.';
comment on column @extschema@.caliber_trajectory.outcome is 'What came of it, or why it rests.';
comment on column @extschema@.caliber_trajectory.metadata is 'The caller''s own.';
comment on column @extschema@.caliber_trajectory.created_at is 'When it was started.';
comment on column @extschema@.caliber_trajectory.status_changed_at is 'When its status last changed.';
comment on column @extschema@.caliber_trajectory.finished_at is 'When it was completed or failed.';

-- Half of each page is free and no index mentions what a turn changes, so that counting a turn
-- stays on the page (HOT).
create table @extschema@.caliber_scope (
    scope_id uuid not null default @extschema@.caliber_uuid_v7(),
    trajectory_id uuid not null,
    scope_no integer not null,
    agent_id uuid not null,
    team_id uuid not null,
    name text,
    turn_count integer not null default 0,
    token_count bigint not null default 0,
    token_budget bigint,
    checkpoint jsonb,
    checkpoint_at timestamptz,
    summary text,
    opened_at timestamptz not null default pg_catalog.clock_timestamp(),
    suspended_at timestamptz,
    closed_at timestamptz,
    constraint caliber_scope_pkey primary key (scope_id),
    constraint caliber_scope_number_key unique (trajectory_id, scope_no),
    constraint caliber_scope_trajectory_fkey foreign key (trajectory_id)
    references @extschema@.caliber_trajectory (trajectory_id),
    constraint caliber_scope_name_length check (pg_catalog.length(name) <= 200),
    constraint caliber_scope_summary_length check (pg_catalog.length(summary) <= 10000),
    constraint caliber_scope_within_budget check (token_budget > 0 and token_count <= token_budget)
)
with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_scope', '');

-- One scope of a trajectory is open at a time: that is the current one.
create unique index caliber_scope_open_idx on @extschema@.caliber_scope (trajectory_id)
where closed_at is null;

comment on table @extschema@.caliber_scope is
'Stretches of work on a trajectory, one open at a time; they hold turns and artifacts.';
comment on column @extschema@.caliber_scope.scope_id is 'Its id.';
comment on column @extschema@.caliber_scope.trajectory_id is 'The trajectory it is of.';
comment on column @extschema@.caliber_scope.scope_no is 'Its number in the trajectory, from 1.';
comment on column @extschema@.caliber_scope.agent_id is 'The agent that opened it.';
comment on column @extschema@.caliber_scope.team_id is 'The team of its trajectory.';
comment on column @extschema@.caliber_scope.name is 'What this stretch is about.';
comment on column @extschema@.caliber_scope.turn_count is 'Turns so far; the number of the last one.';
comment on column @extschema@.caliber_scope.token_count is 'Tokens of its turns.';
comment on column @extschema@.caliber_scope.token_budget is 'Tokens its turns may have; null is no limit.';
comment on column @extschema@.caliber_scope.checkpoint is 'The last checkpoint, the caller''s own.';
comment on column @extschema@.caliber_scope.checkpoint_at is 'When that was set.';
comment on column @extschema@.caliber_scope.summary is 'What it came to, as given at its close.';
comment on column @extschema@.caliber_scope.opened_at is 'When it was opened.';
comment on column @extschema@.caliber_scope.suspended_at is 'Since when it takes nothing, because its trajectory is suspended.';
comment on column @extschema@.caliber_scope.closed_at is 'When it was closed; null while it is open.';

create table @extschema@.caliber_turn (
    turn_id uuid not null default @extschema@.caliber_uuid_v7(),
    scope_id uuid not null,
    turn_no integer not null,
    trajectory_id uuid not null,
    agent_id uuid not null,
    team_id uuid not null,
    role @extschema@.caliber_turn_role not null,
    content text not null,
    token_count integer not null,
    metadata jsonb not null default '{}',
    created_at timestamptz not null default pg_catalog.clock_timestamp(),
    constraint caliber_turn_pkey primary key (turn_id),
    constraint caliber_turn_number_key unique (scope_id, turn_no) include (token_count),
    constraint caliber_turn_scope_fkey foreign key (scope_id)
    references @extschema@.caliber_scope (scope_id),
    constraint caliber_turn_limits check (
        token_count >= 0 and turn_no > 0 and pg_catalog.octet_length(content) <= 262144
    )
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_turn', '');

comment on table @extschema@.caliber_turn is 'What was said in a scope, numbered without gaps; never changed.';
comment on column @extschema@.caliber_turn.turn_id is 'Its id.';
comment on column @extschema@.caliber_turn.scope_id is 'The scope it is in.';
comment on column @extschema@.caliber_turn.turn_no is 'Its number in the scope, from 1.';
comment on column @extschema@.caliber_turn.trajectory_id is 'The trajectory of that scope.';
comment on column @extschema@.caliber_turn.agent_id is 'The agent that wrote it.';
comment on column @extschema@.caliber_turn.team_id is 'The team of its trajectory.';
comment on column @extschema@.caliber_turn.role is 'Who speaks.';
comment on column @extschema@.caliber_turn.content is 'What was said.';
comment on column @extschema@.caliber_turn.token_count is 'Its tokens, as given or else estimated when it was written.';
comment on column @extschema@.caliber_turn.metadata is 'The caller''s own, such as tool calls.';
comment on column @extschema@.caliber_turn.created_at is 'When it was added.';

-- Who reads what. That there is a trajectory or a scope is known to the whole team, as agents
-- are. What was said and made is read by who wrote it, by who has the trajectory, by who may read
-- what is theirs, and as far as memory_access reaches.
alter table @extschema@.caliber_trajectory enable row level security;
create policy caliber_trajectory_read on @extschema@.caliber_trajectory for select
using (
    (select @extschema@._caliber_reads_all('trajectory'))
    or team_id = (select @extschema@._caliber_my_team())
    or agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
);

alter table @extschema@.caliber_scope enable row level security;
create policy caliber_scope_read on @extschema@.caliber_scope for select
using (
    (select @extschema@._caliber_reads_all('scope'))
    or team_id = (select @extschema@._caliber_my_team())
    or agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
);

alter table @extschema@.caliber_turn enable row level security;
create policy caliber_turn_read on @extschema@.caliber_turn for select
using (
    (select @extschema@._caliber_reads_all('turn'))
    or team_id = (select @extschema@._caliber_reads_team('turn'))
    or agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
    or exists (
        select from @extschema@.caliber_trajectory as t
        where t.trajectory_id = caliber_turn.trajectory_id
            and t.agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
    )
);
