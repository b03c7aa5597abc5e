"""The flush interval: two bounds, and what came lately decides between them."""

from __future__ import annotations

from random import Random

from maar.segment.pace import DISTRUST_MAX, Arrivals, interval_ns
from maar.segment.settings import SegmentSettings

MS = 1_000_000
SETTINGS = SegmentSettings(flush_interval_ms=500, flush_interval_max_ms=2_000, flush_bytes=1_000)
LEAST_NS, MOST_NS = SETTINGS.flush_interval_ns, SETTINGS.flush_interval_max_ns


class Shard:
    """A shard on a clock of its own, without asyncio: what the service does with timers."""

    def __init__(self, *, size: int = 10) -> None:
        self.size = size
        self.arrivals = Arrivals(SETTINGS)
        self.opened_ns: int | None = None
        self.pays = False
        self.held = 0
        self.waits_ns: list[int] = []  # of each segment, from its opening to its cut

    def push(self, now_ns: int) -> None:
        self.run_until(now_ns)
        self.arrivals.push(now_ns)
        if self.opened_ns is None:
            self.pays = self.arrivals.on_open(now_ns)
            self.opened_ns, self.held = now_ns, 0
        self.held += self.size
        self.run_until(now_ns)

    def due_ns(self) -> int | None:
        if self.opened_ns is None:
            return None
        return self.opened_ns + interval_ns(SETTINGS, held=self.held, pays=self.pays)

    def run_until(self, now_ns: int) -> None:
        due = self.due_ns()
        if due is not None and due <= now_ns:
            assert self.opened_ns is not None
            self.waits_ns.append(max(due, self.opened_ns) - self.opened_ns)
            self.opened_ns = None


def pushed(*, every_ms: float, seconds: float, size: int = 10) -> Shard:
    shard = Shard(size=size)
    at_ns = 0.0
    while at_ns < seconds * 1e9:
        shard.push(int(at_ns))
        at_ns += every_ms * MS
    return shard


def test_the_bounds() -> None:
    assert interval_ns(SETTINGS, held=0, pays=False) == LEAST_NS
    assert interval_ns(SETTINGS, held=999, pays=True) == MOST_NS
    assert interval_ns(SETTINGS, held=1_000, pays=True) == LEAST_NS


def test_lone_pushes_after_silence_go_at_the_lower_bound() -> None:
    shard = pushed(every_ms=10_000, seconds=600)
    assert set(shard.waits_ns) == {LEAST_NS}


def test_a_trickle_shares_segments_once_it_is_known() -> None:
    shard = pushed(every_ms=400, seconds=60)
    assert shard.waits_ns[:4] == [LEAST_NS] * 4, "nobody waits longer on a mere hope"
    assert set(shard.waits_ns[5:]) == {MOST_NS}


def test_a_busy_shard_goes_at_the_lower_bound() -> None:
    shard = pushed(every_ms=10, seconds=20, size=100)
    assert set(shard.waits_ns) == {LEAST_NS}


def test_after_a_trickle_falls_silent_a_lone_push_does_not_wait() -> None:
    shard = pushed(every_ms=400, seconds=30)
    before = len(shard.waits_ns)
    for minute in range(1, 4):
        shard.push(30_000 * MS + minute * 60_000 * MS)
    shard.run_until(1 << 62)
    assert set(shard.waits_ns[before + 1 :]) == {LEAST_NS}


def test_a_client_that_waits_for_its_answer_is_hardly_ever_kept_waiting_in_vain() -> None:
    shard, at_ns = Shard(), 0
    for _ in range(1_000):
        shard.push(at_ns)
        due = shard.due_ns()
        assert due is not None
        at_ns = due + 20 * MS  # the next one is sent when this one is answered
    shard.run_until(at_ns)
    vain = sum(wait == MOST_NS for wait in shard.waits_ns)
    assert 0 < vain < 30, "tried now and then, and given up again"


def test_bursts_are_not_kept_waiting_for_the_next_burst() -> None:
    shard = Shard()
    for burst in range(200):
        for number in range(20):
            shard.push(burst * 5_000 * MS + number * MS)
    shard.run_until(1 << 62)
    assert set(shard.waits_ns) == {LEAST_NS}


def test_pushes_at_random_share_segments_too() -> None:
    random, shard, at_ns = Random(7), Shard(), 0.0
    for _ in range(4_000):
        at_ns += random.expovariate(2.0) * 1e9  # two a second
        shard.push(int(at_ns))
    shard.run_until(1 << 62)
    assert len(shard.waits_ns) < 4_000 / 3, "a fixed interval would take one for every two"


def test_distrust_has_a_bound_and_passes() -> None:
    shard, at_ns = Shard(), 0
    for _ in range(5_000):
        shard.push(at_ns)
        at_ns = (shard.due_ns() or 0) + 20 * MS
    for number in range(2_000):
        shard.push(at_ns + number * 400 * MS)
    assert set(shard.waits_ns[-100:]) == {MOST_NS}
    assert DISTRUST_MAX * LEAST_NS < 60 * 10**9
