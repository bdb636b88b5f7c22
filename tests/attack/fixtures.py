"""The fixtures of the attacks: one world is made a run."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from attack.world import World, connection, populate
from conftest import Connection
from psycopg.rows import dict_row

TEMPLATE = f"caliber_attack_{os.getpid()}"
_number = itertools.count()


def administrate(dbname: str) -> Connection:
    return psycopg.connect(dbname=dbname, autocommit=True, row_factory=dict_row)


@pytest.fixture(scope="session")
def first_world(postgresql_noproc: Any) -> Iterator[World]:
    made: list[str] = []
    postgres = administrate("postgres")

    def role(group: str | None) -> str:
        name = f"caliber_attack_{uuid.uuid4().hex[:12]}"
        postgres.execute(f"create role {name} login")
        if group:
            postgres.execute(f"grant {group} to {name}")
        made.append(name)
        return name

    postgres.execute(f"create database {TEMPLATE} template {postgresql_noproc.template_dbname}")
    admin = administrate(TEMPLATE)
    world = populate(admin, role)
    # A database with a connection cannot be copied.
    admin.close()
    yield world
    postgres.execute(f"drop database {TEMPLATE} with (force)")
    for name in made:
        postgres.execute(f"drop role {name}")
    postgres.close()


@contextmanager
def entered(first: World, dbname: str) -> Iterator[World]:
    """The world with sessions of its own, which are closed afterwards."""
    admin = administrate(dbname)
    opened: list[Connection] = [admin]

    def session(login: str) -> Connection:
        opened.append(connection(admin, login))
        return opened[-1]

    try:
        yield replace(first, admin=admin, open=session, _sessions={})
    finally:
        for each in opened:
            each.close()


@pytest.fixture
def world(first_world: World) -> Iterator[World]:
    """One database for all attacks: each has to leave every row as it was."""
    with entered(first_world, TEMPLATE) as world, world.unchanged():
        yield world


@contextmanager
def copied(first: World) -> Iterator[World]:
    name = f"{TEMPLATE}_{next(_number)}"
    with administrate("postgres") as postgres:
        postgres.execute(f"create database {name} template {TEMPLATE}")
        with entered(first, name) as world:
            yield world
        postgres.execute(f"drop database {name} with (force)")


@pytest.fixture
def own_world(first_world: World) -> Iterator[World]:
    """A copy, for what changes something first."""
    with copied(first_world) as world:
        yield world
