"""Messages: statuses move forward only, inboxes of agents that ended, how far a limit can be passed, and
conversations found by index."""

from __future__ import annotations

import psycopg
import pytest
from conftest import Connect, Connection, scalar
from messages_cast import Cast, delivery, make_cast, now_visible, one, receive, send


@pytest.fixture
def cast(db: Connection) -> Cast:
    return make_cast(db)


# --- forward only ---


def test_what_was_read_stays_read_when_it_is_taken_again(db: Connection, cast: Cast) -> None:
    message = send(db, cast.ann, cast.bob)
    row = one(db, cast.bob)
    assert scalar(db, "select caliber_message_read(%s, %s)", message, row["receipt"]) is True
    now_visible(db)
    again = one(db, cast.bob)
    assert (again["attempts"], delivery(db, message)["status"]) == (2, "read")
    # A rejection is a step of its own, and what comes after it a new try.
    db.execute("select caliber_message_reject(%s, retry_ms => 0)", (message,))
    assert delivery(db, message)["status"] == "failed"
    assert one(db, cast.bob)["attempts"] == 3
    assert delivery(db, message)["status"] == "delivered"


def test_what_is_given_back_waits_for_another_try(db: Connection, cast: Cast) -> None:
    anybodys = scalar(db, "select caliber_message_send(%s, null, 'coder', 'nudge')", cast.tim)
    message = send(db, cast.ann, cast.bob)
    assert len(receive(db, cast.bob)) == 2
    waiting = send(db, cast.ann, cast.bob)
    db.execute(
        "do language plpython3u $$\n"
        "from caliber import messages_tidy\n"
        f"assert messages_tidy.give_back('{cast.bob}', 100) == 2\n$$"
    )
    assert delivery(db, message)["status"] == "failed"
    given = delivery(db, anybodys)
    assert (given["status"], given["agent_id"], given["receipt"]) == ("failed", None, None)
    assert delivery(db, waiting)["status"] == "pending"
    assert {str(row["message_id"]) for row in receive(db, cast.bob)} == {message, waiting, str(anybodys)}


# --- an agent that ended ---


def test_the_inbox_of_an_agent_that_ended_is_given_up(db: Connection, cast: Cast) -> None:
    waiting, held = send(db, cast.ann, cast.bob), send(db, cast.ann, cast.bob, ", priority => 'high'")
    kept = send(db, cast.ann, cast.tim)
    assert str(one(db, cast.bob)["message_id"]) == held
    db.execute("select caliber_agent_terminate(%s)", (cast.bob,))
    db.execute("select caliber_message_tidy()")
    dead = "select error from caliber_dead_letter where message_id = %s"
    assert scalar(db, dead, waiting) == "its recipient is terminated"
    # Whoever still works on one has until its lease ends.
    assert delivery(db, held)["status"] == "delivered"
    now_visible(db)
    db.execute("select caliber_message_tidy()")
    assert scalar(db, dead, held) == "its recipient is terminated"
    assert delivery(db, kept)["status"] == "pending"
    logged = "select count(*) from caliber_event where event_type = 'message_dead'"
    assert scalar(db, logged) == 2


# --- the limit ---


def fill(session: Connection, cast: Cast) -> int:
    sent = 0
    try:
        while sent < 1000:
            send(session, cast.ann, cast.bob)
            sent += 1
    except psycopg.Error as error:
        if error.sqlstate != "KA006":
            raise
    return sent


def test_each_session_passes_the_limit_by_an_eighth_at_most(
    db: Connection, connect: Connect, cast: Cast
) -> None:
    """The worst there is: all have counted an empty queue before one of them fills it."""
    db.execute("select caliber_config_set('message_queue_limit', '80')")
    sessions = [connect() for _ in range(4)]
    for session in sessions:
        send(session, cast.ann, cast.bob)
    # Alone, to the last place.
    assert len(sessions) + fill(db, cast) == 80
    # What each had room for when it counted: an eighth of 80, 79 and so on, less what it sent.
    assert [fill(session, cast) for session in sessions] == [9, 8, 8, 8]
    assert [fill(session, cast) for session in (db, *sessions)] == [0, 0, 0, 0, 0]


# --- conversations ---

CONVERSATION = "select message_id::text from caliber_message_conversation(%s, %s, %s)"

OTHERS = """
    with made as (
        insert into caliber_message (message_id, from_agent_id, to_agent_id, message_type, thread_id)
        select new.id, %(tim)s, new.recipient, 'nudge', new.id
        from (
            select caliber_uuid_v7() as id, gen_random_uuid() as recipient from generate_series(1, 5000)
        ) as new
        returning message_id, to_agent_id
    )
    insert into caliber_delivery (message_id, queue_id, from_agent_id, seq, priority, agent_id)
    select message_id, to_agent_id, %(tim)s, nextval('caliber_message_seq'), 'normal', to_agent_id from made
"""


def test_a_conversation_has_both_sides_and_the_latest(db: Connection, cast: Cast) -> None:
    said = []
    for n in range(6):
        said.append(send(db, *((cast.ann, cast.bob) if n % 2 else (cast.bob, cast.ann))))
        send(db, cast.tim, cast.bob)
        send(db, cast.ann, cast.tim)
    for one_way in ((cast.ann, cast.bob), (cast.bob, cast.ann)):
        for most in (50, 4, 1):
            rows = db.execute(CONVERSATION, (*one_way, most)).fetchall()
            assert [row["message_id"] for row in rows] == said[-most:]
    to_oneself = send(db, cast.ann, cast.ann)
    rows = db.execute(CONVERSATION, (cast.ann, cast.ann, 50)).fetchall()
    assert [row["message_id"] for row in rows] == [to_oneself]
    with pytest.raises(psycopg.Error) as refused:
        db.execute(CONVERSATION, (cast.ann, cast.bob, 0))
    assert refused.value.sqlstate == "22023"


def test_a_conversation_is_found_by_index(db: Connection, cast: Cast) -> None:
    db.execute(OTHERS, {"tim": cast.tim})
    said = [send(db, cast.ann, cast.bob), send(db, cast.bob, cast.ann)]
    db.execute("vacuum analyze caliber_message, caliber_delivery")
    db.execute("begin")
    rows = db.execute(CONVERSATION, (cast.ann, cast.bob, 50)).fetchall()
    assert [row["message_id"] for row in rows] == said
    read_through = scalar(
        db,
        "select string_agg(relname, ',') from pg_stat_xact_user_tables"
        " where relname in ('caliber_message', 'caliber_delivery')"
        " and (seq_scan > 0 or idx_tup_fetch > 100)",
    )
    db.execute("rollback")
    assert read_through is None
