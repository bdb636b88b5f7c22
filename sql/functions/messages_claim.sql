-- Messages: taking, settling, giving up and bringing back. The contract is in schema/messages.sql.
--
-- A session keeps its plans, and one made while a queue was empty would read the whole table for
-- each message once it is not: with 100,000 messages, 100 times as long until the next analyze.
-- So the busy verbs know no way but by index, at 1 µs a call. Nothing in them may need to read a
-- table from end to end, which would then seem dear enough to be compiled. Taking knows no bitmaps
-- either: with small queues one looks cheap, and it reads the whole queue each time.

create function @extschema@.caliber_message_receive(
    agent_id uuid,
    agent_type text default null,
    max_messages integer default 10,
    message_types text[] default null,
    visibility_ms integer default 30000,
    incarnation bigint default null
)
returns setof @extschema@.caliber_received_message
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $python$ @messages_claim.receive@ $python$;

comment on function @extschema@.caliber_message_receive(uuid, text, integer, text[], integer, bigint) is
'Takes messages for an agent, from its inbox and from the queue of its type, the most urgent and oldest first, each with a receipt; no row when there is none. Until visibility_ms have passed nobody else gets them.';

create function @extschema@.caliber_message_acknowledge(
    message_id uuid,
    receipt bigint default null,
    agent_id uuid default null,
    incarnation bigint default null
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $python$ @messages_settle.acknowledge@ $python$;

comment on function @extschema@.caliber_message_acknowledge(uuid, bigint, uuid, bigint) is
'Says that a message was dealt with: it is processed and comes no more. False when it was before; KA001 when the receipt is outdated, 42501 for somebody else''s message.';

create function @extschema@.caliber_message_processed(
    message_id uuid,
    receipt bigint default null,
    agent_id uuid default null,
    incarnation bigint default null
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $python$ @messages_settle.acknowledge@ $python$;

comment on function @extschema@.caliber_message_processed(uuid, bigint, uuid, bigint) is
'The same as caliber_message_acknowledge.';

create function @extschema@.caliber_message_acknowledge_batch(
    message_ids uuid[],
    receipts bigint[],
    incarnation bigint default null
)
returns integer
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $python$ @messages_settle.acknowledge_batch@ $python$;

comment on function @extschema@.caliber_message_acknowledge_batch(uuid[], bigint[], bigint) is
'Acknowledges messages by their receipts, pair by pair, and returns how many it was this call that settled; outdated receipts and somebody else''s messages are passed over.';

create function @extschema@.caliber_message_read(
    message_id uuid,
    receipt bigint default null,
    agent_id uuid default null,
    incarnation bigint default null
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $python$ @messages_settle.read@ $python$;

comment on function @extschema@.caliber_message_read(uuid, bigint, uuid, bigint) is
'Marks a message read; false when it was. It still has to be acknowledged.';

create function @extschema@.caliber_message_extend(
    message_id uuid,
    receipt bigint,
    visibility_ms integer default 30000,
    incarnation bigint default null
)
returns timestamptz
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $python$ @messages_settle.extend@ $python$;

comment on function @extschema@.caliber_message_extend(uuid, bigint, integer, bigint) is
'Keeps a message that was received for longer, counted from now, and returns until when. KA001 when the receipt is outdated.';

create function @extschema@.caliber_message_reject(
    message_id uuid,
    reason text default null,
    receipt bigint default null,
    agent_id uuid default null,
    retry boolean default true,
    retry_ms integer default null,
    incarnation bigint default null
)
returns @extschema@.caliber_delivery_status
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $python$ @messages_settle.reject@ $python$;

comment on function @extschema@.caliber_message_reject(
    uuid, text, bigint, uuid, boolean, integer, bigint
) is
'Says that a message that was received could not be dealt with: failed, to be taken again after a pause that doubles each time, or dead when it was tried message_max_retries times again or retry is false.';

create function @extschema@.caliber_message_requeue(
    message_id uuid,
    agent_id uuid default null,
    ttl_ms bigint default null
)
returns integer
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @messages_tidy.requeue@ $python$;

comment on function @extschema@.caliber_message_requeue(uuid, uuid, bigint) is
'Puts a dead message back into its queue as if it were new, at the end, and returns how many deliveries that were; agent_id picks one of a broadcast. Admins only.';

create function @extschema@.caliber_message_tidy(max_messages integer default 10000)
returns table (
    expired integer,
    exhausted integer,
    purged integer
)
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @messages_tidy.tidy@ $python$;

comment on function @extschema@.caliber_message_tidy(integer) is
'Makes dead what has expired, was taken too often or is for an agent that ended, and deletes what was processed or dead for longer than it is kept; returns how many of each. Admins only; nothing is wrong if it never runs.';

create view @extschema@.caliber_dead_letter with (security_invoker = true) as
select
    d.dead_at,
    d.message_id,
    m.message_type,
    m.from_agent_id,
    d.agent_id,
    m.to_agent_type,
    d.attempts,
    d.error,
    m.priority,
    m.subject,
    m.body,
    m.payload,
    m.trajectory_id,
    m.thread_id,
    m.created_at,
    m.expires_at
from @extschema@.caliber_delivery as d
inner join @extschema@.caliber_message as m on d.message_id = m.message_id
where d.dead_at is not null;

comment on view @extschema@.caliber_dead_letter is
'Messages that were given up, and why; caliber_message_requeue brings one back.';

grant select on @extschema@.caliber_dead_letter to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_message_receive(uuid, text, integer, text[], integer, bigint),
    @extschema@.caliber_message_acknowledge(uuid, bigint, uuid, bigint),
    @extschema@.caliber_message_acknowledge_batch(uuid[], bigint[], bigint),
    @extschema@.caliber_message_processed(uuid, bigint, uuid, bigint),
    @extschema@.caliber_message_read(uuid, bigint, uuid, bigint),
    @extschema@.caliber_message_extend(uuid, bigint, integer, bigint),
    @extschema@.caliber_message_reject(uuid, text, bigint, uuid, boolean, integer, bigint)
to caliber_admin, caliber_agent;
grant execute on function
    @extschema@.caliber_message_requeue(uuid, uuid, bigint),
    @extschema@.caliber_message_tidy(integer)
to caliber_admin;
