"""What messages promise, while the whole server is killed: cd tests && python -m harness.messages_crash

Senders and readers work on a cluster of their own. Now and then every process of the server gets
SIGKILL, and it is started again. In the end: no message whose send returned is missing, none was
acknowledged twice or held by two readers at once, and what nobody ever settles was handed out
exactly as often as it may be, and is dead.

A mutant breaks the server on purpose; the harness is worth something only if it notices.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import ClassVar

import psycopg
from harness import mutants
from harness.crash import Crash, Session, moving, program

LEASE_MS = 1500
POISON_EVERY = 40
TRIES = 3
MUTANTS = ("claim_without_row_lock", "synchronous_commit_off")


@dataclass
class Record:
    """What the clients saw with their own eyes."""

    sent: dict[str, int] = field(default_factory=dict)
    handed: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    acknowledged: Counter[str] = field(default_factory=Counter)


class Run(Crash):
    broken: ClassVar = {"claim_without_row_lock": mutants.CLAIM_WITHOUT_ROW_LOCK}

    def prepare(self, session: Session) -> None:
        self.record = Record()
        session.execute("select caliber_config_set('message_queue_limit', '0')")
        session.execute("select caliber_config_set('notify_mode', 'off')")
        register = "select caliber_agent_register(%s, name => %s)::text"
        self.sender = self.one(session, register, "planner", "sender")
        self.readers = [self.one(session, register, "worker", f"w{n}") for n in range(3)]

    def send_all(self, client: int) -> None:
        numbers = iter(range(client, self.size, self.clients // 2))
        current = [next(numbers, None)]

        def work(session: Session) -> bool:
            n = current[0]
            if n is None:
                return False
            to = (self.readers[n % 3], None) if n % 4 else (None, "worker")
            # The key makes it safe to repeat a send whose answer was lost.
            message = self.one(
                session,
                "select caliber_message_send(%s, %s, %s, 'nudge', jsonb_build_object('n', %s::int),"
                " idempotency_key => %s)::text",
                self.sender, *to, n, str(n),
            )  # fmt: skip
            self.record.sent[message] = n
            current[0] = next(numbers, None)
            return True

        self.loop(work)

    def read_all(self, client: int) -> None:
        agent = self.readers[client % 3]
        luck = random.Random(client)
        query = (
            "select message_id::text, receipt, (payload ->> 'n')::int, extract(epoch from clock_timestamp())"
            " from caliber_message_receive(%s, max_messages => 4, visibility_ms => %s)"
        )

        def work(session: Session) -> bool:
            rows = session.execute(query, (agent, LEASE_MS)).fetchall()
            for message, receipt, n, at in rows:
                with self.mutex:
                    self.record.handed[message].append((float(at), receipt))
                if n % POISON_EVERY and self.acknowledge(session, message, receipt):
                    with self.mutex:
                        self.record.acknowledged[message] += 1
            if not rows:
                time.sleep(luck.uniform(0.001, 0.02))
            return True

        self.loop(work)

    def acknowledge(self, session: Session, message: str, receipt: int) -> bool:
        try:
            return bool(self.one(session, "select caliber_message_acknowledge(%s, %s)", message, receipt))
        except psycopg.OperationalError:
            raise
        except psycopg.Error as error:
            if error.sqlstate not in ("KA001", "KA007"):
                raise
            return False

    def go(self) -> list[str]:
        threads = senders, _ = self.start(self.send_all, self.read_all)
        self.kill_at_shares(lambda: len(self.record.sent))
        for thread in senders:
            thread.join()
        self.drain()
        self.end(threads)
        if self.failure:
            raise self.failure
        return self.judge()

    def drain(self) -> None:
        """Until nothing is open; what is open for ever is a finding of its own."""
        query = "select count(*) from caliber_delivery where processed_at is null and dead_at is null"
        with self.cluster.connect(self.database) as session:
            moving(lambda: int(self.one(session, query)), self.done)

    def judge(self) -> list[str]:
        with self.cluster.connect(self.database) as session:
            rows = session.execute(
                "select m.message_id::text, (m.payload ->> 'n')::int, d.status::text, d.attempts"
                " from caliber_message as m join caliber_delivery as d using (message_id)"
            ).fetchall()
        stored = {message: (n, status, attempts) for message, n, status, attempts in rows}
        found: Counter[str] = Counter()
        for message in self.record.sent:
            found["lost: its send had returned"] += message not in stored
        for message, (n, status, attempts) in stored.items():
            handed = sorted(self.record.handed[message])
            found["acknowledged twice"] += self.record.acknowledged[message] > 1
            found["held by two at once"] += any(
                later[0] - earlier[0] < LEASE_MS / 1000 - 0.05
                for earlier, later in itertools.pairwise(handed)
            )
            if n % POISON_EVERY:
                found["never processed"] += status != "processed"
                # Whose acknowledgement's answer was lost is processed without our knowing.
                found["processed and never handed out"] += not handed
            else:
                found["poisonous and not dead at the limit"] += (status, attempts) != ("dead", TRIES)
                found["poisonous and handed out too often"] += len(handed) > TRIES
        return [f"{times} × {what}" for what, times in sorted(found.items()) if times]

    def summary(self) -> str:
        handed = sum(len(times) for times in self.record.handed.values())
        return (
            f"{len(self.record.sent)} sends returned, {handed} times handed out,"
            f" {sum(self.record.acknowledged.values())} acknowledged, {self.kills} × kill -9"
        )


if __name__ == "__main__":
    program(__doc__, 25_000, MUTANTS, Run, "nothing lost, nothing twice")
