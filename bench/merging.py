"""CPU of compaction's tasks for each MB of gzip pprof, in a bare process, level by level.

    python bench/merging.py [--plans 4] [--segments 20] [--profiles 16] [--rounds 3]

Plans of segments become blocks of level 1, and these one block of level 2; all in this process,
with one thread, so that nothing of Spark, the metastore or a start is counted. Once all profiles
are of one build of each service, so that their symbols are the same, and once every profile is of
a build of its own, so that all names of functions differ. The baseline is the CPU that zlib and
protobuf need to read the same profiles, in the same run. Prints: name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import zlib
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from random import Random

import msgspec
import pyarrow as pa

import synthetic
from maar.adapters.stores.open import open_store
from maar.model.block import BlockMeta
from maar.model.ids import MAIN_STORE
from maar.model.profile import RawProfile
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.pprof import gzip
from maar.pprof.schema import Profile
from maar.services.compact.run import load
from maar.services.compact.run import run as compact

TEMPLATES = 64
NAMED = b".method"  # a part of every function's name
LIMIT = 256 << 20


def profiles(number: int, *, builds: bool) -> list[RawProfile]:
    """So many profiles; with `builds`, each of a build of its own."""
    chance = Random(4711)
    templates = [synthetic.profile(chance, n) for n in range(min(TEMPLATES, number))]
    made = []
    for n in range(number):
        one = templates[n % len(templates)]
        if builds:
            raw = gzip.gunzip(one.payload, limit=LIMIT)
            raw = raw.replace(NAMED, b".%06d" % n)
            one = msgspec.structs.replace(one, payload=gzip.compress(raw))
        made.append(synthetic.again(one, time_ns=synthetic.START_NS + n * 1_000_000))
    return made


def read_by_protobuf(some: Sequence[RawProfile]) -> float:
    """CPU seconds of the baseline."""
    began = time.process_time()
    for one in some:
        Profile.FromString(zlib.decompress(one.payload, wbits=31))
    return time.process_time() - began


class Lake:
    """A directory as the store, and plans that are carried out here and now."""

    def __init__(self, directory: Path) -> None:
        self.store: ObjectStore = open_store(
            StoreSettings(MAIN_STORE, (directory / "store").as_uri())
        )
        self._scratch = directory / "scratch"
        self._scratch.mkdir()
        self._attempts = count()

    def merge(self, inputs: Sequence[BlockMeta]) -> tuple[list[BlockMeta], float]:
        """The outputs of a plan, and its CPU seconds."""
        plan = synthetic.lease(inputs)
        attempt = f"a{next(self._attempts)}"
        began = time.process_time()
        result = compact(plan, store=self.store, attempt=attempt, scratch=self._scratch, wall_ns=0)
        return list(result.outputs), time.process_time() - began


def measure(lake: Lake, some: Sequence[RawProfile], *, plans: int, segments: int) -> list[float]:
    """CPU seconds of all plans of level 0, and of the one of level 1."""
    each = -(-len(some) // (plans * segments))
    written = [
        synthetic.segment(lake.store, some[at : at + each]) for at in range(0, len(some), each)
    ]
    ones: list[BlockMeta] = []
    first = 0.0
    for at in range(0, len(written), segments):
        outputs, took = lake.merge(written[at : at + segments])
        ones += outputs
        first += took
    _, second = lake.merge(ones)
    return [first, second]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=4, help="of level 0")
    parser.add_argument("--segments", type=int, default=20, help="of each plan")
    parser.add_argument("--profiles", type=int, default=16, help="of each segment")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    pa.set_cpu_count(1)
    load()
    number = options.plans * options.segments * options.profiles
    load_before = synthetic.load_now()
    for name, builds in (("one_build", False), ("new_builds", True)):
        some = profiles(number, builds=builds)
        size = sum(len(one.payload) for one in some) / 1e6
        took: list[list[float]] = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory(prefix="maar-bench-") as directory:
                lake = Lake(Path(directory))
                cpu = measure(lake, some, plans=options.plans, segments=options.segments)
            took.append([*cpu, read_by_protobuf(some)])
        *levels, baseline = (statistics.median(each) for each in zip(*took, strict=True))
        print(f"# {number} profiles, {size:.1f} MB of gzip, median of {options.rounds}")
        for level, seconds in enumerate(levels):
            value, ratio = 1000 * seconds / size, seconds / baseline
            print(f"merging_level_{level}_{name} {value:.1f} ms/MB {ratio:.2f} zlib_and_protobuf")
    synthetic.tell_of_neighbours(load_before)


if __name__ == "__main__":
    main()
