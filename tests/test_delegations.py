"""The life of a task: given, taken, worked on, ended."""

from __future__ import annotations

import pytest
from conftest import Connect, Connection, refused, scalar, state
from delegations_cast import (
    Cast,
    accept,
    complete,
    delegate,
    expire,
    given,
    lapse,
    make_cast,
    register,
    row,
    status,
    told,
)

DELEGATE = "select caliber_delegate_task(%s, %s, %s)"
UNKNOWN = "00000000-0000-7000-8000-000000000000"


@pytest.fixture
def cast(db: Connection) -> Cast:
    return make_cast(db)


def test_from_giving_to_the_result(db: Connection, cast: Cast) -> None:
    task = delegate(db, cast.kyra, "code", "Review src/auth\nall of it", parent_trajectory_id=cast.trajectory)
    made = row(db, task)
    assert made["status"] == "pending"
    assert made["title"] == "Review src/auth"
    assert made["instructions"] == "Review src/auth\nall of it"
    assert (made["max_tokens"], made["max_tool_calls"], made["timeout_seconds"]) == (4000, 10, 120)
    assert (made["depth"], made["max_retries"], made["delegatee_agent_id"]) == (1, 2, None)

    child = accept(db, task, cast.luke)
    assert status(db, task) == "accepted"
    trajectory = db.execute("select * from caliber_trajectory where trajectory_id = %s", (child,)).fetchone()
    assert trajectory is not None
    assert str(trajectory["parent_trajectory_id"]) == cast.trajectory
    assert str(trajectory["root_trajectory_id"]) == cast.trajectory
    assert str(trajectory["agent_id"]) == cast.luke
    assert trajectory["depth"] == 1
    assert scalar(db, "select scope_no from caliber_scope_current(%s)", child) == 1

    assert scalar(db, "select caliber_start_delegation(%s)", task) is True
    assert scalar(db, "select caliber_start_delegation(%s)", task) is False
    left = db.execute(
        "select * from caliber_progress_delegation(%s, 100, 2, 0.01, 0.5, 'half')", (task,)
    ).fetchone()
    assert left is not None
    assert (left["status"], left["tokens_left"], left["tool_calls_left"]) == ("in_progress", 3900, 8)
    assert complete(db, task, summary="three issues", tokens=50, result_artifacts=["a.md"]) == "completed"
    done = row(db, task)
    assert (done["tokens_used"], done["tool_calls_used"], str(done["cost_used"])) == (150, 2, "0.01")
    assert (done["result_status"], done["summary"], done["progress"]) == ("success", "three issues", 1)
    ended = db.execute("select * from caliber_trajectory where trajectory_id = %s", (child,)).fetchone()
    assert ended is not None
    assert (ended["status"], ended["outcome"]) == ("completed", "three issues")
    assert scalar(db, "select count(*) from caliber_scope_current(%s)", child) == 0
    assert told(db, task) == [
        ("kyra", "code", "task_delegation", "normal", "1"),
        ("luke", "kyra", "coordination_signal", "normal", "delegation_accepted"),
        ("luke", "kyra", "coordination_signal", "low", "delegation_started"),
        ("luke", "kyra", "task_progress", "low", "delegation_progress"),
        ("luke", "kyra", "task_result", "high", "completed"),
    ]
    assert scalar(db, "select caliber_delegation_wait(%s, 0)", task) == "completed"


def test_a_deadline_makes_it_high(db: Connection, cast: Cast) -> None:
    task = delegate(db, cast.kyra, deadline="2100-01-01")
    assert told(db, task)[0][3] == "high"
    task = delegate(db, cast.kyra, deadline="2100-01-01", priority="critical")
    assert told(db, task)[0][3] == "critical"


def test_the_message_can_be_taken_and_names_the_task(db: Connection, cast: Cast) -> None:
    task = delegate(db, cast.kyra)
    rows = db.execute("select * from caliber_message_receive(%s)", (cast.luke,)).fetchall()
    assert [r["payload"] for r in rows] == [{"attempt": 1, "delegation_id": task}]


def test_one_of_a_type_takes_it(db: Connection, cast: Cast) -> None:
    task = delegate(db, cast.kyra)
    assert accept(db, task, cast.luke) is not None
    assert accept(db, task, cast.lena) is None


def test_who_may_take_it(db: Connection, cast: Cast) -> None:
    query = "select caliber_accept_delegation(%s, %s)"
    task = delegate(db, cast.kyra)
    assert state(db, query, task, cast.ada) == "42501"
    assert state(db, query, task, cast.max) == "42501"
    assert state(db, query, UNKNOWN, cast.luke) == "P0002"
    assert state(db, query, task, UNKNOWN) == "P0002"
    assert state(db, query, None, cast.luke) == "22023"
    named = delegate(db, cast.kyra, None, delegatee_agent_id=cast.luke)
    assert state(db, query, named, cast.lena) == "42501"
    assert accept(db, named, cast.luke) is not None


def test_an_agent_that_takes_no_work(db: Connection, cast: Cast) -> None:
    task = delegate(db, cast.kyra)
    db.execute("select caliber_agent_set_status(%s, 'failed')", (cast.luke,))
    assert state(db, "select caliber_accept_delegation(%s, %s)", task, cast.luke) == "KA004"
    db.execute("select caliber_agent_terminate(%s)", (cast.luke,))
    assert state(db, "select caliber_accept_delegation(%s, %s)", task, cast.luke) == "KA007"


def test_an_incarnation_that_was_replaced(db: Connection, cast: Cast) -> None:
    task = delegate(db, cast.kyra)
    db.execute("select caliber_agent_resume(%s)", (cast.luke,))
    assert state(db, "select caliber_accept_delegation(%s, %s, 1)", task, cast.luke) == "KA001"
    assert scalar(db, "select caliber_accept_delegation(%s, %s, 2)", task, cast.luke) is not None
    query = "select caliber_complete_delegation(%s, agent_id => %s, incarnation => %s)"
    assert state(db, query, task, cast.luke, 1) == "KA001"
    assert scalar(db, query, task, cast.luke, 2) == "completed"


def test_what_is_shared_is_copied_when_it_is_taken(db: Connection, cast: Cast) -> None:
    scope = scalar(db, "select scope_id from caliber_scope_current(%s)", cast.trajectory)
    artifact = scalar(
        db,
        "select caliber_artifact_create(%s, null, 'fact', 'bcrypt runs 8 rounds', name => 'rounds',"
        " embedding => '[1,2]', confidence => 0.5)",
        scope,
    )
    note = scalar(db, "select caliber_note_add(%s, 'gotcha', 'tests need a key')", cast.kyra)
    task = delegate(db, cast.kyra, shared_artifacts=[artifact], shared_notes=[note])
    assert scalar(db, "select count(*) from caliber_artifact") == 1
    child = accept(db, task, cast.luke)
    copied = db.execute("select * from caliber_artifact where trajectory_id = %s", (child,)).fetchone()
    assert copied is not None
    assert copied["content"] == "bcrypt runs 8 rounds"
    assert copied["extraction_method"] == "user_provided"
    assert copied["metadata"] == {"copied_from": str(artifact)}
    assert (str(copied["agent_id"]), copied["embedding"]) == (cast.luke, "[1,2]")
    noted = db.execute("select * from caliber_note where trajectory_id = %s", (child,)).fetchone()
    assert noted is not None
    assert (noted["content"], str(noted["agent_id"])) == ("tests need a key", cast.luke)


def test_only_what_one_can_read_can_be_shared(
    db: Connection, connect: Connect, cast: Cast, roles: object
) -> None:
    other = scalar(db, "select caliber_trajectory_start('own', %s)", cast.luke)
    scope = scalar(db, "select scope_id from caliber_scope_current(%s)", other)
    artifact = scalar(db, "select caliber_artifact_create(%s, null, 'fact', 'secret')", scope)
    assert callable(roles)
    login = roles("caliber_agent")
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (login, cast.kyra))
    query = "select caliber_delegate_task(%s, 'code', 'x', shared_artifacts => %s)"
    assert state(connect(login), query, cast.kyra, [artifact]) == "P0002"
    assert state(db, query, cast.kyra, [UNKNOWN]) == "P0002"
    assert state(db, query, cast.kyra, [None]) == "22023"
    assert (
        state(db, query, cast.kyra, [UNKNOWN.replace("0000-7", f"{n:04}-7") for n in range(101)]) == "22023"
    )


def test_turning_down(db: Connection, cast: Cast) -> None:
    query = "select caliber_reject_delegation(%s, %s, 'no time')"
    named = delegate(db, cast.kyra, None, delegatee_agent_id=cast.luke)
    assert scalar(db, query, named, cast.luke) == "rejected"
    assert told(db, named)[-1] == ("luke", "kyra", "coordination_signal", "high", "delegation_rejected")
    assert scalar(db, query, named, cast.luke) is None
    assert accept(db, named, cast.luke) is None

    # Of a type, it stays for the others, who are told again.
    task = delegate(db, cast.kyra)
    assert state(db, query, task, cast.ada) == "42501"
    assert scalar(db, query, task, cast.luke) == "pending"
    assert told(db, task)[-2][:3] == ("kyra", "code", "task_delegation")
    assert scalar(db, query, task, cast.lena) == "rejected"
    assert accept(db, task, cast.luke) is None


def test_a_result_that_is_a_failure(db: Connection, cast: Cast) -> None:
    task = given(db, cast.kyra, cast.luke)
    assert complete(db, task, result_status="failure", summary="no access") == "failed"
    assert scalar(db, "select status from caliber_trajectory where name = 'review'") == "failed"
    assert told(db, task)[-1] == ("luke", "kyra", "task_result", "high", "failed")


def test_failing_is_tried_again_and_then_dead(db: Connection, cast: Cast) -> None:
    task = delegate(db, cast.kyra)
    for attempt in (1, 2, 3):
        assert accept(db, task, cast.luke) is not None
        assert row(db, task)["attempts"] == attempt
        ended = scalar(db, "select caliber_fail_delegation(%s, 'crash', tokens => 10)", task)
        assert ended == ("dead" if attempt == 3 else "pending")
    dead = row(db, task)
    assert (dead["error"], dead["tokens_used"]) == ("crash", 30)
    assert scalar(db, "select delegation_id::text from caliber_dead_delegation") == task
    sent = [t for t in told(db, task) if t[2] == "task_delegation"]
    assert [t[4] for t in sent] == ["1", "2", "3"]
    assert told(db, task)[-1] == ("luke", "kyra", "task_result", "high", "dead")
    assert scalar(db, "select count(*) from caliber_trajectory where status = 'failed'") == 3
    # Its delegator may open it again.
    assert scalar(db, "select caliber_retry_delegation(%s)", task) is True
    assert scalar(db, "select caliber_retry_delegation(%s)", task) is False
    assert accept(db, task, cast.lena) is not None
    assert complete(db, task) == "completed"
    assert state(db, "select caliber_retry_delegation(%s)", task) == "KA007"


def test_failing_for_good(db: Connection, cast: Cast) -> None:
    task = given(db, cast.kyra, cast.luke)
    assert scalar(db, "select caliber_fail_delegation(%s, 'never', retry => false)", task) == "failed"
    task = given(db, cast.kyra, cast.luke, max_retries=0)
    assert scalar(db, "select caliber_fail_delegation(%s, 'once')", task) == "failed"


def test_cancelling_takes_everything_below_with_it(db: Connection, cast: Cast) -> None:
    top = given(db, cast.kyra, cast.luke)
    part = given(db, cast.luke, cast.ada, parent_delegation_id=top)
    waiting = delegate(db, cast.ada, "code", parent_delegation_id=part)
    assert state(db, "select caliber_complete_delegation(%s)", top) == "KA007"
    assert scalar(db, "select caliber_cancel_delegation(%s, 'not needed')", top) is True
    assert [status(db, t) for t in (top, part, waiting)] == ["cancelled"] * 3
    assert scalar(db, "select caliber_cancel_delegation(%s)", top) is False
    assert told(db, top)[-1] == ("kyra", "luke", "coordination_signal", "high", "delegation_cancelled")
    assert told(db, part)[-1] == ("kyra", "ada", "coordination_signal", "high", "delegation_cancelled")
    assert accept(db, waiting, cast.lena) is None
    assert state(db, "select caliber_complete_delegation(%s)", part) == "KA007"
    assert row(db, top)["open_children"] == 0


def test_a_timeout_is_judged_when_read_and_refuses_a_late_result(db: Connection, cast: Cast) -> None:
    task = given(db, cast.kyra, cast.luke)
    lapse(db, task)
    assert status(db, task) == "timed_out"
    assert row(db, task)["status"] == "accepted"
    error = refused(db, "select caliber_complete_delegation(%s, tokens => 700)", task)
    assert error.sqlstate == "KA007"
    assert "timed_out" in str(error)
    # What was used is counted all the same, also beyond the limit.
    late = db.execute("select * from caliber_progress_delegation(%s, 5000)", (task,)).fetchone()
    assert late is not None
    assert (late["status"], late["tokens_left"]) == ("timed_out", -1000)
    assert row(db, task)["tokens_used"] == 5000
    assert expire(db) == 1
    assert row(db, task)["status"] == "pending"
    assert expire(db) == 0


def test_late_use_of_a_task_that_was_put_back(db: Connection, cast: Cast) -> None:
    task = delegate(db, cast.kyra)
    assert state(db, "select caliber_progress_delegation(%s, 1)", task) in ("42501", "KA007")
    accept(db, task, cast.luke)
    lapse(db, task)
    assert expire(db) == 1
    assert state(db, "select caliber_complete_delegation(%s, agent_id => %s)", task, cast.luke) == "KA007"
    query = "select status from caliber_progress_delegation(%s, 70, agent_id => %s)"
    assert scalar(db, query, task, cast.luke) == "pending"
    assert state(db, query, task, cast.lena) == "42501"
    assert row(db, task)["tokens_used"] == 70
    assert accept(db, task, cast.lena) is not None
    assert state(db, query, task, cast.luke) == "42501"


def test_timeouts_are_tried_again_and_then_dead(db: Connection, cast: Cast) -> None:
    task = delegate(db, cast.kyra)
    for left in (2, 1, 0):
        assert accept(db, task, cast.luke) is not None
        lapse(db, task)
        assert expire(db) == 1
        assert row(db, task)["status"] == ("pending" if left else "dead")
    assert row(db, task)["error"] == "timed out"
    events = {t[4] for t in told(db, task)}
    assert {"delegation_timed_out", "delegation_retried", "dead"} <= events
    assert scalar(db, "select caliber_delegation_wait(%s, 0)", task) == "dead"


def test_without_retries_a_timeout_ends_it(db: Connection, cast: Cast) -> None:
    task = given(db, cast.kyra, cast.luke, max_retries=0)
    lapse(db, task)
    assert scalar(db, "select caliber_delegation_wait(%s, 0)", task) == "timed_out"
    assert row(db, task)["status"] == "timed_out"
    late = scalar(db, "select status from caliber_progress_delegation(%s, 70)", task)
    assert late == "timed_out"
    assert row(db, task)["tokens_used"] == 70


def test_the_deadline_ends_it_whatever_is_left(db: Connection, cast: Cast) -> None:
    waiting = delegate(db, cast.kyra, deadline="2100-01-01")
    taken = given(db, cast.kyra, cast.luke, deadline="2100-01-01")
    db.execute("update caliber_delegation set deadline = now(), expires_at = now()")
    assert accept(db, waiting, cast.luke) is None
    assert row(db, waiting)["status"] == "timed_out"
    assert expire(db) == 1
    assert row(db, taken)["status"] == "timed_out"
    # Open again needs another deadline.
    assert state(db, "select caliber_retry_delegation(%s)", taken) == "22023"
    assert scalar(db, "select caliber_retry_delegation(%s, '2101-01-01')", taken) is True


def test_who_comes_next_takes_what_has_timed_out(db: Connection, cast: Cast) -> None:
    task = delegate(db, cast.kyra)
    accept(db, task, cast.luke)
    lapse(db, task)
    assert accept(db, task, cast.lena) is not None
    made = row(db, task)
    assert (made["attempts"], str(made["delegatee_agent_id"])) == (2, cast.lena)
    assert state(db, "select caliber_complete_delegation(%s, agent_id => %s)", task, cast.luke) == "42501"
    assert complete(db, task) == "completed"


def test_waiting_is_bounded_and_judges(db: Connection, cast: Cast) -> None:
    task = given(db, cast.kyra, cast.luke)
    query = "select caliber_delegation_wait(%s, %s)"
    assert scalar(db, query, task, 20) is None
    assert state(db, query, task, 30_001) == "22023"
    assert state(db, query, task, None) == "22023"
    assert state(db, query, UNKNOWN, 0) == "P0002"
    lapse(db, task)
    assert scalar(db, query, task, 1000) is None
    assert row(db, task)["status"] == "pending"


def test_tasks_of_an_agent_that_is_gone(db: Connection, cast: Cast) -> None:
    task = delegate(db, cast.kyra)
    accept(db, task, cast.luke)
    part = delegate(db, cast.luke, "data", parent_delegation_id=task)
    db.execute("select caliber_agent_terminate(%s)", (cast.luke,))
    assert scalar(db, "select _caliber_delegations_give_back(%s)", cast.luke) == 1
    assert row(db, task)["status"] == "pending"
    assert row(db, part)["status"] == "cancelled"
    assert accept(db, task, cast.lena) is not None


def test_the_tree_reads_well(db: Connection, cast: Cast) -> None:
    top = given(db, cast.kyra, cast.luke, title="audit", max_retries=1)
    given(db, cast.luke, cast.ada, title="coverage", parent_delegation_id=top)
    delegate(db, cast.luke, "data", title="logs", parent_delegation_id=top)
    rows = db.execute("select * from caliber_delegation_tree(%s)", (top,)).fetchall()
    assert [(r["task"], r["status"], r["delegatee"], r["depth"], r["tokens"]) for r in rows] == [
        ("audit", "accepted", "luke", 1, "0 of 4000"),
        ("   └─ coverage", "accepted", "ada", 2, "0 of 4000"),
        ("   └─ logs", "pending", "any data", 2, "0 of 4000"),
    ]


def test_bad_arguments(db: Connection, cast: Cast) -> None:
    assert state(db, DELEGATE, None, "code", "x") == "22023"
    assert state(db, DELEGATE, UNKNOWN, "code", "x") == "P0002"
    assert state(db, DELEGATE, cast.kyra, None, "x") == "22023"
    assert state(db, DELEGATE, cast.kyra, "Not A Slug", "x") == "22023"
    for text in (None, "", "  \n", "x" * 300_000):
        assert state(db, DELEGATE, cast.kyra, "code", text) == "22023"
    query = "select caliber_delegate_task(%s, 'code', 'x', {} => %s)"
    for name, value in (
        ("deadline", "2000-01-01"),
        ("title", "t" * 201),
        ("max_tokens", 0),
        ("max_tool_calls", -1),
        ("timeout_seconds", 0),
        ("max_retries", -1),
        ("budget_tokens", 0),
        ("budget_cost", -1),
        ("budget_cost", "NaN"),
        ("priority", None),
        ("required_capabilities", ["A B"]),
        ("input_artifacts", [""]),
        ("expected_output", "x" * 10_001),
    ):
        assert state(db, query.format(name), cast.kyra, value) == "22023", name
    assert state(db, query.format("parent_trajectory_id"), cast.kyra, UNKNOWN) == "P0002"
    assert state(db, query.format("parent_delegation_id"), cast.kyra, UNKNOWN) == "P0002"
    db.execute("select caliber_trajectory_finish(%s)", (cast.trajectory,))
    assert state(db, query.format("parent_trajectory_id"), cast.kyra, cast.trajectory) == "KA007"
    task = given(db, cast.kyra, cast.luke, title="Prüfe 認証 🔑")
    assert row(db, task)["title"] == "Prüfe 認証 🔑"
    for call in ("tokens => -1", "tool_calls => -1", "cost => -0.1", "cost => 'NaN'", "progress => 2"):
        assert state(db, f"select caliber_progress_delegation(%s, {call})", task) == "22023"
    assert state(db, "select caliber_complete_delegation(%s, produced_artifacts => %s)", task, [UNKNOWN]) == (
        "P0002"
    )


def test_agents_do_only_what_is_theirs(db: Connection, connect: Connect, cast: Cast, roles: object) -> None:
    assert callable(roles)
    hands = {}
    for name in ("kyra", "luke", "lena", "max"):
        login = roles("caliber_agent")
        db.execute("update caliber_agent set login_role = %s where name = %s", (login, name))
        hands[name] = connect(login)
    task = delegate(hands["kyra"], cast.kyra)
    assert state(hands["max"], "select caliber_accept_delegation(%s, %s)", task, cast.max) == "P0002"
    assert state(hands["lena"], "select caliber_accept_delegation(%s, %s)", task, cast.luke) == "42501"
    for name, count in (("kyra", 1), ("luke", 1), ("lena", 1), ("max", 0)):
        assert scalar(hands[name], "select count(*) from caliber_delegation") == count
    assert accept(hands["luke"], task, cast.luke) is not None
    assert scalar(hands["lena"], "select count(*) from caliber_delegation") == 0
    for query in (
        "select caliber_complete_delegation(%s)",
        "select caliber_progress_delegation(%s, 1)",
        "select caliber_fail_delegation(%s)",
        "select caliber_cancel_delegation(%s)",
        "select caliber_delegation_wait(%s, 0)",
    ):
        assert state(hands["lena"], query, task) == "P0002"
        assert state(hands["max"], query, task) == "P0002"
    assert state(hands["kyra"], "select caliber_complete_delegation(%s)", task) == "42501"
    assert state(hands["luke"], "select caliber_cancel_delegation(%s)", task) == "42501"
    # One above sees what was passed on of it.
    part = delegate(hands["luke"], cast.luke, "data", parent_delegation_id=task)
    seen = hands["kyra"].execute("select status from caliber_delegation_tree(%s)", (task,)).fetchall()
    assert len(seen) == 2
    assert state(hands["kyra"], "select caliber_cancel_delegation(%s)", part) == "42501"
    assert scalar(hands["luke"], "select caliber_cancel_delegation(%s)", part) is True
    assert complete(hands["luke"], task) == "completed"
    assert state(hands["luke"], "select _caliber_delegations_expire(1)") == "42501"


def test_an_admin_reaches_across_teams(db: Connection, connect: Connect, cast: Cast, roles: object) -> None:
    """And the agent of the other team can still end its task, and tell of it."""
    task = delegate(db, cast.kyra, None, delegatee_agent_id=cast.max)
    assert callable(roles)
    login = roles("caliber_agent")
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (login, cast.max))
    hand = connect(login)
    assert accept(hand, task, cast.max) is not None
    assert complete(hand, task) == "completed"
    assert told(db, task)[-1][:3] == ("max", "kyra", "task_result")


def test_a_full_inbox_of_the_delegator_stops_nobody(db: Connection, cast: Cast) -> None:
    db.execute("select caliber_config_set('message_queue_limit', '2')")
    for _ in range(3):
        task = given(db, cast.kyra, cast.luke)
        db.execute(
            "select caliber_message_acknowledge(message_id, receipt) from caliber_message_receive(%s)",
            (cast.luke,),
        )
        assert complete(db, task) == "completed"
    # But a queue of tasks can be full.
    delegate(db, cast.kyra)
    delegate(db, cast.kyra)
    assert state(db, DELEGATE, cast.kyra, "code", "x") == "KA006"


def test_settings_hold_at_once(db: Connection, connect: Connect, cast: Cast) -> None:
    other = connect()
    assert row(db, delegate(other, cast.kyra))["max_tokens"] == 4000
    db.execute("select caliber_config_set('delegation_max_tokens', '50')")
    assert row(db, delegate(other, cast.kyra))["max_tokens"] == 50


def test_notify_modes(db: Connection, connect: Connect, cast: Cast) -> None:
    for mode in ("armed", "off", "always"):
        db.execute("select caliber_config_set('notify_mode', %s)", (mode,))
        task = given(db, cast.kyra, cast.luke)
        assert complete(db, task) == "completed"
        assert len(told(db, task)) == 3


def test_the_record(db: Connection, cast: Cast) -> None:
    task = given(db, cast.kyra, cast.luke)
    db.execute("select caliber_cancel_delegation(%s)", (task,))
    types = db.execute(
        "select event_type from caliber_event where reference_id = %s order by event_id", (task,)
    ).fetchall()
    assert [t["event_type"] for t in types] == [
        "delegation_created", "delegation_accepted", "delegation_cancelled",
    ]  # fmt: skip


def test_security_audit(db: Connection) -> None:
    """The scenario: two parallel tasks of Kyra's, and a part of Luke's that goes to Ada."""
    kyra = register(db, "general", "kyra", can_delegate_to=["code", "data"])
    luke = register(db, "code", "luke", can_delegate_to=["data"])
    ada = register(db, "data", "ada", can_delegate_to=[])
    audit = scalar(db, "select caliber_trajectory_start('security audit', %s)", kyra)
    review = delegate(
        db, kyra, "code", "Review src/auth/ for security vulnerabilities", parent_trajectory_id=audit,
        task_type="review", title="Review auth module code quality",
        expected_output="Severity-rated findings list",
    )  # fmt: skip
    logs = delegate(
        db, kyra, "data", "Look at recent auth logs", parent_trajectory_id=audit, task_type="analyze",
        title="Analyze authentication logs for anomalies",
    )  # fmt: skip
    work = accept(db, review, luke)
    accept(db, logs, ada)
    # On the trajectory of his task, so it is a part of it.
    coverage = delegate(db, luke, "data", "Run test coverage on src/auth/", parent_trajectory_id=work)
    assert row(db, coverage)["depth"] == 2
    assert str(row(db, coverage)["parent_delegation_id"]) == review
    assert accept(db, coverage, ada) is not None
    assert complete(db, coverage, summary="Coverage: 67%", tokens=900) == "completed"
    assert complete(db, review, summary="Found 3 issues", tokens=2500, tool_calls=6) == "completed"
    assert complete(db, logs, summary="2 anomalies", tokens=1200) == "completed"
    got = db.execute(
        "select payload -> 'result' ->> 'summary' as summary from caliber_message_inbox(%s, true, 100)"
        " where message_type = 'task_result' order by created_at",
        (kyra,),
    ).fetchall()
    assert [r["summary"] for r in got] == ["Found 3 issues", "2 anomalies"]
    assert state(db, DELEGATE, ada, "code", "help") == "42501"
