"""PUT requests and waits of a segment writer, against a fixed flush of the same pushes.

    python bench/puts.py [--minutes 60] [--loads ten …]

Time is virtual: the pushes of an hour go through the decisions that the segment writer makes
(`segment/buffer.py`, `segment/early.py`, `segment/pace.py`), and every cut is a PUT. Nothing is
uploaded and nothing is timed. The loads, one push with one profile each, to one shard but for ten:

    ten       10 pushes a second by chance, 25 KiB, on the 4 shards of a writer
    idle      1 pod, a 10 KiB profile every 15 s
    trickle   20 pods, 10 KiB every 10 s, each in its own phase
    steady    60 pods, 30 KiB every 10 s
    busy      400 pods, 30 KiB every 10 s
    bursts    100 pods, 10 KiB every 10 s, all at once
    answered  1 client, 10 KiB, that sends the next push when the last one is answered

Each line: name value unit ratio baseline. PUTs are against a flush at a fixed interval of the very
same pushes, waits for the cut against the flush interval: an upload comes on top. `saved` lines are
with `segment.flush_interval_max_ms=2000`, for owners who rather save PUTs.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from maar.model.ids import ProfileId, TenantId
from maar.model.profile import RawProfile
from maar.segment.buffer import Buffer
from maar.segment.early import PutBudget, ShardSpending
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
    budget: PutBudget
    buffer: Buffer | None = None
    opened: list[int] = field(default_factory=list)  # when each push of the open segment came
    puts: int = 0
    cut_ns: int = 0
    waits_ns: list[int] = field(default_factory=list)
    fixed_puts: int = 0
    fixed_until_ns: int = -1

    def __post_init__(self) -> None:
        self.arrivals = Arrivals(self.settings)
        self.spending = ShardSpending(self.settings, self.budget)

    @property
    def due_ns(self) -> int:
        return 1 << 62 if self.buffer is None else max(self.buffer.due_ns, self.opened[-1])

    def push(self, now_ns: int, profile: RawProfile) -> None:
        if now_ns >= self.fixed_until_ns:
            self.fixed_puts += 1
            self.fixed_until_ns = now_ns + self.settings.flush_interval_ns
        self.arrivals.push(now_ns)
        self.spending.push(now_ns)
        if self.buffer is None:
            pays = self.arrivals.on_open(now_ns)
            self.buffer = Buffer(self.settings, opened_ns=now_ns, pays=pays)
            self.spending.on_open(now_ns)
        self.buffer.add(profile)
        self.opened.append(now_ns)
        looks = self.buffer.looks
        if self.buffer.full():
            self._cut(now_ns, full=True)
        elif looks is not None:
            looks.push(now_ns)
            if self.buffer.opened_ns == now_ns and self.spending.is_alone:
                self._cut(now_ns, early=True)

    def on_due(self) -> None:
        """The timer; and a push that comes after the lower bound and makes it worth its PUT."""
        assert self.buffer is not None
        looks, now_ns = self.buffer.looks, self.due_ns
        if looks is None or now_ns >= looks.end_ns:
            self._cut(now_ns)
        elif looks.look(self.spending):
            self._cut(now_ns, early=True)

    def _cut(self, at_ns: int, *, early: bool = False, full: bool = False) -> None:
        self.spending.on_cut(early=early, full=full)
        self.puts += 1
        self.waits_ns += [at_ns - came_ns for came_ns in self.opened]
        self.buffer, self.cut_ns = None, at_ns
        self.opened.clear()


class Writer:
    """All shards of a segment writer."""

    def __init__(self, settings: SegmentSettings, shards: int = 4) -> None:
        budget = PutBudget(settings)
        self.shards = [Shard(settings, budget) for _ in range(shards)]
        self.size = 0

    def push(self, now_ns: int, profile: RawProfile, shard: int = 0) -> None:
        self.run_until(now_ns)
        self.size += len(profile.payload)
        self.shards[shard].push(now_ns, profile)

    def run_until(self, now_ns: int) -> None:
        while (due := min(self.shards, key=lambda one: one.due_ns)).due_ns <= now_ns:
            due.on_due()

    def end(self) -> None:
        self.run_until((1 << 62) - 1)

    @property
    def puts(self) -> int:
        return sum(shard.puts for shard in self.shards)

    @property
    def fixed_puts(self) -> int:
        return sum(shard.fixed_puts for shard in self.shards)

    @property
    def waits_ns(self) -> list[int]:
        return [wait for shard in self.shards for wait in shard.waits_ns]


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


Load = Callable[[Writer, float], None]


def from_pods(count: int, size: int, *, every_s: float = 10.0, phases: bool = True) -> Load:
    profile = profile_of(size)

    def run(writer: Writer, seconds: float) -> None:
        for now_ns in pods(count, every_s=every_s, seconds=seconds, phases=phases):
            writer.push(now_ns, profile)
        writer.end()

    return run


def by_chance(per_s: float, size: int) -> Load:
    profile = profile_of(size)

    def run(writer: Writer, seconds: float) -> None:
        random, at_s = Random(4711), 0.0
        while (at_s := at_s + random.expovariate(per_s)) < seconds:
            writer.push(int(at_s * SECOND), profile, random.randrange(len(writer.shards)))
        writer.end()

    return run


def answer(writer: Writer, seconds: float) -> None:
    profile, now_ns = profile_of(10 * KIB), 0
    while now_ns < seconds * SECOND:
        writer.push(now_ns, profile)
        writer.end()  # nobody else pushes
        now_ns = writer.shards[0].cut_ns + UPLOAD_NS


LOADS: dict[str, Load] = {
    "ten": by_chance(10, 25 * KIB),
    "idle": from_pods(1, 10 * KIB, every_s=15.0),
    "trickle": from_pods(20, 10 * KIB),
    "steady": from_pods(60, 30 * KIB),
    "busy": from_pods(400, 30 * KIB),
    "bursts": from_pods(100, 10 * KIB, phases=False),
    "answered": answer,
}


def run(load: Load, settings: SegmentSettings, minutes: float) -> Writer:
    writer = Writer(settings)
    load(writer, minutes * 60)
    return writer


def report(name: str, writer: Writer, settings: SegmentSettings, hours: float) -> None:
    interval_ms = settings.flush_interval_ms
    pushes = len(writer.waits_ns)
    print(f"# {name}: {pushes} pushes, {writer.size / 1e6:.1f} MB, {writer.puts} PUTs")
    baseline = f"fixed_{interval_ms}_ms"

    def line(what: str, value: float, unit: str, against: float, baseline: str) -> None:
        print(f"{what}_{name} {value:.0f} {unit} {value / against:.3f} {baseline}_{against:.0f}")

    line("puts", writer.puts / hours, "per_h", writer.fixed_puts / hours, baseline)
    gigabytes = writer.size / 1e9
    line("volume", writer.puts / gigabytes, "per_GB", writer.fixed_puts / gigabytes, baseline)
    cuts = statistics.quantiles(writer.waits_ns, n=100, method="inclusive")
    for percent in (50, 99):
        wait_ms = cuts[percent - 1] / 1e6
        line(f"wait_p{percent}", wait_ms, "ms", interval_ms, "flush_interval")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--loads", nargs="+", default=list(LOADS), choices=list(LOADS))
    given = parser.parse_args()
    minutes = given.minutes
    default = SegmentSettings()
    saving = SegmentSettings(flush_interval_max_ms=2_000)
    print(f"# flush interval {default.flush_interval_ms} ms, {minutes:g} minutes")
    for name in given.loads:
        load = LOADS[name]
        report(name, run(load, default, minutes), default, minutes / 60)
        report(f"{name}_saved", run(load, saving, minutes), saving, minutes / 60)


if __name__ == "__main__":
    main()
