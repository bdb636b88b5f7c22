"""Processes that are agents get SIGSTOP, are silent for too long, are reaped, and go on: nothing they
write as what they were is accepted, and others have taken over all they held.

CALIBER_PAUSED=50 is the number of the promise; fewer by default."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from conftest import Connection, scalar
from harness.paused_agent import WRITES

PAUSED = int(os.environ.get("CALIBER_PAUSED", "12"))


def start(db: Connection, agent: object) -> subprocess.Popen[str]:
    info = db.info
    program = str(Path(__file__).with_name("paused_agent.py"))
    command = [sys.executable, program, info.host, str(info.port), info.dbname, str(agent)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_stopped_agents_are_taken_over(db: Connection) -> None:
    db.execute("select caliber_team_create('default')")
    register = "select caliber_agent_register(%s, heartbeat_interval_ms => 100)"
    heir = scalar(db, register, "worker")
    agents = [scalar(db, register, "worker") for _ in range(PAUSED)]
    db.execute("select caliber_config_set('agent_unavailable_ms', '1000')")
    for _ in agents:
        db.execute("select caliber_message_send(%s, null, 'worker', 'nudge')", (heir,))
    processes = [start(db, agent) for agent in agents]
    try:
        for process in processes:
            assert process.stdout
            assert process.stdout.readline() == "holds\n"
            process.send_signal(signal.SIGSTOP)
        for process in processes:
            while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
                pass
        query = "select count(*) from caliber_agents where liveness = 'unavailable' and agent_id = any (%s)"
        while scalar(db, query, agents) != PAUSED:
            db.execute("select pg_sleep(0.1)")
        db.execute("select caliber_agent_heartbeat(%s)", (heir,))
        reaped = db.execute("select agent_id, given_back from caliber_agent_reap()").fetchall()
        assert {row["agent_id"]: row["given_back"] for row in reaped} == dict.fromkeys(agents, 3)

        # Everything is the heir's before the old ones wake up.
        for agent in agents:
            take = "select caliber_lock_acquire(%s, 'thing', %s::text)"
            assert scalar(db, take, heir, agent) is not None
            take = "select granted from caliber_token_request(%s, 'review', %s::text)"
            assert scalar(db, take, heir, agent) is True
        take = "select message_id, receipt from caliber_message_receive(%s, max_messages => 1000)"
        messages = db.execute(take, (heir,)).fetchall()
        assert len(messages) == PAUSED

        for process in processes:
            process.send_signal(signal.SIGCONT)
        words = [process.communicate("go\n")[0].splitlines() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert words == [["refused KA001"] * len(WRITES)] * PAUSED
    for row in messages:
        query = "select caliber_message_acknowledge(%s, %s)"
        assert scalar(db, query, row["message_id"], row["receipt"]) is True
