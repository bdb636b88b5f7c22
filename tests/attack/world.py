"""A world to attack: a victim with something in every table, an attacker of another team who has
the same, an observer, a login that is in the group but no agent, and a stranger.

Whatever text the victim's things hold contains SECRET, so a leak of any kind can be told by
looking for that word."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
from attack import arguments, catalog
from conftest import Connection, scalar
from psycopg import sql
from psycopg.rows import dict_row

SECRET = "sekret"

# Verbs that leave something behind; called for the victim and for the attacker to fill the tables.
MAKES = re.compile(
    r"_(spawn|start|open|create|add|record|send|broadcast|reply|acquire|request|set|put|save|join|"
    r"checkpoint|delegate|initiate|assemble|task|handoff|detect|heartbeat)\b|^caliber_(delegate|initiate)"
)


MEMORY = json.dumps({side: [{"memory_type": "*", "scope": "team"}] for side in ("read", "write")})


@dataclass(frozen=True)
class Agent:
    agent_id: str
    team_id: str
    team: str
    login: str
    word: str


@dataclass
class World:
    admin: Connection
    victim: Agent
    attacker: Agent
    observer: str
    nobody: str
    stranger: str
    open: Callable[[str], Connection]
    functions: list[catalog.Function] = field(default_factory=list)
    _sessions: dict[str, Connection] = field(default_factory=dict)
    _checksum: str = ""

    @property
    def logins(self) -> dict[str, str]:
        """Everybody who attacks."""
        return {
            "agent": self.attacker.login,
            "observer": self.observer,
            "nobody": self.nobody,
            "stranger": self.stranger,
        }

    def session(self, login: str) -> Connection:
        """One for each login, kept; open() makes another."""
        if login not in self._sessions:
            self._sessions[login] = self.open(login)
        return self._sessions[login]

    @property
    def hand(self) -> Connection:
        return self.session(self.attacker.login)

    def checksum(self) -> object:
        """Of every row of every table."""
        if not self._checksum:
            part = "select concat({}, count(*), md5(string_agg(t::text, '' order by t::text))) as sum"
            parts = [
                sql.SQL(part + " from {} as t").format(sql.Literal(name), sql.Identifier(name))
                for name in catalog.relations(self.admin, "rp")
            ]
            whole = sql.SQL(" union all ").join(parts).as_string(self.admin)
            self._checksum = f"select string_agg(sum, ' ' order by sum) from ({whole}) as parts"
        return scalar(self.admin, self._checksum)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        before = self.checksum()
        yield
        assert self.checksum() == before, "something changed"


def told(error: psycopg.Error) -> str:
    """All that a client gets to read of an error."""
    d = error.diag
    return " ".join(
        part or ""
        for part in (d.message_primary, d.message_detail, d.message_hint, d.context, d.internal_query)
    )


def attempt(session: Connection, query: str, parameters: list[object] | None = None) -> tuple[str, str]:
    """SQLSTATE and what is read: of the error, or ('', the rows)."""
    try:
        cursor = session.execute(query, parameters)
        rows = cursor.fetchall() if cursor.description else []
    except psycopg.Error as error:
        if not session.autocommit:
            session.rollback()
        return error.sqlstate or "no state", told(error)
    return "", "\n".join(str(list(row.values())) for row in rows)


def deny(session: Connection, query: str, *states: str) -> None:
    """The one thing most attacks end with: refused, and nothing told."""
    state, text = attempt(session, query)
    assert state in (states or ("42501",)), f"{query}: {state or 'allowed'} {text}"
    assert SECRET not in text, f"{query} tells {text}"


def populate(admin: Connection, roles: Callable[[str | None], str]) -> World:
    """Agents of both sides with something of every kind, made through the verbs themselves."""
    sides = []
    for word in (SECRET, "probe"):
        team = f"{word}-team"
        team_id = scalar(admin, "select caliber_team_create(%s, %s)", team, word)
        agent = scalar(
            admin,
            "select caliber_agent_register('coder', name => %s, team => %s, display_name => %s,"
            " can_delegate_to => array['*'], capabilities => array[%s], memory_access => %s)",
            f"{word}-agent",
            team,
            word,
            word,
            MEMORY,
        )
        login = roles("caliber_agent")
        admin.execute("update caliber_agent set login_role = %s where agent_id = %s", (login, agent))
        sides.append(Agent(str(agent), str(team_id), team, login, word))
    world = World(
        admin=admin,
        victim=sides[0],
        attacker=sides[1],
        observer=roles("caliber_observer"),
        nobody=roles("caliber_agent"),
        stranger=roles(None),
        open=lambda login: connection(admin, login),
        functions=catalog.functions(admin),
    )
    for agent in sides:
        fill(world, agent)
    # However long the run takes, nobody falls silent: a call refused for that would prove nothing.
    admin.execute("update caliber_agent_beat set beat_at = clock_timestamp() + interval '1 day'")
    admin.execute("analyze")
    return world


def fill(world: World, agent: Agent) -> None:
    """Twice over all that makes something: what needs another thing finds it the second time."""
    for seed in arguments.SEEDS:
        attempt(world.admin, seed.format(agent_id=agent.agent_id, word=agent.word, team=agent.team))
    for _ in range(2):
        for function in world.functions:
            if function.for_agents and function.writes and MAKES.search(function.name):
                call = arguments.call(world, function, agent, arguments.everything(function))
                attempt(world.admin, *call)


def connection(admin: Connection, login: str) -> Connection:
    info = admin.info
    return psycopg.connect(
        host=info.host,
        port=info.port,
        user=login,
        dbname=info.dbname,
        autocommit=True,
        row_factory=dict_row,
    )


def random_id() -> str:
    return str(uuid.uuid4())
