"""Handoffs: parts of a work that are out while the whole changes hands. What comes of them reaches who
has the whole."""

from __future__ import annotations

import threading

import pytest
from conftest import Connect, Connection, scalar, state
from handoffs_cast import Cast

ACCEPT = "select status from caliber_accept_handoff(%s, %s)"
RETURN = "select caliber_return_handoff(%s, %s, 'success')"
COMPLETE = "select caliber_complete_handoff(%s, %s)"
BROADCAST = (
    "select handoff_id::text, broadcast_group_id from caliber_broadcast_handoff("
    "%s, %s::uuid[], %s, 'specialization', 'look', aggregation => 'any')"
)
CLOSE = "select caliber_close_broadcast(%s, %s)"
TOLD = (
    "select array_agg(message_type order by message_id) from caliber_message_inbox(%s, false)"
    " where payload ->> 'handoff_id' = %s"
)


@pytest.fixture
def cast(db: Connection) -> Cast:
    return Cast(db)


def returns(cast: Cast, handoff: str, agent: str) -> None:
    """With a variable and an artifact."""
    query = "select received_trajectory_id from caliber_handoff where handoff_id = %s"
    child = scalar(cast.db, query, handoff)
    scope = scalar(cast.db, "select scope_id from caliber_scope_current(%s)", child)
    make = "select caliber_artifact_create(%s, null, 'fact', 'x is 1')"
    artifact = scalar(cast.db, make, scope)
    call = (
        "select caliber_return_handoff(%s, %s, result => '7', variables_changed => '{\"found\": 3}',"
        " artifacts_produced => array[%s]::uuid[])"
    )
    assert scalar(cast.db, call, handoff, agent, artifact) == "success"


def reached(cast: Cast) -> tuple[object, object]:
    """The variable and the number of artifacts that came to the whole."""
    value = scalar(
        cast.db, "select value from caliber_variable where trajectory_id = %s and name = 'found'", cast.work
    )
    count = (
        "select count(*) from caliber_artifact where trajectory_id = %s and metadata ->> 'copied_from' > ''"
    )
    return value, scalar(cast.db, count, cast.work)


def pass_on(cast: Cast, giver: str, taker: str) -> None:
    assert cast.accept(cast.initiate(giver, to_agent_id=taker), taker)["status"] == "accepted"
    assert cast.owner() == taker


def test_a_result_reaches_who_has_the_whole_by_then(db: Connection, cast: Cast) -> None:
    part = cast.delegate()
    cast.accept(part)
    pass_on(cast, cast.worker, cast.architect)
    assert str(cast.handoff(part)["from_agent_id"]) == cast.architect
    returns(cast, part, cast.helper)
    assert state(db, COMPLETE, part, cast.worker) == "P0002"
    assert scalar(db, COMPLETE, part, cast.architect) == "completed"
    assert reached(cast) == (3, 1)
    assert cast.trail(part) == ["initiated", "accepted", "inherited", "returned", "completed"]
    assert "task_result" in str(scalar(db, TOLD, cast.architect, part))
    assert scalar(db, "select count(*) from caliber_audit_verify()") == 0


@pytest.mark.parametrize("kind", ["delegation", "escalation"])
def test_a_result_that_was_returned_already_goes_along(db: Connection, cast: Cast, kind: str) -> None:
    if kind == "delegation":
        part, who = cast.delegate(), cast.helper
    else:
        part, who = cast.escalate(), cast.reviewer
    cast.accept(part, who)
    call = "select caliber_return_handoff(%s, %s, variables_changed => '{\"found\": 3}')"
    db.execute(call, (part, who))
    pass_on(cast, cast.worker, cast.architect)
    assert "task_result" in str(scalar(db, TOLD, cast.architect, part))
    assert scalar(db, COMPLETE, part, cast.architect) == "completed"
    assert reached(cast)[0] == 3


def test_a_result_goes_up_with_an_escalation_and_comes_back_with_it(db: Connection, cast: Cast) -> None:
    part = cast.delegate()
    cast.accept(part)
    up = cast.escalate()
    cast.accept(up, cast.reviewer)
    assert str(cast.handoff(part)["from_agent_id"]) == cast.reviewer
    db.execute(RETURN, (up, cast.reviewer))
    assert str(cast.handoff(part)["from_agent_id"]) == cast.worker
    returns(cast, part, cast.helper)
    assert scalar(db, COMPLETE, part, cast.worker) == "completed"
    assert reached(cast) == (3, 1)


def test_a_lease_that_was_lent_goes_back_to_who_has_the_whole(db: Connection, cast: Cast) -> None:
    lock = scalar(db, "select caliber_lock_acquire(%s, 'file', 'a.py', 'exclusive', 600000)", cast.worker)
    part = cast.delegate(lock_ids=[lock])
    cast.accept(part)
    pass_on(cast, cast.worker, cast.architect)
    db.execute(RETURN, (part, cast.helper))
    assert str(scalar(db, "select holder_agent_id from caliber_lock")) == cast.architect


def test_who_does_a_part_may_get_the_whole(db: Connection, cast: Cast) -> None:
    """Nobody hands to itself: the part stays its sender's on paper, and its receiver ends it."""
    part = cast.delegate()
    cast.accept(part)
    pass_on(cast, cast.worker, cast.helper)
    returns(cast, part, cast.helper)
    assert scalar(db, COMPLETE, part, cast.helper) == "completed"
    assert reached(cast) == (3, 1)


@pytest.mark.parametrize("end", ["return", "lapse"])
@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_leases_of_a_part_stay_with_who_has_the_whole_too(
    db: Connection, cast: Cast, mode: str, end: str
) -> None:
    lock = scalar(db, "select caliber_lock_acquire(%s, 'file', 'a.py', %s, 600000)", cast.worker, mode)
    part = cast.delegate(lock_ids=[lock])
    cast.accept(part)
    pass_on(cast, cast.worker, cast.helper)
    if end == "return":
        db.execute(RETURN, (part, cast.helper))
    else:
        cast.lapse(part, times=2)
    assert str(scalar(db, "select holder_agent_id from caliber_lock")) == cast.helper


def test_a_part_that_its_sender_ends_is_the_wholes_all_the_same(db: Connection, cast: Cast) -> None:
    part = cast.delegate()
    cast.accept(part)
    pass_on(cast, cast.worker, cast.helper)
    returns(cast, part, cast.helper)
    assert scalar(db, COMPLETE, part, cast.worker) == "completed"
    assert reached(cast) == (3, 1)
    assert state(db, COMPLETE, part, cast.helper) == "KA007"


def test_an_offer_of_a_part_is_the_new_owners(db: Connection, cast: Cast) -> None:
    part, own = cast.delegate(), cast.delegate(to_agent_id=cast.architect)
    pass_on(cast, cast.worker, cast.architect)
    # What it was asked itself is over: it has the whole.
    assert (cast.status(own), cast.trail(own)[-1]) == ("failed", "failed")
    assert state(db, "select caliber_withdraw_handoff(%s, %s)", part, cast.worker) == "P0002"
    assert cast.accept(part)["status"] == "accepted"
    returns(cast, part, cast.helper)
    assert scalar(db, COMPLETE, part, cast.architect) == "completed"
    assert reached(cast) == (3, 1)


def test_a_broadcast_is_closed_by_who_has_the_whole(db: Connection, cast: Cast) -> None:
    rows = db.execute(BROADCAST, (cast.worker, [cast.helper, cast.reviewer], cast.work)).fetchall()
    first, group = str(rows[0]["handoff_id"]), rows[0]["broadcast_group_id"]
    cast.accept(first)
    pass_on(cast, cast.worker, cast.architect)
    returns(cast, first, cast.helper)
    assert state(db, CLOSE, group, cast.worker) == "P0002"
    assert scalar(db, CLOSE, group, cast.architect) == "success"
    assert scalar(db, COMPLETE, first, cast.architect) == "completed"
    assert reached(cast) == (3, 1)


def test_who_waited_for_a_part_waits_no_more(db: Connection, cast: Cast) -> None:
    part = cast.delegate(sender_waits=True)
    cast.accept(part)
    other = scalar(db, "select caliber_trajectory_start('other', %s)", cast.worker)
    db.execute(
        "update caliber_agent set current_trajectory_id = %s where agent_id = %s", (other, cast.worker)
    )
    assert cast.on(cast.worker)[0] == "waiting"
    pass_on(cast, cast.worker, cast.architect)
    assert cast.on(cast.worker) == ("active", str(other))


def test_a_part_whose_whole_is_finished_ends_with_its_result_on_record(db: Connection, cast: Cast) -> None:
    part = cast.delegate()
    cast.accept(part)
    db.execute("select caliber_trajectory_finish(%s)", (cast.work,))
    returns(cast, part, cast.helper)
    assert scalar(db, COMPLETE, part, cast.worker) == "completed"
    assert reached(cast) == (None, 0)
    row = cast.handoff(part)
    assert (row["result"], row["variables_changed"], len(row["artifacts_produced"])) == (7, {"found": 3}, 1)


@pytest.mark.parametrize("verb", ["return", "accept"])
def test_a_part_meets_the_whole_changing_hands(
    db: Connection, connect: Connect, cast: Cast, verb: str
) -> None:
    """Who waits for the sender meanwhile goes on with who has taken its place."""
    part = cast.delegate()
    if verb == "return":
        cast.accept(part)
    whole = cast.initiate(to_agent_id=cast.architect)
    taker, hand = connect(), connect()
    answers: list[object] = []
    query = RETURN if verb == "return" else ACCEPT
    thread = threading.Thread(target=lambda: answers.append(scalar(hand, query, part, cast.helper)))
    with taker.transaction():
        taker.execute(ACCEPT, (whole, cast.architect))
        thread.start()
        waiting = "select count(*) from pg_locks where pid = %s and not granted"
        while scalar(db, waiting, hand.info.backend_pid) == 0:
            pass
    thread.join()
    assert answers == ["success" if verb == "return" else "accepted"]
    if verb == "accept":
        db.execute(RETURN, (part, cast.helper))
    assert scalar(db, COMPLETE, part, cast.architect) == "completed"


def test_a_result_for_an_agent_that_has_ended_is_ended_by_a_human(db: Connection, cast: Cast) -> None:
    part = cast.delegate()
    cast.accept(part)
    resolve = "select caliber_handoff_resolve(%s, 'kept the result')"
    db.execute(RETURN, (part, cast.helper))
    assert state(db, resolve, part) == "KA007"
    db.execute("select caliber_agent_terminate(%s)", (cast.worker,))
    assert state(db, COMPLETE, part, cast.worker) == "KA007"
    assert scalar(db, resolve, part) == "completed"
    assert cast.handoff(part)["return_status"] == "success"


def test_a_member_that_returned_counts_once_when_a_human_ends_it(db: Connection, cast: Cast) -> None:
    query = BROADCAST.replace("'any'", "'all'")
    rows = db.execute(query, (cast.worker, [cast.helper, cast.architect], cast.work)).fetchall()
    first = str(rows[0]["handoff_id"])
    cast.accept(first)
    db.execute(RETURN, (first, cast.helper))
    db.execute("select caliber_agent_terminate(%s)", (cast.worker,))
    assert scalar(db, "select caliber_handoff_resolve(%s, 'kept the result')", first) == "completed"
    group = db.execute("select succeeded, failed, outcome from caliber_handoff_group").fetchone()
    assert group == {"succeeded": 1, "failed": 0, "outcome": None}


def test_artifacts_are_not_lost_for_want_of_a_scope(db: Connection, cast: Cast) -> None:
    part = cast.delegate()
    cast.accept(part)
    returns(cast, part, cast.helper)
    db.execute("select caliber_scope_close(%s)", (cast.scope,))
    assert state(db, COMPLETE, part, cast.worker) == "KA007"
    db.execute("select caliber_scope_open(%s)", (cast.work,))
    assert scalar(db, COMPLETE, part, cast.worker) == "completed"
    assert reached(cast) == (3, 1)


def test_a_part_that_goes_on_is_from_who_has_the_whole(db: Connection, cast: Cast) -> None:
    """Its receiver had both, and hands on the part only."""
    part = cast.delegate()
    child = cast.accept(part)["trajectory_id"]
    pass_on(cast, cast.worker, cast.helper)
    assert str(cast.handoff(part)["from_agent_id"]) == cast.worker
    further = cast.initiate(cast.helper, trajectory_id=child, to_agent_id=cast.architect)
    cast.accept(further, cast.architect)
    row = cast.handoff(part)
    assert (str(row["from_agent_id"]), str(row["to_agent_id"])) == (cast.helper, cast.architect)


def test_the_tick_keeps_nothing_of_what_it_passes_over(db: Connection, connect: Connect, cast: Cast) -> None:
    part = cast.delegate()
    cast.accept(part)
    db.execute("update caliber_handoff set due_at = now(), lapses_at = now()")
    busy, tick, third = connect(), connect(), connect()
    third.execute("set lock_timeout = '100ms'")
    with busy.transaction(), tick.transaction():
        busy.execute("select from caliber_agent where agent_id = %s for no key update", (cast.worker,))
        assert scalar(tick, "select _caliber_handoffs_expire()") == 0
        assert third.execute("select from caliber_handoff for update").rowcount == 1
        query = "select from caliber_agent where agent_id = %s for no key update"
        assert third.execute(query, (cast.helper,)).rowcount == 1


def test_a_chain_that_somebody_keeps_holds_up_only_its_own_team(
    db: Connection, connect: Connect, cast: Cast
) -> None:
    db.execute("select caliber_team_create('other')")
    one, two = (cast.agent("coder", name, team="other") for name in ("one", "two"))
    other = scalar(db, "select caliber_trajectory_start('other', %s)", one)
    mine, theirs = cast.delegate(), cast.delegate(sender=one, trajectory_id=other, to_agent_id=two)
    db.execute("update caliber_handoff set due_at = now(), ack_by = now()")
    busy, tick = connect(), connect()
    tick.execute("set lock_timeout = '100ms'")
    with busy.transaction():
        query = "select from caliber_audit_head where team_id = (select team_id from caliber_agent where agent_id = %s) for update"  # noqa: E501
        busy.execute(query, (cast.worker,))
        assert scalar(tick, "select _caliber_handoffs_expire()") == 1
    assert (cast.status(mine), cast.status(theirs)) == ("initiated", "timed_out")
    assert scalar(db, "select _caliber_handoffs_expire()") == 1
