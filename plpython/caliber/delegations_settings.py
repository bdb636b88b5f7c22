"""Delegations: the settings they need, kept by the session with a stamp.

As with messages: the statement that writes a task compares the stamp with what is there now, and
when it differs nothing is written and the session reads the settings again.
"""

from __future__ import annotations

from caliber.messages_settings import STAMP
from caliber.plans import plan

_READ = plan(
    f"""
    select k.key, coalesce(s.value, k.default_value) as value, {STAMP} as stamp
    from @extschema@._caliber_config_key() as k
    left join @extschema@.caliber_setting as s on k.key = s.key
    where k.key like 'delegation%'
        or k.key in (
            'agent_max_concurrent_tasks', 'agent_unavailable_ms', 'heartbeat_interval_ms',
            'heartbeat_missed_limit'
        )
    """
)


class Settings:
    __slots__ = (
        "beat_ms", "concurrent", "max_depth", "max_retries", "max_tokens", "max_tool_calls", "missed",
        "silent", "stamp", "timeout_seconds", "unavailable_ms",
    )  # fmt: skip

    def __init__(self, stamp: int, values: dict[str, str]) -> None:
        self.stamp = stamp
        self.max_depth = int(values["delegation_max_depth"])
        self.max_tokens = int(values["delegation_max_tokens"])
        self.max_tool_calls = int(values["delegation_max_tool_calls"])
        self.max_retries = int(values["delegation_max_retries"])
        self.timeout_seconds = int(values["delegation_timeout_seconds"])
        self.silent = values["delegation_to_silent"] == "on"
        self.concurrent = int(values["agent_max_concurrent_tasks"])
        self.beat_ms = int(values["heartbeat_interval_ms"])
        self.missed = int(values["heartbeat_missed_limit"])
        self.unavailable_ms = int(values["agent_unavailable_ms"])


_known: Settings | None = None


def known() -> Settings:
    return fresh() if _known is None else _known


def fresh() -> Settings:
    global _known
    rows = list(_READ.rows())
    _known = Settings(rows[0]["stamp"], {row["key"]: row["value"] for row in rows})
    return _known


def forget() -> None:
    global _known
    _known = None
