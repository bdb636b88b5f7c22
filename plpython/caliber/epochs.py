"""Numbers that must never be handed out twice: fences, turns, incarnations, receipts.

Each only rises, in a row of its own. That is not enough when the database goes back in time: a
restored backup, or a standby that took over without the last commits, would hand out again what
a process out there already has. So each number is also above a floor that every such event
raises: one step for each epoch of the database (caliber_epoch) and one for each timeline of the
server, which a promotion and a recovery to a point in time begin. A step is 2^32.
"""

from __future__ import annotations

# Evaluated once a statement, where it is needed. The first eight digits of a WAL file's name are
# the timeline; a function in SQL around this would cost more than all of it.
FLOOR = """(
    select (
        (select pg_catalog.max(e.epoch) from @extschema@.caliber_epoch as e)
        + ('x' || pg_catalog.left(
            pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8
        ))::pg_catalog.bit(32)::integer
        - 2
    )::bigint * 4294967296
)"""


def after(number: str) -> str:
    """SQL for the number after this one."""
    return f"greatest({number}, {FLOOR}) + 1"
