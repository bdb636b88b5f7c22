"""Handoffs: where two of them meet, where a human, a death or the clock comes between, and numbers."""

from __future__ import annotations

import threading

import pytest
from conftest import Connect, Connection, scalar, state
from handoffs_cast import Cast

RETURN = "select caliber_return_handoff(%s, %s, 'success')"
RESOLVE = "select caliber_handoff_resolve(%s, 'do it by hand')"
REROUTE = "select caliber_reroute_handoff(%s, %s, %s)"
VALUE = "select value::text from caliber_variable where trajectory_id = %s and name = %s"
BROADCAST = (
    "select handoff_id::text from caliber_broadcast_handoff("
    "%s, %s::uuid[], %s, 'specialization', 'look', on_timeout => 'escalate')"
)
OUTCOME = "select outcome from caliber_handoff_group"


@pytest.fixture
def cast(db: Connection) -> Cast:
    return Cast(db)


# --- numbers ---


def test_numbers_stay_numbers_in_variables(db: Connection, cast: Cast) -> None:
    handoff = cast.delegate(variables='{"ratio": 0.5, "exact": 12345678901234567890.125, "n": 3}')
    child = cast.accept(handoff)["trajectory_id"]
    found = [scalar(db, VALUE, child, name) for name in ("ratio", "exact", "n")]
    assert found == ["0.5", "12345678901234567890.125", "3"]
    hashes = "select count(distinct variables_sha256) from caliber_audit where handoff_id = %s"
    assert scalar(db, hashes, handoff) == 1


def test_numbers_stay_numbers_in_what_is_returned(db: Connection, cast: Cast) -> None:
    handoff = cast.delegate()
    cast.accept(handoff)
    call = "select caliber_return_handoff(%s, %s, result => %s, variables_changed => %s)"
    result, changed = '{"score": 0.25, "list": [1.50]}', '{"rate": 1e-7, "exact": 0.1234567890123456789}'
    db.execute(call, (handoff, cast.helper, result, changed))
    query = "select result = %s::jsonb and variables_changed = %s::jsonb from caliber_handoff"
    assert scalar(db, query, result, changed) is True
    db.execute("select caliber_complete_handoff(%s, %s)", (handoff, cast.worker))
    assert scalar(db, VALUE, cast.work, "exact") == "0.1234567890123456789"
    assert scalar(db, VALUE, cast.work, "rate") == "0.0000001"


def test_numbers_stay_numbers_in_what_is_escalated(db: Connection, cast: Cast) -> None:
    handoff = cast.delegate(variables='{"ratio": 0.5}', on_timeout="escalate", budget="12345678901.123456789")
    cast.accept(handoff)
    cast.lapse(handoff)
    query = "select variables::text, budget::text from caliber_handoff where parent_handoff_id = %s"
    row = db.execute(query, (handoff,)).fetchone()
    assert row == {"variables": '{"ratio": 0.5}', "budget": "12345678901.123456789"}


def test_the_context_shows_the_variables_that_were_given(db: Connection, cast: Cast) -> None:
    """Before those of the same name above, as the receiver reads them."""
    db.execute("select caliber_variable_set(%s, 'depth', '1', agent_id => %s)", (cast.work, cast.worker))
    handoff = cast.delegate(variables='{"depth": 2.5}')
    cast.accept(handoff)
    assert "depth: 2.5\n" in str(scalar(db, "select caliber_handoff_context(%s)", handoff))


# --- two at once ---


def test_a_second_escalation_of_the_same_work_does_not_keep_a_broadcast_open(
    db: Connection, cast: Cast
) -> None:
    rows = db.execute(BROADCAST, (cast.worker, [cast.helper, cast.architect], cast.work)).fetchall()
    first, second = (str(row["handoff_id"]) for row in rows)
    cast.accept(first)
    cast.accept(second, cast.architect)
    cast.lapse(first)
    cast.lapse(second)
    assert [cast.status(first), cast.status(second)] == ["escalated", "escalated"]
    assert (scalar(db, OUTCOME), cast.owner()) == ("failed", cast.worker)
    offers = "select count(*) from caliber_handoff where handoff_type = 'escalation' and status = 'initiated'"
    assert scalar(db, offers) == 1
    assert scalar(db, "select count(*) from caliber_event where event_type = 'handoff_unsettled'") == 0


def test_an_escalation_beside_an_offer_asks_for_a_human(db: Connection, cast: Cast) -> None:
    handoff = cast.delegate(on_timeout="escalate")
    cast.accept(handoff)
    offer = cast.initiate(to_agent_id=cast.reviewer)
    cast.lapse(handoff)
    row = cast.handoff(handoff)
    assert (row["status"], row["needs_human"]) == ("escalated", True)
    assert cast.accept(offer, cast.reviewer)["status"] == "accepted"


@pytest.mark.parametrize("how", ["returned", "lapsed"])
def test_an_offer_ends_with_what_its_sender_held(db: Connection, cast: Cast, how: str) -> None:
    """Who was lent a trajectory offers it further up, and then it goes back: its owner is not bound."""
    lent = cast.escalate(return_timeout_ms=60000, on_timeout="retry")
    cast.accept(lent, cast.reviewer)
    further = cast.escalate(cast.reviewer, ack_timeout_ms=30 * 86_400_000)
    if how == "returned":
        db.execute(RETURN, (lent, cast.reviewer))
    else:
        cast.lapse(lent)
        assert cast.status(lent) == "initiated"
        db.execute("select caliber_withdraw_handoff(%s, %s)", (lent, cast.worker))
    assert (cast.owner(), cast.status(further)) == (cast.worker, "failed")
    assert cast.accept(cast.initiate())["status"] == "accepted"


def test_a_broadcast_is_closed_while_a_receiver_hands_its_part_on(
    db: Connection, connect: Connect, cast: Cast
) -> None:
    query = BROADCAST.replace("handoff_id::text", "handoff_id::text, broadcast_group_id")
    row = db.execute(query, (cast.worker, [cast.helper], cast.work)).fetchone()
    assert row is not None
    child = cast.accept(str(row["handoff_id"]))["trajectory_id"]
    further = cast.initiate(cast.helper, trajectory_id=child, to_agent_id=cast.architect)
    taker, closer = connect(), connect()
    outcomes: list[object] = []
    close = "select caliber_close_broadcast(%s, %s)"
    thread = threading.Thread(
        target=lambda: outcomes.append(scalar(closer, close, row["broadcast_group_id"], cast.worker))
    )
    with taker.transaction():
        taker.execute("select caliber_accept_handoff(%s, %s)", (further, cast.architect))
        thread.start()
        _waiting(db, closer)
    thread.join()
    assert outcomes == ["failed"]
    assert cast.on(cast.architect) == ("idle", None)
    assert scalar(db, "select status from caliber_trajectory where trajectory_id = %s", child) == "failed"


def _waiting(db: Connection, session: Connection) -> None:
    query = "select count(*) from pg_locks where pid = %s and not granted"
    while scalar(db, query, session.info.backend_pid) == 0:
        pass


def test_who_has_accepted_gets_the_same_answer_again(db: Connection, cast: Cast) -> None:
    """Because the first one may have been lost on the way. Nothing moves twice."""
    handoff = cast.delegate()
    first = cast.accept(handoff)
    assert cast.accept(handoff) == first
    db.execute("select caliber_start_handoff(%s, %s)", (handoff, cast.helper))
    assert cast.accept(handoff) == {**first, "status": "in_progress"}
    assert cast.trail(handoff) == ["initiated", "accepted", "in_progress"]
    db.execute(RETURN, (handoff, cast.helper))
    assert state(db, "select caliber_accept_handoff(%s, %s)", handoff, cast.helper) == "KA007"


# --- leases ---


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_lease_that_was_extended_for_hours_is_not_given_for_hours(
    db: Connection, cast: Cast, mode: str
) -> None:
    take = "select caliber_lock_acquire(%s, 'file', 'a.py', %s::caliber_lock_mode, 30000)"
    lock = scalar(db, take, cast.worker, mode)
    table = "caliber_resource" if mode == "exclusive" else "caliber_lock_shared"
    db.execute(f"update {table} set acquired_at = acquired_at - interval '10 hours'")
    cast.accept(cast.initiate(lock_ids=[lock]))
    query = "select extract(epoch from expires_at - clock_timestamp()) between 50 and 61 from caliber_lock"
    assert scalar(db, query) is True


SHARED = "select caliber_lock_acquire(%s, 'file', 'a.py', 'shared', %s)"
LEASES = (
    "select holder_agent_id::text as holder, lock_id::text as lock, expires_at from caliber_lock"
    " order by acquired_at"
)


def leases(db: Connection) -> dict[object, tuple[object, object]]:
    return {row["holder"]: (row["lock"], row["expires_at"]) for row in db.execute(LEASES)}


@pytest.mark.parametrize("end", ["returned", "lapsed"])
@pytest.mark.parametrize("longer", ["sender", "receiver"])
def test_a_shared_lease_that_met_ones_own_is_parted_again(
    db: Connection, cast: Cast, longer: str, end: str
) -> None:
    """Each has what it had: the receiver its own lease, with its id and its time, the sender its part."""
    sender_ms, receiver_ms = (600_000, 30_000) if longer == "sender" else (30_000, 600_000)
    lock = scalar(db, SHARED, cast.worker, sender_ms)
    scalar(db, SHARED, cast.helper, receiver_ms)
    before = leases(db)
    handoff = cast.delegate(lock_ids=[lock])
    cast.accept(handoff)
    assert list(leases(db)) == [cast.helper]
    if end == "returned":
        db.execute(RETURN, (handoff, cast.helper))
    else:
        cast.lapse(handoff)
    after = leases(db)
    assert set(after) == {cast.worker, cast.helper}
    assert after[cast.helper] == before[cast.helper]
    assert after[cast.worker][0] != lock
    left = "select expires_at - clock_timestamp() > %s * interval '1 ms' from caliber_lock"
    query = left + " where holder_agent_id = %s"
    assert scalar(db, query, sender_ms - 10_000, cast.worker) is True
    assert cast.handoff(handoff)["warnings"] == []


def test_ones_own_shared_lease_outlives_what_was_given_for_good(db: Connection, cast: Cast) -> None:
    lock = scalar(db, SHARED, cast.worker, 600_000)
    own = scalar(db, SHARED, cast.helper, 30_000)
    handoff = cast.initiate(lock_ids=[lock])
    cast.accept(handoff)
    assert [row["lock"] for row in db.execute(LEASES)] == [str(own)]
    db.execute("select caliber_complete_handoff(%s, %s)", (handoff, cast.helper))
    assert [row["lock"] for row in db.execute(LEASES)] == [str(own)]


@pytest.mark.parametrize("since", ["extended", "released"])
def test_what_became_of_ones_own_shared_lease_since_stays_so(db: Connection, cast: Cast, since: str) -> None:
    lock = scalar(db, SHARED, cast.worker, 30_000)
    own = scalar(db, SHARED, cast.helper, 60_000)
    handoff = cast.delegate(lock_ids=[lock])
    cast.accept(handoff)
    if since == "extended":
        db.execute("select caliber_lock_extend(%s, 600000)", (own,))
        longer = leases(db)[cast.helper]
        db.execute(RETURN, (handoff, cast.helper))
        assert leases(db)[cast.helper] == longer
        assert cast.worker in leases(db)
    else:
        db.execute("select caliber_lock_release(%s)", (own,))
        db.execute(RETURN, (handoff, cast.helper))
        assert (leases(db), cast.handoff(handoff)["warnings"]) == ({}, ["lease lost: a.py"])


def test_a_shared_lease_that_ran_out_is_not_revived(db: Connection, cast: Cast) -> None:
    """Who slept past it does not pass the guard because a lease of the same thing came by a handoff."""
    lock = scalar(db, SHARED, cast.worker, 600_000)
    old = scalar(db, SHARED, cast.helper, 30_000)
    query = "update caliber_lock_shared set expires_at = now() where lock_id = %s returning fence"
    fence = scalar(db, query, old)
    handoff = cast.delegate(lock_ids=[lock])
    cast.accept(handoff)
    row = db.execute("select lock_id, fence from caliber_lock_shared").fetchone()
    assert row is not None
    assert row["lock_id"] != old
    assert int(str(row["fence"])) > int(str(fence))
    db.execute(RETURN, (handoff, cast.helper))
    assert list(leases(db)) == [cast.worker]


def test_a_shared_lease_goes_back_to_who_had_the_work_before(db: Connection, cast: Cast) -> None:
    lock = scalar(db, SHARED, cast.worker, 600_000)
    scalar(db, SHARED, cast.helper, 30_000)
    own = leases(db)[cast.helper]
    cast.accept(cast.initiate(lock_ids=[lock]))
    back = "select status from caliber_handoff_return_to_previous(%s, %s)"
    assert scalar(db, back, cast.work, cast.helper) == "accepted"
    assert (set(leases(db)), leases(db)[cast.helper]) == ({cast.worker, cast.helper}, own)


# --- a human ---


def test_what_a_human_decided_is_over(db: Connection, cast: Cast) -> None:
    """Also where an offer was still open: nobody accepts it, and the clock does nothing to it."""
    handoff = cast.initiate()
    for target in (cast.reviewer, cast.architect, cast.helper, cast.reviewer):
        db.execute(REROUTE, (handoff, cast.worker, target))
    assert scalar(db, RESOLVE, handoff) == "completed"
    trail = cast.trail(handoff)
    cast.lapse(handoff)
    assert (cast.trail(handoff), cast.handoff(handoff)["due_at"]) == (trail, None)
    assert state(db, "select caliber_accept_handoff(%s, %s)", handoff, cast.helper) == "KA007"


def test_a_human_does_not_decide_what_an_agent_has_taken(db: Connection, cast: Cast) -> None:
    handoff = cast.escalate()
    for target in (cast.architect, cast.helper, cast.reviewer, cast.architect):
        db.execute(REROUTE, (handoff, cast.worker, target))
    assert cast.handoff(handoff)["needs_human"] is True
    cast.accept(handoff, cast.reviewer)
    assert cast.handoff(handoff)["needs_human"] is False
    assert state(db, RESOLVE, handoff) == "KA007"
    db.execute(RETURN, (handoff, cast.reviewer))
    assert cast.owner() == cast.worker


def test_what_a_human_decided_counts_in_its_broadcast(db: Connection, cast: Cast) -> None:
    row = db.execute(BROADCAST, (cast.worker, [cast.helper], cast.work)).fetchone()
    assert row is not None
    for target in (cast.reviewer, cast.architect, cast.helper, cast.reviewer):
        db.execute(REROUTE, (row["handoff_id"], cast.worker, target))
    assert scalar(db, RESOLVE, row["handoff_id"]) == "completed"
    assert scalar(db, OUTCOME) == "success"


def test_a_circle_of_superiors_who_are_gone_ends_at_a_human(db: Connection, cast: Cast) -> None:
    db.execute(
        "update caliber_agent set reports_to = %s where agent_id = %s", (cast.reviewer, cast.architect)
    )
    gone = "update caliber_agent set status = 'failed' where agent_id in (%s, %s)"
    db.execute(gone, (cast.reviewer, cast.architect))
    db.execute("set statement_timeout = '10s'")
    assert cast.handoff(cast.escalate())["needs_human"] is True


# --- a death ---


def test_reaping_leaves_what_was_withdrawn_meanwhile(db: Connection, connect: Connect, cast: Cast) -> None:
    """The reaper has seen both offers when it waits for the audit chain; then one is taken back."""
    first = cast.delegate(sender=cast.reviewer, trajectory_id=_work(cast, cast.reviewer))
    second = cast.delegate()
    db.execute(
        "update caliber_agent_beat set beat_at = beat_at - interval '1 hour' where agent_id = %s",
        (cast.helper,),
    )
    sender, reaper = connect(), connect()
    reap = threading.Thread(target=lambda: reaper.execute("select * from caliber_agent_reap()"))
    with sender.transaction():
        sender.execute("select caliber_withdraw_handoff(%s, %s)", (second, cast.worker))
        reap.start()
        _waiting(db, reaper)
    reap.join()
    assert (cast.status(first), cast.trail(second)) == ("timed_out", ["initiated", "failed"])
    assert cast.handoff(second)["status_reason"] == "withdrawn"


def _work(cast: Cast, agent: str) -> object:
    return scalar(cast.db, "select caliber_trajectory_start('review', %s)", agent)


# --- the clock ---


def test_what_is_over_is_not_overdue(db: Connection, cast: Cast) -> None:
    handoff = cast.initiate(deadline="2099-01-01")
    cast.accept(handoff)
    db.execute("update caliber_handoff set return_by = now() - interval '1 s'")
    assert scalar(db, "select overdue from caliber_handoffs") is True
    db.execute("select caliber_complete_handoff(%s, %s)", (handoff, cast.helper))
    assert scalar(db, "select overdue from caliber_handoffs") is False


def test_an_inbox_is_found_among_many_that_are_over(db: Connection, cast: Cast) -> None:
    over = cast.initiate()
    db.execute("select caliber_reject_handoff(%s, %s, 'no')", (over, cast.helper))
    db.execute(
        "insert into caliber_handoff select r.* from caliber_handoff as h, generate_series(1, 5000) as n,"
        " jsonb_populate_record(h, jsonb_build_object('handoff_id', md5(n::text)::uuid)) as r"
    )
    cast.initiate()
    db.execute("analyze caliber_handoff")
    explain = "explain (analyze, format json) select * from caliber_handoff_inbox(%s)"
    assert "Seq Scan on caliber_handoff" not in _plan(scalar(db, explain, cast.helper))


def _plan(explained: object) -> str:
    assert isinstance(explained, list)
    lines, nodes = [], [explained[0]["Plan"]]
    while nodes:
        node = nodes.pop()
        lines.append(f"{node['Node Type']} on {node.get('Relation Name')}")
        nodes += node.get("Plans", [])
    return "\n".join(lines)


# --- variables ---


def test_a_full_workflow_still_changes_the_variables_it_has(db: Connection, cast: Cast) -> None:
    write = "select caliber_variable_set(%s, %s, '1', agent_id => %s)"
    for number in range(200):
        db.execute(write, (cast.work, f"v{number}", cast.worker))
    assert scalar(db, write, cast.work, "v7", cast.worker) == 2
    assert state(db, write, cast.work, "one_more", cast.worker) == "54000"
