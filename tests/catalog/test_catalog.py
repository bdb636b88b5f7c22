"""What must hold for every object of the extension, those added later included."""

from __future__ import annotations

import pytest
from conftest import Connection

MEMBERS = """
    select d.classid, d.objid
    from pg_depend as d
    join pg_extension as x on x.oid = d.refobjid and x.extname = 'caliber'
    where d.refclassid = 'pg_extension'::regclass and d.deptype = 'e'
"""
FUNCTIONS = f"""
    select p.*, p.oid::regprocedure::text as signature, l.lanname
    from pg_proc as p
    join pg_language as l on l.oid = p.prolang
    join ({MEMBERS}) as m on m.classid = 'pg_proc'::regclass and m.objid = p.oid
"""
RELATIONS = f"""
    select c.* from pg_class as c
    join ({MEMBERS}) as m on m.classid = 'pg_class'::regclass and m.objid = c.oid
"""

# No agents' data: settings, the count of restores, kinds of message.
OPEN_TABLES = {"caliber_setting", "caliber_epoch", "caliber_message_type", "caliber_message_schema"}


def names(db: Connection, query: str) -> list[object]:
    return [next(iter(row.values())) for row in db.execute(query)]


def test_the_queries_find_the_extension(db: Connection) -> None:
    assert len(names(db, f"select signature from ({FUNCTIONS}) as f")) > 20
    assert len(names(db, f"select relname from ({RELATIONS}) as r where relkind = 'r'")) > 5


def test_every_function_has_a_comment(db: Connection) -> None:
    query = f"select signature from ({FUNCTIONS}) as f where obj_description(f.oid, 'pg_proc') is null"
    assert names(db, query) == []


def test_every_table_view_column_and_type_has_a_comment(db: Connection) -> None:
    query = (
        f"select relname from ({RELATIONS}) as r"
        " where relkind in ('r', 'v') and obj_description(r.oid, 'pg_class') is null"
    )
    assert names(db, query) == []
    query = f"""
        select r.relname || '.' || a.attname from ({RELATIONS}) as r
        join pg_attribute as a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
        where r.relkind = 'r' and col_description(r.oid, a.attnum) is null
    """
    assert names(db, query) == []
    query = f"""
        select t.typname from pg_type as t
        join ({MEMBERS}) as m on m.classid = 'pg_type'::regclass and m.objid = t.oid
        where t.typtype in ('e', 'd', 'c') and obj_description(t.oid, 'pg_type') is null
    """
    assert names(db, query) == []


def test_every_name_is_ours(db: Connection) -> None:
    query = f"select signature from ({FUNCTIONS}) as f where proname !~ '^_?caliber_'"
    assert names(db, query) == []
    query = f"select relname from ({RELATIONS}) as r where relname !~ '^caliber_'"
    assert names(db, query) == []


def test_no_function_is_executable_by_everybody(db: Connection) -> None:
    query = f"""
        select signature from ({FUNCTIONS}) as f
        where f.proacl is null or exists (
            select from aclexplode(f.proacl) as a where a.grantee = 0
        )
    """
    assert names(db, query) == []


def test_every_function_has_its_names_resolved(db: Connection) -> None:
    """By a pinned search_path, or by a standard SQL body, which is parsed when it is made."""
    query = f"""
        select signature from ({FUNCTIONS}) as f
        where prosqlbody is null
            and not coalesce('search_path=pg_catalog, pg_temp' = any (proconfig), false)
    """
    assert names(db, query) == []
    query = f"""
        select signature from ({FUNCTIONS}) as f
        where prosecdef and not coalesce('search_path=pg_catalog, pg_temp' = any (proconfig), false)
    """
    assert names(db, query) == []


def test_a_private_function_is_not_hidden_by_an_array_type(db: Connection) -> None:
    """_caliber_x('…') would be read as a cast to the array type of table caliber_x."""
    query = f"select signature from ({FUNCTIONS}) as f where to_regtype(proname) is not null"
    assert names(db, query) == []


@pytest.mark.parametrize(
    ("catalog", "owner", "kinds"),
    [("pg_proc", "proowner", ""), ("pg_class", "relowner", ""), ("pg_type", "typowner", "")],
)
def test_everything_belongs_to_caliber_owner(db: Connection, catalog: str, owner: str, kinds: str) -> None:
    query = f"""
        select o.oid::text from {catalog} as o
        join ({MEMBERS}) as m on m.classid = '{catalog}'::regclass and m.objid = o.oid
        where o.{owner} <> 'caliber_owner'::regrole
    """
    assert names(db, query) == []


def test_roles_are_mere_groups(db: Connection) -> None:
    query = """
        select rolname from pg_roles
        where rolname in ('caliber_owner', 'caliber_admin', 'caliber_agent', 'caliber_observer')
            and not (rolsuper or rolcanlogin or rolbypassrls or rolcreaterole)
        order by 1
    """
    assert names(db, query) == ["caliber_admin", "caliber_agent", "caliber_observer", "caliber_owner"]


def test_every_table_and_sequence_is_dumped(db: Connection) -> None:
    query = f"""
        select r.relname from ({RELATIONS}) as r
        join pg_extension as x on x.extname = 'caliber'
        where r.relkind in ('r', 'p', 'S') and not coalesce(r.oid = any (x.extconfig), false)
    """
    assert names(db, query) == []


def test_every_table_of_agents_data_has_row_security(db: Connection) -> None:
    query = f"select relname from ({RELATIONS}) as r where relkind = 'r' and not relrowsecurity"
    assert set(names(db, query)) == OPEN_TABLES


def test_nobody_but_the_owner_may_write_a_table(db: Connection) -> None:
    query = f"""
        select r.relname from ({RELATIONS}) as r, aclexplode(r.relacl) as a
        where a.privilege_type <> 'SELECT' and a.grantee <> 'caliber_owner'::regrole
    """
    assert names(db, query) == []


def test_views_run_as_their_reader(db: Connection) -> None:
    query = f"""
        select relname from ({RELATIONS}) as r
        where relkind = 'v' and not coalesce('security_invoker=true' = any (reloptions), false)
    """
    assert names(db, query) == []


def test_every_constraint_and_index_is_named_after_its_table(db: Connection) -> None:
    query = f"""
        select k.conname from pg_constraint as k join ({RELATIONS}) as r on r.oid = k.conrelid
        where k.conname not like r.relname || '\\_%'
    """
    assert names(db, query) == []
    query = f"""
        select i.indexrelid::regclass::text from pg_index as i join ({RELATIONS}) as r on r.oid = i.indrelid
        where i.indexrelid::regclass::text not like r.relname || '\\_%'
    """
    assert names(db, query) == []
