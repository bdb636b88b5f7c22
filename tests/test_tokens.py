"""Execution tokens: one holder, turns in the order of asking, nobody stops the line."""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Callable
from itertools import pairwise

import psycopg
import pytest
from conftest import Connect, Connection, refused, scalar, state

Roles = Callable[[str | None], str]

WAITERS = 16
# 16 × 500 turns take a while: CALIBER_TOKEN_TURNS=500 asks for it.
TURNS = int(os.environ.get("CALIBER_TOKEN_TURNS", "12"))

REQUEST = "select * from caliber_token_request(%s, 'review', 'pr-1')"
RELEASE = "select caliber_token_release(%s, 'review', 'pr-1', %s)"
WITHDRAW = "select caliber_token_withdraw(%s, 'review', 'pr-1')"
GUARD = "select caliber_token_guard(%s, 'review', 'pr-1', %s)"


@pytest.fixture
def agents(db: Connection) -> list[object]:
    return [
        scalar(db, "select caliber_agent_register('critic', name => %s)", name)
        for name in ("ann", "bob", "cyd", "dan")
    ]


def ask(db: Connection, agent: object) -> tuple[object, object, object]:
    row = db.execute(REQUEST, (agent,)).fetchone()
    assert row is not None
    return row["granted"], row["turn"], row["place"]


def status(db: Connection) -> dict[str, object]:
    row = db.execute("select * from caliber_token_status('review', 'pr-1')").fetchone()
    assert row is not None
    return row


def end_hold(db: Connection) -> None:
    """As if the time of whoever has the turn had passed."""
    db.execute("update caliber_token set expires_at = clock_timestamp()")


def test_granted_when_free_queued_when_not_handed_over_in_order(db: Connection, agents: list[object]) -> None:
    ann, bob, cyd, _ = agents
    assert status(db)["status"] == "available"
    assert ask(db, ann) == (True, 1, 0)
    assert status(db)["status"] == "held"
    assert ask(db, bob) == (False, None, 1)
    assert ask(db, cyd) == (False, None, 2)
    now = status(db)
    assert (now["status"], now["holder"], now["waiting"], now["next_agent_id"]) == (
        "contested",
        "ann",
        2,
        bob,
    )
    assert scalar(db, RELEASE, ann, 1) is True
    now = status(db)
    assert (now["status"], now["holder"], now["turn"], now["claimed"]) == ("contested", "bob", 2, False)
    assert ask(db, cyd) == (False, None, 1)
    assert ask(db, bob) == (True, 2, 0)
    assert status(db)["claimed"] is True
    assert scalar(db, RELEASE, bob, 2) is True
    assert ask(db, cyd) == (True, 3, 0)
    assert scalar(db, RELEASE, cyd, 3) is True
    now = status(db)
    assert (now["status"], now["holder"], now["turn"], now["waiting"]) == ("available", None, 3, 0)


def test_asking_again_changes_nothing(db: Connection, agents: list[object]) -> None:
    ann, bob, cyd, _ = agents
    first = db.execute(REQUEST, (ann,)).fetchone()
    ask(db, bob)
    ask(db, cyd)
    assert ask(db, bob) == (False, None, 1)
    assert db.execute(REQUEST, (ann,)).fetchone() == first
    rows = db.execute("select name, place from caliber_token_queue order by place").fetchall()
    assert [(r["name"], r["place"]) for r in rows] == [("bob", 1), ("cyd", 2)]


def test_looking_writes_nothing(connect: Connect, db: Connection, agents: list[object]) -> None:
    ann, bob, _, _ = agents
    ask(db, ann)
    ask(db, bob)
    session = connect(autocommit=False)
    assert ask(session, ann) == (True, 1, 0)
    assert ask(session, bob) == (False, None, 1)
    assert scalar(session, "select pg_current_xact_id_if_assigned()") is None


def test_a_stale_release_frees_nobody_elses_turn(db: Connection, agents: list[object]) -> None:
    ann, bob, cyd, _ = agents
    ask(db, ann)
    ask(db, bob)
    ask(db, cyd)
    end_hold(db)
    assert ask(db, bob) == (True, 2, 0)
    # ann wakes up and ends what it takes for its turn; so does a double of bob with bob's past.
    assert scalar(db, RELEASE, ann, 1) is False
    assert scalar(db, RELEASE, ann, 2) is False
    assert scalar(db, RELEASE, bob, 1) is False
    assert scalar(db, RELEASE, cyd, 2) is False
    now = status(db)
    assert (now["holder"], now["turn"], now["waiting"]) == ("bob", 2, 1)
    # The same agent again, in a later turn, is not ended by the number of its first.
    assert scalar(db, RELEASE, bob, 2) is True
    assert ask(db, cyd) == (True, 3, 0)
    assert scalar(db, RELEASE, cyd, 3) is True
    assert ask(db, ann) == (True, 4, 0)
    assert scalar(db, RELEASE, ann, 1) is False
    assert status(db)["holder"] == "ann"


def test_a_turn_ends_by_itself_and_the_line_moves_on(db: Connection, agents: list[object]) -> None:
    ann, bob, cyd, dan = agents
    ask(db, ann)
    ask(db, bob)
    ask(db, cyd)
    end_hold(db)
    now = status(db)
    assert (now["status"], now["holder"], now["next_agent_id"]) == ("contested", None, bob)
    # Whoever comes moves the line, also one that is not next.
    assert ask(db, dan) == (False, None, 2)
    assert status(db)["holder"] == "bob"
    # bob does not claim its turn and is passed over; ann, which slept, stands behind the others.
    end_hold(db)
    assert ask(db, ann) == (False, None, 2)
    assert ask(db, cyd) == (True, 3, 0)
    rows = db.execute("select name from caliber_token_queue order by place").fetchall()
    assert [r["name"] for r in rows] == ["dan", "ann"]
    events = db.execute(
        "select source_agent_id, details->>'claimed' as claimed from caliber_event"
        " where event_type = 'token_passed_over' order by event_id"
    ).fetchall()
    assert [(e["source_agent_id"], e["claimed"]) for e in events] == [(ann, "true"), (bob, "false")]


def test_a_hold_that_passed_with_nobody_waiting(db: Connection, agents: list[object]) -> None:
    ann, bob, _, _ = agents
    ask(db, ann)
    end_hold(db)
    assert status(db)["status"] == "available"
    assert ask(db, ann) == (True, 2, 0)
    end_hold(db)
    # Late, but it was still ann's: the token is free, and ann is told that it was late.
    assert scalar(db, RELEASE, ann, 2) is False
    assert ask(db, bob) == (True, 3, 0)


def test_how_long_a_turn_lasts(db: Connection, agents: list[object]) -> None:
    ann, bob, _, _ = agents
    lasts = "select round(extract(epoch from expires_at - clock_timestamp())) from caliber_token"
    ask(db, ann)
    assert scalar(db, lasts) == 1800
    request = "select * from caliber_token_request(%s, 'review', 'pr-1', %s)"
    db.execute(request, (bob, 100))
    db.execute(RELEASE, (ann, 1))
    assert scalar(db, lasts) == 60
    ask(db, bob)
    assert scalar(db, lasts) == 100
    # Asking again does not lengthen it.
    db.execute("update caliber_token set expires_at = expires_at - interval '50 s'")
    ask(db, bob)
    assert scalar(db, lasts) == 50
    for seconds in (0, -1, 1801):
        assert state(db, request, ann, seconds) == "22023"
    db.execute("select caliber_config_set('token_max_hold_seconds', '10')")
    assert state(db, request, ann, 11) == "22023"
    db.execute("select caliber_config_set('token_claim_seconds', '7')")
    ask(db, ann)
    db.execute(RELEASE, (bob, 2))
    assert scalar(db, lasts) == 7


def test_a_turn_passes_by_the_clock(db: Connection, agents: list[object]) -> None:
    ann, bob, _, _ = agents
    db.execute("select * from caliber_token_request(%s, 'review', 'pr-1', 1)", (ann,))
    assert ask(db, bob) == (False, None, 1)
    db.execute("select pg_sleep(1.01)")
    assert ask(db, bob) == (True, 2, 0)


def test_terminated_agents_hold_nothing_and_do_not_wait(db: Connection, agents: list[object]) -> None:
    ann, bob, cyd, dan = agents
    for agent in (ann, bob, cyd):
        ask(db, agent)
    db.execute("select caliber_agent_terminate(%s)", (bob,))
    assert ask(db, dan) == (False, None, 2)
    assert status(db)["next_agent_id"] == cyd
    db.execute("select caliber_agent_terminate(%s)", (ann,))
    assert status(db)["holder"] is None
    assert ask(db, cyd) == (True, 2, 0)
    assert scalar(db, "select count(*) from caliber_token_waiter") == 1
    for call in (REQUEST, WITHDRAW, "select caliber_token_release_all(%s)"):
        assert state(db, call, bob) == "KA007"
    assert state(db, RELEASE, ann, 1) == "KA007"


def test_withdraw(db: Connection, agents: list[object]) -> None:
    ann, bob, cyd, _ = agents
    assert scalar(db, WITHDRAW, ann) is False
    for agent in (ann, bob, cyd):
        ask(db, agent)
    assert scalar(db, WITHDRAW, ann) is False, "a turn that was claimed is released"
    assert scalar(db, WITHDRAW, bob) is True
    assert scalar(db, WITHDRAW, bob) is False
    assert ask(db, bob) == (False, None, 2)
    db.execute(RELEASE, (ann, 1))
    # Handed over, not claimed: withdrawing passes it on.
    assert scalar(db, WITHDRAW, cyd) is True
    assert ask(db, bob) == (True, 3, 0)


def test_release_all(db: Connection, agents: list[object]) -> None:
    ann, bob, _, _ = agents
    ask(db, ann)
    ask(db, bob)
    db.execute("select caliber_token_request(%s, 'test_run')", (ann,))
    db.execute("select caliber_token_request(%s, 'file_write', 'a')", (bob,))
    db.execute("select caliber_token_request(%s, 'file_write', 'a')", (ann,))
    assert scalar(db, "select caliber_token_release_all(%s)", ann) == 3
    assert scalar(db, "select caliber_token_release_all(%s)", ann) == 0
    assert ask(db, bob) == (True, 2, 0)
    rows = db.execute("select token_type, status from caliber_tokens order by 1").fetchall()
    assert [(r["token_type"], r["status"]) for r in rows] == [
        ("file_write", "held"),
        ("test_run", "available"),
        ("review", "held"),
    ]


def test_sweep_moves_lines_that_nobody_moves(db: Connection, agents: list[object], roles: Roles) -> None:
    ann, bob, _, _ = agents
    ask(db, ann)
    db.execute("select caliber_token_request(%s, 'test_run')", (ann,))
    assert scalar(db, "select caliber_token_sweep()") == 0
    ask(db, bob)
    assert scalar(db, "select caliber_token_sweep()") == 0
    end_hold(db)
    assert scalar(db, "select caliber_token_sweep()") == 1
    assert status(db)["holder"] == "bob"
    for limit in (0, -1, None, 10_001):
        assert state(db, "select caliber_token_sweep(%s::int)", limit) == "22023"


def test_the_guard_holds_the_turn_to_the_end_of_the_transaction(
    db: Connection, connect: Connect, agents: list[object]
) -> None:
    ann, bob, _, _ = agents
    ask(db, ann)
    ask(db, bob)
    writer = connect(autocommit=False)
    assert scalar(writer, GUARD, ann, 1) is not None
    end = connect(autocommit=False)
    end.execute("set lock_timeout = '50 ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        end.execute(RELEASE, (ann, 1))
    end.rollback()
    writer.commit()
    end_hold(db)
    error = refused(db, GUARD, ann, 1)
    assert error.sqlstate == "KA001"
    assert ask(db, bob) == (True, 2, 0)
    assert state(db, GUARD, ann, 1) == "KA001"
    assert state(db, GUARD, ann, 2) == "KA001"
    assert state(db, GUARD, bob, 1) == "KA001"
    assert scalar(db, GUARD, bob, 2) is not None


def test_tokens_are_apart_by_type_scope_and_team(db: Connection, agents: list[object]) -> None:
    ann, bob, _, _ = agents
    db.execute("select caliber_team_create('blue')")
    eve = scalar(db, "select caliber_agent_register('critic', name => 'eve', team => 'blue')")
    ask(db, ann)
    assert ask(db, eve) == (True, 1, 0)
    for token in ("'review'", "'review', 'pr-2'", "'review', 'ü🙂'", "'producer_critic', 'pr-1'"):
        row = db.execute(f"select granted from caliber_token_request(%s, {token})", (bob,)).fetchone()
        assert row == {"granted": True}
    # Null is the empty scope.
    assert scalar(db, "select caliber_token_release(%s, 'review', null, 1)", bob) is True


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("request(%s, null)", "22023"),
        ("request(%s, 'no_such_type')", "22P02"),
        ("request(%s, 'review', repeat('x', 501))", "22023"),
        ("release(%s, 'review', 'pr-1', null)", "22023"),
        ("release(%s, null, 'pr-1', 1)", "22023"),
        ("guard(%s, 'review', 'pr-1', null)", "22023"),
        ("withdraw(%s, null)", "22023"),
    ],
)
def test_bad_input(db: Connection, agents: list[object], call: str, error: str) -> None:
    assert state(db, f"select caliber_token_{call}", agents[0]) == error
    assert scalar(db, "select count(*) from caliber_token") == 0


def test_releasing_what_was_never_asked_for(db: Connection, agents: list[object]) -> None:
    assert scalar(db, RELEASE, agents[0], 1) is False
    assert scalar(db, RELEASE, agents[0], -1) is False
    assert state(db, GUARD, agents[0], 1) == "KA001"
    for unknown, error in ((uuid.uuid4(), "P0002"), (None, "22023")):
        assert state(db, REQUEST, unknown) == error
        assert state(db, RELEASE, unknown, 1) == error


def test_who_may_ask_and_see(db: Connection, connect: Connect, roles: Roles, agents: list[object]) -> None:
    ann, bob, _, _ = agents
    db.execute("select caliber_team_create('blue')")
    eve = scalar(db, "select caliber_agent_register('critic', name => 'eve', team => 'blue')")
    sessions = []
    for agent in (ann, eve):
        login = roles("caliber_agent")
        db.execute("update caliber_agent set login_role = %s where agent_id = %s", (login, agent))
        sessions.append(connect(login))
    mine, other = sessions
    assert ask(mine, ann) == (True, 1, 0)
    for call in (REQUEST, WITHDRAW, "select caliber_token_release_all(%s)"):
        assert state(mine, call, bob) == "42501"
    assert state(mine, RELEASE, bob, 1) == "42501"
    assert state(mine, GUARD, bob, 1) == "42501"
    assert state(mine, "select caliber_token_sweep()") == "42501"
    ask(db, bob)
    assert scalar(mine, "select count(*) from caliber_token_queue") == 1
    assert scalar(other, "select count(*) from caliber_token_queue") == 0
    assert scalar(other, "select count(*) from caliber_tokens") == 0
    observer = connect(roles("caliber_observer"))
    assert scalar(observer, "select waiting from caliber_tokens") == 1
    assert state(observer, REQUEST, ann) == "42501"


def test_an_old_incarnation_is_refused(db: Connection, agents: list[object]) -> None:
    ann = agents[0]
    request = "select * from caliber_token_request(%s, 'review', 'pr-1', incarnation => %s)"
    db.execute(request, (ann, 1))
    db.execute("select caliber_agent_resume(%s)", (ann,))
    assert state(db, request, ann, 1) == "KA001"
    release = "select caliber_token_release(%s, 'review', 'pr-1', 1, %s)"
    assert state(db, release, ann, 1) == "KA001"
    assert scalar(db, release, ann, 2) is True


def test_the_next_holder_is_notified_and_nobody_else(
    connect: Connect, db: Connection, agents: list[object]
) -> None:
    ann, bob, _, _ = agents
    ears = connect()
    ears.execute("listen caliber_token")
    ask(db, ann)
    ask(db, bob)
    db.execute(RELEASE, (ann, 1))
    ask(db, bob)
    db.execute(RELEASE, (bob, 2))
    db.execute("notify caliber_token, 'end'")
    heard = [n.payload for n in ears.notifies(timeout=10, stop_after=2)]
    # The scope is a name that somebody chose, and anybody can listen.
    assert json.loads(heard[0]) == {
        "agent_id": str(bob),
        "token_type": "review",
        "token_id": str(scalar(db, "select token_id from caliber_tokens")),
        "turn": 2,
    }
    assert heard[1:] == ["end"]


def test_a_repeatable_read_request_is_told_to_retry(
    connect: Connect, db: Connection, agents: list[object]
) -> None:
    ann, bob, _, _ = agents
    session = connect(autocommit=False)
    for _ in ("made meanwhile", "changed meanwhile"):
        session.execute("set transaction isolation level repeatable read")
        session.execute("select 1")
        _, turn, _ = ask(db, ann)
        assert state(session, REQUEST, bob) == "40001"
        session.rollback()
        assert scalar(db, RELEASE, ann, turn) is True


class Player(threading.Thread):
    """Takes its turns, and notes of each its number and the ticket it was drawn with."""

    def __init__(self, session: Connection, agent: object) -> None:
        super().__init__()
        self.session, self.agent = session, agent
        self.turns: list[tuple[int, int]] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.session.execute("listen caliber_token")
            for _ in range(TURNS):
                self.play()
        except BaseException as error:
            self.error = error

    def play(self) -> None:
        while True:
            row = self.session.execute(REQUEST, (self.agent,)).fetchone()
            assert row is not None
            if row["granted"]:
                break
            # Until a token is handed to this agent; a lost notification costs a second.
            for heard in self.session.notifies(timeout=1):
                if str(self.agent) in heard.payload:
                    break
        turn = int(str(row["turn"]))
        # Not atomic on purpose: two that play at once would lose an update.
        played = int(str(scalar(self.session, "select played from board")))
        self.session.execute("update board set played = %s", (played + 1,))
        self.turns.append((turn, int(str(row["ticket"]))))
        assert scalar(self.session, RELEASE, self.agent, turn) is True


def test_sixteen_players_take_turns_in_the_order_of_asking(connect: Connect, db: Connection) -> None:
    db.execute("create table board as select 0 as played")
    players = [
        Player(connect(), scalar(db, "select caliber_agent_register('critic')")) for _ in range(WAITERS)
    ]
    for player in players:
        player.start()
    for player in players:
        player.join()
    assert [player.error for player in players if player.error] == []
    total = WAITERS * TURNS
    assert scalar(db, "select played from board") == total
    taken = sorted(turn for player in players for turn in player.turns)
    assert [turn for turn, _ in taken] == list(range(1, total + 1))
    # Tickets are drawn under the token's lock: their order is the order of asking.
    assert all(before < after for (_, before), (_, after) in pairwise(taken))
    now = status(db)
    assert (now["status"], now["turn"]) == ("available", total)
