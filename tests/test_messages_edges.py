"""Messages: what happens at the edges: full queues, open transactions, strangers, second lives."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import pytest
from conftest import Connect, Connection, refused, scalar, state
from messages_cast import Cast, delivery, make_cast, now_visible, one, receive, send
from psycopg.types.json import Jsonb

ARM = "select state from caliber_message_arm(%s)"
SEND = "select caliber_message_send(%s, %s, null, 'nudge')"
KEYED = "select caliber_message_send(%s, %s, null, 'nudge', idempotency_key => 'k')::text"
BATCH = "select caliber_message_send_batch(%s, %s)::text"


@pytest.fixture
def cast(db: Connection) -> Cast:
    return make_cast(db)


@pytest.fixture
def login(db: Connection, connect: Connect, roles: Callable[[str], str]) -> Callable[[str], Connection]:
    """A session of an agent's own."""

    def make(agent: str) -> Connection:
        name = roles("caliber_agent")
        db.execute("update caliber_agent set login_role = %s where agent_id = %s", (name, agent))
        return connect(name)

    return make


def fill(db: Connection, cast: Cast) -> None:
    """Bob's inbox is full."""
    db.execute("select caliber_config_set('message_queue_limit', '1')")
    send(db, cast.ann, cast.bob)


# --- rights across teams ---


def test_send_messages_opens_another_team(
    db: Connection, cast: Cast, login: Callable[[str], Connection]
) -> None:
    eve = login(cast.eve)
    batch = Jsonb([{"to_agent_id": cast.bob, "message_type": "nudge"}])
    assert state(eve, SEND, cast.eve, cast.bob) == "42501"
    assert state(eve, BATCH, cast.eve, batch) == "42501"
    db.execute("select caliber_grant_access(%s, %s, 'send_messages')", (cast.bob, cast.eve))
    scalar(eve, SEND, cast.eve, cast.bob)
    scalar(eve, BATCH, cast.eve, batch)
    assert len(receive(db, cast.bob)) == 2
    db.execute("select caliber_revoke_access(%s, %s, 'send_messages')", (cast.bob, cast.eve))
    assert state(eve, SEND, cast.eve, cast.bob) == "42501"


def test_read_transcript_shows_anothers_messages(
    db: Connection, cast: Cast, login: Callable[[str], Connection]
) -> None:
    send(db, cast.ann, cast.bob)
    send(db, cast.bob, cast.tim)
    eve = login(cast.eve)
    count = "select count(*) from caliber_messages"
    assert scalar(eve, count) == 0
    db.execute("select caliber_grant_access(%s, %s, 'read_transcript')", (cast.bob, cast.eve))
    assert scalar(eve, count) == 2
    assert scalar(eve, "select count(*) from caliber_message_inbox(%s)", cast.bob) == 1
    db.execute("select caliber_revoke_access(%s, %s, 'read_transcript')", (cast.bob, cast.eve))
    assert scalar(eve, count) == 0


def test_a_stranger_is_not_told_that_a_queue_is_full(
    db: Connection, cast: Cast, login: Callable[[str], Connection]
) -> None:
    fill(db, cast)
    eve = login(cast.eve)
    told = [refused(eve, SEND, cast.eve, to).sqlstate for to in (cast.bob, uuid.uuid4())]
    assert told == ["42501", "42501"]
    assert state(eve, SEND, cast.ann, cast.bob) == "42501"


def test_a_stranger_is_not_told_who_is_party_to_a_message(
    db: Connection, cast: Cast, login: Callable[[str], Connection]
) -> None:
    eve = login(cast.eve)
    query = "select caliber_message_send(%s, %s, null, 'nudge', in_reply_to => %s)"
    for message in (send(db, cast.ann, cast.bob), str(uuid.uuid4())):
        assert state(eve, query, cast.ann, cast.bob, message) == "42501"


def test_a_stranger_is_not_told_that_a_message_exists(
    db: Connection, cast: Cast, login: Callable[[str], Connection]
) -> None:
    shared = scalar(db, "select caliber_message_send(%s, null, 'coder', 'nudge')", cast.ann)
    one(db, cast.bob)
    eve = login(cast.eve)
    query = "select caliber_message_acknowledge(%s, 7)"
    errors = [
        refused(eve, query, message) for message in (shared, send(db, cast.ann, cast.bob), uuid.uuid4())
    ]
    assert [error.sqlstate for error in errors] == ["42501"] * 3
    assert len({error.diag.message_primary for error in errors}) == 1


def test_who_joins_by_itself_hears_its_own_team_only(
    db: Connection, cast: Cast, login: Callable[[str], Connection]
) -> None:
    join = "select caliber_channel_join(%s, 'task:7')"
    broadcast = "select recipients from caliber_message_broadcast(%s, 'nudge', channel => 'task:7')"
    scalar(login(cast.eve), join, cast.eve)
    scalar(login(cast.bob), join, cast.bob)
    assert scalar(db, broadcast, cast.ann) == 1
    assert receive(db, cast.eve) == []
    # Put there by an admin it is meant to.
    assert scalar(db, join, cast.eve) is True
    assert scalar(db, join, cast.eve) is False
    assert scalar(db, broadcast, cast.ann) == 2


# --- keys ---


def test_a_repeated_send_is_answered_when_the_queue_is_full(db: Connection, cast: Cast) -> None:
    first = scalar(db, KEYED, cast.ann, cast.bob)
    batch = Jsonb([{"to_agent_id": cast.bob, "message_type": "nudge", "idempotency_key": "b"}])
    second = scalar(db, BATCH, cast.ann, batch)
    every = "select message_id from caliber_message_broadcast(%s, 'nudge', idempotency_key => 'all')"
    third = scalar(db, every, cast.ann)
    db.execute("select caliber_config_set('message_queue_limit', '1')")
    assert state(db, SEND, cast.ann, cast.bob) == "KA006"
    assert scalar(db, KEYED, cast.ann, cast.bob) == first
    assert scalar(db, BATCH, cast.ann, batch) == second
    assert scalar(db, every, cast.ann) == third
    db.execute("select caliber_agent_terminate(%s)", (cast.bob,))
    db.execute("select caliber_agent_terminate(%s)", (cast.tim,))
    assert scalar(db, every, cast.ann) == third


def test_a_key_belongs_to_one_message_in_batches_and_broadcasts_too(db: Connection, cast: Cast) -> None:
    def batch(payload: int) -> Jsonb:
        return Jsonb(
            [{"to_agent_id": cast.bob, "message_type": "nudge", "payload": payload, "idempotency_key": "k"}]
        )

    scalar(db, BATCH, cast.ann, batch(1))
    assert state(db, BATCH, cast.ann, batch(2)) == "23505"
    every = "select message_id from caliber_message_broadcast(%s, 'nudge', to_agent_type => %s,"
    every += " idempotency_key => 'all')"
    scalar(db, every, cast.ann, "coder")
    assert state(db, every, cast.ann, "tester") == "23505"


def test_a_batch_with_keys_may_speak_of_message_types(db: Connection, cast: Cast) -> None:
    """In a payload the word is not another message."""
    about = {"message_type": "nudge", "more": {"message_type": "nudge"}}
    one = {"to_agent_id": cast.bob, "message_type": "nudge", "payload": about}
    batch = Jsonb([{**one, "idempotency_key": "a"}, {**one, "idempotency_key": "b"}])
    first = db.execute(BATCH, (cast.ann, batch)).fetchall()
    assert len(first) == 2
    assert db.execute(BATCH, (cast.ann, batch)).fetchall() == first


def test_batches_refuse_what_a_send_refuses(db: Connection, cast: Cast) -> None:
    for wrong in (
        {"artifact_ids": [None]},
        {"channel": "task: "},
        {"schema_name": "plaintext", "payload": 3},
    ):
        batch = Jsonb([{"to_agent_id": cast.bob, "message_type": "nudge", **wrong}])
        assert state(db, BATCH, cast.ann, batch) == "22023", wrong
    digits = '[{"schema_name": "plaintext", "payload": ' + "9" * 5000 + "}]"
    assert state(db, "select caliber_message_send_batch(%s, %s::jsonb)", cast.ann, digits) == "22023"


# --- the end of a message ---


def test_what_was_taken_in_time_can_be_settled_in_time(db: Connection, cast: Cast) -> None:
    message = send(db, cast.ann, cast.bob, ", ttl_ms => 500")
    row = one(db, cast.bob)
    db.execute("select pg_sleep(0.51)")
    assert receive(db, cast.bob) == []
    db.execute("select caliber_message_tidy()")
    assert scalar(db, "select caliber_message_acknowledge(%s, %s)", message, row["receipt"]) is True


def test_a_receipt_is_outdated_once_its_message_was_given_up(db: Connection, cast: Cast) -> None:
    message = send(db, cast.ann, cast.bob)
    for _ in range(3):
        row = one(db, cast.bob)
        now_visible(db)
    assert receive(db, cast.bob) == []
    assert delivery(db, message)["status"] == "dead"
    assert state(db, "select caliber_message_acknowledge(%s, %s)", message, row["receipt"]) == "KA001"


def test_what_is_brought_back_is_unread(db: Connection, cast: Cast) -> None:
    message = send(db, cast.ann, cast.bob)
    one(db, cast.bob)
    db.execute("select caliber_message_read(%s)", (message,))
    db.execute("select caliber_message_reject(%s, retry => false)", (message,))
    db.execute("select caliber_message_requeue(%s)", (message,))
    assert scalar(db, "select count(*) from caliber_message_inbox(%s)", cast.bob) == 1
    assert scalar(db, "select caliber_message_read(%s)", message) is True


def test_extending_never_shortens(db: Connection, cast: Cast) -> None:
    message = send(db, cast.ann, cast.bob)
    row = one(db, cast.bob)
    before = delivery(db, message)["visible_at"]
    assert scalar(db, "select caliber_message_extend(%s, %s, 1)", message, row["receipt"]) == before


# --- sleeping ---


def test_a_message_in_an_open_transaction_does_not_keep_others_awake(
    db: Connection, connect: Connect, cast: Cast
) -> None:
    message = scalar(db, "select caliber_message_send(%s, null, 'coder', 'nudge')", cast.ann)
    taker = connect(autocommit=False)
    assert len(receive(taker, cast.ann)) == 1
    for mode in ("always", "armed"):
        db.execute("select caliber_config_set('notify_mode', %s)", (mode,))
        assert receive(db, cast.bob) == []
        # Nobody will notify if that transaction is undone.
        assert scalar(db, ARM, cast.bob) == "poll"
        assert scalar(db, "select caliber_message_wait(%s, 10)", cast.bob) is False
    taker.rollback()
    assert scalar(db, ARM, cast.bob) == "ready"
    assert one(db, cast.bob)["message_id"] == message


def test_a_reader_of_some_types_sleeps_while_there_are_others(db: Connection, cast: Cast) -> None:
    send(db, cast.ann, cast.bob)
    arm = "select state from caliber_message_arm(%s, message_types => %s)"
    wait = "select caliber_message_wait(%s, 10, message_types => %s)"
    for types, found in ((["halt"], ("armed", False)), (["task_request"], ("ready", True))):
        assert (scalar(db, arm, cast.bob, types), scalar(db, wait, cast.bob, types)) == found


def test_a_message_behind_many_that_are_taken_is_seen(db: Connection, cast: Cast) -> None:
    db.execute("select caliber_config_set('message_queue_limit', '0')")
    batch = Jsonb([{"to_agent_id": cast.bob, "message_type": "nudge"}] * 1000)
    db.execute(BATCH, (cast.ann, batch))
    send(db, cast.ann, cast.bob)
    assert len(receive(db, cast.bob, 1000)) == 1000
    assert scalar(db, ARM, cast.bob) == "ready"


@pytest.mark.parametrize("mode", ["always", "armed"])
def test_a_rejection_wakes_who_counted_on_the_lease(
    db: Connection, connect: Connect, cast: Cast, mode: str
) -> None:
    db.execute("select caliber_config_set('notify_mode', %s)", (mode,))
    db.execute("select caliber_message_send(%s, null, 'coder', 'nudge')", (cast.ann,))
    row = one(db, cast.ann)
    sleeper = connect()
    for channel in sleeper.execute("select caliber_message_channels(%s) as name", (cast.bob,)).fetchall():
        sleeper.execute(f"listen {channel['name']}")
    assert scalar(sleeper, ARM, cast.bob) == "armed"
    db.execute("select caliber_message_reject(%s, receipt => %s)", (row["message_id"], row["receipt"]))
    assert len(list(sleeper.notifies(timeout=5, stop_after=1))) == 1


# --- other sessions ---


def test_a_session_sees_a_setting_that_was_committed_late(
    db: Connection, connect: Connect, cast: Cast
) -> None:
    late, listener = connect(autocommit=False), connect()
    db.execute("select caliber_config_set('notify_mode', 'off')")
    late.execute("select caliber_config_set('notify_mode', 'always')")
    db.execute("select caliber_config_set('message_queue_limit', '0')")
    send(db, cast.ann, cast.bob)
    late.commit()
    listener.execute("listen caliber_agent_message")
    send(db, cast.ann, cast.bob)
    assert len(list(listener.notifies(timeout=5, stop_after=1))) == 1


def test_a_mark_that_another_transaction_stores_is_not_waited_for(
    db: Connection, connect: Connect, cast: Cast
) -> None:
    other = connect()
    for session in (db, other):
        for _ in range(32):
            receive(session, cast.bob)
    db.execute("select setval('caliber_message_seq', 50000)")
    for session in (db, other):
        for _ in range(32):
            receive(session, cast.bob)
    other.execute("begin")
    db.execute("set statement_timeout = '5s'")
    for session in (other, db):
        for _ in range(32):
            receive(session, cast.bob)
    assert scalar(other, "select count(*) from caliber_queue_mark") == 2
    other.execute("rollback")


def test_a_broadcast_to_many_does_not_fill_the_lock_table(db: Connection, cast: Cast) -> None:
    db.execute("select caliber_config_set('notify_mode', 'armed')")
    db.execute(
        "with a as (insert into caliber_agent (agent_id, team_id, agent_type, name, memory_access)"
        " select gen_random_uuid(), team_id, 'drone', 'drone-' || n, memory_access"
        " from generate_series(1, 500) as n, caliber_agent where agent_id = %s returning agent_id, team_id)"
        " insert into caliber_agent_beat (agent_id, team_id) select agent_id, team_id from a",
        (cast.ann,),
    )
    db.execute("begin")
    assert scalar(db, "select recipients from caliber_message_broadcast(%s, 'nudge')", cast.ann) == 502
    batch = "select count(*) from caliber_message_send_batch(%s, (select jsonb_agg(jsonb_build_object("
    batch += (
        "'to_agent_id', agent_id, 'message_type', 'nudge')) from caliber_agent where agent_type = 'drone'))"
    )
    assert scalar(db, batch, cast.ann) == 500
    held = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
    assert int(str(scalar(db, held))) <= 250
    db.execute("rollback")


def test_a_check_of_much_data_ends_in_time(db: Connection, cast: Cast) -> None:
    """Each wrong branch writes a message with the whole payload in it."""
    levels = {f"l{n}": {"anyOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(40)}
    schema = {"$defs": {**levels, "l40": {"type": "integer"}}, "$ref": "#/$defs/l0"}
    scalar(db, "select caliber_message_schema_register('deep', %s)", Jsonb(schema))
    query = "select caliber_message_send(%s, %s, null, 'nudge', %s, schema_name => 'deep')"
    began = time.monotonic()
    assert state(db, query, cast.ann, cast.bob, Jsonb(list(range(40_000)))) == "22023"
    assert time.monotonic() - began < 60
