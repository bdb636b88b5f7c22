"""Write docs/reference.md from the catalog of a fresh database that has the extension.

Run by `make docs`; with --check it writes nothing and fails when the file is stale. What the
reference says is what COMMENT ON says: to change a sentence, change the comment in sql/.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs/reference.md"

Connection = psycopg.Connection[Any]
Rows = list[tuple[Any, ...]]

GROUPS = ("caliber_admin", "caliber_agent", "caliber_observer")

# The class of our own; codes whose subsystem is not built yet are reserved. Standard codes
# stand behind the misuse of any function.
ERRORS = (
    ("KA001", "Lease lost or stale: another process has taken the agent over, or a fence is old."),
    ("KA002", "Delegation depth exceeded. Reserved."),
    ("KA003", "Delegation cycle. Reserved."),
    ("KA004", "Agent unavailable: the recipient is unknown or terminated, or nobody is in the channel."),
    ("KA005", "Budget exhausted, such as the token budget of a scope."),
    ("KA006", "At capacity: the queue of a recipient is full."),
    ("KA007", "Wrong state for this step, such as work for an agent that is terminated."),
    ("KA008", "Feature disabled: typed messages without the library they need."),
    ("22023", "An argument or a setting does not fit; DETAIL shows the value."),
    ("23505", "A name is taken."),
    ("0A000", "Not possible at the transaction's isolation level."),
    ("40001", "The row changed meanwhile; try again."),
    ("40P01", "Waiting would never end: the agents wait for each other, or their transactions do."),
    ("42501", "The caller may not do this."),
    ("54000", "A limit is reached, such as the size of content or a setting."),
    ("P0002", "What the argument names does not exist."),
)

# Members of the extension: oid by catalog.
_MEMBERS = """
    select d.objid from pg_depend as d
    join pg_extension as x on d.refobjid = x.oid and x.extname = 'caliber'
    where d.refclassid = 'pg_extension'::regclass and d.deptype = 'e' and d.classid = %s::regclass
"""

_FUNCTIONS = f"""
    select
        p.proname,
        pg_get_function_arguments(p.oid),
        pg_get_function_result(p.oid),
        coalesce(obj_description(p.oid, 'pg_proc'), ''),
        array(
            select g.name from unnest(%s::name[]) with ordinality as g (name, place)
            join aclexplode(p.proacl) as acl on acl.grantee = g.name::regrole
            where acl.privilege_type = 'EXECUTE'
            order by g.place
        )
    from pg_proc as p
    where p.oid in ({_MEMBERS}) and p.proname like 'caliber\\_%%' and p.prorettype <> 'trigger'::regtype
    order by p.proname collate "C", p.oid
"""

_RELATIONS = f"""
    select c.oid, c.relname, c.relkind = 'v', coalesce(obj_description(c.oid, 'pg_class'), '')
    from pg_class as c
    where c.oid in ({_MEMBERS}) and c.relkind in ('r', 'p', 'v') and c.relname like 'caliber\\_%%'
    order by c.relname collate "C"
"""

_COLUMNS = """
    select
        a.attname,
        format_type(a.atttypid, a.atttypmod),
        coalesce(col_description(a.attrelid, a.attnum), '')
    from pg_attribute as a
    where a.attrelid = %s and a.attnum > 0 and not a.attisdropped
    order by a.attnum
"""

_ENUMS = f"""
    select
        t.typname,
        coalesce(obj_description(t.oid, 'pg_type'), ''),
        array(select e.enumlabel from pg_enum as e where e.enumtypid = t.oid order by e.enumsortorder)
    from pg_type as t
    where t.oid in ({_MEMBERS}) and t.typtype = 'e'
    order by t.typname collate "C"
"""

_ROW_TYPES = f"""
    select t.typname, coalesce(obj_description(t.oid, 'pg_type'), ''), t.typrelid
    from pg_type as t
    where t.oid in ({_MEMBERS}) and t.typtype = 'c'
    order by t.typname collate "C"
"""

_SCHEMA = """
    select n.nspname from pg_extension as x
    join pg_namespace as n on x.extnamespace = n.oid
    where x.extname = 'caliber'
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail when the file is stale")
    options = parser.parse_args()
    text = from_scratch()
    name = TARGET.relative_to(ROOT)
    if not options.check:
        TARGET.write_text(text)
        print(f"wrote {name}")
        return 0
    if TARGET.exists() and TARGET.read_text() == text:
        return 0
    print(f"{name} is stale; run: make docs", file=sys.stderr)
    return 1


def from_scratch() -> str:
    """The reference of a database made for it and dropped again; libpq's environment says where."""
    name = f"caliber_reference_{os.getpid()}"
    with psycopg.connect(autocommit=True) as server:
        server.execute(sql.SQL("create database {} template template0").format(sql.Identifier(name)))
        try:
            with psycopg.connect(dbname=name) as conn:
                conn.execute("create extension caliber cascade")
                return render(conn)
        finally:
            server.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def render(conn: Connection) -> str:
    """The reference of the extension in this connection's database."""
    schema = fetch(conn, _SCHEMA)[0][0]
    parts = [
        "# Reference",
        "Generated from the catalog by `make docs`; do not edit. What starts with `_caliber_` is "
        "private and left out. Arguments with a default may be left out or given by name, as in "
        "`name => 'ada'`.",
        "Who may call: members of the group roles listed. Superusers and members of `caliber_admin` "
        "may act for any agent, an agent's login only for its own.",
        *functions(conn),
        *relations(conn),
        *types(conn),
        *settings(conn, schema),
        *errors(),
    ]
    # Types are shown as the search path of the connection happens to qualify them.
    text = "\n\n".join(parts) + "\n"
    return text.replace(f"{schema}.caliber_", "caliber_")


def functions(conn: Connection) -> list[str]:
    homes = subsystem_of_functions()
    sections: dict[str, list[str]] = {}
    for name, arguments, result, comment, callers in fetch(conn, _FUNCTIONS, list(GROUPS), "pg_proc"):
        who = ", ".join(f"`{c}`" for c in callers) or "superusers only"
        entry = [f"### {name}", code(name, arguments, result), comment, f"May call: {who}."]
        sections.setdefault(homes.get(name, "other"), []).extend(entry)
    parts = []
    for home in sorted(sections):
        parts += [f"## Functions: {home}", *sections[home]]
    return parts


def subsystem_of_functions() -> dict[str, str]:
    """Function's name to the name of the file in sql/functions that declares it."""
    declared = re.compile(r"^create function @extschema@\.(\w+)", re.MULTILINE)
    return {
        name: path.stem
        for path in sorted((ROOT / "sql/functions").glob("*.sql"))
        for name in declared.findall(path.read_text())
    }


def code(name: str, arguments: str, result: str) -> str:
    # The type of a default is that of its argument.
    listed = [re.sub(r"::[\w. ]+(\[\])?$", "", argument) for argument in split(arguments)]
    if result.startswith("TABLE("):
        result = "TABLE " + bracketed(split(result.removeprefix("TABLE(").removesuffix(")")))
    return f"```sql\n{name}{bracketed(listed)}\nreturns {result}\n```"


def bracketed(items: list[str]) -> str:
    return f"({''.join(items)})" if len(items) < 2 else "(\n    " + ",\n    ".join(items) + "\n)"


def split(arguments: str) -> list[str]:
    """At the commas that stand outside of brackets and quotes."""
    parts = re.findall(r"(?:'(?:[^']|'')*'|\([^()]*\)|[^,])+", arguments)
    return [part.strip() for part in parts if part.strip()]


def relations(conn: Connection) -> list[str]:
    found = fetch(conn, _RELATIONS, "pg_class")
    parts = []
    for title, wants_view in (("Views", True), ("Tables", False)):
        parts.append(f"## {title}")
        if not wants_view:
            parts.append("Read them with SQL; row security shows each caller its part. Functions write them.")
        for oid, name, is_view, comment in found:
            if is_view == wants_view:
                parts += [f"### {name}", comment, columns(fetch(conn, _COLUMNS, oid))]
    return parts


def columns(found: Rows) -> str:
    if any(comment for _, _, comment in found):
        return table(("Column", "Type", "What it is"), [(f"`{n}`", t, c) for n, t, c in found])
    return table(("Column", "Type"), [(f"`{n}`", t) for n, t, _ in found])


def types(conn: Connection) -> list[str]:
    parts = ["## Types"]
    for name, comment, relation in fetch(conn, _ROW_TYPES, "pg_type"):
        parts += [f"### {name}", comment, columns(fetch(conn, _COLUMNS, relation))]
    for name, comment, labels in fetch(conn, _ENUMS, "pg_type"):
        parts += [f"### {name}", comment, "Values: " + ", ".join(f"`{label}`" for label in labels) + "."]
    return parts


def settings(conn: Connection, schema: str) -> list[str]:
    query = sql.SQL(
        "select key, type, coalesce(default_value, 'unset'), allowed, description from {} "
        'order by key collate "C"'
    ).format(sql.Identifier(schema, "caliber_config"))
    found = [(f"`{row[0]}`", *row[1:]) for row in conn.execute(query).fetchall()]
    return [
        "## Settings",
        "Read with `caliber_config_get`, changed with `caliber_config_set` and `caliber_config_reset`.",
        table(("Key", "Type", "Default", "Allowed", "What it does"), found),
    ]


def errors() -> list[str]:
    return [
        "## Error codes",
        "Class `KA` is CALIBER's own, for what a client branches on; the rest are standard SQLSTATEs.",
        table(("SQLSTATE", "Meaning"), [(f"`{number}`", meaning) for number, meaning in ERRORS]),
    ]


def table(head: tuple[str, ...], rows: Rows) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell(value) for value in line) + " |" for line in lines)


def cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def fetch(conn: Connection, query: str, *arguments: object) -> Rows:
    return conn.execute(query.encode(), arguments).fetchall()


if __name__ == "__main__":
    sys.exit(main())
