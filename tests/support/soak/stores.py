"""`make soak-stores`: four stores under load and one harm after the other, by chance, on Spark."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from support.lake.harmed_lake import HarmedLake, check_manifests_alone, harmed_lake
from support.stores.harmed import four_stores

LEAST = 20  # pushes between two harms, so that there is always something to lose

HARMS: dict[str, Callable[[HarmedLake], object]] = {
    "store cut off": lambda lake: lake.cut_off(lake.random.choice(lake.others), pushes=30),
    "home cut off": lambda lake: lake.cut_home_off(),
    "store wiped": lambda lake: lake.wipe(lake.random.choice(lake.others)),
    "home wiped": lambda lake: lake.wipe_home(),
    "worker killed": lambda lake: lake.kill("worker"),
    "leader killed": lambda lake: lake.kill("metastore"),
    "files flipped and deleted": lambda lake: lake.harm_files(0.01, least=1),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak-stores", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of harm")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--no-spark", action="store_true", help="a cheap worker only")
    given = parser.parse_args()
    _say(f"seed {given.seed}")
    with tempfile.TemporaryDirectory(prefix="maar-soak-") as name:
        directory = Path(name)
        with four_stores(directory) as stores:
            with harmed_lake(directory, stores, seed=given.seed, spark=not given.no_spark) as lake:
                _harm(lake, given.seconds)
                lake.load.stop()
                lake.repair()
                lake.settle()
                lake.check_copies()
                lake.check_each_alone()
                acknowledged = lake.load.acknowledged
            for store in stores:
                check_manifests_alone(store, directory / f"of-{store.name}", acknowledged)
    _say(f"{len(acknowledged)} profiles, each in every store alone, and nothing surplus")
    return 0


def _harm(lake: HarmedLake, seconds: float) -> None:
    done: Counter[str] = Counter()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        lake.goes_on(LEAST)
        name = lake.random.choice(list(HARMS))
        began = time.monotonic()
        HARMS[name](lake)
        done[name] += 1
        _say(f"{name}: {time.monotonic() - began:.1f} s")
    _say(", ".join(f"{name} {times}" for name, times in done.items()))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
