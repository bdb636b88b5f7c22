"""What the tests of messages share."""

from __future__ import annotations

from dataclasses import dataclass

from conftest import Connection, scalar

RECEIVE = "select * from caliber_message_receive(%s, max_messages => %s, visibility_ms => %s)"


@dataclass(frozen=True)
class Cast:
    """Two coders and a tester in one team, and a stranger in another."""

    ann: str
    bob: str
    tim: str
    eve: str


def make_cast(db: Connection) -> Cast:
    db.execute("select caliber_team_create('blue')")
    made = [
        str(scalar(db, "select caliber_agent_register(%s, name => %s, team => %s)", kind, name, team))
        for kind, name, team in (
            ("coder", "ann", "default"),
            ("coder", "bob", "default"),
            ("tester", "tim", "default"),
            ("coder", "eve", "blue"),
        )
    ]
    return Cast(*made)


def send(db: Connection, sender: str, to: str | None, extra: str = "", *arguments: object) -> str:
    query = f"select caliber_message_send(%s, %s, null, 'task_request' {extra})"
    return str(scalar(db, query, sender, to, *arguments))


def receive(
    db: Connection, agent: str, limit: int = 10, visibility_ms: int = 30_000
) -> list[dict[str, object]]:
    return db.execute(RECEIVE, (agent, limit, visibility_ms)).fetchall()


def one(db: Connection, agent: str, visibility_ms: int = 30_000) -> dict[str, object]:
    rows = receive(db, agent, 1, visibility_ms)
    assert len(rows) == 1
    return rows[0]


def delivery(db: Connection, message: object) -> dict[str, object]:
    rows = db.execute("select * from caliber_delivery where message_id = %s", (message,)).fetchall()
    assert len(rows) == 1
    return rows[0]


def now_visible(db: Connection) -> None:
    """As if every lease and every pause had run out."""
    db.execute("update caliber_delivery set visible_at = clock_timestamp() - interval '1 s'")
