"""What the tests of delegations share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conftest import Connection, scalar


@dataclass(frozen=True)
class Cast:
    """Kyra leads; Luke codes, as does Lena; Ada knows data. Max is of another team."""

    kyra: str
    luke: str
    lena: str
    ada: str
    max: str
    trajectory: str


def register(db: Connection, kind: str, name: str, team: str = "default", **more: object) -> str:
    arguments = {"can_delegate_to": ["*"], "name": name, "team": team, **more}
    named = "".join(f", {key} => %s" for key in arguments)
    return str(scalar(db, f"select caliber_agent_register(%s{named})", kind, *arguments.values()))


def make_cast(db: Connection) -> Cast:
    db.execute("select caliber_team_create('blue')")
    kyra = register(db, "general", "kyra")
    return Cast(
        kyra,
        register(db, "code", "luke"),
        register(db, "code", "lena"),
        register(db, "data", "ada", capabilities=["sql"]),
        register(db, "code", "max", team="blue"),
        str(scalar(db, "select caliber_trajectory_start('audit', %s)", kyra)),
    )


def delegate(
    db: Connection, giver: str, kind: str | None = "code", text: str = "review", **more: object
) -> str:
    named = "".join(f", {key} => %s" for key in more)
    query = f"select caliber_delegate_task(%s, %s, %s{named})"
    return str(scalar(db, query, giver, kind, text, *more.values()))


def accept(db: Connection, task: str, agent: str) -> object:
    return scalar(db, "select caliber_accept_delegation(%s, %s)", task, agent)


def given(db: Connection, giver: str, taker: str, **more: Any) -> str:
    """A task that the taker has."""
    task = delegate(db, giver, None, delegatee_agent_id=taker, **more)
    assert accept(db, task, taker) is not None
    return task


def complete(db: Connection, task: str, **more: object) -> object:
    named = "".join(f", {key} => %s" for key in more)
    return scalar(db, f"select caliber_complete_delegation(%s{named})", task, *more.values())


def row(db: Connection, task: str) -> dict[str, object]:
    """As it is written."""
    rows = db.execute("select * from caliber_delegation where delegation_id = %s", (task,)).fetchall()
    assert len(rows) == 1
    return rows[0]


def status(db: Connection, task: str) -> object:
    """As it is judged now."""
    return scalar(db, "select status from caliber_delegations where delegation_id = %s", task)


def lapse(db: Connection, task: str) -> None:
    """As if its time had run out."""
    db.execute(
        "update caliber_delegation set expires_at = clock_timestamp() - interval '1 s'"
        " where delegation_id = %s",
        (task,),
    )


def told(db: Connection, task: str) -> list[tuple[object, ...]]:
    """The messages about a task: from, to, type, priority, event or attempt."""
    rows = db.execute(
        "select sender, recipient, message_type, priority,"
        " coalesce(payload ->> 'event', payload ->> 'status', payload ->> 'attempt') as what"
        " from caliber_messages where channel = %s order by message_id",
        (f"task:{task}",),
    ).fetchall()
    return [tuple(r.values()) for r in rows]


def expire(db: Connection, most: int = 100) -> object:
    return scalar(db, "select _caliber_delegations_expire(%s)", most)
