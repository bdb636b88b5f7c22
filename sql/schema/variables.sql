-- Context variables: what the agents of a workflow share while it goes from hand to hand.
--
-- A workflow is a tree of trajectories. A variable belongs to one trajectory of it. Whoever has a
-- trajectory of the tree reads the variables of all of it; whoever has the trajectory writes its
-- variables, and nobody else: that is an agent's scope. Admins, who orchestrate, write any, which
-- is how writes of the same name that contradict each other are resolved: the trajectory nearest
-- to the reader counts. A write can name the version it is based on, and then loses to one that
-- came first.
--
-- Three variables are not written but seen: task_status is the trajectory's status, decisions_made
-- are the design decisions among the workflow's artifacts, and files_in_progress are the leases
-- on files that its agents hold right now.

create table @extschema@.caliber_variable (
    trajectory_id uuid not null,
    name text not null,
    root_trajectory_id uuid not null,
    value jsonb not null,
    version bigint not null default 1,
    agent_id uuid not null,
    written_at timestamptz not null default pg_catalog.clock_timestamp(),
    constraint caliber_variable_pkey primary key (trajectory_id, name),
    constraint caliber_variable_trajectory_fkey foreign key (trajectory_id)
    references @extschema@.caliber_trajectory (trajectory_id),
    constraint caliber_variable_name_length check (pg_catalog.length(name) between 1 and 63)
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_variable', '');
create index caliber_variable_root_idx on @extschema@.caliber_variable (root_trajectory_id);

comment on table @extschema@.caliber_variable is
'Context variables as written; caliber_context_variables shows those of a trajectory.';
comment on column @extschema@.caliber_variable.trajectory_id is 'The trajectory it belongs to.';
comment on column @extschema@.caliber_variable.name is 'What it is called.';
comment on column @extschema@.caliber_variable.root_trajectory_id is 'The workflow: the top of the tree.';
comment on column @extschema@.caliber_variable.value is 'What it is.';
comment on column @extschema@.caliber_variable.version is 'Counts its writes, from 1.';
comment on column @extschema@.caliber_variable.agent_id is 'The agent that wrote it.';
comment on column @extschema@.caliber_variable.written_at is 'When that was.';

alter table @extschema@.caliber_variable enable row level security;
create policy caliber_variable_read on @extschema@.caliber_variable for select
using (
    (select @extschema@._caliber_sees_all())
    or exists (
        select from @extschema@.caliber_trajectory as t
        where t.root_trajectory_id = caliber_variable.root_trajectory_id
            and t.agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
    )
);
