"""caliber_tick, caliber_agent_reap and caliber_after_restore."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from conftest import Connect, Connection, scalar, state

Roles = Callable[[str | None], str]

SILENT = "update caliber_agent_beat set beat_at = beat_at - interval '1 hour' where agent_id = %s"
REAP = "select * from caliber_agent_reap()"
HELD = "select count(*) from caliber_lock where holder_agent_id = %s"


@pytest.fixture
def agents(db: Connection) -> list[object]:
    db.execute("select caliber_team_create('default')")
    return [scalar(db, "select caliber_agent_register('coder', name => %s)", n) for n in ("ann", "bob")]


def steps(db: Connection) -> dict[str, object]:
    rows = db.execute("select step, done, problem from caliber_tick()").fetchall()
    assert [row["problem"] for row in rows if row["problem"]] == []
    return {str(row["step"]): row["done"] for row in rows}


def incarnation(db: Connection, agent: object) -> object:
    return scalar(db, "select incarnation from caliber_agent_beat where agent_id = %s", agent)


def lock(db: Connection, agent: object, resource: str, *, ms: int = 60000) -> object:
    query = "select caliber_lock_acquire(%s, 'thing', %s::text, timeout_ms => %s)"
    return scalar(db, query, agent, resource, ms)


def receive(db: Connection, agent: object) -> dict[str, object] | None:
    return db.execute("select * from caliber_message_receive(%s)", (agent,)).fetchone()


def test_a_tick_with_nothing_to_do(db: Connection, agents: list[object]) -> None:
    assert set(steps(db).values()) == {0}
    assert set(steps(db).values()) == {0}


def test_what_a_dead_agent_held_goes_to_others(db: Connection, agents: list[object]) -> None:
    ann, bob = agents
    held = lock(db, ann, "a")
    shared = "select caliber_lock_acquire(%s, 'thing', 'b'::text, 'shared')"
    scalar(db, shared, ann)
    db.execute("select caliber_token_request(%s, 'review')", (ann,))
    db.execute("select caliber_token_request(%s, 'review')", (bob,))
    db.execute("select caliber_token_request(%s, 'test_run')", (bob,))
    db.execute("select caliber_token_request(%s, 'test_run')", (ann,))
    db.execute("select caliber_message_send(%s, null, 'coder', 'task_delegation')", (bob,))
    db.execute("select caliber_message_send(%s, %s, null, 'task_delegation')", (bob, ann))
    receipts = db.execute("select message_id, receipt from caliber_message_receive(%s)", (ann,)).fetchall()
    assert len(receipts) == 2
    assert receive(db, bob) is None

    db.execute(SILENT, (ann,))
    reaped = db.execute(REAP).fetchall()
    assert [(r["agent_id"], r["incarnation"], r["given_back"]) for r in reaped] == [(ann, 2, 6)]
    row = db.execute("select status::text, status_reason from caliber_agent_get(%s)", (ann,)).fetchone()
    assert row
    assert row["status"] == "failed"
    assert "silent for 01:00" in str(row["status_reason"])

    assert lock(db, bob, "a") not in (None, held)
    assert scalar(db, HELD, ann) == 0
    assert scalar(db, "select granted from caliber_token_request(%s, 'review')", bob) is True
    assert scalar(db, "select count(*) from caliber_token_waiter") == 0
    taken = receive(db, bob)
    assert taken
    assert taken["message_id"] in [r["message_id"] for r in receipts]
    # What was for the dead agent alone waits for its next process; nothing old settles it.
    for receipt in receipts:
        query = "select caliber_message_acknowledge(%s, %s)"
        assert state(db, query, receipt["message_id"], receipt["receipt"]) == "KA001"
    again = scalar(db, "select caliber_agent_resume(%s)", ann)
    assert again == 3
    own = db.execute("select * from caliber_message_receive(%s, incarnation => 3)", (ann,)).fetchall()
    assert len(own) == 1


def test_the_old_process_is_refused(db: Connection, agents: list[object]) -> None:
    ann, bob = agents
    db.execute(SILENT, (ann,))
    db.execute(REAP)
    calls = (
        "select caliber_agent_heartbeat(%s, incarnation => 1)",
        "select caliber_lock_acquire(%s, 'thing', 'a'::text, incarnation => 1)",
        "select caliber_message_receive(%s, incarnation => 1)",
        "select caliber_token_request(%s, 'review', incarnation => 1)",
        "select caliber_checkpoint_save(%s, 'step', 'x', incarnation => 1)",
        "select caliber_state_set('n', 'k', '1', agent_id => %s, incarnation => 1)",
    )
    for call in calls:
        assert state(db, call, ann) == "KA001", call
        assert state(db, call.replace("1)", "2)"), bob) == "KA001"


def test_reaped_once_until_it_lived_again(db: Connection, agents: list[object]) -> None:
    ann = agents[0]
    db.execute(SILENT, (ann,))
    assert steps(db)["agents reaped"] == 1
    assert steps(db)["agents reaped"] == 0
    assert incarnation(db, ann) == 2
    # It came back without saying that it is a new process, and died again.
    lock(db, ann, "a")
    assert scalar(db, "select caliber_agent_heartbeat(%s)::text", ann) == "failed"
    db.execute(SILENT, (ann,))
    db.execute("update caliber_agent set status_changed_at = status_changed_at - interval '2 hours'")
    assert steps(db)["agents reaped"] == 1
    assert incarnation(db, ann) == 3
    assert scalar(db, HELD, ann) == 0
    # What it takes after that without a beat is given back as well.
    lock(db, ann, "a")
    assert steps(db)["agents reaped"] == 1
    assert scalar(db, HELD, ann) == 0
    assert steps(db)["agents reaped"] == 0


def test_who_lives_keeps_everything(db: Connection, connect: Connect, agents: list[object]) -> None:
    ann, bob = agents
    lock(db, ann, "a")
    assert db.execute(REAP).fetchall() == []
    # A beat that is not committed yet is seen, and so is a transaction that showed its incarnation.
    db.execute(SILENT, (ann,))
    db.execute(SILENT, (bob,))
    beating, working = connect(autocommit=False), connect(autocommit=False)
    beating.execute("select caliber_agent_heartbeat(%s)", (ann,))
    working.execute("select caliber_checkpoint_save(%s, 'step', 'x', incarnation => 1)", (bob,))
    assert db.execute(REAP).fetchall() == []
    beating.commit()
    working.commit()
    assert [row["name"] for row in db.execute(REAP)] == ["bob"]
    assert scalar(db, HELD, ann) == 1


def test_a_guard_keeps_the_agent_until_its_transaction_ends(
    db: Connection, connect: Connect, agents: list[object]
) -> None:
    ann = agents[0]
    lock(db, ann, "a")
    lock(db, ann, "b")
    db.execute(SILENT, (ann,))
    guarding = connect(autocommit=False)
    guarding.execute("select caliber_lock_guard('thing', 'a'::text, 1)")
    assert db.execute(REAP).fetchall() == []
    assert (incarnation(db, ann), scalar(db, HELD, ann)) == (1, 2)
    guarding.commit()
    assert len(db.execute(REAP).fetchall()) == 1
    assert (incarnation(db, ann), scalar(db, HELD, ann)) == (2, 0)


def test_terminated_agents_hold_nothing(db: Connection, agents: list[object]) -> None:
    ann, bob = agents
    lock(db, ann, "a")
    db.execute("select caliber_token_request(%s, 'review')", (ann,))
    db.execute("select caliber_agent_terminate(%s)", (ann,))
    before = incarnation(db, ann)
    assert steps(db)["agents reaped"] == 1
    assert steps(db)["agents reaped"] == 0
    assert incarnation(db, ann) == before
    assert scalar(db, "select status::text from caliber_agent where agent_id = %s", ann) == "terminated"
    assert lock(db, bob, "a") is not None


def test_reaping_can_be_left_out_of_the_tick(db: Connection, agents: list[object]) -> None:
    db.execute("select caliber_config_set('agent_reap', 'off')")
    db.execute(SILENT, (agents[0],))
    assert steps(db)["agents reaped"] == 0
    assert len(db.execute(REAP).fetchall()) == 1


def test_what_ran_out_is_cleared(db: Connection, agents: list[object]) -> None:
    ann, bob = agents
    for name in "abc":
        lock(db, ann, name, ms=1)
    lock(db, ann, "kept")
    db.execute("select caliber_lock_acquire(%s, 'thing', 'd'::text, 'shared', 1)", (ann,))
    db.execute("select caliber_token_request(%s, 'review', hold_seconds => 1)", (ann,))
    db.execute("select caliber_token_request(%s, 'review')", (bob,))
    db.execute("update caliber_token set expires_at = clock_timestamp()")
    done = steps(db)
    assert done["leases that ran out cleared"] == 4
    assert done["turns that ran out passed on"] == 1
    assert scalar(db, "select count(*) from caliber_resource where lock_id is not null") == 1
    # The fence goes on where it was.
    lock(db, bob, "a")
    assert scalar(db, "select fence from caliber_resource where resource_id = 'a'") == 2


def test_a_guarded_lease_is_not_cleared(db: Connection, connect: Connect, agents: list[object]) -> None:
    lock(db, agents[0], "a", ms=300)
    guarding = connect(autocommit=False)
    guarding.execute("select caliber_lock_guard('thing', 'a'::text, 1)")
    db.execute("select pg_sleep(0.4)")
    assert steps(db)["leases that ran out cleared"] == 0
    guarding.commit()
    assert steps(db)["leases that ran out cleared"] == 1


def test_each_step_is_bounded(db: Connection, agents: list[object]) -> None:
    for name in "abcde":
        lock(db, agents[0], name, ms=1)
    query = "select done from caliber_tick(2) where step = 'leases that ran out cleared'"
    assert [scalar(db, query) for _ in range(4)] == [2, 2, 1, 0]


def test_marks_rise_only_past_what_is_settled(db: Connection, connect: Connect, agents: list[object]) -> None:
    ann, bob = agents
    mark = "select low from caliber_queue_mark where queue_id = %s"
    db.execute("select caliber_config_set('notify_mode', 'off')")
    # A delivery in flight has a place below what the first tick notes.
    flying = connect(autocommit=False)
    flying.execute("select caliber_message_send(%s, %s, null, 'task_delegation')", (bob, ann))
    db.execute("select nextval('caliber_message_seq') from generate_series(1, 5000)")
    steps(db)
    steps(db)
    assert scalar(db, mark, ann) is None
    flying.commit()
    # Now it is open: the queue's mark stops there, that of others goes on.
    steps(db)
    steps(db)
    assert scalar(db, mark, ann) is None
    assert int(str(scalar(db, mark, bob))) > 5000
    got = receive(db, ann)
    assert got
    db.execute("select caliber_message_acknowledge(%s, %s)", (got["message_id"], got["receipt"]))
    steps(db)
    steps(db)
    assert int(str(scalar(db, mark, ann))) > 5000
    db.execute("select caliber_message_send(%s, %s, null, 'task_delegation')", (bob, ann))
    assert receive(connect(), ann)


def test_ticks_at_once_do_everything_once(db: Connection, connect: Connect, agents: list[object]) -> None:
    made = "select caliber_agent_register('coder', name => 'c' || n) as agent from generate_series(1, 30) n"
    for row in db.execute(made).fetchall():
        lock(db, row["agent"], f"of {row['agent']}")
        db.execute(SILENT, (row["agent"],))
    results: list[int] = []

    def run() -> None:
        with connect() as own:
            for _ in range(5):
                rows = own.execute("select name from caliber_agent_reap()").fetchall()
                results.append(len(rows))
                assert own.execute("select * from caliber_tick() where problem ~ ':'").fetchall() == []

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 20
    query = "select count(*) from caliber_event where event_type = 'agent_reaped'"
    assert scalar(db, query) == 30
    query = "select array_agg(distinct incarnation) from caliber_agents where name <> all('{ann,bob}')"
    assert scalar(db, query) == [2]
    assert scalar(db, "select count(*) from caliber_lock") == 0


def test_a_step_that_fails_leaves_the_others(db: Connection, agents: list[object]) -> None:
    lock(db, agents[0], "a", ms=1)
    db.execute("alter table caliber_state_version rename to gone")
    rows = db.execute("select step, done, problem from caliber_tick()").fetchall()
    failed = [row for row in rows if row["problem"]]
    assert [row["step"] for row in failed] == ["old versions of state deleted"]
    assert "42P01" in str(failed[0]["problem"])
    assert sum(int(str(row["done"])) for row in rows) == 1
    assert scalar(db, "select count(*) from caliber_event where event_type = 'tick_step_failed'") == 1


def test_admins_only_and_within_bounds(
    db: Connection, connect: Connect, agents: list[object], roles: Roles
) -> None:
    calls = ("caliber_tick()", "caliber_agent_reap()", "caliber_after_restore()", "_caliber_restored()")
    for group in ("caliber_agent", "caliber_observer", None):
        own = connect(roles(group))
        assert {state(own, f"select * from {call}") for call in calls} == {"42501"}
    admin = connect(roles("caliber_admin"))
    for call in calls:
        admin.execute(f"select * from {call}")
    for bad in ("0", "-1", "null", "10001"):
        assert state(db, f"select caliber_tick({bad})") == "22023"
        assert state(db, f"select caliber_agent_reap({bad})") == "22023"


# --- after a restore ---


def test_nothing_of_before_a_restore_is_valid(db: Connection, agents: list[object]) -> None:
    ann, bob = agents
    lock(db, ann, "a")
    turn = scalar(db, "select turn from caliber_token_request(%s, 'review')", ann)
    db.execute("select caliber_token_request(%s, 'review')", (bob,))
    db.execute("select caliber_message_send(%s, null, 'coder', 'task_delegation')", (bob,))
    got = receive(db, ann)
    assert got
    rows = db.execute("select step, done, problem from caliber_after_restore()").fetchall()
    assert [row["done"] for row in rows] == [2, 1, 2, 1, 0, 0]
    assert {row["problem"] for row in rows} == {None}

    assert state(db, "select caliber_lock_guard('thing', 'a'::text, 1)") == "KA001"
    assert state(db, "select caliber_token_guard(%s, 'review', '', %s)", ann, turn) == "KA001"
    assert state(db, "select caliber_agent_heartbeat(%s, incarnation => 1)", ann) == "KA001"
    query = "select caliber_message_acknowledge(%s, %s)"
    assert state(db, query, got["message_id"], got["receipt"]) == "KA001"
    assert (receive(db, bob) or {})["message_id"] == got["message_id"]

    # Numbers are above all that a lost past can have handed out, also for what is new.
    floor = 2**32
    lock(db, bob, "a")
    lock(db, bob, "new")
    assert int(str(scalar(db, "select min(fence) from caliber_resource"))) > floor
    assert int(str(scalar(db, "select turn from caliber_token_request(%s, 'review')", bob))) > floor
    assert int(str(scalar(db, "select caliber_agent_resume(%s)", ann))) > floor
    highest = int(str(scalar(db, "select max(fence) from caliber_resource")))
    db.execute("select caliber_after_restore()")
    lock(db, bob, "other")
    query = "select fence from caliber_resource where resource_id = 'other'"
    assert int(str(scalar(db, query))) > highest
    assert highest < 2**53


def test_indexes_on_embeddings_are_made_again(
    db: Connection, connect: Connect, agents: list[object], roles: Roles
) -> None:
    query = "select caliber_note_add(%s, 'fact', 'x', embedding => '[1,2,3]')"
    db.execute(query, (agents[0],))
    last = "select done, problem from caliber_after_restore() where step like 'indexes%'"
    row = connect(roles("caliber_admin")).execute(last).fetchone()
    assert row
    assert row["done"] == 0
    assert "caliber_embedding_index(3) as a superuser" in str(row["problem"])
    assert db.execute(last).fetchone() == {"done": 2, "problem": None}
    assert db.execute(last).fetchone() == {"done": 0, "problem": None}


def test_events_of_after_a_restore_come_after(db: Connection, agents: list[object]) -> None:
    cursor = scalar(db, "select caliber_event_cursor()")
    db.execute("select caliber_after_restore()")
    query = "select event_type from caliber_events_since(%s)"
    assert scalar(db, query, cursor) == "database_restored"
