"""Handoffs: the context that goes with them (section 3 of the protocol), and context variables."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pytest
from conftest import Connect, Connection, scalar, state
from handoffs_cast import Cast

SET = "select caliber_variable_set(%s, %s, %s, agent_id => %s)"
VALUE = "select value from caliber_context_variables(%s) where name = %s"
CONTEXT = "select caliber_handoff_context(%s)"


@pytest.fixture
def cast(db: Connection) -> Cast:
    return Cast(db)


def context(cast: Cast, **more: object) -> str:
    handoff = cast.initiate(**more)  # type: ignore[arg-type]
    cast.accept(handoff)
    return str(scalar(cast.db, CONTEXT, handoff))


def say(cast: Cast, role: str, content: str, metadata: str = "{}") -> None:
    call = "select caliber_turn_add(%s, %s, %s, metadata => %s)"
    cast.db.execute(call, (cast.scope, role, content, metadata))


def test_3_1_any_agent_of_the_workflow_reads_all_variables(
    db: Connection, connect: Connect, roles: Callable[[str | None], str], cast: Cast
) -> None:
    db.execute(SET, (cast.work, "grammar", '"LL"', cast.worker))
    child = cast.accept(cast.delegate())["trajectory_id"]
    login = roles("caliber_agent")
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (login, cast.helper))
    session = connect(login)
    assert scalar(session, VALUE, child, "grammar") == "LL"
    db.execute(SET, (child, "found", "3", cast.helper))
    assert scalar(db, VALUE, cast.work, "found") == 3


def test_3_1_an_agent_writes_variables_of_its_own_scope_only(db: Connection, cast: Cast) -> None:
    child = cast.accept(cast.delegate())["trajectory_id"]
    login = 'update caliber_agent set memory_access = \'{"read": [], "write": []}\' where agent_id = %s'
    db.execute(login, (cast.helper,))
    assert state(db, SET, cast.work, "grammar", "1", cast.helper) == "42501"
    assert child is not None


def test_3_1_the_scope_moves_with_the_trajectory(
    db: Connection, connect: Connect, roles: Callable[[str | None], str], cast: Cast
) -> None:
    sessions = {}
    for agent in (cast.worker, cast.helper):
        login = roles("caliber_agent")
        db.execute("update caliber_agent set login_role = %s where agent_id = %s", (login, agent))
        sessions[agent] = connect(login)
    assert scalar(sessions[cast.worker], SET, cast.work, "grammar", "1", cast.worker) == 1
    assert state(sessions[cast.helper], SET, cast.work, "grammar", "2", cast.helper) == "42501"
    cast.accept(cast.initiate())
    assert scalar(sessions[cast.helper], SET, cast.work, "grammar", "2", cast.helper) == 2
    assert state(sessions[cast.worker], SET, cast.work, "grammar", "3", cast.worker) == "42501"


def test_3_1_files_in_progress_are_the_leases_of_this_moment(db: Connection, cast: Cast) -> None:
    assert scalar(db, VALUE, cast.work, "files_in_progress") is None
    take = "select caliber_lock_acquire(%s, 'file', 'src/a.py', 'exclusive', 60000)"
    lock = scalar(db, take, cast.worker)
    file = {"path": "src/a.py", "owner": cast.worker, "lock_type": "exclusive"}
    assert scalar(db, VALUE, cast.work, "files_in_progress") == [file]
    cast.accept(cast.initiate(lock_ids=[lock]))
    assert scalar(db, VALUE, cast.work, "files_in_progress") == [{**file, "owner": cast.helper}]
    db.execute("select caliber_lock_release(lock_id) from caliber_lock")
    assert scalar(db, VALUE, cast.work, "files_in_progress") is None


def test_3_1_decisions_made_are_the_design_decisions(db: Connection, cast: Cast) -> None:
    call = "select caliber_artifact_create(%s, null, 'design_decision', 'recursive descent')"
    artifact = scalar(db, call, cast.scope)
    query = (
        "select d ->> 'decision_id' = %s and d ->> 'made_by' = %s and d ->> 'description' = %s"
        " from caliber_context_variables(%s) as v, jsonb_array_elements(v.value) as d"
        " where v.name = 'decisions_made'"
    )
    assert scalar(db, query, str(artifact), cast.worker, "recursive descent", cast.work) is True


def test_3_1_what_is_seen_cannot_be_written(db: Connection, cast: Cast) -> None:
    assert scalar(db, VALUE, cast.work, "task_status") == "in_progress"
    for name in ("task_status", "decisions_made", "files_in_progress"):
        assert state(db, SET, cast.work, name, "1", cast.worker) == "22023"


def test_3_1_conflicting_writes_are_noticed_and_the_orchestrator_decides(db: Connection, cast: Cast) -> None:
    call = "select caliber_variable_set(%s, 'grammar', %s, %s, agent_id => %s)"
    assert scalar(db, call, cast.work, "1", 0, cast.worker) == 1
    assert scalar(db, call, cast.work, "2", 0, cast.worker) is None
    assert scalar(db, call, cast.work, "2", 1, cast.worker) == 2
    # An admin writes any, with no agent named.
    assert scalar(db, "select caliber_variable_set(%s, 'grammar', '3')", cast.work) == 3


def test_3_1_variables_of_the_handoff_become_the_receivers(db: Connection, cast: Cast) -> None:
    handoff = cast.delegate(variables='{"depth": 2}')
    assert scalar(db, VALUE, cast.work, "depth") is None
    child = cast.accept(handoff)["trajectory_id"]
    assert scalar(db, VALUE, child, "depth") == 2


def test_3_2_history_full(db: Connection, cast: Cast) -> None:
    say(cast, "user", "apples")
    db.execute("select caliber_scope_close(%s, 'fruit was discussed')", (cast.scope,))
    db.execute("select caliber_scope_open(%s)", (cast.work,))
    assert "apples" in context(cast, history_mode="full")


def test_3_2_history_summary(db: Connection, cast: Cast) -> None:
    say(cast, "user", "apples")
    db.execute("select caliber_scope_close(%s, 'fruit was discussed')", (cast.scope,))
    db.execute("select caliber_scope_open(%s)", (cast.work,))
    text = context(cast, history_mode="summary")
    assert "fruit was discussed" in text
    assert "apples" not in text


def test_3_2_history_relevant_only(db: Connection, cast: Cast) -> None:
    say(cast, "user", "apples")
    say(cast, "user", "the lexer drops comments")
    db.execute("select caliber_scope_close(%s, 'talk')", (cast.scope,))
    db.execute("select caliber_scope_open(%s)", (cast.work,))
    text = context(cast, history_mode="relevant_only")
    assert "drops comments" in text
    assert "apples" not in text


def test_3_2_history_has_at_most_so_many_messages(db: Connection, cast: Cast) -> None:
    for number in range(5):
        say(cast, "user", f"word{number}")
    text = context(cast, history_mode="full", max_messages=2)
    assert [f"word{number}" in text for number in range(5)] == [False, False, False, True, True]


@pytest.mark.parametrize("kind", ["system_messages", "tool_calls", "tool_results", "agent_reasoning"])
def test_3_2_history_leaves_out_what_is_not_wished(db: Connection, cast: Cast, kind: str) -> None:
    said = {
        "system_messages": ("system", "{}"),
        "tool_calls": ("assistant", '{"tool_calls": []}'),
        "tool_results": ("tool", "{}"),
        "agent_reasoning": ("assistant", '{"reasoning": true}'),
    }
    for name, (role, metadata) in said.items():
        say(cast, role, f"said_{name}", metadata)
    text = context(cast, history_mode="full", history_include=f'{{"{kind}": false}}')
    assert {name for name in said if f"said_{name}" not in text} == {kind}


def test_3_2_guidelines_are_the_defaults(db: Connection, cast: Cast) -> None:
    wanted = {}
    for kind, make in (("sequential", cast.initiate), ("escalation", cast.escalate)):
        handoff = make()
        wanted[kind] = cast.handoff(handoff)["history_mode"]
        db.execute("select caliber_withdraw_handoff(%s, %s)", (handoff, cast.worker))
    wanted["delegation"] = cast.handoff(cast.delegate())["history_mode"]
    assert wanted == {"sequential": "relevant_only", "escalation": "full", "delegation": "summary"}


def test_3_3_artifacts_go_with_it(db: Connection, cast: Cast) -> None:
    call = "select caliber_artifact_create(%s, null, 'test_result', '3 of 9 fail', path => 'out.txt')"
    artifact = scalar(db, call, cast.scope)
    handoff = cast.delegate(artifact_ids=[artifact])
    cast.accept(handoff)
    assert "3 of 9 fail" in str(scalar(db, CONTEXT, handoff))
    count = "select artifact_count from caliber_audit where handoff_id = %s limit 1"
    assert scalar(db, count, handoff) == 1


def test_3_constraints_are_told_to_the_receiver(db: Connection, cast: Cast) -> None:
    text = context(cast, budget=Decimal("12.5"), deadline="2099-01-01T00:00:00Z")
    assert "budget: 12.5" in text
    assert "deadline: 2099-01-01" in text


def test_3_a_context_too_large_is_cut_and_says_so(db: Connection, cast: Cast) -> None:
    for number in range(50):
        say(cast, "user", f"lexer {number} " + "word " * 50)
    handoff = cast.initiate(token_budget=500)
    cast.accept(handoff)
    assert scalar(db, "select token_count between 1 and 500 from caliber_context") is True
    assert "the budget is used up" in str(scalar(db, "select trace from caliber_context"))
