"""Every step of caliber_tick: bounded, done once by many at a time, and nothing needs it to be right."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest
from conftest import Connect, Connection, scalar, state
from handoffs_cast import Cast

DUE = 5
OLD = "clock_timestamp() - interval '400 days'"


@pytest.fixture
def cast(db: Connection) -> Cast:
    db.execute("select caliber_team_create('default')")
    db.execute("select caliber_config_set('notify_mode', 'off')")
    return Cast(db)


def aged(db: Connection, table: str, column: str, where: str = "true") -> None:
    """As if it had been written long ago, which no verb can say."""
    db.execute("set session_replication_role = replica")
    db.execute(f"update {table} set {column} = {OLD} where {where}")
    db.execute("reset session_replication_role")


# --- five of each kind that are due ---


def events(db: Connection, cast: Cast) -> None:
    db.execute(f"select caliber_event_record('chaos', 'x') from generate_series(1, {DUE})")
    aged(db, "caliber_event", "recorded_at", "event_type = 'chaos'")


def contexts(db: Connection, cast: Cast) -> None:
    db.execute(f"select caliber_context_assemble(%s) from generate_series(1, {DUE})", (cast.work,))
    aged(db, "caliber_context", "created_at")


def versions(db: Connection, cast: Cast) -> None:
    for n in range(DUE + 1):
        db.execute("select caliber_state_set('n', 'k', %s::text::jsonb)", (str(n),))
    aged(db, "caliber_state_version", "changed_at")


def records(db: Connection, cast: Cast) -> None:
    for _ in range(DUE):
        cast.delegate()
    aged(db, "caliber_audit", "recorded_at")
    db.execute(f"update caliber_trajectory set status = 'completed', finished_at = {OLD}")


def messages(db: Connection, cast: Cast) -> None:
    for _ in range(DUE):
        db.execute("select caliber_message_send(%s, %s, null, 'nudge')", (cast.worker, cast.helper))
    db.execute("update caliber_delivery set expires_at = clock_timestamp()")


def leases(db: Connection, cast: Cast) -> None:
    for n in range(DUE):
        query = "select caliber_lock_acquire(%s, 'thing', %s::text, timeout_ms => 1)"
        db.execute(query, (cast.worker, str(n)))


def turns(db: Connection, cast: Cast) -> None:
    for n in range(DUE):
        for agent in (cast.worker, cast.helper):
            db.execute("select caliber_token_request(%s, 'review', %s::text)", (agent, str(n)))
    db.execute("update caliber_token set expires_at = clock_timestamp()")


def tasks(db: Connection, cast: Cast) -> None:
    boss = cast.agent("boss", "bea", can_delegate_to=["*"])
    for _ in range(DUE):
        query = "select caliber_delegate_task(%s, null, 'x', delegatee_agent_id => %s)"
        task = scalar(db, query, boss, cast.helper)
        db.execute("select caliber_accept_delegation(%s, %s)", (task, cast.helper))
    db.execute("update caliber_delegation set expires_at = clock_timestamp()")


def handoffs(db: Connection, cast: Cast) -> None:
    for _ in range(DUE):
        cast.delegate()
    db.execute("update caliber_handoff set ack_by = now() - interval '1 s', due_at = now() - interval '1 s'")


def dead_agents(db: Connection, cast: Cast) -> None:
    names = [cast.agent("coder", f"c{n}") for n in range(DUE)]
    silent = "update caliber_agent_beat set beat_at = beat_at - interval '1 hour'"
    db.execute(f"{silent} where agent_id = any (%s::uuid[])", (names,))


KINDS: dict[str, Callable[[Connection, Cast], None]] = {
    "old events deleted": events,
    "old contexts deleted": contexts,
    "old versions of state deleted": versions,
    "old audit records deleted": records,
    "messages given up or deleted": messages,
    "leases that ran out cleared": leases,
    "turns that ran out passed on": turns,
    "tasks that ran out ended": tasks,
    "handoffs that were due settled": handoffs,
    "agents reaped": dead_agents,
}


def test_no_step_is_left_out(db: Connection, cast: Cast) -> None:
    steps = {row["step"] for row in db.execute("select step from caliber_tick()")}
    # Marks have a test of their own: there is nothing to count.
    assert steps == {*KINDS, "queue marks raised"}


@pytest.mark.parametrize("step", KINDS)
def test_a_step_does_no_more_than_it_may(db: Connection, cast: Cast, step: str) -> None:
    KINDS[step](db, cast)
    query = "select done, problem from caliber_tick(2) where step = %s"
    done = [db.execute(query, (step,)).fetchone() for _ in range(4)]
    assert [row and (row["done"], row["problem"]) for row in done] == [
        (2, None),
        (2, None),
        (1, None),
        (0, None),
    ]


def test_everything_is_done_once_by_many_at_a_time(db: Connection, connect: Connect, cast: Cast) -> None:
    # The audit comes last: it ends the trajectory that the others work on.
    for step, make in KINDS.items():
        if step != "old audit records deleted":
            make(db, cast)
    done: Counter[str] = Counter()
    problems: list[object] = []
    mutex = threading.Lock()

    def work(session: Connection) -> None:
        for _ in range(6):
            rows = session.execute("select step, done, problem from caliber_tick(2)").fetchall()
            with mutex:
                done.update({str(row["step"]): int(str(row["done"])) for row in rows})
                problems.extend(row["problem"] for row in rows if "busy" not in str(row["problem"] or "busy"))

    threads = [threading.Thread(target=work, args=(connect(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    work(db)
    assert problems == []
    assert +done == dict.fromkeys(set(KINDS) - {"old audit records deleted"}, DUE)


def test_nothing_needs_the_tick(db: Connection, cast: Cast) -> None:
    """Whatever is due is as if it were done, for whoever comes to it."""
    for make in (messages, leases, turns, tasks, handoffs, dead_agents):
        make(db, cast)
    # Messages that ran out are not handed out, and claims that ran out are.
    receive = "select count(*) from caliber_message_receive(%s, message_types => '{nudge}')"
    assert scalar(db, receive, cast.helper) == 0
    db.execute("select caliber_message_send(%s, null, 'reviewer', 'nudge')", (cast.worker,))
    second = cast.agent("reviewer", "rie")
    assert scalar(db, receive, cast.reviewer) == 1
    assert scalar(db, receive, second) == 0
    db.execute("update caliber_delivery set visible_at = clock_timestamp() where processed_at is null")
    assert scalar(db, receive, second) == 1
    # Leases and turns go to the next.
    take = "select caliber_lock_acquire(%s, 'thing', '0'::text)"
    assert scalar(db, take, cast.helper) is not None
    query = "select granted from caliber_token_request(%s, 'review', '0')"
    assert scalar(db, query, cast.helper) is True
    # A late result is refused, the task is shown as what it is, and can be taken again.
    shown = "select array_agg(distinct status::text) from caliber_delegations"
    assert scalar(db, shown) == ["timed_out"]
    task = scalar(db, "select delegation_id from caliber_delegation limit 1")
    assert state(db, "select caliber_complete_delegation(%s)", task) == "KA007"
    # Nobody accepts a handoff after its time, and the sender still has the work.
    handoff = scalar(db, "select handoff_id from caliber_handoff limit 1")
    assert state(db, "select caliber_accept_handoff(%s, %s)", handoff, cast.helper) == "KA007"
    assert cast.owner() == cast.worker
    # Who is silent is shown so, and is given nothing.
    silent = "select array_agg(distinct liveness::text) from caliber_agents where agent_type = 'coder'"
    assert scalar(db, silent) == ["unavailable"]
    delegate = "select caliber_delegate_task(%s, null, 'x', delegatee_agent_id => agent_id)"
    query = f"{delegate} from caliber_agent where agent_type = 'coder' limit 1"
    boss = scalar(db, "select agent_id from caliber_agent where name = 'bea'")
    assert state(db, query, boss) == "KA004"
    # State past its time is not there.
    db.execute("select caliber_state_set('n', 'k', '1', ttl_ms => 1)")
    db.execute("select pg_sleep(0.01)")
    assert scalar(db, "select count(*) from caliber_state_get('n', 'k')") == 0
