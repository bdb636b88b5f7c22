"""Handoffs: each row of the lifecycle (section 8 of the protocol), the return (4), answers (5),
failures (6), what every handoff leaves in the audit trail (7), and the notes on all of it (9)."""

from __future__ import annotations

import json

import pytest
from conftest import Connection, scalar, state
from handoffs_cast import Cast

RETURN = "select caliber_return_handoff(%s, %s, %s)"
COMPLETE = "select caliber_complete_handoff(%s, %s)"
INBOX = "select array_agg(message_type order by message_id) from caliber_message_inbox(%s, false)"


@pytest.fixture
def cast(db: Connection) -> Cast:
    return Cast(db)


def told(cast: Cast, agent: str) -> list[str]:
    found = scalar(cast.db, INBOX, agent)
    return [str(kind) for kind in found] if isinstance(found, list) else []


# --- 8 the lifecycle ---


def test_8_1_trigger(db: Connection, cast: Cast) -> None:
    kinds = ["task_completion", "capability_mismatch", "escalation", "timeout", "explicit_request"]
    query = "select array_agg(t::text order by t) from unnest(enum_range(null::caliber_handoff_trigger)) as t"
    assert scalar(db, query) == kinds
    for kind in ("task_completion", "timeout", "explicit_request"):
        handoff = cast.initiate(triggered_by=kind)
        assert cast.handoff(handoff)["triggered_by"] == kind
        db.execute("select caliber_withdraw_handoff(%s, %s)", (handoff, cast.worker))


def test_8_2_prepare(db: Connection, cast: Cast) -> None:
    row = cast.handoff(
        cast.initiate(
            next_steps=["a"], blockers=["b"], open_questions=["c"], variables='{"x": 1}', task_id="t",
            deadline="2099-01-01", risk_level="low", decision_rationale="d",
        )
    )  # fmt: skip
    assert (row["next_steps"], row["blockers"], row["open_questions"]) == (["a"], ["b"], ["c"])
    assert (row["variables"], row["task_id"], row["decision_rationale"]) == ({"x": 1}, "t", "d")


def test_8_3_validate(db: Connection, cast: Cast) -> None:
    """One that could not take it anyway is not asked; a target that does not exist is misuse."""
    handoff = cast.initiate(required_capabilities=["rust"])
    assert (cast.status(handoff), told(cast, cast.helper)) == ("rejected", [])
    with pytest.raises(Exception, match="unknown or terminated"):
        cast.initiate(to_agent_id="00000000-0000-0000-0000-000000000001")


def test_8_4_initiate(db: Connection, cast: Cast) -> None:
    handoff = cast.initiate()
    assert (told(cast, cast.helper), cast.trail(handoff)) == (["handoff"], ["initiated"])
    priority = "select priority from caliber_message_inbox(%s)"
    assert scalar(db, priority, cast.helper) == "critical"


def test_8_5_acknowledge(db: Connection, cast: Cast) -> None:
    """Judged again when it accepts: meanwhile it has lost what was asked for."""
    db.execute("update caliber_agent set capabilities = '{sql}' where agent_id = %s", (cast.helper,))
    handoff = cast.initiate(required_capabilities=["sql"])
    db.execute("update caliber_agent set capabilities = '{}' where agent_id = %s", (cast.helper,))
    row = cast.accept(handoff)
    assert (row["status"], row["reason"]) == ("rejected", "capability: sql")


def test_8_6_accept_or_reject(db: Connection, cast: Cast) -> None:
    first = cast.initiate()
    db.execute("select caliber_reject_handoff(%s, %s, 'no')", (first, cast.helper))
    second = cast.initiate()
    cast.accept(second)
    assert (cast.trail(first)[-1], cast.trail(second)[-1]) == ("rejected", "accepted")
    assert told(cast, cast.worker) == ["task_rejected", "task_accepted"]


def test_8_7_execute(db: Connection, cast: Cast) -> None:
    handoff = cast.initiate()
    start = "select caliber_start_handoff(%s, %s)"
    assert state(db, start, handoff, cast.helper) == "KA007"
    cast.accept(handoff)
    assert scalar(db, start, handoff, cast.helper) is True
    assert scalar(db, start, handoff, cast.helper) is False
    assert (cast.status(handoff), cast.trail(handoff)[-1]) == ("in_progress", "in_progress")


def test_8_8_return(db: Connection, cast: Cast) -> None:
    handoff = cast.delegate()
    assert state(db, RETURN, handoff, cast.helper, "success") == "KA007"
    cast.accept(handoff)
    assert scalar(db, RETURN, handoff, cast.helper, "success") == "success"
    assert state(db, RETURN, handoff, cast.helper, "success") == "KA007"
    assert (cast.trail(handoff)[-1], told(cast, cast.worker)[-1]) == ("returned", "task_result")


def test_8_9_complete(db: Connection, cast: Cast) -> None:
    handoff = cast.delegate()
    cast.accept(handoff)
    db.execute(RETURN, (handoff, cast.helper, "success"))
    assert state(db, COMPLETE, handoff, cast.helper) == "P0002"
    assert scalar(db, COMPLETE, handoff, cast.worker) == "completed"
    assert state(db, COMPLETE, handoff, cast.worker) == "KA007"
    assert cast.trail(handoff)[-1] == "completed"


def test_8_10_release(db: Connection, cast: Cast) -> None:
    """Leases of what was given for good end with it; what was lent is the sender's again."""
    take = "select caliber_lock_acquire(%s, 'file', %s, 'exclusive', 60000)"
    lent = cast.delegate(lock_ids=[scalar(db, take, cast.worker, "a.py")])
    cast.accept(lent)
    holders = "select array_agg(holder_agent_id::text) from caliber_lock"
    assert scalar(db, holders) == [cast.helper]
    call = "select caliber_return_handoff(%s, %s, variables_changed => '{\"found\": 3}')"
    db.execute(call, (lent, cast.helper))
    assert scalar(db, holders) == [cast.worker]
    db.execute(COMPLETE, (lent, cast.worker))
    value = "select value from caliber_context_variables(%s) where name = 'found'"
    assert scalar(db, value, cast.work) == 3
    given = cast.initiate(lock_ids=[scalar(db, "select lock_id from caliber_lock")])
    cast.accept(given)
    db.execute(COMPLETE, (given, cast.helper))
    assert scalar(db, holders) is None


# --- 4 the return ---


def test_4_1_return_payload(db: Connection, cast: Cast) -> None:
    handoff = cast.delegate()
    child = cast.accept(handoff)["trajectory_id"]
    scope = scalar(db, "select scope_id from caliber_scope_current(%s)", child)
    artifact = scalar(db, "select caliber_artifact_create(%s, null, 'fact', 'x is 1')", scope)
    call = (
        "select caliber_return_handoff(%s, %s, 'partial', '{\"x\": 1.50}', 'half of it', 'json',"
        " '{\"x\": 1}', array[%s]::uuid[], 120)"
    )
    assert scalar(db, call, handoff, cast.helper, artifact) == "partial"
    row = cast.handoff(handoff)
    assert (row["return_status"], row["result_type"], row["return_notes"]) == (
        "partial",
        "json",
        "half of it",
    )
    assert (row["variables_changed"], row["tokens_consumed"]) == ({"x": 1}, 120)
    db.execute(COMPLETE, (handoff, cast.worker))
    copied = "select count(*) from caliber_artifact where trajectory_id = %s and content = 'x is 1'"
    assert scalar(db, copied, cast.work) == 1


def test_4_1_only_ones_own_is_returned(db: Connection, cast: Cast) -> None:
    artifact = scalar(db, "select caliber_artifact_create(%s, null, 'fact', 'x')", cast.scope)
    handoff = cast.delegate()
    cast.accept(handoff)
    call = "select caliber_return_handoff(%s, %s, artifacts_produced => array[%s]::uuid[])"
    assert state(db, call, handoff, cast.helper, artifact) == "22023"
    assert state(db, RETURN, handoff, cast.helper, "timeout") == "22023"
    assert (
        state(db, "select caliber_return_handoff(%s, %s, result_type => 'x')", handoff, cast.helper)
        == "22023"
    )


def test_4_2_retry_waits_longer_each_time(db: Connection, cast: Cast) -> None:
    handoff = cast.delegate(on_timeout="retry")
    for pause in (2, 4):
        cast.accept(handoff)
        cast.lapse(handoff)
        row = cast.handoff(handoff)
        left = scalar(db, "select extract(epoch from available_at - clock_timestamp()) from caliber_handoff")
        assert pause - 2 < float(str(left)) <= pause
        assert (row["status"], str(row["to_agent_id"])) == ("initiated", cast.helper)
        assert state(db, "select caliber_accept_handoff(%s, %s)", handoff, cast.helper) == "KA007"
        db.execute("update caliber_handoff set available_at = null")


def test_4_2_fail_asks_for_a_human_and_tells_the_sender(db: Connection, cast: Cast) -> None:
    handoff = cast.delegate(on_timeout="fail")
    cast.accept(handoff)
    cast.lapse(handoff)
    row = cast.handoff(handoff)
    assert (row["status"], row["needs_human"], row["return_status"]) == ("failed", True, "timeout")
    assert told(cast, cast.worker)[-1] == "task_failed"
    child = "select status from caliber_trajectory where trajectory_id = %s"
    assert scalar(db, child, row["received_trajectory_id"]) == "failed"
    assert scalar(db, "select caliber_handoff_resolve(%s, 'leave it')", handoff) == "completed"


# --- 5 answers ---


def test_5_3_acceptance_says_when_it_will_be_done(db: Connection, cast: Cast) -> None:
    handoff = cast.initiate()
    call = "select status from caliber_accept_handoff(%s, %s, '2099-01-01')"
    assert scalar(db, call, handoff, cast.helper) == "accepted"
    row = cast.handoff(handoff)
    assert str(row["estimated_completion"]).startswith("2099-01-01")
    assert row["accepted_at"] is not None


def test_5_3_rejection_and_deferral_need_a_reason(db: Connection, cast: Cast) -> None:
    handoff = cast.initiate()
    for reason in (None, ""):
        assert state(db, "select caliber_reject_handoff(%s, %s, %s)", handoff, cast.helper, reason) == "22023"
        assert state(db, "select caliber_defer_handoff(%s, %s, %s)", handoff, cast.helper, reason) == "22023"
    db.execute("select caliber_defer_handoff(%s, %s, 'tests run')", (handoff, cast.helper))
    row = cast.handoff(handoff)
    assert (row["status"], row["status_reason"]) == ("deferred", "tests run")
    assert told(cast, cast.worker) == ["notification"]


# --- 6 failures ---


def test_6_1_rejection_is_logged_told_and_goes_to_another(db: Connection, cast: Cast) -> None:
    other = cast.agent("helper", "hob", capabilities=["sql"])
    db.execute("update caliber_agent set capabilities = '{sql}' where agent_id = %s", (cast.helper,))
    handoff = cast.initiate(reroute=True, required_capabilities=["sql"])
    reject = "select caliber_reject_handoff(%s, %s, 'busy')"
    assert scalar(db, reject, handoff, cast.helper) == "initiated"
    assert str(cast.handoff(handoff)["to_agent_id"]) == other
    assert cast.trail(handoff) == ["initiated", "rejected", "rerouted"]
    # Nobody else has what is asked for.
    assert scalar(db, reject, handoff, other) == "rejected"
    assert cast.handoff(handoff)["needs_human"] is True
    assert told(cast, cast.worker) == ["task_rejected"]


def test_6_2_no_acknowledgement_within_30_seconds(db: Connection, cast: Cast) -> None:
    row = cast.handoff(cast.initiate())
    assert 29 < (row["ack_by"] - row["initiated_at"]).total_seconds() < 31
    db.execute("update caliber_handoff set ack_by = now() - interval '1 s'")
    # Whether or not anybody has looked since.
    accept = "select caliber_accept_handoff(%s, %s)"
    assert state(db, accept, row["handoff_id"], cast.helper) == "KA007"
    assert scalar(db, "select status from caliber_handoffs") == "timed_out"


def test_6_2_what_is_critical_goes_up_at_once(db: Connection, cast: Cast) -> None:
    handoff = cast.initiate(priority="critical")
    cast.lapse(handoff)
    assert cast.status(handoff) == "escalated"
    query = "select to_agent_id::text from caliber_handoff where parent_handoff_id = %s"
    assert scalar(db, query, handoff) == cast.reviewer
    assert cast.owner() == cast.worker


def test_6_3_a_reminder_comes_before_the_policy(db: Connection, cast: Cast) -> None:
    handoff = cast.delegate()
    cast.accept(handoff)
    db.execute("update caliber_handoff set due_at = now(), return_by = now()")
    db.execute("select _caliber_handoffs_expire()")
    assert (cast.status(handoff), told(cast, cast.helper)[-1]) == ("accepted", "nudge")
    assert scalar(db, RETURN, handoff, cast.helper, "success") == "success"
    assert "reminded" in cast.trail(handoff)


# --- 7 the audit trail ---


def test_7_1_a_record_says_all_of_it(db: Connection, cast: Cast) -> None:
    handoff = cast.delegate(task_id="t1", decision_rationale="because", variables='{"x": 1}')
    cast.accept(handoff)
    call = "select caliber_return_handoff(%s, %s, tokens_consumed => 12)"
    db.execute(call, (handoff, cast.helper))
    db.execute(COMPLETE, (handoff, cast.worker))
    lines = db.execute("select caliber_audit_export(handoff_id => %s) as line", (handoff,)).fetchall()
    records = [json.loads(str(row["line"])) for row in lines]
    first, last = records[0], records[-1]
    assert (first["handoff_id"], first["event_type"], first["handoff_type"]) == (
        handoff,
        "initiated",
        "delegation",
    )
    assert (first["from_agent"], first["to_agent"]) == (cast.worker, cast.helper)
    assert (first["reason"], first["decision_rationale"], first["risk_level"]) == (
        "specialization",
        "because",
        "low",
    )
    snapshot = first["context_snapshot"]
    assert (snapshot["task_id"], snapshot["task_status"], snapshot["artifact_count"]) == ("t1", "active", 0)
    assert len(snapshot["context_variables_hash"]) == 64
    assert (last["event_type"], last["outcome"], last["tokens_consumed"]) == ("completed", "success", 12)
    assert last["duration_ms"] >= 0


@pytest.mark.parametrize("end", ["accept", "reject", "unable", "lapse"])
def test_7_2_every_handoff_has_at_least_two_records(db: Connection, cast: Cast, end: str) -> None:
    handoff = cast.initiate(required_capabilities=["rust"] if end == "unable" else [])
    if end == "accept":
        cast.accept(handoff)
    elif end == "reject":
        db.execute("select caliber_reject_handoff(%s, %s, 'no')", (handoff, cast.helper))
    elif end == "lapse":
        cast.lapse(handoff)
    trail = cast.trail(handoff)
    assert trail[0] == "initiated"
    assert {"accepted", "rejected"} & set(trail)


@pytest.mark.parametrize(("outcome", "status"), [("success", "completed"), ("failed", "failed")])
def test_7_2_what_ends_has_a_record_of_it(db: Connection, cast: Cast, outcome: str, status: str) -> None:
    handoff = cast.initiate()
    cast.accept(handoff)
    assert scalar(db, "select caliber_complete_handoff(%s, %s, %s)", handoff, cast.helper, outcome) == status
    assert cast.trail(handoff)[-1] == status


def test_7_2_the_record_is_written_before_the_step(db: Connection, cast: Cast) -> None:
    """Whoever cannot write the record does not take the step: nothing has moved."""
    handoff = cast.initiate()
    db.execute(
        "create function pg_temp.full() returns trigger language plpgsql as"
        " $$ begin if (select agent_id from public.caliber_trajectory as t"
        " where t.trajectory_id = new.trajectory_id) <> new.from_agent_id then raise 'too late'; end if;"
        " raise 'no room'; end $$"
    )
    db.execute(
        "create trigger a_full before insert on caliber_audit for each row execute function pg_temp.full()"
    )
    with pytest.raises(Exception, match="no room"):
        cast.accept(handoff)
    assert (cast.owner(), cast.status(handoff)) == (cast.worker, "initiated")


def test_7_2_records_are_found_by_handoff_task_sender_and_receiver(db: Connection, cast: Cast) -> None:
    handoff = cast.initiate(task_id="t1")
    cast.accept(handoff)
    count = "select count(*) from caliber_audit_trail({} => %s)"
    for key, value in (
        ("handoff_id", handoff), ("task_id", "t1"), ("from_agent_id", cast.worker),
        ("to_agent_id", cast.helper), ("trajectory_id", cast.work),
    ):  # fmt: skip
        assert scalar(db, count.format(key), value) == 2


def test_7_a_failed_validation_is_recorded_and_misuse_is_not(db: Connection, cast: Cast) -> None:
    handoff = cast.initiate(risk_level="high")
    query = "select reason from caliber_audit where handoff_id = %s and event_type = 'rejected'"
    assert str(scalar(db, query, handoff)).startswith("autonomy")
    before = scalar(db, "select count(*) from caliber_audit")
    assert state(db, "select caliber_reject_handoff(%s, %s, 'x')", handoff, cast.helper) == "KA007"
    assert scalar(db, "select count(*) from caliber_audit") == before


# --- 9 notes ---


def test_9_a_broadcast_has_a_record_for_each_linked_by_its_group(db: Connection, cast: Cast) -> None:
    call = (
        "select count(distinct handoff_id) as handoffs, count(distinct broadcast_group_id) as groups"
        " from caliber_broadcast_handoff(%s, %s::uuid[], %s, 'specialization', 'look')"
    )
    row = db.execute(call, (cast.worker, [cast.helper, cast.reviewer], cast.work)).fetchone()
    assert row == {"handoffs": 2, "groups": 1}


def test_9_an_autonomy_budget_that_is_too_small_is_refused(db: Connection, cast: Cast) -> None:
    db.execute("update caliber_agent set autonomy_budget = 5 where agent_id = %s", (cast.helper,))
    handoff = cast.initiate(autonomy_budget=6)
    assert str(cast.handoff(handoff)["status_reason"]) == "autonomy: budget 6 is above 5"
    assert cast.status(cast.initiate(autonomy_budget=5)) == "initiated"
