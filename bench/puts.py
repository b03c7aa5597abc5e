"""PUT requests of one shard: the adaptive flush interval against a fixed one, on the same pushes.

    python bench/puts.py [--minutes 60]

Time is virtual: the pushes of an hour go through the decisions that the segment writer makes
(`segment/buffer.py`, `segment/pace.py`) with its default settings, and every cut is a PUT. Nothing
is uploaded and nothing is timed. The loads of the shard, one push with one profile each:

    idle      1 pod, a 10 KiB profile every 15 s
    trickle   20 pods, 10 KiB every 10 s, each in its own phase
    steady    60 pods, 30 KiB every 10 s
    busy      400 pods, 30 KiB every 10 s
    bursts    100 pods, 10 KiB every 10 s, all at once
    answered  1 client, 10 KiB, that sends the next push when the last one is answered

Each line: name value unit ratio baseline, against the lower bound as a fixed interval. `wait` is
how long a push waits for the cut of its segment: what fewer PUTs cost.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

import msgspec

from maar.model.ids import ProfileId, TenantId
from maar.model.profile import RawProfile
from maar.segment.buffer import Buffer
from maar.segment.pace import Arrivals
from maar.segment.settings import SegmentSettings

SECOND = 1_000_000_000
KIB = 1024
UPLOAD_NS = 50_000_000  # from the cut to the answer, for the client that waits for it
MINUTES = 60


@dataclass
class Shard:
    """What the segment writer does with one shard, on a virtual clock."""

    settings: SegmentSettings
    puts: int = 0
    size: int = 0
    waits_ns: list[int] = field(default_factory=list)
    buffer: Buffer | None = None
    opened: list[int] = field(default_factory=list)  # when each push of the open segment came
    cut_ns: int = 0

    def __post_init__(self) -> None:
        self.arrivals = Arrivals(self.settings)

    def push(self, now_ns: int, profile: RawProfile) -> None:
        self.cut_if_due(now_ns)
        self.arrivals.push(now_ns)
        if self.buffer is None:
            pays = self.arrivals.on_open(now_ns)
            self.buffer = Buffer(self.settings, opened_ns=now_ns, pays=pays)
        self.buffer.add(profile)
        self.size += len(profile.payload)
        self.opened.append(now_ns)
        if self.buffer.full():
            self._cut(now_ns)
        self.cut_if_due(now_ns)

    def cut_if_due(self, now_ns: int) -> None:
        """The timer; and a push that comes after the lower bound and makes it worth its PUT."""
        if self.buffer is not None and self.buffer.due_ns <= now_ns:
            self._cut(max(self.buffer.due_ns, self.opened[-1]))

    def end(self) -> None:
        self.cut_if_due(1 << 62)

    def _cut(self, at_ns: int) -> None:
        self.puts += 1
        self.waits_ns += [at_ns - came_ns for came_ns in self.opened]
        self.buffer, self.cut_ns = None, at_ns
        self.opened.clear()


def profile_of(size: int) -> RawProfile:
    return RawProfile(
        id=ProfileId(bytes(16)),
        tenant=TenantId("bench"),
        service="shop",
        labels=(("service_name", "shop"),),
        types=("process_cpu:cpu:nanoseconds:cpu:nanoseconds",),
        time_ns=0,
        duration_ns=0,
        samples=1,
        payload=bytes(size),
        raw_size=size,
    )


def pods(count: int, *, every_s: float, seconds: float, phases: bool = True) -> Iterator[int]:
    """When the pods push: each at its interval, a hundredth of it early or late."""
    random = Random(4711)
    starts = [random.random() * every_s if phases else 0.0 for _ in range(count)]
    times = [
        start + turn * every_s + random.gauss(0, every_s / 100 if phases else 0.02)
        for start in starts
        for turn in range(int(seconds / every_s))
    ]
    return (int(max(0.0, at_s) * SECOND) for at_s in sorted(times))


Load = Callable[[Shard, float], None]


def from_pods(count: int, size: int, *, every_s: float = 10.0, phases: bool = True) -> Load:
    profile = profile_of(size)

    def run(shard: Shard, seconds: float) -> None:
        for now_ns in pods(count, every_s=every_s, seconds=seconds, phases=phases):
            shard.push(now_ns, profile)
        shard.end()

    return run


def answered(shard: Shard, seconds: float) -> None:
    profile, now_ns = profile_of(10 * KIB), 0
    while now_ns < seconds * SECOND:
        shard.push(now_ns, profile)
        shard.end()  # nobody else pushes
        now_ns = shard.cut_ns + UPLOAD_NS


LOADS: dict[str, Load] = {
    "idle": from_pods(1, 10 * KIB, every_s=15.0),
    "trickle": from_pods(20, 10 * KIB),
    "steady": from_pods(60, 30 * KIB),
    "busy": from_pods(400, 30 * KIB),
    "bursts": from_pods(100, 10 * KIB, phases=False),
    "answered": answered,
}


def run(load: Load, settings: SegmentSettings, minutes: float) -> Shard:
    shard = Shard(settings)
    load(shard, minutes * 60)
    return shard


def line(name: str, value: float, unit: str, fixed: float, baseline: str) -> None:
    print(f"{name} {value:.0f} {unit} {value / fixed:.3f} {baseline}_{fixed:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=MINUTES)
    minutes = parser.parse_args().minutes
    adaptive = SegmentSettings()
    least_ms = adaptive.flush_interval_ms
    fixed = msgspec.structs.replace(adaptive, flush_interval_max_ms=least_ms)
    baseline = f"fixed_{least_ms}_ms"
    print(f"# {least_ms} to {adaptive.flush_interval_max_ms} ms, {minutes:g} minutes, one shard")
    for name, load in LOADS.items():
        ours, theirs = run(load, adaptive, minutes), run(load, fixed, minutes)
        print(f"# {name}: {len(ours.waits_ns)} pushes, {ours.size / 1e6:.1f} MB, {ours.puts} PUTs")
        hours, gigabytes = minutes / 60, (ours.size / 1e9, theirs.size / 1e9)
        line(f"puts_{name}", ours.puts / hours, "per_h", theirs.puts / hours, baseline)
        line(
            f"puts_{name}_volume",
            ours.puts / gigabytes[0],
            "per_GB",
            theirs.puts / gigabytes[1],
            baseline,
        )
        waits = [statistics.median(shard.waits_ns) / 1e6 for shard in (ours, theirs)]
        line(f"wait_{name}_p50", waits[0], "ms", waits[1], baseline)


if __name__ == "__main__":
    main()
