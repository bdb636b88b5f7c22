"""The tables that are written most keep their bounds in domains, not in checks."""

from __future__ import annotations

import pytest
from conftest import Connection, scalar, state

UNBOUNDED = """
    select c.relname || '.' || a.attname as name
    from pg_attribute as a
    join pg_class as c on a.attrelid = c.oid
    where c.relname in ('caliber_agent_beat', 'caliber_message', 'caliber_delivery', 'caliber_resource')
        and c.relkind = 'r' and a.attnum > 0 and not a.attisdropped
        and a.atttypid in ('text'::regtype, 'uuid[]'::regtype)
    order by 1
"""


@pytest.mark.parametrize(
    ("domain", "fits", "does_not"),
    [
        ("_caliber_text_200", "repeat('ö', 200)", "repeat('ö', 201)"),
        ("_caliber_text_500", "repeat('ö', 500)", "repeat('ö', 501)"),
        ("_caliber_text_1000", "repeat('ö', 1000)", "repeat('ö', 1001)"),
        ("_caliber_text_2000", "repeat('ö', 2000)", "repeat('ö', 2001)"),
        ("_caliber_text_262144", "repeat('ö', 262144)", "repeat('ö', 262145)"),
        ("_caliber_key_63", "repeat('ö', 63)", "''"),
        ("_caliber_key_63", "'x'", "repeat('x', 64)"),
        ("_caliber_key_200", "repeat('ö', 200)", "''"),
        ("_caliber_key_200", "null", "repeat('x', 201)"),
        ("_caliber_key_1000", "repeat('ö', 1000)", "''"),
        ("_caliber_key_1000", "'x'", "repeat('x', 1001)"),
        (
            "_caliber_ids_1000",
            "array_fill(gen_random_uuid(), '{1000}')",
            "array_fill(gen_random_uuid(), '{1001}')",
        ),
        ("_caliber_share", "1", "1.01"),
        ("_caliber_share", "0", "-0.01"),
    ],
)
def test_a_bound(db: Connection, domain: str, fits: str, does_not: str) -> None:
    assert scalar(db, f"select count(*) from (select ({fits})::{domain}) as x") == 1
    assert state(db, f"select ({does_not})::{domain}") == "23514"


def test_what_callers_write_is_bounded(db: Connection) -> None:
    # Names that a verb looks up before they get there.
    looked_up = {
        "caliber_message.to_agent_type",
        "caliber_message.message_type",
        "caliber_message.schema_name",
    }
    assert {row["name"] for row in db.execute(UNBOUNDED).fetchall()} == looked_up
