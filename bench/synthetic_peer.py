"""A small model of the peer's compaction: its rules and defaults, none of its code.

What it keeps to, as its documentation and tests describe it:

- Batches of one key (tenant, shard, level) close at 20, 10 and 10 blocks on levels 0, 1 and 2.
- A batch also closes when it is older than 36 s, 12 min and 3 h, but this is looked at only when a
  block is pushed to that level: for the key that is pushed to, and for one other key, the one that
  was touched longest ago. A level to which nothing is pushed closes nothing.
- A poll first hands out jobs that wait, low levels first, as many as the worker has free threads,
  then plans as many new ones: those are handed out by the next poll.
- Workers poll every 5 s, and tell then what they have finished.
- A job has the blocks of one key, also from later batches; fewer than the full number only when
  its first batch is too old. Level 0 is split by tenant.

Where its description leaves room we chose what is better for the peer: the one other key is the
oldest with an open batch, leases never run out, no job fails. The limit on a job's time range
(3 h) is left out: no run here is so long.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

SECOND_NS = 1_000_000_000
COUNTS = (20, 10, 10)
AGES_NS = (36 * SECOND_NS, 720 * SECOND_NS, 10_800 * SECOND_NS)
POLL_NS = 5 * SECOND_NS


@dataclass(eq=False, slots=True)
class Block:
    """A segment (level 0, many tenants) or a block (one tenant)."""

    level: int
    shard: int
    size: int
    spans: dict[str, tuple[int, int]]  # tenant → times of its oldest and newest profile


@dataclass(eq=False, slots=True)
class Batch:
    created_ns: int
    blocks: list[Block] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Job:
    level: int
    blocks: list[Block]


Key = tuple[str, int]  # tenant ("" on level 0), shard


class LevelQueue:
    """One level: a batch that is open per key, and those that have closed, in that order."""

    def __init__(self, level: int) -> None:
        self._level = level
        self._open: OrderedDict[Key, Batch] = OrderedDict()  # touched longest ago first
        self._closed: dict[Key, list[Batch]] = {}
        self._arrived: list[tuple[Key, Batch]] = []

    def push(self, block: Block, now_ns: int) -> None:
        key = ("" if self._level == 0 else next(iter(block.spans)), block.shard)
        batch = self._open.setdefault(key, Batch(now_ns))
        batch.blocks.append(block)
        self._open.move_to_end(key)
        if len(batch.blocks) >= COUNTS[self._level] or self._old(batch, now_ns):
            self._close(key)
        oldest = next(iter(self._open), None)
        if oldest is not None and self._old(self._open[oldest], now_ns):
            self._close(oldest)

    def jobs(self, now_ns: int, limit: int) -> list[Job]:
        """New jobs from closed batches, in the order in which they closed."""
        made: list[Job] = []
        for key, batch in list(self._arrived):
            while batch.blocks and len(made) < limit:
                waiting = [block for one in self._closed[key] for block in one.blocks]
                taken = waiting[: COUNTS[self._level]]
                if len(taken) < COUNTS[self._level] and not self._old(batch, now_ns):
                    break
                made.append(Job(self._level, taken))
                self._take(key, len(taken))
        self._arrived = [(key, batch) for key, batch in self._arrived if batch.blocks]
        return made

    def _take(self, key: Key, count: int) -> None:
        batches = self._closed[key]
        for batch in batches:
            taken = min(count, len(batch.blocks))
            del batch.blocks[:taken]
            count -= taken
        self._closed[key] = [batch for batch in batches if batch.blocks]

    def _old(self, batch: Batch, now_ns: int) -> bool:
        return now_ns - batch.created_ns > AGES_NS[self._level]

    def _close(self, key: Key) -> None:
        batch = self._open.pop(key)
        self._closed.setdefault(key, []).append(batch)
        self._arrived.append((key, batch))


class Peer:
    """The peer's index, queue and scheduler."""

    def __init__(self) -> None:
        self.live: dict[int, Block] = {}
        self._levels = [LevelQueue(level) for level in range(len(COUNTS))]
        self._waiting: list[Job] = []

    def add(self, block: Block, now_ns: int) -> None:
        self.live[id(block)] = block
        if block.level < len(self._levels):
            self._levels[block.level].push(block, now_ns)

    def poll(
        self, capacity: int, done: Sequence[tuple[Job, list[Block]]], now_ns: int
    ) -> list[Job]:
        for job, outputs in done:
            for block in job.blocks:
                del self.live[id(block)]
            for block in outputs:
                self.add(block, now_ns)
        self._waiting.sort(key=lambda job: job.level)
        granted, self._waiting = self._waiting[:capacity], self._waiting[capacity:]
        planned = 0
        for queue in self._levels:
            made = queue.jobs(now_ns, capacity - planned)
            planned += len(made)
            self._waiting += made
        return granted
