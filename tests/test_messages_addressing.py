"""Messages: broadcasts, channels, batches, threads, inboxes, and who sees what."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from conftest import Connect, Connection, scalar, state
from messages_cast import Cast, make_cast, one, receive, send
from psycopg.types.json import Jsonb

BROADCAST = "select * from caliber_message_broadcast(%s, 'notification')"
BATCH = "select caliber_message_send_batch(%s, %s) as message_id"


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


def test_broadcast_reaches_the_team_and_nobody_else(db: Connection, cast: Cast) -> None:
    row = db.execute(BROADCAST, (cast.ann,)).fetchone()
    assert row is not None
    assert row["recipients"] == 2
    for agent, expected in ((cast.ann, 0), (cast.bob, 1), (cast.tim, 1), (cast.eve, 0)):
        assert len(receive(db, agent)) == expected
    # Each settles its own.
    query = "select caliber_message_acknowledge(%s, agent_id => %s)"
    assert state(db, "select caliber_message_acknowledge(%s)", row["message_id"]) == "22023"
    assert scalar(db, query, row["message_id"], cast.bob) is True
    statuses = db.execute("select status from caliber_delivery order by status").fetchall()
    assert [r["status"] for r in statuses] == ["delivered", "processed"]


def test_broadcast_to_a_type(db: Connection, cast: Cast) -> None:
    query = "select recipients from caliber_message_broadcast(%s, 'notification', to_agent_type => %s)"
    assert scalar(db, query, cast.tim, "coder") == 2
    assert scalar(db, query, cast.ann, "coder") == 1
    assert state(db, query, cast.ann, "No Type") == "22023"


def test_broadcast_to_nobody_says_so(db: Connection, cast: Cast) -> None:
    row = db.execute(BROADCAST, (cast.eve,)).fetchone()
    assert row == {"message_id": None, "recipients": 0}
    assert scalar(db, "select count(*) from caliber_message") == 0


def test_broadcast_passes_over_the_terminated(db: Connection, cast: Cast) -> None:
    db.execute("select caliber_agent_terminate(%s)", (cast.bob,))
    assert scalar(db, BROADCAST.replace("*", "recipients"), cast.ann) == 1


def test_broadcast_twice_with_a_key_is_one(db: Connection, cast: Cast) -> None:
    query = "select * from caliber_message_broadcast(%s, 'notification', %s::jsonb, idempotency_key => 'k')"
    first = db.execute(query, (cast.ann, "{}")).fetchone()
    assert db.execute(query, (cast.ann, "{}")).fetchone() == first
    assert scalar(db, "select count(*) from caliber_delivery") == 2
    assert state(db, query, cast.ann, "[]") == "23505"


@pytest.mark.parametrize(
    ("arguments", "sqlstate"),
    [("'nosuch'", "22023"), ("'nudge', channel => 'direct'", "22023"), ("'nudge', channel => null", "22023"),
     ("'nudge', null", "22023"), ("null", "22023"), ("'nudge', incarnation => 7", "KA001"),
     ("'nudge', ttl_ms => 0", "22023"), ("'nudge', priority => null", "22023")],
)  # fmt: skip
def test_bad_broadcasts(db: Connection, cast: Cast, arguments: str, sqlstate: str) -> None:
    assert state(db, f"select caliber_message_broadcast(%s, {arguments})", cast.ann) == sqlstate


def test_channels(db: Connection, cast: Cast) -> None:
    join, leave = "select caliber_channel_join(%s, %s)", "select caliber_channel_leave(%s, %s)"
    assert scalar(db, join, cast.bob, "task:7") is True
    assert scalar(db, join, cast.bob, "task:7") is False
    assert scalar(db, join, cast.eve, "task:7") is True
    query = "select caliber_message_send(%s, null, null, 'task_status', channel => %s)"
    scalar(db, query, cast.ann, "task:7")
    assert [r["channel"] for r in receive(db, cast.bob)] == ["task:7"]
    assert receive(db, cast.tim) == []
    # An admin's call crosses teams.
    assert len(receive(db, cast.eve)) == 1
    assert scalar(db, leave, cast.bob, "task:7") is True
    assert scalar(db, leave, cast.bob, "task:7") is False
    assert state(db, query, cast.ann, "collab:1") == "KA004"
    scalar(db, query, cast.ann, "team")
    assert len(receive(db, cast.tim)) == 1
    for bad in ("direct", "team", "task:", "nowhere", None, "task:" + "x" * 200):
        assert state(db, join, cast.bob, bad) == "22023"
    assert state(db, join, uuid.uuid4(), "task:7") == "P0002"


def test_batch(db: Connection, cast: Cast) -> None:
    given = [
        {"to_agent_id": cast.bob, "message_type": "nudge", "payload": {"n": 1}, "priority": "low"},
        {"to_agent_type": "coder", "message_type": "halt", "subject": "s", "body": "b", "ttl_ms": 60000},
        {"to_agent_id": cast.tim, "message_type": "nudge", "idempotency_key": "k"},
    ]
    ids = [r["message_id"] for r in db.execute(BATCH, (cast.ann, Jsonb(given)))]
    assert len(set(ids)) == 3
    rows = receive(db, cast.bob)
    assert [(r["message_id"], r["message_type"], r["payload"]) for r in rows] == [
        (ids[1], "halt", {}),
        (ids[0], "nudge", {"n": 1}),
    ]
    assert (rows[0]["subject"], rows[0]["body"], rows[0]["expires_at"] is None) == ("s", "b", False)
    # A key that is there keeps its message; the others are new.
    again = [r["message_id"] for r in db.execute(BATCH, (cast.ann, Jsonb(given)))]
    assert again[2] == ids[2]
    assert not {again[0], again[1]} & set(ids)


BAD_BATCHES: list[tuple[object, str]] = [
    ([], "22023"),
    ({}, "22023"),
    ([1], "22023"),
    ([{"message_type": "nudge"}], "22023"),
    ([{"to_agent_id": "BOB", "to_agent_type": "coder", "message_type": "nudge"}], "22023"),
    ([{"to_agent_id": "BOB"}], "22023"),
    ([{"to_agent_id": "BOB", "message_type": "nosuch"}], "22023"),
    ([{"to_agent_id": str(uuid.uuid4()), "message_type": "nudge"}], "KA004"),
    ([{"to_agent_id": "BOB", "message_type": "nudge", "payload": "x" * 262144}], "22023"),
    ([{"to_agent_id": "BOB", "message_type": "nudge", "subject": "x" * 501}], "22023"),
    ([{"to_agent_id": "BOB", "message_type": "nudge", "ttl_ms": 0}], "22023"),
    ([{"to_agent_id": "BOB", "message_type": "nudge", "channel": "x"}], "22023"),
    ([{"to_agent_id": "BOB", "message_type": "nudge", "idempotency_key": ""}], "22023"),
    ([{"to_agent_id": "BOB", "message_type": "nudge", "in_reply_to": str(uuid.uuid4())}], "P0002"),
    ([{"to_agent_id": "BOB", "message_type": "nudge", "schema_name": "plaintext"}], "22023"),
    ([{"to_agent_id": "BOB", "message_type": "nudge"}] * 1001, "22023"),
]


@pytest.mark.parametrize(("batch", "sqlstate"), BAD_BATCHES)
def test_a_bad_message_stops_the_batch(db: Connection, cast: Cast, batch: object, sqlstate: str) -> None:
    fine = {"to_agent_id": cast.bob, "message_type": "nudge"}
    if isinstance(batch, list):
        batch = [
            {k: cast.bob if v == "BOB" else v for k, v in m.items()} if isinstance(m, dict) else m
            for m in batch
        ]
        if batch:
            batch = [fine, *batch]
    assert state(db, BATCH, cast.ann, Jsonb(batch)) == sqlstate
    assert scalar(db, "select count(*) from caliber_message") == 0


def test_reply_and_thread(db: Connection, cast: Cast) -> None:
    question = send(db, cast.ann, cast.bob, ", subject => 'Why?', priority => 'high'")
    reply = "select caliber_message_reply(%s, %s, '{}', body => %s)"
    answer = scalar(db, reply, cast.bob, question, "because")
    thanks = scalar(db, reply, cast.ann, answer, "thanks")
    got = one(db, cast.ann)
    assert got["message_id"] == answer
    assert (str(got["in_reply_to"]), str(got["thread_id"])) == (question, question)
    assert (got["subject"], got["priority"], got["message_type"]) == ("Re: Why?", "high", "info_response")
    for message in (question, answer, thanks):
        rows = db.execute("select message_id from caliber_message_thread(%s)", (message,)).fetchall()
        assert [str(r["message_id"]) for r in rows] == [question, str(answer), str(thanks)]
    # Whoever is not party to it cannot answer it.
    assert state(db, reply, cast.tim, question, "me too") == "P0002"
    assert state(db, reply, cast.tim, uuid.uuid4(), "x") == "P0002"
    assert state(db, reply, cast.bob, None, "x") == "22023"
    query = "select sender from caliber_message_conversation(%s, %s)"
    assert [r["sender"] for r in db.execute(query, (cast.ann, cast.bob))] == ["ann", "bob", "ann"]
    assert db.execute(query, (cast.ann, cast.tim)).fetchall() == []


def test_unreplied(db: Connection, cast: Cast) -> None:
    query = "select message_id from caliber_unreplied(%s, %s)"

    def unreplied(agent: str, required_only: bool = False) -> list[str]:
        return [str(r["message_id"]) for r in db.execute(query, (agent, required_only))]

    plain = send(db, cast.ann, cast.bob)
    asked = send(db, cast.ann, cast.bob, ", requires_response => true")
    assert unreplied(cast.bob) == [plain, asked]
    assert unreplied(cast.bob, True) == [asked]
    answer = "select caliber_message_reply(%s, %s, requires_response => %s)"
    scalar(db, answer, cast.bob, asked, False)
    assert unreplied(cast.bob) == [plain]
    # An answer needs no answer, unless it asks for one.
    assert unreplied(cast.ann) == []
    back = scalar(db, answer, cast.bob, plain, True)
    assert unreplied(cast.ann, True) == [str(back)]


def test_inbox_shows_the_newest_first_and_takes_nothing(db: Connection, cast: Cast) -> None:
    ids = [send(db, cast.ann, cast.bob) for _ in range(12)]
    query = "select message_id from caliber_message_inbox(%s, %s, %s)"

    def inbox(unread: bool = True, limit: int = 10) -> list[str]:
        return [str(r["message_id"]) for r in db.execute(query, (cast.bob, unread, limit))]

    assert inbox() == ids[:1:-1]
    db.execute("select caliber_message_read(%s)", (ids[11],))
    db.execute("select caliber_message_acknowledge(%s)", (ids[10],))
    assert inbox(limit=2) == [ids[9], ids[8]]
    assert inbox(unread=False, limit=2) == [ids[11], ids[10]]
    assert scalar(db, "select caliber_message_pending_count(%s)", cast.bob) == 11
    for bad in (0, 1001, None):
        assert state(db, query, cast.bob, True, bad) == "22023"


def test_prompt(db: Connection, cast: Cast) -> None:
    message = send(db, cast.ann, cast.bob, ", '{\"a\": 1}', subject => 'S', body => 'B'")
    prompt = str(scalar(db, "select caliber_message_prompt(%s)", message))
    head, _, tail = prompt.partition("TIME: ")
    assert head == f"---\nFROM: coder ({cast.ann[:8]})\nTYPE: task_request\nSUBJECT: S\n"
    assert tail.partition("\n")[2] == '---\n\nB\n\nPAYLOAD:\n{\n    "a": 1\n}'
    assert scalar(db, "select caliber_message_prompt(gen_random_uuid())") is None


def test_an_agent_acts_for_itself_within_its_team(
    db: Connection, cast: Cast, login: Callable[[str], Connection]
) -> None:
    ann, bob, eve = login(cast.ann), login(cast.bob), login(cast.eve)
    message = send(ann, cast.ann, cast.bob)
    before = db.execute("select * from caliber_delivery").fetchall()
    query = "select caliber_message_send(%s, %s, null, 'nudge')"
    assert state(ann, query, cast.ann, cast.eve) == "42501"
    assert state(ann, query, cast.ann, uuid.uuid4()) == "42501"
    assert state(ann, query, cast.bob, cast.ann) == "42501"
    for call in (
        "receive(%s)", "arm(%s)", "wait(%s)", "channels(%s)", "broadcast(%s, 'nudge')",
        "send_batch(%s, '[]')", "reply(%s, gen_random_uuid())",
    ):  # fmt: skip
        assert state(ann, f"select caliber_message_{call}", cast.bob) == "42501"
    assert state(ann, "select caliber_message_receive(%s, 'tester')", cast.ann) == "42501"
    assert state(ann, "select caliber_channel_join(%s, 'task:1')", cast.bob) == "42501"
    # Its sender and strangers do not settle it.
    for session in (ann, eve):
        for verb in ("acknowledge", "read", "processed", "reject"):
            assert state(session, f"select caliber_message_{verb}(%s)", message) == "42501"
    assert state(ann, "select caliber_message_requeue(%s)", message) == "42501"
    assert state(ann, "select caliber_message_tidy()") == "42501"
    assert state(ann, "select caliber_message_type_add('x')") == "42501"
    assert state(ann, "select caliber_message_schema_register('x', '{}')") == "42501"
    assert db.execute("select * from caliber_delivery").fetchall() == before
    row = one(bob, cast.bob)
    assert scalar(bob, "select caliber_message_acknowledge(%s)", row["message_id"]) is True


def test_an_agent_sees_what_it_sent_and_what_is_for_it(
    db: Connection, cast: Cast, login: Callable[[str], Connection]
) -> None:
    sessions = {name: login(getattr(cast, name)) for name in ("ann", "bob", "tim", "eve")}
    send(db, cast.ann, cast.bob)
    db.execute("select caliber_message_send(%s, null, 'coder', 'nudge')", (cast.tim,))
    db.execute("select caliber_message_broadcast(%s, 'nudge')", (cast.ann,))

    def sees(name: str) -> tuple[object, object]:
        return (
            scalar(sessions[name], "select count(*) from caliber_message"),
            scalar(sessions[name], "select count(*) from caliber_delivery"),
        )

    assert sees("ann") == (3, 4)
    assert sees("bob") == (3, 3)
    assert sees("tim") == (2, 2)
    assert sees("eve") == (0, 0)
    # Once one coder has taken it, the other does not see it.
    receive(sessions["bob"], cast.bob)
    assert sees("ann") == (2, 3)
    inbox = "select count(*) from caliber_message_inbox(%s)"
    assert scalar(sessions["bob"], inbox, cast.bob) == 3
    assert scalar(sessions["eve"], inbox, cast.bob) == 0
    assert scalar(sessions["tim"], "select count(*) from caliber_messages where sender = 'tim'") == 1
