"""The writer's metastore client: the log's time, and registrations of segments."""

from __future__ import annotations

import msgspec

from maar.model.block import BlockMeta
from maar.model.errors import Unavailable
from maar.ports.calls import Caller
from maar.ports.clock import Clock
from maar.ports.metastore.log_time import GetNow, Now
from maar.ports.writer.registrar import AddBlocks, BlockRegistrar

FRESH_NS = 10_000_000_000  # how long a reading of the log's time is extrapolated


class SegmentRefused(Unavailable):
    """The index refuses this segment; the profiles may be sent again in another."""


class Registrar:
    def __init__(self, metastore: Caller[BlockRegistrar], clock: Clock) -> None:
        self._metastore = metastore
        self._clock = clock
        self._said: Now | None = None
        self._at_ns = 0
        self._at_wall_ns = 0
        self._doubted = False

    async def now(self) -> Now:
        """The log's time: what it said last, plus what our own monotonic clock measured since."""
        known = None if self._doubted else self.recent_now(within_ns=FRESH_NS)
        if known is not None:
            return known
        asked_ns, asked_wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
        said = await self._metastore.call(GetNow())
        self._said, self._at_ns, self._at_wall_ns = said, asked_ns, asked_wall_ns
        self._doubted = False
        passed_ns = self._clock.monotonic_ns() - asked_ns
        return msgspec.structs.replace(said, lease_time=said.lease_time + passed_ns)

    def recent_now(self, *, within_ns: int) -> Now | None:
        """The log's time without asking, if it was asked so lately: by the clock that saw more,
        since one of them stood still while a machine was suspended.
        """
        said, passed_ns = self._said, self._clock.monotonic_ns() - self._at_ns
        if said is None or max(passed_ns, self._clock.wall_ns() - self._at_wall_ns) > within_ns:
            return None
        return msgspec.structs.replace(said, lease_time=said.lease_time + passed_ns)

    def doubt(self) -> None:
        """After a failure, ask for the log's time again: the log may have been restored."""
        self._doubted = True

    async def add(self, meta: BlockMeta) -> bool:
        """True, or SegmentRefused."""
        reply = await self._metastore.call(AddBlocks((meta,)))
        if reply.refusals[0]:
            raise SegmentRefused(
                f"the index refused the segment: {reply.refusals[0]}; send it again"
            )
        return True
