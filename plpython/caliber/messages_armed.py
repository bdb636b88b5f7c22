"""Messages: waking a reader that sleeps. The contract is in sql/functions/messages_wake.sql.

Most readers are busy, so a sender only asks, by one look at a row, and writes only when there is
somebody to be woken.
"""

from __future__ import annotations

from caliber.plans import plan

# Of queue_id. In a transaction that keeps its snapshot nothing newer can be read, so there it is
# as if the key were taken.
TRY_KEY = """(
            pg_catalog.current_setting('transaction_isolation') = 'read committed'
            and pg_catalog.pg_try_advisory_xact_lock_shared(pg_catalog.uuid_hash_extended(queue_id, 0))
        )"""

# With a snapshot of its own, taken after the sender tried for the key.
_SLEEPS = plan(
    "select from @extschema@.caliber_queue_waiter as w where w.queue_id = $1 and w.armed",
    "uuid",
)

# Only who has the key disarms: without it a reader may be arming itself just now. A row that another
# sender has locked is being disarmed by that one.
_WAKE = plan(
    """
    with disarmed as (
        update @extschema@.caliber_queue_waiter as w
        set armed = false
        where w.ctid = any (array(
            select x.ctid
            from @extschema@.caliber_queue_waiter as x
            where x.queue_id = $1 and x.armed and $2
            for no key update skip locked
        ))
    )
    select
        case when pg_catalog.pg_notification_queue_usage() <= 0.25 then pg_catalog.pg_notify(
            'caliber_message_' || pg_catalog.replace($1::text, '-', ''), ''
        ) end
    """,
    "uuid",
    "bool",
)


def wake(queue_id: str, has_key: bool) -> None:
    if not has_key or _SLEEPS.rows(queue_id):
        _WAKE.rows(queue_id, has_key)
