-- Messages: sending. The contract is in schema/messages.sql; why some verbs do without sequential
-- scans is in functions/messages_claim.sql.

create function @extschema@._caliber_message_keep()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = '42501',
        message = 'caliber: messages never change, update refused',
        hint = 'Send another message, in_reply_to this one.';
end
$$;

comment on function @extschema@._caliber_message_keep() is
'Trigger: refuses to update messages.';

create trigger caliber_message_keep_update before update on @extschema@.caliber_message
for each statement execute function @extschema@._caliber_message_keep();

create function @extschema@.caliber_message_send(
    from_agent_id uuid,
    to_agent_id uuid,
    to_agent_type text,
    message_type text,
    payload jsonb default '{}',
    trajectory_id uuid default null,
    priority @extschema@.caliber_message_priority default 'normal',
    subject text default null,
    body text default null,
    scope_id uuid default null,
    artifact_ids uuid[] default null,
    channel text default null,
    in_reply_to uuid default null,
    requires_response boolean default false,
    ttl_ms bigint default null,
    idempotency_key text default null,
    schema_name text default null,
    incarnation bigint default null
)
returns uuid
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $python$ @messages.send@ $python$;

comment on function @extschema@.caliber_message_send(
    uuid, uuid, text, text, jsonb, uuid, @extschema@.caliber_message_priority, text, text, uuid,
    uuid[], text, uuid, boolean, bigint, text, text, bigint
) is
'Sends a message to one agent, to one agent of a type in the sender''s team, or to a channel, and returns its id. KA004 for an unknown or terminated recipient, KA006 when its queue is full; the same idempotency_key again returns the first id.';

create function @extschema@.caliber_message_broadcast(
    from_agent_id uuid,
    message_type text,
    payload jsonb default '{}',
    to_agent_type text default null,
    channel text default 'team',
    priority @extschema@.caliber_message_priority default 'normal',
    subject text default null,
    body text default null,
    trajectory_id uuid default null,
    scope_id uuid default null,
    artifact_ids uuid[] default null,
    in_reply_to uuid default null,
    requires_response boolean default false,
    ttl_ms bigint default null,
    idempotency_key text default null,
    schema_name text default null,
    incarnation bigint default null
)
returns table (
    message_id uuid,
    recipients integer
)
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @messages_broadcast.broadcast_rows@ $python$;

comment on function @extschema@.caliber_message_broadcast(
    uuid, text, jsonb, text, text, @extschema@.caliber_message_priority, text, text, uuid, uuid,
    uuid[], uuid, boolean, bigint, text, text, bigint
) is
'Sends a message to every other agent of the sender''s team or of a channel, of one type if given, and returns its id and how many get it; to nobody sends nothing and returns null and 0.';

create function @extschema@.caliber_message_send_batch(
    from_agent_id uuid,
    messages jsonb,
    incarnation bigint default null
)
returns setof uuid
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $python$ @messages_batch.send_batch@ $python$;

comment on function @extschema@.caliber_message_send_batch(uuid, jsonb, bigint) is
'Sends up to 1000 messages, all or none, and returns their ids in order. A json array of objects with the names of the arguments of caliber_message_send.';

create function @extschema@.caliber_message_reply(
    from_agent_id uuid,
    in_reply_to uuid,
    payload jsonb default '{}',
    message_type text default 'info_response',
    subject text default null,
    body text default null,
    priority @extschema@.caliber_message_priority default null,
    requires_response boolean default false,
    ttl_ms bigint default null,
    idempotency_key text default null,
    schema_name text default null,
    incarnation bigint default null
)
returns uuid
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @messages_reply.reply@ $python$;

comment on function @extschema@.caliber_message_reply(
    uuid, uuid, jsonb, text, text, text, @extschema@.caliber_message_priority, boolean, bigint, text,
    text, bigint
) is
'Answers a message: sends to who sent it, in its thread, with its priority unless another is given. P0002 when the agent was not party to the message.';

create function @extschema@.caliber_channel_join(
    agent_id uuid,
    channel text
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @messages_channels.join@ $python$;

comment on function @extschema@.caliber_channel_join(uuid, text) is
'Puts an agent into the channel task:{id} or collab:{id}; false when it is in it. Across teams only members whom an admin put there are reached.';

create function @extschema@.caliber_channel_leave(
    agent_id uuid,
    channel text
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @messages_channels.leave@ $python$;

comment on function @extschema@.caliber_channel_leave(uuid, text) is
'Takes an agent out of a channel; false when it is not in it.';

grant select on
    @extschema@.caliber_message,
    @extschema@.caliber_delivery,
    @extschema@.caliber_channel_member,
    @extschema@.caliber_queue_mark,
    @extschema@.caliber_queue_waiter
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_message_send(
        uuid, uuid, text, text, jsonb, uuid, @extschema@.caliber_message_priority, text, text, uuid,
        uuid[], text, uuid, boolean, bigint, text, text, bigint
    ),
    @extschema@.caliber_message_broadcast(
        uuid, text, jsonb, text, text, @extschema@.caliber_message_priority, text, text, uuid, uuid,
        uuid[], uuid, boolean, bigint, text, text, bigint
    ),
    @extschema@.caliber_message_send_batch(uuid, jsonb, bigint),
    @extschema@.caliber_message_reply(
        uuid, uuid, jsonb, text, text, text, @extschema@.caliber_message_priority, boolean, bigint, text,
        text, bigint
    ),
    @extschema@.caliber_channel_join(uuid, text),
    @extschema@.caliber_channel_leave(uuid, text)
to caliber_admin, caliber_agent;
