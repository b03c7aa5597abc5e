"""Peak memory of merges: 200 MB and 2 GB of input, all symbols shared, and every stack unique.

    python bench/merge_memory.py [MEGABYTES ...]

Makes level-0 segments of about the given size, compacts them to level 1 in groups, then merges all
to level 2, each compaction in a process of its own, and prints the peak resident memory of each.
The promise is 1 GiB, whatever the input. Each line: name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from random import Random

from maar.adapters.stores.open import open_store
from maar.block.format.segment import segment_meta, write_segment
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.ids import (
    MAIN_STORE,
    FencingToken,
    Incarnation,
    PlanId,
    Shard,
    TenantId,
    segment_id,
)
from maar.model.plan import LeasedPlan, PlanResult, QueueKey
from maar.model.profile import RawProfile, profile_id
from maar.ports.stores.object_store import StoreSettings
from maar.pprof.encode import encode
from maar.pprof.gzip import compress
from maar.pprof.plain import (
    PlainFunction,
    PlainLine,
    PlainLocation,
    PlainMapping,
    PlainProfile,
    PlainSample,
)
from maar.services.compact.rules import COMPACT
from maar.services.compact.run import run as compact

LIMIT_BYTES = 1 << 30
TOKEN = "xxxxxxxx"
SAMPLES = 400
SEGMENT_BYTES = 10 << 20
BLOCKS = 10  # of level 1, which are merged into level 2
TARGET_BYTES = 256 << 20  # the default of the policy
INCARNATION = Incarnation("be9c4000")
TENANT = TenantId("bench")
NOON_NS = 1_789_992_000_000_000_000


def template(*, shape: int) -> bytes:
    """A service's CPU profile: 2,000 functions, 400 stacks of 30 frames, a token in each name."""
    random = Random(shape)
    functions = [
        PlainFunction(f"company.{TOKEN}.package{row % 97}.Type{row}.method{row}", "", f"{row}.go")
        for row in range(2_000)
    ]
    locations = [
        PlainLocation(0, 0x1000 + 16 * row, (PlainLine(row, row % 500 + 1),))
        for row in range(len(functions))
    ]
    samples = [
        PlainSample(
            [random.randrange(len(locations)) for _ in range(30)],
            [1 + random.randrange(100), 10_000_000],
        )
        for _ in range(SAMPLES)
    ]
    return encode(
        PlainProfile(
            sample_types=[("samples", "count"), ("cpu", "nanoseconds")],
            samples=samples,
            mappings=[PlainMapping(0x1000, 0x100000, 0, "/bin/server", "b1", True, True, True)],
            locations=locations,
            functions=functions,
            period_type=("cpu", "nanoseconds"),
            period=10_000_000,
            time_ns=NOON_NS,
            duration_ns=10_000_000_000,
        )
    )


def profile_of(templates: Sequence[bytes], *, number: int, unique: bool) -> RawProfile:
    """One of the templates; `unique` gives every profile functions, hence stacks, of its own."""
    body = templates[number % len(templates)]
    if unique:
        body = body.replace(TOKEN.encode(), f"{number:0{len(TOKEN)}}".encode())
    service = f"service-{number % 20}"
    labels = (("__name__", "process_cpu"), ("service_name", service))
    time_ns = NOON_NS + number * 1_000_000
    return RawProfile(
        id=profile_id(tenant=TENANT, labels=labels, time_ns=time_ns, client_id="", body=body),
        tenant=TENANT,
        service=service,
        labels=labels,
        types=(
            "process_cpu:samples:count:cpu:nanoseconds",
            "process_cpu:cpu:nanoseconds:cpu:nanoseconds",
        ),
        time_ns=time_ns,
        duration_ns=10_000_000_000,
        samples=SAMPLES,
        payload=compress(body),
        raw_size=len(body),
    )


class Lake:
    """A directory as the store, and compactions in processes of their own."""

    def __init__(self, directory: Path) -> None:
        self.settings = StoreSettings("main", f"file://{directory / 'store'}")
        self.scratch = directory / "scratch"
        self.scratch.mkdir()
        self._numbers = count(1)

    def segment(self, profiles: Sequence[RawProfile]) -> BlockMeta:
        number = next(self._numbers)
        block = segment_id(lease_time_ns=number, entropy=number)
        written = write_segment(profiles)
        key = keys.segment(shard=Shard(1), block=block, incarnation=INCARNATION)
        open_store(self.settings).create(key, written.body)
        return segment_meta(
            written,
            block=block,
            key=key,
            shard=Shard(1),
            store=MAIN_STORE,
            created_by="bench",
            created_at_ns=0,
        )

    def compact(
        self, inputs: Sequence[BlockMeta], *, target: int = TARGET_BYTES
    ) -> tuple[PlanResult, int]:
        """The result and the peak memory of the process that made it, in bytes."""
        number = next(self._numbers)
        first = inputs[0]
        plan = LeasedPlan(
            id=PlanId(number, 0),
            kind=COMPACT,
            token=FencingToken(INCARNATION, number),
            key=QueueKey(first.store, first.tenant, first.shard, first.level),
            inputs=tuple(inputs),
            target_block_bytes=target,
            lease_ns=0,
        )
        return alone(plan, self.settings, self.scratch)


def _compact(plan: LeasedPlan, settings: StoreSettings, scratch: Path) -> tuple[PlanResult, int]:
    store = open_store(settings)
    result = compact(plan, store=store, attempt="a1", scratch=scratch, wall_ns=0)
    return result, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def alone(plan: LeasedPlan, settings: StoreSettings, scratch: Path) -> tuple[PlanResult, int]:
    """Run a compaction in a fresh process, so that its peak is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_compact, (plan, settings, scratch))


def measure(megabytes: int, *, unique: bool) -> bool:
    """Print the peaks of one size; are they within the limit?"""
    kind = "every stack unique" if unique else "stacks shared"
    worst = 0
    with tempfile.TemporaryDirectory(prefix="maar-merge-") as directory:
        lake = Lake(Path(directory))
        segments = _segments(lake, megabytes << 20, unique=unique)
        blocks: list[BlockMeta] = []
        group = -(-len(segments) // BLOCKS)
        for start in range(0, len(segments), group):
            result, peak = lake.compact(segments[start : start + group])
            blocks += result.outputs
            worst = max(worst, peak)
        _report(megabytes, kind, "0 to 1", worst, segments, blocks)
        result, peak = lake.compact(blocks)
        _report(megabytes, kind, "1 to 2", peak, blocks, result.outputs)
        whole, peak_whole = lake.compact(segments)  # all raw input in one plan
        _report(megabytes, kind, "0 to 1, one plan", peak_whole, segments, whole.outputs)
    return max(worst, peak, peak_whole) <= LIMIT_BYTES


def _segments(lake: Lake, size: int, *, unique: bool) -> list[BlockMeta]:
    templates = [template(shape=shape) for shape in range(1 if unique else 50)]
    numbers = count()
    segments: list[BlockMeta] = []
    while sum(segment.size for segment in segments) < size:
        profiles: list[RawProfile] = []
        while sum(len(profile.payload) for profile in profiles) < SEGMENT_BYTES:
            profiles.append(profile_of(templates, number=next(numbers), unique=unique))
        segments.append(lake.segment(profiles))
    return segments


def _report(
    megabytes: int,
    kind: str,
    step: str,
    peak: int,
    inputs: Sequence[BlockMeta],
    outputs: Sequence[BlockMeta],
) -> None:
    came, went = (sum(block.size for block in blocks) for blocks in (inputs, outputs))
    name = f"peak_{megabytes}MB_{kind}_{step}".replace(", ", "_").replace(" ", "_")
    print(f"{name} {peak / 2**20:.0f} MiB {peak / LIMIT_BYTES:.2f} the-promise-of-1-GiB")
    print(
        f"# {came / 1e6:.1f} MB in, {went / 1e6:.1f} MB out, {len(outputs)} blocks",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("megabytes", nargs="*", type=int, default=[200, 2000])
    sizes = parser.parse_args().megabytes
    within = [measure(size, unique=unique) for size in sizes for unique in (False, True)]
    raise SystemExit(0 if all(within) else 1)


if __name__ == "__main__":
    main()
