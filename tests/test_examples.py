"""The examples run and do what they say."""

from __future__ import annotations

import subprocess
import sys

from conftest import ROOT, Connection, scalar


def test_producer_and_critic_take_turns(db: Connection) -> None:
    info = db.info
    dsn = f"host={info.host} port={info.port} user={info.user} dbname={info.dbname}"
    script = ROOT / "examples/producer_critic.py"
    done = subprocess.run([sys.executable, script, dsn], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "producer: draft 1, please review",
        "critic: draft 1, revise",
        "producer: draft 2, please review",
        "critic: draft 2, revise",
        "producer: draft 3, please review",
        "critic: draft 3, approved",
    ]
    assert done.stderr == ""
    # Each move is a version of the draft and a checkpoint of whoever made it, and nobody is left
    # with the token or in line.
    rows = db.execute(
        "select a.agent_type, v.value->>'verdict' as verdict from caliber_state_version as v"
        " join caliber_agent as a on v.changed_by = a.agent_id order by v.version"
    ).fetchall()
    assert [r["agent_type"] for r in rows] == ["producer", "critic"] * 3
    assert rows[-1]["verdict"] == "approved"
    assert scalar(db, "select count(*) from caliber_checkpoint where checkpoint_type = 'turn_taken'") == 6
    assert scalar(db, "select string_agg(status::text, ',') from caliber_tokens") == "available"
