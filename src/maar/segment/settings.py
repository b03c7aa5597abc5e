"""When a segment is cut, what may wait for it, and how long its pushes may take."""

from __future__ import annotations

from msgspec import Struct

from maar.segment.buffer import SegmentLimits
from maar.segment.memory import MemoryLimits
from maar.segment.pace import FlushPace


class SegmentSettings(Struct, frozen=True):
    flush_interval_ms: int = 500  # a push waits for at least this
    flush_interval_max_ms: int = 2_000  # where more is worth waiting for
    flush_bytes: int = 64 << 10  # a segment of this size is worth its PUT: it waits no longer
    segment_bytes_max: int = 16 << 20
    index_bytes_max: int = 192 << 10  # well below what a log entry may hold
    buffered_bytes_max: int = 256 << 20  # beyond this, push answers 429
    buffered_profiles_max: int = 200_000
    writes_in_flight_max: int = 8
    hedge_after_ms: int = 500
    hedges_per_s: int = 2
    hedges_burst: int = 10
    ack_deadline_ms: int = 10_000  # far shorter than the lag of the floor (S4)

    def bounds(self) -> SegmentLimits:
        least_ns = self.flush_interval_ms * 1_000_000
        return SegmentLimits(
            FlushPace(
                least_ns, max(least_ns, self.flush_interval_max_ms * 1_000_000), self.flush_bytes
            ),
            segment_bytes_max=self.segment_bytes_max,
            index_bytes_max=self.index_bytes_max,
        )

    def room(self) -> MemoryLimits:
        return MemoryLimits(self.buffered_bytes_max, self.buffered_profiles_max)
