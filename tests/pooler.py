"""pgbouncer in transaction mode in front of the test's server, for tests of what survives it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
PORT = 6432

CONFIG = """\
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr =
unix_socket_dir = {home}
listen_port = {listen}
auth_type = any
pool_mode = transaction
server_login_retry = 0.1
default_pool_size = {pool}
max_client_conn = 200
logfile = {home}/log
pidfile = {home}/pid
"""


@contextmanager
def pooler(user: str, pool: int, host: str | None = None, port: str | None = None) -> Iterator[str]:
    """The host to connect to, as any user; on the server everybody is that user."""
    assert PROGRAM
    home = Path(tempfile.mkdtemp(prefix="caliber_pooler_"))
    config = home / "pgbouncer.ini"
    server = f"{port or os.environ['PGPORT']} user={user}"
    where = {"host": host or os.environ["PGHOST"], "port": server}
    config.write_text(CONFIG.format(**where, home=home, listen=PORT, pool=pool))
    command = [PROGRAM, str(config)]
    if os.geteuid() == 0:
        shutil.chown(home, "postgres")
        command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", *command]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (home / f".s.PGSQL.{PORT}").exists():
            assert process.poll() is None, (home / "log").read_text()
            time.sleep(0.01)
        yield str(home)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
        shutil.rmtree(home)


def pooled(host: str, dbname: str, autocommit: bool = True) -> psycopg.Connection[dict[str, object]]:
    """Without statements prepared in a session, which transaction mode does not keep."""
    return psycopg.connect(
        host=host,
        port=PORT,
        user="postgres",
        dbname=dbname,
        autocommit=autocommit,
        prepare_threshold=None,
        row_factory=psycopg.rows.dict_row,
    )
