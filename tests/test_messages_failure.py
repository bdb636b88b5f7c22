"""Messages: rejection, death, expiry, limits, repetition."""

from __future__ import annotations

import threading
import time
import uuid

import psycopg
import pytest
from conftest import Connect, Connection, scalar, state
from messages_cast import Cast, delivery, make_cast, now_visible, one, receive, send

REJECT = "select caliber_message_reject(%s, %s, %s)"


@pytest.fixture
def cast(db: Connection) -> Cast:
    return make_cast(db)


def test_a_rejected_message_comes_back_and_dies_at_the_limit(db: Connection, cast: Cast) -> None:
    message = send(db, cast.ann, cast.bob)
    for attempt in (1, 2):
        row = one(db, cast.bob)
        assert row["attempts"] == attempt
        assert scalar(db, REJECT, message, "no", row["receipt"]) == "failed"
        assert receive(db, cast.bob) == []
        pause = scalar(db, "select extract(epoch from visible_at - clock_timestamp()) from caliber_delivery")
        assert 0.5 * attempt < float(str(pause)) <= 1.0 * attempt
        now_visible(db)
    row = one(db, cast.bob)
    assert scalar(db, REJECT, message, "really not", row["receipt"]) == "dead"
    now_visible(db)
    assert receive(db, cast.bob) == []
    letter = db.execute("select * from caliber_dead_letter").fetchone()
    assert letter is not None
    assert (str(letter["message_id"]), letter["attempts"], letter["error"]) == (message, 3, "really not")
    assert state(db, "select caliber_message_acknowledge(%s)", message) == "KA007"
    assert state(db, REJECT, message, "x", None) == "KA007"
    summary = "select count(*) from caliber_event where event_type = 'message_dead' and reference_id = %s"
    assert scalar(db, summary, message) == 1


def test_a_poisonous_message_dies_at_the_limit(db: Connection, cast: Cast) -> None:
    """Whoever takes it never says anything again."""
    poison = send(db, cast.ann, cast.bob, ", priority => 'critical'")
    harmless = send(db, cast.ann, cast.bob)
    for attempt in (1, 2, 3):
        row = one(db, cast.bob)
        assert (str(row["message_id"]), row["attempts"]) == (poison, attempt)
        now_visible(db)
    # It is passed over, and given up by the first call that finds nothing else.
    assert str(one(db, cast.bob)["message_id"]) == harmless
    assert receive(db, cast.bob) == []
    assert delivery(db, poison)["status"] == "dead"
    assert delivery(db, poison)["attempts"] == 3
    assert scalar(db, "select count(*) from caliber_event where event_type = 'message_dead'") == 1


def test_rejecting_for_good(db: Connection, cast: Cast) -> None:
    message = send(db, cast.ann, cast.bob)
    one(db, cast.bob)
    assert scalar(db, "select caliber_message_reject(%s, 'never', retry => false)", message) == "dead"


def test_rejecting_with_a_pause_of_ones_own(db: Connection, cast: Cast) -> None:
    message = send(db, cast.ann, cast.bob)
    one(db, cast.bob)
    assert scalar(db, "select caliber_message_reject(%s, retry_ms => 0)", message) == "failed"
    assert one(db, cast.bob)["attempts"] == 2
    assert state(db, "select caliber_message_reject(%s, retry_ms => -1)", message) == "22023"
    assert state(db, "select caliber_message_reject(%s, retry => null)", message) == "22023"
    assert state(db, "select caliber_message_reject(%s, repeat('x', 2001))", message) == "22023"


def test_a_rejected_message_to_a_type_goes_to_another(db: Connection, cast: Cast) -> None:
    message = scalar(db, "select caliber_message_send(%s, null, 'coder', 'nudge')", cast.tim)
    row = one(db, cast.ann)
    db.execute("select caliber_message_reject(%s, 'busy', %s, retry_ms => 0)", (message, row["receipt"]))
    assert delivery(db, message)["agent_id"] is None
    again = one(db, cast.bob)
    assert again["message_id"] == message
    assert state(db, "select caliber_message_acknowledge(%s, %s)", message, row["receipt"]) == "KA001"
    assert scalar(db, "select caliber_message_acknowledge(%s, %s)", message, again["receipt"]) is True


def test_bringing_back_the_dead(db: Connection, cast: Cast) -> None:
    first = send(db, cast.ann, cast.bob)
    one(db, cast.bob)
    db.execute("select caliber_message_reject(%s, 'never', retry => false)", (first,))
    second = send(db, cast.ann, cast.bob)
    assert scalar(db, "select caliber_message_requeue(%s)", first) == 1
    assert scalar(db, "select caliber_message_requeue(%s)", first) == 0
    rows = receive(db, cast.bob)
    # At the end, and as if new.
    assert [str(r["message_id"]) for r in rows] == [second, first]
    assert rows[1]["attempts"] == 1
    assert state(db, "select caliber_message_requeue(%s)", uuid.uuid4()) == "P0002"
    assert scalar(db, "select count(*) from caliber_dead_letter") == 0


def test_the_limit_of_retries_is_a_setting(db: Connection, cast: Cast) -> None:
    db.execute("select caliber_config_set('message_max_retries', '0')")
    message = send(db, cast.ann, cast.bob)
    one(db, cast.bob)
    assert scalar(db, "select caliber_message_reject(%s)", message) == "dead"


def test_what_expired_is_never_delivered(db: Connection, cast: Cast) -> None:
    message = send(db, cast.ann, cast.bob, ", ttl_ms => 1")
    time.sleep(0.005)
    assert scalar(db, "select caliber_message_pending_count(%s)", cast.bob) == 0
    assert scalar(db, "select status from caliber_messages") == "dead"
    tidied = db.execute("select * from caliber_message_tidy()").fetchone()
    assert tidied == {"expired": 1, "exhausted": 0, "purged": 0}
    assert receive(db, cast.bob) == []
    assert scalar(db, "select error from caliber_dead_letter") == "expired"
    assert scalar(db, "select caliber_message_requeue(%s)", message) == 1
    assert one(db, cast.bob)["expires_at"] is None


def test_tidying_ends_what_was_taken_too_often(db: Connection, cast: Cast) -> None:
    send(db, cast.ann, cast.bob)
    for _ in range(3):
        one(db, cast.bob)
        now_visible(db)
    row = db.execute("select * from caliber_message_tidy()").fetchone()
    assert row == {"expired": 0, "exhausted": 1, "purged": 0}
    assert receive(db, cast.bob) == []


def test_retention(db: Connection, cast: Cast) -> None:
    old = "01900000-0000-7000-8000-00000000000"
    made = (
        "insert into caliber_message (message_id, from_agent_id, to_agent_id, message_type, thread_id)"
        " values (%s, %s, %s, 'nudge', %s)"
    )
    put = (
        "insert into caliber_delivery (message_id, queue_id, from_agent_id, seq, priority, agent_id,"
        " processed_at, dead_at) values (%s, %s, %s, nextval('caliber_message_seq'), 'normal', %s,"
        " now() - %s::interval, now() - %s::interval)"
    )
    ages = [("25 hours", None), ("23 hours", None), (None, "40 days"), (None, "25 hours"), (None, None)]
    for n, (processed, dead) in enumerate(ages):
        message = f"{old}{n}"
        db.execute(made, (message, cast.ann, cast.bob, message))
        db.execute(put, (message, cast.bob, cast.ann, cast.bob, processed, dead))
    fresh = send(db, cast.ann, cast.bob)
    row = db.execute("select * from caliber_message_tidy()").fetchone()
    assert row == {"expired": 0, "exhausted": 0, "purged": 2}
    kept = {str(r["message_id"]) for r in db.execute("select message_id from caliber_message")}
    assert kept == {f"{old}1", f"{old}3", f"{old}4", fresh}
    assert state(db, "select caliber_message_tidy(0)") == "22023"
    assert state(db, "select caliber_message_tidy(null)") == "22023"


def test_a_full_queue(db: Connection, cast: Cast) -> None:
    db.execute("select caliber_config_set('message_queue_limit', '3')")
    for _ in range(3):
        message = send(db, cast.ann, cast.bob)
    query = "select caliber_message_send(%s, %s, null, 'nudge')"
    assert state(db, query, cast.ann, cast.bob) == "KA006"
    assert state(db, "select caliber_message_broadcast(%s, 'nudge')", cast.ann) == "KA006"
    batch = "select caliber_message_send_batch(%s, jsonb_build_array("
    batch += "jsonb_build_object('to_agent_id', %s::text, 'message_type', 'nudge')))"
    assert state(db, batch, cast.ann, cast.bob) == "KA006"
    assert scalar(db, "select count(*) from caliber_message") == 3
    # Others have room, and a message that is dealt with makes some.
    send(db, cast.ann, cast.tim)
    db.execute("select caliber_message_acknowledge(%s)", (message,))
    send(db, cast.ann, cast.bob)
    assert state(db, query, cast.ann, cast.bob) == "KA006"
    db.execute("select caliber_config_set('message_queue_limit', '0')")
    send(db, cast.ann, cast.bob)


def test_a_full_queue_of_a_type(db: Connection, cast: Cast) -> None:
    db.execute("select caliber_config_set('message_queue_limit', '2')")
    query = "select caliber_message_send(%s, null, 'coder', 'nudge')"
    db.execute(query, (cast.ann,))
    db.execute(query, (cast.ann,))
    assert state(db, query, cast.ann) == "KA006"


def test_a_lowered_limit_holds_for_open_sessions(db: Connection, connect: Connect, cast: Cast) -> None:
    for _ in range(5):
        send(db, cast.ann, cast.bob)
    connect().execute("select caliber_config_set('message_queue_limit', '5')")
    assert state(db, "select caliber_message_send(%s, %s, null, 'nudge')", cast.ann, cast.bob) == "KA006"


def test_many_senders_stay_near_the_limit(db: Connection, connect: Connect, cast: Cast) -> None:
    db.execute("select caliber_config_set('message_queue_limit', '100')")

    ended: list[str | None] = []

    def fill() -> None:
        session = connect()
        try:
            while True:
                send(session, cast.ann, cast.bob)
        except psycopg.Error as error:
            ended.append(error.sqlstate)

    threads = [threading.Thread(target=fill) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended == ["KA006"] * 8
    waiting = scalar(db, "select caliber_message_pending_count(%s)", cast.bob)
    assert 100 <= int(str(waiting)) <= 120


KEYED = "select caliber_message_send(%s, %s, null, 'nudge', %s::jsonb, idempotency_key => %s)"


def test_sent_twice_it_is_there_once(db: Connection, cast: Cast) -> None:
    first = scalar(db, KEYED, cast.ann, cast.bob, '{"n": 1}', "k1")
    assert scalar(db, KEYED, cast.ann, cast.bob, '{"n": 1}', "k1") == first
    assert scalar(db, "select count(*) from caliber_delivery") == 1
    # The key is the sender's, and for this message.
    assert state(db, KEYED, cast.ann, cast.bob, '{"n": 2}', "k1") == "23505"
    assert state(db, KEYED, cast.ann, cast.tim, '{"n": 1}', "k1") == "23505"
    assert scalar(db, KEYED, cast.tim, cast.bob, '{"n": 1}', "k1") != first


def test_sent_at_once_by_many_it_is_there_once(db: Connection, connect: Connect, cast: Cast) -> None:
    got: list[object] = []

    def repeat() -> None:
        session = connect()
        for n in range(20):
            got.append(scalar(session, KEYED, cast.ann, cast.bob, "{}", f"k{n}"))

    threads = [threading.Thread(target=repeat) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 160
    assert len(set(got)) == 20
    assert scalar(db, "select count(*) from caliber_delivery") == 20
