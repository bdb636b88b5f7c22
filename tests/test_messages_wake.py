"""Messages: wake-ups in the three modes, waiting, and that armed loses none."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid

import psycopg
import pytest
from armed_model import MUTANTS, explore, start, wander
from conftest import Connect, Connection, scalar, state
from messages_cast import Cast, make_cast, one, receive, send
from psycopg.types.json import Jsonb

# Seconds of the stress test, and how many random interleavings of the model are tried.
SECONDS = float(os.environ.get("CALIBER_STRESS_SECONDS", "3"))
INTERLEAVINGS = int(os.environ.get("CALIBER_INTERLEAVINGS", "1000000"))

ARM = "select state, wait_ms from caliber_message_arm(%s)"


@pytest.fixture
def cast(db: Connection) -> Cast:
    return make_cast(db)


def listen(session: Connection, agent: str) -> None:
    for row in session.execute("select caliber_message_channels(%s) as name", (agent,)).fetchall():
        session.execute(f"listen {row['name']}")


def heard(session: Connection) -> list[psycopg.Notify]:
    """What has arrived by now; a statement makes the server send it."""
    session.execute("select 1")
    return list(session.notifies(timeout=0))


def test_always(db: Connection, connect: Connect, cast: Cast) -> None:
    listener = connect()
    listen(listener, cast.bob)
    message = send(db, cast.ann, cast.bob)
    db.execute("select caliber_message_send(%s, null, 'coder', 'nudge')", (cast.ann,))
    db.execute("select caliber_message_broadcast(%s, 'nudge')", (cast.ann,))
    notes = heard(listener)
    assert {note.channel for note in notes} == {"caliber_agent_message"}
    payloads = [json.loads(note.payload) for note in notes]
    assert payloads[0] == {"message_id": message, "to_agent_id": cast.bob, "to_agent_type": None}
    assert (payloads[1]["to_agent_id"], payloads[1]["to_agent_type"]) == (None, "coder")
    assert len(payloads) == 3
    assert db.execute(ARM, (cast.ann,)).fetchone() == {"state": "ready", "wait_ms": 0}


def test_off(db: Connection, connect: Connect, cast: Cast) -> None:
    listener = connect()
    listener.execute("listen caliber_agent_message")
    db.execute("select caliber_config_set('notify_mode', 'off')")
    assert db.execute(ARM, (cast.bob,)).fetchone() == {"state": "poll", "wait_ms": 30000}
    send(db, cast.ann, cast.bob)
    assert db.execute("select caliber_message_channels(%s)", (cast.bob,)).fetchall() == []
    assert heard(listener) == []
    assert len(receive(db, cast.bob)) == 1


def each_way(db: Connection, cast: Cast) -> list[tuple[str, tuple[object, ...]]]:
    dead = send(db, cast.ann, cast.bob)
    one(db, cast.bob)
    db.execute("select caliber_message_reject(%s, retry => false)", (dead,))
    batch = Jsonb([{"to_agent_id": cast.bob, "message_type": "nudge"}] * 3)
    return [
        ("select caliber_message_send(%s, %s, null, 'nudge')", (cast.ann, cast.bob)),
        ("select caliber_message_send(%s, null, 'coder', 'nudge')", (cast.ann,)),
        ("select caliber_message_broadcast(%s, 'nudge')", (cast.ann,)),
        ("select caliber_message_send_batch(%s, %s)", (cast.ann, batch)),
        ("select caliber_message_requeue(%s)", (dead,)),
    ]


def test_armed_wakes_who_sleeps(db: Connection, connect: Connect, cast: Cast) -> None:
    db.execute("select caliber_config_set('notify_mode', 'armed')")
    ways = each_way(db, cast)
    listener = connect()
    listen(listener, cast.bob)
    heard(listener)
    for query, arguments in ways:
        assert db.execute(ARM, (cast.bob,)).fetchone() == {"state": "armed", "wait_ms": 30000}
        db.execute(query, arguments)
        assert len(heard(listener)) == 1, query
        for row in receive(db, cast.bob):
            db.execute("select caliber_message_acknowledge(%s, %s)", (row["message_id"], row["receipt"]))
    # Whoever is awake is not woken.
    for query, arguments in ways[:2]:
        db.execute(query, arguments)
    heard(listener)
    for query, arguments in ways[:-1]:
        db.execute(query, arguments)
        assert heard(listener) == [], query


@pytest.mark.parametrize("again", [False, True])
def test_armed_and_a_send_that_was_undone(db: Connection, connect: Connect, cast: Cast, again: bool) -> None:
    """What a savepoint takes back wakes nobody, and who sleeps is woken by the next one."""
    db.execute("select caliber_config_set('notify_mode', 'armed')")
    listener, sender = connect(), connect()
    listen(listener, cast.bob)
    assert scalar(db, ARM, cast.bob) == "armed"
    with sender.transaction():
        sender.execute("savepoint before")
        send(sender, cast.ann, cast.bob)
        sender.execute("rollback to savepoint before")
        if again:
            send(sender, cast.ann, cast.bob)
    assert len(heard(listener)) == int(again)
    assert scalar(db, "select armed from caliber_queue_waiter where queue_id = %s", cast.bob) is not again
    send(sender, cast.ann, cast.bob)
    assert len(heard(listener)) == int(not again)


def test_a_reader_sleeps_no_longer_than_until_the_next_message_is_free(db: Connection, cast: Cast) -> None:
    for mode in ("armed", "always", "off"):
        db.execute("select caliber_config_set('notify_mode', %s)", (mode,))
        send(db, cast.ann, cast.bob)
        row = one(db, cast.bob, visibility_ms=10_000)
        found = db.execute(ARM, (cast.bob,)).fetchone()
        assert found is not None
        assert 5_000 < int(str(found["wait_ms"])) <= 10_000
        db.execute("select caliber_message_acknowledge(%s, %s)", (row["message_id"], row["receipt"]))


def test_arming_that_gets_no_key_says_poll(db: Connection, connect: Connect, cast: Cast) -> None:
    db.execute("select caliber_config_set('notify_mode', 'armed')")
    sender = connect(autocommit=False)
    send(sender, cast.ann, cast.bob)
    assert scalar(db, ARM, cast.bob) == "poll"
    sender.rollback()
    # Somebody who sits on the key stops no sender either.
    intruder = connect()
    intruder.execute("select pg_advisory_lock(uuid_hash_extended(%s, 0))", (cast.bob,))
    listen(intruder, cast.bob)
    send(db, cast.ann, cast.bob)
    assert len(heard(intruder)) == 1


def test_a_session_follows_the_mode(db: Connection, connect: Connect, cast: Cast) -> None:
    listener, other = connect(), connect()
    send(db, cast.ann, cast.tim)
    other.execute("select caliber_config_set('notify_mode', 'armed')")
    listen(listener, cast.bob)
    assert scalar(other, ARM, cast.bob) == "armed"
    send(db, cast.ann, cast.bob)
    assert len(heard(listener)) == 1


def test_wait(db: Connection, connect: Connect, cast: Cast) -> None:
    wait = "select caliber_message_wait(%s, %s)"
    assert scalar(db, wait, cast.bob, 0) is False
    assert scalar(db, wait, cast.bob, 20) is False
    sender = connect()
    timer = threading.Timer(0.1, lambda: send(sender, cast.ann, cast.bob))
    timer.start()
    assert scalar(db, wait, cast.bob, 30_000) is True
    timer.join()
    for bad in (-1, 30_001, None):
        assert state(db, wait, cast.bob, bad) == "22023"
    assert state(db, wait, uuid.uuid4(), 1) == "P0002"
    db.execute("begin isolation level repeatable read")
    assert state(db, wait, cast.bob, 1) == "KA007"
    db.execute("rollback")


def test_waiting_can_be_cancelled(connect: Connect, cast: Cast) -> None:
    session = connect()
    session.execute("set statement_timeout = '100ms'")
    assert state(session, "select caliber_message_wait(%s, 30000)", cast.tim) == "57014"


@pytest.mark.parametrize(("senders", "sends", "readers"), [(1, 2, 1), (2, 2, 1), (3, 1, 1), (2, 1, 2)])
def test_no_interleaving_of_the_model_loses_a_wake_up(senders: int, sends: int, readers: int) -> None:
    graph, lost = explore(start(senders, sends, readers, aborts=True))
    assert lost is None
    assert len(graph) > 100


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_model_catches(mutant: str) -> None:
    assert any(
        explore(start(senders, sends, 1, aborts=True), mutant)[1] is not None
        for senders, sends in ((1, 2), (2, 1), (2, 2))
    )


def test_random_interleavings_of_the_model_lose_no_wake_up() -> None:
    assert wander(start(2, 2, 1, aborts=True), INTERLEAVINGS, seed=1) == (INTERLEAVINGS, 0)


def test_nobody_sleeps_through_a_message(db: Connection, connect: Connect, cast: Cast) -> None:
    """Readers that trust their wake-ups, and senders that commit late, roll back, and pause."""
    db.execute("select caliber_config_set('notify_mode', 'armed')")
    ends = time.monotonic() + SECONDS
    overslept: list[str] = []
    wakes: list[int] = []
    asleep = threading.Semaphore(0)
    readers = [cast.bob, cast.tim, cast.bob]

    def reader(agent: str) -> None:
        session = connect()
        listen(session, agent)
        slept = 0
        while time.monotonic() < ends:
            rows = session.execute(
                "select message_id, receipt from caliber_message_receive(%s)", (agent,)
            ).fetchall()
            for row in rows:
                session.execute(
                    "select caliber_message_acknowledge(%s, %s)", (row["message_id"], row["receipt"])
                )
            if rows or scalar(session, ARM, agent) != "armed":
                continue
            slept += 1
            asleep.release()
            if next(session.notifies(timeout=10, stop_after=1), None) is None:
                # Waiting that long is fine when there is nothing.
                if scalar(session, "select caliber_message_pending_count(%s)", agent):
                    overslept.append(agent)
                break
        wakes.append(slept)

    def sender(n: int) -> None:
        session = connect(autocommit=False)
        asleep.acquire(timeout=60)
        count = 0
        while time.monotonic() < ends + 0.5:
            count += 1
            to = readers[(n + count) % 3]
            if count % 5 == 0:
                session.execute("select caliber_message_send(%s, null, 'tester', 'nudge')", (cast.ann,))
            else:
                send(session, cast.ann, to)
            if count % 7 == 0:
                time.sleep(0.002)
            session.rollback() if count % 11 == 0 else session.commit()
            if count % 3 == n % 3:
                time.sleep(0.001 * (count % 4))

    threads = [threading.Thread(target=reader, args=(agent,)) for agent in readers]
    threads += [threading.Thread(target=sender, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overslept == []
    assert len(wakes) == 3
    assert sum(wakes) > 0
