"""caliber_tick called by pg_cron, the real one."""

from __future__ import annotations

import time

from harness.scheduled import Scheduled

RUNS = "select status, username, command, return_message from cron.job_run_details order by runid"
HELD = "select count(*) from caliber_resource where lock_id is not null"


def test_the_line_of_the_guide_makes_the_tick_run(scheduled: Scheduled) -> None:
    ends = time.monotonic() + 150
    with scheduled.cluster.connect() as session:
        while not (runs := [run for run in session.execute(RUNS) if run[0] not in ("starting", "running")]):
            assert time.monotonic() < ends, "pg_cron ran nothing"
            time.sleep(0.1)
        # What had run out is cleared, and nobody else was here to do it.
        assert session.execute(HELD).fetchone() == (0,), runs
        assert runs[0][:3] == ("succeeded", "keeper", "select caliber_tick()")
        assert session.execute("select count(*) from caliber_tick_note").fetchone() == (1,)
