"""Channels and advisory locks belong to nobody: whoever can connect listens, notifies and locks.
So notifications tell nothing but ids, are never more than a hint, and no verb hangs on a lock."""

from __future__ import annotations

import re
import time

import psycopg
from attack import arguments
from attack.world import MAKES, SECRET, World, attempt
from conftest import Connection
from harness import mutants

CHANNEL = re.compile(r"pg_notify\(\s*'(\w+)'")


def sources(world: World) -> str:
    """All code of the extension: SQL bodies and Python."""
    rows = world.admin.execute(
        "select pg_get_functiondef(p.oid) as text from pg_proc as p where p.proname ~ '^_?caliber_'"
    )
    return "\n".join(str(row["text"]) for row in rows)


def makers(world: World) -> list[tuple[str, list[object]]]:
    """Calls that make something of the victim's, each new."""
    return [
        arguments.call(world, function, world.victim, arguments.everything(function))
        for function in world.functions
        if function.for_agents and function.writes and MAKES.search(function.name)
    ]


def enders(world: World) -> list[tuple[str, list[object]]]:
    """Calls of all other verbs: what is released, finished or handed on is told as well."""
    return [
        arguments.call(world, function, world.victim, arguments.everything(function))
        # The agent itself ends last.
        for function in sorted(world.functions, key=lambda f: "terminate" in f.name)
        if function.for_agents and function.writes and not MAKES.search(function.name)
    ]


def test_listening(own_world: World) -> None:
    """A stranger on every channel: it hears ids and kinds, nothing that anybody wrote."""
    world = own_world
    channels = set(CHANNEL.findall(sources(world)))
    assert "caliber_event" in channels
    listener = world.session(world.stranger)
    for channel in channels:
        listener.execute(f"listen {channel}")
    for call in [*makers(world), *enders(world)]:
        attempt(world.admin, *call)
    heard = [f"{n.channel} {n.payload}" for n in listener.notifies(timeout=0.5)]
    assert heard
    assert [line for line in heard if SECRET in line] == []


def test_forged_notifications(world: World) -> None:
    for login in world.logins.values():
        for payload in ("", "agent", "x" * 7999, f"{world.victim.agent_id}"):
            world.session(login).execute("select pg_notify('caliber_event', %s)", (payload,))


def test_flooding(own_world: World) -> None:
    """However much an agent records in a transaction, listeners wake once for each category."""
    world = own_world
    listener = world.session(world.stranger)
    listener.execute("listen caliber_event")
    with world.hand.transaction():
        world.hand.execute(
            "select caliber_event_record('probe', 'x' || n, %s) from generate_series(1, 300) as n",
            (world.attacker.agent_id,),
        )
    heard = [n.payload for n in listener.notifies(timeout=0.5)]
    assert heard == ["agent"]


def test_a_full_queue_stops_nobody(world: World) -> None:
    """Whatever notifies looks at the queue first; a full one would fail the commit."""
    for row in world.admin.execute(
        "select p.oid::regprocedure::text as name, pg_get_functiondef(p.oid) as text"
        " from pg_proc as p where p.proname ~ '^_?caliber_' and p.proname !~ '^_caliber_module_'"
    ):
        if "pg_notify(" in str(row["text"]):
            assert "pg_notification_queue_usage()" in str(row["text"]), row["name"]
    for name, source in mutants.sources(world.admin).items():
        if "pg_notify(" in source:
            assert "pg_notification_queue_usage()" in source, name


def test_advisory_locks_taken(own_world: World) -> None:
    """Keys that a verb uses can be seen while it runs, and taken. The victim goes on all the same."""
    world = own_world
    keys = set()
    for call in makers(world):
        with world.admin.transaction(force_rollback=True):
            try:
                with world.admin.transaction():
                    world.admin.execute(*call)
            except psycopg.Error:
                continue
            keys |= advisory_keys(world.admin)
    squatter = world.session(world.stranger)
    for classid, objid, objsubid in keys:
        if objsubid == 1:
            key = (classid << 32 | objid) - (classid >> 31 << 64)
            squatter.execute("select pg_advisory_lock(%s)", (key,))
        else:
            squatter.execute("select pg_advisory_lock(%s::bit(32)::int, %s::bit(32)::int)", (classid, objid))
    victim = world.session(world.victim.login)
    victim.execute("set statement_timeout = '5s'")
    wrong = []
    for query, values in makers(world):
        began = time.monotonic()
        state, _ = attempt(victim, query, values)
        if state in ("57014", "55P03", "40P01") or time.monotonic() - began > 4:
            wrong.append(f"{query} {state}")
    assert not wrong, "\n".join(wrong)


def advisory_keys(session: Connection) -> set[tuple[int, int, int]]:
    rows = session.execute(
        "select classid::bigint as a, objid::bigint as b, objsubid::int as c from pg_locks"
        " where locktype = 'advisory' and pid = pg_backend_pid()"
    )
    return {(int(str(r["a"])), int(str(r["b"])), int(str(r["c"]))) for r in rows}


def test_no_verb_takes_a_lock_without_end(world: World) -> None:
    """A session lock outlives its transaction, so none is taken."""
    assert re.findall(r"\bpg_advisory_lock(?:_shared)?\(", sources(world)) == []
