"""Regions: two writes at once. The four policies, what is recorded, and many writers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest
from conftest import Connect, Connection, scalar, state
from regions_helpers import PUT, Cast, conflicts, create, get, history, make_cast, put

POLICY = ", conflict_resolution => '{}'"
# Writes of each of sixteen writers; more of them for a long run.
WRITES = int(os.environ.get("CALIBER_REGION_WRITES", "10"))


@pytest.fixture
def cast(db: Connection) -> Cast:
    return make_cast(db)


# --- the policies ---


def concurrent(db: Connection, cast: Cast, policy: str, arguments: str = "") -> object:
    """A team region where owner and teammate both saw version 1 and the owner was first."""
    region = create(db, cast.owner, "team", POLICY.format(policy) + arguments)
    put(db, cast.owner, region, '{"a": 1, "b": 1}')
    assert put(db, cast.owner, region, '{"a": 2, "b": 1}', 1) == ("written", 2, None, False)
    return region


def test_last_write_wins(db: Connection, cast: Cast) -> None:
    region = concurrent(db, cast, "last_write_wins")
    assert put(db, cast.teammate, region, '{"a": 1, "b": 3}', 1) == ("written", 3, None, True)
    assert get(db, cast.owner, region) == ({"a": 1, "b": 3}, 3)
    found = conflicts(db)[0]
    assert (found["agent_id"], found["other_agent_id"]) == (cast.teammate, cast.owner)
    assert (found["seen_version"], found["found_version"], found["written_version"]) == (1, 2, 3)
    assert (found["conflict_resolution"], found["outcome"]) == ("last_write_wins", "written")
    assert found["lost_value"] == {"a": 2, "b": 1}
    # Who does not say what it saw overwrites, and overrules nobody it knows of.
    assert put(db, cast.owner, region, "0") == ("written", 4, None, False)


def test_reject(db: Connection, cast: Cast) -> None:
    region = concurrent(db, cast, "reject")
    assert put(db, cast.teammate, region, "0", 1) == ("rejected", 2, {"a": 2, "b": 1}, True)
    assert put(db, cast.teammate, region, "0") == ("rejected", 2, {"a": 2, "b": 1}, True)
    assert get(db, cast.owner, region) == ({"a": 2, "b": 1}, 2)
    assert [(c["seen_version"], c["written_version"], c["lost_value"]) for c in conflicts(db)] == [
        (1, None, None),
        (0, None, None),
    ]
    assert put(db, cast.teammate, region, "0", 2) == ("written", 3, None, False)


def test_manual_keeps_the_value_and_puts_the_other_aside(db: Connection, cast: Cast) -> None:
    region = concurrent(db, cast, "manual")
    assert put(db, cast.teammate, region, '{"b": 3}', 1) == ("kept", 2, {"a": 2, "b": 1}, True)
    assert get(db, cast.owner, region) == ({"a": 2, "b": 1}, 2)
    found = conflicts(db)[0]
    assert (found["outcome"], found["lost_value"]) == ("kept", {"b": 3})
    # Somebody has to look at it, so it is an event; the others are not, by default.
    query = "select severity from caliber_event where event_type = 'region_conflict'"
    assert [r["severity"] for r in db.execute(query)] == ["warning"]


def test_merge_keeps_both_changes(db: Connection, cast: Cast) -> None:
    region = concurrent(db, cast, "merge")
    merged = {"a": 2, "b": 3, "c": {"d": 1}}
    assert put(db, cast.teammate, region, '{"a": 1, "b": 3, "c": {"d": 1}}', 1) == ("merged", 3, merged, True)
    assert get(db, cast.owner, region) == (merged, 3)
    found = conflicts(db)[0]
    assert (found["outcome"], found["written_version"]) == ("merged", 3)
    assert found["lost_value"] == {"a": 1, "b": 3, "c": {"d": 1}}
    # With the newest version a write replaces; without any it is laid over what is there.
    assert put(db, cast.owner, region, '{"a": 5}', 3) == ("written", 4, None, False)
    assert put(db, cast.owner, region, '{"e": {"f": 1}}') == ("merged", 5, {"a": 5, "e": {"f": 1}}, False)
    assert put(db, cast.owner, region, '{"e": {"g": 1}}') == (
        "merged",
        6,
        {"a": 5, "e": {"f": 1, "g": 1}},
        False,
    )


def test_merge_without_versions_takes_all_that_is_given(db: Connection, cast: Cast) -> None:
    region = concurrent(db, cast, "merge", ", version_tracking => false")
    assert put(db, cast.teammate, region, '{"a": 1, "c": 3}', 1) == (
        "merged",
        3,
        {"a": 1, "b": 1, "c": 3},
        True,
    )


@pytest.mark.parametrize(
    ("base", "current", "incoming", "merged"),
    [
        ("{}", '{"a": {"b": {"c": 1}}}', '{"a": {"b": {"d": 2}}}', '{"a": {"b": {"c": 1, "d": 2}}}'),
        ('{"a": [1]}', '{"a": [1, 2]}', '{"a": [1, 3]}', '{"a": [1, 3]}'),
        ('{"a": [1]}', '{"a": [1, 2]}', '{"a": [1]}', '{"a": [1, 2]}'),
        ('{"a": 1, "b": 1}', '{"b": 1}', '{"a": 1, "b": 2}', '{"b": 2}'),
        ('{"a": 1, "b": 1}', '{"a": 1, "b": 1, "c": 1}', '{"b": 1}', '{"a": 1, "b": 1, "c": 1}'),
        ('{"a": 1}', '{"a": 2}', '{"a": true}', '{"a": true}'),
        ('{"a": 1}', '{"a": 2}', '{"a": "1"}', '{"a": "1"}'),
        ('{"a": {"x": 1}}', '{"a": {"x": 2}}', '{"a": null}', '{"a": null}'),
        ('{"a": {"x": 1}}', '{"a": 7}', '{"a": {"x": 2}}', '{"a": {"x": 2}}'),
        ("[1]", "[1, 2]", "[3]", "[3]"),
        ("1", "2", '{"a": 1}', '{"a": 1}'),
        ("{}", '{"n": 1.10}', '{"m": 12345678901234567890.0}', '{"m": 12345678901234567890.0, "n": 1.10}'),
        ("{}", '{"ü": "\\u0001"}', '{"\U0001f511\\"": "\\\\"}', '{"ü": "\\u0001", "\U0001f511\\"": "\\\\"}'),
    ],
)
def test_what_merging_makes(
    db: Connection, cast: Cast, base: str, current: str, incoming: str, merged: str
) -> None:
    region = create(db, cast.owner, "team", POLICY.format("merge"))
    put(db, cast.owner, region, base)
    put(db, cast.owner, region, current, 1)
    assert put(db, cast.teammate, region, incoming, 1)[0] == "merged"
    stored = "select value::text = %s::jsonb::text from caliber_region_get(%s, %s)"
    assert scalar(db, stored, merged, cast.owner, region) is True


def test_a_merge_that_grows_too_large_changes_nothing(db: Connection, cast: Cast) -> None:
    region = create(db, cast.owner, "team", POLICY.format("merge"))
    half = '{{"{}": "' + "y" * 150_000 + '"}}'
    put(db, cast.owner, region, half.format("a"))
    assert state(db, PUT, cast.owner, region, "k", half.format("b"), None) == "54000"
    assert history(db, cast.owner, region)[0][0] == 1


def test_a_removal_against_a_change(db: Connection, cast: Cast) -> None:
    remove = "select outcome, version, current_value from caliber_region_remove(%s, %s, 'k', 1)"
    expected = {
        "last_write_wins": ("written", 3, None),
        "merge": ("kept", 2, {"a": 2, "b": 1}),
        "manual": ("kept", 2, {"a": 2, "b": 1}),
        "reject": ("rejected", 2, {"a": 2, "b": 1}),
    }
    for policy, outcome in expected.items():
        region = concurrent(db, cast, policy)
        row = db.execute(remove, (cast.teammate, region)).fetchone()
        assert row is not None
        assert tuple(row.values()) == outcome
    assert len(conflicts(db)) == 4
    # A change against a removal: the change is what merging leaves.
    region = concurrent(db, cast, "merge")
    db.execute(remove.replace("1)", "2)"), (cast.owner, region))
    assert put(db, cast.teammate, region, '{"b": 9}', 1) == ("merged", 4, {"b": 9}, True)


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        ("last_write_wins", ("written", 2, None, True)),
        ("merge", ("merged", 2, {"a": 1, "b": 2}, True)),
        ("manual", ("kept", 1, {"a": 1}, True)),
        ("reject", ("rejected", 1, {"a": 1}, True)),
    ],
)
def test_in_a_collaborative_region_who_says_nothing_has_seen_nothing(
    db: Connection, cast: Cast, policy: str, outcome: tuple[object, ...]
) -> None:
    region = create(db, cast.owner, "collaborative", POLICY.format(policy))
    assert put(db, cast.owner, region, '{"a": 1}') == ("written", 1, None, False)
    assert put(db, cast.stranger, region, '{"b": 2}') == outcome
    assert conflicts(db)[0]["seen_version"] == 0


def test_a_write_that_is_rolled_back_leaves_nothing(db: Connection, connect: Connect, cast: Cast) -> None:
    region = concurrent(db, cast, "reject")
    other = connect(autocommit=False)
    assert put(other, cast.teammate, region, "0", 1)[0] == "rejected"
    assert put(other, cast.teammate, region, "0", 2)[0] == "written"
    other.rollback()
    assert conflicts(db) == []
    assert get(db, cast.owner, region) == ({"a": 2, "b": 1}, 2)
    assert len(history(db, cast.owner, region)) == 2


# --- many at once ---


def all_at_once(work: Callable[[Connection], None], connections: list[Connection]) -> None:
    failed: list[BaseException] = []
    barrier = threading.Barrier(len(connections))

    def run(connection: Connection) -> None:
        barrier.wait()
        try:
            work(connection)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(c,)) for c in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_sixteen_writers_and_no_update_is_lost_under_reject(
    db: Connection, connect: Connect, cast: Cast
) -> None:
    region = create(db, cast.owner, "collaborative", POLICY.format("reject"))

    def increment(connection: Connection) -> None:
        value, version = 0, 0
        for _ in range(WRITES):
            while True:
                outcome, version, current, _ = put(  # type: ignore[assignment]
                    connection, cast.stranger, region, str(value + 1), version
                )
                if outcome == "written":
                    value += 1
                    break
                assert outcome == "rejected"
                value = int(str(current))

    all_at_once(increment, [connect() for _ in range(16)])
    total = 16 * WRITES
    assert get(db, cast.owner, region) == (total, total)
    # Every version was kept, without a gap, each one more than the one before.
    versions = db.execute("select version, value from caliber_region_version order by version").fetchall()
    assert [(r["version"], r["value"]) for r in versions] == [(n, n) for n in range(1, total + 1)]
    query = "select count(*) from caliber_region_conflict where outcome <> 'rejected' or written_version > 0"
    assert scalar(db, query) == 0


def test_sixteen_writers_and_no_change_is_lost_under_merge(
    db: Connection, connect: Connect, cast: Cast
) -> None:
    region = create(db, cast.owner, "collaborative", POLICY.format("merge"))
    put(db, cast.owner, region, "{}")
    numbers = iter(range(16))

    def add_keys(connection: Connection) -> None:
        mine = next(numbers)
        for n in range(5):
            outcome = put(connection, cast.stranger, region, f'{{"w{mine}": {{"n{n}": 1}}}}', 1)[0]
            assert outcome in ("written", "merged")

    all_at_once(add_keys, [connect() for _ in range(16)])
    value, version = get(db, cast.owner, region) or (None, None)
    assert value == {f"w{w}": {f"n{n}": 1 for n in range(5)} for w in range(16)}
    assert version == 81
    assert scalar(db, "select count(*) from caliber_region_version") == 81


def test_sixteen_make_one_key_and_one_is_first(db: Connection, connect: Connect, cast: Cast) -> None:
    region = create(db, cast.owner, "collaborative")
    outcomes: list[object] = []
    all_at_once(
        lambda connection: outcomes.append(put(connection, cast.stranger, region, "1", 0)[0]),
        [connect() for _ in range(16)],
    )
    assert sorted(map(str, outcomes)) == ["rejected"] * 15 + ["written"]
    assert len(conflicts(db)) == 15
