"""No step reads more of the table than it needs, however many tasks there were, nor with a plan that
was made when there were none.

CALIBER_PLAN_TASKS=100000 has more tasks there."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from conftest import Connect, Connection, scalar
from delegations_cast import accept, complete, delegate, expire, given, lapse, register, row

TASKS = int(os.environ.get("CALIBER_PLAN_TASKS", "20000"))

# Half of them are one delegator's, and one delegatee's.
LOAD = """
    with task as (
        insert into caliber_delegation (
            delegation_id, root_delegation_id, team_id, delegator_agent_id, delegatee_agent_id, chain, title,
            instructions, timeout_seconds, max_tokens, max_tool_calls, max_retries, attempts, status,
            expires_at, ended_at, child_trajectory_id
        )
        select
            new.id, new.id, g.team_id, g.agent_id, t.agent_id, array[g.agent_id], 'done', 'done', 120, 4000,
            10, 2, 1, 'completed', now(), now(), gen_random_uuid()
        from generate_series(1, %s) as n
        cross join lateral (select caliber_uuid_v7() as id where n > 0) as new
        join caliber_agent as g on g.name = case when n %% 2 = 0 then 'kyra' else 'g' || n %% 30 end
        join caliber_agent as t on t.name = case when n %% 2 = 0 then 'luke' else 't' || n %% 30 end
        returning child_trajectory_id, delegatee_agent_id, team_id
    ),
    work as (
        insert into caliber_trajectory (
            trajectory_id, name, agent_id, team_id, root_trajectory_id, scope_count, status, finished_at
        )
        select
            t.child_trajectory_id, 'done', t.delegatee_agent_id, t.team_id, t.child_trajectory_id, 1,
            'completed', now()
        from task as t
    )
    insert into caliber_scope (trajectory_id, scope_no, agent_id, team_id, closed_at)
    select t.child_trajectory_id, 1, t.delegatee_agent_id, t.team_id, now() from task as t
"""

SCANS = """
    select coalesce(sum(seq_scan), 0) from pg_stat_xact_user_tables
    where relname in ('caliber_delegation', 'caliber_trajectory', 'caliber_scope')
"""


class Crew:
    def __init__(self, db: Connection) -> None:
        for key, value in (("message_queue_limit", "0"), ("delegation_to_silent", "on")):
            db.execute("select caliber_config_set(%s, %s)", (key, value))
        for n in range(1, 30, 2):
            register(db, "general", f"g{n}")
            register(db, "code", f"t{n}")
        self.kyra, self.luke = register(db, "general", "kyra"), register(db, "code", "luke")
        self.ada = register(db, "data", "ada", max_concurrent_tasks=1000)


def lives(db: Connection, crew: Crew) -> None:
    """Every verb, in trees and alone."""
    for _ in range(2):
        top = given(db, crew.kyra, crew.luke, budget_tokens=100_000)
        work = row(db, top)["child_trajectory_id"]
        parts = [delegate(db, crew.luke, "data", parent_trajectory_id=work) for _ in range(5)]
        for part in parts[:4]:
            accept(db, part, crew.ada)
        db.execute("select caliber_reject_delegation(%s, %s)", (parts[4], crew.ada))
        db.execute("select caliber_start_delegation(%s)", (parts[0],))
        db.execute("select caliber_progress_delegation(%s, 10)", (parts[0],))
        complete(db, parts[0])
        db.execute("select caliber_fail_delegation(%s, retry => false)", (parts[1],))
        db.execute("select caliber_retry_delegation(%s)", (parts[1],))
        lapse(db, parts[2])
        assert expire(db) == 1
        db.execute("select caliber_delegation_wait(%s, 0)", (parts[2],))
        db.execute("select caliber_delegation_tree(%s)", (top,))
        for agent in (crew.kyra, crew.luke, crew.ada):
            db.execute("select caliber_delegation_list(%s)", (agent,))
        db.execute("select * from caliber_dead_delegation").fetchall()
        assert scalar(db, "select _caliber_delegations_give_back(%s)", crew.ada) == 1
        db.execute("select caliber_cancel_delegation(%s)", (top,))
        complete(db, given(db, crew.kyra, crew.luke, idempotency_key=top), tokens=1)
        db.execute("select caliber_tick()")


def scans(db: Connection, work: Callable[[], None]) -> object:
    with db.transaction():
        before = scalar(db, SCANS)
        work()
        return int(str(scalar(db, SCANS))) - int(str(before))


@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "planned when empty"])
def test_nothing_reads_the_whole_table(db: Connection, connect: Connect, analyzed: bool) -> None:
    crew = Crew(db)
    if not analyzed:
        for table in ("delegation", "trajectory", "scope"):
            db.execute(f"alter table caliber_{table} set (autovacuum_enabled = false)")
        for _ in range(4):
            lives(db, crew)
    other = connect()
    other.execute(LOAD, (TASKS,))
    if analyzed:
        other.execute("analyze")
    assert scalar(db, "select count(*) from caliber_delegation where title = 'done'") == TASKS
    assert scans(db, lambda: lives(db, crew)) == 0


def test_an_agent_reads_its_own_by_index(db: Connection, connect: Connect, roles: object) -> None:
    crew = Crew(db)
    assert callable(roles)
    login = roles("caliber_agent")
    db.execute("update caliber_agent set login_role = %s where agent_id = %s", (login, crew.luke))
    db.execute(LOAD, (TASKS,))
    db.execute("analyze")
    top = given(db, crew.kyra, crew.luke)
    part = delegate(db, crew.luke, "data", parent_delegation_id=top)
    hand = connect(login)

    def look() -> None:
        for query, argument in (
            ("select task from caliber_delegation_tree(%s)", top),
            ("select title from caliber_delegation_get(%s)", part),
            ("select title from caliber_delegation_list(%s)", crew.luke),
        ):
            assert hand.execute(query, (argument,)).fetchall()

    assert scans(hand, look) == 0
