"""When a segment is cut, what may wait for it, and how long its pushes may take."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from maar.model.bounds import Count, Natural


class SegmentSettings(Struct, frozen=True):
    """When a segment is cut, what may wait for it, and how long its pushes may take."""

    flush_interval_ms: Natural = 500
    """How long a shard collects profiles before it writes a segment, at most (3 % more at times). A
    push waits for that; half of them for half of it.
    """
    flush_early_percent: Annotated[int, Meta(ge=0, le=100)] = 5
    """How many more PUTs than at a fixed interval may be spent on segments that are cut earlier, so
    that their pushes are answered sooner. 0: none.
    """
    flush_interval_max_ms: Natural = 0
    """To save PUTs, at the price of slower answers: how long a shard collects where pushes trickle
    in and share segments by that, such as 2000. Nothing is cut early then. Not more than
    `flush_interval_ms`: never longer.
    """
    flush_bytes: Natural = 64 << 10
    """A segment of this size is worth its PUT, and waits for no more than `flush_interval_ms`, also
    with a longer `flush_interval_max_ms`.
    """
    segment_bytes_max: Count = 16 << 20
    """A segment of this size is written at once."""
    index_bytes_max: Count = 192 << 10
    """What a segment may need in the index before it is cut."""
    buffered_bytes_max: Count = 256 << 20
    """All profiles that wait for their segment; beyond it push answers 429. Over half of it, a
    tenant that holds more than an equal part is refused first. Plan for two to three times as much
    memory: requests on the wire and segments being encoded come on top.
    """
    buffered_profiles_max: Count = 200_000
    """The same by number."""
    writes_in_flight_max: Count = 8
    """Segments being written at once."""
    hedge_after_ms: Natural = 500
    """A create that takes longer is tried a second time beside the first."""
    hedges_per_s: Natural = 2
    """How often, on average."""
    hedges_burst: Natural = 10
    """How often in a row; 0: never."""
    ack_deadline_ms: Count = 10_000
    """A push that is not durable so long after its segment was cut answers 503."""

    @property
    def flush_interval_ns(self) -> int:
        return self.flush_interval_ms * 1_000_000

    @property
    def flush_interval_max_ns(self) -> int:
        return max(self.flush_interval_ms, self.flush_interval_max_ms) * 1_000_000

    @property
    def saves_puts(self) -> bool:
        """Whether the owner chose fewer PUTs over sooner answers."""
        return self.flush_interval_max_ms > self.flush_interval_ms


class DeadLetterSettings(Struct, frozen=True, kw_only=True):
    """Whether a segment that the metastore cannot take is acknowledged all the same (S20)."""

    enabled: bool = False
    """When the metastore cannot take a segment's metadata in time, keep it in the store and
    acknowledge the push. Segment writers and the query role need the same value.
    """
    after_ms: Annotated[int, Meta(ge=100, le=60_000)] = 2_000
    """How long the metastore has before that."""
