"""Writing past the verbs: every table and sequence, as everybody who might try."""

from __future__ import annotations

import pytest
from attack import catalog
from attack.world import World, attempt, deny
from conftest import Connection, scalar

LOGINS = pytest.mark.parametrize("login", ["agent", "observer", "nobody", "stranger"])


def first_column(world: World, table: str) -> str:
    query = (
        "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0"
        " and attidentity = '' and attgenerated = '' order by attnum limit 1"
    )
    return str(scalar(world.admin, query, table))


@pytest.mark.parametrize(
    "statement",
    [
        "insert into {table} default values",
        "insert into {table} ({column}) select {column} from {table}",
        "update {table} set {column} = default",
        "update {table} set {column} = {column} where false",
        "delete from {table}",
        "delete from {table} where false",
        "truncate {table}",
        "truncate {table} cascade",
        "copy {table} from stdin",
        "merge into {table} as t using (select 1) as s on true when matched then delete",
        "with gone as (delete from {table} returning 1) select * from gone",
    ],
    ids=lambda statement: statement.partition(" {")[0].replace(" ", "_"),
)
def test_directly(world: World, statement: str) -> None:
    for login in world.logins.values():
        for table in catalog.relations(world.admin, "rp"):
            no_right(world, world.session(login), table, statement)


def no_right(world: World, session: Connection, table: str, statement: str) -> None:
    """Denied for want of the right, before row security or a trigger is asked."""
    query = statement.format(table=table, column=first_column(world, table))
    state, text = attempt(session, query)
    assert state == "42501", f"{query}: {state or 'allowed'} {text}"
    assert f"permission denied for table {table}" in text


@LOGINS
def test_through_a_view(world: World, login: str) -> None:
    session = world.session(world.logins[login])
    for view in catalog.relations(world.admin, "v"):
        column = first_column(world, view)
        # Not every view could be written by its owner either.
        deny(session, f"insert into {view} default values", "42501", "55000", "42P10")
        deny(session, f"update {view} set {column} = {column}", "42501", "55000", "42P10")
        deny(session, f"delete from {view}", "42501", "55000", "42P10")


@LOGINS
def test_through_a_view_of_ones_own(world: World, login: str) -> None:
    session = world.session(world.logins[login])
    for table in catalog.relations(world.admin, "rp"):
        state, _ = attempt(session, f"create temp view own as select * from {table}")
        if not state:
            deny(session, "delete from own")
            session.execute("drop view own")


@LOGINS
def test_sequences(world: World, login: str) -> None:
    session = world.session(world.logins[login])
    sequences = catalog.relations(world.admin, "S")
    assert sequences
    for sequence in sequences:
        before = scalar(world.admin, f"select last_value from {sequence}")
        deny(session, f"select nextval('{sequence}')")
        deny(session, f"select setval('{sequence}', 1)")
        deny(session, f"select currval('{sequence}')", "42501", "55000")
        deny(session, f"select last_value from {sequence}")
        deny(session, f"alter sequence {sequence} restart")
        assert scalar(world.admin, f"select last_value from {sequence}") == before


@LOGINS
def test_holding_rows_and_tables(world: World, login: str) -> None:
    """A lock on a row takes the right to update; on a table more than to read it."""
    session = world.session(world.logins[login])
    for table in catalog.relations(world.admin, "rp"):
        for strength in ("update", "no key update", "share", "key share"):
            deny(session, f"select * from {table} for {strength}")
        for mode in ("row exclusive", "share", "exclusive", "access exclusive"):
            deny(session, f"begin; lock table {table} in {mode} mode")
            session.rollback()


DEFINITIONS = [
    "alter table {table} disable row level security",
    "alter table {table} no force row level security",
    "alter table {table} disable trigger all",
    "alter table {table} owner to current_user",
    "alter table {table} add column own text",
    "create policy own on {table} using (true)",
    "create trigger own before insert on {table} execute function suppress_redundant_updates_trigger()",
    "create rule own as on insert to {table} do instead nothing",
    "create index on {table} ({column})",
    "create temp table own () inherits ({table})",
    "drop table {table} cascade",
    "drop table {table}",
    "grant all on {table} to current_user",
    "comment on table {table} is 'own'",
    "analyze {table}",
    "cluster {table}",
    "reindex table {table}",
    "create publication own for table {table}",
    "create statistics own on {column}, ctid from {table}",
]


@pytest.mark.parametrize("statement", DEFINITIONS, ids=lambda s: " ".join(s.split()[:4]).replace(" ", "_"))
def test_definitions(world: World, statement: str) -> None:
    before = definitions(world)
    for login in world.logins.values():
        for table in catalog.relations(world.admin, "rp"):
            # Some warn and do nothing; that counts by what it leaves.
            query = statement.format(table=table, column=first_column(world, table))
            attempt(world.session(login), query)
    assert definitions(world) == before


@LOGINS
def test_references(world: World, login: str) -> None:
    """A foreign key of one's own would tell which keys exist, and keep rows from being deleted."""
    session = world.session(world.logins[login])
    keys = world.admin.execute(
        "select conrelid::regclass::text as name, pg_get_constraintdef(oid) as definition from pg_constraint"
        " where contype = 'p' and conrelid::regclass::text like 'caliber%'"
    ).fetchall()
    assert keys
    before = definitions(world)
    for key in keys:
        column = str(key["definition"]).partition("(")[2].rstrip(")")
        attempt(session, f"create temp table own (a text references {key['name']} ({column}))")
        attempt(session, f"create table own (a uuid references {key['name']} ({column}))")
    assert definitions(world) == before


@LOGINS
def test_the_extension_itself(world: World, login: str) -> None:
    session = world.session(world.logins[login])
    for statement in (
        "drop extension caliber cascade",
        "alter extension caliber update",
        "alter extension caliber set schema pg_temp",
        "alter extension caliber drop function caliber_agents_purge()",
        "create extension caliber",
        "create extension plpython3u",
        "create schema own",
        "create table public.own (a int)",
        "create function public.own() returns int language sql as 'select 1'",
        "alter schema public owner to current_user",
        "alter default privileges in schema public grant execute on functions to public",
        "drop owned by caliber_owner",
        "reassign owned by caliber_owner to current_user",
    ):
        state, text = attempt(session, statement)
        assert state in ("42501", "42710", "42883", "0A000") or "default privileges" in statement, (
            f"{statement}: {state or 'allowed'} {text}"
        )
    assert scalar(world.admin, "select count(*) from pg_extension where extname = 'caliber'") == 1


@LOGINS
def test_functions_and_types(world: World, login: str) -> None:
    session = world.session(world.logins[login])
    for function in world.functions:
        for statement in (
            "alter function {} reset all",
            "alter function {} set search_path = pg_temp",
            "alter function {} security invoker",
            "alter function {} owner to current_user",
            "drop function {} cascade",
            "comment on function {} is 'own'",
        ):
            deny(session, statement.format(function.signature))
    types = "select typname as name from pg_type where typname ~ '^caliber' and typtype = 'e'"
    for row in world.admin.execute(types):
        deny(session, f"alter type {row['name']} add value 'own'")
        deny(session, f"drop type {row['name']} cascade")


@LOGINS
def test_code(world: World, login: str) -> None:
    """Python, files and programs of the server."""
    session = world.session(world.logins[login])
    for statement in (
        "do language plpython3u 'pass'",
        "create function pg_temp.own() returns int language plpython3u as 'return 1'",
        "copy (select 1) to program 'true'",
        "copy (select 1) to '/tmp/own'",
        "select pg_read_file('PG_VERSION')",
        "select lo_import('/etc/passwd')",
        "load '/tmp/own.so'",
        "alter system set row_security = off",
        "select pg_reload_conf()",
        "set session_replication_role = replica",
        "set lo_compat_privileges = on",
        "set log_min_messages = panic",
    ):
        deny(session, statement)


@LOGINS
def test_large_objects_hold_nothing_of_ours(world: World, login: str) -> None:
    deny(world.session(world.logins[login]), "select * from pg_largeobject")
    assert scalar(world.admin, "select count(*) from pg_largeobject_metadata") == 0


def definitions(world: World) -> object:
    """Of tables, their columns, policies, triggers, rules, grants and what depends on them."""
    return world.admin.execute("""
        select
            (select md5(string_agg(c::text, '' order by c.oid)) from (
                select c.oid, c.relname, c.relowner, c.relacl, c.relrowsecurity, c.relforcerowsecurity,
                    c.relhassubclass, c.relhasrules, c.relhastriggers, c.relnatts,
                    obj_description(c.oid, 'pg_class')
                from pg_class as c where c.relname like 'caliber%'
            ) as c) as relations,
            (select count(*) from pg_policy) as policies,
            (select count(*) from pg_trigger where tgenabled = 'O') as triggers,
            (select count(*) from pg_rewrite where rulename <> '_RETURN') as rules,
            (select count(*) from pg_index) as indexes,
            (select count(*) from pg_inherits) as children,
            (select count(*) from pg_publication) as publications,
            (select count(*) from pg_statistic_ext) as statistics,
            (select count(*) from pg_constraint) as constraints
    """).fetchone()
