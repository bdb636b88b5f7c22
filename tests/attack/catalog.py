"""What the extension offers, read from the catalog: the attacks go over all of it, so that what is
added later is attacked without anybody thinking of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from conftest import Connection

MEMBERS = """
    select d.classid, d.objid
    from pg_depend as d
    join pg_extension as x on x.oid = d.refobjid and x.extname = 'caliber'
    where d.refclassid = 'pg_extension'::regclass and d.deptype = 'e'
"""

FUNCTIONS = f"""
    select
        p.oid, p.oid::regprocedure::text as signature, p.proname as name, p.proargnames as names,
        n.nspname as schema,
        array(
            select format_type(a.oid, null)
            from unnest(p.proargtypes) with ordinality as a (oid, i)
            order by i
        ) as types,
        array(
            select format('%I.%I', s.nspname, t.typname)
            from unnest(p.proargtypes) with ordinality as a (oid, i)
            join pg_type as t on t.oid = a.oid
            join pg_namespace as s on s.oid = t.typnamespace
            order by i
        ) as casts,
        p.pronargdefaults as defaults, p.provolatile as volatile, p.prosecdef as definer,
        p.prorettype = 'trigger'::regtype as is_trigger,
        has_function_privilege('caliber_agent', p.oid, 'execute') as for_agents,
        has_function_privilege('caliber_observer', p.oid, 'execute') as for_observers
    from pg_proc as p
    join pg_namespace as n on n.oid = p.pronamespace
    join ({MEMBERS}) as m on m.classid = 'pg_proc'::regclass and m.objid = p.oid
    order by p.oid
"""

RELATIONS = f"""
    select c.relname as name, c.relkind as kind, c.relrowsecurity as secured
    from pg_class as c
    join ({MEMBERS}) as m on m.classid = 'pg_class'::regclass and m.objid = c.oid
    where c.relkind in ('r', 'p', 'v', 'S')
    order by c.oid
"""

# An argument that says which agent. Any uuid of another name is something of an agent's.
AGENT = re.compile(r"(^|_)agent_id$|^(parent_id|reports_to|sender|recipient|holder|from_agent|to_agent)$")


@dataclass(frozen=True)
class Argument:
    """cast is the type with its schema, so that it means the same on any search path."""

    name: str
    type: str
    cast: str
    optional: bool

    @property
    def is_agent(self) -> bool:
        return self.type == "uuid" and bool(AGENT.search(self.name))


@dataclass(frozen=True)
class Function:
    signature: str
    schema: str
    name: str
    arguments: tuple[Argument, ...]
    writes: bool
    definer: bool
    is_trigger: bool
    for_agents: bool
    for_observers: bool

    @property
    def agents(self) -> list[Argument]:
        return [a for a in self.arguments if a.is_agent]

    @property
    def with_nulls(self) -> str:
        """A call with nothing in it; who may not call gets 42501 before anything is looked at."""
        return f"{self.schema}.{self.name}({', '.join(f'null::{a.cast}' for a in self.arguments)})"


def functions(db: Connection) -> list[Function]:
    return list(_functions(db))


def _functions(db: Connection) -> Iterator[Function]:
    for row in db.execute(FUNCTIONS).fetchall():
        types, casts, names = row["types"], row["casts"], row["names"] or []
        assert isinstance(types, list)
        assert isinstance(casts, list)
        assert isinstance(names, list)
        required = len(types) - int(str(row["defaults"]))
        yield Function(
            signature=str(row["signature"]),
            schema=str(row["schema"]),
            name=str(row["name"]),
            arguments=tuple(
                Argument(str(name), str(kind), str(cast), place >= required)
                for place, (name, kind, cast) in enumerate(zip(names, types, casts, strict=False))
            ),
            writes=row["volatile"] == "v",
            definer=bool(row["definer"]),
            is_trigger=bool(row["is_trigger"]),
            for_agents=bool(row["for_agents"]),
            for_observers=bool(row["for_observers"]),
        )


def relations(db: Connection, kinds: str) -> list[str]:
    """Names of tables (r), views (v) or sequences (S)."""
    return [str(row["name"]) for row in db.execute(RELATIONS) if str(row["kind"]) in kinds]


def secured_tables(db: Connection) -> list[str]:
    return [str(row["name"]) for row in db.execute(RELATIONS) if row["secured"]]
