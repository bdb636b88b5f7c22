"""What a text, a number or a json document can do that is put where a verb takes one. As an admin
too: what the agents say may come in through one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from attack import arguments
from attack.catalog import Argument, Function
from attack.world import World, attempt
from conftest import Connection, scalar

# An error of these kinds says that a value was taken for code, or was not looked at.
BROKEN = {
    "42601": "a syntax error",
    "42P01": "no such table",
    "42703": "no such column",
    "42883": "no such function",
    "42804": "a wrong type",
    "38000": "an uncaught error of Python",
    "XX000": "an internal error",
    "39000": "a wrong result of a function",
    "54001": "the stack ran out",
    "no state": "the connection was lost",
}
TEXTS = (
    "'; drop table caliber_agent cascade; --",
    "$$; drop table caliber_agent; $$ @extschema@ %s {0} %(x)s",
    '"; drop role caliber_agent; --',
    "\\'; select 1; \x01\x1f\x7f\u202e\ufeff\U0001f4a3",
    "..",
    "caliber_owner",
    "",
)
JSON_TEXTS = (
    "null",
    "[]",
    '"x"',
    "0",
    '{"read": "x", "write": 5, "$ref": "#", "pattern": "(a+)+$", "type": []}',
    '{"__proto__": {"a": 1}, "": null, "read": [null], "write": [{"memory_type": {}}]}',
)
NUMBERS = {
    "integer": ("-1", "0", "-2147483648", "2147483647"),
    "bigint": ("-1", "0", "-9223372036854775808", "9223372036854775807"),
    "numeric": ("NaN", "Infinity", "-Infinity", "-1", "1e400"),
    "real": ("NaN", "Infinity", "-Infinity", "-1"),
    "double precision": ("NaN", "Infinity", "-Infinity", "-1"),
    "timestamp with time zone": ("infinity", "-infinity", "4000-01-01 BC"),
    "interval": ("-1 day", "178000000 years"),
}


def values(kind: str) -> tuple[str | None, ...]:
    given: tuple[str | None, ...] = (None,)
    if kind in ("text", "name"):
        given += (*TEXTS, "x" * 600_000)
    elif kind == "text[]":
        given += ("{NULL}", '{"\'; drop table caliber_agent; --"}', "{" + ",".join(["x"] * 20_000) + "}")
    elif kind == "uuid[]":
        given += ("{NULL}", "{" + ",".join(["00000000-0000-0000-0000-000000000000"] * 5_000) + "}")
    elif kind == "jsonb":
        deep = 3_000
        given += (*JSON_TEXTS, '{"a":' * deep + "1" + "}" * deep, '{"a": "' + "x" * 600_000 + '"}')
        given += ("{" + ",".join(f'"{n}": {n}' for n in range(20_000)) + "}",)
    else:
        given += NUMBERS.get(kind, ())
    return given


def probes(world: World, login: str) -> Iterator[tuple[Function, Argument, str | None]]:
    for function in world.functions:
        if function.is_trigger or function.name.startswith("_") or function.for_agents != (login == "agent"):
            continue
        for argument in function.arguments:
            for value in values(argument.type):
                yield function, argument, value


@pytest.mark.parametrize("login", ["agent", "admin"])
def test_every_argument(world: World, login: str) -> None:
    """Each argument in turn is something odd, the others are as they should be. Whatever comes of
    it, no verb breaks, and all is undone."""
    session: Connection = world.open(world.attacker.login if login == "agent" else "postgres")
    session.execute("set statement_timeout = '10s'")
    wrong = []
    before = objects(world)
    for function, argument, value in probes(world, login):
        wanted = [a for a in arguments.everything(function) if a != argument]
        odd: dict[str, object] = {argument.name: value}
        query, given = arguments.call(world, function, world.attacker, wanted, **odd)
        state, text = attempt_inside(session, query, given)
        if state in BROKEN or state == "57014":
            shown = "null" if value is None else value[:40]
            wrong.append(f"{function.name} {argument.name} {shown!r}: {state} {text[:300]}")
    assert not wrong, "\n".join(wrong)
    assert objects(world) == before


def attempt_inside(session: Connection, query: str, given: list[object]) -> tuple[str, str]:
    with session.transaction(force_rollback=True):
        return attempt(session, query, given)


def objects(world: World) -> object:
    """Roles, tables, functions: what a smuggled statement would have left or taken."""
    return world.admin.execute(
        "select (select count(*) from pg_roles) as roles, (select count(*) from pg_class) as relations,"
        " (select count(*) from pg_proc) as functions"
    ).fetchone()


def test_names_of_logins(world: World) -> None:
    """The one place where SQL is written: a role's name, and its verifier."""
    roles = "select count(*) from pg_roles"
    before = scalar(world.admin, roles)
    for name in (
        'x"; create role evil superuser; --',
        "x superuser",
        "x' superuser",
        "x\n; create role evil",
        "pg_evil",
        "public",
        "none",
        "caliber_admin",
    ):
        with world.admin.transaction(force_rollback=True):
            world.admin.execute("update caliber_agent set login_role = null")
            query = "select caliber_agent_login_create(%s, null, %s)"
            state, _ = attempt_inside(world.admin, query, [world.attacker.agent_id, name])
            assert state in ("", "42939", "42710", "22023"), f"{name}: {state}"
    for verifier in ("x' superuser", "SCRAM-SHA-256$4096:a'$b:c", "md5" + "0" * 32, "'"):
        query = "select caliber_agent_login_create(%s, %s)"
        state, _ = attempt(world.admin, query, [world.attacker.agent_id, verifier])
        assert state == "22023"
    assert scalar(world.admin, roles) == before
    assert scalar(world.admin, roles + " where rolname = 'evil'") == 0


def test_schema_bombs(world: World) -> None:
    """A json document that is small to write and large to look at."""
    bomb = '{"allOf": [' + ",".join(['{"$ref": "#"}'] * 5_000) + '], "pattern": "' + "(a*)*" * 500 + '"}'
    nested = "[" * 5_000 + "]" * 5_000
    session = world.hand
    session.execute("set statement_timeout = '10s'")
    for document in (bomb, '{"anyOf": ' + nested + "}"):
        query = "select caliber_agent_spawn(%s, 'coder', input_schema => %s::jsonb)"
        state, _ = attempt_inside(session, query, [world.attacker.agent_id, document])
        assert state in ("", "22023")


def test_documents_the_server_refuses(world: World) -> None:
    for document in ('{"a": "\\u0000"}', '{"a": "\\ud800"}', "{", '{"a": NaN}', "[" * 100_000):
        query = "select caliber_event_record('probe', 'x', %s, details => %s::jsonb)"
        state, _ = attempt(world.hand, query, [world.attacker.agent_id, document])
        assert state in ("22P05", "22P02", "54001"), document[:20]
