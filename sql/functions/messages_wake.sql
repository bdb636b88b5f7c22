-- Messages: waking their readers up. A notification is a hint, never state: whoever gets none
-- finds its messages all the same when it looks.
--
-- NOTIFY takes a lock of the whole cluster until its transaction has committed, and every
-- listener on the channel looks at every notification. The setting notify_mode says when:
--
--   always  every message notifies caliber_agent_message, with ids
--   armed   only a reader that sleeps is notified, on the channel of its own queue
--   off     nobody is
--
-- Armed loses no wake-up. A sender that has written tries for the key of the queue, shared; if it
-- cannot have it, it simply notifies. If it has it, it reads with a later snapshot whether the reader
-- is armed, and notifies and disarms it if so; it keeps the key until its transaction ends. (A batch or
-- a broadcast tries for its keys before it writes, which comes to the same.) A reader that found
-- nothing takes the key exclusively, which waits for the senders under way to end, writes that it is
-- armed, and looks once more. Whatever was sent before is there; whoever sends later reads that it is
-- armed, and who has written but not tried yet will. Nobody can keep a sender waiting, and a reader
-- that does not get the key in time is told to poll.
--
-- A loop: LISTEN to caliber_message_channels, then for ever: receive; when there was nothing,
-- arm; when that says armed, sleep for at most wait_ms or until notified.

create function @extschema@.caliber_message_channels(
    agent_id uuid,
    agent_type text default null
)
returns setof text
language plpython3u
stable
security definer
set search_path = pg_catalog, pg_temp
as $python$ @messages_wake.channels@ $python$;

comment on function @extschema@.caliber_message_channels(uuid, text) is
'The channels on which an agent is notified of messages in the current notify_mode; LISTEN to each of them.';

create function @extschema@.caliber_message_arm(
    agent_id uuid,
    agent_type text default null,
    incarnation bigint default null,
    message_types text[] default null
)
returns table (
    state text,
    wait_ms bigint
)
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '500ms'
set enable_seqscan = off
as $python$ @messages_wake.arm@ $python$;

comment on function @extschema@.caliber_message_arm(uuid, text, bigint, text[]) is
'Called by a reader that found nothing, with the message_types it receives, if not all. ready: receive again now; armed: sleep until notified, but no longer than wait_ms; poll: nobody will notify, receive again after a moment. Commit it before sleeping.';

create function @extschema@.caliber_message_wait(
    agent_id uuid,
    timeout_ms integer default 10000,
    agent_type text default null,
    message_types text[] default null
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $python$ @messages_wake.wait@ $python$;

comment on function @extschema@.caliber_message_wait(uuid, integer, text, text[]) is
'Waits until there is a message that the agent could receive, at most timeout_ms and never more than 30 s; false when there was none. For clients that cannot LISTEN.';

grant execute on function
    @extschema@.caliber_message_channels(uuid, text),
    @extschema@.caliber_message_arm(uuid, text, bigint, text[]),
    @extschema@.caliber_message_wait(uuid, integer, text, text[])
to caliber_admin, caliber_agent;
