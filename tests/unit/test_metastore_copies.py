"""Copies of blocks: listed per block, added and ended by entries, and counted as they change."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest

from maar.metastore.fold.stores import copies
from maar.metastore.records.effects import CopiesLost, CopyAdded, CopyEnded, Effect, Refused
from maar.metastore.records.entries import (
    BlocksForgotten,
    CopiesEnded,
    StoreLeaves,
    StoresSet,
    TombstonesEnded,
)
from maar.metastore.state import audit
from maar.metastore.state.retired import Cause
from maar.metastore.state.snapshot_parts import parts_of, state_of
from maar.metastore.state.state import MetaState
from maar.metastore.state.tombstones import CopyKey
from maar.metastore.views.explain import explain
from maar.model.block import BlockMeta
from maar.model.ids import BlockId, FencingToken, PlanId, StoreName, TenantId, Zone
from maar.model.refusal import Refusal
from maar.model.stores import CopyMade, StoreSet, StoreSpec, TenantStores, lacking, stores_of
from support.lake.fold_and_store import Lake
from support.metastore.copies import EU, MAIN, US, Repairing, copy_of, want
from support.metastore.fold import SMALL, TENANT


def block(lake: Lake, first: int = 1) -> BlockMeta:
    """A block of level 1, at home."""
    return lake.merge(lake.add(first, first + 1, first + 2))


def at(lake: Lake, name: BlockId) -> tuple[StoreName, ...]:
    return stores_of(lake.state.blocks.get(name))


def why(effects: tuple[Effect, ...]) -> list[Refusal]:
    return [effect.why for effect in effects if isinstance(effect, Refused)]


# ── which stores are wanted ────────────────────────────────────────────────────────────────────


def test_by_default_a_block_is_wanted_at_home_only() -> None:
    assert StoreSet().wanted_stores(TENANT, MAIN) == (MAIN,)


def test_a_tenant_has_its_own_stores_or_the_default_and_always_the_home() -> None:
    stores = StoreSet(
        tuple(map(StoreSpec, (MAIN, EU, US))), (EU,), (TenantStores(TenantId("globex"), (US,)),)
    )
    assert stores.wanted_stores(TENANT, MAIN) == (EU, MAIN)
    assert stores.wanted_stores(TenantId("globex"), MAIN) == (MAIN, US)
    assert stores.wanted_stores(TenantId("globex"), US) == (US,)


def test_a_store_that_leaves_is_wanted_for_nothing_and_the_first_that_stays_takes_its_place() -> (
    None
):
    stores = StoreSet(tuple(map(StoreSpec, (MAIN, EU, US))), (EU,), (), leaving=(EU,))
    assert stores.wanted_stores(TENANT, MAIN) == (MAIN,)
    assert stores.wanted_stores(TENANT, EU) == (MAIN,)
    assert msgspec.structs.replace(stores, leaving=(EU, MAIN)).wanted_stores(TENANT, EU) == (US,)


def test_a_zone_has_the_home_that_names_it_or_the_first() -> None:
    east = Zone("east")
    stores = StoreSet((StoreSpec(MAIN, "us"), StoreSpec(EU, "eu", (east,))))
    assert (stores.home_of(east), stores.home_of(Zone("west"))) == (EU, MAIN)
    assert (stores.region(EU), stores.region(US)) == ("eu", "")


@pytest.mark.parametrize(
    ("stores", "wrong"),
    [
        (StoreSet((StoreSpec(MAIN), StoreSpec(MAIN))), "same name"),
        (StoreSet((StoreSpec(MAIN),), (EU,)), "not among"),
        (StoreSet((StoreSpec(MAIN),), (), (TenantStores(TENANT, (EU,)),)), "not among"),
        (
            StoreSet((StoreSpec(MAIN, "", (Zone("z"),)), StoreSpec(EU, "", (Zone("z"),)))),
            "two home stores",
        ),
        (StoreSet((), (), (TenantStores(TENANT, ()), TenantStores(TENANT, ()))), "occurs twice"),
        (StoreSet(tuple(StoreSpec(StoreName(f"s{n}")) for n in range(65))), "can be 64"),
    ],
)
def test_stores_that_cannot_be_are_refused(stores: StoreSet, wrong: str) -> None:
    lake = Lake()
    assert wrong in stores.problem()
    assert why(lake.fold.put(StoresSet(stores))) == [Refusal.STORES]
    assert lake.state.stores == StoreSet()


# ── copies come ────────────────────────────────────────────────────────────────────────────────


def test_a_copy_is_a_location_of_every_file_behind_that_of_the_home() -> None:
    lake = Lake()
    made = block(lake)
    want(lake.fold, EU)
    lake.fold.now += 5
    assert Repairing(lake.fold).copy(made.id, EU) == (CopyAdded(made.id, EU),)
    kept = lake.state.blocks.get(made.id)
    for file in kept.files:
        assert [each.store for each in file.locations] == [MAIN, EU]
        assert file.locations[1].verified_at_ns == lake.fold.now
    assert kept.store == MAIN
    assert lake.state.queue.place(made.id) is not None


def test_a_copy_of_a_block_that_is_no_longer_live_is_refused_and_the_others_are_taken() -> None:
    lake = Lake()
    one, two, three = block(lake, 1), block(lake, 4), block(lake, 7)
    want(lake.fold, EU)
    repair = Repairing(lake.fold)
    entry = repair.entry((one.id, EU), (three.id, EU))
    lake.merge((one, two))
    effects = lake.fold.put(entry)
    assert effects == (
        Refused(Refusal.INPUT_GONE, repair.plan, repair.token, what=one.id),
        CopyAdded(three.id, EU),
    )
    assert at(lake, three.id) == (EU, MAIN)


def test_only_the_holder_of_the_current_token_adds_or_ends_a_copy() -> None:
    lake = Lake()
    made = block(lake)
    want(lake.fold, EU)
    repair = Repairing(lake.fold)
    good = repair.entry((made.id, EU))
    stale = msgspec.structs.replace(good, token=FencingToken(repair.token.incarnation, 1))
    assert why(lake.fold.put(stale)) == [Refusal.STALE_TOKEN]
    unknown = msgspec.structs.replace(good, plan=PlanId(99, 0))
    assert why(lake.fold.put(unknown)) == [Refusal.UNKNOWN_PLAN]
    assert at(lake, made.id) == (MAIN,)


def test_a_copy_must_be_of_this_attempt_of_every_file_and_where_it_is_wanted() -> None:
    lake = Lake()
    made = block(lake)
    want(lake.fold, EU)
    repair = Repairing(lake.fold)
    good = repair.entry((made.id, EU))
    (copy,) = good.copies

    def put(changed: CopyMade) -> list[Refusal]:
        return why(lake.fold.put(msgspec.structs.replace(good, copies=(changed,))))

    foreign = copy_of(made, EU, PlanId(1, 0), repair.token)
    assert put(foreign) == [Refusal.COPY_KEY]
    other = copy_of(made, EU, repair.plan, repair.token, "r2")
    mixed = CopyMade(made.id, EU, (*copy.files[:1], *other.files[1:]))
    assert put(mixed) == [Refusal.COPY_KEY]
    assert put(CopyMade(made.id, EU, copy.files[:4])) == [Refusal.COPY_KEY]
    assert put(CopyMade(made.id, EU, copy.files[:1] * 5)) == [Refusal.COPY_KEY]
    assert put(CopyMade(made.id, US, copy.files)) == [Refusal.UNKNOWN_STORE]
    assert put(CopyMade(made.id, MAIN, copy.files)) == [Refusal.HAS_COPY]
    assert put(copy) == []
    assert put(copy) == [Refusal.HAS_COPY]


def test_segments_have_no_copies() -> None:
    lake = Lake()
    (one,) = lake.add(1)
    want(lake.fold, EU)
    assert lacking(one, lake.state.stores) == ()
    assert not lake.state.blocks.copies.sums
    repair = Repairing(lake.fold)
    key = (
        ("segment", f"segments/v1/shard=1/joined/{one.id}-{repair.plan}-{repair.token}-r1.parquet"),
    )
    entry = msgspec.structs.replace(repair.entry(), copies=(CopyMade(one.id, EU, key),))
    assert why(lake.fold.put(entry)) == [Refusal.UNKNOWN_STORE]


def test_a_block_explains_where_it_is_and_where_it_is_not_yet() -> None:
    lake = Lake()
    made = block(lake)
    alone = explain(lake.state, made.id, now=lake.now()).sentences
    assert not any("its home is" in sentence for sentence in alone)
    want(lake.fold, EU, US)
    Repairing(lake.fold).copy(made.id, EU)
    told = explain(lake.state, made.id, now=lake.now()).sentences[-2:]
    assert told == (
        "It is in eu, main; its home is main.",
        "It is not yet in us, where repair will copy it.",
    )


# ── copies go ──────────────────────────────────────────────────────────────────────────────────


def test_a_bad_copy_ends_and_becomes_a_tombstone_of_its_store() -> None:
    lake = Lake()
    made = block(lake)
    want(lake.fold, EU)
    repair = Repairing(lake.fold)
    repair.copy(made.id, EU)
    key = lake.state.blocks.get(made.id).files[0].locations[1].key
    assert repair.find_bad(made.id, EU) == (CopyEnded(made.id, EU, "is missing"),)
    assert at(lake, made.id) == (MAIN,)
    tombstone = lake.state.tombstones[CopyKey(EU, key)]
    assert (tombstone.block, tombstone.cause, tombstone.at) == (made.id, Cause.COPY, lake.now())


def test_the_last_copy_that_is_not_known_to_be_bad_is_never_ended() -> None:
    lake = Lake()
    made = block(lake)
    want(lake.fold, EU)
    repair = Repairing(lake.fold)
    assert why(repair.find_bad(made.id, MAIN)) == [Refusal.LAST_COPY]
    repair.copy(made.id, EU)
    assert why(repair.find_bad(made.id, MAIN, EU)) == [Refusal.LAST_COPY]
    assert at(lake, made.id) == (EU, MAIN)
    repair.find_bad(made.id, MAIN)
    assert why(repair.find_bad(made.id, EU)) == [Refusal.LAST_COPY]
    assert why(lake.fold.put(CopiesEnded(EU, (made.id,), gone=True))) == [Refusal.LAST_COPY]
    assert at(lake, made.id) == (EU,)


def test_a_bad_copy_is_replaced_in_one_step_and_a_missing_home_is_healed() -> None:
    lake = Lake()
    made = block(lake)
    want(lake.fold, EU)
    repair = Repairing(lake.fold)
    repair.copy(made.id, EU)
    healed = repair.entry((made.id, MAIN), ended=((made.id, MAIN),), attempt="r2")
    assert lake.fold.put(healed) == (
        CopyEnded(made.id, MAIN, "is missing"),
        CopyAdded(made.id, MAIN),
    )
    kept = lake.state.blocks.get(made.id)
    assert at(lake, made.id) == (EU, MAIN)
    assert kept.files[0].locations[0].store == MAIN
    assert kept.files[0].locations[0].key != made.files[0].locations[0].key


def test_blocks_of_which_no_copy_is_whole_are_named_and_nothing_happens_to_them() -> None:
    lake = Lake()
    made = block(lake)
    repair = Repairing(lake.fold)
    assert lake.fold.put(repair.entry(lost=(made.id,))) == (CopiesLost((made.id,)),)
    assert at(lake, made.id) == (MAIN,)


def test_a_store_with_too_many_tombstones_gets_no_more() -> None:
    lake = Lake(msgspec.structs.replace(SMALL, tombstones_max=1))
    one, two = block(lake, 1), block(lake, 4)
    want(lake.fold, EU)
    repair = Repairing(lake.fold)
    for each in (one, two):
        repair.copy(each.id, EU)
    assert why(repair.find_bad(one.id, EU)) == []
    assert why(repair.find_bad(two.id, EU)) == [Refusal.TOO_MANY]
    assert at(lake, two.id) == (EU, MAIN)
    (key,) = lake.state.tombstones.of_store(EU)
    lake.fold.put(TombstonesEnded(EU, (key.key,)))
    assert why(repair.find_bad(two.id, EU)) == []


# ── a store leaves ─────────────────────────────────────────────────────────────────────────────


def test_the_last_store_cannot_leave_and_an_unknown_one_neither() -> None:
    lake = Lake()
    want(lake.fold)
    assert why(lake.fold.put(StoreLeaves(StoreName("nowhere")))) == [Refusal.UNKNOWN_STORE]
    for name in (EU, US):
        lake.fold.put(StoreLeaves(name))
    assert why(lake.fold.put(StoreLeaves(MAIN))) == [Refusal.UNKNOWN_STORE]
    assert lake.state.stores.leaving == (EU, US)


def test_a_store_goes_on_leaving_when_the_settings_change_until_it_holds_nothing() -> None:
    lake = Lake()
    made = block(lake)
    want(lake.fold, EU)
    Repairing(lake.fold).copy(made.id, EU)
    lake.fold.put(StoreLeaves(EU))
    only = StoreSet((StoreSpec(MAIN),))
    lake.fold.put(StoresSet(only))
    assert lake.state.stores.leaving == (EU,)
    lake.fold.put(CopiesEnded(EU, (made.id,), gone=True))
    lake.fold.put(StoresSet(only))
    assert lake.state.stores == only


def test_a_block_whose_home_is_drained_gets_another_and_waits_there_where_it_waited() -> None:
    lake = Lake()
    made = block(lake)
    want(lake.fold, EU)
    Repairing(lake.fold).copy(made.id, EU)
    place = lake.state.queue.place(made.id)
    lake.fold.put(StoreLeaves(MAIN))
    lake.fold.put(CopiesEnded(MAIN, (made.id,), gone=False))
    moved = lake.state.queue.place(made.id)
    assert lake.state.blocks.get(made.id).store == EU
    assert place is not None
    assert moved is not None
    assert moved == place._replace(key=msgspec.structs.replace(place.key, store=EU))
    audit.check_sums(lake.state)


def test_the_home_of_a_block_that_a_plan_owns_is_not_drained() -> None:
    lake = Lake()
    made = block(lake)
    want(lake.fold, EU)
    Repairing(lake.fold).copy(made.id, EU)
    lake.fold.put(StoreLeaves(MAIN))
    lake.schedule((made,))
    effects = lake.fold.put(CopiesEnded(MAIN, (made.id,), gone=False))
    assert why(effects) == [Refusal.INPUT_OWNED]


# ── what waits for a store ─────────────────────────────────────────────────────────────────────


def test_what_waits_for_a_forgotten_block_waits_for_what_replaced_it() -> None:
    lake = Lake()
    one, two = block(lake, 1), block(lake, 4)
    want(lake.fold, EU)
    repair = Repairing(lake.fold)
    for each in (one, two):
        repair.copy(each.id, EU)
    merged = lake.merge((one, two))
    lake.fold.put(BlocksForgotten((one.id, two.id), (EU,)))
    assert len(lake.state.tombstones.waiting_for(merged.id)) == 2
    again = lake.merge((merged, lake.merge((block(lake, 7), block(lake, 10)))))
    lake.fold.put(BlocksForgotten((merged.id,)))
    assert lake.state.tombstones.waiting_for(merged.id) == []
    assert len(lake.state.tombstones.waiting_for(again.id)) == 2
    assert not copies.is_settled(lake.state, again.id, EU)
    repair.copy(again.id, EU)
    assert copies.is_settled(lake.state, again.id, EU)


def test_the_oldest_leave_a_list_that_is_full_and_no_block_stays_in_the_index_for_it() -> None:
    lake = Lake(msgspec.structs.replace(SMALL, tombstones_max=2))
    blocks = [block(lake, first) for first in (1, 4, 7)]
    want(lake.fold, EU)
    repair = Repairing(lake.fold)
    for each in blocks:
        repair.copy(each.id, EU)
    for each in blocks:
        lake.merge((each,))
        before = lake.state.room()
        assert why(lake.fold.put(BlocksForgotten((each.id,), (EU,)))) == []
        assert lake.state.room() == before + 1
    left = [lake.state.tombstones[key].block for key in lake.state.tombstones.of_store(EU)]
    assert left == [blocks[1].id, blocks[2].id]
    audit.check_sums(lake.state)


def test_which_tombstone_is_the_oldest_is_the_same_after_a_snapshot() -> None:
    """One that waits for another block than before keeps its place."""
    lake = Lake()
    one, two, three = (block(lake, first) for first in (1, 4, 7))
    want(lake.fold, EU)
    repair = Repairing(lake.fold)
    for each in (one, two):
        repair.copy(each.id, EU)
    merged, other = lake.merge((one,)), lake.merge((two,))
    lake.fold.put(BlocksForgotten((one.id, two.id), (EU,)))
    lake.merge((merged, lake.merge((three,))))
    lake.fold.put(BlocksForgotten((merged.id,)))
    assert not lake.state.tombstones.waiting_for(merged.id)
    assert other.id in lake.state.blocks
    assert list(lake.state.tombstones.of_store(EU)) == list(lake.state.tombstones)


# ── sums ───────────────────────────────────────────────────────────────────────────────────────


def counted(state: MetaState) -> dict[StoreName, tuple[int, int, int]]:
    """By looking at every block: held, their bytes, and missing."""
    held, size, missing = Counter[str](), Counter[str](), Counter[str]()
    for name in state.blocks.where:
        meta = state.blocks.get(name)
        if meta.level == 0:
            continue
        own = {each.store for each in meta.files[0].locations}
        other = dict((each.tenant, each.stores) for each in state.stores.tenants)
        should = {meta.store, *other.get(meta.tenant, state.stores.default)}
        should -= set(state.stores.leaving)
        for each in own:
            held[each] += 1
            size[each] += meta.size
        for each in (should or {MAIN}) - own:
            missing[each] += 1
    names = {*held, *missing}
    return {StoreName(n): (held[n], size[n], missing[n]) for n in names}


def test_the_sums_are_those_of_the_blocks_whatever_happens_to_copies() -> None:
    chance = Random(14)
    lake = Lake()
    want(lake.fold)
    repair = Repairing(lake.fold)
    number = 0
    seen: set[str] = set()
    for step in range(300):
        live = sorted(b for b in lake.state.blocks.where if lake.state.blocks.get(b).level)
        one = chance.choice(live) if live else BlockId("0" * 32)
        store = chance.choice((MAIN, EU, US))
        match chance.randrange(8):
            case 0:
                number += 3
                block(lake, number)
            case 1:
                some = [lake.state.blocks.get(b) for b in live if b not in lake.state.owners]
                lanes = [m for m in some if (m.level, m.store) == (1, MAIN)][:2]
                if len(lanes) == 2:
                    lake.merge(lanes)
            case 2 | 3 if live:
                effects = repair.copy(one, store, attempt=f"r{step}")
                seen |= {type(effect).__name__ for effect in effects}
            case 4 if live:
                seen |= {type(effect).__name__ for effect in repair.find_bad(one, store)}
            case 5 if live:
                lake.fold.put(CopiesEnded(store, (one,), gone=chance.random() < 0.5))
            case 6:
                want(lake.fold, *chance.sample((EU, US), chance.randrange(3)))
            case _:
                lake.fold.put(StoreLeaves(chance.choice((EU, US)), chance.random() < 0.3))
        found = lake.state.blocks.copies.of_stores()
        said = {
            name: (each.held.blocks, each.held.bytes, each.missing.blocks)
            for name, each in found.items()
        }
        assert {n: v for n, v in said.items() if any(v)} == counted(lake.state)
        lacks = [b for b in live if b in lake.state.blocks.where]
        expected = {b for b in lacks if lacking(lake.state.blocks.get(b), lake.state.stores)}
        assert expected <= set(lake.state.blocks.copies.lacking_of(TENANT))
        if step % 50 == 49:
            audit.check_sums(lake.state)
            audit.check_derived(lake.state, state_of(parts_of(lake.state)))
    assert seen == {"CopyAdded", "CopyEnded", "Refused"}


def test_how_much_is_whole_is_told_in_blocks_and_bytes() -> None:
    lake = Lake()
    want(lake.fold)
    one, two = block(lake, 1), block(lake, 4)
    assert lake.state.blocks.copies.whole_of(TENANT) == (2, one.size + two.size) * 2
    want(lake.fold, EU)
    Repairing(lake.fold).copy(one.id, EU)
    whole = lake.state.blocks.copies.whole_of(TENANT)
    assert whole == (1, one.size, 2, one.size + two.size)
    assert list(lake.state.blocks.copies.lacking_of(TENANT)) == [two.id]
    assert lake.state.blocks.copies.whole_of(TenantId("nobody")) == (0, 0, 0, 0)


def test_a_repeated_entry_changes_nothing() -> None:
    lake = Lake()
    want(lake.fold, EU)
    made = block(lake)
    repair = Repairing(lake.fold)
    entry = repair.entry((made.id, EU))
    lake.fold.put(entry)
    before = lake.state.blocks.copies.of_stores()
    lake.fold.put(entry)
    assert lake.state.blocks.copies.of_stores() == before
