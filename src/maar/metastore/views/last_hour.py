"""How many objects a query of the last hour has to open, counted incrementally.

A million blocks are too many to count in one turn of the leader's loop, so a count is a walk in
small steps; the numbers shown are those of the last complete walk.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from maar.metastore.state.index import Chunk, Index, blocks_in
from maar.model.block import TABLES
from maar.model.time import SECOND_NS, LeaseTime, TimeRange, WallTime

HOUR_NS = 3_600 * SECOND_NS
PAUSE_NS = 15 * SECOND_NS  # between the beginnings of two walks
STEP_COST = 1_000  # about half a millisecond
COUNTED_COST = 3  # of a chunk that is counted as a whole; one that is skipped costs 1
DECODED_COST = 10  # of a block whose bytes have to be read


class Opened(NamedTuple):
    blocks: int
    files: int


Counts = dict[int, Opened]  # by level
Walk = Generator[int, None, Counts]


def walk(index: Index, range_: TimeRange) -> Walk:
    """Live blocks with profiles of a time range; yields the cost of each step.

    The fold may go on between two steps: lists are taken in one go, chunks are never edited.
    """
    blocks: dict[int, int] = {}
    for tenant in list(index.tenants):
        for partition in list(index.tenants.get(tenant, {}).values()):
            for chunk in list(partition.chunks):
                yield _count(chunk, range_, blocks) if chunk.overlaps(range_) else 1
    return {level: Opened(count, count * _files(level)) for level, count in sorted(blocks.items())}


def _count(chunk: Chunk, range_: TimeRange, blocks: dict[int, int]) -> int:
    """Add up a chunk; what it cost. Of a chunk that lies within the range, nothing is decoded."""
    if range_.start_ns <= chunk.min_time_ns and chunk.max_time_ns < range_.end_ns:
        for level in set(chunk.levels):
            blocks[level] = blocks.get(level, 0) + chunk.levels.count(level)
        return COUNTED_COST
    for level, meta in zip(chunk.levels, blocks_in((chunk,)), strict=True):
        if range_.overlaps(meta.min_time_ns, meta.max_time_ns):
            blocks[level] = blocks.get(level, 0) + 1
    return DECODED_COST * len(chunk)


def _files(level: int) -> int:
    """A segment is one object, a block has one for each table."""
    return len(TABLES) if level else 1


class LastHour:
    """The newest finished count, and the one that is under way."""

    def __init__(self, step_cost: int = STEP_COST) -> None:
        self._step_cost = step_cost
        self.counts: Counts = {}
        self._walk: Walk | None = None
        self._begun_at: LeaseTime | None = None

    def go_on(self, index: Index, *, now: LeaseTime, wall: WallTime) -> bool:
        """Take one step; whether a walk came to its end, so that the counts are new."""
        if self._walk is None:
            if self._begun_at is not None and now - self._begun_at < PAUSE_NS:
                return False
            self._begun_at = now
            self._walk = walk(index, TimeRange(wall - HOUR_NS, wall))
        spent = 0
        while spent < self._step_cost:
            try:
                spent += next(self._walk)
            except StopIteration as end:
                self.counts, self._walk = end.value, None
                return True
        return False
