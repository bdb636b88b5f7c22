-- Messages: reading them without taking them. Everything here shows what the caller may see.
--
-- The time of the statement, not the clock: what is volatile is computed for every message before
-- any is picked, which took seconds for one thread of a million messages.

create view @extschema@.caliber_messages with (security_invoker = true) as
select
    m.created_at,
    m.message_id,
    m.message_type,
    m.priority,
    s.name as sender,
    coalesce(r.name, m.to_agent_type) as recipient,
    case
        when d.processed_at is null and d.dead_at is null and d.expires_at <= pg_catalog.statement_timestamp()
            then 'dead'
        else d.status
    end as status,
    d.attempts,
    m.subject,
    m.body,
    m.payload,
    m.channel,
    m.requires_response,
    m.in_reply_to,
    m.thread_id,
    m.trajectory_id,
    m.scope_id,
    m.artifact_ids,
    m.schema_name,
    m.schema_version,
    m.expires_at,
    d.delivered_at,
    d.read_at,
    d.processed_at,
    d.dead_at,
    d.error,
    m.from_agent_id,
    d.agent_id,
    m.to_agent_type,
    d.queue_id
from @extschema@.caliber_message as m
inner join @extschema@.caliber_delivery as d on m.message_id = d.message_id
left join @extschema@.caliber_agent as s on m.from_agent_id = s.agent_id
left join @extschema@.caliber_agent as r on d.agent_id = r.agent_id;

comment on view @extschema@.caliber_messages is
'The messages you can see, one row for each delivery: who, to whom, what, and what became of it.';

create function @extschema@.caliber_message_inbox(
    agent_id uuid,
    unread_only boolean default true,
    max_messages integer default 10
)
returns setof @extschema@.caliber_messages
language sql
stable
begin atomic
    select v.*
    from @extschema@.caliber_messages as v
    where v.agent_id = $1
        and (
            not $2
            or (v.read_at is null and v.processed_at is null and v.status <> 'dead')
        )
    order by v.message_id desc
    limit case
        when $3 between 1 and 1000 then $3
        else @extschema@._caliber_refuse('max_messages', $3::text, 'must be between 1 and 1000')::integer
    end;
end;

comment on function @extschema@.caliber_message_inbox(uuid, boolean, integer) is
'What an agent was sent, the newest first, without taking it: what is unread, or everything that is kept. A message to a type is in the inbox of the agent that took it.';

create function @extschema@.caliber_message_thread(message_id uuid)
returns setof @extschema@.caliber_messages
language sql
stable
begin atomic
    select v.*
    from (
        select m.thread_id as message_id
        from @extschema@.caliber_message as m
        where m.message_id = $1
        union all
        select r.message_id
        from @extschema@.caliber_message as m
        inner join @extschema@.caliber_message as r on m.thread_id = r.thread_id
        where m.message_id = $1 and r.in_reply_to is not null
    ) as part
    inner join @extschema@.caliber_messages as v on part.message_id = v.message_id
    order by v.message_id, v.queue_id;
end;

comment on function @extschema@.caliber_message_thread(uuid) is
'The thread that a message is in, the oldest first, as far as you can see it.';

create function @extschema@.caliber_message_conversation(
    agent_id uuid,
    other_agent_id uuid,
    max_messages integer default 50
)
returns setof @extschema@.caliber_messages
language sql
stable
begin atomic
    -- Each inbox from its end, by index; then what there is about the few that were found.
    select v.*
    from (
        select both_ways.message_id, both_ways.queue_id
        from (values ($1, $2), ($2, $1)) as way (from_id, to_id)
        cross join lateral (
            select d.message_id, d.queue_id
            from @extschema@.caliber_delivery as d
            where d.agent_id = way.to_id and d.from_agent_id = way.from_id
            order by d.message_id desc
            limit case
                when $3 between 1 and 1000 then $3
                else @extschema@._caliber_refuse('max_messages', $3::text, 'must be between 1 and 1000')::integer
            end
        ) as both_ways
        group by both_ways.message_id, both_ways.queue_id
        order by both_ways.message_id desc
        limit $3
    ) as latest
    inner join @extschema@.caliber_messages as v
        on latest.message_id = v.message_id and latest.queue_id = v.queue_id
    order by v.message_id;
end;

comment on function @extschema@.caliber_message_conversation(uuid, uuid, integer) is
'What two agents said to each other, the latest messages, the oldest of them first.';

create function @extschema@.caliber_message_pending_count(
    agent_id uuid,
    agent_type text default null
)
returns bigint
language sql
stable
begin atomic
    select pg_catalog.count(*)
    from @extschema@.caliber_agent as a
    cross join lateral (
        values (a.agent_id), (@extschema@._caliber_type_queue(a.team_id, coalesce($2, a.agent_type)))
    ) as q (queue_id)
    inner join @extschema@.caliber_delivery as d on q.queue_id = d.queue_id
    where a.agent_id = $1
        and d.processed_at is null
        and d.dead_at is null
        and d.visible_at <= pg_catalog.clock_timestamp()
        and (d.expires_at is null or d.expires_at > pg_catalog.clock_timestamp());
end;

comment on function @extschema@.caliber_message_pending_count(uuid, text) is
'How many messages the agent could receive now, from its inbox and from the queue of its type.';

create function @extschema@.caliber_unreplied(
    agent_id uuid,
    required_only boolean default false,
    max_messages integer default 100
)
returns setof @extschema@.caliber_messages
language sql
stable
begin atomic
    select v.*
    from @extschema@.caliber_messages as v
    where v.agent_id = $1
        and v.status <> 'dead'
        and (v.requires_response or (not $2 and v.in_reply_to is null))
        and not exists (
            select from @extschema@.caliber_message as r
            where r.in_reply_to = v.message_id and r.from_agent_id = $1
        )
    order by v.message_id
    limit case
        when $3 between 1 and 1000 then $3
        else @extschema@._caliber_refuse('max_messages', $3::text, 'must be between 1 and 1000')::integer
    end;
end;

comment on function @extschema@.caliber_unreplied(uuid, boolean, integer) is
'What an agent was sent and has not answered, the oldest first: questions, and replies that ask for a response; with required_only just what requires a response.';

create function @extschema@.caliber_message_prompt(message_id uuid)
returns text
language sql
stable
begin atomic
    select
        pg_catalog.concat_ws(
            E'\n',
            '---',
            'FROM: ' || coalesce(a.agent_type, 'agent') || ' (' || pg_catalog.left(m.from_agent_id::text, 8) || ')',
            'TYPE: ' || m.message_type,
            'SUBJECT: ' || coalesce(m.subject, ''),
            'TIME: ' || pg_catalog.to_char(m.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
            '---',
            '',
            coalesce(m.body, '')
        )
        || case
            when m.payload = '{}' then ''
            else E'\n\nPAYLOAD:\n' || pg_catalog.jsonb_pretty(m.payload)
        end
    from @extschema@.caliber_message as m
    left join @extschema@.caliber_agent as a on m.from_agent_id = a.agent_id
    where m.message_id = $1;
end;

comment on function @extschema@.caliber_message_prompt(uuid) is
'A message as text to put into an agent''s prompt; null when there is none that you can see.';

grant select on @extschema@.caliber_messages to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_message_inbox(uuid, boolean, integer),
    @extschema@.caliber_message_thread(uuid),
    @extschema@.caliber_message_conversation(uuid, uuid, integer),
    @extschema@.caliber_message_pending_count(uuid, text),
    @extschema@.caliber_unreplied(uuid, boolean, integer),
    @extschema@.caliber_message_prompt(uuid)
to caliber_admin, caliber_agent, caliber_observer;
