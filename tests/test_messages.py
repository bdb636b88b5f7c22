"""Messages: sending, taking, settling."""

from __future__ import annotations

import threading
import uuid

import pytest
from conftest import Connect, Connection, refused, scalar, state
from messages_cast import Cast, delivery, make_cast, now_visible, one, receive, send

SEND = "select caliber_message_send(%s, %s, %s, %s)"
ACK = "select caliber_message_acknowledge(%s, %s)"


@pytest.fixture
def cast(db: Connection) -> Cast:
    return make_cast(db)


def test_send_with_the_positional_order_of_the_protocol(db: Connection, cast: Cast) -> None:
    trajectory = uuid.uuid4()
    message = scalar(
        db,
        "select caliber_message_send(%s, %s, null, 'task_delegation', '{\"n\": 1}', %s, 'high')",
        cast.ann,
        cast.bob,
        trajectory,
    )
    row = one(db, cast.bob)
    assert row["message_id"] == message
    assert row["from_agent_id"] == uuid.UUID(cast.ann)
    assert row["payload"] == {"n": 1}
    assert row["trajectory_id"] == trajectory
    assert row["priority"] == "high"
    assert row["attempts"] == 1
    assert row["thread_id"] == message
    assert scalar(db, ACK, message, row["receipt"]) is True
    assert scalar(db, ACK, message, row["receipt"]) is False
    assert receive(db, cast.bob) == []


def test_everything_that_was_sent_arrives(db: Connection, cast: Cast) -> None:
    scope, artifact = uuid.uuid4(), uuid.uuid4()
    send(
        db, cast.ann, cast.bob,
        ", '[1, \"ü\"]', subject => 'Grüße', body => %s, scope_id => %s, artifact_ids => array[%s::uuid],"
        " channel => 'task:7', requires_response => true, ttl_ms => 60000",
        "line\n" * 1000, scope, artifact,
    )  # fmt: skip
    row = one(db, cast.bob)
    assert row["payload"] == [1, "ü"]
    assert (row["subject"], row["body"]) == ("Grüße", "line\n" * 1000)
    assert (row["scope_id"], row["artifact_ids"]) == (scope, [artifact])
    assert (row["channel"], row["requires_response"]) == ("task:7", True)
    assert row["expires_at"] is not None
    assert row["schema_name"] is None


BAD = [
    (", null", "22023"),
    (", to_jsonb(repeat('x', 262144))", "22023"),
    (", priority => null", "22023"),
    (", subject => repeat('x', 501)", "22023"),
    (", body => repeat('x', 262145)", "22023"),
    (", channel => 'elsewhere'", "22023"),
    (", channel => 'task:'", "22023"),
    (", ttl_ms => 0", "22023"),
    (", ttl_ms => -5", "22023"),
    (", idempotency_key => ''", "22023"),
    (", idempotency_key => repeat('k', 201)", "22023"),
    (", artifact_ids => array[null::uuid]", "22023"),
    (", artifact_ids => array_fill(gen_random_uuid(), array[1001])", "22023"),
    (", in_reply_to => gen_random_uuid()", "P0002"),
    (", schema_name => 'nosuch'", "22023"),
    (", incarnation => 99", "KA001"),
]


@pytest.mark.parametrize(("extra", "sqlstate"), BAD)
def test_bad_content_is_refused(db: Connection, cast: Cast, extra: str, sqlstate: str) -> None:
    query = f"select caliber_message_send(%s, %s, null, 'task_request' {extra})"
    assert state(db, query, cast.ann, cast.bob) == sqlstate
    assert scalar(db, "select count(*) from caliber_message") == 0
    assert scalar(db, "select count(*) from caliber_delivery") == 0


def test_bad_addresses_are_refused(db: Connection, cast: Cast) -> None:
    kind = "task_request"
    assert state(db, SEND, None, cast.bob, None, kind) == "22023"
    assert state(db, SEND, cast.ann, None, None, kind) == "22023"
    assert state(db, SEND, cast.ann, cast.bob, "coder", kind) == "22023"
    assert state(db, SEND, cast.ann, None, "No Type", kind) == "22023"
    assert state(db, SEND, cast.ann, cast.bob, None, "nosuch") == "22023"
    assert state(db, SEND, cast.ann, cast.bob, None, None) == "22023"
    assert state(db, SEND, uuid.uuid4(), cast.bob, None, kind) == "P0002"
    assert state(db, SEND, cast.ann, uuid.uuid4(), None, kind) == "KA004"
    db.execute("select caliber_agent_terminate(%s)", (cast.bob,))
    assert state(db, SEND, cast.ann, cast.bob, None, kind) == "KA004"
    assert state(db, SEND, cast.bob, cast.ann, None, kind) == "KA007"
    error = refused(db, SEND, cast.ann, uuid.uuid4(), None, kind)
    assert "caliber_agent_list" in (error.diag.message_hint or "")


def test_the_largest_payload_goes_through(db: Connection, cast: Cast) -> None:
    send(db, cast.ann, cast.bob, ", to_jsonb(repeat('x', 262142))")
    assert one(db, cast.bob)["payload"] == "x" * 262142


def test_priority_before_age(db: Connection, cast: Cast) -> None:
    for priority in ("low", "normal", "critical", "high", "normal"):
        send(db, cast.ann, cast.bob, f", priority => '{priority}'")
    assert [r["priority"] for r in receive(db, cast.bob, 3)] == ["critical", "high", "normal"]
    rest = receive(db, cast.bob, 3)
    assert [r["priority"] for r in rest] == ["normal", "low"]


def test_own_messages_and_those_of_the_type_come_in_order(db: Connection, cast: Cast) -> None:
    ids = []
    for to_type in (True, False, True):
        to = (None, "coder") if to_type else (cast.bob, None)
        ids.append(scalar(db, SEND, cast.ann, *to, "task_request"))
    assert [r["message_id"] for r in receive(db, cast.bob)] == ids


def test_only_wanted_types(db: Connection, cast: Cast) -> None:
    for kind in ("nudge", "halt", "nudge"):
        db.execute(SEND, (cast.ann, cast.bob, None, kind))
    query = "select message_type from caliber_message_receive(%s, message_types => %s)"
    assert [r["message_type"] for r in db.execute(query, (cast.bob, ["halt", "resume"]))] == ["halt"]
    assert db.execute(query, (cast.bob, [])).fetchall() == []
    assert len(receive(db, cast.bob)) == 2


@pytest.mark.parametrize(
    "arguments",
    ["max_messages => 0", "max_messages => 1001", "max_messages => null", "visibility_ms => 0",
     "visibility_ms => null", "message_types => array_fill('x'::text, array[101])"],
)  # fmt: skip
def test_bad_receives_are_refused(db: Connection, cast: Cast, arguments: str) -> None:
    assert state(db, f"select caliber_message_receive(%s, {arguments})", cast.bob) == "22023"


def test_receiving_for_nobody(db: Connection, cast: Cast) -> None:
    receive_for = "select caliber_message_receive(%s)"
    assert state(db, receive_for, None) == "22023"
    assert state(db, receive_for, uuid.uuid4()) == "P0002"
    assert state(db, "select caliber_message_receive(%s, incarnation => 2)", cast.bob) == "KA001"
    db.execute("select caliber_agent_terminate(%s)", (cast.bob,))
    assert state(db, receive_for, cast.bob) == "KA007"


def test_a_lease_that_ran_out_goes_to_the_next(db: Connection, cast: Cast) -> None:
    message = send(db, cast.ann, cast.bob)
    first = one(db, cast.bob)
    assert receive(db, cast.bob) == []
    now_visible(db)
    second = one(db, cast.bob)
    assert str(second["message_id"]) == message
    assert second["attempts"] == 2
    assert second["receipt"] != first["receipt"]
    before = delivery(db, message)
    for verb in ("acknowledge", "processed", "read"):
        assert state(db, f"select caliber_message_{verb}(%s, %s)", message, first["receipt"]) == "KA001"
    assert state(db, "select caliber_message_extend(%s, %s)", message, first["receipt"]) == "KA001"
    assert state(db, "select caliber_message_reject(%s, '', %s)", message, first["receipt"]) == "KA001"
    assert delivery(db, message) == before
    assert scalar(db, ACK, message, second["receipt"]) is True


def test_a_late_acknowledgement_counts_while_nobody_took_it_again(db: Connection, cast: Cast) -> None:
    message = send(db, cast.ann, cast.bob)
    row = one(db, cast.bob)
    now_visible(db)
    assert scalar(db, ACK, message, row["receipt"]) is True


def test_extending_keeps_it(db: Connection, cast: Cast) -> None:
    message = send(db, cast.ann, cast.bob)
    row = one(db, cast.bob)
    now_visible(db)
    query = "select caliber_message_extend(%s, %s, 60000) > clock_timestamp() + interval '50 s'"
    assert scalar(db, query, message, row["receipt"]) is True
    assert receive(db, cast.bob) == []
    assert state(db, "select caliber_message_extend(%s, %s, 0)", message, row["receipt"]) == "22023"
    assert state(db, "select caliber_message_extend(%s, null)", message) == "22023"


def test_reading_is_not_settling(db: Connection, cast: Cast) -> None:
    message = send(db, cast.ann, cast.bob)
    assert scalar(db, "select caliber_message_read(%s)", message) is True
    assert scalar(db, "select caliber_message_read(%s)", message) is False
    assert delivery(db, message)["status"] == "read"
    row = one(db, cast.bob)
    assert scalar(db, ACK, message, row["receipt"]) is True
    done = delivery(db, message)
    assert (done["status"], done["read_at"] is None) == ("processed", False)
    assert scalar(db, "select caliber_message_read(%s)", message) is False


def test_a_message_of_the_inbox_can_be_acknowledged_without_taking_it(db: Connection, cast: Cast) -> None:
    message = send(db, cast.ann, cast.bob)
    assert scalar(db, "select caliber_message_acknowledge(%s)", message) is True
    assert receive(db, cast.bob) == []
    # One to a type is nobody's until it is taken.
    shared = scalar(db, SEND, cast.ann, None, "coder", "task_request")
    assert state(db, "select caliber_message_acknowledge(%s, agent_id => %s)", shared, cast.bob) == "42501"


def test_settling_what_is_not_there(db: Connection, cast: Cast) -> None:
    for verb in ("acknowledge", "processed", "read", "reject"):
        assert state(db, f"select caliber_message_{verb}(%s)", uuid.uuid4()) == "P0002"
        assert state(db, f"select caliber_message_{verb}(null)") == "22023"
    message = send(db, cast.ann, cast.bob)
    assert state(db, "select caliber_message_acknowledge(%s, agent_id => %s)", message, cast.tim) == "42501"
    assert state(db, "select caliber_message_reject(%s)", message) == "KA007"
    assert state(db, ACK, message, 12345) == "KA001"


def test_batch_of_acknowledgements(db: Connection, cast: Cast) -> None:
    for _ in range(5):
        send(db, cast.ann, cast.bob)
    rows = receive(db, cast.bob)
    ids = [r["message_id"] for r in rows]
    receipts = [r["receipt"] for r in rows]
    query = "select caliber_message_acknowledge_batch(%s::uuid[], %s::bigint[])"
    assert scalar(db, query, ids[:4], [*receipts[:3], 1]) == 3
    assert scalar(db, query, ids, receipts) == 2
    assert scalar(db, query, ids, receipts) == 0
    assert scalar(db, query, [], []) == 0
    assert state(db, query, ids, receipts[:1]) == "22023"
    assert state(db, query, ids * 201, receipts * 201) == "22023"


def test_content_never_changes(db: Connection, cast: Cast) -> None:
    message = send(db, cast.ann, cast.bob)
    assert state(db, "update caliber_message set body = 'x' where message_id = %s", message) == "42501"


def test_each_message_is_taken_once(db: Connection, connect: Connect, cast: Cast) -> None:
    """16 take from the queue of their type while others send to it."""
    taken: list[object] = []

    def take() -> None:
        session = connect()
        agent = scalar(session, "select caliber_agent_register('worker')")
        empty = 0
        while empty < 3:
            rows = session.execute(
                "select message_id, receipt from caliber_message_receive(%s, max_messages => 7)", (agent,)
            ).fetchall()
            empty = 0 if rows else empty + 1
            for row in rows:
                assert scalar(session, ACK, row["message_id"], row["receipt"]) is True
                taken.append(row["message_id"])

    batch = "select caliber_message_send_batch(%s, (select jsonb_agg(jsonb_build_object("
    batch += "'to_agent_type', 'worker', 'message_type', 'nudge')) from generate_series(1, 400)))"
    sent = [next(iter(r.values())) for r in db.execute(batch, (cast.ann,))]
    threads = [threading.Thread(target=take) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == len(set(taken))
    assert set(taken) == set(sent)
