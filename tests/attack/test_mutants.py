"""The attacks are worth what they catch. Each protection is taken away here, one at a time, and the
attack that it stops has to succeed, that is: the test of it has to fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from attack import (
    catalog,
    test_granting,
    test_impersonation,
    test_reading,
    test_shadowing,
    test_writing,
)
from attack.fixtures import copied, entered
from attack.world import World, attempt, deny
from conftest import Connection, scalar
from harness.mutants import sources

Attack = Callable[[World], object]


@pytest.fixture(scope="module")
def base(first_world: World) -> Iterator[World]:
    """One copy for all of them: each mutation is undone."""
    with copied(first_world) as world:
        yield world


@contextmanager
def mutation(world: World, change: str, undo: str) -> Iterator[None]:
    world.admin.execute(change)
    try:
        yield
    finally:
        world.admin.execute(undo)


@contextmanager
def mutant(world: World, change: str, undo: str) -> Iterator[World]:
    """The same with new sessions, for changes that a session would not notice. They commit nothing,
    so an attack that succeeds leaves no trace for the next."""
    with mutation(world, change, undo), entered(world, world.admin.info.dbname) as weaker:

        def open_undone(login: str) -> Connection:
            session = weaker.open(login)
            session.autocommit = False
            return session

        yield replace(weaker, open=open_undone)


def survives(world: World, attacks: list[Attack]) -> bool:
    """Whether no attack noticed."""
    for attack in attacks:
        try:
            attack(world)
        except AssertionError:
            return False
    return True


def test_the_world_as_it_is_passes(base: World) -> None:
    """What follows would mean nothing if the attacks failed anyway."""
    attacks: list[Attack] = [
        by_argument,
        tables_and_views,
        test_reading.test_a_stranger_calls_nothing_at_all,
        test_shadowing.test_names_are_resolved_when_made,
    ]
    assert survives(base, attacks)


def by_argument(world: World) -> None:
    test_impersonation.test_by_argument(world, "victim")


def tables_and_views(world: World) -> None:
    test_reading.test_tables_and_views(world, "agent")


# --- row security ---


def test_row_security_off_on_one_table(base: World) -> None:
    missed = []
    for table in catalog.secured_tables(base.admin):
        if table in test_reading.SHARED:
            continue
        switch = f"alter table {table} {{}} row level security"
        with mutation(base, switch.format("disable"), switch.format("enable")):
            if survives(base, [tables_and_views]):
                missed.append(table)
    assert missed == []


def test_a_policy_that_lets_everybody_through(base: World) -> None:
    """As a policy that fails open would."""
    missed = []
    for table in catalog.secured_tables(base.admin):
        if table in test_reading.SHARED:
            continue
        opened = f"create policy opened on {table} using (true)"
        with mutation(base, opened, f"drop policy opened on {table}"):
            if survives(base, [tables_and_views]):
                missed.append(table)
    assert missed == []


def test_a_view_that_runs_as_its_owner(base: World) -> None:
    missed = []
    for view in catalog.relations(base.admin, "v"):
        switch = f"alter view {view} set (security_invoker = {{}})"
        with mutation(base, switch.format("false"), switch.format("true")):
            if survives(base, [test_shadowing.test_views_run_as_who_reads_them]):
                missed.append(view)
    assert missed == []


# --- grants and revokes ---


def test_a_function_left_to_everybody(base: World) -> None:
    """PostgreSQL grants a new function to everybody; the build revokes that."""
    missed = []
    for function in base.functions:
        if function.signature in OVERLOADS:
            continue
        grant = f"grant execute on function {function.signature} to public"
        revoke = f"revoke execute on function {function.signature} from public"
        with mutation(base, grant, revoke):
            attack = (
                test_shadowing.test_triggers_borrowed
                if function.is_trigger
                else test_reading.test_a_stranger_calls_nothing_at_all
            )
            if survives(replace(base, functions=[function]), [attack]):
                missed.append(function.signature)
    assert missed == []


@pytest.mark.parametrize("right", ["insert", "update", "delete", "truncate"])
def test_a_table_that_can_be_written(base: World, right: str) -> None:
    statement = {
        "insert": "insert into {table} default values",
        "update": "update {table} set {column} = {column} where false",
        "delete": "delete from {table} where false",
        "truncate": "truncate {table}",
    }[right]
    missed = []
    for table in catalog.relations(base.admin, "rp"):
        grant = f"grant {right} on {table} to caliber_agent"
        with mutation(base, grant, f"revoke {right} on {table} from caliber_agent"):
            if right == "truncate":
                # Tables that others refer to cannot be truncated alone; and it could not be undone.
                attack: Attack = lock_table(table)
            else:
                attack = directly(table, statement)
            if survives(base, [attack]):
                missed.append(table)
    assert missed == []


def directly(table: str, statement: str) -> Attack:
    def attack(world: World) -> None:
        test_writing.no_right(world, world.hand, table, statement)

    return attack


def lock_table(table: str) -> Attack:
    def attack(world: World) -> None:
        try:
            deny(world.hand, f"begin; lock table {table} in share mode")
        finally:
            world.hand.rollback()

    return attack


# --- pinned search paths ---


def test_a_path_that_is_not_pinned(base: World) -> None:
    """Of each function in turn."""
    missed = []
    rows = base.admin.execute(
        f"select f.signature from ({catalog.FUNCTIONS}) as f join pg_proc as p on p.oid = f.oid"
        " where p.proconfig::text like '%search_path%' and (p.prosecdef or p.prosqlbody is null)"
    ).fetchall()
    assert len(rows) > 20
    for signature in (str(row["signature"]) for row in rows):
        reset = f"alter function {signature} reset search_path"
        pin = f"alter function {signature} set search_path = pg_catalog, pg_temp"
        with mutation(base, reset, pin):
            if survives(base, [test_shadowing.test_names_are_resolved_when_made]):
                missed.append(signature)
    assert missed == []


def test_what_a_path_that_is_not_pinned_lets_in(base: World) -> None:
    """It is not only a rule: with an operator of its own, the attacker becomes the victim."""
    test_shadowing.own_schema(base)

    def attack(world: World) -> None:
        world.hand.execute("set search_path = evil, pg_catalog, public")
        world.hand.commit()
        assert test_shadowing.wrong_answers(world, world.hand) == []

    assert survives(base, [attack])
    signature = "caliber_agent_heartbeat(uuid,text,real,bigint,bigint,bigint,bigint,bigint,text,text,bigint)"
    reset = f"alter function {signature} reset search_path"
    pin = f"alter function {signature} set search_path = pg_catalog, pg_temp"
    with mutant(base, reset, pin) as world:
        assert not survives(world, [attack])


# --- who is calling ---

ACTOR = """
    create or replace function public._caliber_actor() returns name language sql stable parallel safe
    return {};
"""
IS_ACTOR = "coalesce(nullif(pg_catalog.current_setting('role'), 'none')::name, session_user)"
ADMIN = """
    create or replace function public._caliber_is_admin() returns boolean language sql stable parallel safe
    return {};
"""
IS_ADMIN = "pg_catalog.pg_has_role(public._caliber_actor(), 'caliber_admin', 'usage')"


def test_a_caller_taken_from_a_setting(base: World) -> None:
    """As in many designs: the application says who it is."""
    loose = "coalesce(nullif(current_setting('caliber.actor', true), '')::name, session_user)"
    with mutant(base, ACTOR.format(loose), ACTOR.format(IS_ACTOR)) as world:
        assert not survives(world, [lambda w: test_impersonation.test_by_setting(w, "caliber.actor")])


def test_a_caller_that_is_the_owner(base: World) -> None:
    """current_user is the owner inside a verb, so everybody would be the same."""
    with mutant(base, ACTOR.format("current_user"), ACTOR.format(IS_ACTOR)) as world:
        assert not survives(world, [test_impersonation.test_in_a_parallel_worker, acts_for_itself])


def acts_for_itself(world: World) -> None:
    state, text = attempt(world.hand, f"select caliber_agent_heartbeat('{world.attacker.agent_id}')")
    assert state == "", text


def test_everybody_an_admin(base: World) -> None:
    with mutant(base, ADMIN.format("true"), ADMIN.format(IS_ADMIN)) as world:
        assert not survives(world, [by_argument])


def definition_of(world: World, module: str) -> str:
    return str(scalar(world.admin, "select pg_get_functiondef(%s::regproc)", f"_caliber_module_{module}"))


CHECK = re.compile(
    r"""
    @caliber_schema@\._caliber_is_admin\(\)(?!\s+as\b)    # in a statement
    | caller\["is_admin"\]                                 # of who is calling
    """,
    re.VERBOSE,
)


def test_the_check_left_out_of_one_module(base: World) -> None:
    """Wherever Python or a statement of it asks whether the caller may, the answer is yes."""
    caught: list[str] = []
    missed: list[str] = []
    for name in sources(base.admin):
        definition = definition_of(base, name)
        changed = CHECK.sub(lambda found: "True" if "caller" in found[0] else "true", definition)
        if changed == definition:
            continue
        with mutant(base, changed, definition) as world:
            attacks: list[Attack] = [
                by_argument,
                test_impersonation.test_what_is_for_admins,
                test_impersonation.test_sending_to_another_team,
                test_impersonation.test_by_argument_behind_a_call_of_ones_own,
                test_impersonation.test_on_each_of_the_victims_tasks,
            ]
            (missed if survives(world, attacks) else caught).append(name)
    assert set(missed) <= SECOND_LINE
    assert {"callers", "agents_beat", "events"} <= set(caught)


# Modules whose check stands behind another one: the grant on the function already refuses, or the
# statement that says who reads.
SECOND_LINE = {"config", "readers"}

# Functions that only call another of the same name, which is refused with the same words.
OVERLOADS = {
    "caliber_lock_acquire(uuid,text,uuid,caliber_lock_mode,bigint,integer,text,bigint)",
    "caliber_lock_guard(text,uuid,bigint)",
}


def test_the_rule_against_widening_left_out(base: World) -> None:
    definition = definition_of(base, "grants")
    rule = "    if not _may_pass_on(held, {"
    assert rule in definition
    with mutant(base, definition.replace(rule, "    if False and (held, {"), definition) as world:
        assert not survives(world, [test_granting.test_taking_a_right_on_the_victim])


def test_the_guard_of_the_schema_left_out(base: World) -> None:
    definition = definition_of(base, "plans")
    guard = "            _refuse_intrusion()\n"
    assert guard in definition
    loose = mutation(base, definition.replace(guard, ""), definition)
    with loose, entered(base, base.admin.info.dbname) as world, pytest.raises(AssertionError):
        test_shadowing.overload(world, "to attacker", test_shadowing.HIJACK)
