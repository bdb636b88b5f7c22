"""Reading what is another team's: from tables and views, through functions, errors, statistics,
other sessions, copies and dumps. What is the victim's holds the word SECRET."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from attack import arguments, catalog
from attack.world import SECRET, World, attempt, deny
from conftest import scalar

BIN = Path(subprocess.check_output([os.environ["PG_CONFIG"], "--bindir"], text=True).strip())

# No agents' data in them: everybody in a group reads them.
OPEN_TABLES = {"caliber_setting", "caliber_epoch"}

# Tables with row security in which nothing is the victim's alone, and why.
SHARED: dict[str, str] = {
    "caliber_conflict_compared": "ids of artifacts and numbers, shown to those who see all",
    "caliber_tick_note": "how far queues are, of all of them together",
}


def secret(world: World) -> str:
    """What must not be seen, as a regular expression."""
    return f"{SECRET}|{world.victim.agent_id}|{world.victim.team_id}"


def seen(world: World, login: str, relation: str) -> int:
    query = f"select count(*) from {relation} as t where t::text ~ '{secret(world)}'"
    return int(str(scalar(world.session(login), query)))


def test_the_victim_has_something_in_every_table(world: World) -> None:
    """Else the attacks on that table prove nothing; arguments.SEEDS is for what verbs leave out."""
    empty = [t for t in catalog.secured_tables(world.admin) if not seen(world, "postgres", t)]
    assert set(empty) == set(SHARED)


@pytest.mark.parametrize("login", ["agent", "nobody"])
def test_tables_and_views(world: World, login: str) -> None:
    for relation in catalog.relations(world.admin, "rpv"):
        assert seen(world, world.logins[login], relation) == 0, relation


def test_nobody_sees_nothing(world: World) -> None:
    """In the group, but no agent: whatever is unset shows no row, not all."""
    session = world.session(world.nobody)
    for table in catalog.secured_tables(world.admin):
        assert scalar(session, f"select count(*) from {table}") == 0, table


def test_a_stranger_reads_nothing_at_all(world: World) -> None:
    session = world.session(world.stranger)
    for relation in catalog.relations(world.admin, "rpvS"):
        deny(session, f"select * from {relation}")
        deny(session, f"copy (select * from {relation}) to stdout")
        deny(session, f"select count(*) from {relation}")


def test_a_stranger_calls_nothing_at_all(world: World) -> None:
    for function in world.functions:
        if not function.is_trigger:
            state, text = attempt(world.session(world.stranger), f"select {function.with_nulls}")
            # By the grant, before any of its code runs.
            assert state == "42501", f"{function.signature}: {state or 'allowed'} {text}"
            assert f"permission denied for function {function.name}" in text


def test_the_observer_reads_everything(world: World) -> None:
    """And so it is no attack: what it sees is what there is."""
    for table in catalog.relations(world.admin, "rp"):
        count = f"select count(*) from {table}"
        assert scalar(world.session(world.observer), count) == scalar(world.admin, count), table


def test_what_the_observer_may_call_writes_nothing(world: World) -> None:
    """Every function it may call, for the victim; the world stays as it is."""
    for function in world.functions:
        if function.for_observers:
            call = arguments.call(world, function, world.victim, arguments.everything(function))
            attempt(world.session(world.observer), *call)


@pytest.mark.parametrize("login", ["agent", "nobody"])
def test_functions(world: World, login: str) -> None:
    """Every function that agents may call and that reads, asked for what is the victim's."""
    session = world.session(world.logins[login])
    wrong = []
    for function in world.functions:
        if not function.for_agents or function.writes:
            continue
        for wanted in (function.arguments, arguments.everything(function), arguments.required(function)):
            query, values = arguments.call(world, function, world.victim, wanted)
            state, text = attempt(session, query, values)
            # What was asked with may be said again.
            for value in values:
                text = text.replace(str(value), "")
            if any(word in text for word in secret(world).split("|")):
                wrong.append(f"{function.signature}: {state} {text[:300]}")
    assert not wrong, "\n".join(wrong)


def test_row_security_off(world: World) -> None:
    session = world.hand
    session.execute("set row_security = off")
    for table in catalog.secured_tables(world.admin):
        deny(session, f"select * from {table}")
        deny(session, f"copy {table} to stdout")


def test_copy(world: World) -> None:
    for table in catalog.relations(world.admin, "rp"):
        with world.hand.cursor().copy(f"copy {table} to stdout") as copy:
            rows = b"".join(bytes(part) for part in copy).decode()
        assert SECRET not in rows
        assert world.victim.agent_id not in rows


def test_a_condition_that_tells(world: World) -> None:
    """A function so cheap that the planner would like to call it before the row policy."""
    session = world.hand
    session.execute(
        "create function pg_temp.tell(t text) returns boolean language plpgsql cost 0.0000000001"
        " as $$ begin raise notice '%', t; return true; end $$"
    )
    heard: list[str] = []
    session.add_notice_handler(lambda notice: heard.append(notice.message_primary or ""))
    for relation in catalog.relations(world.admin, "rpv"):
        session.execute(f"select from {relation} as t where pg_temp.tell(t::text)")
    assert heard
    assert [line for line in heard if SECRET in line or world.victim.agent_id in line] == []


def test_a_condition_that_fails(world: World) -> None:
    """An error whose text is a value of a row."""
    for relation in catalog.relations(world.admin, "rpv"):
        query = f"select from {relation} as t where (t::text)::integer = 1"
        state, text = attempt(world.hand, query)
        assert state in ("", "22P02"), relation
        assert SECRET not in text


def test_a_join_that_counts(world: World) -> None:
    """Keys guessed by joining: an index must not answer for rows that are hidden."""
    for column in ("agent_id", "team_id"):
        query = f"select count(*) from caliber_agent where {column} = %s"
        guess = world.victim.agent_id if column == "agent_id" else world.victim.team_id
        assert scalar(world.hand, query, guess) == 0
    assert scalar(world.hand, "select count(*) from caliber_agent where name ~ %s", SECRET) == 0
    assert scalar(world.hand, "select max(name) from caliber_team") == world.attacker.team


def test_statistics(world: World) -> None:
    """The planner's samples of columns."""
    for login in world.logins.values():
        session = world.session(login)
        deny(session, "select * from pg_statistic")
        if login != world.observer:
            told = "select count(*) from pg_stats as s where s::text ~ %s"
            assert scalar(session, told, secret(world)) == 0
            assert scalar(session, told.replace("pg_stats", "pg_stats_ext"), secret(world)) == 0


def test_other_sessions(world: World) -> None:
    """What others are running, with the values in it."""
    victim = world.session(world.victim.login)
    victim.execute(f"select '{SECRET}', caliber_agent_get('{world.victim.agent_id}')")
    for login in world.logins.values():
        query = "select count(*) from pg_stat_activity where query ~ %s and usename <> current_user"
        assert scalar(world.session(login), query, f"^select '{SECRET}'") == 0
        deny(world.session(login), f"select pg_terminate_backend({victim.info.backend_pid})")
        deny(world.session(login), f"select pg_cancel_backend({victim.info.backend_pid})")


def test_passwords(world: World) -> None:
    for login in world.logins.values():
        deny(world.session(login), "select rolpassword from pg_authid")
        hidden = "select count(*) from pg_roles where rolpassword <> '********'"
        assert scalar(world.session(login), hidden) == 0


def test_a_name_that_is_taken(world: World) -> None:
    """A unique key tells of its own team's rows only."""
    query = f"select caliber_agent_spawn('{world.attacker.agent_id}', 'coder', name => '{SECRET}-agent')"
    with world.hand.transaction(force_rollback=True):
        assert scalar(world.hand, query) is not None


@pytest.mark.parametrize("login", ["agent", "nobody", "stranger"])
@pytest.mark.parametrize("option", [(), ("--enable-row-security",), ("--data-only", "--inserts")])
def test_dump(world: World, login: str, option: tuple[str, ...]) -> None:
    done = subprocess.run(
        [BIN / "pg_dump", "-U", world.logins[login], *option, world.admin.info.dbname],
        capture_output=True,
        text=True,
    )
    told = done.stdout + done.stderr
    assert SECRET not in told
    assert world.victim.agent_id not in told
    if "--enable-row-security" not in option:
        assert done.returncode != 0


def test_a_dump_by_an_agent_holds_its_own(world: World) -> None:
    """The dump above is empty of secrets because they are kept, not because it is empty."""
    command = [str(BIN / "pg_dump"), "-U", world.attacker.login, "--data-only", "--enable-row-security"]
    command += ["-t", "caliber_agent", world.admin.info.dbname]
    done = subprocess.run(command, capture_output=True, text=True)
    assert world.attacker.agent_id in done.stdout
    assert SECRET not in done.stdout
