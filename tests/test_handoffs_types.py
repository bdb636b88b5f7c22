"""Handoffs: what triggers them (section 1 of the protocol) and their four types (section 2)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Connect, Connection, scalar, state
from handoffs_cast import Cast

RETURN = "select caliber_return_handoff(%s, %s, %s)"
COMPLETE = "select caliber_complete_handoff(%s, %s)"
BROADCAST = (
    "select handoff_id::text, broadcast_group_id::text from caliber_broadcast_handoff("
    "%s, %s::uuid[], %s, 'specialization', 'look at it', aggregation => %s)"
)


@pytest.fixture
def cast(db: Connection) -> Cast:
    return Cast(db)


def broadcast(cast: Cast, aggregation: str = "all") -> list[str]:
    targets = [cast.helper, cast.reviewer]
    rows = cast.db.execute(BROADCAST, (cast.worker, targets, cast.work, aggregation))
    return [str(row["handoff_id"]) for row in rows]


def trigger(cast: Cast, handoff: str) -> object:
    query = "select details ->> 'triggered_by' from caliber_audit where handoff_id = %s order by audit_no"
    return scalar(cast.db, query, handoff)


def test_1_1_task_completion_goes_to_the_next_agent(db: Connection, cast: Cast) -> None:
    handoff = cast.initiate(to_agent_type="reviewer", triggered_by="task_completion", reason="scheduled")
    assert cast.accept(handoff, cast.reviewer)["status"] == "accepted"
    assert (cast.owner(), trigger(cast, handoff)) == (cast.reviewer, "task_completion")


def test_1_2_capability_mismatch_goes_to_who_has_the_capability(db: Connection, cast: Cast) -> None:
    guard = cast.agent("guard", "gus", capabilities=["security"])
    handoff = cast.initiate(
        to_agent_id=None,
        triggered_by="capability_mismatch",
        reason="capability_mismatch",
        required_capabilities=["security"],
    )
    assert str(cast.handoff(handoff)["to_agent_id"]) == guard
    assert trigger(cast, handoff) == "capability_mismatch"


def test_1_2_capability_mismatch_needs_a_capability_that_lacks(db: Connection, cast: Cast) -> None:
    db.execute("update caliber_agent set capabilities = '{security}' where agent_id = %s", (cast.worker,))
    with pytest.raises(Exception, match="a capability the sender lacks"):
        cast.initiate(triggered_by="capability_mismatch", required_capabilities=["security"])


def test_1_3_escalation_goes_to_the_supervisor_or_to_a_human(db: Connection, cast: Cast) -> None:
    handoff = cast.escalate(triggered_by="escalation")
    assert str(cast.handoff(handoff)["to_agent_id"]) == cast.reviewer
    assert trigger(cast, handoff) == "escalation"
    db.execute("select caliber_withdraw_handoff(%s, %s)", (handoff, cast.worker))
    db.execute("update caliber_agent set reports_to = null where agent_id = %s", (cast.worker,))
    row = cast.handoff(cast.escalate(triggered_by="escalation"))
    assert (row["status"], row["needs_human"], row["to_agent_id"]) == ("escalated", True, None)
    assert cast.owner() == cast.worker


def test_1_4_timeout_goes_up_marked_with_it(db: Connection, cast: Cast) -> None:
    handoff = cast.delegate(on_timeout="escalate")
    cast.accept(handoff)
    cast.lapse(handoff)
    query = "select * from caliber_handoff where parent_handoff_id = %s"
    row = db.execute(query, (handoff,)).fetchone()
    assert row is not None
    assert (row["triggered_by"], row["reason"]) == ("timeout", "timeout")
    assert str(row["handoff_notes"]).startswith("[timeout: nothing was returned in time]")


def test_1_5_explicit_request_goes_to_the_agent_that_was_named(db: Connection, cast: Cast) -> None:
    handoff = cast.delegate(to_agent_id=cast.architect)
    assert trigger(cast, handoff) == "explicit_request"
    assert state(db, "select caliber_accept_handoff(%s, %s)", handoff, cast.helper) == "P0002"
    assert cast.accept(handoff, cast.architect)["status"] == "accepted"


# --- 2.1 sequential ---


def test_2_1_sequential_ends_the_senders_segment_before_the_receivers_begins(
    db: Connection, cast: Cast
) -> None:
    cast.accept(cast.initiate())
    rows = db.execute(
        "select agent_id::text, closed_at is null as open, summary from caliber_scope"
        " where trajectory_id = %s order by scope_no",
        (cast.work,),
    ).fetchall()
    assert [(row["agent_id"], row["open"]) for row in rows] == [(cast.worker, False), (cast.helper, True)]
    assert rows[0]["summary"] == "the lexer is done"


def test_2_1_sequential_gives_the_whole_context_and_the_receiver_goes_on_alone(
    db: Connection, cast: Cast
) -> None:
    db.execute("select caliber_variable_set(%s, 'grammar', '\"LL(1)\"')", (cast.work,))
    handoff = cast.initiate()
    row = cast.accept(handoff)
    assert 'grammar: "LL(1)"' in str(scalar(db, "select caliber_handoff_context(%s)", handoff))
    turn = "select caliber_turn_add(%s, 'assistant', 'on it', agent_id => %s)"
    db.execute(turn, (row["scope_id"], cast.helper))
    assert state(db, turn, cast.scope, cast.worker) == "42501"
    assert state(db, RETURN, handoff, cast.helper, "success") == "KA007"
    assert scalar(db, COMPLETE, handoff, cast.helper) == "completed"


def test_2_1_sequential_frees_the_sender_for_new_work(db: Connection, cast: Cast) -> None:
    cast.accept(cast.initiate())
    assert cast.on(cast.worker) == ("idle", None)
    new = scalar(db, "select caliber_trajectory_start('next', %s)", cast.worker)
    db.execute("select caliber_agent_assign_trajectory(%s, %s)", (cast.worker, new))
    assert cast.on(cast.worker)[0] == "active"


# --- 2.2 delegation ---


def test_2_2_delegation_names_the_subtask(db: Connection, cast: Cast) -> None:
    handoff = cast.delegate(task_id="parse-3")
    child = cast.accept(handoff)["trajectory_id"]
    query = (
        "select name, parent_trajectory_id::text as parent, agent_id::text as agent from caliber_trajectory"
    )
    row = db.execute(query + " where trajectory_id = %s", (child,)).fetchone()
    assert row == {"name": "parse-3", "parent": cast.work, "agent": cast.helper}
    assert "task_id: parse-3" in str(scalar(db, "select caliber_handoff_context(%s)", handoff))


def test_2_2_delegation_needs_a_timeout(db: Connection, cast: Cast) -> None:
    with pytest.raises(Exception, match="return_timeout_ms"):
        cast.delegate(return_timeout_ms=None)


def test_2_2_delegation_is_returned_within_its_timeout(db: Connection, cast: Cast) -> None:
    handoff = cast.delegate(return_timeout_ms=60000)
    cast.accept(handoff)
    row = cast.handoff(handoff)
    assert 59 < (row["return_by"] - row["accepted_at"]).total_seconds() < 61
    db.execute("update caliber_handoff set lapses_at = now() - interval '1 s'")
    # Whether or not anybody has looked since.
    assert state(db, RETURN, handoff, cast.helper, "success") == "KA007"
    assert scalar(db, "select status from caliber_handoffs") == "timed_out"


@pytest.mark.parametrize(("on_timeout", "status"), [("retry", "initiated"), ("fail", "failed")])
def test_2_2_delegation_does_what_was_said_on_timeout(
    db: Connection, cast: Cast, on_timeout: str, status: str
) -> None:
    handoff = cast.delegate(on_timeout=on_timeout)
    cast.accept(handoff)
    cast.lapse(handoff)
    assert (cast.status(handoff), cast.owner()) == (status, cast.worker)


@pytest.mark.parametrize(("waits", "status"), [(True, "waiting"), (False, "active")])
def test_2_2_delegation_blocks_the_sender_or_does_not(
    db: Connection, cast: Cast, waits: bool, status: str
) -> None:
    cast.accept(cast.delegate(sender_waits=waits))
    assert cast.on(cast.worker) == (status, cast.work)


# --- 2.3 broadcast ---


def test_2_3_broadcast_looks_up_what_all_get_once(db: Connection, connect: Connect, cast: Cast) -> None:
    make = "select caliber_artifact_create(%s, null, 'fact', 'x is 1')"
    artifact = scalar(db, make, cast.scope)
    call = (
        "select count(*) from caliber_broadcast_handoff(%s, %s::uuid[], %s, 'specialization', 'look',"
        " artifact_ids => array[%s]::uuid[])"
    )
    looks = "select seq_scan + idx_scan from pg_stat_xact_user_tables where relname = 'caliber_artifact'"
    made = []
    for receivers in ([cast.helper], [cast.helper, cast.reviewer, cast.architect]):
        session = connect()
        with session.transaction():
            assert scalar(session, call, cast.worker, receivers, cast.work, artifact) == len(receivers)
            made.append(scalar(session, looks))
    assert made[0] == made[1]
    given = "select count(*) from caliber_handoff where artifact_ids = array[%s]::uuid[] and scope_id = %s"
    assert scalar(db, given, artifact, cast.scope) == 4


def test_2_3_broadcast_gives_each_an_independent_copy(db: Connection, cast: Cast) -> None:
    db.execute("select caliber_variable_set(%s, 'grammar', '1')", (cast.work,))
    first, second = broadcast(cast)
    one = cast.accept(first)
    db.execute("select caliber_variable_set(%s, 'grammar', '2')", (cast.work,))
    two = cast.accept(second, cast.reviewer)
    assert len({str(one["trajectory_id"]), str(two["trajectory_id"]), cast.work}) == 3
    query = "select caliber_handoff_context(%s)"
    assert scalar(db, query, first) == scalar(db, query, second)
    write = "select caliber_variable_set(%s, 'mine', '2', agent_id => %s)"
    db.execute(write, (one["trajectory_id"], cast.helper))
    assert state(db, write, two["trajectory_id"], cast.helper) == "42501"


def test_2_3_broadcast_receivers_do_not_know_of_each_other(
    db: Connection, connect: Connect, roles: Callable[[str | None], str], cast: Cast
) -> None:
    login = roles("caliber_agent")
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (login, cast.helper))
    first, second = broadcast(cast)
    session = connect(login)
    assert scalar(session, "select array_agg(handoff_id::text) from caliber_handoffs") == [first]
    assert scalar(session, "select count(*) from caliber_handoff_group") == 0
    assert state(session, "select caliber_accept_handoff(%s, %s)", second, cast.helper) == "P0002"


def test_2_3_broadcast_is_the_senders_until_it_is_aggregated(db: Connection, cast: Cast) -> None:
    for handoff, target in zip(broadcast(cast), (cast.helper, cast.reviewer), strict=True):
        cast.accept(handoff, target)
        assert (cast.owner(), cast.on(cast.worker)) == (cast.worker, ("active", cast.work))
        assert scalar(db, "select outcome from caliber_handoff_group") is None
        db.execute(RETURN, (handoff, target, "success"))
    assert scalar(db, "select outcome from caliber_handoff_group") == "success"


def test_2_3_broadcast_tolerates_failures_as_its_mode_has_it(db: Connection, cast: Cast) -> None:
    first, second = broadcast(cast, "any")
    db.execute("select caliber_reject_handoff(%s, %s, 'no')", (first, cast.helper))
    assert scalar(db, "select outcome from caliber_handoff_group") is None
    cast.accept(second, cast.reviewer)
    db.execute(RETURN, (second, cast.reviewer, "partial"))
    assert scalar(db, "select outcome from caliber_handoff_group") == "partial"


def test_2_3_broadcast_returns_are_wished_for_each(db: Connection, cast: Cast) -> None:
    call = BROADCAST.replace("%s)", "%s, return_expected => '{true,false}')")
    targets = [cast.helper, cast.reviewer]
    rows = db.execute(call, (cast.worker, targets, cast.work, "all")).fetchall()
    first, second = (str(row["handoff_id"]) for row in rows)
    cast.accept(first)
    cast.accept(second, cast.reviewer)
    assert state(db, RETURN, second, cast.reviewer, "success") == "KA007"
    db.execute(RETURN, (first, cast.helper, "success"))
    assert scalar(db, "select outcome from caliber_handoff_group") == "success"


# --- 2.4 escalation ---


def test_2_4_escalation_says_why(db: Connection, cast: Cast) -> None:
    with pytest.raises(Exception, match="decision_rationale"):
        cast.escalate(decision_rationale=None)
    handoff = cast.escalate(decision_rationale="two readings of 3.2")
    query = "select decision_rationale from caliber_audit where handoff_id = %s"
    assert scalar(db, query, handoff) == "two readings of 3.2"


def test_2_4_escalation_is_resolved_or_goes_further(db: Connection, cast: Cast) -> None:
    first = cast.escalate()
    cast.accept(first, cast.reviewer)
    second = cast.escalate(cast.reviewer)
    assert str(cast.handoff(second)["to_agent_id"]) == cast.architect
    assert str(cast.handoff(second)["parent_handoff_id"]) == first
    cast.accept(second, cast.architect)
    assert cast.owner() == cast.architect
    db.execute(RETURN, (second, cast.architect, "success"))
    assert cast.owner() == cast.reviewer
    db.execute(RETURN, (first, cast.reviewer, "success"))
    assert cast.owner() == cast.worker


def test_2_4_escalation_adds_each_levels_assessment_to_the_trail(db: Connection, cast: Cast) -> None:
    first = cast.escalate(decision_rationale="unclear to wim")
    cast.accept(first, cast.reviewer)
    cast.escalate(cast.reviewer, decision_rationale="unclear to rob")
    query = "select array_agg(decision_rationale order by audit_no) from caliber_audit where handoff_id = %s"
    assert scalar(db, query + " and decision_rationale is not null", first) == [
        "unclear to wim",
        "unclear to rob",
    ]


def test_2_4_escalation_is_as_urgent_as_what_it_comes_from(db: Connection, cast: Cast) -> None:
    first = cast.escalate(priority="critical")
    cast.accept(first, cast.reviewer)
    assert cast.handoff(cast.escalate(cast.reviewer))["priority"] == "critical"


def test_2_4_escalation_gives_full_context_and_the_rationale(db: Connection, cast: Cast) -> None:
    db.execute("select caliber_turn_add(%s, 'user', 'nothing in common')", (cast.scope,))
    handoff = cast.escalate()
    cast.accept(handoff, cast.reviewer)
    text = str(scalar(db, "select caliber_handoff_context(%s)", handoff))
    assert "nothing in common" in text
    assert "Rationale: above my budget" in text
