"""A cluster of a test's own, that may be killed: all its processes at once, as by kill -9."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import psycopg

BIN = Path(os.environ["PG_CONFIG"]).parent
CLEAN = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


class Cluster:
    def __init__(self, settings: str = "") -> None:
        self.home = Path(tempfile.mkdtemp(prefix="caliber_harness_"))
        self.data = self.home / "data"
        if os.geteuid() == 0:
            shutil.chown(self.home, "postgres")
        self._run("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.write(f"listen_addresses = ''\nunix_socket_directories = '{self.home}'\n")
            conf.write(f"max_connections = 100\nshared_buffers = 64MB\n{settings}\n")

    def start(self) -> None:
        self._run("pg_ctl", "start", "-w", "-s", "-D", self.data, "-l", self.home / "log")

    def kill(self) -> None:
        """No process of the server is told anything."""
        postmaster = int((self.data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        # The parent first: it would start what it finds missing again.
        doomed = [postmaster, *map(int, children)]
        for pid in doomed:
            os.kill(pid, signal.SIGKILL)
        while any(_runs(pid) for pid in doomed):
            time.sleep(0.01)
        # Where nobody reaps the dead, the server would take its predecessor for alive.
        for left in (self.data / "postmaster.pid", *self.home.glob(".s.PGSQL.*")):
            left.unlink()

    def remove(self) -> None:
        self._run("pg_ctl", "stop", "-m", "immediate", "-s", "-D", self.data, check=False)
        shutil.rmtree(self.home)

    def amcheck(self) -> Counter[str]:
        """What pg_amcheck finds in tables and indexes, each heap row looked up in each index."""
        user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        command = [*user, str(BIN / "pg_amcheck"), "--install-missing", "--heapallindexed"]
        command += ["-h", str(self.home), "-U", "postgres", "-d", "postgres"]
        done = subprocess.run(command, env=CLEAN, cwd="/", capture_output=True, text=True, check=False)
        return Counter(line for line in (done.stdout + done.stderr).splitlines() if done.returncode)

    def connect(self, dbname: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(host=str(self.home), user="postgres", dbname=dbname, autocommit=True)

    def _run(self, program: str, *arguments: str | Path, check: bool = True) -> None:
        user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        command = [*user, str(BIN / program), *map(str, arguments)]
        done = subprocess.run(
            command, env=CLEAN, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        if check and done.returncode:
            log = self.home / "log"
            raise RuntimeError(f"{program} failed: {log.read_text()[-2000:] if log.exists() else ''}")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
