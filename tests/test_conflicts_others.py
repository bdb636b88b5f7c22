"""Conflicts that regions and locks see, and what deciding them does there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conftest import Connect, Connection, scalar, state
from regions_helpers import Cast, create, get, login, make_cast, put

Roles = Callable[[str | None], str]
Row = dict[str, Any]

RESOLVE = "select * from caliber_resolve_conflict(%s, %s)"
RESOLVE_AS = "select * from caliber_resolve_conflict(%s, %s, %s)"


@pytest.fixture
def cast(db: Connection) -> Cast:
    return make_cast(db)


def region(db: Connection, cast: Cast, policy: str, more: str = "") -> object:
    """Owner and teammate saw version 1, and the owner was first to write version 2."""
    made = create(db, cast.owner, "team", f", conflict_resolution => '{policy}'{more}")
    put(db, cast.owner, made, '{"a": 1, "b": 1}')
    put(db, cast.owner, made, '{"a": 2, "b": 1}', 1)
    put(db, cast.teammate, made, '{"a": 1, "b": 3}', 1)
    return made


def only(db: Connection) -> Row:
    (row,) = db.execute("select * from caliber_conflict").fetchall()
    return row


@pytest.mark.parametrize(
    ("policy", "strategy", "winner"),
    [
        ("last_write_wins", "last_write_wins", "b"),
        ("merge", "merge", "merged"),
        ("reject", "first_write_wins", "a"),
    ],
)
def test_a_policy_decides_at_once(
    db: Connection, cast: Cast, policy: str, strategy: str, winner: str
) -> None:
    made = region(db, cast, policy)
    row = only(db)
    assert (row["conflict_type"], row["status"]) == ("concurrent_write", "resolved")
    assert (row["strategy"], row["winner"], row["resolved_by"]) == (strategy, winner, "automatic")
    assert (row["item_a_type"], row["item_a_id"]) == ("region", made)
    assert (row["agent_a_id"], row["agent_b_id"]) == (cast.owner, cast.teammate)
    assert row["details"] == {"key": "k", "seen_version": 1, "found_version": 2}
    assert row["conflict_id"] == scalar(db, "select conflict_id from caliber_region_conflict")


@pytest.mark.parametrize(
    ("strategy", "winner", "value", "version"),
    [
        ("first_write_wins", "a", {"a": 2, "b": 1}, 2),
        ("last_write_wins", "b", {"a": 1, "b": 3}, 3),
        ("merge", "merged", {"a": 2, "b": 3}, 3),
        ("reject_both", None, {"a": 1, "b": 1}, 3),
    ],
)
def test_a_write_put_aside_is_decided(
    db: Connection, cast: Cast, strategy: str, winner: str | None, value: object, version: int
) -> None:
    made = region(db, cast, "manual")
    row = only(db)
    assert (row["status"], row["strategy"]) == ("detected", None)
    (row,) = db.execute(RESOLVE, (row["conflict_id"], strategy)).fetchall()
    assert (row["status"], row["winner"]) == ("resolved", winner)
    assert get(db, cast.owner, made) == (value, version)
    assert db.execute(RESOLVE, (row["conflict_id"], strategy)).fetchall() == []


def test_a_write_put_aside_that_cannot_be_decided(db: Connection, cast: Cast) -> None:
    db.execute("update caliber_agent set reports_to = %s where agent_id = %s", (cast.owner, cast.teammate))
    made = region(db, cast, "manual", ", version_tracking => false")
    key = only(db)["conflict_id"]
    for strategy in ("highest_confidence", "reject_both"):
        (row,) = db.execute(RESOLVE, (key, strategy)).fetchall()
        assert row["status"] == "escalated"
    merged = "select * from caliber_resolve_conflict(%s, 'merge', merged_content => %s)"
    assert state(db, merged, key, "{") == "22P02"
    put(db, cast.owner, made, '"new"', 2)
    (row,) = db.execute(merged, (key, "7")).fetchall()
    assert (row["status"], row["reason"]) == ("resolved", "the key has been written since")
    assert get(db, cast.owner, made) == ("new", 3)


def test_a_removal_put_aside(db: Connection, cast: Cast) -> None:
    made = create(db, cast.owner, "team", ", conflict_resolution => 'manual'")
    put(db, cast.owner, made, "1")
    put(db, cast.owner, made, "2", 1)
    db.execute("select caliber_region_remove(%s, %s, 'k', 1)", (cast.teammate, made))
    key = only(db)["conflict_id"]
    assert db.execute(RESOLVE, (key, "merge")).fetchall()[0]["status"] == "escalated"
    (row,) = db.execute(RESOLVE, (key, "last_write_wins")).fetchall()
    assert row["winner"] == "b"
    gone = "select value from caliber_region_entry where region_id = %s"
    assert scalar(db, gone, made) is None


def test_a_locked_region_is_not_written_by_a_decision(db: Connection, cast: Cast) -> None:
    region(db, cast, "manual")
    db.execute("update caliber_region set require_lock = true")
    key = only(db)
    acquire = "select caliber_lock_acquire(%s, 'region', %s)"
    lock = scalar(db, acquire, cast.teammate, str(key["item_a_id"]))
    assert state(db, RESOLVE, key["conflict_id"], "last_write_wins") == "KA007"
    db.execute("select caliber_lock_release(%s)", (lock,))
    (row,) = db.execute(RESOLVE, (key["conflict_id"], "last_write_wins")).fetchall()
    assert row["winner"] == "b"


def test_who_sees_and_decides_a_regions_conflict(
    db: Connection, connect: Connect, roles: Roles, cast: Cast
) -> None:
    region(db, cast, "manual")
    key = only(db)["conflict_id"]
    seen = "select count(*) from caliber_conflict_list()"
    for who, count in (("owner", 1), ("teammate", 1), ("stranger", 0)):
        assert scalar(login(db, connect, roles, cast.agent(who)), seen) == count
    assert state(db, RESOLVE_AS, key, "merge", cast.stranger) == "P0002"
    assert state(db, RESOLVE_AS, key, "merge", cast.teammate) == "42501"
    (row,) = db.execute(RESOLVE_AS, (key, "first_write_wins", cast.owner)).fetchall()
    assert row["resolved_by"] == str(cast.owner)


# --- leases ---

ACQUIRE = "select caliber_lock_acquire(%s, 'file', %s, wait_ms => %s)"


def test_waiting_in_vain_is_a_conflict(db: Connection, cast: Cast) -> None:
    lock = scalar(db, ACQUIRE, cast.owner, "src/", 0)
    # Who does not wait costs nothing and records nothing.
    assert scalar(db, ACQUIRE, cast.teammate, "src/a.py", 0) is None
    assert scalar(db, "select count(*) from caliber_conflict") == 0
    for _ in range(2):
        assert scalar(db, ACQUIRE, cast.teammate, "src/a.py", 20) is None
    row = only(db)
    assert (row["conflict_type"], row["status"], row["item_a_type"]) == (
        "resource_contention", "detected", "resource",
    )  # fmt: skip
    assert (row["agent_a_id"], row["agent_b_id"]) == (cast.owner, cast.teammate)
    details = row["details"]
    assert (details["lock_id"], details["resource_id"], details["times"]) == (str(lock), "src/", 2)
    assert state(db, RESOLVE_AS, row["conflict_id"], "last_write_wins", cast.teammate) == "42501"
    (row,) = db.execute(RESOLVE, (row["conflict_id"], "last_write_wins")).fetchall()
    assert (row["status"], row["winner"]) == ("resolved", "b")
    assert scalar(db, ACQUIRE, cast.teammate, "src/a.py", 0) is not None
    # Known already; counted.
    db.execute("select caliber_lock_release_all(%s)", (cast.teammate,))
    scalar(db, ACQUIRE, cast.owner, "src/", 0)
    assert scalar(db, ACQUIRE, cast.teammate, "src/a.py", 20) is None
    assert only(db)["details"]["times"] == 3


@pytest.mark.parametrize(
    ("strategy", "status", "held"),
    [
        ("first_write_wins", "resolved", True),
        ("reject_both", "resolved", False),
        ("highest_confidence", "escalated", True),
        ("merge", "escalated", True),
    ],
)
def test_deciding_over_a_lease(db: Connection, cast: Cast, strategy: str, status: str, held: bool) -> None:
    shared = "select caliber_lock_acquire(%s, 'file', 'a.py', 'shared')"
    lock = scalar(db, shared, cast.owner)
    assert scalar(db, ACQUIRE, cast.teammate, "a.py", 20) is None
    (row,) = db.execute(RESOLVE, (only(db)["conflict_id"], strategy)).fetchall()
    assert row["status"] == status
    assert (scalar(db, "select count(*) from caliber_lock where lock_id = %s", lock) == 1) is held


def test_a_lease_that_has_ended(db: Connection, cast: Cast) -> None:
    lock = scalar(db, ACQUIRE, cast.owner, "a.py", 0)
    assert scalar(db, ACQUIRE, cast.teammate, "a.py", 20) is None
    db.execute("select caliber_lock_release(%s)", (lock,))
    (row,) = db.execute(RESOLVE, (only(db)["conflict_id"], "merge")).fetchall()
    assert (row["status"], row["reason"]) == ("resolved", "the lease has ended")


def test_agents_of_two_teams_are_not_told_of_each_other(
    db: Connection, connect: Connect, roles: Roles, cast: Cast
) -> None:
    scalar(db, ACQUIRE, cast.owner, "a.py", 0)
    stranger = login(db, connect, roles, cast.stranger)
    assert scalar(stranger, ACQUIRE, cast.stranger, "a.py", 20) is None
    key = only(db)["conflict_id"]
    for session, agent in ((stranger, cast.stranger), (login(db, connect, roles, cast.owner), cast.owner)):
        assert scalar(session, "select count(*) from caliber_conflict") == 0
        assert state(session, RESOLVE_AS, key, "escalate", agent) == "P0002"
    teammate = login(db, connect, roles, cast.teammate)
    assert scalar(teammate, ACQUIRE, cast.teammate, "a.py", 20) is None
    assert scalar(teammate, "select count(*) from caliber_conflict") == 1
