"""Messages: sending many at once, all or none, in one statement.

The messages come as one json array and are taken apart by the statement itself, which checks
them and writes all or nothing; Python reads them only when one names a schema. Each time json
goes from Python to a statement costs as much as writing a tenth of the messages, so but for the look
at who sends, a statement runs before only where a limit, a key or a reader that sleeps asks for it.
"""

from __future__ import annotations

from typing import Any

from caliber import checks, errors, messages, messages_limits, messages_rules, messages_settings
from caliber.plans import Statement, plan

MAX_BATCH = 1000
MAX_BYTES = 16 * 1024 * 1024

_COLUMNS = """
        to_agent_id uuid, to_agent_type text, message_type text, payload jsonb, trajectory_id uuid,
        priority @extschema@.caliber_message_priority, subject text, body text, scope_id uuid,
        artifact_ids uuid[], channel text, in_reply_to uuid, requires_response boolean,
        ttl_ms bigint, idempotency_key text, schema_name text
"""

_NAMES = """
        to_agent_id, to_agent_type, message_type, payload, trajectory_id, priority, subject, body,
        scope_id, artifact_ids, channel, in_reply_to, requires_response, ttl_ms, idempotency_key,
        schema_name
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
    with ordinality as g ({_NAMES}, place)
"""

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
        where g.queue_id is not null and pg_catalog.jsonb_array_length($2) <= {MAX_BATCH}
        group by g.to_agent_id, g.to_agent_type, g.queue_id
    ) as q
    """,
    "uuid",
    "jsonb",
)

# $3 queues whose key is held, $4 versions of the schemas by place, $5 the new ids, $6 the settings
# this session knows, $7 incarnation, $8 whether a payload could be too long.
# Made of parts, as the statement that sends one. No part joins tables of unknown size: each
# message looks up what it needs, so that the plan is the same whenever it is made.
_SEND = f"""
    with sender as materialized (
        select s.team_id
        from @extschema@.caliber_agent as s
        where s.agent_id = $1
            and s.terminated_at is null
            and (s.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
            and $6 = {messages_settings.STAMP}
            {{incarnation}}
    ),
    given as materialized (
        select
            g.*,
            coalesce(
                g.to_agent_id,
                @extschema@._caliber_type_queue((select s.team_id from sender as s), g.to_agent_type)
            ) as queue_id
        from rows from (
            pg_catalog.jsonb_to_recordset($2) as ({_COLUMNS}),
            pg_catalog.unnest($5)
        )
        with ordinality as g ({_NAMES}, id, place)
        where g.place <= pg_catalog.jsonb_array_length($2)
    ),
    wrong as materialized (
        select w.place, w.what, w.to_agent_id, w.to_agent_type, w.message_type, w.in_reply_to
        from (
            select
                case
                    when (g.to_agent_id is null) = (g.to_agent_type is null) then 'recipient'
                    when not exists (
                        select from @extschema@.caliber_message_type as t
                        where t.message_type = g.message_type
                    ) then 'message_type'
                    when g.to_agent_id is not null and not exists (
                        select from @extschema@.caliber_agent as r
                        where r.agent_id = g.to_agent_id
                            and r.terminated_at is null
                            and (
                                (select @extschema@._caliber_is_admin())
                                or @extschema@._caliber_may_send($1, g.to_agent_id)
                            )
                    ) then 'to_agent_id'
                    when $8 and pg_catalog.octet_length(g.payload::text) > {checks.MAX_PAYLOAD}
                        then 'payload'
                    when pg_catalog.length(g.subject) > {messages_rules.MAX_SUBJECT} then 'subject'
                    when pg_catalog.length(g.body) > {messages_rules.MAX_BODY} then 'body'
                    when pg_catalog.cardinality(g.artifact_ids) > {messages_rules.MAX_ARTIFACTS}
                        or pg_catalog.array_position(g.artifact_ids, null) is not null then 'artifact_ids'
                    when g.channel is not null
                        and not g.channel ~ '^(direct|(task|collab):(?=.*\\S).{{{{1,190}}}})$' then 'channel'
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
                g.place, g.to_agent_id, g.to_agent_type, g.message_type, g.in_reply_to
            from given as g
        ) as w
        where w.what is not null
        limit 1
    ),
    go as materialized (
        select s.team_id, pg_catalog.clock_timestamp() as at
        from sender as s
        where not exists (select from wrong)
            and pg_catalog.jsonb_array_length($2) between 1 and {MAX_BATCH}
    ),
    made as (
        insert into @extschema@.caliber_message as m (
            message_id, from_agent_id, to_agent_id, to_agent_type, message_type, payload,
            trajectory_id, priority, subject, body, scope_id, artifact_ids, channel,
            in_reply_to, thread_id, requires_response, created_at, expires_at,
            idempotency_key, schema_name, schema_version
        )
        select
            g.id, $1, g.to_agent_id, g.to_agent_type, g.message_type, coalesce(g.payload, '{{{{}}}}'),
            g.trajectory_id, coalesce(g.priority, 'normal'), g.subject, g.body, g.scope_id,
            g.artifact_ids, coalesce(g.channel, 'direct'), g.in_reply_to,
            case when g.in_reply_to is null then g.id else (
                select p.thread_id from @extschema@.caliber_message as p where p.message_id = g.in_reply_to
            ) end,
            coalesce(g.requires_response, false), go.at, go.at + g.ttl_ms * interval '1 ms',
            g.idempotency_key, g.schema_name, ($4)[g.place]
        from go
        cross join given as g
        {{conflict}}
        returning m.message_id
    ),
    put as (
        insert into @extschema@.caliber_delivery as d (
            message_id, queue_id, from_agent_id, seq, visible_at, priority, agent_id, expires_at
        )
        select
            g.id, g.queue_id, $1, {messages.SEQ}, go.at, coalesce(g.priority, 'normal'), g.to_agent_id,
            go.at + g.ttl_ms * interval '1 ms'
        from go
        cross join given as g
        {{new_only}}
    )
    {{disarm}}
    select
        exists (select from sender) as may_send,
        pg_catalog.jsonb_array_length($2) as messages,
        w.place, w.what, w.to_agent_id, w.to_agent_type, w.message_type, w.in_reply_to,
        {{new}} as new_ids,
        {{woken}} as woken
    from (values (true)) as one (row)
    left join wrong as w on true
"""

_INCARNATION = """
            and exists (
                select from @extschema@.caliber_agent_beat as b
                where b.agent_id = $1 and b.incarnation = $7
            )
"""
# A key that is taken returns the message that has it.
_CONFLICT = "on conflict (from_agent_id, idempotency_key) where idempotency_key is not null do nothing"
_NEW_ONLY = "where g.id in (select m.message_id from made as m)"
_NEW = "array(select m.message_id from made as m)"

_DISARM = """,
    disarmed as (
        update @extschema@.caliber_queue_waiter as w
        set armed = false
        where w.ctid = any (array(
            select x.ctid
            from @extschema@.caliber_queue_waiter as x
            where x.queue_id = any ($3) and x.armed
            for no key update skip locked
        ))
    )
"""

_WOKEN = """(
            select pg_catalog.count(
                case when pg_catalog.pg_notification_queue_usage() <= 0.25 and {who}
                    then pg_catalog.pg_notify({channel})::text
                end
            )
            from (
                select distinct g.queue_id, g.to_agent_id, g.to_agent_type from go cross join given as g
            ) as q
        )"""
_NOTIFY = {
    "off": "null",
    "always": _WOKEN.format(
        who="true",
        channel="""
                    'caliber_agent_message',
                    '{"message_id":null,"to_agent_id":'
                    || coalesce('"' || q.to_agent_id || '"', 'null') || ',"to_agent_type":'
                    || coalesce('"' || q.to_agent_type || '"', 'null') || '}'
        """,
    ),
    "armed": _WOKEN.format(
        who="""(
                    not q.queue_id = any ($3) or exists (
                        select from @extschema@.caliber_queue_waiter as w
                        where w.queue_id = q.queue_id and w.armed
                    )
                )""",
        channel="'caliber_message_' || pg_catalog.replace(q.queue_id::text, '-', ''), ''",
    ),
}

_plans: dict[tuple[bool, bool, str], Statement] = {}


def _statement(keyed: bool, incarnation: bool, mode: str) -> Statement:
    found = _plans.get((keyed, incarnation, mode))
    if found is None:
        text = _SEND.format(
            incarnation=_INCARNATION if incarnation else "",
            conflict=_CONFLICT if keyed else "",
            new_only=_NEW_ONLY if keyed else "",
            new=_NEW if keyed else "null",
            disarm=_DISARM if mode == "armed" else "",
            woken=_NOTIFY[mode],
        )
        found = plan(text, "uuid", "jsonb", "uuid[]", "int4[]", "uuid[]", "int8", "int8", "bool")
        _plans[keyed, incarnation, mode] = found
    return found


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
    checks.required("from_agent_id", from_agent_id)
    sender = str(from_agent_id)
    # First of all, so that whoever passes for another is told nothing else.
    messages_rules.acting(sender, incarnation)
    text = _checked(batch)
    keyed = '"idempotency_key"' in text
    versions = _versions(text) if '"schema_name"' in text else []
    stale = False
    while True:
        settings = messages_settings.known()
        locked: list[str] = []
        if settings.queue_limit or settings.notify_mode == "armed":
            kept = _kept(sender, text) if keyed else {}
            locked = _prepared(sender, text, settings.queue_limit, len(kept))
        # Each message names its type, so there are at most as many; a payload may name it too.
        ids = messages_settings.new_ids(settings, min(text.count('"message_type"'), MAX_BATCH))
        long = len(text) > messages_rules.SURELY_SHORT
        statement = _statement(keyed, incarnation is not None, settings.notify_mode)
        sent = statement.rows(sender, text, locked, versions, ids, settings.stamp, incarnation, long)[0]
        if sent["may_send"]:
            break
        messages_rules.acting(sender, incarnation)
        if stale:
            messages_rules.changed()
        # All is as it should be with the sender, so what this session knew of the settings is stale.
        stale = True
        messages_settings.forget()
        messages_limits.forget()
    if not 1 <= sent["messages"] <= MAX_BATCH:
        errors.invalid("messages", f"{sent['messages']} messages", f"must hold 1 to {MAX_BATCH} messages")
    if sent["what"] is not None:
        _refuse(sender, sent)
    ids = ids[: sent["messages"]]
    if not keyed:
        return ids
    # What was there under its key keeps the id it had.
    new = {number.replace("-", "") for number in sent["new_ids"]}
    kept = _kept(sender, text) if len(new) < sent["messages"] else {}
    return [number if number in new else kept[place] for place, number in enumerate(ids, 1)]


def _prepared(sender: str, text: str, limit: int, kept: int) -> list[str]:
    """Makes room in the queues and tries for their keys; returns the queues whose key it has."""
    queues = list(_QUEUES.rows(sender, text))
    # A whole batch that is repeated needs no room in the queues.
    if kept < sum(int(queue["messages"]) for queue in queues):
        for queue in queues:
            messages_limits.take(
                limit, sender, queue["to_agent_id"], queue["to_agent_type"], int(queue["messages"])
            )
    return [queue["queue_id"] for queue in queues if queue["locked"]]


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
