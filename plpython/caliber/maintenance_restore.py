"""Maintenance: after the database went back in time. The contract is in epochs.py and
sql/functions/maintenance.sql."""

from __future__ import annotations

from typing import Any

import plpy

from caliber import callers, epochs, errors, messages_tidy, search
from caliber.plans import SCHEMA, plan

_ALL = 2**31 - 1

# The new epoch lies above every number there is, and above those of a lost past as far as the
# clock knows: epochs count by hours since 2026 once a database was restored. The table's trigger
# adds one.
_EPOCH = plan(
    """
    insert into @extschema@.caliber_epoch as e (epoch)
    select greatest(
        (select pg_catalog.max(o.epoch) from @extschema@.caliber_epoch as o),
        1 + (
            select pg_catalog.max(n.number) / 4294967296
            from (
                select pg_catalog.max(r.fence) as number from @extschema@.caliber_resource as r
                union all
                select pg_catalog.max(t.turn) from @extschema@.caliber_token as t
                union all
                select pg_catalog.max(b.incarnation) from @extschema@.caliber_agent_beat as b
                union all
                select s.last_value from @extschema@.caliber_message_seq as s
            ) as n
        ),
        pg_catalog.floor(
            pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - timestamptz '2026-01-01 00:00:00+00')
            / 3600
        )
    )::integer
    returning e.epoch
    """
)

# A second statement, which sees the new epoch.
_RECEIPTS = plan(
    f"""
    select pg_catalog.setval(
        '@extschema@.caliber_message_seq', greatest(s.last_value, {epochs.FLOOR})
    )
    from @extschema@.caliber_message_seq as s
    """
)

_INCARNATIONS = plan(
    f"""
    update @extschema@.caliber_agent_beat as b
    set incarnation = {epochs.after("b.incarnation")}
    where not b.ended
    returning b.agent_id
    """
)

_LEASES = plan(
    """
    with freed as (
        update @extschema@.caliber_resource as r
        set
            lock_id = null, holder_agent_id = null, acquired_at = null, expires_at = null, reason = null,
            wanted_until = null
        where r.lock_id is not null
        returning r.fence
    ),
    left_alone as (
        delete from @extschema@.caliber_lock_shared as s
        returning s.fence
    )
    select f.fence from freed as f
    union all
    select l.fence from left_alone as l
    """
)

_TURNS = plan(
    """
    with sent_away as (
        delete from @extschema@.caliber_token_waiter as w
        returning w.ticket
    ),
    freed as (
        update @extschema@.caliber_token as t
        set
            holder_agent_id = null, ticket = null, hold_seconds = null, claimed = false,
            acquired_at = null, expires_at = null
        where t.holder_agent_id is not null
        returning t.turn
    )
    select s.ticket from sent_away as s
    union all
    select f.turn from freed as f
    """
)

_SLEEPERS = plan("delete from @extschema@.caliber_queue_waiter as w returning w.queue_id")

_LOG = plan(
    """
    select @extschema@._caliber_log(
        'database_restored', 'system', 'warning', 'numbers begin anew above ' || $1,
        details => pg_catalog.jsonb_build_object('epoch', $2)
    )
    """,
    "int8",
    "int4",
)

_FLOOR = plan(f"select {epochs.FLOOR} as floor")

_STEPS = plan("select r.step, r.done, r.problem from @extschema@._caliber_restored() as r")


def invalidate() -> list[dict[str, Any]]:
    """The epoch first: what the steps hand out is above it, and so is what comes after them."""
    callers.require_admin("begin a new epoch")
    epoch = (_EPOCH.one() or {})["epoch"]
    floor = (_FLOOR.one() or {})["floor"]
    _RECEIPTS.rows()
    steps = [
        ("incarnations raised", len(_INCARNATIONS.rows())),
        ("leases ended", len(_LEASES.rows())),
        ("turns and places in line ended", len(_TURNS.rows())),
        ("messages given back", messages_tidy.give_back(None, _ALL)),
        ("sleeping readers forgotten", len(_SLEEPERS.rows())),
    ]
    _LOG.rows(floor, epoch)
    return [{"step": step, "done": done, "problem": None} for step, done in steps]


def after_restore() -> list[dict[str, Any]]:
    steps = [dict(row) for row in _STEPS.rows()]
    made = 0
    problem = None
    for dim in _dimensions():
        try:
            with plpy.subtransaction():
                made += search.embedding_index(dim)
        except (plpy.Error, plpy.SPIError) as error:
            if error.sqlstate not in (errors.NOT_PERMITTED, errors.INVALID):
                raise
            problem = f"{error}; run caliber_embedding_index({dim}) as a superuser"
    return [*steps, {"step": "indexes on embeddings made", "done": made, "problem": problem}]


def _dimensions() -> list[int]:
    """Those that are indexed by caliber_embedding_index as soon as there are rows to look for."""
    vector = search.vector_schema()
    found: set[int] = set()
    for table, _, kept in search.KINDS.values():
        query = (
            f"select distinct {vector}.vector_dims(r.embedding) as dim from {SCHEMA}.{table} as r"
            f" where r.embedding is not null and {kept}"
        )
        found |= {int(row["dim"]) for row in plpy.execute(query)}
    return sorted(dim for dim in found if dim <= search.MAX_HALF_INDEXED)
