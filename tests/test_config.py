"""Config: defaults, types, ranges, who may change it."""

from __future__ import annotations

import pytest
from conftest import Connection, refused, scalar, state


def test_defaults_are_those_of_the_design(db: Connection) -> None:
    rows = db.execute("select key, value from caliber_config").fetchall()
    assert {r["key"]: r["value"] for r in rows} == {
        "agent_max_concurrent_tasks": "5",
        "agent_reap": "on",
        "agent_spawn_depth": "8",
        "agent_unavailable_ms": "30000",
        "conflict_cache_mb": "16",
        "audit_retention_days": "90",
        "audit_escalation_retention_days": "180",
        "audit_closure_days": "30",
        "handoff_ack_ms": "30000",
        "handoff_reminder_ms": "30000",
        "conflict_confidence_margin": "0.1",
        "conflict_max_pairs": "100000",
        "conflict_similarity": "0.85",
        "context_retention_days": "90",
        "contradiction_score": "0.4",
        "contradiction_similarity": "0.5",
        "dead_letter_retention_days": "30",
        "delegation_max_depth": "3",
        "delegation_max_retries": "2",
        "delegation_max_tokens": "4000",
        "delegation_max_tool_calls": "10",
        "delegation_timeout_seconds": "120",
        "delegation_to_silent": "off",
        "event_level": "info",
        "event_notify": "on",
        "event_retention_days": "90",
        "heartbeat_interval_ms": "5000",
        "heartbeat_missed_limit": "3",
        "message_max_retries": "2",
        "message_queue_limit": "1000",
        "message_retention_hours": "24",
        "message_retry_ms": "1000",
        "notify_mode": "always",
        "search_exact_rows": "1000",
        "shard_number": None,
        "state_notify": "on",
        "state_retention_days": "90",
        "token_claim_seconds": "60",
        "token_estimator": None,
        "token_max_hold_seconds": "1800",
    }


def test_set_get_reset(db: Connection) -> None:
    assert scalar(db, "select caliber_config_set('event_level', 'debug')") == "debug"
    assert scalar(db, "select caliber_config_get('event_level')") == "debug"
    assert scalar(db, "select caliber_config_reset('event_level')") == "info"
    assert scalar(db, "select caliber_config_get('event_level')") == "info"
    assert scalar(db, "select caliber_config_set('event_notify', 'FALSE')") == "off"
    assert scalar(db, "select caliber_config_set('heartbeat_interval_ms', ' 007000 ')") == "7000"
    assert scalar(db, "select count(*) from caliber_event where event_type like 'config_%%'") == 4


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("no_such_key", "1"),
        (None, "1"),
        ("event_level", None),
        ("event_level", "loud"),
        ("event_notify", "perhaps"),
        ("heartbeat_interval_ms", "99"),
        ("heartbeat_interval_ms", "-5000"),
        ("heartbeat_interval_ms", "1e4"),
        ("heartbeat_interval_ms", ""),
        ("heartbeat_interval_ms", "٥٠٠٠"),
        ("heartbeat_interval_ms", "9" * 100000),
        ("shard_number", "1024"),
    ],
)
def test_bad_settings_are_refused(db: Connection, key: str | None, value: str | None) -> None:
    error = refused(db, "select caliber_config_set(%s, %s)", key, value)
    assert error.sqlstate == "22023"
    assert len(error.diag.message_detail or "") < 300
    assert scalar(db, "select count(*) from caliber_setting") == 0


def test_unknown_keys_cannot_be_read_or_reset(db: Connection) -> None:
    assert state(db, "select caliber_config_get('nope')") == "22023"
    assert state(db, "select caliber_config_reset('nope')") == "22023"


def test_ids_sort_by_time_and_carry_the_shard(db: Connection) -> None:
    db.execute("create table made (n int generated always as identity, id uuid)")
    for _ in range(20):
        db.execute("insert into made (id) select caliber_uuid_v7()")
        db.execute("select pg_sleep(0.002)")
    assert scalar(db, "select array_agg(n order by id) = array_agg(n order by n) from made") is True
    assert scalar(db, "select bool_and(substr(id::text, 15, 1) = '7') from made") is True
    assert scalar(db, "select bool_and(substr(id::text, 20, 1) in ('8', '9', 'a', 'b')) from made") is True
    db.execute("select caliber_config_set('shard_number', '837')")
    shards = "select array_agg(distinct ('x' || right(caliber_uuid_v7()::text, 3))::bit(12)::int & 1023)"
    assert scalar(db, shards + " from generate_series(1, 50)") == [837]
    assert scalar(db, "select count(distinct caliber_uuid_v7()) from generate_series(1, 10000)") == 10000
