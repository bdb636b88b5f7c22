"""The extension as a whole: install, two versions, upgrade, dump and restore, drop."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from build import build
from conftest import ROOT, Connect, Connection, scalar

NEXT = "9.9.9"
BIN = Path(subprocess.check_output([os.environ["PG_CONFIG"], "--bindir"], text=True).strip())
SHARE = Path(subprocess.check_output([os.environ["PG_CONFIG"], "--sharedir"], text=True).strip())

MakeDatabase = Callable[..., str]


@pytest.fixture
def database(db: Connection) -> Iterator[MakeDatabase]:
    made: list[str] = []

    def make(version: str | None = "0.1.0", schema: str = "public") -> str:
        name = f"caliber_life_{uuid.uuid4().hex[:12]}"
        db.execute(f"create database {name} template template0")
        made.append(name)
        with psycopg.connect(dbname=name, autocommit=True) as fresh:
            fresh.execute(f'create schema if not exists "{schema}"')
            if version:
                fresh.execute(f"create extension caliber schema \"{schema}\" version '{version}' cascade")
        return name

    yield make
    for name in made:
        db.execute(f"drop database {name} with (force)")


def subsystems() -> list[str]:
    for line in (ROOT / "Makefile").read_text().splitlines():
        if line.startswith("SUBSYSTEMS :="):
            return line.partition(":=")[2].split()
    raise AssertionError("no SUBSYSTEMS in the Makefile")


def as_root(*command: str) -> None:
    prefix = [] if os.access(SHARE / "extension", os.W_OK) else ["sudo", "-n"]
    subprocess.run([*prefix, *command], check=True)


@pytest.fixture
def next_version(tmp_path: Path) -> Iterator[None]:
    """Builds and installs a next version: a changed table and function, a module more, one less."""
    root = tmp_path / "caliber"
    for folder in ("sql", "plpython", "control"):
        shutil.copytree(ROOT / folder, root / folder)
    control = root / "control/caliber.control"
    control.write_text(control.read_text().replace("'0.1.0'", f"'{NEXT}'"))
    column = "alter table @extschema@.caliber_team add column motto text;\n"
    column += "comment on column @extschema@.caliber_team.motto is 'What it believes.';\n"
    with (root / "sql/schema/teams.sql").open("a") as schema:
        schema.write(column)
    (root / f"sql/upgrade/0.1.0--{NEXT}.sql").write_text(column)
    python = root / "plpython/caliber/config.py"
    changed = python.read_text().replace("return value\n", 'return f"next {value}"\n', 1)
    assert changed != python.read_text()
    python.write_text(changed)
    (root / "plpython/caliber/search.py").rename(root / "plpython/caliber/seek.py")
    for leftover in (SHARE / "extension").glob(f"caliber--*{NEXT}.sql"):
        as_root("rm", str(leftover))
    installed = []
    for name, text in build(root, subsystems()).items():
        (tmp_path / name).write_text(text)
        as_root("cp", str(tmp_path / name), str(SHARE / "extension" / name))
        installed.append(str(SHARE / "extension" / name))
    yield
    as_root("rm", *installed)


READ = "select caliber_config_get('event_level')"


def test_open_sessions_run_the_new_code_after_an_update(
    connect: Connect, database: MakeDatabase, next_version: None
) -> None:
    name = database()
    session = connect(dbname=name)
    assert scalar(session, READ) == "info"
    connect(dbname=name).execute(f"alter extension caliber update to '{NEXT}'")
    assert scalar(session, READ) == "next info"
    # An update that is rolled back leaves the session with the code it had.
    other = database()
    session = connect(dbname=other, autocommit=False)
    session.execute(f"alter extension caliber update to '{NEXT}'")
    assert scalar(session, READ) == "next info"
    session.rollback()
    assert scalar(session, READ) == "info"


def test_two_databases_are_on_two_versions(
    connect: Connect, database: MakeDatabase, next_version: None
) -> None:
    old, new = connect(dbname=database()), connect(dbname=database(NEXT))
    for _ in range(2):
        assert scalar(old, READ) == "info"
        assert scalar(new, READ) == "next info"


CATALOG = """
    select 'function' as kind, p.oid::regprocedure::text as name,
        concat_ws('|', pg_get_functiondef(p.oid), p.proacl::text, p.proowner::regrole,
            obj_description(p.oid, 'pg_proc')) as definition
    from pg_proc as p where p.proname ~ '^_?caliber_'
    union all
    select 'column', a.attrelid::regclass || '.' || a.attname,
        concat_ws('|', format_type(a.atttypid, a.atttypmod), a.attnotnull,
            pg_get_expr(d.adbin, d.adrelid), col_description(a.attrelid, a.attnum))
    from pg_attribute as a
    join pg_class as c on c.oid = a.attrelid and c.relname ~ '^caliber_' and a.attnum > 0
    left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
    union all
    select 'relation', c.oid::regclass::text,
        concat_ws('|', c.relkind, c.relacl::text, c.relowner::regrole, c.reloptions::text,
            c.relrowsecurity, obj_description(c.oid, 'pg_class'),
            case c.relkind when 'v' then pg_get_viewdef(c.oid) when 'i' then pg_get_indexdef(c.oid) end)
    from pg_class as c where c.relname ~ '^caliber_'
    union all
    select 'constraint', k.conrelid::regclass || '.' || k.conname, pg_get_constraintdef(k.oid)
    from pg_constraint as k where k.conname ~ '^caliber_'
    union all
    select 'trigger', t.tgrelid::regclass || '.' || t.tgname, pg_get_triggerdef(t.oid)
    from pg_trigger as t where t.tgname ~ '^caliber_'
    union all
    select 'policy', p.polrelid::regclass || '.' || p.polname, pg_get_expr(p.polqual, p.polrelid)
    from pg_policy as p
    union all
    select 'dumped', c::regclass::text, '' from pg_extension as x, unnest(x.extconfig) as c
    where x.extname = 'caliber'
"""


def test_an_upgraded_catalog_equals_a_fresh_one(
    connect: Connect, database: MakeDatabase, next_version: None
) -> None:
    upgraded, fresh = connect(dbname=database()), connect(dbname=database(NEXT))
    upgraded.execute(f"alter extension caliber update to '{NEXT}'")
    catalogs = [
        sorted((str(r["kind"]), str(r["name"]), str(r["definition"])) for r in session.execute(CATALOG))
        for session in (upgraded, fresh)
    ]
    assert len(catalogs[0]) > 150
    assert catalogs[0] == catalogs[1]


def checksums(session: Connection) -> dict[str, object]:
    tables = session.execute(
        "select c::regclass::text as name from pg_extension as x, unnest(x.extconfig) as c"
        " where x.extname = 'caliber'"
    ).fetchall()
    found: dict[str, object] = {}
    for name in (str(row["name"]) for row in tables):
        rows = "string_agg(t::text, ',' order by t::text)"
        query = f"select count(*) || ' ' || coalesce(md5({rows}), '') from {name} t"
        if name.endswith("_seq"):
            query = f"select last_value from {name}"
        found[name] = scalar(session, query)
    return found


MEMORY = (
    "select caliber_trajectory_start('work', agent_id) from caliber_agent where name = 'lead'",
    "select caliber_turn_add(scope_id, 'user', 'hello') from caliber_scope",
    "select caliber_artifact_create(scope_id, null, 'fact', c, embedding => '[1,0]')"
    " from caliber_scope, unnest(array['old', 'new']) as c",
    "select caliber_artifact_supersede(o.artifact_id, n.artifact_id)"
    " from caliber_artifact as o, caliber_artifact as n where o.content = 'old' and n.content = 'new'",
    "select caliber_note_add(agent_id, 'handoff', 'go on', trajectory_id) from caliber_trajectory",
    "select caliber_context_assemble(trajectory_id) from caliber_trajectory",
    "select caliber_trajectory_start('part', agent_id, trajectory_id) from caliber_trajectory",
    "select caliber_embedding_index(2)",
)


def test_dump_and_restore_lose_nothing(connect: Connect, database: MakeDatabase, tmp_path: Path) -> None:
    source, target = database(), database(None)
    session = connect(dbname=source)
    session.execute("select caliber_config_set('event_level', 'debug')")
    session.execute("select caliber_agent_register('lead', name => 'lead') as id")
    session.execute("select caliber_agent_spawn(agent_id, 'coder') from caliber_agent")
    session.execute("select caliber_agent_heartbeat(agent_id, 'busy', tokens => 5) from caliber_agent")
    lead = scalar(session, "select agent_id from caliber_agent where name = 'lead'")
    session.execute("select caliber_state_set('s', 'k', '1', agent_id => %s, exclusive => true)", (lead,))
    for name in ("lead", "%"):
        query = "select caliber_token_request(agent_id, 'review') from caliber_agent where name like %s"
        session.execute(query, (name,))
    session.execute("select caliber_checkpoint_save(%s, 'done', 'x', '{}')", (lead,))
    session.execute("select caliber_lock_acquire(agent_id, 'doc', name) from caliber_agent")
    session.execute("select caliber_lock_acquire(agent_id, 'doc', '1', 'shared') from caliber_agent")
    for statement in MEMORY:
        session.execute(statement)
    session.execute("select caliber_region_create(agent_id, 'team', 'plan') from caliber_agent")
    for value in (1, 2):
        session.execute(
            "select caliber_region_put(owner_agent_id, region_id, 'k', %s::jsonb) from caliber_region",
            (str(value),),
        )
    session.execute("select caliber_message_type_add('gossip')")
    session.execute("select caliber_message_schema_register('memo', '{\"type\": \"object\"}')")
    session.execute("select caliber_message_broadcast(agent_id, 'gossip') from caliber_agent")
    session.execute("select count(*) from caliber_agent, caliber_message_receive(agent_id)")
    before = checksums(session)
    cursor = str(scalar(session, "select max(next_cursor) from caliber_events_since()"))
    dump = tmp_path / "dump"
    subprocess.run([BIN / "pg_dump", "-Fc", "-f", dump, source], check=True)
    subprocess.run([BIN / "pg_restore", "--exit-on-error", "-d", target, dump], check=True)
    restored = connect(dbname=target)
    after = checksums(restored)
    # The count of restores is the one thing that has to differ.
    before.pop("caliber_epoch"), after.pop("caliber_epoch")
    assert after == before
    assert scalar(restored, "select _caliber_epoch_now()") == 2
    assert scalar(restored, "select count(*) from caliber_agents") == 2
    # Versions, turns and checkpoints go on counting.
    assert scalar(restored, "select caliber_state_set('s', 'k', '2', 1, %s)", lead) == 2
    turn = "select turn from caliber_token_status('review')"
    assert scalar(restored, turn) == 1
    assert scalar(restored, "select caliber_token_release(%s, 'review', '', 1)", lead) is True
    # Above what the database that was dumped can have handed out since.
    assert scalar(restored, turn) == 2**32 + 1
    assert scalar(restored, "select caliber_checkpoint_save(%s, 'done', 'y')", lead) == 2
    assert scalar(restored, "select caliber_turn_add(scope_id, 'user', 'x') from caliber_scope limit 1") == 2
    assert scalar(restored, "select caliber_context_verify(context_id) from caliber_context") is True
    assert scalar(restored, "select caliber_embedding_index(2)") == 2
    assert scalar(restored, "select content from caliber_search(embedding => '[1,0]')") == "new"
    # A follower goes on with the cursor it had, although transaction ids mean nothing here.
    restored.execute("select caliber_event_record('after_restore', 'x')")
    rows = restored.execute("select event_type from caliber_events_since(%s)", (cursor,)).fetchall()
    assert [r["event_type"] for r in rows] == ["after_restore"]
    subprocess.run([BIN / "pg_dump", "-Fc", "-f", dump, target], check=True)
    third = database(None)
    subprocess.run([BIN / "pg_restore", "--exit-on-error", "-d", third, dump], check=True)
    assert scalar(connect(dbname=third), "select _caliber_epoch_now()") == 3


def test_drop_leaves_nothing(connect: Connect, database: MakeDatabase) -> None:
    session = connect(dbname=database())
    session.execute("select caliber_agent_register('coder')")
    session.execute("drop extension caliber")
    left = "select count(*) from pg_class where relname ~ 'caliber'"
    assert scalar(session, left) == 0
    assert scalar(session, "select count(*) from pg_proc where proname ~ 'caliber'") == 0
    assert scalar(session, "select count(*) from pg_type where typname ~ 'caliber'") == 0
    query = "select count(*) from pg_shdepend where refobjid = 'caliber_owner'::regrole and dbid = %s"
    own = scalar(session, "select oid from pg_database where datname = current_database()")
    assert scalar(session, query, own) == 0
    session.execute("create extension caliber")
    assert scalar(session, "select count(*) from caliber_agents") == 0
    # In the same session, which has prepared statements with types that are gone.
    session.execute("select caliber_agent_register('coder')")
    assert scalar(session, "select count(*) from caliber_agents") == 1


def test_installs_in_a_schema_whose_name_needs_quotes(connect: Connect, database: MakeDatabase) -> None:
    session = connect(dbname=database(schema="My Agents"))
    groups = "caliber_owner, caliber_admin, caliber_agent, caliber_observer"
    session.execute(f'grant usage on schema "My Agents" to {groups}')
    session.execute('set search_path = "My Agents"')
    agent = scalar(session, "select caliber_agent_register('coder')")
    assert scalar(session, "select caliber_agent_heartbeat(%s)", agent) == "idle"
    assert scalar(session, "select count(*) from caliber_events_since()") == 2


def test_a_role_with_power_is_not_taken_for_a_group(connect: Connect, database: MakeDatabase) -> None:
    session = connect(dbname=database(None), autocommit=False)
    session.execute("alter role caliber_observer login")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="more than a group"):
        session.execute("create extension caliber cascade")
    session.rollback()


def test_only_sql_and_the_control_file_are_installed() -> None:
    installed = {path.name for path in (SHARE / "extension").glob("caliber*")}
    assert installed == {"caliber.control", "caliber--0.1.0.sql"}


def test_a_file_that_no_subsystem_names_stops_the_build(tmp_path: Path) -> None:
    for folder in ("sql", "plpython", "control"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "sql/functions/orphan.sql").write_text("select 1;\n")
    with pytest.raises(SystemExit, match="orphan"):
        build(tmp_path, subsystems())
