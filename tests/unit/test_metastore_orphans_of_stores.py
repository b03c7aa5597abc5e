"""Orphans of several stores: what the index does not list in a store is swept there."""

from __future__ import annotations

from test_metastore_adoption_stores import TwoStores

from maar.metastore.leader.deleting.orphans_of_stores import OrphansOfStores
from maar.metastore.leader.stores import claim
from maar.metastore.records.entries import BlocksForgotten, CopiesEnded, LeftoversSwept
from maar.model.block import BlockMeta
from maar.model.ids import StoreName
from maar.model.stores import keys_at
from support.clock.virtual_time import run_virtually
from support.metastore.copies import EU, MAIN
from support.stores.memory_store import MemoryStore


class Searched(TwoStores):
    def __init__(self) -> None:
        super().__init__()
        claim.mark(self.named[EU], self.state.incarnation)
        self.every_orphan = OrphansOfStores(self, self.stores, self.clock, self.metrics)

    def copied(self, *numbers: int) -> BlockMeta:
        return self.copy(self.block(*numbers).id)

    def copied_again(self, meta: BlockMeta) -> BlockMeta:
        return self.copy(meta.id)

    def forget_attempts(self) -> None:
        """All that ever ran has ended and was swept."""
        self.pass_time(10**14)
        for plan in list(self.state.plans):
            del self.state.plans[plan]
        self.fold.put(LeftoversSwept(tuple(self.state.leftovers)))

    def sweep(self) -> int:
        """How many objects of blocks went; intents of forgotten attempts go as ever."""
        self.forget_attempts()
        found = run_virtually(self.every_orphan.sweep_now(limit=99))
        return sum(orphan.kind == "output" for orphan in found.first)

    def has(self, store: StoreName, meta: BlockMeta) -> bool:
        there = {info.key for info in MemoryStore.list(self.named[store], "")}
        return set(keys_at(meta, store)) <= there


def test_a_copy_that_is_not_listed_is_swept_though_its_block_is_known() -> None:
    lake = Searched()
    listed, unlisted = lake.copied(1, 2), lake.copied(3, 4)
    lake.fold.put(CopiesEnded(EU, (unlisted.id,), gone=True, why="the store was lost"))
    assert lake.sweep() == 0, "it may have ended by mistake: the store has no other"
    assert lake.has(EU, unlisted)
    again = lake.copied_again(unlisted)
    assert lake.sweep() == 6
    assert lake.has(EU, listed)
    assert lake.has(EU, again)
    assert not lake.has(EU, unlisted)
    assert lake.has(MAIN, unlisted)


def test_a_copy_of_a_block_that_the_log_has_forgotten_is_swept() -> None:
    lake = Searched()
    one, two = lake.copied(1, 2), lake.copied(3, 4)
    merged = lake.merge([lake.state.blocks.get(each.id) for each in (one, two)])
    for key in (info.key for info in list(lake.named[MAIN].list("lake/"))):
        if one.id in key or two.id in key:
            lake.named[MAIN].delete(key)
    lake.fold.put(BlocksForgotten((one.id, two.id)))  # as when the list of the store was full
    lake.sweep()
    assert lake.has(EU, one), "the store has not got what replaced it"
    lake.copy(merged.id)
    lake.sweep()
    assert not lake.has(EU, one)
    assert lake.every_orphan.blocked == ()


def test_a_copy_that_waits_for_its_store_is_no_orphan() -> None:
    lake = Searched()
    one, two = lake.copied(1, 2), lake.copied(3, 4)
    merged = lake.merge([lake.state.blocks.get(each.id) for each in (one, two)])
    for key in (info.key for info in list(lake.named[MAIN].list("lake/"))):
        if one.id in key or two.id in key:
            lake.named[MAIN].delete(key)
    lake.fold.put(BlocksForgotten((one.id, two.id), (EU,)))
    lake.copy(merged.id)  # what replaced them is there, and readers may still be at them
    assert lake.sweep() == 0
    assert lake.has(EU, one)
    assert lake.every_orphan.blocked == ()


def test_a_store_that_is_away_stops_no_other() -> None:
    lake = Searched()
    lake.block(1, 2)
    lake.named[EU].cut_off()
    lake.forget_attempts()
    found = run_virtually(lake.every_orphan.find(limit=9))
    assert not found.complete
    assert any("store eu was not searched" in sentence for sentence in found.kept)
    assert [orphan.kind for orphan in found.first] == ["intent"]  # in the home store
