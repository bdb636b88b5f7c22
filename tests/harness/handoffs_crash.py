"""One owner, while the whole server is killed at each step of a handoff:
cd tests && python -m harness.handoffs_crash

Sixteen clients are brought to the same step of a handoff of their own, do that step at once, and at
some moment of it every process of the server gets SIGKILL. After recovery each trajectory has to have
exactly one owner: the trajectory's, the one agent assigned to it, the agent of its one open scope, the
delegatee of the task behind it and the holder of the lease are the same agent, and the one that the
handoff's status and the last audit record say. What a client was told has happened.

A mutant breaks the server on purpose; the harness is worth something only if it notices.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from typing import Any

import psycopg
from harness import mutants
from harness.cluster import Cluster

CLIENTS = 16
MUTANTS = ("owner_left_behind", "synchronous_commit_off")

INITIATE = (
    "select caliber_initiate_handoff(%(giver)s, null, %(work)s, 'specialization', 'go on',"
    " to_agent_id => %(taker)s, lock_ids => array[%(lock)s::uuid], handoff_type => %(kind)s,"
    " decision_rationale => 'because', return_timeout_ms => 3600000, ack_timeout_ms => 3600000)"
)
ACCEPT = "select status from caliber_accept_handoff(%(handoff)s, %(taker)s)"
RETURN = "select caliber_return_handoff(%(handoff)s, %(taker)s)"
BACK = "select status from caliber_handoff_return_to_previous(%(work)s, %(taker)s)"
EXPIRE = "select _caliber_handoffs_expire()"

# By name: the kind of handoff, what is done before, the step itself, and the audit record it leaves.
STEPS: dict[str, tuple[str, list[str], str, str]] = {
    "initiate": ("escalation", [], INITIATE, "initiated"),
    "accept": ("escalation", [INITIATE], ACCEPT, "accepted"),
    "accept for good": ("sequential", [INITIATE], ACCEPT, "accepted"),
    "reject": (
        "sequential", [INITIATE], "select caliber_reject_handoff(%(handoff)s, %(taker)s, 'no')", "rejected",
    ),
    "withdraw": (
        "sequential", [INITIATE], "select caliber_withdraw_handoff(%(handoff)s, %(giver)s)", "failed",
    ),
    "execute": (
        "escalation", [INITIATE, ACCEPT], "select caliber_start_handoff(%(handoff)s, %(taker)s)",
        "in_progress",
    ),
    "return": ("escalation", [INITIATE, ACCEPT], RETURN, "returned"),
    "complete": (
        "escalation", [INITIATE, ACCEPT, RETURN],
        "select caliber_complete_handoff(%(handoff)s, %(giver)s)", "completed",
    ),
    "return to previous": ("sequential", [INITIATE, ACCEPT], BACK, "accepted"),
    "lapse": ("escalation", [INITIATE, ACCEPT, "lapse"], EXPIRE, "failed"),
}  # fmt: skip

# What is so of a lane's trajectory and of the newest handoff of it.
LOOK = """
    select
        t.agent_id::text as owner,
        (
            select array_agg(a.agent_id::text) from caliber_agent as a
            where a.current_trajectory_id = t.trajectory_id
        ),
        (
            select array_agg(s.agent_id::text) from caliber_scope as s
            where s.trajectory_id = t.trajectory_id and s.closed_at is null
        ),
        (select array_agg(l.holder_agent_id::text) from caliber_lock as l where l.resource_id = %(path)s),
        (select d.delegatee_agent_id::text from caliber_delegation as d where d.delegation_id = %(task)s),
        h.from_agent_id::text, h.to_agent_id::text, h.handoff_type::text, h.status::text,
        h.returned_at is not null,
        (
            select r.event_type::text from caliber_audit as r
            where r.handoff_id = h.handoff_id order by r.audit_no desc limit 1
        )
    from caliber_trajectory as t
    left join lateral (
        select h.* from caliber_handoff as h where h.trajectory_id = t.trajectory_id
        order by h.initiated_at desc limit 1
    ) as h on true
    where t.trajectory_id = %(work)s
"""

Session = psycopg.Connection[Any]


def one(session: Session, query: str, *arguments: object) -> Any:
    row = session.execute(query, arguments).fetchone()
    return row[0] if row else None


def owner_left_behind(session: Session) -> None:
    moves = "set agent_id = $2, team_id = $3, scope_count"
    mutants.rewrite(session, (moves, moves.replace("agent_id = $2, ", "")))


class Run:
    def __init__(
        self, cluster: Cluster, kills: int, seed: int, mutant: str | None = None, clients: int = CLIENTS
    ) -> None:
        self.cluster, self.kills, self.luck = cluster, kills, random.Random(seed)
        self.clients = clients
        self.database = f"handoffs_{uuid.uuid4().hex[:8]}"
        self.done: Counter[str] = Counter()
        self.found: Counter[str] = Counter()
        with cluster.connect() as admin:
            admin.execute(f"create database {self.database}")
        with cluster.connect(self.database) as session:
            session.execute("create extension caliber cascade")
            session.execute("select caliber_team_create('default')")
            register = (
                "select caliber_agent_register('boss', name => 'boss', can_delegate_to => array['*'])::text"
            )
            self.boss = one(session, register)
            if mutant == "synchronous_commit_off":
                session.execute(f"alter database {self.database} set synchronous_commit = off")
            elif mutant:
                owner_left_behind(session)

    def lane(self, session: Session, step: str) -> dict[str, Any]:
        """A task, its trajectory with a lease, two agents; all that comes before the step is done."""
        kind, before, _, _ = STEPS[step]
        lane: dict[str, Any] = {"kind": kind, "path": uuid.uuid4().hex, "handoff": None}
        for role in ("giver", "taker"):
            lane[role] = one(session, "select caliber_agent_register('hand')::text")
        lane["task"] = one(
            session,
            "select caliber_delegate_task("
            "%s, null, 'x', delegatee_agent_id => %s, timeout_seconds => 3600)::text",
            self.boss, lane["giver"],
        )  # fmt: skip
        lane["work"] = one(
            session, "select caliber_accept_delegation(%s, %s)::text", lane["task"], lane["giver"]
        )
        scope = one(session, "select scope_id from caliber_scope_current(%s)", lane["work"])
        assign = "select caliber_agent_assign_trajectory(%s, %s, %s)"
        session.execute(assign, (lane["giver"], lane["work"], scope))
        acquire = "select caliber_lock_acquire(%s, 'file', %s, 'exclusive', 3600000)::text"
        lane["lock"] = one(session, acquire, lane["giver"], lane["path"])
        for call in before:
            if call == "lapse":
                session.execute(
                    "update caliber_handoff set due_at = now(), lapses_at = now()"
                    " where handoff_id = %(handoff)s",
                    lane,
                )
            else:
                row = session.execute(call, lane).fetchone()
                assert row
                lane["handoff"] = lane["handoff"] or row[0]
        return lane

    def round(self, step: str, answers: int | None = None) -> None:
        """All at once, and somewhere in the middle the end: after so many answers, or as luck has it."""
        with self.cluster.connect(self.database) as session:
            lanes = [self.lane(session, step) for _ in range(self.clients)]
        barrier = threading.Barrier(self.clients + 1)
        told: list[int] = []

        def work(number: int) -> None:
            try:
                with self.cluster.connect(self.database) as mine:
                    # The first call of a session loads the code; that is not what is to be killed.
                    one(mine, "select caliber_agent_heartbeat(%s)", lanes[number]["giver"])
                    barrier.wait()
                    mine.execute(STEPS[step][2], lanes[number])
                    told.append(number)
            except (psycopg.OperationalError, threading.BrokenBarrierError):
                pass

        threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(self.clients)]
        for thread in threads:
            thread.start()
        barrier.wait()
        enough = self.luck.randrange(self.clients) if answers is None else answers
        until = time.monotonic() + 20
        while len(told) < enough and time.monotonic() < until and any(t.is_alive() for t in threads):
            time.sleep(0.001)
        time.sleep(self.luck.uniform(0, 0.01))
        self.cluster.kill()
        for thread in threads:
            thread.join()
        self.cluster.start()
        with self.cluster.connect(self.database) as session:
            for number, lane in enumerate(lanes):
                self.judge(session, step, lane, number in told)
            broken = session.execute("select problem from caliber_audit_verify()").fetchall()
            self.found["audit chain is not whole"] += len(broken)

    def judge(self, session: Session, step: str, lane: dict[str, Any], told: bool) -> None:
        row = session.execute(LOOK, lane).fetchone()
        assert row
        owner, assigned, scopes, holders, delegatee, giver, taker, kind, status, returned, last = row
        moved = status in ("accepted", "in_progress") and kind is not None and not returned
        expected = lane["giver"] if giver is None else taker if moved else giver
        self.found[f"{step}: nobody or two are assigned"] += len(assigned or []) != 1
        self.found[f"{step}: no or two open scopes"] += len(scopes or []) != 1
        self.found[f"{step}: no or two leases"] += len(holders or []) != 1
        everybody = {owner, delegatee, *(assigned or []), *(scopes or []), *(holders or [])}
        self.found[f"{step}: not one owner everywhere"] += everybody != {expected}
        recorded = "in_progress" if returned and last == "returned" else {"returned": ""}.get(last, last)
        self.found[f"{step}: record and status differ"] += (recorded or "none") != (status or "none")
        self.done["after" if self.happened(step, lane, last, giver) else "before"] += 1
        self.done["told"] += told
        if told and step != "lapse":
            self.found[f"{step}: what was told is lost"] += not self.happened(step, lane, last, giver)

    @staticmethod
    def happened(step: str, lane: dict[str, Any], last: str | None, giver: str | None) -> bool:
        """The way back is a handoff of its own."""
        by = lane["taker"] if step == "return to previous" else lane["giver"]
        return last == STEPS[step][3] and giver == by

    def go(self, steps: list[str] | None = None) -> list[str]:
        for step in steps or STEPS:
            before = dict(self.done)
            for _ in range(self.kills):
                self.round(step)
                self.done["kills"] += 1
            after = self.done["after"] - before.get("after", 0)
            print(
                f"{step}: {self.kills} × kill -9, {after} of {self.kills * self.clients} had happened",
                flush=True,
            )
        return self.findings()

    def findings(self) -> list[str]:
        return [f"{times} × {what}" for what, times in sorted(self.found.items()) if times]

    def summary(self) -> str:
        done = self.done
        return (
            f"{done['kills']} × kill -9 at {len(STEPS)} steps, {done['before'] + done['after']} handoffs:"
            f" {done['before']} stood before the step, {done['after']} after it,"
            f" {done['told']} clients had an answer"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="at each step")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    # Whoever ends it early ends its server too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended early"))
    cluster = Cluster()
    try:
        cluster.start()
        run = Run(cluster, options.kills, options.seed)
        findings = run.go()
    finally:
        cluster.remove()
    print(run.summary())
    print("\n".join(findings) or "always exactly one owner")
    raise SystemExit(bool(findings))


if __name__ == "__main__":
    main()
