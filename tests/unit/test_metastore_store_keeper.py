"""The leader keeps stores: it follows the settings, marks them, drains, and notices a wiped one."""

from __future__ import annotations

import msgspec
import pytest

from maar.metastore.decide import stores as decisions
from maar.metastore.leader.stores.store_keeper import StoreKeeper
from maar.metastore.records.entries import BlocksLost, StoresSet
from maar.metastore.state import audit
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.errors import NotFound, Rejected, Unavailable
from maar.model.ids import Incarnation, StoreName, TenantId
from maar.model.stores import StoreSet, StoreSpec, TenantStores, keys_at, stores_of
from maar.ports.operator.store_removal import RemovedStore
from maar.ports.stores.stores import stores_of as alone
from support.clock.virtual_time import run_virtually
from support.lake.fold_and_store import Lake
from support.lake.kept_stores import MARKER, Kept
from support.lake.several_stores import NamedStore
from support.metastore.copies import EU, MAIN, US, stores
from support.metastore.fold import TENANT
from support.stores.memory_store import MemoryStore

# ── settings ───────────────────────────────────────────────────────────────────────────────────


def test_the_settings_reach_the_log_when_they_change_and_only_then() -> None:
    lake = Kept()
    lake.step()
    assert lake.state.stores == lake.given
    before = lake.state.index
    lake.step()
    assert lake.state.index == before
    tenants = (TenantStores(TenantId("globex"), (US,)),)
    lake.given = msgspec.structs.replace(lake.given, tenants=tenants)
    lake.step()
    assert lake.state.stores.wanted_stores(TenantId("globex"), MAIN) == (MAIN, US)


def test_a_lake_with_a_single_store_gets_no_entry() -> None:
    lake = Lake()
    one = StoreSet((StoreSpec(MAIN),))
    keeper = StoreKeeper(lake, alone(lake.store), lake.append, lambda: one)
    before = lake.state.index
    run_virtually(keeper.step())
    assert lake.state.index == before
    assert keeper.blocked == ()
    assert lake.objects("markers/") == set()


def test_a_new_store_that_is_away_is_left_out_until_it_answers_and_a_known_one_stays() -> None:
    lake = Kept()
    lake.named[MAIN].create(MARKER, MAIN.encode())
    lake.fold.put(StoresSet(StoreSet((StoreSpec(MAIN), StoreSpec(EU)))))
    for name in (EU, US):
        lake.named[name].cut_off()
    lake.step()
    assert lake.state.stores.names() == (MAIN, EU)
    assert [each.split(":")[0] for each in lake.keeper.blocked] == [
        "store eu is unreachable",
        "store us is unreachable",
    ]
    assert lake.keeper.down == {EU, US}
    lake.named[US].heal()
    lake.step()
    assert lake.keeper.down == {EU}
    assert lake.state.stores.names() == (MAIN, EU, US)
    assert lake.marker_in(US) == US


def test_a_store_that_is_gone_from_the_settings_counts_as_away_with_an_alarm() -> None:
    lake = Kept()
    lake.replicate()
    lake.given = StoreSet((StoreSpec(MAIN), StoreSpec(US)))
    lake.step()
    assert lake.state.stores.names() == (MAIN, US)
    places = tuple(p for p in lake.stores.places.places if p.name != EU)
    lake.stores = type(lake.stores)(lake.stores.places._replace(places=places), lake._open)
    lake.keeper = lake.new_keeper(lambda: lake.given)
    (sentence,) = lake.keeper.blocked
    assert "store eu is not in the settings any more" in sentence
    assert EU in lake.state.blocks.copies.holders()


# ── markers ────────────────────────────────────────────────────────────────────────────────────


def test_every_store_gets_a_marker_that_names_it() -> None:
    lake = Kept()
    lake.step()
    assert [lake.marker_in(name) for name in (MAIN, EU, US)] == [MAIN, EU, US]


def test_two_names_for_one_place_are_refused() -> None:
    lake = Kept()
    lake.named[US]._objects = lake.named[EU]._objects
    lake.fold.put(StoresSet(StoreSet((StoreSpec(MAIN),))))
    lake.step(2)
    assert len(lake.state.stores.names()) == 2
    assert any("is the same place as store" in each for each in lake.keeper.blocked)


def test_a_name_that_nobody_knows_any_more_is_told_with_the_way_out() -> None:
    """A second name was first to mark the place, and was taken out of the settings again."""
    lake = Kept()
    lake.named[EU].create(MARKER, b"typo")
    lake.step()
    (sentence,) = lake.keeper.blocked
    assert "the marker of a store typo, which neither the settings nor the log have" in sentence
    assert MARKER in sentence
    lake.named[EU].delete(MARKER)
    lake.step()
    assert lake.keeper.blocked == ()
    assert lake.marker_in(EU) == EU


def test_a_second_name_for_the_first_store_is_refused_though_its_marker_is_old() -> None:
    lake = Kept()
    lake.named[MAIN].create(MARKER, b"")
    lake.named[EU]._objects = lake.named[MAIN]._objects
    lake.fold.put(StoresSet(StoreSet((StoreSpec(MAIN),))))
    lake.step()
    assert lake.state.stores.names() == (MAIN, US)
    assert any("store eu is the same place as store main" in e for e in lake.keeper.blocked)


def test_a_wiped_store_is_noticed_its_copies_end_and_it_is_marked_again() -> None:
    lake = Kept()
    one, two = lake.replicate(1), lake.replicate(4)
    lake.named[EU].wipe()
    lake.step()
    for each in (one, two):
        assert stores_of(lake.now_of(each.id)) == (MAIN,)
    assert list(lake.state.blocks.copies.lacking_of(TENANT)) == sorted((one.id, two.id))
    assert lake.marker_in(EU) == EU
    assert not lake.state.tombstones
    lake.copy(one.id, EU)
    lake.step()
    assert stores_of(lake.now_of(one.id)) == (EU, MAIN)


def test_a_wiped_store_that_cannot_be_marked_is_told_of_and_holds_up_no_other() -> None:
    lake = Kept()
    one = lake.replicate(1)
    lake.named[EU].wipe()
    lake.named[EU].fault = lambda operation, key: (
        Unavailable(f"no {key}") if operation == "create" else None
    )
    lake.step()
    (told,) = lake.keeper.blocked
    assert told.startswith("store eu was wiped, and cannot be filled again yet: ")
    assert lake.keeper.down == {EU}
    lake.named[EU].fault = lambda *_: None
    lake.step(2)
    assert lake.keeper.blocked == ()
    assert lake.marker_in(EU) == EU
    assert stores_of(lake.now_of(one.id)) == (MAIN,)


def test_a_store_that_only_lost_its_marker_keeps_the_copies_that_it_has() -> None:
    lake = Kept()
    one, two = lake.replicate(1), lake.replicate(4)
    lake.named[EU].delete(MARKER)
    lake.named[EU].delete(keys_at(two, EU)[0])
    lake.step()
    assert stores_of(lake.now_of(one.id)) == (EU, MAIN)
    assert stores_of(lake.now_of(two.id)) == (MAIN,)


def test_a_wiped_home_gives_up_no_block_that_only_it_had() -> None:
    lake = Kept()
    one = lake.replicate(1)
    alone = lake.block(4)
    lake.named[MAIN].wipe()
    lake.step()
    assert stores_of(lake.now_of(one.id)) == (EU,)
    assert stores_of(lake.now_of(alone.id)) == (MAIN,)


def test_of_two_stores_that_look_wiped_neither_gives_up_what_the_other_lacks() -> None:
    """One of them may be a disk that is not mounted, with the only copies that are left."""
    lake = Kept()
    one = lake.replicate(1)
    unmounted = dict(lake.named[EU]._objects)
    for name in (MAIN, EU):
        lake.named[name].wipe()
    lake.step(2)
    assert stores_of(lake.now_of(one.id)) == (EU, MAIN)
    lake.named[EU]._objects.update(unmounted)
    assert lake.holds(EU, one)


def test_a_wiped_stores_copies_do_not_end_while_the_other_store_is_away() -> None:
    lake = Kept()
    one = lake.replicate(1)
    lake.named[EU].wipe()
    lake.named[MAIN].cut_off()
    lake.step()
    assert stores_of(lake.now_of(one.id)) == (EU, MAIN)


def test_a_place_that_another_log_has_marked_is_not_believed_to_be_a_wiped_store() -> None:
    lake = Kept()
    one = lake.replicate(1)
    lake.named[EU].wipe()
    lake.named[EU].create(keys.marker(Incarnation("feedbeef")), EU.encode())
    lake.step(2)
    assert stores_of(lake.now_of(one.id)) == (EU, MAIN)
    assert lake.marker_in(EU) is None
    assert any("the marker of another log (feedbeef)" in each for each in lake.keeper.blocked)


def test_nothing_is_said_of_the_stores_while_the_first_one_has_not_answered() -> None:
    """The log knows the first one by its place."""
    given = stores(EU)
    assert decisions.settings_entries(MetaState(), given, unready={MAIN}) == []
    (entry,) = decisions.settings_entries(MetaState(), given, unready={EU})
    assert isinstance(entry, StoresSet)
    assert entry.stores.names() == (MAIN, US)


def test_while_a_store_is_away_its_copies_do_not_end() -> None:
    lake = Kept()
    one = lake.replicate()
    lake.named[EU].cut_off()
    lake.step(3)
    assert stores_of(lake.now_of(one.id)) == (EU, MAIN)


class Unconditional(NamedStore):
    """Ignores conditional writes."""

    def create(self, key: str, body: bytes) -> None:
        self._objects[key] = body


def test_every_store_is_probed_for_conditional_writes_before_it_is_used() -> None:
    lake = Kept()
    lake.named[US] = Unconditional(US)
    lake.fold.put(StoresSet(StoreSet((StoreSpec(MAIN), StoreSpec(EU)))))
    lake.step(2)
    assert lake.state.stores.names() == (MAIN, EU)
    assert any("store us lets a second create" in each for each in lake.keeper.blocked)
    assert lake.keeper.down == {US}
    assert lake.marker_in(US) is None
    for name in (MAIN, EU, US):
        assert not [info for info in MemoryStore.list(lake.named[name], "probe/")]


def test_a_store_that_is_refused_is_down_so_that_nothing_is_copied_to_it() -> None:
    lake = Kept()
    lake.replicate()
    lake.named[EU].wipe()
    lake.named[EU].create(keys.marker(Incarnation("feedbeef")), EU.encode())
    lake.step()
    assert lake.keeper.down == {EU}


# ── draining ───────────────────────────────────────────────────────────────────────────────────


def remove(lake: Kept, store: StoreName, *, lost: bool = False, seen: str = "") -> RemovedStore:
    return run_virtually(lake.keeper.remove(store, lost=lost, seen=seen))


def test_a_store_that_leaves_is_drained_and_its_objects_go() -> None:
    lake = Kept()
    one, two = lake.replicate(1), lake.replicate(4)
    remove(lake, EU)
    assert lake.state.stores.leaving == (EU,)
    lake.step(3)
    for each in (one, two):
        assert stores_of(lake.now_of(each.id)) == (MAIN,)
        assert lake.holds(EU, each)
    lake.clean()
    for each in (one, two):
        assert not lake.holds(EU, each)
    audit.check_sums(lake.state)


def test_a_store_that_is_given_up_and_away_is_to_be_taken_out_of_the_settings() -> None:
    lake = Kept()
    lake.replicate()
    lake.named[EU].cut_off()
    lake.step()
    assert lake.keeper.blocked[0].startswith("store eu is unreachable: ")
    told = remove(lake, EU, lost=True)
    assert remove(lake, EU, lost=True, seen=told.list_id).done
    lake.step()
    assert lake.keeper.blocked == (
        "store eu is unreachable, and holds nothing any more: take it out of the settings",
    )


def test_a_store_that_cannot_be_given_up_is_refused_before_anybody_is_asked() -> None:
    lake = Kept()
    lake.replicate()
    lake.step()
    with pytest.raises(Rejected, match="is the home of zone home"):
        remove(lake, MAIN, lost=True)


def test_a_drain_reads_the_remaining_copies_again_before_it_ends_a_location() -> None:
    lake = Kept()
    good, bad = lake.replicate(1), lake.replicate(4)
    key = keys_at(bad, MAIN)[3]
    body = lake.store.read(key)
    lake.store.delete(key)
    lake.store.create(key, bytes(len(body)))  # the same size, other bytes
    remove(lake, EU)
    lake.step()
    assert stores_of(lake.now_of(good.id)) == (MAIN,)
    assert stores_of(lake.now_of(bad.id)) == (EU, MAIN)
    assert any(key in each and "checksum" in each for each in lake.keeper.blocked)
    lake.store.delete(key)
    lake.store.create(key, body)
    lake.step(4)
    assert stores_of(lake.now_of(bad.id)) == (MAIN,)


def test_the_last_readable_copy_is_never_given_up_by_a_drain() -> None:
    lake = Kept()
    one = lake.replicate()
    lake.repair.find_bad(one.id, MAIN)
    remove(lake, EU)
    lake.step(3)
    assert stores_of(lake.now_of(one.id)) == (EU,)
    lake.named[MAIN].cut_off()
    lake.step(2)
    assert stores_of(lake.now_of(one.id)) == (EU,)
    lake.named[MAIN].heal()
    lake.copy(one.id, MAIN)
    lake.step(3)
    assert stores_of(lake.now_of(one.id)) == (MAIN,)


def test_a_drain_waits_until_every_store_that_should_hold_a_block_does() -> None:
    lake = Kept()
    lake.given = stores(EU, US)
    one = lake.replicate()
    remove(lake, EU)
    lake.step(3)
    assert stores_of(lake.now_of(one.id)) == (EU, MAIN)
    lake.copy(one.id, US)
    lake.step(3)
    assert stores_of(lake.now_of(one.id)) == (MAIN, US)


def test_a_store_may_stay_after_all() -> None:
    lake = Kept()
    one = lake.replicate()
    remove(lake, EU)
    run_virtually(lake.keeper.keep(EU))
    assert lake.state.stores.leaving == ()
    lake.step(2)
    assert stores_of(lake.now_of(one.id)) == (EU, MAIN)


def test_a_home_is_drained_when_it_is_nobodys_home_any_more() -> None:
    lake = Kept()
    one = lake.replicate()
    with pytest.raises(Rejected, match="is the home of zone"):
        remove(lake, MAIN)
    specs = (StoreSpec(EU, "eu"), StoreSpec(MAIN, "us"))
    lake.given = StoreSet(specs, (EU,))
    lake.step()
    remove(lake, MAIN)
    lake.step(3)
    now = lake.now_of(one.id)
    assert (stores_of(now), now.store) == ((EU,), EU)


def test_a_store_that_nobody_knows_cannot_be_removed_nor_the_first_one() -> None:
    lake = Kept()
    lake.given = StoreSet((StoreSpec(MAIN), StoreSpec(EU)))
    lake.step()
    with pytest.raises(NotFound, match="nowhere"):
        remove(lake, StoreName("nowhere"))
    with pytest.raises(NotFound, match="nowhere"):
        remove(lake, StoreName("nowhere"), lost=True)
    with pytest.raises(Rejected, match="first of the settings"):
        remove(lake, MAIN)


def test_copies_that_a_tenant_does_not_want_any_more_end_and_are_deleted() -> None:
    lake = Kept()
    one, two = lake.replicate(1), lake.replicate(4)
    lake.given = stores()
    lake.step(3)
    for each in (one, two):
        assert stores_of(lake.now_of(each.id)) == (MAIN,)
        assert lake.holds(EU, each)
    lake.clean()
    for each in (one, two):
        assert not lake.holds(EU, each)
        assert lake.holds(MAIN, each)
    audit.check_sums(lake.state)


def test_they_stay_until_all_the_stores_that_are_wanted_hold_the_block() -> None:
    lake = Kept()
    one = lake.replicate()
    lake.given = stores(US)
    lake.step(3)
    assert stores_of(lake.now_of(one.id)) == (EU, MAIN)
    lake.copy(one.id, US)
    lake.step(3)
    assert stores_of(lake.now_of(one.id)) == (MAIN, US)


def test_a_block_stays_that_a_wanted_store_lacks_while_others_of_its_tenant_go() -> None:
    lake = Kept()
    lake.given = stores(EU, US)
    one, two = lake.replicate(1), lake.replicate(4)
    lake.copy(one.id, US)
    lake.given = stores(US)
    lake.step(3)
    assert stores_of(lake.now_of(one.id)) == (MAIN, US)
    assert stores_of(lake.now_of(two.id)) == (EU, MAIN)


def test_they_stay_when_what_is_wanted_cannot_be_read() -> None:
    lake = Kept()
    one = lake.replicate()
    lake.store.delete(keys_at(one, MAIN)[2])
    lake.given = stores()
    lake.step(3)
    assert stores_of(lake.now_of(one.id)) == (EU, MAIN)
    assert any(one.id in each for each in lake.keeper.blocked)


def test_they_stay_in_a_store_that_is_not_in_the_settings_and_in_one_that_is_away() -> None:
    """Who took it out by mistake finds its copies listed when it is named again."""
    lake = Kept()
    one = lake.replicate()
    lake.given = StoreSet((StoreSpec(MAIN), StoreSpec(US)))
    lake.step(3)
    assert stores_of(lake.now_of(one.id)) == (EU, MAIN)
    lake.given = stores()
    lake.named[EU].cut_off()
    lake.step(3)
    assert stores_of(lake.now_of(one.id)) == (EU, MAIN)
    lake.named[EU].heal()
    lake.step(3)
    assert stores_of(lake.now_of(one.id)) == (MAIN,)


def test_copies_that_are_wanted_again_before_they_were_ended_stay() -> None:
    lake = Kept()
    one = lake.replicate()
    lake.fold.put(StoresSet(stores()))
    assert decisions.to_drain(lake.state) == (EU,)
    assert len(decisions.drain_entries(lake.state, EU, [one.id])) == 1
    lake.fold.put(StoresSet(stores(EU)))
    assert decisions.to_drain(lake.state) == ()
    assert decisions.drain_entries(lake.state, EU, [one.id]) == []


# ── a store that is lost ───────────────────────────────────────────────────────────────────────


def test_a_lost_store_is_given_up_when_what_only_it_had_is_named_and_confirmed() -> None:
    lake = Kept()
    one, two = lake.replicate(1), lake.replicate(4)
    merged = lake.merge((lake.replicate(7), lake.replicate(10)))
    lake.clean()
    assert len(lake.state.tombstones) == 2
    lake.repair.find_bad(two.id, MAIN)
    lake.named[EU].cut_off()
    before = lake.state.index
    told = remove(lake, EU, lost=True)
    assert lake.state.index == before
    assert (told.done, told.copies, told.only_here) == (False, 1, 1)
    assert told.named == (two.id,)
    done = remove(lake, EU, lost=True, seen=told.list_id)
    assert done.done
    assert stores_of(lake.now_of(one.id)) == (MAIN,)
    assert two.id not in lake.state.blocks
    assert lake.state.tally.blocks_lost == 1
    assert merged.id in lake.state.blocks
    assert lake.state.tombstones.of_store(EU) == {}
    assert EU not in lake.state.blocks.copies.holders()


def test_only_what_was_seen_is_given_up_with_a_lost_store() -> None:
    """Between the list and the word of who has read it, another block lost its other copy."""
    lake = Kept()
    one, two = lake.replicate(1), lake.replicate(4)
    lake.repair.find_bad(one.id, MAIN)
    told = remove(lake, EU, lost=True)
    assert told.named == (one.id,)
    lake.repair.find_bad(two.id, MAIN)
    before = lake.state.index
    again = remove(lake, EU, lost=True, seen=told.list_id)
    assert (again.done, set(again.named)) == (False, {one.id, two.id})
    assert lake.state.index == before
    for unseen in ("", "true"):
        assert not remove(lake, EU, lost=True, seen=unseen).done
    assert remove(lake, EU, lost=True, seen=again.list_id).done
    assert lake.state.tally.blocks_lost == 2


def test_a_block_that_was_copied_after_it_was_named_is_not_given_up_with_a_lost_store() -> None:
    lake = Kept()
    one, two = lake.replicate(1), lake.replicate(4)
    for each in (one, two):
        lake.repair.find_bad(each.id, MAIN)
    lake.copy(one.id, MAIN)
    (entry,) = decisions.lose_blocks(lake.state, [one.id, two.id], EU)
    assert isinstance(entry, BlocksLost)
    assert entry.blocks == (two.id,)


def test_what_only_the_first_store_had_is_put_back_once_however_often_the_rest_is_tried() -> None:
    """It is all of the leader's state, packed on its loop."""
    lake = Kept()
    times: list[int] = []

    async def put_back() -> None:
        times.append(lake.state.index)

    lake.keeper = StoreKeeper(
        *(lake, lake.stores, lake.append, lambda: lake.given), first_was_wiped=put_back
    )
    lake.replicate()
    times.clear()
    main = lake.named[MAIN]
    for wiped in (1, 2):
        main.wipe()
        main.fault = lambda operation, key: (
            Unavailable("slow") if operation == "list" and key != keys.MARKERS else None
        )
        lake.step(3)
        assert any("cannot be filled again yet" in each for each in lake.keeper.blocked)
        assert len(times) == wiped
        main.heal()
        lake.step(2)
        assert lake.marker_in(MAIN) == MAIN
        assert len(times) == wiped


def test_a_store_that_was_wiped_is_down_until_it_has_its_marker_again() -> None:
    """Workers take it for one that is away: a session that uses it must not fail and rest."""
    lake = Kept()
    lake.replicate()
    lake.named[EU].wipe()
    lake.step()
    assert lake.keeper.down == {EU}
    lake.step()
    assert lake.keeper.down == set()
    assert lake.marker_in(EU) == EU
