"""A log in memory, a store, and the fold of the one over the other: what an operator handles."""

from __future__ import annotations

from collections.abc import Sequence

from maar.metastore.records.entries import (
    BlocksAdded,
    Entry,
    Genesis,
    PolicySet,
    StateHashed,
    TermStarted,
    encode,
    encode_entry,
)
from maar.metastore.replica import snapshot
from maar.metastore.replica.log_fold import LogFold
from maar.metastore.state.digest import digest
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.time import LeaseTime, WallTime
from maar.ports.metastore.log import Candidate, Term, follow
from support.lake.fold_and_store import put
from support.metastore.fold import DAY_START_NS, INCARNATION, SMALL, segment
from support.metastore.memory_log import MemoryLog, SharedLog
from support.stores.memory_store import MemoryStore


class Logged:
    """Call `begin` first."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.shared = SharedLog()
        self.log = MemoryLog(self.shared)
        self.store = store or MemoryStore()
        self.replica = LogFold(self.store)
        self.term = Term(0)
        self.now = 1
        self.number = 0

    @property
    def state(self) -> MetaState:
        return self.replica.state

    async def begin(self) -> None:
        self.term = await self.log.campaign(Candidate("one"))
        self.store.create(keys.marker(INCARNATION), b"")
        await self.append(Genesis(INCARNATION), TermStarted(self.term, "one"))
        await self.append(PolicySet(SMALL))

    async def append(self, *entries: Entry) -> None:
        bodies = [
            encode(self.state.version, LeaseTime(self.now), self.wall, encode_entry(entry))
            for entry in entries
        ]
        await self.append_bodies(bodies)

    async def append_bodies(self, bodies: Sequence[bytes]) -> None:
        before = self.replica.head
        await self.log.append(bodies, term=self.term, head=before)
        await self.replica.fold(follow(before, bodies, self.term))

    @property
    def wall(self) -> WallTime:
        return WallTime(DAY_START_NS + self.now)

    async def add(self, count: int = 1) -> list[BlockMeta]:
        """Segments, an entry each."""
        metas = []
        for _ in range(count):
            self.number += 1
            self.now += 1
            metas.append(segment(self.number, at=self.now))
            put(self.store, metas[-1])
            await self.append(BlocksAdded((metas[-1],)))
        return metas

    async def hash(self) -> None:
        await self.append(StateHashed(self.state.index, digest(self.state)))

    async def snapshot(self) -> int:
        return await snapshot.make(self.log, self.store)

    async def truncate(self, before: int) -> None:
        await self.log.truncate(before=before, term=self.term)

    async def resign(self) -> None:
        await self.log.resign(self.term)


async def fold_log(log: MemoryLog, store: MemoryStore) -> LogFold:
    """As a new replica would come to it."""
    replica = await snapshot.restore(log, store)
    await replica.catch_up(log)
    return replica
