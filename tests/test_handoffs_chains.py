"""Handoffs of several teams: in which order audit chains are locked, and who waits while it holds one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from conftest import Connect, Connection, scalar
from handoffs_cast import Cast

ACCEPT = "select status from caliber_accept_handoff(%s, %s)"
HEAD = """
    select from caliber_audit_head
    where team_id = (select team_id from caliber_agent where agent_id = %s)
"""
SILENT = "update caliber_agent_beat set beat_at = beat_at - interval '1 hour' where agent_id = any (%s)"


class Teams(Cast):
    """Cyd and dan are of another team, whose chain comes after that of the others."""

    def __init__(self, db: Connection) -> None:
        super().__init__(db)
        db.execute("select caliber_team_create('other')")
        self.cyd, self.dan = (self.agent("coder", name, team="other") for name in ("cyd", "dan"))
        self.theirs = str(scalar(db, "select caliber_trajectory_start('theirs', %s)", self.cyd))


@pytest.fixture
def cast(db: Connection) -> Teams:
    return Teams(db)


@contextmanager
def waits_for_the_first_chain(
    connect: Connect, cast: Teams, query: str, *arguments: object
) -> Iterator[list[object]]:
    """The call runs until it waits for the chain of the first team, and ends after the block."""
    busy, hand = connect(), connect()
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(scalar(hand, query, *arguments)))
    with busy.transaction():
        busy.execute(HEAD + " for update", (cast.worker,))
        thread.start()
        waiting = "select count(*) from pg_locks where pid = %s and not granted"
        while scalar(cast.db, waiting, hand.info.backend_pid) == 0:
            assert thread.is_alive()
        yield answers
    thread.join()


def free(cast: Teams, agent: str) -> bool:
    """Whether nobody has the chain of this agent's team."""
    return cast.db.execute(HEAD + " for update skip locked", (agent,)).rowcount == 1


def test_who_gives_back_a_whole_with_parts_of_another_team_locks_in_order(
    db: Connection, connect: Connect, cast: Teams
) -> None:
    cast.accept(cast.delegate())
    cast.accept(cast.initiate(to_agent_id=cast.cyd), cast.cyd)
    cast.initiate(cast.cyd, trajectory_id=cast.theirs, to_agent_id=cast.dan)
    call = "select status from caliber_handoff_return_to_previous(%s, %s)"
    with waits_for_the_first_chain(connect, cast, call, cast.work, cast.cyd) as answers:
        assert free(cast, cast.cyd)
    assert answers == ["accepted"]


@pytest.mark.parametrize("verb", ["caliber_tick", "caliber_agent_reap"])
def test_who_tidies_up_locks_in_order(db: Connection, connect: Connect, cast: Teams, verb: str) -> None:
    dead = [cast.agent("helper", name) for name in ("dee", "dot")]
    first = cast.delegate(sender=cast.cyd, trajectory_id=cast.theirs, to_agent_id=dead[0])
    second = cast.delegate(to_agent_id=dead[1])
    if verb == "caliber_tick":
        due = "update caliber_handoff set ack_by = now(), due_at = now() where handoff_id = %s"
        db.execute(due, (first,))
        del dead[0]
    db.execute(SILENT, (dead,))
    with waits_for_the_first_chain(connect, cast, f"select count(*) from {verb}()"):
        assert free(cast, cast.cyd)
    assert (cast.status(first), cast.status(second)) == ("timed_out", "timed_out")


def test_the_tick_does_not_wait_for_a_trajectory(db: Connection, connect: Connect, cast: Teams) -> None:
    """Who has it may wait for the chain that the tick has."""
    part = cast.delegate()
    db.execute("update caliber_handoff set ack_by = now(), due_at = now()")
    busy, tick = connect(), connect()
    tick.execute("set statement_timeout = '2s'")
    with busy.transaction():
        query = "select from caliber_trajectory where trajectory_id = %s for no key update"
        busy.execute(query, (cast.work,))
        assert scalar(tick, "select _caliber_handoffs_expire()") == 0
    assert scalar(tick, "select _caliber_handoffs_expire()") == 1
    assert cast.status(part) == "timed_out"


def test_a_part_that_goes_on_while_the_whole_changes_hands(
    db: Connection, connect: Connect, cast: Teams
) -> None:
    """The one has the chain of one team, the other that of another, so they meet at the part."""
    part = cast.delegate(to_agent_id=cast.cyd)
    child = cast.accept(part, cast.cyd)["trajectory_id"]
    whole = cast.initiate(to_agent_id=cast.architect)
    further = cast.initiate(cast.cyd, trajectory_id=child, to_agent_id=cast.dan)
    taker, hand = connect(), connect()
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(scalar(hand, ACCEPT, further, cast.dan)))
    with taker.transaction():
        taker.execute(ACCEPT, (whole, cast.architect))
        thread.start()
        waiting = "select count(*) from pg_locks where pid = %s and not granted"
        while scalar(db, waiting, hand.info.backend_pid) == 0:
            assert thread.is_alive()
    thread.join()
    row = cast.handoff(part)
    assert answers == ["accepted"]
    assert (str(row["from_agent_id"]), str(row["to_agent_id"])) == (cast.architect, cast.dan)
