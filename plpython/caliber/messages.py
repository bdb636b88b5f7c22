"""Messages: sending one. The contract is in sql/schema/messages.sql.

Sending is one statement: it checks sender, recipient and type, writes content and delivery,
and notifies. In the notify mode armed it tries for the recipient's key instead, and a second
statement, whose snapshot is later than that, reads whether there is somebody to be woken.
"""

from __future__ import annotations

from typing import Any

from caliber import checks, errors, messages_armed, messages_limits, messages_rules, messages_settings
from caliber.plans import Statement, plan

# Places are drawn after the transaction has its id: see messages_marks.
SEQ = """case
            when pg_catalog.pg_current_xact_id() is not null
                then pg_catalog.nextval('@extschema@.caliber_message_seq')
        end"""
MODE = """coalesce(
            (select s.value from @extschema@.caliber_setting as s where s.key = 'notify_mode'), 'always'
        )"""
LIMIT = """coalesce(
            (select s.value from @extschema@.caliber_setting as s where s.key = 'message_queue_limit'),
            '1000'
        )"""

# How many keys one batch or broadcast tries for.
MOST_KEYS = 100

_TYPES = (
    "uuid", "uuid", "text", "text", "jsonb", "uuid", "@extschema@.caliber_message_priority",
    "text", "text", "uuid", "uuid[]", "text", "uuid", "uuid", "bool", "int8", "text", "text",
    "int4", "int8", "uuid", "int8",
)  # fmt: skip

# Made of parts, so that a message pays for what it uses only: setting up a part of a statement
# costs about as much as running it. $20 incarnation, $21 the new id, $22 the settings this
# session knows.
_SEND = """
    with made as (
        insert into @extschema@.caliber_message as m (
            message_id, from_agent_id, to_agent_id, to_agent_type, message_type, payload,
            trajectory_id, priority, subject, body, scope_id, artifact_ids, channel,
            in_reply_to, thread_id, requires_response, expires_at,
            idempotency_key, schema_name, schema_version
        )
        select
            $21, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, coalesce($14, $21),
            $15, pg_catalog.clock_timestamp() + $16 * interval '1 ms', $17, $18, $19
        from @extschema@.caliber_agent as s
        {recipient}
        where s.agent_id = $1
            and $22 = {settings}
            {allowed}
            {incarnation}
        {conflict}
        returning m.created_at, m.expires_at
    )
    insert into @extschema@.caliber_delivery (
        message_id, queue_id, from_agent_id, seq, visible_at, priority, agent_id, expires_at
    )
    select $21, {queue}, $1, {seq}, m.created_at, $7, $2, m.expires_at
    from made as m
    returning {notify}
"""

_ALLOWED = """
            and s.terminated_at is null
            and (s.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
"""

_TO_AGENT = """
            inner join @extschema@.caliber_agent as r
                on r.agent_id = $2
                and r.terminated_at is null
                {reach}
"""
_REACH = """
                and (
                    r.team_id = s.team_id
                    or @extschema@._caliber_is_admin()
                    or @extschema@._caliber_may_send($1, $2)
                )
"""

_INCARNATION = """
            and exists (
                select from @extschema@.caliber_agent_beat as b
                where b.agent_id = $1 and b.incarnation = $20
            )
"""

_CONFLICT = """
        on conflict (from_agent_id, idempotency_key) where idempotency_key is not null do nothing
"""

_NOTIFY = {
    "off": "null",
    "always": """
        case when pg_catalog.pg_notification_queue_usage() <= 0.25 then pg_catalog.pg_notify(
            'caliber_agent_message',
            '{{"message_id":"' || $21::text || '","to_agent_id":'
            || coalesce('"' || $2::text || '"', 'null') || ',"to_agent_type":'
            || coalesce('"' || $3 || '"', 'null') || '}}'
        ) end
    """,
    "armed": f"queue_id, {messages_armed.TRY_KEY} as has_key",
}

# For verbs that rarely put something back into a queue: whether somebody sleeps is not asked.
# Of back, with message_id, queue_id and agent_id.
WAKE = f"""
        case when {MODE} <> 'off' and pg_catalog.pg_notification_queue_usage() <= 0.25
            then pg_catalog.pg_notify(
                case when {MODE} = 'always' then 'caliber_agent_message'
                    else 'caliber_message_' || pg_catalog.replace(back.queue_id::text, '-', '')
                end,
                case when {MODE} = 'always'
                    then '{{{{"message_id":"' || back.message_id || '","to_agent_id":'
                        || coalesce('"' || back.agent_id || '"', 'null') || ',"to_agent_type":'
                        || coalesce(
                            case when back.agent_id is null then (
                                select '"' || m.to_agent_type || '"' from @extschema@.caliber_message as m
                                where m.message_id = back.message_id
                            ) end,
                            'null'
                        ) || '}}}}'
                    else ''
                end
            )
        end
"""

# For messages to a type: the team is not at hand behind the insert.
_TYPE_QUEUE = """@extschema@._caliber_type_queue(
            (select a.team_id from @extschema@.caliber_agent as a where a.agent_id = $1), $3
        )"""

_plans: dict[tuple[bool, bool, bool, str, bool], Statement] = {}


def _statement(to_agent: bool, keyed: bool, incarnation: bool, mode: str, notice: bool = False) -> Statement:
    found = _plans.get((to_agent, keyed, incarnation, mode, notice))
    if found is None:
        queue = "$2" if to_agent else _TYPE_QUEUE
        text = _SEND.format(
            recipient=_TO_AGENT.format(reach="" if notice else _REACH) if to_agent else "",
            allowed="" if notice else _ALLOWED,
            settings=messages_settings.STAMP,
            incarnation=_INCARNATION if incarnation else "",
            conflict=_CONFLICT if keyed else "",
            queue=queue,
            seq=SEQ,
            notify=_NOTIFY[mode].format(queue=queue),
        )
        found = _plans[to_agent, keyed, incarnation, mode, notice] = plan(text, *_TYPES)
    return found


def send(
    from_agent_id: str | None,
    to_agent_id: str | None,
    to_agent_type: str | None,
    message_type: str | None,
    payload: str | None,
    trajectory_id: str | None,
    priority: str | None,
    subject: str | None,
    body: str | None,
    scope_id: str | None,
    artifact_ids: list[str | None] | None,
    channel: str | None,
    in_reply_to: str | None,
    requires_response: bool | None,
    ttl_ms: int | None,
    idempotency_key: str | None,
    schema_name: str | None,
    incarnation: int | None,
) -> str:
    if from_agent_id is None or message_type is None or priority is None:
        checks.required("from_agent_id", from_agent_id)
        checks.required("message_type", message_type)
        checks.required("priority", priority)
    if (to_agent_id is None) == (to_agent_type is None):
        if to_agent_id is None and channel not in (None, "direct"):
            return _to_channel(
                from_agent_id, message_type, payload, channel, priority, subject, body, trajectory_id,
                scope_id, artifact_ids, in_reply_to, requires_response, ttl_ms, idempotency_key,
                schema_name, incarnation,
            )  # fmt: skip
        messages_rules.one_recipient(to_agent_id, to_agent_type)
    if to_agent_type is not None:
        checks.slug("to_agent_type", to_agent_type)
    if payload is None or len(payload) > messages_rules.SURELY_SHORT:
        messages_rules.payload(payload)
    if subject is not None or body is not None or artifact_ids is not None:
        messages_rules.content(subject, body, artifact_ids)
    if channel is None:
        channel = "direct"
    elif channel != "direct":
        messages_rules.channel(channel)
    if ttl_ms is not None:
        checks.between("ttl_ms", ttl_ms, 1, messages_rules.MAX_TTL_MS)
    if idempotency_key is not None:
        messages_rules.key(idempotency_key)
    thread_id = None
    if in_reply_to is not None:
        thread_id = messages_rules.thread_of(in_reply_to, str(from_agent_id))
    schema_version = None
    if schema_name is not None:
        from caliber import message_schemas

        schema_version = message_schemas.validated(schema_name, str(payload))
    arguments = (
        from_agent_id, to_agent_id, to_agent_type, message_type, payload, trajectory_id, priority,
        subject, body, scope_id, artifact_ids, channel, in_reply_to, thread_id,
        bool(requires_response), ttl_ms, idempotency_key, schema_name, schema_version, incarnation,
    )  # fmt: skip
    return _send(arguments)


def _send(arguments: tuple[Any, ...]) -> str:
    sender, agent, agent_type = arguments[0], arguments[1], arguments[2]
    key, incarnation = arguments[16], arguments[19]
    messages_rules.known_type(arguments[3])
    stale = False
    while True:
        settings = messages_settings.known()
        try:
            messages_limits.take(settings.queue_limit, sender, agent, agent_type)
        except errors.CaliberError:
            # What is in the queue already needs no room in it.
            known = messages_rules.sent_before(arguments) if key is not None else None
            if known is None:
                raise
            return known
        message_id = messages_settings.new_id(settings)
        statement = _statement(
            agent is not None, key is not None, incarnation is not None, settings.notify_mode
        )
        if _written(statement, settings, arguments, message_id):
            return message_id
        if key is not None:
            known = messages_rules.sent_before(arguments)
            if known is not None:
                return known
        messages_rules.acting(sender, incarnation)
        messages_rules.refuse_recipient(sender, agent)
        if stale:
            messages_rules.changed()
        # Everything is as it should be, so what this session knew of the settings is stale.
        stale = True
        messages_settings.forget()
        messages_limits.forget()


def _written(
    statement: Statement, settings: messages_settings.Settings, arguments: tuple[Any, ...], message_id: str
) -> bool:
    """Whether the message was sent; who sleeps is woken."""
    sent = statement.one(*arguments, message_id, settings.stamp)
    if sent is None:
        return False
    if settings.notify_mode == "armed":
        messages_armed.wake(sent["queue_id"], sent["has_key"])
    return True


def notice(
    sender: str,
    agent: str | None,
    agent_type: str | None,
    message_type: str,
    payload: str,
    trajectory_id: str | None,
    priority: str,
    subject: str | None,
    channel: str,
) -> str | None:
    """What another verb tells of itself, in its own transaction; none when nobody is there to be told.

    The verb has decided who may do what. A full inbox, another team or a sender that has ended
    must not undo what it did, so none of them is looked at.
    """
    arguments = (
        sender, agent, agent_type, message_type, payload, trajectory_id, priority, subject,
        None, None, None, channel, None, None, False, None, None, None, None, None,
    )  # fmt: skip
    for _ in range(2):
        settings = messages_settings.known()
        message_id = messages_settings.new_id(settings)
        statement = _statement(agent is not None, False, False, settings.notify_mode, notice=True)
        if _written(statement, settings, arguments, message_id):
            return message_id
        # The recipient has ended, or what this session knew of the settings is stale.
        messages_settings.forget()
    return None


def _to_channel(
    from_agent_id: str | None,
    message_type: str | None,
    payload: str | None,
    channel: str | None,
    priority: str | None,
    *further: Any,
) -> str:
    from caliber import messages_broadcast

    sent = messages_broadcast.broadcast(
        from_agent_id, message_type, payload, None, channel, priority, *further
    )
    if sent["message_id"] is None:
        errors.fail(
            errors.UNAVAILABLE,
            "nobody else is in this channel",
            detail=f"The channel is {errors.shown(channel)}.",
            hint="caliber_channel_join puts an agent into it; caliber_message_broadcast returns 0 instead.",
        )
    message_id: str = sent["message_id"]
    return message_id
