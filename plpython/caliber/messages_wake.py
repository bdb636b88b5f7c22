"""Messages: sleeping until one comes. The contract is in sql/functions/messages_wake.sql."""

from __future__ import annotations

from typing import Any

import plpy

from caliber import checks, errors, messages_claim
from caliber.messages import MODE
from caliber.plans import plan

MAX_WAIT_MS = 30_000
LOCK_NOT_AVAILABLE = "55P03"
_FIRST_NAP_MS = 2
_LONGEST_NAP_MS = 100

_ME = plan(
    f"""
    select
        a.agent_id as own,
        @extschema@._caliber_type_queue(a.team_id, coalesce($2, a.agent_type)) as shared,
        {MODE} as mode,
        pg_catalog.current_setting('transaction_isolation') = 'read committed' as sees_new
    from @extschema@.caliber_agent as a
    where a.agent_id = $1
        and a.terminated_at is null
        and (a.login_role = @extschema@._caliber_actor() or @extschema@._caliber_is_admin())
        and ($2 is null or $2 = a.agent_type or @extschema@._caliber_is_admin())
        and ($3 is null or exists (
            select from @extschema@.caliber_agent_beat as b
            where b.agent_id = $1 and b.incarnation = $3
        ))
    """,
    "uuid",
    "text",
    "int8",
)

# Waits for the senders under way; in one order, so that two readers do not block each other.
_KEY = plan(
    """
    select pg_catalog.pg_advisory_xact_lock(pg_catalog.uuid_hash_extended(q.queue_id, 0))
    from (
        select q.queue_id from pg_catalog.unnest($1) as q (queue_id) order by q.queue_id
    ) as q
    """,
    "uuid[]",
)

_ARM = plan(
    """
    insert into @extschema@.caliber_queue_waiter as w (queue_id, armed)
    select q.queue_id, true
    from pg_catalog.unnest($1) as q (queue_id)
    order by q.queue_id
    on conflict (queue_id) do update
    set armed = true, armed_at = excluded.armed_at
    where not w.armed
    """,
    "uuid[]",
)

# When the first message can be taken: negative when one can be now, null when there is none. A queue at a
# time, and a type looked up, not asked for by exists: else a plan may read all queues, and all messages.
_NEXT = plan(
    """
    select (
        pg_catalog.date_part(
            'epoch', pg_catalog.min(d.visible_at) - pg_catalog.clock_timestamp()
        ) * 1000
    )::bigint as wait_ms
    from pg_catalog.unnest($1) as q (queue_id)
    cross join lateral (
        select o.visible_at
        from @extschema@.caliber_delivery as o
        where o.queue_id = q.queue_id
            and o.seq >= coalesce(
                (select m.low from @extschema@.caliber_queue_mark as m where m.queue_id = q.queue_id), 0
            )
            and o.processed_at is null
            and o.dead_at is null
            and (o.expires_at is null or o.expires_at > pg_catalog.clock_timestamp())
            and ($2 is null or (
                select c.message_type from @extschema@.caliber_message as c
                where c.message_id = o.message_id
            ) = any ($2))
        offset 0
    ) as d
    """,
    "uuid[]",
    "text[]",
)

# Whether one of those that can be taken is in nobody's open transaction.
_FREE = plan(
    """
    select
    from pg_catalog.unnest($1) as q (queue_id)
    cross join lateral (
        select
        from @extschema@.caliber_delivery as o
        where o.queue_id = q.queue_id
            and o.seq >= coalesce(
                (select m.low from @extschema@.caliber_queue_mark as m where m.queue_id = q.queue_id), 0
            )
            and o.processed_at is null
            and o.dead_at is null
            and o.visible_at <= pg_catalog.clock_timestamp()
            and (o.expires_at is null or o.expires_at > pg_catalog.clock_timestamp())
            and ($2 is null or (
                select c.message_type from @extschema@.caliber_message as c
                where c.message_id = o.message_id
            ) = any ($2))
        limit 1
        for share of o skip locked
    ) as d
    limit 1
    """,
    "uuid[]",
    "text[]",
)

_NAP = plan("select pg_catalog.pg_sleep($1)", "float8")


def channels(agent_id: str | None, agent_type: str | None) -> list[str]:
    me = _me(agent_id, agent_type, None)
    if me["mode"] == "off":
        return []
    if me["mode"] == "always":
        return ["caliber_agent_message"]
    return [f"caliber_message_{me[queue].replace('-', '')}" for queue in ("own", "shared")]


class _LetGo(Exception):
    """Gives the locks of a subtransaction back."""


def arm(
    agent_id: str | None,
    agent_type: str | None,
    incarnation: int | None,
    message_types: list[str | None] | None,
) -> list[dict[str, Any]]:
    messages_claim.refuse_types(message_types)
    me = _me(agent_id, agent_type, incarnation)
    queues = [me["own"], me["shared"]]
    woken = me["mode"] != "off" and me["sees_new"]
    if woken and me["mode"] == "armed":
        woken = _armed(queues)
    state = "armed" if woken else "poll"
    # After arming, and with a snapshot of its own: what was sent before is there.
    wait_ms = _next(queues, message_types)
    if wait_ms is not None and wait_ms <= 0:
        if not me["sees_new"] or _free(queues, message_types):
            return [{"state": "ready", "wait_ms": 0}]
        # It is in an open transaction, and if that is undone nobody notifies.
        return [{"state": "poll", "wait_ms": _LONGEST_NAP_MS}]
    return [{"state": state, "wait_ms": MAX_WAIT_MS if wait_ms is None else min(wait_ms, MAX_WAIT_MS)}]


def _armed(queues: list[str]) -> bool:
    try:
        _KEY.rows(queues)
    except plpy.SPIError as error:
        if error.sqlstate == LOCK_NOT_AVAILABLE:
            return False
        raise
    _ARM.rows(queues)
    return True


def wait(
    agent_id: str | None,
    timeout_ms: int | None,
    agent_type: str | None,
    message_types: list[str | None] | None,
) -> bool:
    messages_claim.refuse_types(message_types)
    checks.required("timeout_ms", timeout_ms)
    checks.between("timeout_ms", timeout_ms, 0, MAX_WAIT_MS)
    me = _me(agent_id, agent_type, None)
    if not me["sees_new"]:
        errors.fail(
            errors.WRONG_STATE,
            "a transaction with one snapshot would wait in vain",
            hint="Wait outside of it, or in read committed.",
        )
    queues = [me["own"], me["shared"]]
    left = float(timeout_ms or 0)
    nap = float(_FIRST_NAP_MS)
    while True:
        next_ms = _next(queues, message_types)
        if next_ms is not None and next_ms <= 0 and _free(queues, message_types):
            return True
        if left <= 0:
            return False
        nap = min(nap, left)
        # Postgres sleeps, and not Python, so that a cancelled call ends.
        _NAP.rows(nap / 1000)
        left -= nap
        nap = min(nap * 1.5, _LONGEST_NAP_MS)


def _free(queues: list[str], message_types: list[str | None] | None) -> bool:
    found = False
    try:
        with plpy.subtransaction():
            found = bool(_FREE.rows(queues, message_types))
            raise _LetGo
    except _LetGo:
        return found


def _next(queues: list[str], message_types: list[str | None] | None) -> int | None:
    row = _NEXT.one(queues, message_types) or {}
    wait_ms: int | None = row["wait_ms"]
    return wait_ms


def _me(agent_id: str | None, agent_type: str | None, incarnation: int | None) -> dict[str, Any]:
    me = _ME.one(agent_id, agent_type, incarnation)
    if me is None:
        messages_claim.permit(agent_id, agent_type, incarnation)
        errors.fail("40001", "the agent changed while it received", hint="Receive again.")
    return me
