"""Messages: what an argument may be, and why a message is refused.

Most of this runs only when a statement found nothing to do and the caller must be told why.
"""

from __future__ import annotations

from typing import Any, NoReturn

from caliber import callers, checks, errors
from caliber.plans import plan

MAX_TTL_MS = 366 * 24 * 60 * 60 * 1000
MAX_SUBJECT = 500
MAX_BODY = 262_144
MAX_ARTIFACTS = 1000
MAX_KEY = 200
MAX_CHANNEL = 200
# No character takes more than four bytes.
SURELY_SHORT = checks.MAX_PAYLOAD // 4

_AGENT = plan(
    """
    select
        a.agent_id, a.team_id, a.agent_type, a.name, a.status, b.incarnation,
        @extschema@._caliber_is_admin() as is_admin,
        coalesce(a.login_role = @extschema@._caliber_actor(), false)
        or @extschema@._caliber_is_admin() as may_act
    from @extschema@.caliber_agent as a
    inner join @extschema@.caliber_agent_beat as b on a.agent_id = b.agent_id
    where a.agent_id = $1
    """,
    "uuid",
)

_TYPE = plan(
    """
    select pg_catalog.pg_current_xact_id_if_assigned() is null as is_final
    from @extschema@.caliber_message_type as t
    where t.message_type = $1
    """,
    "text",
)

# Types that are there for good; one that this very transaction added is not yet.
_types: set[str] = set()

# Whoever is party to a message may answer it: its sender, or one that it was delivered to.
_PARENT = plan(
    """
    select
        m.thread_id, m.from_agent_id, m.message_type, m.priority, m.subject,
        m.from_agent_id = $2 or exists (
            select from @extschema@.caliber_delivery as d
            where d.message_id = $1 and d.agent_id = $2
        ) as is_party
    from @extschema@.caliber_message as m
    where m.message_id = $1
    """,
    "uuid",
    "uuid",
)

_SENT_BEFORE = plan(
    """
    select
        m.message_id,
        m.to_agent_id is not distinct from $3
        and m.to_agent_type is not distinct from $4
        and m.message_type = $5
        and m.payload = $6
        and m.body is not distinct from $7 as is_same
    from @extschema@.caliber_message as m
    where m.from_agent_id = $1 and m.idempotency_key = $2
    """,
    "uuid",
    "text",
    "uuid",
    "text",
    "text",
    "jsonb",
    "text",
)


def payload(text: str | None) -> None:
    checks.required("payload", text)
    if text is not None and len(text.encode()) > checks.MAX_PAYLOAD:
        errors.invalid("payload", text, f"must be at most {checks.MAX_PAYLOAD} bytes of json")


def content(subject: str | None, body: str | None, artifact_ids: list[str | None] | None) -> None:
    checks.label("subject", subject, MAX_SUBJECT)
    checks.label("body", body, MAX_BODY)
    given = artifact_ids or []
    if len(given) > MAX_ARTIFACTS:
        errors.invalid("artifact_ids", f"{len(given)} ids", f"must hold at most {MAX_ARTIFACTS} ids")
    if None in given:
        errors.invalid("artifact_ids", None, "must not hold null")


def channel(name: str | None) -> None:
    if name in ("direct", "team"):
        return
    kind, _, ident = (name or "").partition(":")
    if kind not in ("task", "collab") or not ident.strip() or len(name or "") > MAX_CHANNEL:
        errors.invalid("channel", name, "must be direct, team, task:{id} or collab:{id}")


def key(text: str) -> None:
    if not 1 <= len(text) <= MAX_KEY:
        errors.invalid("idempotency_key", text, f"must be 1 to {MAX_KEY} characters")


def one_recipient(to_agent_id: str | None, to_agent_type: str | None) -> NoReturn:
    both = to_agent_id is not None and to_agent_type is not None
    errors.fail(
        errors.INVALID,
        "a message goes to one agent or to one type of agent",
        detail="Both are given." if both else "Neither is given.",
        hint="caliber_message_broadcast sends to many; channel => 'team' to the team.",
    )


def acting(agent_id: str | None, incarnation: int | None) -> dict[str, Any]:
    """The agent that the caller may act for and that has not ended."""
    checks.required("agent_id", agent_id)
    agent = _AGENT.one(agent_id)
    if agent is None or not agent["may_act"]:
        # By one way, so that nothing tells an agent that exists from one that does not.
        callers.refuse_agent(str(agent_id))
    callers.refuse_ended(agent, incarnation)
    return agent


def known_type(message_type: str | None) -> None:
    if message_type in _types:
        return
    found = _TYPE.one(message_type)
    if found is not None:
        if found["is_final"]:
            _types.add(str(message_type))
        return
    errors.fail(
        errors.INVALID,
        "there is no such message type",
        detail=f"message_type is {errors.shown(message_type)}.",
        hint="caliber_message_type lists them; an admin adds one with caliber_message_type_add.",
    )


_MAY_SEND = plan("select @extschema@._caliber_may_send($1, $2) as may_send", "uuid", "uuid")


def refuse_recipient(sender: str, recipient: str | None) -> None:
    """Raises when the recipient is the reason; an agent is not told whether a stranger exists."""
    if recipient is None:
        return
    mine, other = _AGENT.one(sender) or {}, _AGENT.one(recipient)
    if not mine["is_admin"] and not (_MAY_SEND.one(sender, recipient) or {})["may_send"]:
        errors.fail(
            errors.NOT_PERMITTED,
            "you may not send to this agent",
            detail=f"Agent {recipient} is not in your team, and you do not hold send_messages on it.",
            hint="An agent sends within its team and where caliber_grant_access let it; an admin to any.",
        )
    if other is None or other["status"] == "terminated":
        errors.fail(
            errors.UNAVAILABLE,
            "the recipient is unknown or terminated",
            detail=f"The recipient is {recipient}.",
            hint="caliber_agent_list() shows the agents there are.",
        )


def parent(message_id: str, agent_id: str) -> dict[str, Any]:
    """The message that is answered, by an agent that is party to it."""
    found = _PARENT.one(message_id, agent_id)
    if found is None or not found["is_party"]:
        # Only who may act for the agent is told what it was party to.
        acting(agent_id, None)
        errors.fail(
            errors.NOT_FOUND,
            "there is no such message to answer",
            detail=f"Agent {agent_id} neither sent nor received message {message_id}.",
            hint="caliber_message_inbox shows what an agent received.",
        )
    return found


def thread_of(message_id: str, agent_id: str) -> str:
    thread: str = parent(message_id, agent_id)["thread_id"]
    return thread


def sent_before(arguments: tuple[Any, ...]) -> str | None:
    """The message this sender sent under the same key, if it is the same message."""
    text = arguments[16]
    found = _SENT_BEFORE.one(
        arguments[0], text, arguments[1], arguments[2], arguments[3], arguments[4], arguments[8]
    )
    if found is None:
        return None
    if not found["is_same"]:
        other_message(text, found["message_id"])
    message_id: str = found["message_id"]
    return message_id


def other_message(text: str, message_id: str) -> NoReturn:
    errors.fail(
        errors.DUPLICATE,
        "the idempotency key belongs to another message",
        detail=f"Key {errors.shown(text)} was used for message {message_id}.",
        hint="Use a key for one message only, and the same key only to repeat it.",
    )


def changed() -> NoReturn:
    errors.fail("40001", "what the message depends on changed while it was sent", hint="Send it again.")
