"""A cluster in which the real pg_cron calls caliber_tick, by the line that the guide gives."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from harness.cluster import Cluster

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "maintenance.md"
SETTINGS = """
shared_preload_libraries = 'pg_cron'
cron.database_name = 'postgres'
cron.use_background_workers = on
"""


class Scheduled:
    def __init__(self) -> None:
        self.cluster = Cluster(SETTINGS)

    @staticmethod
    def possible() -> bool:
        command = [os.environ["PG_CONFIG"], "--sharedir"]
        where = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        return (Path(where) / "extension" / "pg_cron.control").exists()

    @staticmethod
    def packaged() -> bool:
        name = f"postgresql-{os.environ.get('PG', '15')}-cron"
        known = subprocess.run(["apt-cache", "show", name], capture_output=True, check=False)
        return known.returncode == 0

    @staticmethod
    def line() -> str:
        found = re.findall(r"^select cron\.schedule\(.*\);$", GUIDE.read_text(), re.MULTILINE)
        assert len(found) == 1
        return str(found[0])

    def start(self) -> None:
        """There is something that has run out, and a keeper has the job scheduled."""
        self.cluster.start()
        with self.cluster.connect() as session:
            session.execute("create extension caliber cascade")
            session.execute("create extension pg_cron")
            session.execute("create role keeper login in role caliber_admin")
            session.execute("grant usage on schema cron to keeper")
            session.execute("select caliber_lock_acquire(caliber_agent_register('worker'),"
                            " 'thing', 'a'::text, timeout_ms => 1)")  # fmt: skip
            session.execute("set role keeper")
            session.execute(self.line().encode())
            if self.seconds():
                # A version that knows seconds need not be waited for.
                session.execute("select cron.schedule('caliber', '1 second', 'select caliber_tick()')")

    def seconds(self) -> bool:
        with self.cluster.connect() as session:
            query = "select extversion from pg_extension where extname = 'pg_cron'"
            row = session.execute(query).fetchone()
        assert row
        return tuple(int(part) for part in re.findall(r"\d+", row[0])[:2]) >= (1, 5)
