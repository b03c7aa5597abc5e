"""`make soak-spark`: thousands of segments compacted on a cluster under one fault after another."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

from support.spark.fleet import FAULTS, fleet, inject

SEGMENTS = 350  # for each fault


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak-spark", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of faults")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    given = parser.parse_args()
    _say(f"seed {given.seed}")
    random = Random(given.seed)
    done: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory(prefix="maar-soak-") as directory,
        fleet(Path(directory)) as lake,
    ):
        worker = lake.start_worker(packed=False)
        until = time.monotonic() + given.seconds
        while time.monotonic() < until:
            name = random.choice(list(FAULTS))
            inject(lake, name, segments=SEGMENTS)
            lake.wait_settled()
            done[name] += 1
            _say(f"{name}: every profile is there once")
        assert worker.stop() == 0, worker.log()
    _say(", ".join(f"{name} {times}" for name, times in done.items()))
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
