-- Handoffs: how work goes from one agent to another.
--
--     initiated → accepted → in_progress → completed | failed     asked, taken, worked on, done
--       ↘ deferred ↗   ↘ timed_out | escalated                    later; nothing came back in time
--        ↘ rejected (↖ rerouted to another agent)                 not taken; the sender still has it
--
--     type         who has the trajectory                            returns
--     sequential   the receiver, for good                            nothing
--     delegation   the sender; the receiver gets a child of it       a result, within a time
--     broadcast    the sender; each receiver gets a child of it      results, taken together
--     escalation   the receiver, until it returns                    a decision
--
-- Nothing moves before acceptance. Then, in one transaction: the audit record, the end of the
-- sender's scope and the receiver's own, the trajectory, both agents' assignment, the leases that
-- were named (with higher fences), the context. The agent that has a trajectory is a column of the
-- trajectory, so there is exactly one at every moment, whatever fails or is killed. What is
-- rejected, withdrawn or not answered leaves the sender where it was; what was lent and is not
-- returned in time goes back.
--
-- An agent that cannot take a handoff does not raise an error, which would undo its own record: the
-- handoff becomes rejected, with the reason. The sender may ask another (caliber_reroute_handoff)
-- or have that done by itself, three times; then a human is asked for.
--
-- Times are judged by the database clock when a verb or the view caliber_handoffs looks: after
-- ack_by nobody can accept, after lapses_at nobody can return. Making it final, with reminders,
-- further attempts, other agents and escalations, is left to the next handoff of the trajectory
-- or to _caliber_handoffs_expire.
--
-- Who takes over the trajectory of a task takes the task: it is the delegatee from then on. One that
-- is in the chain of that task cannot have it for good. An agent's load is what it has: its active
-- trajectories, tasks and handoffs among them.
--
-- Parts that are out, which are delegations and broadcasts that have not ended and what was returned
-- and not completed, go with the whole: who takes a trajectory is their sender from then on, except of
-- what it works on itself. What comes of a part goes into the trajectory it is a part of, whoever
-- completes it.
--
-- Locks are taken in the order agents (parents first, then by id), tree of the task, trajectory,
-- handoff, heads of the audit chains (by team, before the first record), the parts, scopes, leases,
-- broadcast group; the messages come last. Whoever changes a handoff has locked its sender.
-- Tidying up locks the heads first, and of what comes before them only what nobody else has.
--
-- There are no foreign keys to agents and contexts: agents are never deleted, contexts are purged.

create type @extschema@.caliber_handoff_type as enum ('sequential', 'delegation', 'broadcast', 'escalation');
comment on type @extschema@.caliber_handoff_type is
'Who has the work after a handoff, and whether it comes back.';

create type @extschema@.caliber_handoff_status as enum (
    'initiated', 'accepted', 'rejected', 'deferred', 'in_progress', 'completed', 'failed', 'timed_out',
    'escalated'
);
comment on type @extschema@.caliber_handoff_status is 'Where a handoff stands.';

create type @extschema@.caliber_handoff_reason as enum (
    'capability_mismatch', 'load_balancing', 'specialization', 'escalation', 'timeout', 'failure',
    'scheduled'
);
comment on type @extschema@.caliber_handoff_reason is 'Why work changes hands.';

create type @extschema@.caliber_handoff_trigger as enum (
    'task_completion', 'capability_mismatch', 'escalation', 'timeout', 'explicit_request'
);
comment on type @extschema@.caliber_handoff_trigger is 'What made an agent hand over.';

create type @extschema@.caliber_history_mode as enum ('full', 'summary', 'relevant_only');
comment on type @extschema@.caliber_history_mode is
'How much of what was said goes with a handoff: all, summaries of scopes, or what has to do with it.';

create type @extschema@.caliber_on_timeout as enum ('retry', 'escalate', 'fail');
comment on type @extschema@.caliber_on_timeout is
'What happens when a receiver does not return in time: sent again, passed up, or failed.';

create type @extschema@.caliber_aggregation as enum ('all', 'any', 'majority');
comment on type @extschema@.caliber_aggregation is 'How many of a broadcast have to succeed.';

create type @extschema@.caliber_return_status as enum ('success', 'partial', 'failed', 'timeout');
comment on type @extschema@.caliber_return_status is 'What a receiver says came of a handoff.';

create table @extschema@.caliber_handoff_group (
    broadcast_group_id uuid not null,
    team_id uuid not null,
    from_agent_id uuid not null,
    trajectory_id uuid not null,
    aggregation @extschema@.caliber_aggregation not null,
    members integer not null,
    succeeded integer not null default 0,
    failed integer not null default 0,
    outcome @extschema@.caliber_return_status,
    initiated_at timestamptz not null default pg_catalog.clock_timestamp(),
    decided_at timestamptz,
    constraint caliber_handoff_group_pkey primary key (broadcast_group_id),
    constraint caliber_handoff_group_trajectory_fkey foreign key (trajectory_id)
    references @extschema@.caliber_trajectory (trajectory_id),
    constraint caliber_handoff_group_counts check (
        members > 0 and succeeded >= 0 and failed >= 0 and succeeded + failed <= members
    )
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_handoff_group', '');
create index caliber_handoff_group_trajectory_idx on @extschema@.caliber_handoff_group (trajectory_id);

comment on table @extschema@.caliber_handoff_group is 'Broadcasts: handoffs of one thing to several agents.';
comment on column @extschema@.caliber_handoff_group.broadcast_group_id is 'Its id.';
comment on column @extschema@.caliber_handoff_group.team_id is 'The team of the trajectory.';
comment on column @extschema@.caliber_handoff_group.from_agent_id is 'The agent that asks, or that has taken over the work since.';
comment on column @extschema@.caliber_handoff_group.trajectory_id is 'The work; the sender keeps it.';
comment on column @extschema@.caliber_handoff_group.aggregation is 'How many have to succeed.';
comment on column @extschema@.caliber_handoff_group.members is 'How many count: those that have to return.';
comment on column @extschema@.caliber_handoff_group.succeeded is 'How many of them returned a success, whole or partial.';
comment on column @extschema@.caliber_handoff_group.failed is 'How many of them did not.';
comment on column @extschema@.caliber_handoff_group.outcome is 'What came of it; null while that is open.';
comment on column @extschema@.caliber_handoff_group.initiated_at is 'When it began.';
comment on column @extschema@.caliber_handoff_group.decided_at is 'When it was decided.';

create table @extschema@.caliber_handoff (
    handoff_id uuid not null,
    team_id uuid not null,
    broadcast_group_id uuid,
    parent_handoff_id uuid,
    handoff_type @extschema@.caliber_handoff_type not null,
    status @extschema@.caliber_handoff_status not null,
    status_reason text,
    needs_human boolean not null,
    from_agent_id uuid not null,
    to_agent_id uuid,
    to_agent_type text,
    tried_agent_ids uuid[] not null,
    reason @extschema@.caliber_handoff_reason not null,
    triggered_by @extschema@.caliber_handoff_trigger not null,
    trajectory_id uuid not null,
    task_id text,
    scope_id uuid,
    received_trajectory_id uuid,
    received_scope_id uuid,
    context_id uuid,
    handoff_notes text not null,
    next_steps text[] not null,
    blockers text[] not null,
    open_questions text[] not null,
    decision_rationale text,
    risk_level @extschema@.caliber_risk not null,
    priority @extschema@.caliber_message_priority not null,
    variables jsonb not null,
    artifact_ids uuid[] not null,
    lock_ids uuid[] not null,
    moved_lock_ids uuid[] not null,
    joint_locks jsonb not null,
    history_mode @extschema@.caliber_history_mode not null,
    max_messages integer,
    history_include jsonb not null,
    token_budget integer not null,
    required_capabilities text[] not null,
    min_proficiency jsonb not null,
    autonomy_budget numeric,
    budget numeric,
    deadline timestamptz,
    return_expected boolean not null,
    return_timeout_ms bigint,
    on_timeout @extschema@.caliber_on_timeout not null,
    sender_waits boolean not null,
    reroute boolean not null,
    ack_timeout_ms bigint not null,
    attempts integer not null,
    reroutes integer not null,
    escalation_depth integer not null,
    available_at timestamptz,
    ack_by timestamptz,
    return_by timestamptz,
    lapses_at timestamptz,
    due_at timestamptz,
    reminded_at timestamptz,
    estimated_completion timestamptz,
    initiated_at timestamptz not null,
    accepted_at timestamptz,
    started_at timestamptz,
    returned_at timestamptz,
    resolved_at timestamptz,
    return_status @extschema@.caliber_return_status,
    result_type text,
    result jsonb,
    variables_changed jsonb not null,
    artifacts_produced uuid[] not null,
    tokens_consumed bigint,
    return_notes text,
    warnings text[] not null,
    constraint caliber_handoff_pkey primary key (handoff_id),
    constraint caliber_handoff_trajectory_fkey foreign key (trajectory_id)
    references @extschema@.caliber_trajectory (trajectory_id),
    constraint caliber_handoff_group_fkey foreign key (broadcast_group_id)
    references @extschema@.caliber_handoff_group (broadcast_group_id),
    constraint caliber_handoff_parent_fkey foreign key (parent_handoff_id)
    references @extschema@.caliber_handoff (handoff_id),
    constraint caliber_handoff_to_another check (to_agent_id <> from_agent_id),
    constraint caliber_handoff_text_length check (
        pg_catalog.length(handoff_notes) <= 10000
        and pg_catalog.length(status_reason) <= 1000
        and pg_catalog.length(decision_rationale) <= 10000
        and pg_catalog.length(return_notes) <= 10000
        and pg_catalog.length(task_id) <= 200
    ),
    constraint caliber_handoff_limits check (
        attempts between 1 and 3 and reroutes between 0 and 3 and escalation_depth between 0 and 4
    ),
    constraint caliber_handoff_resolved_has_time check (
        (resolved_at is null) = (status in ('initiated', 'accepted', 'deferred', 'in_progress'))
    )
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_handoff', '');

-- A trajectory is offered to one at a time.
create unique index caliber_handoff_offer_idx on @extschema@.caliber_handoff (trajectory_id)
where status in ('initiated', 'deferred') and handoff_type in ('sequential', 'escalation');
create index caliber_handoff_due_idx on @extschema@.caliber_handoff (due_at) where due_at is not null;
create index caliber_handoff_trajectory_idx on @extschema@.caliber_handoff (trajectory_id, handoff_id);
create index caliber_handoff_from_idx on @extschema@.caliber_handoff (from_agent_id, handoff_id);
create index caliber_handoff_to_idx on @extschema@.caliber_handoff (to_agent_id, handoff_id);
create index caliber_handoff_open_idx on @extschema@.caliber_handoff (to_agent_id) where resolved_at is null;
create index caliber_handoff_received_idx on @extschema@.caliber_handoff (received_trajectory_id);
create index caliber_handoff_type_idx on @extschema@.caliber_handoff (team_id, to_agent_type)
where to_agent_id is null and resolved_at is null;
create index caliber_handoff_members_idx on @extschema@.caliber_handoff (broadcast_group_id)
where broadcast_group_id is not null;
create index caliber_handoff_parent_idx on @extschema@.caliber_handoff (parent_handoff_id)
where parent_handoff_id is not null;

comment on table @extschema@.caliber_handoff is
'Handoffs; the view caliber_handoffs adds names and judges times.';
comment on column @extschema@.caliber_handoff.handoff_id is 'Its id.';
comment on column @extschema@.caliber_handoff.team_id is 'The team of the trajectory when it began: the chain of its audit records.';
comment on column @extschema@.caliber_handoff.broadcast_group_id is 'The broadcast it is one of.';
comment on column @extschema@.caliber_handoff.parent_handoff_id is 'The handoff that this one goes on from: an escalation passed further up, or one that timed out.';
comment on column @extschema@.caliber_handoff.handoff_type is 'Who has the work, and whether it comes back.';
comment on column @extschema@.caliber_handoff.status is 'Where it stands, as written; the view caliber_handoffs judges by the clock.';
comment on column @extschema@.caliber_handoff.status_reason is 'Why, for what was rejected, deferred, failed or timed out.';
comment on column @extschema@.caliber_handoff.needs_human is 'Whether a human is asked for: no agent is left to turn to.';
comment on column @extschema@.caliber_handoff.from_agent_id is 'The agent that hands over; of a part that is out, who has the whole now.';
comment on column @extschema@.caliber_handoff.to_agent_id is 'The agent that is asked, or has taken it.';
comment on column @extschema@.caliber_handoff.to_agent_type is 'The type of agent that is asked, of which one takes it.';
comment on column @extschema@.caliber_handoff.tried_agent_ids is 'Agents that were asked before and did not take it.';
comment on column @extschema@.caliber_handoff.reason is 'Why the work changes hands.';
comment on column @extschema@.caliber_handoff.triggered_by is 'What made the sender hand over.';
comment on column @extschema@.caliber_handoff.trajectory_id is 'The work.';
comment on column @extschema@.caliber_handoff.task_id is 'The task, as the sender names it.';
comment on column @extschema@.caliber_handoff.scope_id is 'The sender''s scope that ends when the work moves.';
comment on column @extschema@.caliber_handoff.received_trajectory_id is 'The trajectory the receiver works on: the same, or a child of it.';
comment on column @extschema@.caliber_handoff.received_scope_id is 'The scope that was opened for the receiver.';
comment on column @extschema@.caliber_handoff.context_id is 'The context that was assembled for the receiver; it never changes.';
comment on column @extschema@.caliber_handoff.handoff_notes is 'What the sender wants the receiver to know.';
comment on column @extschema@.caliber_handoff.next_steps is 'What is to be done next.';
comment on column @extschema@.caliber_handoff.blockers is 'What is in the way.';
comment on column @extschema@.caliber_handoff.open_questions is 'What nobody knows yet.';
comment on column @extschema@.caliber_handoff.decision_rationale is 'What the sender thought.';
comment on column @extschema@.caliber_handoff.risk_level is 'How risky the work is.';
comment on column @extschema@.caliber_handoff.priority is 'How urgent it is; messages about it have this priority, the first one is critical.';
comment on column @extschema@.caliber_handoff.variables is 'Context variables that go with it.';
comment on column @extschema@.caliber_handoff.artifact_ids is 'Artifacts that go with it.';
comment on column @extschema@.caliber_handoff.lock_ids is 'Leases that go with it.';
comment on column @extschema@.caliber_handoff.moved_lock_ids is 'The receiver''s leases that came of them.';
comment on column @extschema@.caliber_handoff.joint_locks is 'Those of them that joined a shared lease which the receiver had, with what each of both had: an array.';
comment on column @extschema@.caliber_handoff.history_mode is 'How much of what was said goes with it.';
comment on column @extschema@.caliber_handoff.max_messages is 'At most so many turns of it.';
comment on column @extschema@.caliber_handoff.history_include is 'Which kinds of turn: system_messages, tool_calls, tool_results, agent_reasoning.';
comment on column @extschema@.caliber_handoff.token_budget is 'Tokens that the receiver''s context may have.';
comment on column @extschema@.caliber_handoff.required_capabilities is 'What the receiver should be able to do.';
comment on column @extschema@.caliber_handoff.min_proficiency is 'How well, 0 to 1, for some of these.';
comment on column @extschema@.caliber_handoff.autonomy_budget is 'What the receiver must be allowed to spend on its own decision.';
comment on column @extschema@.caliber_handoff.budget is 'What the work may cost, for the receiver to know.';
comment on column @extschema@.caliber_handoff.deadline is 'When it has to be done.';
comment on column @extschema@.caliber_handoff.return_expected is 'Whether the receiver has to return something.';
comment on column @extschema@.caliber_handoff.return_timeout_ms is 'How long the receiver may take, from acceptance.';
comment on column @extschema@.caliber_handoff.on_timeout is 'What happens when it takes longer.';
comment on column @extschema@.caliber_handoff.sender_waits is 'Whether the sender is waiting meanwhile.';
comment on column @extschema@.caliber_handoff.reroute is 'Whether another agent is asked by itself when one does not take it.';
comment on column @extschema@.caliber_handoff.ack_timeout_ms is 'How long an agent may take to answer.';
comment on column @extschema@.caliber_handoff.attempts is 'How often it was sent to the same agent.';
comment on column @extschema@.caliber_handoff.reroutes is 'How often another agent was asked.';
comment on column @extschema@.caliber_handoff.escalation_depth is 'How many escalations led here.';
comment on column @extschema@.caliber_handoff.available_at is 'Before this it cannot be accepted: the pause before another attempt, or what a receiver asked for.';
comment on column @extschema@.caliber_handoff.ack_by is 'When it has to be answered.';
comment on column @extschema@.caliber_handoff.return_by is 'When the receiver has to return; it is reminded then.';
comment on column @extschema@.caliber_handoff.lapses_at is 'When it is over if nothing was returned.';
comment on column @extschema@.caliber_handoff.due_at is 'When time next changes something.';
comment on column @extschema@.caliber_handoff.reminded_at is 'When the receiver was reminded.';
comment on column @extschema@.caliber_handoff.estimated_completion is 'When the receiver thinks it will be done.';
comment on column @extschema@.caliber_handoff.initiated_at is 'When it was initiated.';
comment on column @extschema@.caliber_handoff.accepted_at is 'When it was accepted.';
comment on column @extschema@.caliber_handoff.started_at is 'When the receiver began.';
comment on column @extschema@.caliber_handoff.returned_at is 'When the receiver returned.';
comment on column @extschema@.caliber_handoff.resolved_at is 'When it ended, one way or another.';
comment on column @extschema@.caliber_handoff.return_status is 'What the receiver says came of it.';
comment on column @extschema@.caliber_handoff.result_type is 'What the result is: text, json or artifact_ref.';
comment on column @extschema@.caliber_handoff.result is 'The result.';
comment on column @extschema@.caliber_handoff.variables_changed is 'Context variables the receiver changed.';
comment on column @extschema@.caliber_handoff.artifacts_produced is 'Artifacts the receiver made.';
comment on column @extschema@.caliber_handoff.tokens_consumed is 'Tokens the receiver used.';
comment on column @extschema@.caliber_handoff.return_notes is 'What the receiver adds.';
comment on column @extschema@.caliber_handoff.warnings is 'What was accepted all the same: missing capabilities, lost leases.';
