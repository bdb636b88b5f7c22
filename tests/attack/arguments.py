"""Makes up arguments that a function could well be called with, from their types and names.

What cannot be told from those stands in the small tables below. An attack that cannot make a call
reach the check it is after fails; it then needs a line here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from attack.catalog import Argument, Function
from conftest import scalar

if TYPE_CHECKING:
    from attack.world import Agent, World

# Tried for each side before everything else, for what the verbs alone would not leave behind.
# {agent_id}, {word} and {team} are that side's; a statement whose function does not exist does nothing.
SEEDS: tuple[str, ...] = (
    "select caliber_token_request(child, 'review', '{word}')"
    " from caliber_agent_spawn('{agent_id}', 'coder', name => '{word}-child',"
    " can_delegate_to => array['*']) as child",
    "select caliber_token_request('{agent_id}', 'review', '{word}')",
    "select caliber_token_request('{agent_id}', 'test_run', '{word}')",
    "select caliber_token_request(agent_id, 'test_run', '{word}')"
    " from caliber_agent where name = '{word}-child'",
    "select caliber_channel_join('{agent_id}', 'collab:{word}')",
    "select caliber_message_send('{agent_id}', '{agent_id}', null, 'nudge', '{{\"about\": \"{word}\"}}')",
    "select caliber_message_arm('{agent_id}')",
    "insert into caliber_queue_mark (queue_id, low) values ('{agent_id}', 0)",
    "insert into caliber_queue_waiter (queue_id, armed) values ('{agent_id}', true)",
    "select caliber_lock_acquire('{agent_id}', 'file', '{word}.py', 'shared', timeout_ms => 3600000)",
    "select put.* from caliber_region_create('{agent_id}', 'team', '{word}',"
    " conflict_resolution => 'last_write_wins') as region_id,"
    " lateral caliber_region_put('{agent_id}', region_id, '{word}', 'true') as put",
    "select put.* from caliber_region_create('{agent_id}', 'team', '{word}-2',"
    " conflict_resolution => 'manual') as region_id, generate_series(1, 2) as n,"
    " lateral caliber_region_put('{agent_id}', region_id, '{word}', to_jsonb(n), expected_version => 0)"
    " as put",
    "select caliber_region_create(agent_id, 'private', '{word}-3', readers => array['{agent_id}'::uuid])"
    " from caliber_agent where name = '{word}-child'",
    "select caliber_trajectory_start('{word}', '{agent_id}')",
    "select caliber_artifact_create(s.scope_id, null, 'fact', '{word} is ' || n, embedding => '[1,2,3]')"
    " from caliber_scope as s, generate_series(3, 4) as n where s.agent_id = '{agent_id}'",
    "select d.* from caliber_trajectory as t, lateral caliber_detect_conflicts(t.trajectory_id) as d"
    " where t.agent_id = '{agent_id}'",
    "select caliber_delegate_task(agent_id, 'coder', '{word}')"
    " from caliber_agent where name = '{word}-child'",
    "select caliber_accept_delegation(caliber_delegate_task('{agent_id}', null, '{word}',"
    " delegatee_agent_id => agent_id), agent_id) from caliber_agent where name = '{word}-child'",
    "update caliber_agent set can_delegate_to = array['*'] where name = '{word}-child'",
    "select caliber_accept_delegation(caliber_delegate_task(agent_id, null, '{word}',"
    " delegatee_agent_id => '{agent_id}'), '{agent_id}') from caliber_agent where name = '{word}-child'",
    "select h.* from caliber_agent as c, caliber_trajectory as t, lateral caliber_broadcast_handoff("
    "'{agent_id}', array[c.agent_id], t.trajectory_id, 'specialization', '{word}') as h"
    " where c.name = '{word}-child' and t.agent_id = '{agent_id}' and t.status = 'active' limit 1",
    "insert into caliber_audit_pruned (team_id, audit_no, recorded_at, is_escalation, content_hash,"
    " prev_hash, hash) select team_id, 0, now(), false, '', '', '' from caliber_agent"
    " where agent_id = '{agent_id}'",
)

# What an argument of this name is, where any value of its type would not do.
VALUES: dict[str, str] = {
    "cursor": "1-1-1",
    "capability": "read_transcript",
    "agent_type": "coder",
    "delegatee_agent_type": "coder",
    "to_agent_type": "coder",
    "memory_type": "artifact",
    "query": "{word}",
    "team": "{team}",
    "message_type": "nudge",
}

# The same for one function's argument.
VALUES_OF: dict[tuple[str, str], str] = {
    ("caliber_config_get", "key"): "event_level",
    ("caliber_config_set", "key"): "event_level",
    ("caliber_config_set", "value"): "debug",
    ("caliber_config_reset", "key"): "event_level",
    ("caliber_message_wait", "timeout_ms"): "1",
}

# What is required and null all the same: a message goes to an agent or to a type of agents.
NULLS: set[tuple[str, str]] = {("caliber_message_send", "to_agent_type")}

# Arguments that may be left out, but not by every call.
NEEDED: set[tuple[str, str]] = {("caliber_search", "query"), ("caliber_message_wait", "timeout_ms")}

# Ids under another name than the column that holds them; the last such thing, as the first may be
# what the call is about.
COLUMNS: dict[str, str] = {
    "memory_id": "artifact_id",
    "in_reply_to": "message_id",
    "superseded_by": "artifact_id",
    "parent_trajectory_id": "trajectory_id",
}

BY_TYPE: dict[str, str] = {
    "text": "{word}",
    "name": "{word}",
    "jsonb": '{{"{word}": "{word}"}}',
    "json": '{{"{word}": "{word}"}}',
    "boolean": "true",
    "bytea": "{word}",
    "integer": "1",
    "bigint": "1",
    "real": "0.5",
    "double precision": "0.5",
    "numeric": "1",
    "interval": "1 minute",
    "timestamp with time zone": "2100-01-01 00:00:00+00",
    "vector": "[1,2,3]",
    "public.vector": "[1,2,3]",
    "regnamespace": "public",
}


class CannotMakeUpError(AssertionError):
    """An argument of a type or name that this module does not know."""


def call(
    world: World, function: Function, whose: Agent, given: Iterable[Argument], **exactly: object
) -> tuple[str, list[object]]:
    """A call with the arguments given, of whose things, and what is named exactly; the rest is left out."""
    wanted = [a for a in function.arguments if a in set(given) or a.name in exactly]
    names = [f"{a.name} => %s::{a.cast}" for a in wanted]
    values = [exactly[a.name] if a.name in exactly else value(world, function, a, whose) for a in wanted]
    return f"select * from {function.schema}.{function.name}({', '.join(names)})", values


def required(function: Function) -> list[Argument]:
    return [a for a in function.arguments if not a.optional or (function.name, a.name) in NEEDED]


def everything(function: Function) -> list[Argument]:
    """What a full call has: all that is required, and whose it is where that can be left out."""
    return [a for a in function.arguments if a in required(function) or a.name == "agent_id"]


def value(world: World, function: Function, argument: Argument, whose: Agent) -> str | None:
    if (function.name, argument.name) in NULLS:
        return None
    known = VALUES_OF.get((function.name, argument.name)) or VALUES.get(argument.name)
    if argument.is_agent:
        return whose.agent_id
    if argument.type == "uuid":
        return thing(world, argument.name, whose)
    if argument.type == "uuid[]":
        return "{" + thing(world, argument.name.removesuffix("s"), whose) + "}"
    if argument.type.endswith("[]"):
        element = BY_TYPE.get(argument.type.removesuffix("[]"), "{word}")
        return "{}" if argument.optional else "{" + element.format(word=whose.word) + "}"
    if known is None and argument.type.startswith("caliber_"):
        row = row_of(world, argument.type, whose)
        if row is not None:
            return row
    if known is None:
        known = BY_TYPE.get(argument.type) or first_label(world, argument.type)
    if known is None:
        raise CannotMakeUpError(f"no value for {argument.name} {argument.type} of {function.signature}")
    return known.format(word=whose.word, team=whose.team, agent_id=whose.agent_id)


def thing(world: World, name: str, whose: Agent) -> str:
    """The id of something that is the agent's: from any table that has a column of that name."""
    from attack.world import random_id

    column = COLUMNS.get(name, name)
    tables = world.admin.execute(
        "select c.relname as name from pg_attribute as a join pg_class as c on c.oid = a.attrelid"
        " where a.attname = %s and a.atttypid = 'uuid'::regtype and c.relkind = 'r'"
        " and c.relname like 'caliber\\_%%' order by c.oid",
        (column,),
    ).fetchall()
    for table in (str(row["name"]) for row in tables):
        pattern = f"{whose.agent_id}|{whose.team_id}|{whose.word}"
        order = "desc" if name in COLUMNS else "asc"
        mine = f"select {column} from {table} as t where t::text ~ %s"
        query = f"{mine} order by {column} {order} nulls last limit 1"
        found = scalar(world.admin, query, pattern)
        if found is not None:
            return str(found)
    return random_id()


def row_of(world: World, table: str, whose: Agent) -> str | None:
    """A whole row that is the agent's, for a function that takes one."""
    if scalar(world.admin, "select to_regclass(%s)", table) is None:
        return None
    query = f"select t::text from {table} as t where t::text ~ %s limit 1"
    found = scalar(world.admin, query, f"{whose.agent_id}|{whose.team_id}|{whose.word}")
    return None if found is None else str(found)


def first_label(world: World, kind: str) -> str | None:
    """An enum's first value."""
    label = scalar(
        world.admin,
        "select enumlabel from pg_enum where enumtypid = to_regtype(%s) order by enumsortorder limit 1",
        kind,
    )
    return None if label is None else str(label)
