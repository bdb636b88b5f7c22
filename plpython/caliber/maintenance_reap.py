"""Maintenance: taking agents out of service that are silent. See sql/schema/maintenance.sql."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import plpy

from caliber import (
    agents,
    callers,
    checks,
    delegations_lapse,
    errors,
    handoffs_expire,
    locks,
    messages_tidy,
    tokens,
)
from caliber.plans import plan

MAX_AGENTS = 1000
_MAX_MESSAGES = 10_000

# Everything a dead agent held, a line a kind: what it is called, and what gives it back and
# returns how many there were. Handoffs first: what was lent with them goes back to who lent it.
GIVE_BACK: tuple[tuple[str, Callable[[str], int]], ...] = (
    ("handoffs", handoffs_expire.give_back),
    ("leases", locks.give_back),
    ("turns", tokens.give_back),
    ("messages", lambda agent_id: messages_tidy.give_back(agent_id, _MAX_MESSAGES)),
    ("tasks", lambda agent_id: delegations_lapse.give_back(agent_id, delegations_lapse.MAX_EXPIRE)),
)

# Silent for too long, unless it is failed and silent since: then it has been reaped, or said so
# itself. And whoever holds something that nobody will give back.
_GONE = """
    select j.*
    from (
        select
            v.agent_id, v.team_id, v.name, v.status, v.liveness, v.silent_for, v.incarnation,
            v.current_trajectory_id,
            v.liveness = 'unavailable'
            and (v.status <> 'failed' or v.last_heartbeat_at > v.status_changed_at) as silent
        from @extschema@.caliber_agents as v
    ) as j
    where j.silent
        or (
            (j.status = 'terminated' or j.liveness = 'unavailable')
            and (
                exists (
                    select from @extschema@.caliber_resource as r
                    where r.holder_agent_id = j.agent_id and r.lock_id is not null
                )
                or exists (
                    select from @extschema@.caliber_lock_shared as s where s.holder_agent_id = j.agent_id
                )
                or exists (
                    select from @extschema@.caliber_token as t where t.holder_agent_id = j.agent_id
                )
                or exists (
                    select from @extschema@.caliber_token_waiter as w where w.agent_id = j.agent_id
                )
                or exists (
                    select from @extschema@.caliber_delegation as d
                    where d.delegatee_agent_id = j.agent_id
                        and d.ended_at is null
                        and d.status <> 'pending'
                )
                or exists (
                    select from @extschema@.caliber_handoff as h
                    where h.to_agent_id = j.agent_id
                        and h.resolved_at is null
                        and h.returned_at is null
                        and (h.accepted_at is null or h.return_expected)
                )
            )
        )
"""
_FIND = plan(f"select g.agent_id from ({_GONE}) as g order by g.agent_id limit $1", "int4")

# One that is in the middle of something is left alone: a beat, a write with its incarnation,
# another reaper.
_LOCK = plan(
    """
    select a.agent_id
    from @extschema@.caliber_agent as a
    inner join @extschema@.caliber_agent_beat as b on a.agent_id = b.agent_id
    where a.agent_id = $1
    for no key update of a, b skip locked
    """,
    "uuid",
)

# After the lock and with a snapshot of its own, so that a beat of this moment counts.
_JUDGE = plan(f"select g.* from ({_GONE}) as g where g.agent_id = $1", "uuid")

_FAIL = plan(
    """
    update @extschema@.caliber_agent as a
    set
        status = 'failed',
        status_reason = $2,
        status_changed_at = pg_catalog.clock_timestamp()
    where a.agent_id = $1
    """,
    "uuid",
    "text",
)

_LOG = plan(
    """
    select @extschema@._caliber_log(
        'agent_reaped', 'agent', 'warning', $4, $1, $2, $3, details => $5
    )
    """,
    "uuid",
    "uuid",
    "uuid",
    "text",
    "jsonb",
)

_WANTED = plan("select @extschema@._caliber_config_value('agent_reap') as wanted")


def reap(max_agents: int | None) -> list[dict[str, Any]]:
    callers.require_admin("reap agents")
    checks.required("max_agents", max_agents)
    checks.between("max_agents", max_agents, 1, MAX_AGENTS)
    found = _find(max_agents)
    handoffs_expire.lock_heads(found)
    return _each(found)


def find_when_wanted(most: int) -> list[str]:
    """For caliber_tick: where agents do not beat, reaping is switched off."""
    wanted = (_WANTED.one() or {})["wanted"]
    return _find(most) if wanted == "on" else []


def reap_when_wanted(most: int) -> list[dict[str, Any]]:
    """For caliber_tick, which has locked the audit chains that are needed, with those of other steps."""
    return _each(find_when_wanted(most))


def _find(most: int | None) -> list[str]:
    return [row["agent_id"] for row in _FIND.rows(most)]


def _each(found: list[str]) -> list[dict[str, Any]]:
    return [row for agent_id in found if (row := _whole(agent_id)) is not None]


class _Busy(Exception):
    """Leaves a subtransaction, which lets go of the agent."""


def _whole(agent_id: str) -> dict[str, Any] | None:
    """One agent, whole or not at all; what stands in the way is waited for by the next call."""
    try:
        with plpy.subtransaction():
            return _reap(agent_id)
    except _Busy:
        return None
    except plpy.SPIError as error:
        if error.sqlstate not in (errors.LOCK_TIMEOUT, errors.DEADLOCK):
            raise
        return None


def _reap(agent_id: str) -> dict[str, Any] | None:
    agent = _JUDGE.one(agent_id) if _LOCK.rows(agent_id) else None
    if agent is None:
        return None
    if not handoffs_expire.heads_free(agent_id):
        raise _Busy
    incarnation = int(agent["incarnation"])
    if agent["silent"]:
        # First: from here on nothing that the old process does as itself is accepted.
        incarnation = int((agents.NEXT_INCARNATION.one(agent_id, True, False) or {})["incarnation"])
        _FAIL.rows(agent_id, f"reaped: silent for {agent['silent_for']}")
    returned = {kind: give_back(agent_id) for kind, give_back in GIVE_BACK}
    summary = f"{agent['name']} was reaped after silence" if agent["silent"] else f"{agent['name']} held on"
    _LOG.rows(
        agent_id, agent["team_id"], agent["current_trajectory_id"], summary,
        json.dumps({"incarnation": incarnation, "from": agent["status"], "given_back": returned}),
    )  # fmt: skip
    return {
        "agent_id": agent_id,
        "name": agent["name"],
        "incarnation": incarnation,
        "silent_for": agent["silent_for"],
        "given_back": sum(returned.values()),
    }
