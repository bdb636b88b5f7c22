"""Many at once: one taker a task, five tasks an agent, no budget passed, no task lost.

CALIBER_RACE_TASKS=2000 makes it longer."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import psycopg
from conftest import Connect, Connection, scalar
from delegations_cast import delegate, given, lapse, make_cast, row
from harness.races import CLIENTS, quiet, race_for_tasks, together

TASKS = int(os.environ.get("CALIBER_RACE_TASKS", "160"))


def test_one_taker_a_task(db: Connection, connect: Connect) -> None:
    tasks, won = race_for_tasks(db, connect, TASKS)
    assert Counter(won) == Counter(tasks)
    assert scalar(db, "select count(*) from caliber_delegation where status = 'completed'") == TASKS
    assert scalar(db, "select sum(attempts) from caliber_delegation") == TASKS
    assert scalar(db, "select count(*) from caliber_trajectory") == TASKS
    results = "select count(*) from caliber_message where message_type = %s"
    assert scalar(db, results, "task_result") == TASKS
    assert scalar(db, results, "coordination_signal") == TASKS


def test_five_tasks_an_agent(db: Connection, connect: Connect) -> None:
    """One agent, many processes."""
    cast = make_cast(db)
    tasks = [delegate(db, cast.kyra) for _ in range(CLIENTS)]
    answers: list[str] = []

    def work(number: int, session: Connection) -> None:
        try:
            query = "select caliber_accept_delegation(%s, %s)"
            answers.append("taken" if scalar(session, query, tasks[number], cast.luke) else "lost")
        except psycopg.Error as error:
            answers.append(str(error.sqlstate))

    together(connect, work)
    assert Counter(answers) == {"taken": 5, "KA006": CLIENTS - 5}


def test_five_tasks_an_agent_with_old_snapshots(db: Connection, connect: Connect) -> None:
    """Who cannot see what the others took fails, rather than to count wrong."""
    cast = make_cast(db)
    tasks = [delegate(db, cast.kyra) for _ in range(CLIENTS)]
    answers: list[str] = []

    def work(number: int, session: Connection) -> None:
        try:
            with session.transaction():
                session.execute("set transaction isolation level repeatable read")
                query = "select caliber_accept_delegation(%s, %s)"
                answers.append("taken" if scalar(session, query, tasks[number], cast.luke) else "lost")
        except psycopg.Error as error:
            answers.append(str(error.sqlstate))

    together(connect, work)
    assert set(answers) <= {"taken", "KA006", "40001"}
    having = "select count(*) from caliber_delegation where delegatee_agent_id = %s and status = 'accepted'"
    assert 1 <= int(str(scalar(db, having, cast.luke))) <= 5


def test_spenders_never_pass_the_cap(db: Connection, connect: Connect) -> None:
    """Some spend in the task itself, others in parts that share its budget, some pass parts on."""
    quiet(db)
    db.execute("select caliber_config_set('agent_max_concurrent_tasks', '1000')")
    cast = make_cast(db)
    cap = 2000
    top = given(db, cast.kyra, cast.luke, max_tokens=100_000, budget_tokens=cap, budget_cost=1)
    parts = [
        given(db, cast.luke, cast.ada, parent_delegation_id=top, budget_tokens=100, max_tokens=100)
        for _ in range(4)
    ]
    answers: Counter[str] = Counter()
    spent: list[tuple[int, float]] = []

    def spend(session: Connection, task: str, tokens: int, cost: float) -> None:
        query = "select status from caliber_progress_delegation(%s, %s, cost => %s::numeric)"
        session.execute(query, (task, tokens, cost))
        spent.append((tokens, cost))

    def pass_on(session: Connection) -> None:
        query = (
            "select caliber_delegate_task(%s, null, 'part', delegatee_agent_id => %s,"
            " parent_delegation_id => %s, budget_tokens => 90, max_tokens => 90)"
        )
        task = str(scalar(session, query, cast.luke, cast.ada, top))
        session.execute("select caliber_accept_delegation(%s, %s)", (task, cast.ada))
        spend(session, task, 30, 0)
        session.execute("select caliber_complete_delegation(%s)", (task,))

    def work(number: int, session: Connection) -> None:
        for turn in range(12):
            try:
                if number % 3 == 0:
                    spend(session, top, 17, 0.007)
                elif number % 3 == 1:
                    spend(session, parts[turn % 4], 7, 0.011)
                else:
                    pass_on(session)
                answers["spent"] += 1
            except psycopg.Error as error:
                answers[str(error.sqlstate)] += 1

    together(connect, work)
    assert set(answers) == {"spent", "KA005"}
    made = row(db, top)
    used = int(str(made["tokens_used"])) + int(str(made["tokens_below"])) + int(str(made["tokens_reserved"]))
    assert used <= cap
    assert float(str(made["cost_used"])) + float(str(made["cost_below"])) <= 1
    # Nothing that was let through is missing.
    total = "select sum(tokens_used) from caliber_delegation"
    assert int(str(scalar(db, total))) == sum(tokens for tokens, _ in spent)
    cost = float(str(scalar(db, "select sum(cost_used) from caliber_delegation")))
    assert abs(cost - sum(cost for _, cost in spent)) < 1e-6
    over = "select count(*) from caliber_delegation where tokens_used > least(max_tokens, budget_tokens)"
    assert scalar(db, over) == 0
    for part in parts:
        db.execute("select caliber_cancel_delegation(%s)", (part,))
    made = row(db, top)
    assert (made["tokens_reserved"], made["open_children"]) == (0, 0)
    assert int(str(made["tokens_used"])) + int(str(made["tokens_below"])) == scalar(db, total)


def test_timeouts_are_made_final_once(db: Connection, connect: Connect) -> None:
    quiet(db)
    cast = make_cast(db)
    db.execute("select caliber_config_set('agent_max_concurrent_tasks', '1000')")
    tasks = [given(db, cast.kyra, cast.luke) for _ in range(40)]
    for task in tasks:
        lapse(db, task)
    counts: list[int] = []

    def work(number: int, session: Connection) -> None:
        for _ in range(4):
            counts.append(int(str(scalar(session, "select _caliber_delegations_expire(15)"))))

    together(connect, work, 6)
    while left := scalar(db, "select _caliber_delegations_expire(15)"):
        counts.append(int(str(left)))
    assert sum(counts) == len(tasks)
    again = "select count(*) from caliber_event where event_type = 'delegation_retried'"
    assert scalar(db, again) == len(tasks)
    assert scalar(db, "select count(*) from caliber_delegation where status = 'pending'") == len(tasks)


def test_everything_at_once_in_a_tree(db: Connection, connect: Connect) -> None:
    """Passing on, taking, ending, cancelling in one tree: no deadlock, and the counts agree."""
    quiet(db)
    cast = make_cast(db)
    db.execute("select caliber_config_set('agent_max_concurrent_tasks', '1000')")
    top = given(db, cast.kyra, cast.luke, max_tokens=100_000, budget_tokens=100_000)
    middle = [given(db, cast.luke, cast.ada, parent_delegation_id=top) for _ in range(4)]
    answers: Counter[str] = Counter()

    def step(session: Connection, number: int, turn: int) -> None:
        parent = middle[(number + turn) % 4]
        query = (
            "select caliber_delegate_task(%s, 'code', 'part', parent_delegation_id => %s,"
            " budget_tokens => 50)"
        )
        task = scalar(session, query, cast.ada, parent)
        session.execute("select caliber_accept_delegation(%s, %s)", (task, cast.lena))
        if turn % 3 == 0:
            session.execute("select caliber_cancel_delegation(%s)", (parent,))
        elif turn % 3 == 1:
            session.execute("select caliber_complete_delegation(%s, tokens => 20)", (task,))
        else:
            session.execute("select caliber_fail_delegation(%s, retry => false, tokens => 5)", (task,))

    def work(number: int, session: Connection) -> None:
        for turn in range(1, 7):
            try:
                step(session, number, turn)
                answers["done"] += 1
            except psycopg.Error as error:
                answers[str(error.sqlstate)] += 1

    together(connect, work, 8)
    assert set(answers) <= {"done", "KA007", "KA005"}, answers
    wrong = """
        select count(*) from caliber_delegation as p
        where p.open_children <> (
            select count(*) from caliber_delegation as c
            where c.parent_delegation_id = p.delegation_id and c.ended_at is null
        )
    """
    assert scalar(db, wrong) == 0
    db.execute("select caliber_cancel_delegation(%s)", (top,))
    made = row(db, top)
    assert (made["tokens_reserved"], made["open_children"]) == (0, 0)
    below = scalar(db, "select sum(tokens_used) from caliber_delegation where depth > 1")
    assert made["tokens_below"] == below


def test_reaping_ticking_and_cancelling_at_once(db: Connection, connect: Connect) -> None:
    """Agents that fall silent, time that runs out and trees that are cancelled, while others work on
    them: nobody is a deadlock's victim, and in the end everything adds up."""
    quiet(db)
    db.execute("select caliber_config_set('agent_max_concurrent_tasks', '1000')")
    cast = make_cast(db)
    tops = [given(db, cast.kyra, cast.luke, max_tokens=100_000, budget_tokens=50_000) for _ in range(3)]
    answers: Counter[str] = Counter()

    def pass_on(session: Connection, top: str) -> None:
        query = "select caliber_delegate_task(%s, 'data', 'part', parent_delegation_id => %s)"
        part = scalar(session, query, cast.luke, top)
        session.execute("select caliber_accept_delegation(%s, %s)", (part, cast.ada))
        session.execute("select caliber_progress_delegation(%s, 5)", (part,))
        session.execute("select caliber_complete_delegation(%s)", (part,))

    steps: list[Callable[[Connection, str], object]] = [
        pass_on,
        pass_on,
        lambda session, _: session.execute("select caliber_tick()"),
        lambda session, _: session.execute("select caliber_agent_reap()"),
        lambda session, _: session.execute(
            "update caliber_agent_beat set beat_at = now() - interval '1 h' where agent_id = %s", (cast.ada,)
        ),
        lambda session, top: lapse(session, top),
        lambda session, top: session.execute("select caliber_accept_delegation(%s, %s)", (top, cast.luke)),
        lambda session, top: session.execute("select caliber_cancel_delegation(%s)", (top,)),
    ]

    def work(number: int, session: Connection) -> None:
        # Those that end what the others work on do so seldom.
        for turn in range(3 if number % len(steps) > 3 else 9):
            try:
                if number % len(steps) != 7 or turn == 2:
                    steps[number % len(steps)](session, tops[turn % 3])
                answers["done"] += 1
            except psycopg.Error as error:
                answers[str(error.sqlstate)] += 1

    together(connect, work)
    # KA004: the silent agent was reaped.
    assert set(answers) <= {"done", "KA004", "KA005", "KA007", "P0002", "42501"}, answers
    problems = "select problem from caliber_tick() where problem is not null"
    assert db.execute(problems).fetchall() == []
    for top in tops:
        db.execute("select caliber_cancel_delegation(%s)", (top,))
    assert scalar(db, "select count(*) from caliber_delegation where ended_at is null") == 0
    wrong = """
        select count(*) from caliber_delegation as p
        where p.open_children <> 0 or p.tokens_reserved <> 0 or p.tokens_below <> (
            select coalesce(sum(c.tokens_used + c.tokens_below), 0) from caliber_delegation as c
            where c.parent_delegation_id = p.delegation_id
        )
    """
    assert scalar(db, wrong) == 0
