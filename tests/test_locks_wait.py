"""Locks: waiting in the queue, who waits for whom, and waits that would never end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from conftest import Connect, Connection, scalar

ACQUIRE = "select caliber_lock_acquire(%s, %s, %s, %s)"
WAIT = "select caliber_lock_acquire(%s, %s, %s, %s, wait_ms => %s)"
MANY = "select lock_id from caliber_lock_acquire_many(%s, %s, %s, wait_ms => %s)"
RELEASE = "select caliber_lock_release(%s)"
LONG = 20_000


class Agent:
    """An agent with a connection of its own and at most one call under way."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self.name = name
        self.id = scalar(connection, "select caliber_agent_register('coder', name => %s)", name)
        self.got: object = None
        self.sqlstate: str | None = None
        self.thread: threading.Thread | None = None

    def take(self, name: str, mode: str = "exclusive", kind: str = "doc") -> object:
        return scalar(self.connection, ACQUIRE, self.id, kind, name, mode)

    def release(self, lock: object) -> object:
        return scalar(self.connection, RELEASE, lock)

    def start(self, query: str, *arguments: object, then: Callable[[], object] | None = None) -> None:
        def call() -> None:
            try:
                self.got = scalar(self.connection, query, *arguments)
            except psycopg.Error as error:
                self.sqlstate = error.sqlstate
            if then:
                then()

        self.got = self.sqlstate = None
        self.thread = threading.Thread(target=call)
        self.thread.start()

    def wait(
        self,
        name: str,
        mode: str = "exclusive",
        kind: str = "doc",
        wait_ms: int = LONG,
        then: Callable[[], object] | None = None,
    ) -> None:
        self.start(WAIT, self.id, kind, name, mode, wait_ms, then=then)

    def end(self) -> object:
        assert self.thread is not None
        self.thread.join(LONG / 1000)
        assert not self.thread.is_alive()
        return self.got

    @property
    def busy(self) -> bool:
        return self.thread is not None and self.thread.is_alive()


@pytest.fixture
def agents(connect: Connect) -> Iterator[Callable[[str], list[Agent]]]:
    made: list[Agent] = []

    def make(names: str) -> list[Agent]:
        made.extend(Agent(connect(), name) for name in names.split())
        return made[-len(names.split()) :]

    yield make
    for agent in made:
        if agent.busy:
            agent.connection.cancel()
            agent.end()


def until(condition: Callable[[], object]) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come to that")


def waits(db: Connection) -> list[tuple[object, object]]:
    rows = db.execute("select distinct waiting, blocking from caliber_lock_waits order by 1, 2").fetchall()
    return [(r["waiting"], r["blocking"]) for r in rows]


def waiting(db: Connection, waiter: str, blocker: str) -> None:
    """It says so before it takes its place in line; then it sleeps, or waits for who is before it."""
    until(lambda: (waiter, blocker) in waits(db))
    in_line = (
        "select count(*) from caliber_lock_waits join pg_stat_activity using (pid)"
        " where waiting = %s and wait_event in ('PgSleep', 'advisory')"
    )
    until(lambda: scalar(db, in_line, waiter))


def loser(db: Connection, *circle: Agent) -> Agent:
    """Who was refused; it gives back what it holds."""
    until(lambda: any(not agent.busy for agent in circle))
    ended = [agent for agent in circle if not agent.busy]
    assert [agent.sqlstate for agent in ended] == ["40P01"]
    for row in db.execute("select lock_id from caliber_lock_list(%s)", (ended[0].id,)).fetchall():
        assert scalar(db, RELEASE, row["lock_id"]) is True
    return ended[0]


Make = Callable[[str], list[Agent]]


@pytest.mark.parametrize("kind", ["doc", "file"])
def test_a_waiter_gets_what_is_released(db: Connection, agents: Make, kind: str) -> None:
    ann, bob = agents("ann bob")
    lock = ann.take("a/b", kind=kind)
    bob.wait("a/b", kind=kind)
    waiting(db, "bob", "ann")
    row = db.execute("select * from caliber_lock_waits").fetchone()
    assert row is not None
    assert (row["resource_type"], row["resource_id"], row["mode"]) == (kind, "a/b", "exclusive")
    assert (row["lock_id"], row["waiting_agent_id"]) == (lock, bob.id)
    assert (row["blocking_agent_id"], row["pid"]) == (ann.id, bob.connection.info.backend_pid)
    # The holder is not in the queue of those who wait for it.
    assert ann.take("a/b", kind=kind) == lock
    scalar(db, "select caliber_lock_extend(%s, 1000)", lock)
    assert ann.release(lock) is True
    assert bob.end() is not None
    assert waits(db) == []


def test_a_waiter_gets_what_runs_out(db: Connection, agents: Make) -> None:
    ann, bob = agents("ann bob")
    scalar(db, "select caliber_lock_acquire(%s, 'doc', '1', 'exclusive', 500)", ann.id)
    bob.wait("1")
    assert bob.end() is not None
    assert scalar(db, "select fence from caliber_lock") == 2


def test_waiting_in_vain_ends_in_null_and_leaves_nothing(db: Connection, agents: Make) -> None:
    ann, bob = agents("ann bob")
    ann.take("1")
    with bob.connection.transaction():
        assert scalar(bob.connection, WAIT, bob.id, "doc", "1", "exclusive", 50) is None
        assert scalar(db, "select count(*) from pg_locks where locktype = 'advisory'") == 0
        assert scalar(bob.connection, "show lock_timeout") == "0"


def test_a_wait_can_be_cancelled(db: Connection, agents: Make) -> None:
    ann, bob = agents("ann bob")
    ann.take("1")
    bob.wait("1")
    waiting(db, "bob", "ann")
    bob.connection.cancel()
    bob.end()
    assert bob.sqlstate == "57014"
    assert scalar(db, "select count(*) from pg_locks where locktype = 'advisory'") == 0


def test_first_come_first_served(db: Connection, agents: Make) -> None:
    ann, *queue = agents("ann b c d e f")
    lock = ann.take("1")
    order: list[str] = []

    def served(agent: Agent) -> Callable[[], None]:
        def done() -> None:
            order.append(agent.name)
            agent.release(agent.got)

        return done

    for agent in queue:
        agent.wait("1", then=served(agent))
        waiting(db, agent.name, "ann")
    waiting(db, "f", "b")
    ann.release(lock)
    for agent in queue:
        assert agent.end() is not None
    assert order == ["b", "c", "d", "e", "f"]


def test_who_would_not_wait_does_not_overtake(db: Connection, agents: Make) -> None:
    """The row is free for a moment, but the turn is bob's; a stream of readers keeps no writer out."""
    ann, bob, carl = agents("ann bob carl")
    lock = ann.take("1", "shared")
    bob.wait("1")
    waiting(db, "bob", "ann")
    assert carl.take("1", "shared") is None
    carl.wait("1", "shared")
    waiting(db, "carl", "bob")
    ann.release(lock)
    got = bob.end()
    assert got is not None
    assert carl.busy
    bob.release(got)
    assert carl.end() is not None


def test_nobody_overtakes_between_release_and_grant(db: Connection, agents: Make) -> None:
    ann, bob, carl = agents("ann bob carl")
    for kind in ("doc", "file"):
        lock = ann.take("1", kind=kind)
        bob.wait("1", kind=kind)
        waiting(db, "bob", "ann")
        with ann.connection.transaction():
            ann.release(lock)
        assert carl.take("1", kind=kind) is None
        assert bob.end() is not None


def test_the_turn_of_one_that_waits_counts_while_the_lease_is_free(
    db: Connection, connect: Connect, agents: Make
) -> None:
    """The moment between release and grant, held still: another has the turn and no lease yet."""
    (ann,) = agents("ann")
    for kind in ("doc", "file"):
        ann.release(ann.take("a/b", kind=kind))
        first = connect()
        with first.transaction():
            first.execute("select pg_advisory_xact_lock(_caliber_lock_turn(%s, 'a/b'))", (kind,))
            assert ann.take("a/b", kind=kind) is None
            assert ann.take("a/b", "shared", kind=kind) is None
            assert ann.take("c", kind=kind) is not None
        assert ann.take("a/b", kind=kind) is not None
    with first.transaction():
        first.execute("select pg_advisory_xact_lock(_caliber_lock_turn('file', 'x'))")
        assert ann.take("x/y/z", kind="file") is None


def test_readers_that_waited_come_in_together(db: Connection, agents: Make) -> None:
    ann, bob, carl = agents("ann bob carl")
    lock = ann.take("1")
    for agent in (bob, carl):
        agent.wait("1", "shared")
        waiting(db, agent.name, "ann")
    ann.release(lock)
    assert bob.end() is not None
    assert carl.end() is not None


def test_a_directory_is_waited_for_and_files_do_not_overtake_it(db: Connection, agents: Make) -> None:
    ann, bob, carl = agents("ann bob carl")
    lock = ann.take("src/a.py", kind="file")
    bob.wait("src/", kind="file")
    waiting(db, "bob", "ann")
    assert carl.take("src/b.py", kind="file") is None
    assert carl.take("lib/b.py", kind="file") is not None
    # Who is in is not kept from what it has.
    assert ann.take("src/a.py", kind="file") == lock
    ann.release(lock)
    assert bob.end() is not None
    carl.wait("src/b.py", kind="file")
    waiting(db, "carl", "bob")
    bob.release(bob.got)
    assert carl.end() is not None


def test_a_waiter_waits_for_an_open_transaction(db: Connection, agents: Make) -> None:
    ann, bob = agents("ann bob")
    with ann.connection.transaction():
        assert ann.take("1") is not None
        bob.wait("1")
        until(lambda: scalar(db, "select count(*) from pg_locks where not granted"))
        assert bob.busy
        ann.connection.execute("delete from caliber_resource")
    assert bob.end() is not None


def test_a_waiter_waits_for_an_open_guard(db: Connection, agents: Make) -> None:
    ann, bob = agents("ann bob")
    ann.take("1")
    with ann.connection.transaction():
        scalar(ann.connection, "select caliber_lock_guard('doc', '1', 1)")
        db.execute("update caliber_resource set expires_at = clock_timestamp()")
        bob.wait("1")
        until(lambda: scalar(db, "select count(*) from pg_locks where not granted"))
        assert scalar(db, "select fence from caliber_resource") == 1
    assert bob.end() is not None


def test_releases_are_told_while_somebody_waits(db: Connection, connect: Connect, agents: Make) -> None:
    ann, bob = agents("ann bob")
    listener = connect()
    listener.execute("listen caliber_lock")
    for kind, held, wanted in (("doc", "1", "1"), ("file", "a/b", "a/"), ("file", "c/", "c/d")):
        lock = ann.take(held, kind=kind)
        bob.wait(wanted, kind=kind)
        waiting(db, "bob", "ann")
        ann.release(lock)
        notes = [n.payload for n in listener.notifies(timeout=10, stop_after=1)]
        assert notes == [f'{{"lock_id" : "{lock}"}}']
        assert bob.end() is not None


# --- waits that would never end ---


def test_two_that_wait_for_each_other(db: Connection, agents: Make) -> None:
    ann, bob = agents("ann bob")
    ann.take("1"), bob.take("2")
    ann.wait("2")
    waiting(db, "ann", "bob")
    bob.wait("1")
    other = ann if loser(db, ann, bob) is bob else bob
    assert other.end() is not None
    assert scalar(db, "select count(*) from caliber_lock_list(%s)", other.id) == 2


def test_of_many_that_close_a_circle_at_once_one_is_refused(db: Connection, agents: Make) -> None:
    circle = agents("a b c d e")
    for place, agent in enumerate(circle):
        agent.take(str(place))
    for place, agent in enumerate(circle):
        agent.wait(str((place + 1) % len(circle)))
    # Whoever got what it waited for gives all back, as the one refused did.
    at = circle.index(loser(db, *circle))
    for step in range(1, len(circle)):
        agent = circle[(at - step) % len(circle)]
        assert agent.end() is not None
        for row in db.execute("select lock_id from caliber_lock_list(%s)", (agent.id,)).fetchall():
            assert scalar(db, RELEASE, row["lock_id"]) is True


def test_two_readers_that_both_want_to_write(db: Connection, agents: Make) -> None:
    ann, bob = agents("ann bob")
    ann.take("1", "shared"), bob.take("1", "shared")
    ann.wait("1")
    waiting(db, "ann", "bob")
    bob.wait("1")
    other = ann if loser(db, ann, bob) is bob else bob
    assert other.end() is not None
    assert scalar(db, "select array_agg(mode::text) from caliber_lock") == ["exclusive"]


def test_a_circle_through_the_queue(db: Connection, agents: Make) -> None:
    """ann shares 1; bob wants it alone; carl, who holds 2, would share it but is behind bob."""
    ann, bob, carl = agents("ann bob carl")
    ann.take("1", "shared")
    lock = carl.take("2")
    bob.wait("1")
    waiting(db, "bob", "ann")
    carl.wait("1", "shared")
    waiting(db, "carl", "bob")
    ann.wait("2")
    ann.end()
    assert ann.sqlstate == "40P01"
    for row in db.execute("select lock_id from caliber_lock_list(%s)", (ann.id,)).fetchall():
        ann.release(row["lock_id"])
    bob.release(bob.end())
    assert carl.end() is not None
    assert carl.release(lock) is True


def test_a_circle_of_directories(db: Connection, agents: Make) -> None:
    ann, bob = agents("ann bob")
    ann.take("src/a.py", kind="file"), bob.take("lib/", kind="file")
    ann.wait("lib/deep/b.py", kind="file")
    waiting(db, "ann", "bob")
    bob.wait("src/", kind="file")
    other = ann if loser(db, ann, bob) is bob else bob
    assert other.end() is not None


def test_several_at_once_in_any_order_wait_for_each_other_never(db: Connection, agents: Make) -> None:
    crowd = agents("a b c d e f")
    names = ["src/", "lib/x.py", "lib/", "doc/1", "doc/2"]
    barrier = threading.Barrier(len(crowd))

    def work(agent: Agent, place: int) -> None:
        barrier.wait()
        try:
            for turn in range(5):
                shift = (place + turn) % len(names)
                wish = (names[shift:] + names[:shift])[:3]
                rows = agent.connection.execute(MANY, (agent.id, "file", wish, LONG)).fetchall()
                assert rows
                for row in rows[:: 1 if place % 2 else -1]:
                    assert agent.release(row["lock_id"]) is True
            agent.got = "done"
        except psycopg.Error as error:
            agent.sqlstate = error.sqlstate

    threads = [threading.Thread(target=work, args=(agent, place)) for place, agent in enumerate(crowd)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(agent.got, agent.sqlstate) for agent in crowd] == [("done", None)] * len(crowd)


def test_transactions_that_take_in_two_orders_are_the_servers_affair(db: Connection, agents: Make) -> None:
    ann, bob = agents("ann bob")
    for agent, first in ((ann, "1"), (bob, "2")):
        agent.connection.execute("begin")
        assert agent.take(first) is not None
    ann.wait("2")
    until(lambda: scalar(db, "select count(*) from pg_locks where not granted"))
    bob.wait("1")
    ann.end(), bob.end()
    assert sorted([str(ann.sqlstate), str(bob.sqlstate)]) == ["40P01", "None"]
    assert (ann.got is None) != (bob.got is None)


def test_two_processes_of_one_agent_in_one_queue_are_no_circle(db: Connection, agents: Make) -> None:
    ann, bob, cyd, again = agents("ann bob cyd again")
    again.id = bob.id
    held = ann.take("x")
    bob.wait("x")
    waiting(db, "bob", "ann")
    cyd.wait("x")
    waiting(db, "cyd", "bob")
    again.wait("x")
    waiting(db, "bob", "cyd")
    # Until the first in the queue has looked for circles again.
    time.sleep(1.3)
    assert bob.busy, bob.sqlstate
    ann.release(held)
    assert bob.end() is not None


def test_a_waiter_waits_for_a_release_that_is_under_way(
    db: Connection, connect: Connect, agents: Make
) -> None:
    ann, bob = agents("ann bob")
    held = ann.take("x")
    with connect(autocommit=False) as releasing:
        assert scalar(releasing, RELEASE, held) is True
        bob.wait("x")
        # Longer than who would not wait is kept.
        time.sleep(0.6)
        assert bob.busy
    assert bob.end() is not None


def test_a_waiter_for_several_begins_anew_when_it_did_not_get_all(
    db: Connection, connect: Connect, agents: Make
) -> None:
    """One of them is new, and seen only when another has taken it: the rest is not kept."""
    ann, bob = agents("ann bob")
    with connect(autocommit=False) as taking:
        held = scalar(taking, ACQUIRE, ann.id, "doc", "y", "exclusive")
        bob.start(MANY, bob.id, "doc", ["x", "y"], 5000)
        # Past the attempt of 0.2 s before it waits.
        time.sleep(0.5)
        until(lambda: scalar(db, "select exists (select from pg_locks where not granted)"))
    waiting(db, "bob", "ann")
    ann.release(held)
    assert bob.end() is not None
