"""Before and around the extension: a schema, objects or roles laid out for CREATE EXTENSION to find,
and for the next upgrade."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from attack.fixtures import administrate
from attack.world import World, attempt, deny
from build import build
from conftest import ROOT, Connection, scalar

SHARE = Path(subprocess.check_output([os.environ["PG_CONFIG"], "--sharedir"], text=True).strip())
INSTALL = "create extension caliber schema {schema} cascade"


@pytest.fixture(scope="module")
def empty() -> Iterator[str]:
    """A database without the extension; every attempt in it is rolled back."""
    name = f"caliber_attack_{os.getpid()}_empty"
    with administrate("postgres") as postgres:
        postgres.execute(f"create database {name} template template0")
        yield name
        postgres.execute(f"drop database {name} with (force)")


@pytest.fixture
def site(empty: str, first_world: World) -> Iterator[Connection]:
    """An installer's transaction, in which the attacker has been at work before."""
    with administrate(empty) as session, session.transaction(force_rollback=True):
        yield session


def as_attacker(session: Connection, world: World, *statements: str) -> None:
    session.execute(f"set local role {world.attacker.login}")
    for statement in statements:
        session.execute(statement)
    session.execute("reset role")


def refused(session: Connection, schema: str = "public") -> str:
    with pytest.raises(psycopg.Error) as caught, session.transaction():
        session.execute(INSTALL.format(schema=schema))
    assert caught.value.sqlstate in ("42501", "42P07", "42710", "42723", "55000")
    assert scalar(session, "select count(*) from pg_extension where extname = 'caliber'") == 0
    return str(caught.value)


def test_it_installs_where_nothing_is_wrong(site: Connection) -> None:
    site.execute(INSTALL.format(schema="public"))


def test_a_schema_of_the_attackers(site: Connection, first_world: World) -> None:
    site.execute(f"create schema trap authorization {first_world.attacker.login}")
    assert "belongs to" in refused(site, "trap")


def test_a_schema_open_to_everybody(site: Connection) -> None:
    site.execute("grant create on schema public to public")
    assert "PUBLIC may create" in refused(site)


def test_a_schema_open_to_agents(site: Connection) -> None:
    site.execute("grant create on schema public to caliber_agent")
    assert "caliber_agent may create" in refused(site)


def test_a_needed_extension_in_an_open_schema(site: Connection) -> None:
    """Names are looked for there too."""
    site.execute("create schema ours; create schema shop; create extension vector schema shop")
    site.execute("grant create on schema shop to public")
    assert "PUBLIC may create in schema shop" in refused(site, "ours")


def test_a_schema_open_to_whom_an_admin_trusts(site: Connection, first_world: World) -> None:
    """By name, and no agent: that is an administrator's choice."""
    site.execute(f"grant create on schema public to {first_world.stranger}")
    site.execute(INSTALL.format(schema="public"))


@pytest.mark.parametrize(
    "planted",
    [
        "create function public.caliber_team_list() returns int language sql as 'select 1'",
        "create function public._caliber_log(text, text, text, text) returns int language sql as 'select 1'",
        "create function public._caliber_actor(int default 0) returns text language sql as $$ select '' $$",
        "create table public.caliber_agent (agent_id uuid)",
        "create view public.caliber_agents as select 1 as a",
        "create type public.caliber_risk as enum ('none')",
        "create sequence public.caliber_event_event_id_seq",
        "create domain public.caliber_capability as text",
    ],
    ids=lambda statement: " ".join(statement.split()[1:3]).partition("(")[0].replace(" ", "_"),
)
def test_an_object_laid_out_before(site: Connection, first_world: World, planted: str) -> None:
    """Made while the schema was open, which it no longer is."""
    site.execute(f"grant create on schema public to {first_world.attacker.login}")
    as_attacker(site, first_world, planted)
    site.execute(f"revoke create on schema public from {first_world.attacker.login}")
    refused(site)


def test_a_member_of_the_owner(site: Connection, first_world: World) -> None:
    """Whoever made the roles beforehand could stand behind them."""
    site.execute(f"grant caliber_owner to {first_world.attacker.login}")
    assert "must not be in" in refused(site)


def test_agents_made_admins(site: Connection) -> None:
    site.execute("grant caliber_admin to caliber_agent")
    assert "must not be in" in refused(site)


@pytest.mark.parametrize("power", ["superuser", "login", "bypassrls", "createrole", "replication"])
def test_a_group_with_power(site: Connection, power: str) -> None:
    site.execute(f"alter role caliber_agent {power}")
    assert "more than a group" in refused(site)


def test_installing_as_nobody(empty: str, first_world: World) -> None:
    for login in first_world.logins.values():
        with psycopg.connect(dbname=empty, user=login, autocommit=True) as session:
            for statement in ("create extension caliber cascade", "create extension plpython3u"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    session.execute(statement)


@pytest.fixture
def next_version(tmp_path: Path) -> Iterator[str]:
    """An upgrade that brings one function more."""
    version = "9.9.8"
    root = tmp_path / "caliber"
    for folder in ("sql", "plpython", "control"):
        shutil.copytree(ROOT / folder, root / folder)
    control = root / "control/caliber.control"
    control.write_text(control.read_text().replace("'0.1.0'", f"'{version}'"))
    with (root / "sql/functions/ids.sql").open("a") as code:
        code.write("create function @extschema@.caliber_brand_new() returns int language sql return 1;\n")
    (root / f"sql/upgrade/0.1.0--{version}.sql").write_text("-- nothing happens to state\n")
    prefix = [] if os.access(SHARE / "extension", os.W_OK) else ["sudo", "-n"]
    made = []
    for name, text in build(root, subsystems()).items():
        (tmp_path / name).write_text(text)
        subprocess.run([*prefix, "cp", str(tmp_path / name), str(SHARE / "extension" / name)], check=True)
        made.append(str(SHARE / "extension" / name))
    yield version
    subprocess.run([*prefix, "rm", *made], check=True)


def subsystems() -> list[str]:
    lines = (ROOT / "Makefile").read_text().splitlines()
    return next(line for line in lines if line.startswith("SUBSYSTEMS :=")).partition(":=")[2].split()


PLANTS: dict[str, str] = {
    "what the upgrade will make": (
        "create function public.caliber_brand_new() returns int language sql as 'select 6'"
    ),
    "a better fit": (
        "create function public._caliber_uuid_v7(bigint) returns uuid language sql as 'select null::uuid'"
    ),
    "an operator on our type": (
        "create function public.yes(public.caliber_risk, public.caliber_risk) returns boolean"
        " language sql as 'select true';"
        "create operator public.= (function = public.yes,"
        " leftarg = public.caliber_risk, rightarg = public.caliber_risk)"
    ),
}


@pytest.mark.parametrize("planted", PLANTS)
def test_an_upgrade_awaited(own_world: World, next_version: str, planted: str) -> None:
    world = own_world
    update = f"alter extension caliber update to '{next_version}'"
    world.admin.execute(f"grant create on schema public to {world.attacker.login}")
    state, text = attempt(world.admin, update)
    assert state == "42501", text
    world.hand.execute(PLANTS[planted])
    world.admin.execute(f"revoke create on schema public from {world.attacker.login}")
    state, text = attempt(world.admin, update)
    assert state == "42501", text
    assert scalar(world.admin, "select extversion from pg_extension where extname = 'caliber'") == "0.1.0"
    owned = "select count(*) from pg_proc where proowner = %s::regrole"
    assert scalar(world.admin, owned, world.attacker.login) == 1
    world.admin.execute(f"drop owned by {world.attacker.login}")
    world.admin.execute(update)
    assert scalar(world.admin, "select caliber_brand_new()") == 1


def test_upgrading_as_nobody(world: World) -> None:
    for login in world.logins.values():
        deny(world.session(login), "alter extension caliber update")
