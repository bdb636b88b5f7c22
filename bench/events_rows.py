"""Rows of the bench about following events, and about reading one's own rows under row security."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator
from functools import partial

import messages_rows as messages
import psycopg
from rows import Options, Row
from server import DATABASE, SMALL, Session, connect, milliseconds, scratch, script

SMALL_EVENTS = 1_000
READERS = {"a superuser": "none", "an observer": "caliber_observer", "an agent": "caliber_agent"}

METHOD = """\
- Own rows: an agent's 100 rows in a table of others', with and without row security, by index.
- Events: limit 100, a prepared statement with parameters on one connection, {calls} calls for each side
  in turns in batches, the median time. `middle` reads 100 events, `tail` the last 10.
"""


def rows(options: Options) -> Iterator[Row]:
    with scratch(DATABASE), scratch(SMALL):
        yield from events_rows(options)
        yield from own_rows(options)


# --- following events ---


def fill(database: str, events: int) -> None:
    with psycopg.connect(dbname=database, autocommit=True, cursor_factory=psycopg.ClientCursor) as session:
        session.execute(script("events.sql"), {"events": events})
        session.execute("update caliber_agent set login_role = 'caliber_agent' where name = 'coder-1'")
        session.execute("vacuum analyze")


def position(session: Session, left: int) -> str:
    """The cursor after which that many events are left."""
    found = session.execute(
        "select concat_ws('-', epoch, xid, event_id) from caliber_event"
        " order by epoch desc, xid desc, event_id desc offset %s limit 1",
        [left],
    ).fetchone()
    assert found
    return str(found[0])


def reads(session: Session, cursor: str, calls: int) -> list[float]:
    def read() -> object:
        statement = "select * from caliber_events_since(%s, 100)"
        rows = session.execute(statement, [cursor], prepare=True).fetchall()
        assert rows, "the reader sees no event"
        return rows

    return [milliseconds(read) for _ in range(calls)]


def follow(place: str, reader: str, left: Callable[[int], int], options: Options) -> Row:
    times: dict[str, list[float]] = {SMALL: [], DATABASE: []}
    with connect(SMALL) as small, connect(DATABASE) as large:
        sides = ((SMALL, small, SMALL_EVENTS), (DATABASE, large, options.events))
        cursors = {name: position(session, left(events)) for name, session, events in sides}
        for _, session, _ in sides:
            session.execute(f"set role {READERS[reader]}")
        for batch in range(7):
            for name, session, _ in sides:
                taken = reads(session, cursors[name], max(3, options.calls // 6))
                times[name] += taken if batch else []
    mine, other = statistics.median(times[DATABASE]), statistics.median(times[SMALL])
    what = f"events_since, {place}, as {reader}, {options.events:,} events"
    against = f"{other:.2f} ms at {SMALL_EVENTS:,}"
    return Row(what, f"{mine:.2f} ms", against, mine / other, at_most=1.2)


def events_rows(options: Options) -> Iterator[Row]:
    fill(SMALL, SMALL_EVENTS)
    fill(DATABASE, options.events)
    for reader in READERS:
        yield follow("middle", reader, lambda events: events // 2, options)
        yield follow("tail", reader, lambda events: 10, options)


# --- reading one's own rows under row security ---

# What an agent reads of its own, by table: a query of its id, and what makes 100 such rows.
OWN = {
    "events": (
        "select * from caliber_event where source_agent_id = %s",
        "insert into caliber_event (severity, category, event_type, actor, source_agent_id, team_id, summary)"
        " select 'info', 'agent', 'probe', 'x', %s, %s, 'own' from generate_series(1, 100)",
    ),
    "messages": ("select * from caliber_messages where agent_id = %s", messages.MAKE_OWN),
}


def lone_agent(session: Session) -> tuple[object, object]:
    """An agent that is alone in its team, and whom the group's role is for the time being."""
    session.execute("update caliber_agent set login_role = null where login_role = 'caliber_agent'")
    team = session.execute("select caliber_team_create('lone')").fetchone()
    agent = session.execute("select caliber_agent_register('coder', team => 'lone')").fetchone()
    assert team
    assert agent
    session.execute("update caliber_agent set login_role = 'caliber_agent' where agent_id = %s", agent)
    return agent[0], team[0]


def own_rows(options: Options) -> Iterator[Row]:
    with connect(DATABASE) as session:
        agent, team = lone_agent(session)
        for what, (query, make) in OWN.items():
            if what == "messages":
                messages.fill(session, options.events)
            session.execute(make, [agent, team])
            session.execute("vacuum analyze")
            times: dict[str, list[float]] = {"none": [], "caliber_agent": []}
            for batch in range(7):
                for role, taken in times.items():
                    session.execute(f"set role {role}")
                    read = partial(own, session, query, agent)
                    found = [milliseconds(read) for _ in range(options.calls // 6)]
                    taken += found if batch else []
            plan = "\n".join(str(row[0]) for row in session.execute("explain " + query, [agent]))
            session.execute("reset role")
            if re.search("Seq Scan on caliber_(event|message|delivery)", plan) or "Index" not in plan:
                raise SystemExit(f"bench: own {what} are not read by index\n{plan}")
            mine, other = (statistics.median(times[role]) for role in ("caliber_agent", "none"))
            name = f"own 100 {what} of {options.events:,}, as an agent"
            against = f"{other:.2f} ms without row security"
            yield Row(name, f"{mine:.2f} ms", against, mine / other, at_most=2)


def own(session: Session, query: str, agent: object) -> None:
    rows = session.execute(query, [agent], prepare=True).fetchall()
    # With the one of its registration.
    assert len(rows) >= 100, "the agent does not see its own"
