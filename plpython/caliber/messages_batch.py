"""Messages: sending many at once, all or none, in one statement.

The messages come as one json array and are taken apart by the statement itself; Python reads
them only when one names a schema, and to say what is wrong.
"""

from __future__ import annotations

from typing import Any

from caliber import checks, errors, messages, messages_limits, messages_rules, messages_settings
from caliber.plans import plan

MAX_BATCH = 1000
MAX_BYTES = 16 * 1024 * 1024

_COLUMNS = """
        to_agent_id uuid, to_agent_type text, message_type text, payload jsonb, trajectory_id uuid,
        priority @extschema@.caliber_message_priority, subject text, body text, scope_id uuid,
        artifact_ids uuid[], channel text, in_reply_to uuid, requires_response boolean,
        ttl_ms bigint, idempotency_key text, schema_name text
"""

# Everything about each message, in order. $1 sender, $2 messages.
_GIVEN = f"""
    select
        g.*,
        coalesce(
            g.to_agent_id,
            @extschema@._caliber_type_queue(
                (select s.team_id from @extschema@.caliber_agent as s where s.agent_id = $1),
                g.to_agent_type
            )
        ) as queue_id
    from rows from (pg_catalog.jsonb_to_recordset($2) as ({_COLUMNS}))
    with ordinality as g (
        to_agent_id, to_agent_type, message_type, payload, trajectory_id, priority, subject, body,
        scope_id, artifact_ids, channel, in_reply_to, requires_response, ttl_ms, idempotency_key,
        schema_name, place
    )
"""

# What is wrong, message by message; no row when all is well.
_WRONG = plan(
    f"""
    select
        g.place,
        case
            when (g.to_agent_id is null) = (g.to_agent_type is null) then 'recipient'
            when not exists (
                select from @extschema@.caliber_message_type as t where t.message_type = g.message_type
            ) then 'message_type'
            when g.to_agent_id is not null and not exists (
                select from @extschema@.caliber_agent as r
                where r.agent_id = g.to_agent_id
                    and r.terminated_at is null
                    and (
                        @extschema@._caliber_is_admin()
                        or @extschema@._caliber_may_send($1, g.to_agent_id)
                    )
            ) then 'to_agent_id'
            when pg_catalog.octet_length(g.payload::text) > {checks.MAX_PAYLOAD} then 'payload'
            when pg_catalog.length(g.subject) > {messages_rules.MAX_SUBJECT} then 'subject'
            when pg_catalog.length(g.body) > {messages_rules.MAX_BODY} then 'body'
            when pg_catalog.cardinality(g.artifact_ids) > {messages_rules.MAX_ARTIFACTS}
                or pg_catalog.array_position(g.artifact_ids, null) is not null then 'artifact_ids'
            when g.channel is not null
                and not g.channel ~ '^(direct|(task|collab):(?=.*\\S).{{1,190}})$' then 'channel'
            when g.ttl_ms not between 1 and {messages_rules.MAX_TTL_MS} then 'ttl_ms'
            when pg_catalog.length(g.idempotency_key) not between 1 and {messages_rules.MAX_KEY}
                then 'idempotency_key'
            when g.in_reply_to is not null and not exists (
                select from @extschema@.caliber_message as m
                where m.message_id = g.in_reply_to and (
                    m.from_agent_id = $1 or exists (
                        select from @extschema@.caliber_delivery as d
                        where d.message_id = m.message_id and d.agent_id = $1
                    )
                )
            ) then 'in_reply_to'
        end as what,
        g.to_agent_id, g.to_agent_type, g.message_type, g.in_reply_to
    from ({_GIVEN}) as g
    """,
    "uuid",
    "jsonb",
)

# The server's table of locks is small: whose key is not tried for is simply notified.
_QUEUES = plan(
    f"""
    select
        q.to_agent_id, q.to_agent_type, q.messages, q.queue_id,
        case when q.place <= {messages.MOST_KEYS}
            and {messages.MODE} = 'armed'
            and pg_catalog.current_setting('transaction_isolation') = 'read committed'
            then pg_catalog.pg_try_advisory_xact_lock_shared(pg_catalog.uuid_hash_extended(q.queue_id, 0))
            else false
        end as locked
    from (
        select
            g.to_agent_id, g.to_agent_type, g.queue_id, pg_catalog.count(*) as messages,
            pg_catalog.row_number() over () as place
        from ({_GIVEN}) as g
        group by g.to_agent_id, g.to_agent_type, g.queue_id
    ) as q
    """,
    "uuid",
    "jsonb",
)

# $3 queues whose key is held, $4 versions of the schemas by place. A key that is taken
# returns the message that has it.
_SEND = plan(
    f"""
    with given as materialized (
        select
            g.*,
            @extschema@._caliber_uuid_v7({messages.SHARD}) as id,
            pg_catalog.clock_timestamp() as at
        from ({_GIVEN}) as g
    ),
    made as (
        insert into @extschema@.caliber_message as m (
            message_id, from_agent_id, to_agent_id, to_agent_type, message_type, payload,
            trajectory_id, priority, subject, body, scope_id, artifact_ids, channel,
            in_reply_to, thread_id, requires_response, created_at, expires_at,
            idempotency_key, schema_name, schema_version
        )
        select
            g.id, $1, g.to_agent_id, g.to_agent_type, g.message_type, coalesce(g.payload, '{{}}'),
            g.trajectory_id, coalesce(g.priority, 'normal'), g.subject, g.body, g.scope_id,
            g.artifact_ids, coalesce(g.channel, 'direct'), g.in_reply_to,
            coalesce(
                (select p.thread_id from @extschema@.caliber_message as p where p.message_id = g.in_reply_to),
                g.id
            ),
            coalesce(g.requires_response, false), g.at, g.at + g.ttl_ms * interval '1 ms',
            g.idempotency_key, g.schema_name, ($4)[g.place]
        from given as g
        on conflict (from_agent_id, idempotency_key) where idempotency_key is not null do nothing
        returning m.message_id, m.priority, m.expires_at, m.created_at
    ),
    put as (
        insert into @extschema@.caliber_delivery as d (
            message_id, queue_id, from_agent_id, seq, visible_at, priority, agent_id, expires_at
        )
        select
            m.message_id, g.queue_id, $1, {messages.SEQ}, m.created_at, m.priority, g.to_agent_id,
            m.expires_at
        from given as g
        inner join made as m on g.id = m.message_id
        order by g.place
        returning d.queue_id
    ),
    disarmed as (
        update @extschema@.caliber_queue_waiter as w
        set armed = false
        where w.ctid = any (array(
            select x.ctid
            from @extschema@.caliber_queue_waiter as x
            where x.queue_id = any ($3) and x.armed
            for no key update skip locked
        ))
    ),
    woken as (
        select pg_catalog.count(
            case
                when mode.mode = 'off' or pg_catalog.pg_notification_queue_usage() > 0.25 then null
                when mode.mode = 'always' then pg_catalog.pg_notify(
                    'caliber_agent_message',
                    '{{"message_id":null,"to_agent_id":'
                    || coalesce('"' || q.to_agent_id || '"', 'null') || ',"to_agent_type":'
                    || coalesce('"' || q.to_agent_type || '"', 'null') || '}}'
                )::text
                when not q.queue_id = any ($3) or exists (
                    select from @extschema@.caliber_queue_waiter as w
                    where w.queue_id = q.queue_id and w.armed
                ) then pg_catalog.pg_notify(
                    'caliber_message_' || pg_catalog.replace(q.queue_id::text, '-', ''), ''
                )::text
            end
        ) as times
        from (select distinct g.queue_id, g.to_agent_id, g.to_agent_type from given as g) as q
        cross join (select {messages.MODE} as mode) as mode
    )
    select
        g.id, g.idempotency_key,
        exists (select from made as m where m.message_id = g.id) as is_new,
        (select w.times from woken as w) as woken
    from given as g
    order by g.place
    """,
    "uuid",
    "jsonb",
    "uuid[]",
    "int4[]",
)

_KEPT = plan(
    f"""
    select
        g.place, g.idempotency_key, m.message_id,
        m.to_agent_id is not distinct from g.to_agent_id
        and m.to_agent_type is not distinct from g.to_agent_type
        and m.message_type = g.message_type
        and m.payload = coalesce(g.payload, '{{}}')
        and m.body is not distinct from g.body as is_same
    from ({_GIVEN}) as g
    inner join @extschema@.caliber_message as m
        on m.from_agent_id = $1 and m.idempotency_key = g.idempotency_key
    order by g.place
    """,
    "uuid",
    "jsonb",
)


def send_batch(from_agent_id: str | None, batch: str | None, incarnation: int | None) -> list[str]:
    messages_rules.acting(from_agent_id, incarnation)
    text = _checked(batch)
    keyed = '"idempotency_key"' in text
    versions = _versions(text) if '"schema_name"' in text else []
    places = list(_WRONG.rows(from_agent_id, text))
    if not 1 <= len(places) <= MAX_BATCH:
        errors.invalid("messages", f"{len(places)} messages", f"must hold 1 to {MAX_BATCH} messages")
    for row in places:
        if row["what"] is not None:
            _refuse(str(from_agent_id), row)
    if keyed:
        kept = _kept(str(from_agent_id), text)
        # A whole batch that is repeated needs no room in the queues.
        if len(kept) == len(places):
            return list(kept.values())
    locked = []
    limit = messages_settings.fresh().queue_limit
    for queue in _QUEUES.rows(from_agent_id, text):
        messages_limits.take(
            limit, str(from_agent_id), queue["to_agent_id"], queue["to_agent_type"], int(queue["messages"])
        )  # fmt: skip
        if queue["locked"]:
            locked.append(queue["queue_id"])
    sent = list(_SEND.rows(from_agent_id, text, locked, versions))
    if not keyed:
        return [row["id"] for row in sent]
    # What was there under its key keeps the id it had.
    kept = _kept(str(from_agent_id), text)
    return [row["id"] if row["is_new"] else kept[place] for place, row in enumerate(sent, 1)]


def _checked(batch: str | None) -> str:
    checks.required("messages", batch)
    text = str(batch)
    if not text.startswith("["):
        errors.invalid("messages", text, "must be a json array of objects")
    if len(text) > MAX_BYTES // 4 and len(text.encode()) > MAX_BYTES:
        errors.invalid("messages", text, f"must be at most {MAX_BYTES} bytes of json")
    return text


def _versions(text: str) -> list[int | None]:
    import json

    from caliber import message_schemas

    return [
        message_schemas.validated(given["schema_name"], json.dumps(given.get("payload", {})))
        if isinstance(given, dict) and given.get("schema_name") is not None
        else None
        for given in message_schemas.loaded("messages", text)
    ]


def _refuse(sender: str, row: dict[str, Any]) -> None:
    what, place = row["what"], row["place"]
    if what == "recipient":
        messages_rules.one_recipient(row["to_agent_id"], row["to_agent_type"])
    if what == "message_type":
        messages_rules.known_type(row["message_type"])
    if what == "to_agent_id":
        messages_rules.refuse_recipient(sender, row["to_agent_id"])
    if what == "in_reply_to":
        messages_rules.parent(row["in_reply_to"], sender)
    errors.fail(
        errors.INVALID,
        f"{what} of a message does not fit",
        detail=f"It is message {place} of the batch; nothing was sent.",
        hint="The limits are those of caliber_message_send.",
    )


def _kept(sender: str, text: str) -> dict[int, str]:
    """By place, the messages that are there under the keys of this batch."""
    kept = {}
    for row in _KEPT.rows(sender, text):
        if not row["is_same"]:
            messages_rules.other_message(row["idempotency_key"], row["message_id"])
        kept[int(row["place"])] = row["message_id"]
    return kept
