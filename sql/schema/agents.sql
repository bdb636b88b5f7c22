-- Agents: who there is, what each may do, what state it is in, and whether it still lives.
--
-- caliber_agent holds what is decided about an agent and changes now and then. What changes
-- with every beat is in caliber_agent_beat, one narrow row an agent, half of each page free
-- and no index but the key, so that a beat stays on its page (HOT) and bloats nothing.
--
-- An agent's process can die and a new one can take its place. Each has an incarnation:
-- whoever starts calls caliber_agent_resume, gets the next number and shows it with its
-- writes; one that slept through the change is refused (KA001). The number, and whether the
-- agent has ended, are in the beat row because a beat locks only that one, and decides on what
-- it has locked. Its team, which never changes, is there for row security.
--
-- Agents are never deleted: others' records name them. A terminated agent frees its name.

create type @extschema@.caliber_agent_status as enum (
    'initializing', 'idle', 'active', 'waiting', 'blocked', 'completed', 'failed', 'terminated'
);
comment on type @extschema@.caliber_agent_status is
'What an agent is doing; caliber_agent_set_status refuses a step that makes no sense.';

create type @extschema@.caliber_liveness as enum ('alive', 'suspect', 'unavailable', 'ended');
comment on type @extschema@.caliber_liveness is
'What the silence since an agent''s last beat means; ended agents owe no beat.';

create type @extschema@.caliber_risk as enum ('low', 'medium', 'high');
comment on type @extschema@.caliber_risk is 'How risky a decision is, in rising order.';

create table @extschema@.caliber_agent (
    agent_id uuid not null default @extschema@.caliber_uuid_v7(),
    team_id uuid not null,
    agent_type text not null,
    name text not null,
    display_name text,
    status @extschema@.caliber_agent_status not null default 'idle',
    status_reason text,
    status_changed_at timestamptz not null default pg_catalog.clock_timestamp(),
    current_trajectory_id uuid,
    current_scope_id uuid,
    capabilities text[] not null default '{}',
    proficiency jsonb not null default '{}',
    memory_access jsonb not null,
    can_delegate_to text[] not null default '{}',
    reports_to uuid,
    parent_id uuid,
    spawn_depth integer not null default 0,
    spawned integer not null default 0,
    model text,
    input_schema jsonb,
    output_schema jsonb,
    autonomy_budget numeric,
    max_risk @extschema@.caliber_risk not null default 'medium',
    max_concurrent_tasks integer,
    heartbeat_interval_ms integer,
    login_role name,
    created_at timestamptz not null default pg_catalog.clock_timestamp(),
    terminated_at timestamptz,
    constraint caliber_agent_pkey primary key (agent_id),
    constraint caliber_agent_team_fkey foreign key (team_id)
    references @extschema@.caliber_team (team_id),
    constraint caliber_agent_reports_to_fkey foreign key (reports_to)
    references @extschema@.caliber_agent (agent_id),
    constraint caliber_agent_parent_fkey foreign key (parent_id)
    references @extschema@.caliber_agent (agent_id),
    constraint caliber_agent_login_role_key unique (login_role),
    constraint caliber_agent_type_length check (pg_catalog.length(agent_type) between 1 and 63),
    constraint caliber_agent_name_length check (pg_catalog.length(name) between 1 and 63),
    constraint caliber_agent_text_length check (
        pg_catalog.length(display_name) <= 200
        and pg_catalog.length(model) <= 200
        and pg_catalog.length(status_reason) <= 1000
    ),
    constraint caliber_agent_list_length check (
        pg_catalog.cardinality(capabilities) <= 100 and pg_catalog.cardinality(can_delegate_to) <= 100
    ),
    constraint caliber_agent_scope_in_trajectory check (
        current_scope_id is null or current_trajectory_id is not null
    ),
    constraint caliber_agent_idle_has_no_work check (
        status <> 'idle' or current_trajectory_id is null
    ),
    constraint caliber_agent_terminated_has_time check (
        (status = 'terminated') = (terminated_at is not null)
    ),
    constraint caliber_agent_limits check (
        autonomy_budget >= 0 and max_concurrent_tasks > 0
        and heartbeat_interval_ms > 0 and spawn_depth >= 0
    )
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_agent', '');

-- Predicates name terminated_at, not status: status changes often, and an index that
-- mentions it would cost every such change its place on the page.
create unique index caliber_agent_name_idx on @extschema@.caliber_agent (team_id, name)
where terminated_at is null;
create index caliber_agent_type_idx on @extschema@.caliber_agent (agent_type)
where terminated_at is null;
create index caliber_agent_parent_idx on @extschema@.caliber_agent (parent_id)
where parent_id is not null;
create index caliber_agent_capability_idx on @extschema@.caliber_agent using gin (capabilities);

comment on table @extschema@.caliber_agent is
'Agents and what is decided about them; the view caliber_agents adds beats and liveness.';
comment on column @extschema@.caliber_agent.agent_id is 'Its id, for good.';
comment on column @extschema@.caliber_agent.team_id is 'The team it belongs to.';
comment on column @extschema@.caliber_agent.agent_type is 'Its role, such as coder or reviewer.';
comment on column @extschema@.caliber_agent.name is 'What it is called in its team; free again once it is terminated.';
comment on column @extschema@.caliber_agent.display_name is 'What people read.';
comment on column @extschema@.caliber_agent.status is 'What it is doing.';
comment on column @extschema@.caliber_agent.status_reason is 'Why, as given with the last change.';
comment on column @extschema@.caliber_agent.status_changed_at is 'When the status last changed.';
comment on column @extschema@.caliber_agent.current_trajectory_id is 'The trajectory it works on.';
comment on column @extschema@.caliber_agent.current_scope_id is 'The scope of it that it is in.';
comment on column @extschema@.caliber_agent.capabilities is 'What it can do.';
comment on column @extschema@.caliber_agent.proficiency is 'How well, 0 to 1, for some or all of its capabilities.';
comment on column @extschema@.caliber_agent.memory_access is 'What memory it may read and write: lists of type, scope and filter.';
comment on column @extschema@.caliber_agent.can_delegate_to is 'Types of agent it may delegate to; * is any.';
comment on column @extschema@.caliber_agent.reports_to is 'The agent that escalations go to.';
comment on column @extschema@.caliber_agent.parent_id is 'The agent that spawned it.';
comment on column @extschema@.caliber_agent.spawn_depth is 'How many parents it has above it.';
comment on column @extschema@.caliber_agent.spawned is 'How many agents it has spawned.';
comment on column @extschema@.caliber_agent.model is 'The model behind it.';
comment on column @extschema@.caliber_agent.input_schema is 'JSON Schema of what it takes, for those who call it.';
comment on column @extschema@.caliber_agent.output_schema is 'JSON Schema of what it returns.';
comment on column @extschema@.caliber_agent.autonomy_budget is 'What it may spend on its own decision; null is no limit.';
comment on column @extschema@.caliber_agent.max_risk is 'The riskiest decision it may take alone.';
comment on column @extschema@.caliber_agent.max_concurrent_tasks is 'Tasks at once; null is the setting agent_max_concurrent_tasks.';
comment on column @extschema@.caliber_agent.heartbeat_interval_ms is 'How often it beats; null is the setting heartbeat_interval_ms.';
comment on column @extschema@.caliber_agent.login_role is 'The database role that is this agent.';
comment on column @extschema@.caliber_agent.created_at is 'When it was registered or spawned.';
comment on column @extschema@.caliber_agent.terminated_at is 'When it was terminated.';

create table @extschema@.caliber_agent_beat (
    agent_id uuid not null,
    team_id uuid not null,
    ended boolean not null default false,
    incarnation bigint not null default 1,
    beat_at timestamptz not null default pg_catalog.clock_timestamp(),
    progress @extschema@._caliber_share,
    turns bigint not null default 0,
    tokens bigint not null default 0,
    tool_calls bigint not null default 0,
    files bigint not null default 0,
    errors bigint not null default 0,
    activity @extschema@._caliber_text_500,
    last_tool @extschema@._caliber_text_200,
    last_file @extschema@._caliber_text_1000,
    constraint caliber_agent_beat_pkey primary key (agent_id),
    constraint caliber_agent_beat_agent_fkey foreign key (agent_id)
    references @extschema@.caliber_agent (agent_id)
)
with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_agent_beat', '');

comment on table @extschema@.caliber_agent_beat is
'What every beat of an agent writes: time, activity and counters that only grow.';
comment on column @extschema@.caliber_agent_beat.agent_id is 'The agent.';
comment on column @extschema@.caliber_agent_beat.team_id is 'Its team.';
comment on column @extschema@.caliber_agent_beat.ended is 'Whether the agent is terminated and beats no more.';
comment on column @extschema@.caliber_agent_beat.incarnation is 'Which process is the agent now; writes that show another are refused.';
comment on column @extschema@.caliber_agent_beat.beat_at is 'The last beat, by the database clock.';
comment on column @extschema@.caliber_agent_beat.progress is 'How far it is with its work, 0 to 1.';
comment on column @extschema@.caliber_agent_beat.turns is 'Turns it has taken.';
comment on column @extschema@.caliber_agent_beat.tokens is 'Tokens it has used.';
comment on column @extschema@.caliber_agent_beat.tool_calls is 'Tool calls it has made.';
comment on column @extschema@.caliber_agent_beat.files is 'Files it has modified.';
comment on column @extschema@.caliber_agent_beat.errors is 'Errors it has met.';
comment on column @extschema@.caliber_agent_beat.activity is 'What it says it is doing.';
comment on column @extschema@.caliber_agent_beat.last_tool is 'The tool it called last.';
comment on column @extschema@.caliber_agent_beat.last_file is 'The file it modified last.';
