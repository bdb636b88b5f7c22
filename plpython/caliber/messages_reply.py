"""Messages: answering one."""

from __future__ import annotations

from caliber import checks, messages, messages_rules


def reply(
    from_agent_id: str | None,
    in_reply_to: str | None,
    payload: str | None,
    message_type: str | None,
    subject: str | None,
    body: str | None,
    priority: str | None,
    requires_response: bool | None,
    ttl_ms: int | None,
    idempotency_key: str | None,
    schema_name: str | None,
    incarnation: int | None,
) -> str:
    checks.required("in_reply_to", in_reply_to)
    messages_rules.acting(from_agent_id, incarnation)
    asked = messages_rules.parent(str(in_reply_to), str(from_agent_id))
    if subject is None and asked["subject"]:
        title = asked["subject"]
        subject = title if title.startswith("Re: ") else f"Re: {title}"[: messages_rules.MAX_SUBJECT]
    return messages.send(
        from_agent_id, asked["from_agent_id"], None, message_type, payload, None,
        priority or asked["priority"], subject, body, None, None, "direct", in_reply_to,
        requires_response, ttl_ms, idempotency_key, schema_name, incarnation,
    )  # fmt: skip
