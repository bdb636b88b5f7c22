"""Names of one's own in the way of ours: in the temporary schema, in a schema of one's own, and
beside the extension's functions."""

from __future__ import annotations

import pytest
from attack import arguments, catalog
from attack.test_impersonation import acting, as_the_victim, beat
from attack.world import SECRET, World, attempt, deny
from conftest import Connection, scalar


def wrong_answers(world: World, session: Connection) -> list[str]:
    """Verbs that let the session pass for the victim."""
    wrong = []
    for function, argument in acting(world):
        call = as_the_victim(world, function, argument, world.victim, world.victim.agent_id)
        state, text = attempt(session, *call)
        if state != "42501" or SECRET in text:
            wrong.append(f"{function.signature} by {argument.name}: {state or 'allowed'} {text[:200]}")
    return wrong


def test_temporary_tables(world: World) -> None:
    """Each table again, in the temporary schema, and in it the attacker is the victim."""
    session = world.hand
    for table in catalog.relations(world.admin, "rp"):
        session.execute(f"create temp table {table} as select * from {table}")
    victim = world.admin.execute("select * from caliber_agent where agent_id = %s", (world.victim.agent_id,))
    row = victim.fetchone() or {}
    session.execute(
        "insert into pg_temp.caliber_agent (agent_id, team_id, agent_type, name, login_role, status)"
        " values (%s, %s, 'coder', 'x', current_user, 'idle')",
        (row["agent_id"], row["team_id"]),
    )
    for path in ("pg_temp, public", "pg_temp, pg_catalog, public", "pg_temp"):
        session.execute(f"set search_path = {path}")
        assert not wrong_answers(world, session)
        assert scalar(session, "select public._caliber_my_agent()::text") == world.attacker.agent_id


def test_temporary_functions_and_types(world: World) -> None:
    session = world.hand
    session.execute(
        "create function pg_temp._caliber_actor() returns name language sql as $$ select 'postgres'::name $$;"
        "create function pg_temp._caliber_is_admin() returns boolean language sql as 'select true';"
        "create function pg_temp.coalesce(boolean, boolean) returns boolean language sql as 'select true';"
        "create type pg_temp.uuid as enum ('x');"
        "create domain pg_temp.name as text; create domain pg_temp.text as int"
    )
    for path in ("pg_temp, public, pg_catalog", "pg_temp"):
        session.execute(f"set search_path = {path}")
        assert not wrong_answers(world, session)


EVIL = """
    grant usage on schema evil to public;
    create function evil.yes(name, name) returns boolean language sql as 'select true';
    create operator evil.= (function = evil.yes, leftarg = name, rightarg = name);
    create function evil.yes(uuid, uuid) returns boolean language sql as 'select true';
    create operator evil.= (function = evil.yes, leftarg = uuid, rightarg = uuid);
    create function evil.yes(bigint, bigint) returns boolean language sql as 'select true';
    create operator evil.= (function = evil.yes, leftarg = bigint, rightarg = bigint);
    create function evil.current_setting(text) returns text language sql as $$ select 'postgres' $$;
    create function evil.pg_has_role(name, text, text) returns boolean language sql as 'select true';
    create function evil.clock_timestamp() returns timestamptz language sql as 'select now()';
    create function evil._caliber_is_admin() returns boolean language sql as 'select true';
    create function evil._caliber_actor() returns name language sql as $$ select 'postgres'::name $$;
    create table evil.caliber_agent (agent_id uuid, login_role name, terminated_at timestamptz);
"""


def own_schema(world: World) -> Connection:
    """A schema that somebody let the attacker have, full of names that are ours or the server's."""
    world.admin.execute(f"create schema evil authorization {world.attacker.login}")
    session = world.hand
    session.execute(EVIL)
    return session


def test_operators_and_functions(own_world: World) -> None:
    """Verbs, and row policies, which have their meaning from when they were made."""
    own_schema(own_world)
    before = own_world.checksum()
    for path in ("evil, pg_catalog, public", "evil, public", "evil"):
        # A new session: statements keep the meaning they were prepared with.
        session = own_world.open(own_world.attacker.login)
        session.execute(f"set search_path = {path}")
        assert not wrong_answers(own_world, session)
    assert own_world.checksum() == before
    session.execute("set search_path = evil, pg_catalog")
    for table in catalog.secured_tables(own_world.admin):
        rows = f"select count(*) from public.{table} as t where t::text ~ '{SECRET}'"
        assert scalar(session, rows) == 0


def test_a_type_with_a_cast(own_world: World) -> None:
    """An argument that turns into the victim's id on its way in is still the victim's id."""
    session = own_schema(own_world)
    session.execute(
        "create type evil.id as (a int);"
        "create function evil.turn(evil.id) returns uuid language sql"
        f" as $$ select '{own_world.victim.agent_id}'::uuid $$;"
        "create cast (evil.id as uuid) with function evil.turn(evil.id) as implicit"
    )
    deny(session, "select public.caliber_agent_heartbeat(row(1)::evil.id)")


HIJACK = """
    create function public._caliber_log(
        text, text, text, text, uuid default null, uuid default null, details jsonb default null
    ) returns bigint language plpgsql as
        $$ begin execute 'delete from public.caliber_agent_beat'; return 1; end $$;
    create function public._caliber_config_value(varchar) returns text language sql as $$ select 'x' $$;
    create function public.caliber_agent_heartbeat(uuid) returns text language sql as $$ select 'x' $$;
"""
# These make calls ambiguous: nothing works, and nothing is hijacked.
AMBIGUOUS = """
    create function public._caliber_actor(int default 0) returns text language sql as $$ select 'postgres' $$;
    create function public._caliber_is_admin(int default 0) returns boolean language sql as 'select true';
    create function public._caliber_boot(int default 0) returns void language sql as 'select';
    create function public._caliber_module_errors(int default 0) returns text language sql as 'select null';
    create function public._caliber_intrusions(oid) returns setof text language sql as 'select null';
"""


@pytest.mark.parametrize("overloads", [HIJACK, HIJACK + AMBIGUOUS], ids=["hijack", "ambiguous"])
def test_overloads(own_world: World, overloads: str) -> None:
    """Functions beside ours that fit a call better. Verbs do nothing while that can be, or has been."""
    for way in ("to attacker", "to public", "to caliber_agent", "to a group", "then closed"):
        overload(own_world, way, overloads)


def overload(world: World, way: str, overloads: str) -> None:
    group = "pg_monitor"
    admitted = {
        "to attacker": world.attacker.login,
        "to public": "public",
        "to caliber_agent": "caliber_agent",
        "to a group": group,
        "then closed": world.attacker.login,
    }[way]
    world.admin.execute(f"grant create on schema public to {admitted}")
    if way == "to a group":
        world.admin.execute(f"grant {group} to {world.attacker.login}")
    world.hand.execute(overloads)
    if way == "then closed":
        world.admin.execute(f"revoke create on schema public from {world.attacker.login}")
    try:
        before = world.checksum()
        for login in (world.attacker.login, world.victim.login, "postgres"):
            session = world.open(login)
            spawn = f"select caliber_agent_spawn('{world.attacker.agent_id}'::uuid, 'coder'::text)"
            state, text = attempt(session, spawn)
            if overloads == HIJACK:
                assert (state, "nothing is done while" in text) == ("42501", True), f"{login} {text}"
            assert state in ("42501", "42725"), f"{login} {text}"
        assert world.checksum() == before
    finally:
        world.admin.execute(f"revoke {group} from {world.attacker.login}")
        world.admin.execute(f"drop owned by {world.attacker.login}")
        world.admin.execute(f"revoke create on schema public from {admitted}")
    # Once all of it is gone, verbs work again, also in a session that was refused.
    world.admin.execute("select caliber_agent_heartbeat(%s)", (world.victim.agent_id,))


def test_triggers_borrowed(world: World) -> None:
    """Our trigger functions on a table of one's own."""
    for login in world.logins.values():
        session = world.session(login)
        session.execute("create temp table if not exists own (a int)")
        for function in world.functions:
            if function.is_trigger:
                name = function.name
                deny(session, f"create trigger t before insert on own execute function {name}()")


def test_helpers(world: World) -> None:
    """What is private is not called: it does as it is told and asks nobody."""
    for function in world.functions:
        if function.name.startswith("_") and not function.for_agents and not function.is_trigger:
            for login in world.logins.values():
                deny(world.session(login), f"select {function.with_nulls}")


def test_helpers_that_may_be_called_write_nothing(world: World) -> None:
    """Those that policies and views need; called in earnest, about the victim."""
    for function in world.functions:
        if function.name.startswith("_") and function.for_agents:
            for login in world.logins.values():
                call = arguments.call(world, function, world.victim, function.arguments)
                attempt(world.session(login), *call)


def test_names_are_resolved_when_made(world: World) -> None:
    """Definer or not, a body has a pinned path, or was parsed when it was made."""
    loose = world.admin.execute(f"""
        select f.signature from ({catalog.FUNCTIONS}) as f join pg_proc as p on p.oid = f.oid
        where (p.prosqlbody is null or p.prosecdef)
            and not coalesce('search_path=pg_catalog, pg_temp' = any (p.proconfig), false)
    """).fetchall()
    assert loose == []


def test_views_run_as_who_reads_them(world: World) -> None:
    for view in catalog.relations(world.admin, "v"):
        options = scalar(world.admin, "select reloptions from pg_class where oid = %s::regclass", view)
        assert options == ["security_invoker=true"], view


def test_the_beat_is_what_is_attacked(own_world: World) -> None:
    """The call most attacks make does something for whom it is allowed to."""
    before = own_world.checksum()
    own_world.session(own_world.victim.login).execute(beat(own_world))
    assert own_world.checksum() != before
