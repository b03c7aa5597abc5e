"""Cleaning deletes no last readable copy of a profile that is wanted, whatever happened before.

The oracle knows nothing of causes, tombstones or successors: only which segments a block was made
of, and which objects are there.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from maar.metastore.fold.deleting import losing, undo
from maar.metastore.fold.stores import copies
from maar.metastore.records.entries import BlocksExpired, BlocksLost, RetentionUndone
from maar.model.block import BlockMeta
from maar.model.errors import Retryable
from maar.model.ids import BlockId, StoreName
from maar.model.policy import HOUR_NS
from maar.model.stores import keys_at, stores_of
from support.clock.virtual_time import run_virtually
from support.lake.several_stores import SeveralStores
from support.metastore.copies import EU, US, want
from support.metastore.fold import DAY_START_NS
from support.stores.memory_store import MemoryStore


class World:
    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.lake = SeveralStores()
        want(self.lake.fold, EU, US)
        self.made_of: dict[BlockId, set[BlockId]] = {}  # block: segments
        self.keys: dict[
            tuple[BlockId, StoreName], tuple[str, ...]
        ] = {}  # of each copy there ever was
        self.lost: set[BlockId] = set()  # segments of what was given up
        self.number = 1

    # ── what happens ──

    def push(self) -> None:
        metas = self.lake.add(*range(self.number, self.number + 3))
        self.number += 3
        self.made_of |= {meta.id: {meta.id} for meta in metas}
        self.note()
        self._merge(metas)

    def merge(self) -> None:
        level = self.chance.choice((1, 2))
        some = [meta for meta in self.live() if meta.level == level and self.is_whole(meta)][:2]
        if len(some) == 2:
            self._merge(some)

    def _merge(self, metas: tuple[BlockMeta, ...] | list[BlockMeta]) -> None:
        made = self.lake.merge(metas)
        self.made_of[made.id] = set().union(*(self.made_of[meta.id] for meta in metas))
        self.note()

    def copy(self) -> None:
        for meta in filter(self.is_whole, self.live()):
            wanted = copies.wanted_stores(self.lake.state, meta)
            lacking = [store for store in wanted if store not in stores_of(meta)]
            if lacking and self.chance.random() < 0.3:
                self.lake.copy(meta.id, self.chance.choice(lacking))

    def damage(self) -> None:
        meta = self.chance.choice(self.live())
        store = self.chance.choice(stores_of(meta))
        MemoryStore.delete(self.lake.named[store], keys_at(meta, store)[0])

    def expire(self) -> None:
        block = self.chance.choice(self.live()).id
        self.lake.fold.put(BlocksExpired(DAY_START_NS * 2, (block,)))
        self.lost -= self.made_of[block]

    def undo(self) -> None:
        gone = [block for block in self.lake.state.retired if self.can_return(block)]
        self.lake.fold.put(RetentionUndone(tuple(gone[:1])))

    def lose(self) -> None:
        for meta in [meta for meta in self.live() if not self.is_whole(meta)][:1]:
            back = filter(self.is_whole, losing.sources(self.lake.state, meta.id))
            self.lake.fold.put(BlocksLost((meta.id,), "lost", tuple(each.id for each in back)))
            self.lost |= self.made_of[meta.id]

    def want(self) -> None:
        want(self.lake.fold, *self.chance.choice(((EU, US), (EU,), (US,), ())))

    def wait(self) -> None:
        self.lake.pass_time(self.chance.choice((HOUR_NS, 30 * HOUR_NS)))

    def clean(self) -> None:
        before = self.readable()
        self.lake.pass_time(self.lake.state.policy.retire_delay_ns + 1)
        for part in (self.lake.cleaner.remove, self.lake.cleaner.delete_tombstoned) * 4:
            try:
                run_virtually(part())
            except Retryable:
                continue  # it is tried again
            assert before & (self.wanted() | self.lost) <= self.readable()

    # ── what is there ──

    def live(self) -> list[BlockMeta]:
        return [self.lake.state.blocks.get(block) for block in self.lake.state.blocks.where]

    def can_return(self, block: BlockId) -> bool:
        return undo.can_return(self.lake.state, block, now=self.lake.now())

    def note(self) -> None:
        for meta in self.live():
            self.keys |= {(meta.id, store): keys_at(meta, store) for store in stores_of(meta)}

    def is_whole(self, meta: BlockMeta) -> bool:
        return any(self._has(meta.id, store) for store in stores_of(meta))

    def _has(self, block: BlockId, store: StoreName) -> bool:
        there = self.lake.named[store]._objects
        return all(key in there for key in self.keys.get((block, store), ("none",)))

    def readable(self) -> set[BlockId]:
        return set().union(
            *(self.made_of[block] for block, at in self.keys if self._has(block, at))
        )

    def wanted(self) -> set[BlockId]:
        state = self.lake.state
        found = (b for b in self.made_of if b in state.blocks or self.can_return(b))
        return set().union(*(self.made_of[block] for block in found))


@pytest.mark.parametrize("seed", range(30, 52))
def test_no_last_readable_copy_of_a_wanted_profile_is_deleted(seed: int) -> None:
    world = World(seed)
    world.push()
    often = [world.push, world.merge, world.copy, world.clean] * 3
    steps: list[Callable[[], None]] = [*often, world.damage, world.damage, world.expire]
    steps += [world.undo, world.lose, world.want, world.wait]
    for _ in range(80):
        if not world.live():
            world.push()
        world.chance.choice(steps)()
        world.note()
