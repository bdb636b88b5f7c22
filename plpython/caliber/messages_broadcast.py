"""Messages: one to many. One message, and a delivery in the inbox of each recipient.

Who is a recipient is decided by the statement that sends. Wake-ups are as for one message: in
the mode always a single notification, in the mode armed one for each reader that sleeps.
"""

from __future__ import annotations

from typing import Any

from caliber import checks, errors, ids, messages, messages_rules
from caliber.plans import plan

# Agents of the team, or of the channel. Members in other teams get what an admin sends, and only
# if an admin put them there: anybody can join a channel whose name it knows.
_RECIPIENTS = """
    select r.agent_id
    from @extschema@.caliber_agent as s
    inner join @extschema@.caliber_agent as r
        on r.agent_id <> s.agent_id
        and r.terminated_at is null
        and ($3 is null or r.agent_type = $3)
        and case
            when $2 = 'team' then r.team_id = s.team_id
            else (r.team_id = s.team_id or @extschema@._caliber_is_admin()) and exists (
                select from @extschema@.caliber_channel_member as c
                where c.channel = $2 and c.agent_id = r.agent_id
                    and (r.team_id = s.team_id or c.by_admin)
            )
        end
    where s.agent_id = $1
        and s.terminated_at is null
        and (s.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
"""

# The server's table of locks is small: whose key is not tried for is simply notified.
_KEYS = plan(
    f"""
    select coalesce(pg_catalog.array_agg(k.agent_id) filter (where k.locked), '{{}}') as locked
    from (
        select
            r.agent_id,
            pg_catalog.current_setting('transaction_isolation') = 'read committed'
            and pg_catalog.pg_try_advisory_xact_lock_shared(
                pg_catalog.uuid_hash_extended(r.agent_id, 0)
            ) as locked
        from ({_RECIPIENTS} limit {messages.MOST_KEYS}) as r
        where {messages.MODE} = 'armed'
    ) as k
    """,
    "uuid",
    "text",
    "text",
)

_FULL = plan(
    f"""
    select r.agent_id, full_queue.setting
    from ({_RECIPIENTS}) as r
    cross join (select {messages.LIMIT} as setting) as full_queue
    cross join lateral (
        select pg_catalog.count(*) as messages
        from (
            select
            from @extschema@.caliber_delivery as d
            where d.queue_id = r.agent_id
                and d.processed_at is null
                and d.dead_at is null
                and (d.expires_at is null or d.expires_at > pg_catalog.clock_timestamp())
                and d.seq >= coalesce(
                    (select m.low from @extschema@.caliber_queue_mark as m where m.queue_id = r.agent_id), 0
                )
            limit full_queue.setting::bigint
        ) as open
    ) as waiting
    where full_queue.setting <> '0' and waiting.messages >= full_queue.setting::bigint
    limit 1
    """,
    "uuid",
    "text",
    "text",
)

_SEND = plan(
    f"""
    with recipient as materialized ({_RECIPIENTS}),
    made as (
        insert into @extschema@.caliber_message as m (
            message_id, from_agent_id, channel, to_agent_type, message_type, payload,
            trajectory_id, priority, subject, body, scope_id, artifact_ids,
            in_reply_to, thread_id, requires_response, created_at, expires_at,
            idempotency_key, schema_name, schema_version
        )
        select
            new.id, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, coalesce($13, new.id),
            $14, new.at, new.at + $15 * interval '1 ms', $16, $17, $18
        from (
            select
                {ids.NEW} as id,
                pg_catalog.clock_timestamp() as at
        ) as new
        where exists (select from recipient as r)
            and exists (select from @extschema@.caliber_message_type as t where t.message_type = $4)
            and ($19 is null or exists (
                select from @extschema@.caliber_agent_beat as b
                where b.agent_id = $1 and b.incarnation = $19
            ))
        on conflict (from_agent_id, idempotency_key) where idempotency_key is not null do nothing
        returning m.message_id, m.created_at, m.expires_at
    ),
    put as (
        insert into @extschema@.caliber_delivery as d (
            message_id, queue_id, from_agent_id, seq, visible_at, priority, agent_id, expires_at
        )
        select
            m.message_id, r.agent_id, $1, {messages.SEQ}, m.created_at, $7, r.agent_id, m.expires_at
        from made as m
        cross join recipient as r
        returning d.queue_id
    ),
    disarmed as (
        update @extschema@.caliber_queue_waiter as w
        set armed = false
        where w.ctid = any (array(
            select x.ctid
            from @extschema@.caliber_queue_waiter as x
            where x.queue_id = any ($20) and x.armed
            for no key update skip locked
        ))
    ),
    woken as (
        select pg_catalog.count(
            case
                when mode.mode = 'off' or pg_catalog.pg_notification_queue_usage() > 0.25 then null
                -- The same for every recipient, so the server sends it once.
                when mode.mode = 'always' then pg_catalog.pg_notify(
                    'caliber_agent_message',
                    '{{"message_id":"' || (select m.message_id from made as m)
                    || '","to_agent_id":null,"to_agent_type":' || coalesce('"' || $3 || '"', 'null') || '}}'
                )::text
                when not p.queue_id = any ($20) or exists (
                    select from @extschema@.caliber_queue_waiter as w
                    where w.queue_id = p.queue_id and w.armed
                ) then pg_catalog.pg_notify(
                    'caliber_message_' || pg_catalog.replace(p.queue_id::text, '-', ''), ''
                )::text
            end
        ) as times
        from put as p
        cross join (select {messages.MODE} as mode) as mode
    )
    select
        (select m.message_id from made as m) as message_id,
        (select pg_catalog.count(*)::integer from put as p) as recipients,
        (select pg_catalog.count(*) from recipient as r) as wanted,
        (select w.times from woken as w) as woken
    """,
    "uuid", "text", "text", "text", "jsonb", "uuid", "@extschema@.caliber_message_priority", "text",
    "text", "uuid", "uuid[]", "uuid", "uuid", "bool", "int8", "text", "text", "int4", "int8", "uuid[]",
)  # fmt: skip

_SENT_BEFORE = plan(
    """
    select
        m.message_id,
        (
            select pg_catalog.count(*)::integer from @extschema@.caliber_delivery as d
            where d.message_id = m.message_id
        ) as recipients,
        m.to_agent_id is null and m.channel = $3 and m.message_type = $4 and m.payload = $5
        and m.to_agent_type is not distinct from $6 and m.body is not distinct from $7 as is_same
    from @extschema@.caliber_message as m
    where m.from_agent_id = $1 and m.idempotency_key = $2
    """,
    "uuid",
    "text",
    "text",
    "text",
    "jsonb",
    "text",
    "text",
)


def broadcast_rows(*arguments: Any) -> list[dict[str, Any]]:
    return [broadcast(*arguments)]


def broadcast(
    from_agent_id: str | None,
    message_type: str | None,
    payload: str | None,
    to_agent_type: str | None,
    channel: str | None,
    priority: str | None,
    subject: str | None,
    body: str | None,
    trajectory_id: str | None,
    scope_id: str | None,
    artifact_ids: list[str | None] | None,
    in_reply_to: str | None,
    requires_response: bool | None,
    ttl_ms: int | None,
    idempotency_key: str | None,
    schema_name: str | None,
    incarnation: int | None,
) -> dict[str, Any]:
    checks.required("message_type", message_type)
    checks.required("priority", priority)
    if to_agent_type is not None:
        checks.slug("to_agent_type", to_agent_type)
    if channel is None or channel == "direct":
        errors.invalid("channel", channel, "must be team, task:{id} or collab:{id}")
    messages_rules.channel(channel)
    messages_rules.payload(payload)
    messages_rules.content(subject, body, artifact_ids)
    checks.between("ttl_ms", ttl_ms, 1, messages_rules.MAX_TTL_MS)
    if idempotency_key is not None:
        messages_rules.key(idempotency_key)
    messages_rules.acting(from_agent_id, incarnation)
    messages_rules.known_type(message_type)
    thread_id = messages_rules.thread_of(in_reply_to, str(from_agent_id)) if in_reply_to else None
    version = None
    if schema_name is not None:
        from caliber import message_schemas

        version = message_schemas.validated(schema_name, str(payload))
    same = (from_agent_id, idempotency_key, channel, message_type, payload, to_agent_type, body)
    if idempotency_key is not None:
        before = _sent_before(*same)
        if before is not None:
            return before
    _refuse_full(from_agent_id, channel, to_agent_type)
    locked = (_KEYS.one(from_agent_id, channel, to_agent_type) or {})["locked"]
    row = _SEND.one(
        from_agent_id, channel, to_agent_type, message_type, payload, trajectory_id, priority, subject,
        body, scope_id, artifact_ids, in_reply_to, thread_id, bool(requires_response), ttl_ms,
        idempotency_key, schema_name, version, incarnation, locked,
    ) or {}  # fmt: skip
    if row["message_id"] is None and row["wanted"]:
        return _sent_before(*same) or messages_rules.changed()
    return row


def _refuse_full(sender: str | None, channel: str, agent_type: str | None) -> None:
    """All or none: a recipient that is left out would never know."""
    full = _FULL.one(sender, channel, agent_type)
    if full is not None:
        errors.fail(
            errors.AT_CAPACITY,
            "the queue of a recipient is full",
            detail=f"{full['setting']} messages wait for agent {full['agent_id']}; nothing was sent.",
            hint="Send again later; the setting message_queue_limit says how many may wait.",
        )


def _sent_before(sender: str | None, key: str | None, *content: str | None) -> dict[str, Any] | None:
    found = _SENT_BEFORE.one(sender, key, *content) if key else None
    if found is not None and not found.pop("is_same"):
        messages_rules.other_message(str(key), found["message_id"])
    return found
