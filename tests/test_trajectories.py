"""Trajectories, scopes and turns: lifecycles that refuse nonsense, numbers without gaps."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

import pytest
from conftest import Connect, Connection, refused, scalar, state

START = "select caliber_trajectory_start(%s, %s, %s)"
TURN = "select caliber_turn_add(%s, %s, %s)"
CURRENT = "select scope_id from caliber_scope_current(%s)"


@pytest.fixture
def agent(db: Connection) -> object:
    return scalar(db, "select caliber_agent_register('coder', name => 'ann')")


@pytest.fixture
def trajectory(db: Connection, agent: object) -> object:
    return scalar(db, START, "port the parser", agent, None)


@pytest.fixture
def scope(db: Connection, trajectory: object) -> object:
    return scalar(db, CURRENT, trajectory)


def row(db: Connection, query: str, *arguments: object) -> dict[str, object]:
    found = db.execute(query, arguments).fetchone()
    assert found is not None
    return found


def test_start_opens_the_first_scope(db: Connection, agent: object) -> None:
    call = "select caliber_trajectory_start('work', %s, scope_name => 'first', token_budget => 500)"
    trajectory = scalar(db, call, agent)
    found = row(db, "select * from caliber_trajectory")
    assert (found["status"], found["agent_id"], found["depth"]) == ("active", agent, 0)
    assert found["root_trajectory_id"] == found["trajectory_id"] == trajectory
    opened = row(db, "select * from caliber_scope_current(%s)", trajectory)
    assert (opened["scope_no"], opened["name"], opened["token_budget"]) == (1, "first", 500)


@pytest.mark.parametrize(
    ("arguments", "sqlstate"),
    [
        ("null, %(agent)s", "22023"),
        ("'', %(agent)s", "22023"),
        ("repeat('x', 1001), %(agent)s", "22023"),
        ("'work', null", "22023"),
        ("'work', gen_random_uuid()", "P0002"),
        ("'work', %(agent)s, gen_random_uuid()", "P0002"),
        ("'work', %(agent)s, token_budget => 0", "22023"),
        ("'work', %(agent)s, token_budget => -5", "22023"),
        ("'work', %(agent)s, metadata => '[]'", "22023"),
        ("'work', %(agent)s, metadata => null", "22023"),
        ("'work', %(agent)s, incarnation => 2", "KA001"),
    ],
)
def test_start_refuses_bad_input_and_keeps_nothing(
    db: Connection, agent: object, arguments: str, sqlstate: str
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        db.execute(f"select caliber_trajectory_start({arguments})", {"agent": agent})
    assert getattr(caught.value, "sqlstate", None) == sqlstate
    assert scalar(db, "select count(*) from caliber_trajectory") == 0
    assert scalar(db, "select count(*) from caliber_scope") == 0


def test_children_know_their_root(db: Connection, agent: object, trajectory: object) -> None:
    child = scalar(db, START, "child", agent, trajectory)
    grandchild = scalar(db, START, "grandchild", agent, child)
    found = row(db, "select * from caliber_trajectory where trajectory_id = %s", grandchild)
    assert (found["depth"], found["root_trajectory_id"]) == (2, trajectory)
    tree = [r["tree"] for r in db.execute("select tree from caliber_trajectory_tree")]
    assert tree == ["port the parser", "└─ child", "   └─ grandchild"]


def test_a_parent_cycle_cannot_be_made(db: Connection, agent: object, trajectory: object) -> None:
    """A parent is given once, at the start, when the child has no id yet; nor by hand."""
    child = scalar(db, START, "child", agent, trajectory)
    change = "update caliber_trajectory set parent_trajectory_id = %s where trajectory_id = %s"
    assert state(db, change, child, child) == "23514"
    assert state(db, change, child, trajectory) == "23514"


def test_a_finished_trajectory_stays_finished(db: Connection, agent: object, trajectory: object) -> None:
    finish = "select caliber_trajectory_finish(%s, %s, %s)"
    assert state(db, finish, trajectory, "active", None) == "22023"
    assert state(db, finish, trajectory, "suspended", None) == "22023"
    assert state(db, finish, trajectory, None, None) == "22023"
    assert scalar(db, finish, trajectory, "completed", "it works") == "active"
    found = row(db, "select * from caliber_trajectory")
    assert (found["status"], found["outcome"]) == ("completed", "it works")
    assert found["finished_at"] is not None
    for call in ("finish(%s)", "finish(%s, 'failed')", "suspend(%s)", "resume(%s)"):
        assert state(db, f"select caliber_trajectory_{call}", trajectory) == "KA007"
    assert state(db, "select caliber_scope_open(%s)", trajectory) == "KA007"
    assert state(db, START, "child", agent, trajectory) == "KA007"
    assert scalar(db, CURRENT, trajectory) is None


def test_finishing_closes_the_open_scope(db: Connection, trajectory: object, scope: object) -> None:
    db.execute("select caliber_trajectory_finish(%s, 'failed')", (trajectory,))
    assert state(db, TURN, scope, "user", "too late") == "KA007"
    assert state(db, "select caliber_scope_close(%s)", scope) == "KA007"


def test_suspend_and_resume(db: Connection, trajectory: object, scope: object) -> None:
    assert state(db, "select caliber_trajectory_resume(%s)", trajectory) == "KA007"
    assert scalar(db, "select caliber_trajectory_suspend(%s, 'waits')", trajectory) == "active"
    assert state(db, "select caliber_trajectory_suspend(%s)", trajectory) == "KA007"
    assert state(db, TURN, scope, "user", "hello") == "KA007"
    create = "select caliber_artifact_create(%s, null, 'fact', 'x')"
    assert state(db, create, scope) == "KA007"
    assert scalar(db, "select caliber_trajectory_resume(%s)", trajectory) == "suspended"
    assert scalar(db, TURN, scope, "user", "hello") == 1


def test_one_scope_is_open_at_a_time(db: Connection, trajectory: object, scope: object) -> None:
    error = refused(db, "select caliber_scope_open(%s)", trajectory)
    assert error.sqlstate == "KA007"
    assert str(scope) in (error.diag.message_detail or "")
    db.execute("select caliber_scope_close(%s, 'done', '{\"line\": 7}')", (scope,))
    assert state(db, "select caliber_scope_close(%s)", scope) == "KA007"
    closed = row(db, "select * from caliber_scope where scope_id = %s", scope)
    assert (closed["summary"], closed["checkpoint"]) == ("done", {"line": 7})
    second = scalar(db, "select caliber_scope_open(%s, 'second')", trajectory)
    assert scalar(db, CURRENT, trajectory) == second
    assert row(db, "select scope_no from caliber_scope where scope_id = %s", second)["scope_no"] == 2


def test_checkpoint(db: Connection, scope: object) -> None:
    checkpoint = "select caliber_scope_checkpoint(%s, %s)"
    db.execute(checkpoint, (scope, '{"step": 1}'))
    db.execute(checkpoint, (scope, '{"step": 2}'))
    assert scalar(db, "select checkpoint from caliber_scope") == {"step": 2}
    assert state(db, checkpoint, scope, "[1]") == "22023"
    assert state(db, checkpoint, scope, None) == "22023"
    assert state(db, checkpoint, uuid.uuid4(), "{}") == "P0002"
    db.execute("select caliber_scope_close(%s)", (scope,))
    assert state(db, checkpoint, scope, "{}") == "KA007"
    assert scalar(db, "select checkpoint from caliber_scope") == {"step": 2}


def test_turns_count_from_one(db: Connection, scope: object, agent: object) -> None:
    assert scalar(db, TURN, scope, "user", "Hello, wörld 🌍") == 1
    assert scalar(db, TURN, scope, "assistant", "x" * 400) == 2
    call = "select caliber_turn_add(%s, 'tool', 'ok', tokens => 77, metadata => '{\"tool\": \"grep\"}')"
    assert scalar(db, call, scope) == 3
    turns = db.execute("select * from caliber_turn order by turn_no").fetchall()
    assert [(t["role"], t["token_count"]) for t in turns] == [("user", 5), ("assistant", 100), ("tool", 77)]
    assert turns[0]["content"] == "Hello, wörld 🌍"
    assert turns[2]["metadata"] == {"tool": "grep"}
    assert {t["agent_id"] for t in turns} == {agent}
    found = row(db, "select * from caliber_scope")
    assert (found["turn_count"], found["token_count"]) == (3, 182)


@pytest.mark.parametrize(
    ("arguments", "sqlstate"),
    [
        ("null, 'user', 'x'", "22023"),
        ("gen_random_uuid(), 'user', 'x'", "P0002"),
        ("%(scope)s, null, 'x'", "22023"),
        ("%(scope)s, 'robot', 'x'", "22P02"),
        ("%(scope)s, 'user', null", "22023"),
        ("%(scope)s, 'user', ''", "22023"),
        ("%(scope)s, 'user', repeat('x', 262145)", "54000"),
        ("%(scope)s, 'user', repeat('ü', 131073)", "54000"),
        ("%(scope)s, 'user', 'x', tokens => -1", "22023"),
        ("%(scope)s, 'user', repeat('x', 64000), tokens => 999", "22023"),
        ("%(scope)s, 'user', 'x', agent_id => gen_random_uuid()", "P0002"),
        ("%(scope)s, 'user', 'x', metadata => '[]'", "22023"),
        ("%(scope)s, 'user', 'x', metadata => jsonb_build_object('x', repeat('y', 300000))", "22023"),
        ("%(scope)s, 'user', 'x', agent_id => %(agent)s, incarnation => 9", "KA001"),
    ],
)
def test_turn_refuses_bad_input(
    db: Connection, agent: object, scope: object, arguments: str, sqlstate: str
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        db.execute(f"select caliber_turn_add({arguments})", {"scope": scope, "agent": agent})
    assert getattr(caught.value, "sqlstate", None) == sqlstate
    assert scalar(db, "select turn_count from caliber_scope") == 0


def test_content_of_the_greatest_size_is_kept(db: Connection, scope: object) -> None:
    assert scalar(db, "select caliber_turn_add(%s, 'user', repeat('x', 262144))", scope) == 1


def test_a_token_budget_is_never_exceeded(db: Connection, agent: object) -> None:
    call = "select caliber_trajectory_start('tight', %s, token_budget => 100)"
    scope = scalar(db, CURRENT, scalar(db, call, agent))
    add = "select caliber_turn_add(%s, 'user', 'x', tokens => %s)"
    assert scalar(db, add, scope, 60) == 1
    error = refused(db, add, scope, 41)
    assert error.sqlstate == "KA005"
    assert "60 of 100" in (error.diag.message_detail or "")
    assert scalar(db, add, scope, 40) == 2


def test_a_rolled_back_turn_leaves_no_gap(connect: Connect, scope: object) -> None:
    session = connect(autocommit=False)
    assert scalar(session, TURN, scope, "user", "one") == 1
    session.rollback()
    assert scalar(session, TURN, scope, "user", "again") == 1
    session.commit()


def test_a_terminated_agent_adds_nothing(db: Connection, agent: object, scope: object) -> None:
    db.execute("select caliber_agent_terminate(%s)", (agent,))
    assert state(db, TURN, scope, "user", "x") == "KA007"
    assert state(db, START, "work", agent, None) == "KA007"


def test_sixteen_write_one_scope_without_gap_or_loss(connect: Connect, db: Connection, scope: object) -> None:
    writers, each = 16, 20
    connections = [connect() for _ in range(writers)]
    numbers: list[list[object]] = [[] for _ in range(writers)]
    barrier = threading.Barrier(writers)

    def write(which: int) -> None:
        barrier.wait()
        for turn in range(each):
            content = f"writer {which} turn {turn}"
            numbers[which].append(scalar(connections[which], TURN, scope, "assistant", content))

    threads = [threading.Thread(target=write, args=(w,)) for w in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = {r["turn_no"]: r["content"] for r in db.execute("select turn_no, content from caliber_turn")}
    assert set(stored) == set(range(1, writers * each + 1))
    # Each writer was told the number its turn really has, and its own turns are in its order.
    for which in range(writers):
        assert [stored[n] for n in numbers[which]] == [f"writer {which} turn {t}" for t in range(each)]
    assert scalar(db, "select turn_count from caliber_scope") == writers * each


def test_adding_a_turn_stays_on_its_page(db: Connection, scope: object) -> None:
    for _ in range(30):
        db.execute(TURN, (scope, "user", "x"))
    db.execute("select pg_stat_force_next_flush()")
    found = row(
        db, "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'caliber_scope'"
    )
    assert found == {"n_tup_upd": 30, "n_tup_hot_upd": 30}


def test_sixteen_open_a_scope_and_one_wins(connect: Connect, db: Connection, trajectory: object) -> None:
    db.execute("select caliber_scope_close(scope_id) from caliber_scope")
    connections = [connect() for _ in range(16)]
    outcomes: list[str] = []
    barrier = threading.Barrier(16)

    def race(connection: Connection) -> None:
        barrier.wait()
        try:
            scalar(connection, "select caliber_scope_open(%s)", trajectory)
            outcomes.append("won")
        except Exception as error:
            outcomes.append(str(getattr(error, "sqlstate", error)))

    threads = [threading.Thread(target=race, args=(c,)) for c in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["KA007"] * 15 + ["won"]
    assert scalar(db, "select max(scope_no) from caliber_scope") == 2
    assert scalar(db, "select scope_count from caliber_trajectory") == 2


def test_what_happens_is_recorded(db: Connection, trajectory: object, scope: object) -> None:
    db.execute("select caliber_scope_close(%s)", (scope,))
    db.execute("select caliber_scope_open(%s)", (trajectory,))
    db.execute("select caliber_trajectory_finish(%s, 'failed')", (trajectory,))
    rows = db.execute(
        "select event_type, severity from caliber_event where trajectory_id = %s order by event_id",
        (trajectory,),
    ).fetchall()
    assert [(r["event_type"], r["severity"]) for r in rows] == [
        ("trajectory_started", "info"),
        ("scope_closed", "info"),
        ("scope_opened", "info"),
        ("trajectory_finished", "warning"),
    ]


def test_a_function_of_ones_own_counts_tokens(db: Connection, connect: Connect, scope: object) -> None:
    db.execute("create function words(text) returns integer language sql as"
               " $$ select cardinality(regexp_split_to_array($1, ' ')) $$")  # fmt: skip
    assert scalar(db, "select caliber_config_set('token_estimator', 'public.words')") == "public.words"
    scalar(db, TURN, scope, "user", "three words only")
    db.execute("select caliber_turn_add(%s, 'user', 'three words only', tokens => 9)", (scope,))
    counts = [r["token_count"] for r in db.execute("select token_count from caliber_turn order by turn_no")]
    assert counts == [3, 9]
    allowed = scalar(db, "select allowed from caliber_config where key = 'token_estimator'")
    assert allowed == "f(text) returning integer"
    db.execute("select caliber_config_reset('token_estimator')")
    scalar(db, TURN, scope, "user", "three words only")
    assert scalar(db, "select max(token_count) from caliber_turn where turn_no = 3") == 4


def test_the_function_that_counts_tokens_must_be_a_superusers(
    db: Connection, connect: Connect, roles: Callable[[str | None], str], scope: object
) -> None:
    """Else an admin could have a function of its own run as the owner of all tables."""
    for bad in ("nowhere", "words(text)", "upper", "words; drop table caliber_turn", "", "pg_catalog.now"):
        assert state(db, "select caliber_config_set('token_estimator', %s)", bad) == "22023"
    login = roles("caliber_admin")
    db.execute(f"create schema mine authorization {login}")
    db.execute("grant usage on schema mine to public")
    admin = connect(login)
    admin.execute("create function mine.words(text) returns integer language sql as $$ select 1 $$")
    call = "select caliber_config_set('token_estimator', 'mine.words')"
    assert state(admin, call) == "22023"
    # One that changes hands after it was set is not called either.
    db.execute("alter function mine.words owner to postgres")
    db.execute(call)
    assert scalar(db, TURN, scope, "user", "x") == 1
    db.execute(f"alter function mine.words owner to {login}")
    assert state(db, TURN, scope, "user", "x") == "22023"


def test_two_that_start_and_then_assign_wait_for_each_other_one_way(
    db: Connection, connect: Connect, agent: object
) -> None:
    first, second = connect(autocommit=False), connect(autocommit=False)
    assign = "select caliber_agent_assign_trajectory(%s, %s)"
    mine = scalar(first, START, "mine", agent, None)
    done: list[object] = []

    def other() -> None:
        try:
            done.append(scalar(second, assign, agent, scalar(second, START, "yours", agent, None)))
        except Exception as error:
            done.append(error)
        second.commit()

    thread = threading.Thread(target=other)
    thread.start()
    waiting = "select count(*) from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
    while thread.is_alive() and scalar(db, waiting, second.info.backend_pid) == 0:
        pass
    assert scalar(first, assign, agent, mine) is not None
    first.commit()
    thread.join()
    assert not isinstance(done[0], Exception) or getattr(done[0], "sqlstate", "") == "KA007"
