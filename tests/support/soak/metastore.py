"""`make soak-metastore`: three replicas and etcd under one fault after the other, by chance."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

from support.load.register_load import Load
from support.replicas.processes import replicas
from support.replicas.under_faults import FaultyReplicas

AT_ONCE = 3  # faults under one load, whose history is then judged

Fault = Callable[[FaultyReplicas, Load, Random], Awaitable[float]]
FAULTS: dict[str, Fault] = {
    "leader killed": lambda three, load, _: three.kill_leader(load),
    "etcd's leader killed": lambda three, load, _: three.kill_etcd_leader(load),
    "both killed": lambda three, load, _: three.kill_both_leaders(load),
    "leader stopped": lambda three, load, random: three.stop_leader(
        load, seconds=random.uniform(3, 20)
    ),
    "follower cut off": lambda three, load, _: three.cut_follower_off(load),
    "leader cut off": lambda three, load, _: three.cut_leader_off(load),
    "everything killed": lambda three, load, _: three.kill_everything(load),
    "answers lost": lambda three, load, _: three.lose_answers(load),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak-metastore", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of faults")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    given = parser.parse_args()
    _say(f"seed {given.seed}")
    with (
        tempfile.TemporaryDirectory(prefix="maar-soak-") as directory,
        replicas(Path(directory)) as made,
    ):
        try:
            asyncio.run(
                _soak(FaultyReplicas(made, seed=given.seed), given.seconds, Random(given.seed))
            )
        except BaseException:
            _say(made.log())
            raise
    return 0


async def _soak(three: FaultyReplicas, seconds: float, random: Random) -> None:
    done: Counter[str] = Counter()
    registrations = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        async with three.under_load() as load:
            for _ in range(AT_ONCE):
                name = random.choice(list(FAULTS))
                gap_s = await FAULTS[name](three, load, random)
                done[name] += 1
                _say(f"{name}: {gap_s:.2f} s")
        registrations += len(load.record.acknowledged)
    _say(f"{registrations} registrations, {three.tail.head.index} entries: all as it must be")
    _say(", ".join(f"{name} {times}" for name, times in done.items()))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
