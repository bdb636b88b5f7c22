"""What goes wrong in between: answers that are lost, results that come late, tasks that cannot be ended."""

from __future__ import annotations

import threading
from typing import Any

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
    row,
    told,
)


@pytest.fixture
def cast(db: Connection) -> Cast:
    return make_cast(db)


def count(db: Connection, table: str) -> object:
    return scalar(db, f"select count(*) from {table}")


def test_giving_again(db: Connection, cast: Cast) -> None:
    task = delegate(db, cast.kyra, idempotency_key="a")
    assert delegate(db, cast.kyra, idempotency_key="a") == task
    assert len(told(db, task)) == 1
    assert row(db, task)["idempotency_key"] == "a"
    assert delegate(db, cast.kyra, idempotency_key="b") != task
    # A key is of its delegator.
    assert delegate(db, cast.ada, idempotency_key="a") != task
    query = "select caliber_delegate_task(%s, 'code', %s, idempotency_key => %s)"
    assert state(db, query, cast.kyra, "other", "a") == "23505"
    assert state(db, query, cast.kyra, "review", "") == "22023"
    assert state(db, query, cast.kyra, "review", "x" * 201) == "22023"
    # Whatever became of it, and of those it is for.
    accept(db, task, cast.luke)
    complete(db, task)
    db.execute("update caliber_agent_beat set beat_at = now() - interval '1 hour'")
    assert delegate(db, cast.kyra, idempotency_key="a") == task
    assert state(db, query, cast.kyra, "review", "c") == "KA004"


def test_giving_a_part_again(db: Connection, cast: Cast) -> None:
    top = given(db, cast.kyra, cast.luke, budget_tokens=4000)
    work = row(db, top)["child_trajectory_id"]
    more: dict[str, Any] = {"budget_tokens": 3000, "max_tokens": 3000, "idempotency_key": "a"}
    for name, place in (("parent_delegation_id", top), ("parent_trajectory_id", work)):
        more[name] = place
        part = delegate(db, cast.luke, "data", **more)
        # There is not room for two.
        assert delegate(db, cast.luke, "data", **more) == part
        del more[name]
    assert (row(db, top)["tokens_reserved"], row(db, top)["open_children"]) == (3000, 1)


def test_giving_at_once_under_one_key(db: Connection, connect: Connect, cast: Cast) -> None:
    first = connect(autocommit=False)
    task = delegate(first, cast.kyra, idempotency_key="a")
    got: list[str] = []
    other = connect()
    pid = other.info.backend_pid
    thread = threading.Thread(target=lambda: got.append(delegate(other, cast.kyra, idempotency_key="a")))
    thread.start()
    waits = "select count(*) from pg_locks where pid = %s and not granted"
    while not scalar(db, waits, pid):
        assert thread.is_alive()
    first.commit()
    thread.join()
    assert got == [task]
    assert count(db, "caliber_delegation") == 1


def test_taking_again(db: Connection, cast: Cast) -> None:
    task = delegate(db, cast.kyra)
    work = accept(db, task, cast.luke)
    assert accept(db, task, cast.luke) == work
    scalar(db, "select caliber_start_delegation(%s)", task)
    assert accept(db, task, cast.luke) == work
    assert accept(db, task, cast.lena) is None
    assert (row(db, task)["attempts"], len(told(db, task))) == (1, 3)
    # Not when it has timed out: that is the next attempt.
    lapse(db, task)
    assert accept(db, task, cast.luke) not in (None, work)
    assert row(db, task)["attempts"] == 2
    complete(db, task)
    assert accept(db, task, cast.luke) is None


def test_completing_again(db: Connection, cast: Cast) -> None:
    task = given(db, cast.kyra, cast.luke)
    for _ in range(2):
        assert complete(db, task, summary="done", tokens=70, result_artifacts=["a.md"]) == "completed"
    assert row(db, task)["tokens_used"] == 70
    assert len([t for t in told(db, task) if t[2] == "task_result"]) == 1
    assert scalar(db, "select count(*) from caliber_event where event_type = 'delegation_completed'") == 1
    # Another result is not the same.
    for more in ("summary => 'else'", "result_status => 'partial', summary => 'done'", "agent_id => %s"):
        query = f"select caliber_complete_delegation(%s, {more})"
        arguments = (task, cast.lena) if "%s" in more else (task,)
        assert state(db, query, *arguments) == ("42501" if "%s" in more else "KA007"), more
    part = given(db, cast.luke, cast.ada, parent_delegation_id=given(db, cast.kyra, cast.luke))
    for _ in range(2):
        assert complete(db, part, result_status="failure", tokens=5) == "failed"
    assert row(db, part)["tokens_used"] == 5


def test_failing_again(db: Connection, cast: Cast) -> None:
    query = "select caliber_fail_delegation(%s, 'crash', tokens => 10, agent_id => %s)"
    task = delegate(db, cast.kyra)
    accept(db, task, cast.luke)
    for _ in range(2):
        assert scalar(db, query, task, cast.luke) == "pending"
    assert row(db, task)["tokens_used"] == 10
    other = "select caliber_fail_delegation(%s, 'else', agent_id => %s)"
    assert state(db, other, task, cast.luke) == "KA007"
    assert accept(db, task, cast.lena) is not None
    assert state(db, query, task, cast.luke) == "42501"


def test_turning_down_again(db: Connection, cast: Cast) -> None:
    query = "select caliber_reject_delegation(%s, %s)"
    task = delegate(db, cast.kyra)
    for _ in range(3):
        assert scalar(db, query, task, cast.luke) == "pending"
    assert (len(row(db, task)["rejected_by"]), len(told(db, task))) == (1, 3)  # type: ignore[arg-type]
    assert scalar(db, query, task, cast.lena) == "rejected"


def test_turned_down_by_all_who_could(db: Connection, cast: Cast) -> None:
    """An agent of the type that lacks a capability is nobody to wait for."""
    db.execute("select caliber_agent_register('data', name => 'dora')")
    task = delegate(db, cast.kyra, "data", required_capabilities=["sql"])
    assert scalar(db, "select caliber_reject_delegation(%s, %s)", task, cast.ada) == "rejected"


@pytest.mark.parametrize("verb", ["complete", "fail"])
def test_a_late_report_says_how_it_is_counted(db: Connection, cast: Cast, verb: str) -> None:
    task = given(db, cast.kyra, cast.luke)
    lapse(db, task)
    query = f"select caliber_{verb}_delegation(%s, tokens => 700, cost => 0.25, agent_id => %s)"
    error = refused(db, query, task, cast.luke)
    assert error.sqlstate == "KA007"
    assert row(db, task)["tokens_used"] == 0
    call = str(error.diag.message_hint).partition(": ")[2]
    assert call.startswith("select * from caliber_progress_delegation(")
    assert scalar(db, call) == "timed_out"
    made = row(db, task)
    assert (made["tokens_used"], made["tool_calls_used"], str(made["cost_used"])) == (700, 0, "0.25")


def test_late_use_keeps_nothing_from_ending(db: Connection, cast: Cast) -> None:
    """More than the part had reserved, and more than there is above."""
    top = given(db, cast.kyra, cast.luke, budget_tokens=1000)
    part = given(
        db, cast.luke, cast.ada, parent_delegation_id=top, max_tokens=100, budget_tokens=100, max_retries=0
    )
    lapse(db, part)
    scalar(db, "select status from caliber_progress_delegation(%s, 5000)", part)
    assert expire(db) == 1
    assert row(db, part)["status"] == "timed_out"
    assert (row(db, top)["tokens_below"], row(db, top)["tokens_reserved"]) == (5000, 0)
    assert state(db, "select caliber_progress_delegation(%s, 1)", top) == "KA005"
    assert complete(db, top) == "completed"


def poison(db: Connection, task: str) -> None:
    """Whatever ends it fails."""
    db.execute(
        "create function poison() returns trigger language plpgsql as"
        " $$ begin raise exception 'poison'; end $$"
    )
    db.execute(
        "create trigger poison before update on caliber_delegation for each row"
        f" when (old.delegation_id = '{task}') execute function poison()"
    )


def test_one_that_cannot_be_ended_stops_no_other(db: Connection, cast: Cast) -> None:
    tasks = [given(db, cast.kyra, cast.luke) for _ in range(4)]
    for task in tasks:
        lapse(db, task)
    poison(db, tasks[0])
    assert expire(db, 1) == 1
    assert expire(db) == 2
    assert [row(db, t)["status"] for t in tasks] == ["accepted", "pending", "pending", "pending"]
    failed = "select reference_id from caliber_event where event_type = 'delegation_expire_failed'"
    assert scalar(db, failed) == tasks[0]


def test_one_that_is_held_stops_no_other(db: Connection, connect: Connect, cast: Cast) -> None:
    top = given(db, cast.kyra, cast.luke)
    held = [given(db, cast.luke, cast.ada, parent_delegation_id=top), given(db, cast.kyra, cast.luke)]
    free = [given(db, cast.kyra, cast.luke) for _ in range(2)]
    for task in (*held, *free):
        lapse(db, task)
    # The one without its root, as by who takes it; the other is a root.
    holder = connect(autocommit=False)
    holder.execute("select from caliber_delegation where delegation_id = any (%s) for update", (held,))
    db.execute("set statement_timeout = '10s'")
    db.execute("set lock_timeout = '7s'")
    assert expire(db, 1) == 1
    assert expire(db) == 1
    assert scalar(db, "show lock_timeout") == "7s"
    assert [row(db, t)["status"] for t in free] == ["pending", "pending"]
    holder.rollback()
    assert expire(db) == 2


def test_the_dead_are_listed(db: Connection, cast: Cast) -> None:
    task = given(db, cast.kyra, cast.luke, max_retries=1)
    for _ in range(2):
        accept(db, task, cast.luke)
        scalar(db, "select caliber_fail_delegation(%s)", task)
    dead = db.execute("select delegator, delegatee, attempts, error from caliber_dead_delegation").fetchall()
    assert [tuple(r.values()) for r in dead] == [("kyra", "luke", 2, "failed")]
