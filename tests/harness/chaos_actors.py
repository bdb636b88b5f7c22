"""What the clients of the chaos run do and remember, a class for each primitive, and how each judges
in the end whether its promise was kept. The promises are those of docs/operations.md."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import psycopg
from harness import lock_history
from harness.crash import moving
from psycopg.types.json import Jsonb

Session = psycopg.Connection[Any]
LEASE_MS = 1000
# Between the lease and the clock that is read after it lies what a busy machine needs.
SLACK = 0.4
TRIES = 3
POISON_EVERY = 25
# A refusal that a client has to expect; anything else is a finding.
EXPECTED = {"KA001", "KA004", "KA006", "KA007", "40001", "40P01", "55P03", "P0002", "22023", "23505"}


def one(session: Session, query: str, *arguments: object) -> Any:
    row = session.execute(query, arguments).fetchone()
    return row[0] if row else None


@dataclass
class Client:
    """One agent. Its choices depend on the seed alone; what others do meanwhile does not."""

    agent: str
    luck: random.Random
    locks: lock_history.Client
    unsent: list[str] = field(default_factory=list)
    counter: itertools.count[int] = field(default_factory=itertools.count)


class Actor:
    """What a primitive's promise is, how it is used, and whether it held."""

    promise = ""
    # How often it is chosen, among the others.
    weight = 2

    def __init__(self, agents: list[str]) -> None:
        self.agents = agents
        self.mutex = threading.Lock()
        self.done = 0

    def setup(self, session: Session) -> None:
        """What the run needs of its own."""

    def turn(self, client: Client, session: Session) -> None:
        raise NotImplementedError

    def check(self, session: Session) -> Counter[str]:
        raise NotImplementedError

    def count(self) -> None:
        with self.mutex:
            self.done += 1


class Locks(Actor):
    promise = "lock: one holder, fences rise, stale writes refused, none lost"
    weight = 3

    def __init__(self, agents: list[str], engine: lock_history.Engine) -> None:
        super().__init__(agents)
        self.engine = engine
        self.history = lock_history.History()

    def setup(self, session: Session) -> None:
        session.execute((lock_history.TABLES + self.engine.setup).encode())

    def turn(self, client: Client, session: Session) -> None:
        client.locks.turn(session)
        self.count()

    def check(self, session: Session) -> Counter[str]:
        log = session.execute("select resource, fence, writes from note_log order by seq").fetchall()
        return Counter(vars(lock_history.check(self.history, log)))


class Broadcasts(Actor):
    """Sent and received among the other messages, and judged alone."""

    promise = "broadcast: each recipient gets it"
    weight = 0

    def __init__(self, agents: list[str]) -> None:
        super().__init__(agents)
        self.sent: dict[str, str] = {}

    def told(self, message: str, sender: str) -> None:
        with self.mutex:
            self.sent[message] = sender
            self.done += 1

    def check(self, session: Session) -> Counter[str]:
        rows = session.execute(
            "select m.message_id::text, d.agent_id::text, d.processed_at is not null or d.dead_at is not null"
            " from caliber_message as m join caliber_delivery as d using (message_id)"
            " where (m.payload ->> 'broadcast')::boolean"
        ).fetchall()
        got: dict[str, Counter[str]] = defaultdict(Counter)
        found: Counter[str] = Counter()
        for message, agent, settled in rows:
            got[message][agent] += 1
            found["not settled by a recipient"] += not settled
        for message, sender in self.sent.items():
            found["lost, or not for all"] += got[message] != Counter(
                agent for agent in self.agents if agent != sender
            )
        return found


class Messages(Actor):
    promise = "message: no send or acknowledgement lost, one claimer, dead at exactly 3"
    weight = 6

    def __init__(self, agents: list[str]) -> None:
        super().__init__(agents)
        self.broadcasts = Broadcasts(agents)
        self.sent: set[str] = set()
        self.handed: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.settled: Counter[tuple[str, str]] = Counter()

    def turn(self, client: Client, session: Session) -> None:
        if client.luck.random() < 0.5:
            self.send(client, session)
        else:
            # Some agents have several processes, which take from the same inbox.
            crowded = self.agents[client.luck.randrange(2)]
            self.receive(client, session, client.luck.choice((client.agent, crowded, crowded)))

    def send(self, client: Client, session: Session) -> None:
        # A key makes it safe to repeat a send whose answer was lost.
        if not client.unsent:
            client.unsent.append(f"{client.agent}-{next(client.counter)}")
        key = client.unsent[0]
        number = int(key.rpartition("-")[2])
        payload = Jsonb({"poison": number % POISON_EVERY == 0, "broadcast": number % 10 == 9})
        if number % 10 == 9:
            query = "select message_id from caliber_message_broadcast(%s, 'nudge', %s, idempotency_key => %s)"
            message = one(session, query, client.agent, payload, key)
            self.broadcasts.told(str(message), client.agent)
        else:
            to = (None, "worker") if number % 2 else (client.luck.choice(self.agents[:4]), None)
            query = "select caliber_message_send(%s, %s, %s, 'nudge', %s, idempotency_key => %s)"
            message = one(session, query, client.agent, *to, payload, key)
        client.unsent.clear()
        with self.mutex:
            self.sent.add(str(message))
            self.done += 1

    def receive(self, client: Client, session: Session, agent: str, most: int = 3) -> bool:
        rows = session.execute(
            "select message_id::text, receipt, payload,"
            " extract(epoch from clock_timestamp())::float8"
            " from caliber_message_receive(%s, max_messages => %s, visibility_ms => %s)",
            (agent, most, LEASE_MS),
        ).fetchall()
        for message, receipt, payload, at in rows:
            place = (message, agent if payload["broadcast"] else "")
            with self.mutex:
                self.handed[place].append(at)
            if not payload["poison"] and client.luck.random() < 0.9:
                self.settle(session, place, message, receipt)
        return bool(rows)

    def settle(self, session: Session, place: tuple[str, str], message: str, receipt: int) -> None:
        try:
            if one(session, "select caliber_message_acknowledge(%s, %s)", message, receipt):
                with self.mutex:
                    self.settled[place] += 1
        except psycopg.Error as error:
            if error.sqlstate not in ("KA001", "KA007"):
                raise

    def drain(self, client: Client, session: Session) -> None:
        """Until nothing is open; the poisonous are tried until they are dead."""
        # The tries that are left: a message that was handed out once more has moved too.
        still = (
            "select coalesce(sum(%s - d.attempts), 0) from caliber_delivery as d"
            " join caliber_message as m using (message_id)"
            " where d.processed_at is null and d.dead_at is null and m.payload ? 'poison'"
        )

        def left() -> int:
            for agent in self.agents:
                # Few at a time: the last is to be settled before its lease ends.
                self.receive(client, session, agent, 20)
            return int(one(session, still, TRIES + 1))

        moving(left, threading.Event())

    def check(self, session: Session) -> Counter[str]:
        rows = session.execute(
            "select m.message_id::text, (m.payload ->> 'poison')::boolean, d.status::text, d.attempts,"
            " case when (m.payload ->> 'broadcast')::boolean then d.agent_id::text else '' end"
            " from caliber_message as m join caliber_delivery as d using (message_id)"
            " where m.payload ? 'poison'"
        ).fetchall()
        found: Counter[str] = Counter()
        stored = {row[0] for row in rows}
        found["lost"] = sum(message not in stored for message in self.sent)
        for message, poison, status, attempts, whose in rows:
            place = (message, whose)
            dead = (status, attempts) == ("dead", TRIES)
            found["neither processed nor dead at the limit"] += status != "processed" and not dead
            found["processed though nobody could"] += poison and status == "processed"
            found["acknowledged twice"] += self.settled[place] > 1
            found["an acknowledgement lost"] += self.settled[place] == 1 and status != "processed"
            found["two claimers at once"] += any(
                later - earlier < LEASE_MS / 1000 - SLACK
                for earlier, later in itertools.pairwise(sorted(self.handed[place]))
            )
        return found


class State(Actor):
    promise = "state: no update lost, history without gaps"

    def __init__(self, agents: list[str]) -> None:
        super().__init__(agents)
        self.unknown = 0

    def turn(self, client: Client, session: Session) -> None:
        query = "select value, version from caliber_state_get('chaos', 'count')"
        value, version = session.execute(query).fetchone() or (0, 0)
        try:
            query = "select caliber_state_set('chaos', 'count', %s, %s)"
            written = one(session, query, Jsonb(value + 1), version)
        except psycopg.OperationalError:
            with self.mutex:
                self.unknown += 1
            raise
        if written is not None:
            self.count()

    def check(self, session: Session) -> Counter[str]:
        row = session.execute(
            "select coalesce(max(version), 0), count(*), count(*) filter (where value::bigint <> version)"
            " from caliber_state_version where namespace = 'chaos'"
        ).fetchone()
        assert row
        found = Counter({"gaps": row[0] - row[1], "wrong values": row[2]})
        found["lost"] = max(0, self.done - row[0])
        found["too many"] = max(0, row[0] - self.done - self.unknown)
        return found


class Tokens(Actor):
    promise = "token: one holder a turn"

    def __init__(self, agents: list[str]) -> None:
        super().__init__(agents)
        self.doubled = 0
        self.told: Counter[tuple[int, str]] = Counter()

    def setup(self, session: Session) -> None:
        session.execute("create table played (turn bigint primary key, agent_id text not null)")

    def turn(self, client: Client, session: Session) -> None:
        query = "select granted, turn from caliber_token_request(%s, 'review', hold_seconds => 2)"
        granted, turn = session.execute(query, (client.agent,)).fetchone() or (False, 0)
        if not granted:
            return
        with self.mutex:
            self.told[turn, client.agent] += 1
        query = (
            "insert into played as p values (%s, %s)"
            " on conflict (turn) do update set agent_id = p.agent_id returning p.agent_id"
        )
        if one(session, query, turn, client.agent) != client.agent:
            with self.mutex:
                self.doubled += 1
        session.execute("select caliber_token_release(%s, 'review', '', %s)", (client.agent, turn))
        self.count()

    def check(self, session: Session) -> Counter[str]:
        # Also when the table that was played in has gone back in time.
        holders = Counter(turn for turn, _ in self.told)
        again = sum(count > 1 for count in holders.values())
        return Counter({"two holders of a turn": self.doubled, "a turn handed out twice": again})


class Incarnations(Actor):
    promise = "incarnation: each is above all before it, an old one is refused"
    FEW = 4

    def __init__(self, agents: list[str]) -> None:
        super().__init__(agents)
        self.reborn: list[str] = []
        self.told: dict[str, list[int]] = defaultdict(list)
        self.found: Counter[str] = Counter()

    def setup(self, session: Session) -> None:
        query = "select caliber_agent_register('phoenix', team => 'apart')::text from generate_series(1, %s)"
        self.reborn = [row[0] for row in session.execute(query, (self.FEW,))]

    def turn(self, client: Client, session: Session) -> None:
        agent = client.luck.choice(self.reborn)
        highest = max(self.told[agent], default=0)
        now = one(session, "select caliber_agent_resume(%s)", agent)
        with self.mutex:
            self.found["not above what was known before"] += now <= highest
            self.found["handed out twice"] += now in self.told[agent]
            self.told[agent].append(now)
        self.count()
        if highest:
            self.write(session, agent, highest)

    def write(self, session: Session, agent: str, old: int) -> None:
        """Another has come since, if only this one."""
        try:
            session.execute("select caliber_agent_heartbeat(%s, incarnation => %s)", (agent, old))
        except psycopg.Error as error:
            if error.sqlstate != "KA001":
                raise
            return
        with self.mutex:
            self.found["a write of an old one accepted"] += 1

    def check(self, session: Session) -> Counter[str]:
        for agent, told in self.told.items():
            query = "select incarnation from caliber_agent_beat where agent_id = %s"
            self.found["lost"] += one(session, query, agent) < max(told)
        return self.found


class Events(Actor):
    promise = "events: each seen once by a reader that follows"
    weight = 1

    def __init__(self, agents: list[str]) -> None:
        super().__init__(agents)
        self.cursor: str | None = None
        self.seen: Counter[int] = Counter()

    def turn(self, client: Client, session: Session) -> None:
        # Numbers are drawn in one order and committed in another.
        with session.transaction():
            one(session, "select caliber_event_record('chaos', 'x', %s)", client.agent)
            time.sleep(client.luck.choice((0, 0, 0.05)))
        self.count()

    def follow(self, session: Session) -> bool:
        query = "select next_cursor, event_id from caliber_events_since(%s, 500)"
        rows = session.execute(query, (self.cursor,)).fetchall()
        for cursor, event in rows:
            self.seen[event] += 1
            self.cursor = cursor
        return bool(rows)

    def check(self, session: Session) -> Counter[str]:
        while self.follow(session):
            continue
        stored = {row[0] for row in session.execute("select event_id from caliber_event")}
        found = Counter({"skipped": len(stored - self.seen.keys())})
        found["seen twice"] = sum(times > 1 for times in self.seen.values())
        found["lost"] = max(0, self.done - len(stored))
        return found


class Everything(Actor):
    """The rest of the API, for the company it is: whatever is refused must be refused as promised."""

    promise = "the rest: no error that a client need not expect"
    weight = 3

    CALLS = (
        "select caliber_agent_heartbeat(%(agent)s, 'working', tokens => 10)",
        "select caliber_tick()",
        "select caliber_agent_set_status(%(agent)s, 'waiting')",
        "select caliber_agent_release(%(agent)s)",
        "select caliber_trajectory_start(%(word)s, %(agent)s)",
        "select caliber_turn_add(scope_id, 'user', %(word)s) from caliber_scope order by random() limit 1",
        "select caliber_artifact_create(scope_id, trajectory_id, 'fact', %(word)s)"
        " from caliber_scope order by random() limit 1",
        "select caliber_context_assemble(trajectory_id) from caliber_trajectory order by random() limit 1",
        "select caliber_note_add(%(agent)s, 'fact', %(word)s)",
        "select caliber_search(%(word)s)",
        "select caliber_region_create(%(agent)s, 'collaborative', name => %(word)s)",
        "select caliber_region_put(%(agent)s, region_id, 'k', '1')"
        " from caliber_region order by random() limit 1",
        "select caliber_checkpoint_save(%(agent)s, 'step', %(word)s)",
        "select caliber_token_sweep()",
        "select caliber_message_tidy()",
        "select caliber_message_wait(%(agent)s, 20)",
        "select count(*) from caliber_overview",
        "select count(*) from caliber_messages",
    )

    def __init__(self, agents: list[str]) -> None:
        super().__init__(agents)
        self.surprises: Counter[str] = Counter()

    def turn(self, client: Client, session: Session) -> None:
        call = client.luck.choice(self.CALLS)
        values = {"agent": client.agent, "word": f"w{client.luck.randrange(50)}"}
        session.execute(call.encode(), values)
        self.count()

    def surprise(self, error: psycopg.Error) -> None:
        with self.mutex:
            self.surprises[f"{error.sqlstate}: {str(error).splitlines()[0]}"] += 1

    def check(self, session: Session) -> Counter[str]:
        return self.surprises
