"""What delegations promise, while the whole server is killed: cd tests && python -m harness.delegations_crash

Givers, takers and workers work on a cluster of their own: each giver has a task with a budget and passes
parts of it on; everybody of a type wants every part, spends some of it and ends it. Whoever gets
no answer asks again. Now and then every process of the server gets SIGKILL, and it is started again. In
the end: no task whose giving returned is missing or there twice, none that was taken is somebody
else's, every completion that returned is there, no budget is passed, and what is reserved and counted
above is what is below.

A mutant breaks the server on purpose; the harness is worth something only if it notices.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, ClassVar

import psycopg
from harness.crash import Crash, Session, moving, program

TAKERS = 4
PART = 40
# Parts fit into the budget of their task as long as what is not used is given back.
BUDGET_PARTS = 12
MUTANTS = ("take_without_asking", "spend_without_the_tree", "synchronous_commit_off")


@dataclass
class Record:
    """What the clients saw with their own eyes."""

    given: dict[str, str] = field(default_factory=dict)
    taken: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    completed: dict[str, int] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)


# What is taken out of the sources that the extension carries.
BROKEN = {
    "take_without_asking": (
        (
            "            and d.status = 'pending'\n"
            "            and (d.expires_at is null or d.expires_at > pg_catalog.clock_timestamp())\n"
            "            and (\n"
            "                d.delegatee_agent_id = $2\n"
            "                or (d.delegatee_agent_id is null and d.delegatee_agent_type = $5"
            " and d.team_id = $6)\n"
            "            )\n",
            "            and d.ended_at is null and d.started_at is null\n",
        ),
    ),
    "spend_without_the_tree": (
        ("        for no key update\n    ) as t\n", "    ) as t\n"),
        (")\n    for no key update\n", ")\n"),
    ),
}


class Run(Crash):
    broken: ClassVar = BROKEN

    def prepare(self, session: Session) -> None:
        self.record = Record()
        self.open: set[str] = set()
        for key, value in (
            ("message_queue_limit", "0"), ("notify_mode", "off"), ("delegation_to_silent", "on"),
            ("agent_max_concurrent_tasks", "10000"), ("delegation_timeout_seconds", "3600"),
        ):  # fmt: skip
            session.execute("select caliber_config_set(%s, %s)", (key, value))
        register = "select caliber_agent_register(%s, name => %s, can_delegate_to => '{*}')::text"
        boss = self.one(session, register, "boss", "boss")
        self.takers = [self.one(session, register, "worker", f"w{n}") for n in range(TAKERS)]
        self.tops = [self.top(session, register, boss, n) for n in range(2)]

    def top(self, session: Session, register: str, boss: str, n: int) -> tuple[str, str]:
        lead = self.one(session, register, "lead", f"lead{n}")
        task = self.one(
            session,
            "select caliber_delegate_task(%s, null, 'top', delegatee_agent_id => %s, max_tokens => 1000000,"
            " budget_tokens => %s)::text",
            boss, lead, PART * BUDGET_PARTS + self.size * PART // 4,
        )  # fmt: skip
        self.one(session, "select caliber_accept_delegation(%s, %s)", task, lead)
        return task, lead

    def tried(self, session: Session, query: str, *arguments: object) -> Any:
        """None also for what is refused; a lost connection is not."""
        try:
            return self.one(session, query, *arguments)
        except psycopg.OperationalError:
            raise
        except psycopg.Error as error:
            if error.sqlstate not in ("KA005", "KA007", "42501"):
                raise
            with self.mutex:
                self.record.refused[str(error.sqlstate)] += 1
            return None

    def give_all(self, client: int) -> None:
        numbers = iter(range(client, self.size, self.clients // 2))
        current = [next(numbers, None)]

        def work(session: Session) -> bool:
            n = current[0]
            if n is None:
                return False
            top, lead = self.tops[n % 2]
            # The key makes it safe to repeat what got no answer.
            task = self.tried(
                session,
                "select caliber_delegate_task(%s, 'worker', 'part', parent_delegation_id => %s,"
                " budget_tokens => %s, max_tokens => %s, idempotency_key => %s)::text",
                lead, top, PART, PART, str(n),
            )  # fmt: skip
            if task is None:
                # No budget until somebody has given some back.
                time.sleep(0.005)
                return True
            with self.mutex:
                self.record.given[str(n)] = task
                self.open.add(task)
            current[0] = next(numbers, None)
            return True

        self.loop(work)

    def work_all(self, client: int) -> None:
        agent = self.takers[client % TAKERS]
        luck = random.Random(client)

        def work(session: Session) -> bool:
            with self.mutex:
                wanted = luck.sample(sorted(self.open), min(4, len(self.open)))
            for task in wanted:
                self.take(session, agent, task, luck)
            if not wanted:
                time.sleep(luck.uniform(0.001, 0.02))
            return True

        self.loop(work)

    def take(self, session: Session, agent: str, task: str, luck: random.Random) -> None:
        trajectory = self.tried(session, "select caliber_accept_delegation(%s, %s)::text", task, agent)
        if trajectory is None:
            # Ended, perhaps by one whose answer was lost.
            query = "select from caliber_delegation where delegation_id = %s and ended_at is not null"
            if session.execute(query, (task,)).fetchone() is not None:
                with self.mutex:
                    self.open.discard(task)
            return
        with self.mutex:
            self.record.taken[task].add((agent, trajectory))
        self.tried(
            session, "select status from caliber_progress_delegation(%s, %s, agent_id => %s)",
            task, luck.randint(1, PART // 4), agent,
        )  # fmt: skip
        if self.tried(session, "select caliber_complete_delegation(%s, agent_id => %s)", task, agent):
            with self.mutex:
                self.record.completed[task] = 1
                self.open.discard(task)

    def go(self) -> list[str]:
        threads = self.start(self.give_all, self.work_all)
        self.kill_at_shares(lambda: len(self.record.given) - len(self.open))
        # What is lost for ever is a finding of its own; a mutant's is not waited for.
        waited_for: set[str] = set() if self.mutant else self.open
        moving(lambda: self.size - len(self.record.given) + len(waited_for), self.done)
        self.end(threads)
        if isinstance(self.failure, psycopg.errors.CheckViolation):
            # The table itself has noticed that numbers do not add up.
            return [f"1 × {self.failure}", *self.judge()]
        if self.failure:
            raise self.failure
        return self.judge()

    def judge(self) -> list[str]:
        with self.cluster.connect(self.database) as session:
            rows = session.execute(
                "select delegation_id::text, idempotency_key, status::text, delegatee_agent_id::text,"
                " child_trajectory_id::text, attempts from caliber_delegation where depth = 2"
            ).fetchall()
            found = Counter({what: self.one(session, query) for what, query in WRONG.items()})
        stored = {row[0]: row for row in rows}
        for task in self.record.given.values():
            found["lost: its giving had returned"] += task not in stored
        found["given twice"] += len(rows) - len({row[1] for row in rows})
        found["never completed"] += sum(row[2] != "completed" for row in rows)
        for task, takers in self.record.taken.items():
            _, _, status, agent, trajectory, attempts = stored.get(task, (None,) * 6)
            found["taken by two"] += len(takers) > 1
            found["taken and then another's"] += (agent, trajectory) not in takers
            found["taken more than once"] += attempts != 1
            found["completed and not there"] += task in self.record.completed and status != "completed"
        return [f"{times} × {what}" for what, times in sorted(found.items()) if times]

    def summary(self) -> str:
        return (
            f"{len(self.record.given)} tasks given, {len(self.record.taken)} taken,"
            f" {len(self.record.completed)} completed, {dict(self.record.refused)} refused,"
            f" {self.kills} × kill -9"
        )


# Over the whole table: what is counted and reserved above is what is below.
WRONG = {
    "budget passed": """
        select count(*) from caliber_delegation
        where tokens_used + tokens_below + tokens_reserved > budget_tokens or tokens_used > max_tokens
    """,
    "reservations that do not add up": """
        select count(*) from caliber_delegation as p
        where p.tokens_reserved <> (
            select coalesce(sum(c.budget_tokens), 0) from caliber_delegation as c
            where c.parent_delegation_id = p.delegation_id and c.ended_at is null
        )
    """,
    "use below that does not add up": """
        select count(*) from caliber_delegation as p
        where p.tokens_below <> (
            select coalesce(sum(c.tokens_used + c.tokens_below), 0) from caliber_delegation as c
            where c.parent_delegation_id = p.delegation_id and c.ended_at is not null
        )
    """,
    "open parts that do not add up": """
        select count(*) from caliber_delegation as p
        where p.open_children <> (
            select count(*) from caliber_delegation as c
            where c.parent_delegation_id = p.delegation_id and c.ended_at is null
        )
    """,
    "tasks ended with their trajectory open, or the other way round": """
        select count(*) from caliber_delegation as d
        join caliber_trajectory as t on t.trajectory_id = d.child_trajectory_id
        where (d.ended_at is null) <> (t.finished_at is null)
    """,
    "trajectories of no task": """
        select count(*) from caliber_trajectory as t
        where not exists (select from caliber_delegation as d where d.child_trajectory_id = t.trajectory_id)
    """,
}


if __name__ == "__main__":
    program(__doc__, 4_000, MUTANTS, Run, "nothing lost, nothing twice, every budget adds up")
