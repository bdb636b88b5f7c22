"""Regions: making them, writing and reading keys, versions, the four policies."""

from __future__ import annotations

import uuid

import psycopg
import pytest
from conftest import Connect, Connection, refused, scalar, state
from regions_helpers import (
    PUT,
    Cast,
    Roles,
    conflicts,
    create,
    get,
    history,
    login,
    make_cast,
    put,
)

CREATE = "select caliber_region_create"


@pytest.fixture
def cast(db: Connection) -> Cast:
    return make_cast(db)


def test_a_region_tells_its_terms(db: Connection, cast: Cast) -> None:
    made = scalar(
        db,
        f"{CREATE}(%s, 'team', 'plan', array[%s]::uuid[], array[%s]::uuid[], true, 'merge', false, 'why')",
        cast.owner,
        cast.reader,
        cast.writer,
    )
    row = db.execute("select * from caliber_region_list(name => 'plan')").fetchone()
    assert row is not None
    assert (row["region_id"], row["owner"], row["team"]) == (made, "owner", "default")
    assert (row["readers"], row["writers"]) == (["reader"], ["writer"])
    assert (row["require_lock"], row["conflict_resolution"], row["version_tracking"]) == (
        True,
        "merge",
        False,
    )
    assert (row["keys"], row["writes"], row["conflicts"], row["description"]) == (0, 0, 0, "why")


@pytest.mark.parametrize(
    ("region_type", "policy"),
    [("private", "last_write_wins"), ("team", "reject"), ("public", "reject"), ("collaborative", "reject")],
)
def test_what_is_left_out(db: Connection, cast: Cast, region_type: str, policy: str) -> None:
    create(db, cast.owner, region_type)
    row = db.execute("select * from caliber_regions").fetchone()
    assert row is not None
    assert str(row["name"]).startswith(f"{region_type}-")
    assert (row["conflict_resolution"], row["version_tracking"], row["require_lock"]) == (policy, True, False)


@pytest.mark.parametrize(
    ("arguments", "sqlstate"),
    [
        ("null, 'team'", "22023"),
        ("%(owner)s, null", "22023"),
        ("%(owner)s, 'shared'", "22P02"),
        ("%(owner)s, 'team', ''", "22023"),
        ("%(owner)s, 'team', 'Plan B'", "22023"),
        ("%(owner)s, 'team', repeat('a', 64)", "22023"),
        ("%(owner)s, 'team', 'taken'", "23505"),
        ("gen_random_uuid(), 'team'", "P0002"),
        ("%(owner)s, 'team', readers => array[gen_random_uuid()]", "P0002"),
        ("%(owner)s, 'team', writers => array[null]::uuid[]", "22023"),
        ("%(owner)s, 'team', readers => array_fill(%(owner)s::uuid, array[101])", "22023"),
        ("%(owner)s, 'team', description => repeat('x', 1001)", "22023"),
        ("%(owner)s, 'team', incarnation => 9", "KA001"),
    ],
)
def test_create_refuses_bad_input(db: Connection, cast: Cast, arguments: str, sqlstate: str) -> None:
    create(db, cast.owner, "private", ", 'taken'")
    with pytest.raises(psycopg.Error) as caught:
        db.execute(f"{CREATE}({arguments})", {"owner": str(cast.owner)})
    assert caught.value.sqlstate == sqlstate
    assert scalar(db, "select count(*) from caliber_region") == 1


def test_a_name_is_unique_among_its_owners(db: Connection, cast: Cast) -> None:
    create(db, cast.owner, "private", ", 'notes'")
    create(db, cast.teammate, "private", ", 'notes'")
    assert scalar(db, "select count(*) from caliber_region_list(name => 'notes')") == 2
    assert state(db, "select * from caliber_region_list(max_regions => 0)") == "22023"


def test_list_filters(db: Connection, cast: Cast) -> None:
    create(db, cast.owner, "private", ", 'a'")
    create(db, cast.owner, "public", ", 'b'")
    create(db, cast.stranger, "public", ", 'c'")

    def names(arguments: str) -> list[object]:
        return [r["name"] for r in db.execute(f"select name from caliber_region_list({arguments})")]

    assert names("") == ["a", "b", "c"]
    assert names("'public'") == ["b", "c"]
    assert names(f"owner_agent_id => '{cast.owner}'") == ["a", "b"]
    assert names("max_regions => 1") == ["a"]


def test_put_and_get(db: Connection, cast: Cast) -> None:
    region = create(db, cast.owner, "private")
    assert get(db, cast.owner, region) is None
    assert put(db, cast.owner, region, '{"a": 1}') == ("written", 1, None, False)
    assert put(db, cast.owner, region, "null") == ("written", 2, None, False)
    assert get(db, cast.owner, region) == (None, 2)
    assert put(db, cast.owner, region, '"ü\U0001f600"', 0, key="other") == ("written", 1, None, False)


def test_a_version_from_the_future_is_misuse(db: Connection, cast: Cast) -> None:
    region = create(db, cast.owner, "private")
    assert state(db, PUT, cast.owner, region, "k", "1", 1) == "22023"
    put(db, cast.owner, region, "1")
    assert state(db, PUT, cast.owner, region, "k", "1", 2) == "22023"
    assert get(db, cast.owner, region) == (1, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        "null, %(region)s, 'k', '1'",
        "%(owner)s, null, 'k', '1'",
        "%(owner)s, %(region)s, null, '1'",
        "%(owner)s, %(region)s, '', '1'",
        "%(owner)s, %(region)s, repeat('k', 201), '1'",
        "%(owner)s, %(region)s, 'k', null",
        "%(owner)s, %(region)s, 'k', '1', -1",
        "%(owner)s, %(region)s, 'k', '1', 9223372036854775807",
        "%(owner)s, %(region)s, 'k', jsonb_build_object('x', repeat('y', 300000))",
        "%(owner)s, %(region)s, 'k', jsonb_build_array(repeat('ü', 140000))",
        "%(owner)s, %(region)s, 'k', (repeat('[', 65) || repeat(']', 65))::jsonb",
    ],
)
def test_put_refuses_bad_input(db: Connection, cast: Cast, arguments: str) -> None:
    region = create(db, cast.owner, "private")
    named = {"owner": str(cast.owner), "region": str(region)}
    with pytest.raises(psycopg.Error) as caught:
        db.execute(f"select * from caliber_region_put({arguments})", named)
    assert caught.value.sqlstate == "22023"
    assert scalar(db, "select count(*) from caliber_region_entry") == 0


def test_large_values_and_odd_keys_pass(db: Connection, cast: Cast) -> None:
    region = create(db, cast.owner, "private")
    large = '"' + "y" * 250_000 + '"'
    assert put(db, cast.owner, region, large, key="ключ \U0001f511 '\"\\") == ("written", 1, None, False)
    deep = "[" * 64 + "]" * 64
    assert put(db, cast.owner, region, deep) == ("written", 1, None, False)
    flat = "[" + "[]," * 200 + "[]]"
    assert put(db, cast.owner, region, flat) == ("written", 2, None, False)
    # Of a digit nothing is lost.
    put(db, cast.owner, region, "12345678901234567890.123456789012345678900", key="n")
    exact = "select value::text from caliber_region_get(%s, %s, 'n')"
    assert scalar(db, exact, cast.owner, region) == "12345678901234567890.123456789012345678900"


def test_unknown_and_ended_agents_and_regions(db: Connection, cast: Cast) -> None:
    region, unknown = create(db, cast.owner, "collaborative"), uuid.uuid4()
    put(db, cast.owner, region, "1")
    read = "select * from caliber_region_get(%s, %s)"
    past = "select * from caliber_region_history(%s, %s)"
    for agent, where in ((unknown, region), (cast.owner, unknown)):
        assert state(db, PUT, agent, where, "k", "2", 1) == "P0002"
        assert state(db, read, agent, where) == "P0002"
        assert state(db, past, agent, where) == "P0002"
    assert state(db, read, None, region) == "22023"
    assert db.execute(read, (cast.owner, None)).fetchall() == []
    db.execute("select caliber_agent_terminate(%s)", (cast.teammate,))
    assert state(db, PUT, cast.teammate, region, "k", "2", 1) == "KA007"
    assert state(db, read, cast.teammate, region) == "KA007"
    assert state(db, f"{CREATE}(%s, 'team')", cast.teammate) == "KA007"
    assert get(db, cast.owner, region) == (1, 1)


def test_a_process_that_was_replaced_writes_nothing(db: Connection, cast: Cast) -> None:
    region = create(db, cast.owner, "private")
    db.execute("select caliber_agent_resume(%s)", (cast.owner,))
    old = "select * from caliber_region_put(%s, %s, 'k', '1', incarnation => 1)"
    assert state(db, old, cast.owner, region) == "KA001"
    assert state(db, old.replace("put", "remove").replace(", '1'", ""), cast.owner, region) == "KA001"
    assert scalar(db, old.replace("=> 1", "=> 2"), cast.owner, region) == "written"


ACQUIRE = "select caliber_lock_acquire(%s, 'region', %s::uuid, %s, 60000)"
GUARDED = "select * from caliber_region_put(%s, %s, 'k', %s::jsonb, %s, fence => %s)"


def acquire(db: Connection, agent: object, region: object, mode: str = "exclusive") -> object:
    """The fence of a lock just taken."""
    lock = scalar(db, ACQUIRE, agent, region, mode)
    return scalar(db, "select fence from caliber_lock_get(%s)", lock)


def test_a_region_that_requires_a_lock(db: Connection, cast: Cast) -> None:
    region = create(db, cast.owner, "collaborative", ", require_lock => true")
    error = refused(db, GUARDED, cast.owner, region, "1", 0, None)
    assert error.sqlstate == "22023"
    assert "caliber_lock_get" in (error.diag.message_hint or "")
    for wrong in (-1, 0, 1, 2**62):
        assert state(db, GUARDED, cast.owner, region, "1", 0, wrong) == "KA001"
    fence = acquire(db, cast.owner, region)
    assert scalar(db, GUARDED, cast.owner, region, "1", 0, fence) == "written"
    # The lock does not stand in for the version.
    assert scalar(db, GUARDED, cast.owner, region, "2", 0, fence) == "rejected"
    assert scalar(db, GUARDED, cast.owner, region, "2", 1, fence) == "written"
    remove = "select outcome from caliber_region_remove(%s, %s, 'k', 2, fence => %s)"
    assert state(db, remove, cast.owner, region, None) == "22023"
    assert scalar(db, remove, cast.owner, region, fence) == "written"
    # Another agent's fence is of no use, to an admin that acts for the wrong one neither.
    assert state(db, GUARDED, cast.stranger, region, "9", 3, fence) == "KA001"
    # Who may not write at all is told so first; reading needs no lock.
    private = create(db, cast.owner, "private", ", require_lock => true")
    assert state(db, GUARDED, cast.stranger, private, "1", 0, None) == "42501"
    assert len(history(db, cast.stranger, region)) == 3


def test_a_shared_lock_is_not_enough_to_write(db: Connection, cast: Cast) -> None:
    region = create(db, cast.owner, "collaborative", ", require_lock => true")
    fence = acquire(db, cast.owner, region, "shared")
    assert state(db, GUARDED, cast.owner, region, "1", 0, fence) == "KA001"
    assert get(db, cast.owner, region) is None


def test_a_lease_that_is_gone_lets_nobody_write(db: Connection, cast: Cast) -> None:
    region = create(db, cast.owner, "collaborative", ", require_lock => true")
    old = acquire(db, cast.owner, region)
    db.execute("update caliber_resource set expires_at = clock_timestamp() - interval '1 s'")
    assert state(db, GUARDED, cast.owner, region, "1", 0, old) == "KA001"
    new = acquire(db, cast.stranger, region)
    assert state(db, GUARDED, cast.owner, region, "1", 0, old) == "KA001"
    assert scalar(db, GUARDED, cast.stranger, region, "2", 0, new) == "written"
    assert get(db, cast.owner, region) == (2, 1)


def test_a_lock_is_not_taken_over_between_a_write_and_its_commit(
    db: Connection, connect: Connect, cast: Cast
) -> None:
    region = create(db, cast.owner, "collaborative", ", require_lock => true")
    fence = acquire(db, cast.owner, region)
    writer = connect(autocommit=False)
    assert scalar(writer, GUARDED, cast.owner, region, "1", 0, fence) == "written"
    db.execute("update caliber_resource set expires_at = clock_timestamp() - interval '1 s'")
    assert scalar(db, ACQUIRE, cast.stranger, region, "exclusive") is None
    writer.commit()
    assert scalar(db, ACQUIRE, cast.stranger, region, "exclusive") is not None
    assert state(writer, GUARDED, cast.owner, region, "2", 1, fence) == "KA001"
    writer.rollback()
    assert get(db, cast.owner, region) == (1, 1)


# --- versions ---


def test_every_version_is_kept(db: Connection, cast: Cast) -> None:
    region = create(db, cast.owner, "private")
    for value in "123":
        put(db, cast.owner, region, value)
    put(db, cast.owner, region, "9", key="other")
    assert history(db, cast.owner, region) == [(3, 3), (2, 2), (1, 1)]
    everything = "select key, version from caliber_region_history(%s, %s)"
    rows = db.execute(everything, (cast.owner, region)).fetchall()
    assert [(r["key"], r["version"]) for r in rows] == [("k", 3), ("k", 2), ("k", 1), ("other", 1)]
    limited = "select count(*) from caliber_region_history(%s, %s, max_versions => 2)"
    assert scalar(db, limited, cast.owner, region) == 2
    assert state(db, limited.replace("2", "1001"), cast.owner, region) == "22023"


def test_without_version_tracking_one_version_is_there(db: Connection, cast: Cast) -> None:
    region = create(db, cast.owner, "private", ", version_tracking => false")
    for value in "123":
        put(db, cast.owner, region, value)
    assert history(db, cast.owner, region) == [(3, 3)]
    assert scalar(db, "select count(*) from caliber_region_version") == 0


@pytest.mark.parametrize("table", ["caliber_region_version", "caliber_region_conflict"])
def test_the_past_is_append_only(db: Connection, cast: Cast, table: str) -> None:
    region = create(db, cast.owner, "team")
    put(db, cast.owner, region, "1")
    put(db, cast.owner, region, "2")
    assert state(db, f"update {table} set key = 'x'") == "42501"
    assert state(db, f"delete from {table}") == "42501"
    assert scalar(db, f"select count(*) from {table}") == 1


def test_remove(db: Connection, cast: Cast) -> None:
    region = create(db, cast.owner, "team")
    remove = "select outcome, version from caliber_region_remove(%s, %s, 'k', %s)"

    def removed(seen: int | None) -> list[tuple[object, ...]]:
        return [tuple(r.values()) for r in db.execute(remove, (cast.owner, region, seen))]

    assert removed(None) == []
    assert removed(4) == []
    put(db, cast.owner, region, "1")
    assert removed(0) == [("rejected", 1)]
    assert removed(1) == [("written", 2)]
    assert removed(2) == []
    assert removed(None) == []
    assert get(db, cast.owner, region) is None
    # Nothing is there, so having seen nothing is no conflict; the version goes on.
    assert put(db, cast.owner, region, "3", 0) == ("written", 3, None, False)
    assert history(db, cast.owner, region) == [(3, 3), (2, None), (1, 1)]
    assert len(conflicts(db)) == 1


# --- lists ---


def test_grant_and_revoke(db: Connection, cast: Cast) -> None:
    region = create(db, cast.owner, "private")
    grant = "select caliber_region_grant(%s, %s, %s)"
    revoke = "select caliber_region_revoke(%s, %s, %s)"

    def listed() -> object:
        return scalar(db, "select access from caliber_region_member")

    assert scalar(db, grant, region, cast.reader, "read") is True
    assert scalar(db, grant, region, cast.reader, "read") is False
    assert scalar(db, grant, region, cast.reader, "write") is True
    # Granting adds and never takes away.
    assert scalar(db, grant, region, cast.reader, "read") is False
    assert listed() == "write"
    assert scalar(db, revoke, region, cast.reader, "write") is True
    assert scalar(db, revoke, region, cast.reader, "write") is False
    assert listed() == "read"
    assert scalar(db, revoke, region, cast.reader, None) is True
    assert scalar(db, revoke, region, cast.reader, "read") is False
    assert listed() is None
    assert scalar(db, grant, region, cast.owner, "write") is False
    types = "select event_type from caliber_event where reference_id = %s order by event_id"
    assert [r["event_type"] for r in db.execute(types, (str(region),))] == [
        "region_created",
        "region_granted",
        "region_granted",
        "region_revoked",
        "region_revoked",
    ]


def test_grant_refuses_bad_input(db: Connection, cast: Cast) -> None:
    region = create(db, cast.owner, "private")
    unknown = uuid.uuid4()
    for verb in ("caliber_region_grant", "caliber_region_revoke"):
        assert state(db, f"select {verb}(%s, %s)", None, cast.reader) == "22023"
        assert state(db, f"select {verb}(%s, %s)", region, None) == "22023"
        assert state(db, f"select {verb}(%s, %s)", unknown, cast.reader) == "P0002"
    assert state(db, "select caliber_region_grant(%s, %s)", region, unknown) == "P0002"
    assert state(db, "select caliber_region_grant(%s, %s, null)", region, cast.reader) == "22023"
    db.execute("select caliber_agent_terminate(%s)", (cast.reader,))
    assert state(db, "select caliber_region_grant(%s, %s)", region, cast.reader) == "P0002"


def test_only_the_owner_and_admins_change_the_list(
    db: Connection, connect: Connect, roles: Roles, cast: Cast
) -> None:
    region = create(db, cast.owner, "collaborative", f", writers => array['{cast.writer}'::uuid]")
    grant = "select caliber_region_grant(%s, %s, 'write')"
    owner = login(db, connect, roles, cast.owner)
    assert scalar(owner, grant, region, cast.stranger) is True
    for agent in (cast.teammate, cast.writer):
        session = login(db, connect, roles, agent)
        assert state(session, grant, region, cast.reader) == "42501"
        assert state(session, grant, uuid.uuid4(), cast.reader) == "42501"
        assert state(session, "select caliber_region_revoke(%s, %s)", region, cast.stranger) == "42501"
    assert scalar(connect(roles("caliber_admin")), grant, region, cast.reader) is True
    assert state(connect(roles("caliber_observer")), grant, region, cast.teammate) == "42501"
    # The list outlives its owner's rights: an ended owner changes nothing, an admin does.
    db.execute("select caliber_agent_terminate(%s)", (cast.owner,))
    assert state(owner, grant, region, cast.teammate) == "42501"
    assert scalar(db, grant, region, cast.teammate) is True


def test_revoking_counts_from_the_next_statement(
    db: Connection, connect: Connect, roles: Roles, cast: Cast
) -> None:
    region = create(db, cast.owner, "private", f", writers => array['{cast.writer}'::uuid]")
    session = login(db, connect, roles, cast.writer)
    assert put(session, cast.writer, region, "1") == ("written", 1, None, False)
    db.execute("select caliber_region_revoke(%s, %s, 'write')", (region, cast.writer))
    assert state(session, PUT, cast.writer, region, "k", "2", 1) == "42501"
    assert get(session, cast.writer, region) == (1, 1)
    db.execute("select caliber_region_revoke(%s, %s)", (region, cast.writer))
    assert state(session, "select * from caliber_region_get(%s, %s)", cast.writer, region) == "42501"
    assert scalar(session, "select count(*) from caliber_region_entry") == 0
