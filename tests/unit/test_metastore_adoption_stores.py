"""A log that is restored looks through every store for what exists."""

from __future__ import annotations

import msgspec
import pytest

from maar.metastore.decide import stores as decisions
from maar.metastore.leader.stores import claim
from maar.metastore.leader.stores.adoption import Adoption
from maar.metastore.records.entries import AdoptionEnded, StoresSet
from maar.model import keys
from maar.model.block import BlockMeta, Location
from maar.model.errors import Unavailable
from maar.model.ids import BlockId, StoreName
from maar.model.predicate import since
from maar.model.stores import StoreSet, StoreSpec, keys_at, stores_of
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.ports.stores.stores import StorePlace, StorePlaces, Stores
from support.lake.lost_log import SIZE, Lives
from support.lake.several_stores import NamedStore
from support.metastore.copies import EU, MAIN, Repairing
from support.stores.memory_store import MemoryStore


class TwoStores(Lives):
    """Real manifests in both."""

    def __init__(self) -> None:
        self.named = {name: NamedStore(name) for name in (MAIN, EU)}
        super().__init__(store=self.named[MAIN])
        places = tuple(StorePlace(StoreSettings(name, "memory://")) for name in self.named)
        self.stores = Stores(StorePlaces(places), self._open)
        self.adoption = Adoption(self, self.stores, self.clock, self.append, self.metrics)
        self.fold.put(StoresSet(StoreSet((StoreSpec(MAIN), StoreSpec(EU)), (EU,))))
        claim.mark(self.named[EU], self.state.incarnation)

    def _open(self, settings: StoreSettings, *, make: bool = False) -> ObjectStore:  # noqa: ARG002
        return self.named[StoreName(settings.name)]

    def block(self, *numbers: int) -> BlockMeta:
        return self.merge([self.push(number) for number in numbers])

    def copy(self, block: BlockId, *, listed: bool = True, tells: bool = True) -> BlockMeta:
        """As a repair writes it: tables, then a manifest that knows this store alone, and tells how
        old the block is; older ones did not.
        """
        repair = Repairing(self.fold)
        entry = repair.entry((block, EU))
        meta = self.state.blocks.get(block)
        (made,) = entry.copies
        files = tuple(
            msgspec.structs.replace(file, locations=(Location(EU, dict(made.files)[file.table]),))
            for file in meta.files
        )
        age = since(meta) if tells else 0
        there = msgspec.structs.replace(meta, store=EU, files=files, since=age)
        for _, key in made.files:
            self.named[EU].create(key, b"x" * SIZE)
        manifest = keys.manifest_of(made.files[0][1])
        self.named[EU].create(manifest, msgspec.msgpack.encode(there))
        self.contents[made.files[0][1]] = self.profiles_in(meta)
        if listed:
            self.fold.put(entry)
            return self.state.blocks.get(block)
        return there

    def lose_home(self, meta: BlockMeta) -> None:
        for key in keys_at(meta, MAIN):
            self.named[MAIN].delete(key)


def test_a_block_is_missed_only_if_no_store_has_it_whole() -> None:
    lake = TwoStores()
    both, only = lake.block(1, 2), lake.block(3, 4)
    lake.copy(both.id)
    saved = lake.save()
    for each in (both, only):
        lake.lose_home(each)
    lake.lose(saved)
    lake.adopt()
    assert both.id in lake.state.blocks
    assert only.id not in lake.state.blocks
    assert lake.state.tally.blocks_missed == 1


def test_a_copy_that_was_made_after_the_snapshot_saves_a_block_that_is_gone_at_home() -> None:
    lake = TwoStores()
    made = lake.block(1, 2)
    saved = lake.save()
    lake.copy(made.id, listed=False)
    lake.lose_home(made)
    lake.lose(saved)
    lake.adopt()
    now = lake.state.blocks.get(made.id)
    assert (stores_of(now), now.store) == ((EU,), EU)
    assert now.profiles == made.profiles
    assert since(now) == since(made), "a deletion from between them would not apply"


def test_a_leader_of_the_lost_log_is_told_in_every_store_that_it_has_ended() -> None:
    lake = TwoStores()
    lake.block(1, 2)
    former = lake.state.incarnation
    lake.lose(lake.save())
    lake.adopt()
    told = lake.named[EU].read(keys.successor(former)).decode()
    assert told == lake.state.incarnation


def test_a_copy_from_after_the_snapshot_is_made_again_when_the_block_is_there_without_it() -> None:
    """The log that is restored does not know it, so it is an orphan, which is swept like others."""
    lake = TwoStores()
    made = lake.block(1, 2)
    saved = lake.save()
    lake.copy(made.id)
    assert lake.state.blocks.copies.is_all_copied(made.tenant)
    lake.lose(saved)
    lake.adopt()
    assert stores_of(lake.state.blocks.get(made.id)) == (MAIN,)
    assert list(lake.state.to_copy(made.tenant)) == [made.id]
    assert stores_of(lake.copy(made.id)) == (EU, MAIN)


def test_while_a_store_is_away_nothing_is_missed() -> None:
    lake = TwoStores()
    both, only = lake.block(1, 2), lake.block(3, 4)
    lake.copy(both.id)
    saved = lake.save()
    lake.lose_home(both)
    lake.lose_home(only)
    lake.lose(saved)
    lake.named[EU].cut_off()
    with pytest.raises(Unavailable):
        lake.adopt()
    assert lake.state.adopting
    assert {both.id, only.id} <= set(lake.state.blocks.where)
    lake.named[EU].heal()
    lake.adopt()
    assert not lake.state.adopting
    assert only.id not in lake.state.blocks


@pytest.mark.parametrize("tells", [True, False])
def test_a_block_that_the_snapshot_lacks_is_adopted_with_all_its_copies(tells: bool) -> None:
    lake = TwoStores()
    saved = lake.save()
    made = lake.block(1, 2)
    known = lake.copy(made.id, tells=tells)
    lake.lose(saved)
    lake.adopt()
    now = lake.state.blocks.get(made.id)
    assert now.store == MAIN
    assert [[each.store for each in file.locations] for file in now.files] == [[MAIN, EU]] * 5
    assert keys_at(now, EU) == keys_at(known, EU)
    assert since(now) == since(made)


def test_an_attempt_with_other_bytes_is_no_copy_of_the_block_that_was_copied() -> None:
    lake = TwoStores()
    saved = lake.save()
    made = lake.block(1, 2)
    known = lake.copy(made.id)
    other = msgspec.structs.replace(
        known, files=tuple(msgspec.structs.replace(f, checksum=b"d" * 16) for f in known.files)
    )
    manifest = keys.manifest_of(keys_at(made, MAIN)[0])
    at_home = msgspec.structs.replace(
        other,
        files=tuple(
            msgspec.structs.replace(file, locations=file.locations[:1]) for file in other.files
        ),
    )
    lake.named[MAIN].delete(manifest)
    lake.named[MAIN].create(manifest, msgspec.msgpack.encode(at_home))
    lake.lose(saved)
    lake.adopt()
    now = lake.state.blocks.get(made.id)
    assert (stores_of(now), now.files[0].checksum) == ((EU,), b"c" * 16)


def test_what_an_added_store_holds_unlisted_is_never_adopted() -> None:
    lake = TwoStores()
    saved = lake.save()
    made = lake.block(1, 2)
    lake.copy(made.id)
    lake.lose_home(made)
    lake.named[EU].delete(keys.marker(lake.state.incarnation))
    lake.lose(saved)
    lake.adopt()
    assert made.id not in lake.state.blocks
    assert keys_at(made, MAIN)


def test_the_log_is_made_anew_from_one_store_of_copies_alone() -> None:
    lake = TwoStores()
    made = lake.block(1, 2)
    known = lake.copy(made.id)
    alone = lake.named[EU]
    MemoryStore.list(alone, "")
    lake.store = alone
    lake.adoption = Adoption(lake, alone, lake.clock, lake.append, lake.metrics)
    lake.lose_all()
    lake.adopt()
    now = lake.state.blocks.get(made.id)
    assert (stores_of(now), now.store) == ((EU,), EU)
    assert keys_at(now, EU) == keys_at(known, EU)


def test_a_leader_that_dies_as_an_adoption_ends_may_lead_again_with_another_first_store() -> None:
    """Entry by entry: whatever the log ends with, it knows the first store of the settings."""
    lake = TwoStores()
    lake.copy(lake.block(1, 2).id)
    given = StoreSet((StoreSpec(EU), StoreSpec(StoreName("new"))), (EU,))
    lake.lose(lake.save())
    assert lake.state.stores.names() == (MAIN, EU)
    ending = decisions.end_of_adoption(lake.state, given)
    assert isinstance(ending[-1], AdoptionEnded)
    for entry in ending:
        lake.fold.put(entry)
        claim.check_first(lake.named[EU], lake.state)
    assert not lake.state.adopting
    assert lake.state.stores.names() == (EU,)  # the new one is not marked yet
    assert decisions.end_of_adoption(lake.state, given) == []


def test_an_adoption_with_the_same_first_store_leaves_the_stores_to_who_marks_them() -> None:
    lake = TwoStores()
    lake.lose(lake.save())
    given = StoreSet((StoreSpec(MAIN), StoreSpec(StoreName("new"))), (MAIN,))
    assert decisions.end_of_adoption(lake.state, given) == [AdoptionEnded()]
    assert decisions.end_of_adoption(lake.state, None) == [AdoptionEnded()]
