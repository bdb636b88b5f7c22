"""Build the extension scripts from sql/ and plpython/.

The install script is, subsystem by subsystem, sql/schema/<s>.sql (state) and then
sql/functions/<s>.sql (code). An upgrade script is sql/upgrade/X--Y.sql (what happens to
state) and then all of the code again, written as "create or replace". Both begin with
functions/guard.sql and end with functions/ownership.sql.

Each module of the Python package is written into a private function, _caliber_module_<name>();
_caliber_boot() puts a finder for them on sys.meta_path. A function declared as

    as $python$ @agents.heartbeat@ $python$;

becomes a stub that calls caliber.agents.heartbeat with the function's own arguments,
after making sure that this build's package is the one the session has loaded. It keeps
what it calls in SD, which starts empty again when an upgrade replaces the function.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from pathlib import Path

HEADER = '\\echo Use "CREATE EXTENSION caliber" to load this file. \\quit\n'

# Python sources must not contain the marker that CREATE EXTENSION replaces: the schema's
# name may hold characters that end a Python string. plans.py replaces this one instead.
SCHEMA_IN_SQL = "@extschema@"
SCHEMA_IN_PYTHON = "@caliber_schema@"

# One private function for each module, because a session pays for the text it fetches. The
# build stands before the source: a call that is under way while another session updates the
# extension must not go on with modules of two builds.
MODULE = """\
create or replace function {function}()
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $caliber_sql$ select $caliber_python${build}
{source}$caliber_python$ $caliber_sql$;

comment on function {function}() is
'Source of the Python module {name}; read by _caliber_boot.';
"""

# What the version before had and this one has not. Only in upgrades.
GONE = """\
do $$
declare
    gone record;
begin
    for gone in
        select p.oid::regprocedure as function
        from pg_catalog.pg_proc as p
        inner join pg_catalog.pg_depend as d
            on d.classid = 'pg_catalog.pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e'
        inner join pg_catalog.pg_extension as x
            on d.refclassid = 'pg_catalog.pg_extension'::regclass and d.refobjid = x.oid
        where x.extname = 'caliber'
            and pg_catalog.starts_with(p.proname::text, '_caliber_module_')
            and p.proname <> all(array[{names}])
    loop
        execute pg_catalog.format('drop function %s', gone.function);
    end loop;
end
$$;
"""

BOOT = """\
-- The Python package of this build. Generated from plpython/caliber; called by the stubs.
-- Only the modules that are imported are fetched and compiled.
create or replace function @extschema@._caliber_boot()
returns void
language plpython3u
set search_path = pg_catalog, pg_temp
as $caliber_boot$
import sys
from _frozen_importlib import ModuleSpec

# Not only the build: after drop and create, plans that were prepared before name what is gone.
SCHEMA = '@extschema@'
OID = plpy.execute('''select '@extschema@._caliber_boot()'::regprocedure::oid as oid''')[0]['oid']
BUILD = '{build} %s %s' % (SCHEMA, OID)
if GD.get('caliber_build') == BUILD:
    return
MODULES = frozenset('{modules}'.split())

def fetch(module):
    found = plpy.execute('select @extschema@._caliber_module_%s() as text' % module)
    build, _, source = found[0]['text'].partition('\\n')
    if build != '{build}':
        plpy.error('caliber was updated while this call was under way', sqlstate='40001', hint='Repeat it.')
    # PL/Python takes one from each line it tells, for the line that it puts before a body.
    return '\\n' + source

class Finder:
    caliber_build = BUILD

    def find_spec(self, name, path=None, target=None):
        package, _, module = name.partition('.')
        if package == 'caliber' and (module or '__init__') in MODULES:
            return ModuleSpec(name, self, is_package=not module)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        name = module.__spec__.name
        source = fetch(name.partition('.')[2] or '__init__')
        file = 'plpython/' + name.replace('.', '/') + '.py'
        module.__dict__['EXTENSION_SCHEMA'] = SCHEMA
        exec(compile(source, file, 'exec'), module.__dict__)

sys.meta_path[:] = [f for f in sys.meta_path if not hasattr(f, 'caliber_build')]
sys.meta_path.insert(0, Finder())
for name in [n for n in sys.modules if n.partition('.')[0] == 'caliber']:
    del sys.modules[name]
GD['caliber_build'] = BUILD
$caliber_boot$;

comment on function @extschema@._caliber_boot() is
'Loads this build''s Python package into the session; called by every PL/Python function.';

-- For the few verbs that run as their caller; the others run as the owner of these.
grant execute on function
@extschema@._caliber_boot(),
{functions}
to caliber_admin;
"""

STUB = """\
$python$
call = SD.get('call')
if call is None:
    plpy.execute('select @extschema@._caliber_boot()  -- build {build}')
    from caliber import {module}
    call = SD['call'] = {module}.{function}
return call({arguments})
$python$"""

# Annotations are not evaluated, so nothing needs this import, which takes 10 ms.
TYPING = re.compile(r"^from typing import .*$", re.MULTILINE)

MARKER = re.compile(r"\$python\$ @(\w+)\.(\w+)@ \$python\$")
DECLARATION = re.compile(r"create function @extschema@\.\w+\s*\(")
REPLACEABLE = re.compile(r"^create (function|view|trigger)\b", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--out", type=Path, help="default: ROOT/extension")
    parser.add_argument("--subsystems", required=True, help="in load order, one string")
    options = parser.parse_args()
    out = options.out or options.root / "extension"
    for name, script in build(options.root, options.subsystems.split()).items():
        (out / name).write_text(script)
        print(f"built {name}")


def build(root: Path, subsystems: list[str]) -> dict[str, str]:
    """Name and text of every script: one install script, one per file of sql/upgrade."""
    check_rooms(root, subsystems)
    version = control_version(root)
    sources = python_sources(root)
    # The SQL counts too: a type that is made anew makes prepared statements stale.
    number = build_number({**sources, **sql_sources(root)})
    boot = boot_function(sources, number)
    code = {s: with_stubs(read(root, "functions", s), number) for s in subsystems}

    guard = read(root, "functions", "guard")
    install = [HEADER, guard]
    for subsystem in subsystems:
        install.append(read(root, "schema", subsystem))
        install.append(code[subsystem])
    install.append(boot)
    # Ownership is handed over last, when everything exists.
    install.append(read(root, "functions", "ownership"))
    scripts = {f"caliber--{version}.sql": "\n".join(install)}

    for delta in sorted((root / "sql/upgrade").glob("*--*.sql")):
        if delta.stem.partition("--")[2] != version:
            continue  # code of an older release is not in this tree
        replaced = [replacing(code[s]) for s in subsystems]
        text = [HEADER, replacing(guard), delta.read_text(), gone(sources), boot, *replaced]
        text.append(read(root, "functions", "ownership"))
        scripts[f"caliber--{delta.stem}.sql"] = "\n".join(text)
    return scripts


def check_rooms(root: Path, subsystems: list[str]) -> None:
    """A file that no subsystem names would silently be left out."""
    known = {*subsystems, "guard", "ownership"}
    for room in ("schema", "functions"):
        for path in (root / "sql" / room).glob("*.sql"):
            if path.stem not in known:
                raise SystemExit(f"{path}: not in SUBSYSTEMS of the Makefile")


def replacing(code: str) -> str:
    return REPLACEABLE.sub(r"create or replace \1", code)


def control_version(root: Path) -> str:
    control = (root / "control/caliber.control").read_text()
    found = re.search(r"^default_version = '([^']+)'", control, re.MULTILINE)
    if not found:
        raise SystemExit("control/caliber.control: no default_version")
    return found[1]


def read(root: Path, room: str, subsystem: str) -> str:
    path = root / "sql" / room / f"{subsystem}.sql"
    return path.read_text() if path.exists() else ""


def python_sources(root: Path) -> dict[str, str]:
    """By the name of the file, without its ending."""
    sources = {}
    for path in sorted((root / "plpython/caliber").glob("*.py")):
        text = path.read_text().replace(SCHEMA_IN_SQL, SCHEMA_IN_PYTHON)
        sources[path.stem] = TYPING.sub("# typing is for the checker", text)
    return sources


def sql_sources(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in sorted((root / "sql").glob("*/*.sql"))}


def build_number(sources: dict[str, str]) -> str:
    digest = hashlib.sha256()
    for name, text in sources.items():
        digest.update(f"{name}\0{text}\0".encode())
    return digest.hexdigest()[:16]


def boot_function(sources: dict[str, str], build: str) -> str:
    parts = []
    for name, source in sources.items():
        for reserved in ("$caliber_python$", "$caliber_sql$"):
            if reserved in source:
                raise SystemExit(f"the Python module {name} contains {reserved}")
        parts.append(MODULE.format(function=module_function(name), name=name, build=build, source=source))
    functions = ",\n".join(f"{module_function(name)}()" for name in sources)
    parts.append(BOOT.format(build=build, modules=" ".join(sources), functions=functions))
    return "\n".join(parts)


def module_function(name: str) -> str:
    return f"@extschema@._caliber_module_{name}"


def gone(sources: dict[str, str]) -> str:
    return GONE.format(names=", ".join(f"'_caliber_module_{name}'" for name in sources))


def with_stubs(sql: str, build: str) -> str:
    def stub(marker: re.Match[str]) -> str:
        declarations = list(DECLARATION.finditer(sql, 0, marker.start()))
        arguments = argument_names(sql, declarations[-1].end())
        return STUB.format(
            build=build,
            module=marker[1],
            function=marker[2],
            arguments=", ".join(arguments),
        )

    return MARKER.sub(stub, sql)


def argument_names(sql: str, start: int) -> list[str]:
    """Names in the argument list that begins at start, behind its opening bracket."""
    depth, argument, arguments = 1, "", []
    for char in sql[start:]:
        depth += (char == "(") - (char == ")")
        if depth == 0:
            arguments.append(argument)
            break
        if char == "," and depth == 1:
            arguments.append(argument)
            argument = ""
        else:
            argument += char
    return [a.split()[0] for a in arguments if a.strip()]


if __name__ == "__main__":
    main()
