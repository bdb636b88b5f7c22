"""Messages: who is in a channel."""

from __future__ import annotations

from caliber import errors, messages_rules
from caliber.plans import plan

_JOIN = plan(
    """
    insert into @extschema@.caliber_channel_member as c (channel, agent_id, by_admin)
    values ($1, $2, @extschema@._caliber_is_admin())
    on conflict (channel, agent_id) do update set by_admin = true
    where excluded.by_admin and not c.by_admin
    returning true as joined
    """,
    "text",
    "uuid",
)

_LEAVE = plan(
    """
    delete from @extschema@.caliber_channel_member as c
    where c.channel = $1 and c.agent_id = $2
    returning true as gone
    """,
    "text",
    "uuid",
)


def join(agent_id: str | None, channel: str | None) -> bool:
    messages_rules.acting(agent_id, None)
    return bool(_JOIN.rows(_joinable(channel), agent_id))


def leave(agent_id: str | None, channel: str | None) -> bool:
    messages_rules.acting(agent_id, None)
    return bool(_LEAVE.rows(_joinable(channel), agent_id))


def _joinable(channel: str | None) -> str:
    if channel is None or channel in ("direct", "team"):
        errors.invalid("channel", channel, "must be task:{id} or collab:{id}")
    messages_rules.channel(channel)
    return channel
