"""What the clients of the chaos run do with tasks, budgets, conflicts, handoffs and regions. As in
chaos_actors: a class for each promise, which remembers what it was told and judges in the end."""

from __future__ import annotations

import itertools
import time
from collections import Counter, defaultdict

import psycopg
from harness.chaos_actors import SLACK, Actor, Client, Session, one
from psycopg.types.json import Jsonb

LOST = psycopg.OperationalError


def register(session: Session, kind: str, count: int) -> list[str]:
    """Agents who may do anything, outside of the team that gets broadcasts."""
    query = (
        "select caliber_agent_register(%s, team => 'apart', can_delegate_to => '{*}',"
        " max_concurrent_tasks => 10000)::text from generate_series(1, %s)"
    )
    return [row[0] for row in session.execute(query, (kind, count))]


class Delegations(Actor):
    promise = "delegation: one accepter an attempt, no task or result lost"
    weight = 3

    def __init__(self, agents: list[str]) -> None:
        super().__init__(agents)
        # How long an attempt may take.
        self.given: dict[str, int] = {}
        self.open: list[str] = []
        # The work of each attempt, and when it was taken.
        self.taken: dict[str, dict[str, float]] = defaultdict(dict)
        self.ended: Counter[str] = Counter()
        self.boss = ""
        self.doer: dict[str, str] = {}

    def setup(self, session: Session) -> None:
        self.boss = register(session, "boss", 1)[0]
        self.doer = dict(zip(self.agents, register(session, "doer", len(self.agents)), strict=True))

    def turn(self, client: Client, session: Session) -> None:
        if client.luck.random() < 0.3 or not self.open:
            # Some are given so little time that they are taken again, by another.
            timeout = client.luck.choice((1, 600, 600))
            query = "select caliber_delegate_task(%s, 'doer', 'x', timeout_seconds => %s)::text"
            task = one(session, query, self.boss, timeout)
            with self.mutex:
                self.given[task] = timeout
                self.open.append(task)
                self.done += 1
        else:
            # The oldest, so that several want the same one.
            self.take(client, session, self.open[0])

    def take(self, client: Client, session: Session, task: str) -> None:
        query = (
            "with taken as materialized (select caliber_accept_delegation(%s, %s)::text as work)"
            " select work, extract(epoch from clock_timestamp())::float8 from taken"
        )
        values = (task, self.doer[client.agent])
        work, at = session.execute(query, values).fetchone() or (None, 0.0)
        with self.mutex:
            if work is not None:
                self.taken[task][work] = at
            if task in self.open:
                self.open.remove(task)
        if work is None:
            return
        self.count()
        if client.luck.random() < 0.8:
            query = "select caliber_complete_delegation(%s, tokens => 10, agent_id => %s)"
            one(session, query, task, self.doer[client.agent])
            with self.mutex:
                self.ended[task] += 1
        elif client.luck.random() < 0.5:
            with self.mutex:
                self.open.append(task)

    def check(self, session: Session) -> Counter[str]:
        rows = session.execute(
            "select d.delegation_id::text, d.status::text, d.attempts, d.child_trajectory_id::text"
            " from caliber_delegation as d where d.delegator_agent_id = %s",
            (self.boss,),
        ).fetchall()
        stored = {row[0]: row[1:] for row in rows}
        found = Counter({"lost": sum(task not in stored for task in self.given)})
        for task, (status, attempts, work) in stored.items():
            taken = self.taken[task]
            found["two who have it at once"] += any(
                later - earlier < self.given.get(task, 1) - SLACK
                for earlier, later in itertools.pairwise(sorted(taken.values()))
            )
            found["taken by more than there were attempts"] += len(taken) > attempts
            found["an acceptance lost"] += attempts == len(taken) > 0 and work not in {*taken, None}
            found["more attempts than allowed"] += attempts > 3
            found["ended twice"] += self.ended[task] > 1
            found["a result lost"] += self.ended[task] == 1 and status != "completed"
        return found


class Budget(Actor):
    """Many spend from one tree: in the task itself, and in parts of it that come and go."""

    promise = "budget: never above its cap, no report lost"
    CAP = 1000
    # As often it may be refused before there is a new one to spend.
    ENOUGH = 20

    def __init__(self, agents: list[str]) -> None:
        super().__init__(agents)
        self.boss = self.lead = self.doer = ""
        self.tops: list[str] = []
        self.spent: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.over = 0

    def setup(self, session: Session) -> None:
        self.boss, self.lead, self.doer = register(session, "spender", 3)

    def turn(self, client: Client, session: Session) -> None:
        if not self.tops or self.refused[self.tops[-1]] > self.ENOUGH:
            self.begin(session)
            return
        top = self.tops[-1]
        try:
            if client.luck.random() < 0.4:
                self.spend(session, top, top, client.luck.randint(1, 60))
            else:
                self.part(client, session, top)
            self.count()
        except psycopg.Error as error:
            if error.sqlstate != "KA005":
                raise
            with self.mutex:
                self.refused[top] += 1
        query = "select budget_tokens_left from caliber_delegations where delegation_id = %s"
        if one(session, query, top) < 0:
            with self.mutex:
                self.over += 1

    def begin(self, session: Session) -> None:
        query = (
            "select caliber_delegate_task(%s, null, 'all of it', delegatee_agent_id => %s,"
            " timeout_seconds => 3600, max_tokens => 1000000, budget_tokens => %s)::text"
        )
        top = one(session, query, self.boss, self.lead, self.CAP)
        one(session, "select caliber_accept_delegation(%s, %s)", top, self.lead)
        with self.mutex:
            self.tops.append(top)

    def spend(self, session: Session, top: str, task: str, tokens: int) -> None:
        one(session, "select status from caliber_progress_delegation(%s, %s)", task, tokens)
        with self.mutex:
            self.spent[top] += tokens

    def part(self, client: Client, session: Session, top: str) -> None:
        query = (
            "select caliber_delegate_task(%s, null, 'part', delegatee_agent_id => %s,"
            " parent_delegation_id => %s, budget_tokens => 50, max_tokens => 50,"
            " timeout_seconds => 3600)::text"
        )
        part = one(session, query, self.lead, self.doer, top)
        one(session, "select caliber_accept_delegation(%s, %s)", part, self.doer)
        self.spend(session, top, part, client.luck.randint(1, 50))
        # Its end gives back what it did not use.
        one(session, "select caliber_complete_delegation(%s)", part)

    def check(self, session: Session) -> Counter[str]:
        found = Counter({"seen above its cap": self.over})
        for top in self.tops:
            row = session.execute(
                "select d.tokens_used + d.tokens_below + d.tokens_reserved, d.tokens_used + d.tokens_below,"
                " (select sum(p.tokens_used) from caliber_delegation as p"
                " where p.root_delegation_id = d.delegation_id)"
                " from caliber_delegation as d where d.delegation_id = %s",
                (top,),
            ).fetchone()
            if row is None:
                found["lost"] += 1
                continue
            found["above its cap"] += row[0] > self.CAP or row[2] > self.CAP
            found["more spent than the cap"] += self.spent[top] > self.CAP
            found["a report lost"] += self.spent[top] > row[2]
        return found


class Conflicts(Actor):
    promise = "conflict: each pair found once and decided once, none overlooked"
    MOST = 40
    FACT = "select caliber_artifact_create(%s, %s, 'fact', %s, embedding => %s::vector)"

    def __init__(self, agents: list[str]) -> None:
        super().__init__(agents)
        self.author = ""
        self.works: list[tuple[str, str]] = []
        self.facts: Counter[str] = Counter()
        self.told: Counter[tuple[str, str]] = Counter()
        self.ids: list[str] = []
        self.decided: Counter[str] = Counter()

    def setup(self, session: Session) -> None:
        self.author = register(session, "author", 1)[0]

    def turn(self, client: Client, session: Session) -> None:
        if not self.works or self.facts[self.works[-1][0]] >= self.MOST:
            self.begin(session)
        work, scope = self.works[-1]
        chance = client.luck.random()
        if chance < 0.5:
            close = f"[{client.luck.choice((1, 2, 3))}, {client.luck.choice((1, 5))}, 1]"
            text = f"The limit is {client.luck.randrange(10**6)}."
            one(session, self.FACT, scope, work, text, close)
            with self.mutex:
                self.facts[work] += 1
        elif chance < 0.9 or not self.ids:
            self.detect(session, work)
        else:
            query = "select conflict_id from caliber_resolve_conflict(%s, 'last_write_wins')"
            conflict = client.luck.choice(self.ids[-5:])
            if one(session, query, conflict) is not None:
                with self.mutex:
                    self.decided[conflict] += 1
        self.count()

    def begin(self, session: Session) -> None:
        work = one(session, "select caliber_trajectory_start('facts', %s)::text", self.author)
        scope = one(session, "select scope_id::text from caliber_scope_current(%s)", work)
        with self.mutex:
            self.works.append((work, scope))

    def detect(self, session: Session, work: str) -> None:
        query = "select conflict_id::text, item_a_id::text, item_b_id::text from caliber_detect_conflicts(%s)"
        for conflict, one_fact, other in session.execute(query, (work,)).fetchall():
            with self.mutex:
                self.told[min(one_fact, other), max(one_fact, other)] += 1
                self.ids.append(conflict)

    def check(self, session: Session) -> Counter[str]:
        for work, _ in self.works:
            self.detect(session, work)
        ids = [work for work, _ in self.works]
        pairs = session.execute(
            "select least(item_a_id, item_b_id)::text, greatest(item_a_id, item_b_id)::text"
            " from caliber_conflict where trajectory_id = any (%s::uuid[])",
            (ids,),
        ).fetchall()
        kept = Counter((row[0], row[1]) for row in pairs)
        alike = session.execute(
            "select a.artifact_id::text, b.artifact_id::text"
            " from caliber_artifact as a join caliber_artifact as b"
            " on a.trajectory_id = b.trajectory_id and a.artifact_id < b.artifact_id"
            " where a.trajectory_id = any (%s::uuid[]) and a.content <> b.content"
            " and a.status <> 'superseded' and b.status <> 'superseded'"
            " and a.artifact_type = 'fact' and b.artifact_type = 'fact'"
            " and 1 - (a.embedding <=> b.embedding) > 0.8501",
            (ids,),
        ).fetchall()
        found = Counter({"kept twice": sum(times > 1 for times in kept.values())})
        found["reported twice"] = sum(times > 1 for times in self.told.values())
        found["lost"] = sum(pair not in kept for pair in self.told)
        found["overlooked"] = sum((row[0], row[1]) not in kept for row in alike)
        found["decided twice"] = sum(times > 1 for times in self.decided.values())
        return found


class Handoffs(Actor):
    """Four pieces of work go round, each among four agents of its own."""

    promise = "handoff: exactly one owner at every moment, no acceptance lost"
    weight = 3
    RINGS = 4
    OWNERS = """
        select
            count(*) filter (where a.current_trajectory_id = t.trajectory_id) as at_it,
            count(*) filter (where a.current_trajectory_id = t.trajectory_id and a.agent_id = t.agent_id)
                as owners,
            (select count(*) from caliber_scope as s where s.trajectory_id = t.trajectory_id
                and s.closed_at is null and s.agent_id = t.agent_id) as scopes,
            (select count(*) from caliber_scope as s where s.trajectory_id = t.trajectory_id
                and s.closed_at is null) as all_scopes
        from caliber_trajectory as t, caliber_agent as a
        where t.trajectory_id = %s and a.agent_type = %s
        group by t.trajectory_id, t.agent_id
    """

    def __init__(self, agents: list[str]) -> None:
        super().__init__(agents)
        self.rings: list[tuple[str, str, list[str]]] = []
        self.accepted: dict[str, list[str]] = defaultdict(list)
        self.found: Counter[str] = Counter()

    def setup(self, session: Session) -> None:
        for number in range(self.RINGS):
            kind = f"ring-{number}"
            ring = register(session, kind, len(self.agents) // self.RINGS)
            work = one(session, "select caliber_trajectory_start(%s, %s)::text", kind, ring[0])
            scope = one(session, "select scope_id from caliber_scope_current(%s)", work)
            query = "select caliber_agent_assign_trajectory(%s, %s, %s)"
            one(session, query, ring[0], work, scope)
            self.rings.append((kind, work, ring))

    def turn(self, client: Client, session: Session) -> None:
        kind, work, ring = client.luck.choice(self.rings)
        query = (
            "select handoff_id::text from caliber_handoff"
            " where trajectory_id = %s and status in ('initiated', 'deferred') order by initiated_at desc"
        )
        offered = one(session, query, work)
        try:
            if offered is None:
                self.offer(client, session, kind, work)
            else:
                self.answer(client, session, offered, ring)
        except psycopg.errors.InsufficientPrivilege:
            # It went to another between reading who has it and offering it.
            pass
        finally:
            if not session.broken and not session.closed:
                self.look(session, kind, work)

    def offer(self, client: Client, session: Session, kind: str, work: str) -> None:
        """To whoever of its kind is first; not for ever, so that time has its part too."""
        query = (
            "select caliber_initiate_handoff(t.agent_id, %s, t.trajectory_id, 'load_balancing', 'go on',"
            " ack_timeout_ms => %s)::text from caliber_trajectory as t where t.trajectory_id = %s"
        )
        one(session, query, kind, client.luck.choice((200, 60000)), work)
        self.count()

    def answer(self, client: Client, session: Session, handoff: str, ring: list[str]) -> None:
        agent = client.luck.choice(ring)
        if client.luck.random() < 0.1:
            one(session, "select caliber_reject_handoff(%s, %s, 'busy')", handoff, agent)
            return
        query = "select status::text from caliber_accept_handoff(%s, %s)"
        if one(session, query, handoff, agent) == "accepted":
            with self.mutex:
                self.accepted[handoff].append(agent)
                self.done += 1
            one(session, "select caliber_complete_handoff(%s, %s)", handoff, agent)

    def look(self, session: Session, kind: str, work: str) -> None:
        row = session.execute(self.OWNERS, (work, kind)).fetchone() or (0, 0, 0, 0)
        with self.mutex:
            self.found["not one agent is at it"] += row[0] != 1
            self.found["another is at it than its owner"] += row[1] != 1
            self.found["not one open scope, the owner's"] += row[2] != 1 or row[3] != 1

    def check(self, session: Session) -> Counter[str]:
        for kind, work, ring in self.rings:
            self.look(session, kind, work)
            rows = session.execute(
                "select handoff_id::text, from_agent_id::text, to_agent_id::text from caliber_handoff"
                " where trajectory_id = %s and accepted_at is not null order by accepted_at",
                (work,),
            ).fetchall()
            stored = {row[0]: row[2] for row in rows}
            owner = ring[0]
            for _, giver, taker in rows:
                self.found["given by one who had it not"] += giver != owner
                owner = taker
            query = "select agent_id::text from caliber_trajectory where trajectory_id = %s"
            self.found["owned by another than the last who took it"] += one(session, query, work) != owner
            mine = {handoff: who for handoff, who in self.accepted.items() if set(who) <= set(ring)}
            # Two clients may act as one agent: who asks again gets the same answer.
            self.found["accepted twice"] += sum(len(set(who)) > 1 for who in mine.values())
            self.found["an acceptance lost"] += sum(
                stored.get(handoff) not in who for handoff, who in mine.items()
            )
        broken = one(session, "select count(*) from caliber_audit_verify()")
        self.found["breaks in the audit trail"] += broken
        return self.found


class Regions(Actor):
    promise = "region: no update lost, versions without gaps, merges keep everybody's part"

    def __init__(self, agents: list[str]) -> None:
        super().__init__(agents)
        self.counting = self.merging = ""
        self.unknown = self.counted = 0
        self.mine: Counter[str] = Counter()

    def setup(self, session: Session) -> None:
        query = "select caliber_region_create(%s, 'collaborative', %s, conflict_resolution => %s)::text"
        self.counting = one(session, query, self.agents[0], "counting", "reject")
        self.merging = one(session, query, self.agents[0], "merging", "merge")

    def turn(self, client: Client, session: Session) -> None:
        if client.luck.random() < 0.5:
            self.add(client, session)
        else:
            self.merge(client, session)
        self.count()

    def put(self, client: Client, session: Session, region: str, value: object, version: int) -> str:
        query = "select outcome::text from caliber_region_put(%s, %s, 'n', %s, %s)"
        return str(one(session, query, client.agent, region, Jsonb(value), version))

    def get(self, client: Client, session: Session, region: str) -> tuple[object, int]:
        query = "select value, version from caliber_region_get(%s, %s, 'n')"
        return session.execute(query, (client.agent, region)).fetchone() or (None, 0)

    def add(self, client: Client, session: Session) -> None:
        value, version = self.get(client, session, self.counting)
        try:
            outcome = self.put(client, session, self.counting, int(str(value or 0)) + 1, version)
        except LOST:
            with self.mutex:
                self.unknown += 1
            raise
        with self.mutex:
            self.counted += outcome == "written"

    def merge(self, client: Client, session: Session) -> None:
        """Everybody counts in a field of its own, on top of a version that may be old."""
        value, version = self.get(client, session, self.merging)
        time.sleep(client.luck.choice((0, 0.005)))
        seen = value if isinstance(value, dict) else {}
        mine = self.mine[client.agent] + 1
        # What became of a write whose answer was lost is seen by the next.
        mine = max(mine, int(seen.get(client.agent, 0)) + 1)
        self.put(client, session, self.merging, {**seen, client.agent: mine}, version)
        self.mine[client.agent] = mine

    def check(self, session: Session) -> Counter[str]:
        row = session.execute(
            "select coalesce(max(version), 0), count(*), count(*) filter (where value::bigint <> version)"
            " from caliber_region_version where region_id = %s and key = 'n'",
            (self.counting,),
        ).fetchone() or (0, 0, 0)
        found = Counter({"gaps": row[0] - row[1], "wrong values": row[2]})
        found["lost"] = max(0, self.counted - row[0])
        found["too many"] = max(0, row[0] - self.counted - self.unknown)
        query = "select value from caliber_region_get(%s, %s, 'n')"
        merged = one(session, query, self.agents[0], self.merging) or {}
        found["a part lost in a merge"] = sum(
            int(merged.get(agent, 0)) < count for agent, count in self.mine.items()
        )
        return found
