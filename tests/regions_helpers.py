"""What the tests of regions share: agents of two teams, and short ways to call the verbs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from conftest import Connect, Connection, scalar

Row = dict[str, object]
Roles = Callable[[str | None], str]

PUT = "select * from caliber_region_put(%s, %s, %s, %s::jsonb, %s)"


@dataclass(frozen=True)
class Cast:
    """owner and teammate are of one team, the others of another."""

    owner: object
    teammate: object
    stranger: object
    reader: object
    writer: object

    def agent(self, who: str) -> object:
        return getattr(self, who)


def make_cast(db: Connection) -> Cast:
    db.execute("select caliber_team_create('blue')")
    register = "select caliber_agent_register('coder', name => %s, team => %s)"

    def make(name: str, team: str) -> object:
        return scalar(db, register, name, team)

    return Cast(
        owner=make("owner", "default"),
        teammate=make("teammate", "default"),
        stranger=make("stranger", "blue"),
        reader=make("reader", "blue"),
        writer=make("writer", "blue"),
    )


def login(db: Connection, connect: Connect, roles: Roles, agent: object) -> Connection:
    """A session of the agent's own."""
    name = roles("caliber_agent")
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (name, agent))
    return connect(name)


def create(db: Connection, owner: object, region_type: str, arguments: str = "") -> object:
    return scalar(db, f"select caliber_region_create(%s, '{region_type}' {arguments})", owner)


def put(
    db: Connection, agent: object, region: object, value: str, seen: int | None = None, key: str = "k"
) -> tuple[object, ...]:
    """Outcome, version, current value, and whether a conflict was recorded."""
    row = db.execute(PUT, (agent, region, key, value, seen)).fetchone()
    assert row is not None
    return row["outcome"], row["version"], row["current_value"], row["conflict_id"] is not None


def get(db: Connection, agent: object, region: object, key: str = "k") -> tuple[object, ...] | None:
    row = db.execute("select * from caliber_region_get(%s, %s, %s)", (agent, region, key)).fetchone()
    return None if row is None else (row["value"], row["version"])


def history(db: Connection, agent: object, region: object, key: str = "k") -> list[tuple[object, ...]]:
    rows = db.execute("select * from caliber_region_history(%s, %s, %s, 1000)", (agent, region, key))
    return [(row["version"], row["value"]) for row in rows]


def conflicts(db: Connection) -> list[Row]:
    return db.execute("select * from caliber_region_conflict order by conflict_id").fetchall()
