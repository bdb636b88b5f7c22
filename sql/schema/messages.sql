-- Messages: who says what to whom, kept until it was dealt with.
--
-- A message is content and deliveries. caliber_message holds the content, which never changes
-- (a trigger refuses). caliber_delivery holds one narrow row for each queue it was put into and
-- is all that changes:
--
--     pending → delivered → read → processed      taken, looked at, dealt with
--                   ↘ failed → delivered …        rejected or given back, waiting for its next try
--                   ↘ dead                        tried too often, expired, or its recipient ended
--
-- It never goes back: one that was read and is taken again, its lease being over, stays read. Only
-- an admin makes a dead one new.
--
-- A queue is an inbox, whose id is the agent's own, or the queue of an agent type in a team,
-- whose id is made from both; a message to a type is taken by one agent of it. A broadcast is
-- one message with a delivery in each recipient's inbox.
--
-- Taking a message is a lease: whoever receives it gets a receipt and has until visible_at;
-- then it may be taken again, by the same agent or another of the type, and the old receipt is
-- void. So each message is handled at least once, and by one at a time who shows its receipt.
--
-- Neither table has a foreign key: agents are never deleted, the verbs write both rows in one
-- statement, and a key's check locks the agent's row for each message, which costs a busy
-- recipient more than the message itself.
--
-- seq is the order within a queue and a priority. It is drawn after the transaction has its
-- id, so a session that saw every transaction before some point end knows that no lower
-- number can still appear, and need not look below the lowest that is open (messages_marks.py).
-- That is what keeps a queue fast while an old snapshot keeps the dead rows in its index.

create type @extschema@.caliber_message_priority as enum ('low', 'normal', 'high', 'critical');
comment on type @extschema@.caliber_message_priority is 'How urgent a message is, in rising order.';

create type @extschema@.caliber_delivery_status as enum (
    'pending', 'delivered', 'read', 'processed', 'failed', 'dead'
);
comment on type @extschema@.caliber_delivery_status is
'Where a delivery stands: waiting, taken, looked at, dealt with, waiting for another try, given up.';

create table @extschema@.caliber_message (
    message_id uuid not null,
    from_agent_id uuid not null,
    to_agent_id uuid,
    to_agent_type text,
    message_type text not null,
    priority @extschema@.caliber_message_priority not null default 'normal',
    created_at timestamptz not null default pg_catalog.clock_timestamp(),
    expires_at timestamptz,
    thread_id uuid not null,
    in_reply_to uuid,
    trajectory_id uuid,
    scope_id uuid,
    artifact_ids @extschema@._caliber_ids_1000,
    schema_version integer,
    requires_response boolean not null default false,
    channel @extschema@._caliber_key_200 not null default 'direct',
    schema_name text,
    idempotency_key @extschema@._caliber_key_200,
    subject @extschema@._caliber_text_500,
    body @extschema@._caliber_text_262144,
    payload jsonb not null default '{}',
    constraint caliber_message_pkey primary key (message_id)
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_message', '');

create index caliber_message_from_idx on @extschema@.caliber_message (from_agent_id, message_id);
create unique index caliber_message_idempotency_idx
on @extschema@.caliber_message (from_agent_id, idempotency_key)
where idempotency_key is not null;
-- Replies only: the first message of a thread is found by its own id.
create index caliber_message_thread_idx on @extschema@.caliber_message (thread_id, message_id)
where in_reply_to is not null;
create index caliber_message_reply_idx on @extschema@.caliber_message (in_reply_to, from_agent_id)
where in_reply_to is not null;

comment on table @extschema@.caliber_message is
'What agents said, one row a message, never changed; caliber_delivery has what became of it.';
comment on column @extschema@.caliber_message.message_id is 'Its id, ordered by time.';
comment on column @extschema@.caliber_message.from_agent_id is 'The agent that sent it.';
comment on column @extschema@.caliber_message.to_agent_id is 'The agent it is for, when it is for one.';
comment on column @extschema@.caliber_message.to_agent_type is 'The type of agent it is for, when it is for a type.';
comment on column @extschema@.caliber_message.message_type is 'One of caliber_message_type.';
comment on column @extschema@.caliber_message.priority is 'How urgent it is.';
comment on column @extschema@.caliber_message.created_at is 'When it was sent, by the database clock.';
comment on column @extschema@.caliber_message.expires_at is 'From when on it is delivered no more.';
comment on column @extschema@.caliber_message.thread_id is 'The first message of its thread; its own id when it began one.';
comment on column @extschema@.caliber_message.in_reply_to is 'The message it answers.';
comment on column @extschema@.caliber_message.trajectory_id is 'The trajectory it belongs to.';
comment on column @extschema@.caliber_message.scope_id is 'The scope it belongs to.';
comment on column @extschema@.caliber_message.artifact_ids is 'Artifacts it refers to.';
comment on column @extschema@.caliber_message.schema_version is 'The version of the schema that its payload was checked against.';
comment on column @extschema@.caliber_message.requires_response is 'Whether the sender waits for a reply.';
comment on column @extschema@.caliber_message.channel is 'direct, team, task:{id} or collab:{id}.';
comment on column @extschema@.caliber_message.schema_name is 'The schema that its payload was checked against.';
comment on column @extschema@.caliber_message.idempotency_key is 'The sender''s own key for it: sent twice, it is there once.';
comment on column @extschema@.caliber_message.subject is 'What it is about, in a line.';
comment on column @extschema@.caliber_message.body is 'Text.';
comment on column @extschema@.caliber_message.payload is 'Data, any json.';

create sequence @extschema@.caliber_message_seq as bigint;
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_message_seq', '');

-- Columns in the order that wastes least. Room is left on each page, because being taken is an
-- update that touches no index and stays on the page if it can.
create table @extschema@.caliber_delivery (
    message_id uuid not null,
    queue_id uuid not null,
    from_agent_id uuid not null,
    seq bigint not null,
    visible_at timestamptz not null default pg_catalog.clock_timestamp(),
    priority @extschema@.caliber_message_priority not null,
    status @extschema@.caliber_delivery_status not null default 'pending',
    attempts integer not null default 0,
    agent_id uuid,
    receipt bigint,
    expires_at timestamptz,
    delivered_at timestamptz,
    read_at timestamptz,
    processed_at timestamptz,
    dead_at timestamptz,
    error @extschema@._caliber_text_2000,
    constraint caliber_delivery_pkey primary key (message_id, queue_id)
)
with (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_delivery', '');
alter sequence @extschema@.caliber_message_seq owned by @extschema@.caliber_delivery.seq;
comment on sequence @extschema@.caliber_message_seq is 'Places in queues, and receipts.';

-- What can still be taken, in the order it is taken. The predicate names columns that being
-- taken does not change; status would cost every take an entry in each index.
create index caliber_delivery_open_idx on @extschema@.caliber_delivery (queue_id, priority desc, seq)
where processed_at is null and dead_at is null;
create index caliber_delivery_agent_idx on @extschema@.caliber_delivery (agent_id, message_id);
create index caliber_delivery_dead_idx on @extschema@.caliber_delivery (dead_at)
where dead_at is not null;

comment on table @extschema@.caliber_delivery is
'What became of a message, one row for each queue it was put into.';
comment on column @extschema@.caliber_delivery.message_id is 'The message.';
comment on column @extschema@.caliber_delivery.queue_id is 'The recipient''s id, or the id of the queue of a type.';
comment on column @extschema@.caliber_delivery.from_agent_id is 'Who sent it; as in the message.';
comment on column @extschema@.caliber_delivery.seq is 'Its place in the queue.';
comment on column @extschema@.caliber_delivery.visible_at is 'From when on it may be taken: the end of a lease, or of a pause after a rejection.';
comment on column @extschema@.caliber_delivery.priority is 'As in the message.';
comment on column @extschema@.caliber_delivery.status is 'Where it stands.';
comment on column @extschema@.caliber_delivery.attempts is 'How often it was taken.';
comment on column @extschema@.caliber_delivery.agent_id is 'The agent it is for; of a type, the agent that took it.';
comment on column @extschema@.caliber_delivery.receipt is 'What whoever took it last was given.';
comment on column @extschema@.caliber_delivery.expires_at is 'From when on it is delivered no more.';
comment on column @extschema@.caliber_delivery.delivered_at is 'When it was last taken.';
comment on column @extschema@.caliber_delivery.read_at is 'When it was first read.';
comment on column @extschema@.caliber_delivery.processed_at is 'When it was dealt with.';
comment on column @extschema@.caliber_delivery.dead_at is 'When it was given up.';
comment on column @extschema@.caliber_delivery.error is 'Why it was last rejected or given up.';

-- What taking one returns. A type of its own, because the columns of a table that a function returns
-- are put together anew at each call.
create type @extschema@.caliber_received_message as (
    message_id uuid,
    receipt bigint,
    from_agent_id uuid,
    message_type text,
    priority @extschema@.caliber_message_priority,
    subject text,
    body text,
    payload jsonb,
    requires_response boolean,
    in_reply_to uuid,
    thread_id uuid,
    trajectory_id uuid,
    scope_id uuid,
    artifact_ids uuid[], -- noqa: LT01
    channel text,
    to_agent_type text,
    schema_name text,
    created_at timestamptz,
    expires_at timestamptz,
    attempts integer
);

comment on type @extschema@.caliber_received_message is
'A message as caliber_message_receive returns it: content, and the receipt that settles it.';

-- Who is in a channel of a task or of a collaboration; everybody of a team is in team.
create table @extschema@.caliber_channel_member (
    channel text not null,
    agent_id uuid not null,
    joined_at timestamptz not null default pg_catalog.clock_timestamp(),
    by_admin boolean not null default false,
    constraint caliber_channel_member_pkey primary key (channel, agent_id),
    constraint caliber_channel_member_agent_fkey foreign key (agent_id)
    references @extschema@.caliber_agent (agent_id),
    constraint caliber_channel_member_channel_length check (pg_catalog.length(channel) between 1 and 200)
);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_channel_member', '');
create index caliber_channel_member_agent_idx on @extschema@.caliber_channel_member (agent_id);

comment on table @extschema@.caliber_channel_member is 'Which agents get what is sent to task:{id} and collab:{id}.';
comment on column @extschema@.caliber_channel_member.channel is 'The channel.';
comment on column @extschema@.caliber_channel_member.agent_id is 'The agent in it.';
comment on column @extschema@.caliber_channel_member.joined_at is 'Since when.';
comment on column @extschema@.caliber_channel_member.by_admin is 'Whether an admin put it there; then it gets what is sent for agents of other teams too.';

-- A place to start from for sessions that have not looked at a queue themselves.
create table @extschema@.caliber_queue_mark (
    queue_id uuid not null,
    low bigint not null,
    marked_at timestamptz not null default pg_catalog.clock_timestamp(),
    constraint caliber_queue_mark_pkey primary key (queue_id)
)
with (fillfactor = 50);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_queue_mark', '');

comment on table @extschema@.caliber_queue_mark is 'Below which place in a queue nothing is open or can still appear.';
comment on column @extschema@.caliber_queue_mark.queue_id is 'The queue.';
comment on column @extschema@.caliber_queue_mark.low is 'The lowest place that may be open.';
comment on column @extschema@.caliber_queue_mark.marked_at is 'When that was found.';

-- Who waits for a wake-up in the notify mode armed; the contract is in functions/messages_wake.sql.
create table @extschema@.caliber_queue_waiter (
    queue_id uuid not null,
    armed boolean not null,
    armed_at timestamptz not null default pg_catalog.clock_timestamp(),
    constraint caliber_queue_waiter_pkey primary key (queue_id)
)
with (fillfactor = 50);
select pg_catalog.pg_extension_config_dump('@extschema@.caliber_queue_waiter', '');

comment on table @extschema@.caliber_queue_waiter is 'Queues whose reader sleeps until it is notified.';
comment on column @extschema@.caliber_queue_waiter.queue_id is 'The queue.';
comment on column @extschema@.caliber_queue_waiter.armed is 'Whether the next sender has to notify.';
comment on column @extschema@.caliber_queue_waiter.armed_at is 'Since when, or when it last was.';

-- An agent sees what it sent, what is for it, what waits for any agent of its type, and what was
-- sent by or to agents on which it holds read_transcript.
alter table @extschema@.caliber_delivery enable row level security;
create policy caliber_delivery_read on @extschema@.caliber_delivery for select
using (
    (select @extschema@._caliber_sees_all())
    or agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
    or from_agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
    or (agent_id is null and queue_id = (select @extschema@._caliber_my_type_queue()))
);

alter table @extschema@.caliber_message enable row level security;
create policy caliber_message_read on @extschema@.caliber_message for select
using (
    (select @extschema@._caliber_sees_all())
    or from_agent_id = any((select @extschema@._caliber_readable_agents())::uuid[])
    -- Under the caller's own view of caliber_delivery: whoever sees a delivery sees the message.
    or exists (
        select from @extschema@.caliber_delivery as d
        where d.message_id = caliber_message.message_id
    )
);

alter table @extschema@.caliber_channel_member enable row level security;
create policy caliber_channel_member_read on @extschema@.caliber_channel_member for select
using (
    (select @extschema@._caliber_sees_all())
    or exists (
        select from @extschema@.caliber_agent as a
        where a.agent_id = caliber_channel_member.agent_id
    )
);

alter table @extschema@.caliber_queue_mark enable row level security;
create policy caliber_queue_mark_read on @extschema@.caliber_queue_mark for select
using ((select @extschema@._caliber_sees_all()));

alter table @extschema@.caliber_queue_waiter enable row level security;
create policy caliber_queue_waiter_read on @extschema@.caliber_queue_waiter for select
using (
    (select @extschema@._caliber_sees_all())
    or queue_id = (select @extschema@._caliber_my_agent())
);
