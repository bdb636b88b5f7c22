"""Messages: what becomes of one that was taken. The contract is in sql/schema/messages.sql.

Each verb is one update whose where clause is the whole decision. When it changes nothing, a
second statement says why.
"""

from __future__ import annotations

from typing import Any, NoReturn

from caliber import callers, checks, errors, messages_rules
from caliber.messages import WAKE
from caliber.messages_claim import MAX_BATCH, MAX_VISIBILITY_MS
from caliber.plans import Statement, places, plan

MAX_REASON = 2000
MAX_RETRY_MS = 24 * 60 * 60 * 1000

# $1 message. Without receipt and agent the delivery must be the caller's own or the only one. What
# is not given is left out of the statement, or Postgres would plan each call anew.
_MINE = """
        d.message_id = $1
        {receipt}
        {agent}
        and d.agent_id is not null
        and exists (
            select from @extschema@.caliber_agent as a
            where a.agent_id = d.agent_id
                and (
                    @extschema@._caliber_is_admin()
                    or (a.login_role = @extschema@._caliber_actor() and a.terminated_at is null)
                )
                {incarnation}
        )
        {alone}
"""
_RECEIPT = "and d.receipt = {receipt}"
_AGENT = "and d.agent_id = {agent_id}"
_INCARNATION = """
                and exists (
                    select from @extschema@.caliber_agent_beat as b
                    where b.agent_id = a.agent_id and b.incarnation = {incarnation}
                )
"""
_ALONE = """
        and (
            not @extschema@._caliber_is_admin()
            or (select pg_catalog.count(*) from @extschema@.caliber_delivery as o where o.message_id = $1) = 1
        )
"""
# In these words, so that no plan reads the index of what is open from end to end, which seems the
# shortest way while it is empty.
_OPEN = "and coalesce(d.processed_at, d.dead_at) is null"

_ACKNOWLEDGE = """
    update @extschema@.caliber_delivery as d
    set status = 'processed', processed_at = pg_catalog.clock_timestamp()
    where {mine} {open}
    returning true as done
"""

_READ = """
    update @extschema@.caliber_delivery as d
    set
        status = case
            when d.status in ('pending', 'delivered') then 'read' else d.status
        end::@extschema@.caliber_delivery_status,
        read_at = pg_catalog.clock_timestamp()
    where {mine} and d.dead_at is null and d.read_at is null
    returning true as done
"""

_EXTEND = """
    update @extschema@.caliber_delivery as d
    set visible_at = greatest(d.visible_at, pg_catalog.clock_timestamp() + $2 * interval '1 ms')
    where {mine} {open}
    returning d.visible_at
"""

# $2 reason, $3 whether to try again, $4 pause. A message to a type goes back to all of them, and
# a reader that sleeps until the lease would have ended has to look again.
_REJECT = (
    """
    with most as materialized (
        select
            1 + coalesce(
                (
                    select s.value::integer from @extschema@.caliber_setting as s
                    where s.key = 'message_max_retries'
                ),
                2
            ) as attempts,
            coalesce(
                (
                    select s.value::integer from @extschema@.caliber_setting as s
                    where s.key = 'message_retry_ms'
                ),
                1000
            ) as pause
    ),
    rejected as (
        update @extschema@.caliber_delivery as d
        set
            status = case
                when $3 and d.attempts < most.attempts then 'failed' else 'dead'
            end::@extschema@.caliber_delivery_status,
            dead_at = case
                when not $3 or d.attempts >= most.attempts then pg_catalog.clock_timestamp()
            end,
            visible_at = pg_catalog.clock_timestamp() + interval '1 ms' * coalesce(
                $4, least(most.pause * 2::numeric ^ least(d.attempts - 1, 30), 3600000)::integer
            ),
            receipt = null,
            agent_id = case
                when $3 and d.attempts < most.attempts and d.agent_id <> d.queue_id then null
                else d.agent_id
            end,
            error = $2
        from most
        where {mine} {open} and d.receipt is not null
        returning d.message_id, d.queue_id, d.status, d.agent_id, d.attempts, d.error
    )
    select
        r.status,
        case when r.status = 'dead' then @extschema@._caliber_log(
            'message_dead', 'message', 'warning',
            'a ' || m.message_type || ' message is dead: ' || coalesce(r.error, 'rejected'),
            source_agent_id => r.agent_id,
            trajectory_id => m.trajectory_id,
            reference_type => 'message',
            reference_id => r.message_id::text,
            details => pg_catalog.jsonb_build_object('attempts', r.attempts, 'error', r.error)
        ) end as logged,
        case when r.status = 'failed' then (
            select"""
    + WAKE
    + """
            from (select r.message_id, r.queue_id, r.agent_id) as back
        ) end as woken
    from rejected as r
    inner join @extschema@.caliber_message as m on r.message_id = m.message_id
"""
)

_FURTHER = {_EXTEND: ("int4",), _REJECT: ("text", "bool", "int4")}
_GIVEN = {"receipt": "int8", "agent_id": "uuid", "incarnation": "int8"}

_plans: dict[tuple[str, bool, bool, bool], Statement] = {}


def _statement(text: str, receipt: bool, agent_id: bool, incarnation: bool) -> Statement:
    found = _plans.get((text, receipt, agent_id, incarnation))
    if found is None:
        further = _FURTHER.get(text, ())
        place = places(2 + len(further), receipt=receipt, agent_id=agent_id, incarnation=incarnation)
        mine = _MINE.format(
            receipt=_RECEIPT.format(**place) if receipt else "",
            agent=_AGENT.format(**place) if agent_id else "",
            incarnation=_INCARNATION.format(**place) if incarnation else "",
            alone="" if receipt or agent_id else _ALONE,
        )
        types = [_GIVEN[name] for name in place]
        found = plan(text.format(mine=mine, open=_OPEN), "uuid", *further, *types)
        _plans[text, receipt, agent_id, incarnation] = found
    return found


def _settle(
    text: str,
    message_id: str | None,
    receipt: int | None,
    agent_id: str | None,
    incarnation: int | None,
    *further: Any,
) -> dict[str, Any] | None:
    statement = _statement(text, receipt is not None, agent_id is not None, incarnation is not None)
    given = [value for value in (receipt, agent_id, incarnation) if value is not None]
    return statement.one(message_id, *further, *given)


# Locked in one order, so that two sessions with the same messages do not block each other.
_ACKNOWLEDGE_BATCH = plan(
    """
    with wanted as materialized (
        select d.ctid as place
        from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2)) as w (message_id, receipt)
        cross join lateral (
            select o.ctid, o.message_id, o.queue_id, o.agent_id
            from @extschema@.caliber_delivery as o
            where o.message_id = w.message_id and o.receipt = w.receipt
                and coalesce(o.processed_at, o.dead_at) is null
            offset 0
        ) as d
        inner join @extschema@.caliber_agent as a on d.agent_id = a.agent_id
        where (
                @extschema@._caliber_is_admin()
                or (a.login_role = @extschema@._caliber_actor() and a.terminated_at is null)
            )
            and ($3 is null or exists (
                select from @extschema@.caliber_agent_beat as b
                where b.agent_id = a.agent_id and b.incarnation = $3
            ))
        order by d.message_id, d.queue_id
    ),
    done as (
        update @extschema@.caliber_delivery as d
        set status = 'processed', processed_at = pg_catalog.clock_timestamp()
        where d.ctid = any (array(select x.place from wanted as x))
            and d.receipt = any ($2)
            and coalesce(d.processed_at, d.dead_at) is null
        returning d.message_id
    )
    select pg_catalog.count(*) as settled from done
    """,
    "uuid[]",
    "int8[]",
    "int8",
)

_WHY = plan(
    """
    select
        d.agent_id, d.queue_id, d.status, d.receipt, d.attempts, d.read_at,
        d.agent_id = @extschema@._caliber_my_agent() as is_mine,
        d.queue_id = @extschema@._caliber_my_type_queue() as is_of_my_type,
        @extschema@._caliber_is_admin() as is_admin
    from @extschema@.caliber_delivery as d
    where d.message_id = $1
    """,
    "uuid",
)


def acknowledge(
    message_id: str | None, receipt: int | None, agent_id: str | None, incarnation: int | None
) -> bool:
    if _settle(_ACKNOWLEDGE, message_id, receipt, agent_id, incarnation):
        return True
    delivery = _refused(message_id, receipt, agent_id, incarnation)
    if delivery["status"] != "processed":
        _wrong_state(message_id, delivery, "acknowledged")
    return False


def read(message_id: str | None, receipt: int | None, agent_id: str | None, incarnation: int | None) -> bool:
    if _settle(_READ, message_id, receipt, agent_id, incarnation):
        return True
    delivery = _refused(message_id, receipt, agent_id, incarnation)
    if delivery["read_at"] is None:
        _wrong_state(message_id, delivery, "read")
    return False


def extend(
    message_id: str | None, receipt: int | None, visibility_ms: int | None, incarnation: int | None
) -> str:
    checks.required("receipt", receipt)
    checks.required("visibility_ms", visibility_ms)
    checks.between("visibility_ms", visibility_ms, 1, MAX_VISIBILITY_MS)
    row = _settle(_EXTEND, message_id, receipt, None, incarnation, visibility_ms)
    if row is None:
        _wrong_state(message_id, _refused(message_id, receipt, None, incarnation), "kept")
    until: str = row["visible_at"]
    return until


def reject(
    message_id: str | None,
    reason: str | None,
    receipt: int | None,
    agent_id: str | None,
    retry: bool | None,
    retry_ms: int | None,
    incarnation: int | None,
) -> str:
    checks.label("reason", reason, MAX_REASON)
    checks.required("retry", retry)
    checks.between("retry_ms", retry_ms, 0, MAX_RETRY_MS)
    row = _settle(_REJECT, message_id, receipt, agent_id, incarnation, reason, retry, retry_ms)
    if row is None:
        _wrong_state(message_id, _refused(message_id, receipt, agent_id, incarnation), "rejected")
    status: str = row["status"]
    return status


def acknowledge_batch(
    message_ids: list[str | None] | None, receipts: list[int | None] | None, incarnation: int | None
) -> int:
    ids, numbers = message_ids or [], receipts or []
    if len(ids) != len(numbers):
        errors.invalid("receipts", f"{len(numbers)} receipts", f"must be as many as messages, {len(ids)}")
    if len(ids) > MAX_BATCH:
        errors.invalid("message_ids", f"{len(ids)} ids", f"must hold at most {MAX_BATCH} ids")
    row = _ACKNOWLEDGE_BATCH.one(ids, numbers, incarnation)
    return int(row["settled"]) if row else 0


def _refused(
    message_id: str | None, receipt: int | None, agent_id: str | None, incarnation: int | None
) -> dict[str, Any]:
    """The delivery that was meant, or why the caller has nothing to say about it."""
    checks.required("message_id", message_id)
    if agent_id is not None:
        messages_rules.acting(agent_id, None)
    rows = list(_WHY.rows(message_id))
    if not rows:
        _unknown(str(message_id))
    mine = [r for r in rows if r["is_admin"] or r["is_mine"]]
    if agent_id is not None:
        mine = [r for r in mine if r["agent_id"] == agent_id]
    if not mine and receipt is not None and _shared(rows):
        _outdated(str(message_id), receipt)
    if not mine:
        _not_yours(str(message_id), agent_id)
    if receipt is not None:
        mine = [r for r in mine if r["receipt"] == receipt]
        if not mine:
            _outdated(str(message_id), receipt)
    if len(mine) > 1:
        errors.fail(
            errors.INVALID,
            "the message was delivered to several agents",
            detail=f"Message {message_id} has {len(mine)} deliveries.",
            hint="Pass the receipt, or agent_id.",
        )
    found: dict[str, Any] = mine[0]
    if found["agent_id"] is not None and incarnation is not None:
        messages_rules.acting(found["agent_id"], incarnation)
    return found


def _shared(rows: list[dict[str, Any]]) -> bool:
    """Whether it is a message to a type, which another agent may have by now."""
    row = rows[0]
    may_know = row["is_admin"] or row["is_of_my_type"]
    return len(rows) == 1 and may_know and row["agent_id"] != row["queue_id"]


def _unknown(message_id: str) -> NoReturn:
    if not callers.who()["is_admin"]:
        _not_yours(message_id, None)
    errors.fail(
        errors.NOT_FOUND,
        "there is no such message",
        detail=f"Message {message_id} does not exist; processed ones are deleted after a while.",
        hint="select * from caliber_messages shows those there are.",
    )


def _not_yours(message_id: str, agent_id: str | None) -> NoReturn:
    whom = f"agent {agent_id}" if agent_id else callers.who()["actor"]
    errors.fail(
        errors.NOT_PERMITTED,
        "the message is not yours",
        detail=f"Message {message_id} was not delivered to {whom}.",
        hint="Only its recipient settles a message; caliber_message_receive takes one.",
    )


def _outdated(message_id: str, receipt: int) -> NoReturn:
    errors.fail(
        errors.STALE,
        "the receipt is outdated",
        detail=f"Message {message_id} was taken again or given up since receipt {receipt}.",
        hint="Drop this work, or receive again; a longer visibility_ms or caliber_message_extend keeps it.",
    )


def _wrong_state(message_id: str | None, delivery: dict[str, Any], step: str) -> NoReturn:
    errors.fail(
        errors.WRONG_STATE,
        f"a message that is {delivery['status']} cannot be {step}",
        detail=f"Message {message_id} was taken {delivery['attempts']} times.",
        hint="caliber_message_receive takes one; caliber_message_requeue brings a dead one back.",
    )
