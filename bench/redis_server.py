"""A Redis server of the bench's own, every write on disk before it is answered, and how many leases
a second it takes and gives back."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

ACQUIRE = """
if redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', 60000) then return redis.call('incr', KEYS[2]) end
"""
RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end"
FILL = "for i = 0, ARGV[1] - 1 do redis.call('set', string.format('lock:%012d', i), 'token') end"
CALLS = 30_000


def leases_per_second(clients: int) -> float | None:
    """Acquire and then release, by each client in turns; None where there is no Redis."""
    program = shutil.which("redis-server")
    if not program:
        return None
    with tempfile.TemporaryDirectory(prefix="caliber_redis_") as home:
        socket = f"{home}/socket"
        options = ["--port", "0", "--unixsocket", socket, "--dir", home, "--save", ""]
        options += ["--appendonly", "yes", "--appendfsync", "always"]
        server = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
        try:
            while not Path(socket).exists():
                time.sleep(0.01)
            # Ten times as many locks as are released, so that nearly every release finds one.
            subprocess.run(
                ["redis-cli", "-s", socket, "eval", FILL, "0", str(10 * CALLS)],
                check=True, capture_output=True,
            )  # fmt: skip
            release = _rate(socket, clients, 10 * CALLS, RELEASE, "1", "lock:__rand_int__", "token")
            names = ("lock:{new}__rand_int__", "fence:{new}__rand_int__")
            acquire = _rate(socket, clients, 10**9, ACQUIRE, "2", *names, "token")
            return 1 / (1 / acquire + 1 / release)
        finally:
            server.terminate()
            server.wait()


def _rate(socket: str, clients: int, names: int, *command: str) -> float:
    done = subprocess.run(
        [
            "redis-benchmark", "-s", socket, "-c", str(clients), "-n", str(CALLS), "-r", str(names),
            "--csv", "eval", *command,
        ],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    # The command, with commas of its own, and seven numbers, of which the first is the rate.
    return float(done.stdout.splitlines()[-1].rsplit(",", 7)[1].strip('"'))
