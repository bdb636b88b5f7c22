"""The chaos run on a primary and a synchronous standby, each kill answered by a promotion:
make failover, or make failover ARGS="--seconds 120 --kills 5 --seed 7".

The clients have a connection string with both servers and find the one that can write. What is judged is
the same: nothing that was acknowledged may be missing, and no fence, turn or incarnation may come twice."""

from __future__ import annotations

import argparse
import random

from harness.chaos import Chaos
from harness.cluster import Pair


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--late", type=float, default=0, help="asynchronous, and so many seconds behind")
    options = parser.parse_args()
    pair = Pair(options.late)
    try:
        pair.start()
        run = Chaos(pair, options.seed, options.seconds, options.kills)
        found = run.go()
    finally:
        pair.remove()
    print(run.report(found))
    raise SystemExit(any(found.values()))


if __name__ == "__main__":
    main()
