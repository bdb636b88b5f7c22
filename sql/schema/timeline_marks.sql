-- Timeline: what happened on one trajectory, and on those below it, in the order of time.
--
-- Nothing is kept for it. Every mark is read from the table that has it: trajectories, scopes, turns,
-- artifacts, notes, variables, checkpoints, contexts, messages, delegations, audit records, conflicts,
-- leases and events. It runs with the caller's rights, so row security decides mark by mark: an agent
-- sees here what it can read itself, and nothing more.
--
-- What ties a mark to a trajectory is a column that says so. A lease has none: those that run are
-- shown for agents that are assigned to the trajectory, and those that ended are not kept.
-- Shared state has none either, and is left out.
--
-- Each trajectory's part of a table is found by an index, and read from its newest end no further
-- than the call wants. These are the indexes that no other subsystem needs.

create index caliber_message_trajectory_idx on @extschema@.caliber_message (trajectory_id, created_at)
where trajectory_id is not null;
create index caliber_delegation_trajectory_idx
on @extschema@.caliber_delegation (parent_trajectory_id, created_at)
where parent_trajectory_id is not null;
create index caliber_checkpoint_trajectory_idx
on @extschema@.caliber_checkpoint (trajectory_id, checkpoint_id)
where trajectory_id is not null;
