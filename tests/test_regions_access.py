"""Regions: who gets in. Every type, every kind of agent, reading and writing."""

from __future__ import annotations

import uuid

import pytest
from conftest import Connect, Connection, scalar, state
from regions_helpers import PUT, Cast, Roles, create, get, login, make_cast, put

WHO = ("owner", "teammate", "stranger", "reader", "writer")

# Who may read and who may write, by type. reader and writer are of another team and listed.
MATRIX = {
    "private": ({"owner", "reader", "writer"}, {"owner", "writer"}),
    "team": ({"owner", "teammate", "reader", "writer"}, {"owner", "teammate", "writer"}),
    "public": (set(WHO), {"owner", "writer"}),
    "collaborative": (set(WHO), set(WHO)),
}
READ = "select * from caliber_region_get(%s, %s)"
PAST = "select * from caliber_region_history(%s, %s)"
REMOVE = "select * from caliber_region_remove(%s, %s, 'k', 1)"
TABLES = (
    "caliber_region",
    "caliber_region_entry",
    "caliber_region_version",
    "caliber_region_conflict",
    "caliber_region_member",
    "caliber_regions",
)


@pytest.fixture
def cast(db: Connection) -> Cast:
    return make_cast(db)


def listed(db: Connection, cast: Cast, region_type: str) -> object:
    """A region of that type with a reader, a writer, a key and a conflict."""
    lists = f", readers => array['{cast.reader}'::uuid], writers => array['{cast.writer}'::uuid]"
    region = create(db, cast.owner, region_type, lists + ", conflict_resolution => 'reject'")
    put(db, cast.owner, region, "1")
    put(db, cast.owner, region, "1", 0)
    return region


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("region_type", MATRIX)
def test_the_matrix(
    db: Connection, connect: Connect, roles: Roles, cast: Cast, region_type: str, who: str
) -> None:
    region, agent = listed(db, cast, region_type), cast.agent(who)
    may_read, may_write = (who in allowed for allowed in MATRIX[region_type])
    # The same for an admin that acts for the agent and for the agent's own login.
    for session in (db, login(db, connect, roles, agent)):
        if may_read:
            assert get(session, agent, region) is not None
            assert len(session.execute(PAST, (agent, region)).fetchall()) >= 1
        else:
            assert state(session, READ, agent, region) == "42501"
            assert state(session, PAST, agent, region) == "42501"
        version = scalar(db, "select version from caliber_region_entry")
        assert isinstance(version, int)
        if may_write:
            assert put(session, agent, region, "2", version) == ("written", version + 1, None, False)
        else:
            assert state(session, PUT, agent, region, "k", "2", version) == "42501"
            assert state(session, REMOVE, agent, region) == "42501"
            assert scalar(db, "select version from caliber_region_entry") == version
    # A plain select shows the agent what it may read, and nothing else.
    for table in TABLES:
        assert bool(scalar(session, f"select count(*) from {table}")) is may_read


@pytest.mark.parametrize("region_type", MATRIX)
def test_who_is_nobody_reads_nothing(
    db: Connection, connect: Connect, roles: Roles, cast: Cast, region_type: str
) -> None:
    region = listed(db, cast, region_type)
    nobody = connect(roles("caliber_agent"))
    for table in TABLES:
        assert scalar(nobody, f"select count(*) from {table}") == 0
        assert state(connect(roles(None)), f"select * from {table}") == "42501"
    assert state(nobody, READ, cast.owner, region) == "42501"
    assert state(nobody, PUT, cast.owner, region, "k", "2", 1) == "42501"
    # The agent of a login that has ended is nobody too.
    session = login(db, connect, roles, cast.writer)
    db.execute("select caliber_agent_terminate(%s)", (cast.writer,))
    for table in TABLES:
        assert scalar(session, f"select count(*) from {table}") == 0


def test_an_agent_acts_for_itself_only(db: Connection, connect: Connect, roles: Roles, cast: Cast) -> None:
    region = listed(db, cast, "collaborative")
    session = login(db, connect, roles, cast.stranger)
    for agent in (cast.owner, uuid.uuid4()):
        assert state(session, READ, agent, region) == "42501"
        assert state(session, PAST, agent, region) == "42501"
        assert state(session, PUT, agent, region, "k", "2", 1) == "42501"
        assert state(session, REMOVE, agent, region) == "42501"
        assert state(session, "select caliber_region_create(%s, 'private')", agent) == "42501"
    assert scalar(session, "select caliber_region_create(%s, 'private')", cast.stranger) is not None


def test_who_may_not_make_a_region_is_not_told_which_agents_there_are(
    connect: Connect, roles: Roles, cast: Cast
) -> None:
    nobody = connect(roles("caliber_agent"))
    make = "select caliber_region_create(%s, 'private', readers => array[%s::uuid])"
    for reader in (cast.reader, uuid.uuid4()):
        assert state(nobody, make, cast.owner, reader) == "42501"


def test_a_stranger_is_not_told_whether_a_region_exists(
    db: Connection, connect: Connect, roles: Roles, cast: Cast
) -> None:
    region = listed(db, cast, "private")
    session = login(db, connect, roles, cast.stranger)
    for where in (region, uuid.uuid4()):
        assert state(session, READ, cast.stranger, where) == "42501"
        assert state(session, PUT, cast.stranger, where, "k", "2", 1) == "42501"


def test_observers_read_for_any_agent_and_write_for_none(
    db: Connection, connect: Connect, roles: Roles, cast: Cast
) -> None:
    region = listed(db, cast, "private")
    session = connect(roles("caliber_observer"))
    assert scalar(session, "select count(*) from caliber_regions") == 1
    assert get(session, cast.owner, region) == (1, 1)
    # It sees what the agent sees.
    assert state(session, READ, cast.stranger, region) == "42501"
    assert state(session, PUT, cast.owner, region, "k", "2", 1) == "42501"


def test_nobody_writes_the_tables(db: Connection, connect: Connect, roles: Roles, cast: Cast) -> None:
    for name in ("caliber_admin", "caliber_agent", "caliber_observer"):
        session = connect(roles(name))
        for table in TABLES[:-1]:
            assert state(session, f"delete from {table}") == "42501"
            assert state(session, f"insert into {table} default values") == "42501"
