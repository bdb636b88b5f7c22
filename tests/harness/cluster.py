"""A cluster of a test's own, that may be killed: all its processes at once, as by kill -9; and a pair of
them, of which the one follows the other and takes its place."""

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
    # Whether pgbouncer, which knows one server, can stand before it.
    pools = True

    def __init__(
        self, settings: str = "", follows: Cluster | None = None, like: Cluster | None = None
    ) -> None:
        """Empty; or a standby of another, to be started; or a copy of one that is stopped."""
        self.home = Path(tempfile.mkdtemp(prefix="caliber_harness_"))
        self.data = self.home / "data"
        if os.geteuid() == 0:
            shutil.chown(self.home, "postgres")
        if follows:
            self.follow(follows)
            return
        if like:
            shutil.copytree(like.data, self.data, symlinks=True)
            self._own()
            self._configure(settings)
            return
        self._run("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
        self._configure(f"max_connections = 100\nshared_buffers = 64MB\n{settings}\n")

    def _configure(self, settings: str) -> None:
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.write(f"listen_addresses = ''\nunix_socket_directories = '{self.home}'\n{settings}")

    def follow(self, source: Cluster) -> None:
        """What it was is gone; it becomes a standby of the other, to be started."""
        shutil.rmtree(self.data, ignore_errors=True)
        self._run(
            "pg_basebackup", "-h", source.home, "-U", "postgres", "-D", self.data, "-X", "stream",
            "--write-recovery-conf", "--checkpoint=fast", "--no-sync",
        )  # fmt: skip
        self._configure("")
        # When it takes over there is nobody yet whom it could wait for.
        with (self.data / "postgresql.auto.conf").open("a") as conf:
            conf.write("synchronous_standby_names = ''\n")

    def _own(self) -> None:
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", "postgres:", self.data], check=True)

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "-m", "fast", "-s", "-D", self.data)

    def promote(self) -> None:
        self._run("pg_ctl", "promote", "-w", "-s", "-D", self.data)

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


class Pair:
    """A primary and a standby that receives each commit before it is acknowledged. Killed is the
    primary; starting again is promoting the standby and giving it a standby of its own.

    With late, nothing is waited for and the standby misses the last moments before each kill: for
    what must hold even so, and to see that a harness notices what is lost."""

    pools = False

    def __init__(self, late: float = 0, like: Cluster | None = None) -> None:
        self.late = late
        self.nodes = [Cluster("wal_keep_size = 512MB\n", like=like)]
        self.nodes.append(self.nodes[0])
        self.running = False

    @property
    def primary(self) -> Cluster:
        return self.nodes[0]

    @property
    def standby(self) -> Cluster:
        return self.nodes[1]

    @property
    def home(self) -> Path:
        return self.primary.home

    def start(self) -> None:
        if self.running:
            self.standby.promote()
            self.nodes.reverse()
            self.standby.follow(self.primary)
        else:
            self.primary.start()
            self.nodes[1] = Cluster(follows=self.primary)
            self.running = True
        self.standby.start()
        if not self.late:
            self._set(self.primary, "synchronous_standby_names", "*")
        state = "async" if self.late else "sync"
        self._until(
            self.primary, f"exists (select from pg_stat_replication where sync_state = '{state}'"
            " and state = 'streaming')",
        )  # fmt: skip

    def kill(self) -> None:
        if self.late:
            self._set(self.standby, "primary_conninfo", "")
            self._until(self.standby, "not exists (select from pg_stat_wal_receiver)")
            time.sleep(self.late)
        self.primary.kill()

    def remove(self) -> None:
        for node in set(self.nodes):
            node.remove()

    def amcheck(self) -> Counter[str]:
        return self.primary.amcheck()

    @property
    def address(self) -> str:
        """Of both: whoever can write answers."""
        hosts = ",".join(sorted(str(node.home) for node in self.nodes))
        return f"host={hosts} user=postgres target_session_attrs=read-write connect_timeout=3"

    def connect(self, dbname: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(self.address, dbname=dbname, autocommit=True)

    @staticmethod
    def _set(node: Cluster, name: str, value: str) -> None:
        with node.connect() as session:
            session.execute(f"alter system set {name} = '{value}'")
            session.execute("select pg_reload_conf()")

    @staticmethod
    def _until(node: Cluster, condition: str) -> None:
        with node.connect() as session:
            while session.execute(f"select {condition}").fetchone() != (True,):
                time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
