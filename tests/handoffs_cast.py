"""Agents and calls that the tests of handoffs share."""

from __future__ import annotations

from typing import Any

from conftest import Connection, scalar


class Cast:
    """A worker with a trajectory, a reviewer it reports to, an architect above, and a helper."""

    def __init__(self, db: Connection) -> None:
        self.db = db
        self.architect = self.agent("architect", "ada")
        self.reviewer = self.agent("reviewer", "rob", reports_to=self.architect)
        self.worker = self.agent("worker", "wim", reports_to=self.reviewer)
        self.helper = self.agent("helper", "hal", reports_to=self.reviewer)
        self.work = str(scalar(db, "select caliber_trajectory_start('parser', %s)", self.worker))
        self.scope = str(scalar(db, "select scope_id from caliber_scope_current(%s)", self.work))
        db.execute("select caliber_agent_assign_trajectory(%s, %s, %s)", (self.worker, self.work, self.scope))

    def agent(self, kind: str, name: str, **more: object) -> str:
        names = "".join(f", {key} => %s" for key in more)
        call = f"select caliber_agent_register(%s, name => %s{names})"
        return str(scalar(self.db, call, kind, name, *more.values()))

    def initiate(self, sender: str | None = None, db: Connection | None = None, **more: object) -> str:
        given: dict[str, object] = {
            "from_agent_id": sender or self.worker,
            "to_agent_type": None,
            "trajectory_id": self.work,
            "reason": "specialization",
            "handoff_notes": "the lexer is done",
            **more,
        }
        if given["to_agent_type"] is None and "to_agent_id" not in given:
            given["to_agent_id"] = self.helper
        return str(scalar(db or self.db, _call("caliber_initiate_handoff", given), *given.values()))

    def delegate(self, **more: object) -> str:
        given = {"handoff_type": "delegation", "return_timeout_ms": 60000, **more}
        return self.initiate(**given)  # type: ignore[arg-type]

    def escalate(self, sender: str | None = None, **more: object) -> str:
        given = {
            "handoff_type": "escalation",
            "reason": "escalation",
            "decision_rationale": "above my budget",
            "to_agent_id": None,
            **more,
        }
        return self.initiate(sender, **given)  # type: ignore[arg-type]

    def accept(self, handoff: str, agent: str | None = None) -> dict[str, Any]:
        query = "select * from caliber_accept_handoff(%s, %s)"
        row = self.db.execute(query, (handoff, agent or self.helper)).fetchone()
        assert row is not None
        return row

    def handoff(self, handoff: str) -> dict[str, Any]:
        row = self.db.execute("select * from caliber_handoff where handoff_id = %s", (handoff,)).fetchone()
        assert row is not None
        return row

    def status(self, handoff: str) -> object:
        return self.handoff(handoff)["status"]

    def owner(self) -> str:
        query = "select agent_id from caliber_trajectory where trajectory_id = %s"
        return str(scalar(self.db, query, self.work))

    def on(self, agent: str) -> tuple[object, object]:
        query = "select status, current_trajectory_id from caliber_agent where agent_id = %s"
        row = self.db.execute(query, (agent,)).fetchone()
        assert row is not None
        return row["status"], None if row["current_trajectory_id"] is None else str(
            row["current_trajectory_id"]
        )

    def trail(self, handoff: str) -> list[object]:
        query = "select event_type from caliber_audit where handoff_id = %s order by audit_no"
        return [row["event_type"] for row in self.db.execute(query, (handoff,))]

    def lapse(self, handoff: str, *, times: int = 1) -> None:
        """As if all its times had passed, and somebody looked."""
        for _ in range(times):
            self.db.execute(
                "update caliber_handoff set ack_by = ack_by - interval '40 days',"
                " return_by = return_by - interval '40 days', lapses_at = lapses_at - interval '40 days',"
                " due_at = due_at - interval '40 days', available_at = available_at - interval '40 days'"
                " where handoff_id = %s",
                (handoff,),
            )
            self.db.execute("select _caliber_handoffs_expire()")


def _call(name: str, given: dict[str, object]) -> str:
    return f"select {name}({', '.join(f'{key} => %s' for key in given)})"
