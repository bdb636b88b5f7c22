"""Handoffs, tasks, the tick and reaping at once, on few agents, in any order: nobody deadlocks, nothing
fails that should not, and in the end each trajectory is its task's. CALIBER_STORM_SECONDS for longer."""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Any

import psycopg
from conftest import Connect, Connection, scalar

SECONDS = float(os.environ.get("CALIBER_STORM_SECONDS", "4"))
CLIENTS = 8
AGENTS = 5

# What a caller may be told when somebody else was faster.
EXPECTED = {"KA001", "KA002", "KA003", "KA004", "KA005", "KA006", "KA007", "42501", "P0002", "22023"}

TASK = (
    "select caliber_accept_delegation(caliber_delegate_task(%(a)s, null, 'x', delegatee_agent_id => %(b)s,"
    " timeout_seconds => 600), %(b)s)"
)
OWN = (
    "select trajectory_id from caliber_trajectory where agent_id = %(a)s and status = 'active'"
    " order by random() limit 1"
)
INITIATE = (
    "select caliber_initiate_handoff(%(a)s, null, x.t, 'specialization', 'go', to_agent_id => %(b)s,"
    " handoff_type => %(kind)s, decision_rationale => 'y', return_timeout_ms => 60000, reroute => %(flag)s)"
    f" from ({OWN.replace('trajectory_id', 'trajectory_id as t', 1)}) as x"
)
ON_OPEN = "select {} from caliber_handoff as h where {} and h.resolved_at is null order by random() limit 1"
CALLS = {
    "task": TASK,
    "initiate": INITIATE,
    "accept": ON_OPEN.format("(caliber_accept_handoff(h.handoff_id, %(a)s)).status", "h.to_agent_id = %(a)s"),
    "reject": ON_OPEN.format("caliber_reject_handoff(h.handoff_id, %(a)s, 'n')", "h.to_agent_id = %(a)s"),
    "withdraw": ON_OPEN.format("caliber_withdraw_handoff(h.handoff_id, %(a)s)", "h.from_agent_id = %(a)s"),
    "reroute": ON_OPEN.format(
        "caliber_reroute_handoff(h.handoff_id, %(a)s, %(b)s)", "h.from_agent_id = %(a)s"
    ),
    "return": ON_OPEN.format("caliber_return_handoff(h.handoff_id, %(a)s)", "h.to_agent_id = %(a)s"),
    "finish": ON_OPEN.format("caliber_complete_handoff(h.handoff_id, %(a)s)", "h.from_agent_id = %(a)s"),
    "back": f"select (caliber_handoff_return_to_previous(({OWN}), %(a)s)).status",
    "broadcast": f"select handoff_id from caliber_broadcast_handoff(%(a)s, %(others)s::uuid[], ({OWN}),"
    " 'specialization', 'look')",
    "complete": "select caliber_complete_delegation(delegation_id, 'success', agent_id => %(a)s)"
    " from caliber_delegation where delegatee_agent_id = %(a)s and ended_at is null"
    " order by random() limit 1",
    "cancel": "select caliber_cancel_delegation(delegation_id) from caliber_delegation"
    " where delegator_agent_id = %(a)s and ended_at is null order by random() limit 1",
    "due": "update caliber_handoff set due_at = now(), ack_by = least(ack_by, now()),"
    " lapses_at = least(lapses_at, now()) where handoff_id = (select handoff_id from caliber_handoff"
    " where due_at is not null order by random() limit 1 for update skip locked)",
    "silent": "update caliber_agent_beat set beat_at = now() - interval '1 hour' where agent_id = %(a)s",
    "beat": "select caliber_agent_resume(%(a)s)",
    "tick": "select count(*) from caliber_tick()",
}  # fmt: skip
OFTEN = ["task", "initiate", "accept", "return", "finish"] * 3


def test_a_storm_of_handoffs_and_tasks(db: Connection, connect: Connect) -> None:
    register = (
        "select caliber_agent_register('hand', can_delegate_to => array['*'], max_concurrent_tasks => 8)"
    )
    agents = [str(scalar(db, register)) for _ in range(AGENTS)]
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    before = scalar(db, deadlocks)
    ends = time.monotonic() + SECONDS
    unexpected: list[str] = []
    done: dict[str, int] = dict.fromkeys(CALLS, 0)

    def work(session: Connection, seed: int) -> None:
        luck = random.Random(seed)
        while time.monotonic() < ends and not unexpected:
            a, b = luck.sample(agents, 2)
            name = luck.choice([*CALLS, *OFTEN])
            given: dict[str, Any] = {
                "a": a, "b": b, "others": [x for x in agents if x != a][:2], "flag": luck.random() < 0.5,
                "kind": luck.choice(["sequential", "escalation", "delegation"]),
            }  # fmt: skip
            try:
                done[name] += session.execute(CALLS[name], given).rowcount > 0
            except psycopg.Error as error:
                if error.sqlstate not in EXPECTED:
                    unexpected.append(f"{name}: {error.sqlstate} {error}")

    threads = [threading.Thread(target=work, args=(connect(), seed)) for seed in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert unexpected == []
    db.execute("select pg_stat_force_next_flush()")
    assert scalar(db, deadlocks) == before
    assert min(done[name] for name in ("task", "initiate", "accept", "tick")) > 0, done
    # The trajectory and the task are one agent's, unless an escalation of it is under way.
    apart = (
        "select count(*) from caliber_delegation as d join caliber_trajectory as t"
        " on t.trajectory_id = d.child_trajectory_id where d.status in ('accepted', 'in_progress')"
        " and d.delegatee_agent_id <> t.agent_id and not exists (select from caliber_handoff as h"
        " where h.trajectory_id = t.trajectory_id and h.handoff_type = 'escalation'"
        " and h.status in ('accepted', 'in_progress') and h.returned_at is null)"
    )
    assert scalar(db, apart) == 0
    scopes = (
        "select count(*) from caliber_trajectory as t where t.status = 'active' and 1 <> (select count(*)"
        " from caliber_scope as s where s.trajectory_id = t.trajectory_id and s.closed_at is null"
        " and s.agent_id = t.agent_id)"
    )
    assert scalar(db, scopes) == 0
    assert scalar(db, "select count(*) from caliber_audit_verify()") == 0
