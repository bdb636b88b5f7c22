"""One template database a run has the extension; every test gets a clone of it.

The server is a cluster that make test starts for it; its address is in the PG* variables.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import dict_row
from pytest_postgresql import factories

pytest_plugins = ["attack.fixtures", "harness.fixtures"]

ROOT = Path(__file__).resolve().parents[1]

Connection = psycopg.Connection[dict[str, object]]
Connect = Callable[..., Connection]


def install(**address: object) -> None:
    with psycopg.connect(
        host=str(address["host"]),
        port=str(address["port"]),
        user=str(address["user"]),
        dbname=str(address["dbname"]),
        autocommit=True,
    ) as connection:
        connection.execute("create extension caliber cascade")


postgresql_noproc = factories.postgresql_noproc(
    host=os.environ["PGHOST"],
    port=int(os.environ["PGPORT"]),
    user=os.environ["PGUSER"],
    dbname=f"caliber_test_{os.getpid()}",
    load=[install],
)
postgresql = factories.postgresql("postgresql_noproc")


@pytest.fixture
def connect(postgresql: psycopg.Connection) -> Iterator[Connect]:
    """Further connections to this test's database, in autocommit, as any role."""
    opened: list[Connection] = []

    def make(user: str = "postgres", dbname: str | None = None, autocommit: bool = True) -> Connection:
        info = postgresql.info
        connection = psycopg.connect(
            host=info.host,
            port=info.port,
            user=user,
            dbname=dbname or info.dbname,
            autocommit=autocommit,
            row_factory=dict_row,
        )
        opened.append(connection)
        return connection

    yield make
    for connection in opened:
        connection.close()


@pytest.fixture
def db(connect: Connect) -> Connection:
    return connect()


@pytest.fixture
def roles(db: Connection) -> Iterator[Callable[[str], str]]:
    """Makes logins in a group; they are the cluster's, so they are dropped afterwards."""
    made: list[str] = []

    def make(group: str | None) -> str:
        name = f"caliber_test_{uuid.uuid4().hex[:12]}"
        db.execute(f"create role {name} login")
        if group:
            db.execute(f"grant {group} to {name}")
        made.append(name)
        return name

    yield make
    for name in made:
        db.execute(f"drop owned by {name}")
        db.execute(f"drop role {name}")


def scalar(connection: Connection, query: str, *arguments: object) -> object:
    row = connection.execute(query, arguments).fetchone()
    return None if row is None else next(iter(row.values()))


def refused(connection: Connection, query: str, *arguments: object) -> psycopg.Error:
    """The error a call raises; that it raises one is asserted."""
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(query, arguments)
    return caught.value


def state(connection: Connection, query: str, *arguments: object) -> str:
    return refused(connection, query, *arguments).sqlstate or ""
