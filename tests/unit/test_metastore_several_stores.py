"""Deletion in several stores: a copy goes from a store when that store has all that replaced it."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import msgspec
import pytest

from maar.metastore.fold.plans import leftovers
from maar.metastore.leader.deleting.cleaner import CleanerBounds
from maar.metastore.leader.deleting.orphans_of_stores import OrphansOfStores
from maar.metastore.leader.stores import claim
from maar.metastore.records.effects import Refused
from maar.metastore.records.entries import (
    AttemptFenced,
    BlocksExpired,
    BlocksLost,
    PinsTaken,
    PlanCompleted,
    StoresSet,
    TombstonesEnded,
)
from maar.metastore.state import audit
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import NotLeading
from maar.model.ids import BlockId, StoreName
from maar.model.plan import Account, PlanResult
from maar.model.policy import HOUR_NS
from maar.model.repair import RangeResult
from maar.model.stores import StoreSet, StoreSpec, keys_at, stores_of
from maar.model.time import LeaseTime
from maar.services.repair.rules import REPAIR
from support.clock.virtual_time import run_virtually
from support.lake.several_stores import SeveralStores
from support.metastore.copies import EU, MAIN, US, Repairing, want
from support.metastore.fold import DAY_START_NS, SMALL
from support.stores.memory_store import MemoryStore


def replicated(lake: SeveralStores) -> tuple[BlockMeta, BlockMeta]:
    """Two blocks at home and in the EU."""
    want(lake.fold, EU)
    one, two = lake.block(1), lake.block(4)
    for each in (one, two):
        lake.copy(each.id, EU)
    return lake.now_of(one.id), lake.now_of(two.id)


def everything(lake: SeveralStores, store: StoreName, prefix: str = "lake/") -> set[str]:
    return {info.key for info in MemoryStore.list(lake.named[store], prefix)}


# ── a replaced block ───────────────────────────────────────────────────────────────────────────


def test_a_replaced_blocks_copy_goes_only_when_all_that_replaced_it_is_in_that_store() -> None:
    lake = SeveralStores()
    one, two = replicated(lake)
    merged = lake.merge((one, two))
    lake.clean()
    assert not lake.holds(MAIN, one)
    assert not lake.holds(MAIN, two)
    assert lake.holds(EU, one)
    assert lake.holds(EU, two)
    assert len(lake.state.tombstones) == 2
    assert one.id not in lake.state.retired
    lake.copy(merged.id, EU)
    lake.clean()
    assert not lake.holds(EU, one)
    assert not lake.holds(EU, two)
    assert lake.holds(EU, lake.now_of(merged.id))
    assert not lake.state.tombstones
    assert len(everything(lake, EU)) == 6


def test_a_bad_copy_for_which_others_stay_is_told_to_the_leader() -> None:
    """Nobody else may read it for days; repair heals it, and the others can go."""
    lake = SeveralStores()
    one, two = replicated(lake)
    gone, short = keys_at(one, MAIN)[0], keys_at(two, MAIN)[0]
    MemoryStore.delete(lake.named[MAIN], gone)
    MemoryStore.delete(lake.named[MAIN], short)
    MemoryStore.create(lake.named[MAIN], short, b"x")
    lake.clean()
    found = {(each.block, each.store, each.key, each.why) for each in lake.damage}
    assert found == {(one.id, MAIN, gone, "missing"), (two.id, MAIN, short, "damaged")}


def test_so_is_one_for_which_a_tombstone_waits() -> None:
    lake = SeveralStores()
    one, two = replicated(lake)
    merged = lake.merge((one, two))
    lake.clean()
    lake.copy(merged.id, EU)
    (lost, *_) = keys_at(lake.now_of(merged.id), EU)
    MemoryStore.delete(lake.named[EU], lost)
    assert not lake.damage
    lake.clean()
    assert {(each.store, each.key, each.why) for each in lake.damage} == {(EU, lost, "missing")}


def test_what_replaced_a_bad_copy_since_will_do_for_what_it_was_made_of() -> None:
    """Else both would wait for ever: nobody repairs a block that is not live any more."""
    lake = SeveralStores()
    one, two = replicated(lake)
    sources = [block for block, gone in lake.state.retired.items() if one.id in gone.outputs]
    MemoryStore.delete(lake.named[MAIN], keys_at(one, MAIN)[0])
    lake.clean()
    assert set(sources) <= lake.state.retired.keys(), "only they could be read here"
    merged = lake.merge((one, two))
    MemoryStore.delete(lake.named[MAIN], keys_at(merged, MAIN)[0])
    lake.clean()
    assert set(sources) <= lake.state.retired.keys(), "what was made of it is not whole either"
    MemoryStore.create(lake.named[MAIN], keys_at(merged, MAIN)[0], b"x" * merged.files[0].size)
    lake.pass_time(HOUR_NS)  # what was held back rests
    lake.clean()
    assert not lake.state.retired
    assert everything(lake, MAIN, "segments/") == set()
    assert lake.holds(MAIN, merged)


def test_what_was_made_of_a_bad_copy_has_to_be_in_the_same_store() -> None:
    lake = SeveralStores()
    one, two = replicated(lake)
    first, second = lake.merge((one, two)), lake.merge((lake.block(7), lake.block(10)))
    lake.copy(first.id, EU)
    MemoryStore.delete(lake.named[EU], keys_at(lake.now_of(first.id), EU)[0])
    merged = lake.merge((lake.now_of(first.id), second))
    lake.clean()
    assert lake.holds(EU, one), "neither what replaced it nor what that became is there"
    lake.copy(merged.id, EU)
    lake.pass_time(HOUR_NS)
    lake.clean()
    assert not lake.holds(EU, one)
    assert not lake.state.tombstones


def test_what_expired_for_good_need_not_be_whole_before_its_sources_go() -> None:
    lake = SeveralStores()
    made = lake.block(1)
    MemoryStore.delete(lake.named[MAIN], keys_at(made, MAIN)[0])
    lake.fold.put(BlocksExpired(DAY_START_NS * 2, (made.id,)))
    lake.clean()
    assert len(lake.state.retired) == 4, "it can be brought back, and its sources with it"
    lake.pass_time(lake.state.policy.expired_delay_ns + HOUR_NS)
    lake.clean()
    assert not lake.state.retired
    assert everything(lake, MAIN, "segments/") == set()


def test_copies_stay_of_what_a_block_was_made_of_that_was_given_up_before_it_was_copied() -> None:
    """They are all that is left: its home was lost, and the sources were forgotten long ago."""
    lake = SeveralStores()
    one, two = replicated(lake)
    merged = lake.merge((one, two))
    lake.clean()
    assert one.id not in lake.state.retired
    MemoryStore.delete(lake.named[MAIN], keys_at(merged, MAIN)[0])
    lake.fold.put(BlocksLost((merged.id,), "its home has lost it"))
    for _ in range(3):
        lake.clean()
        lake.pass_time(HOUR_NS)
    assert lake.holds(EU, one)
    assert lake.holds(EU, two)
    assert any("which replaces it, is not in store eu" in each for each in lake.cleaner.blocked)


def test_compaction_never_leaves_replicated_data_with_one_copy() -> None:
    """What a store should hold, it holds: in the block, or in what the block was made of."""
    chance = Random(3)
    lake = SeveralStores()
    want(lake.fold, EU, US)
    number = 1
    made_of: dict[BlockId, tuple[BlockMeta, ...]] = {}  # block: the replicated blocks it came from
    for _ in range(60):
        live = [lake.state.blocks.get(b) for b in lake.state.blocks.where]
        level = chance.choice((1, 2))
        some = [m for m in live if m.level == level][:2]
        if len(some) == 2 and chance.random() < 0.6:
            merged = lake.merge(some)
            made_of[merged.id] = tuple(
                source
                for each in some
                for source in ((each,) if len(stores_of(each)) == 3 else made_of.get(each.id, ()))
            )
        else:
            lake.block(number)
            number += 3
        live = [lake.state.blocks.get(b) for b in lake.state.blocks.where]
        lacking = [m for m in live if m.level and len(stores_of(m)) < 3]
        if lacking and chance.random() < 0.7:
            one = chance.choice(lacking)
            had = stores_of(one)
            lake.copy(one.id, *(s for s in (EU, US) if s not in had))
        if chance.random() < 0.5:
            lake.clean()
        for name, sources in made_of.items():
            if name not in lake.state.blocks:
                continue
            now = lake.now_of(name)
            for store in (EU, US):
                here = store in stores_of(now) and lake.holds(store, now)
                assert here or all(lake.holds(store, source) for source in sources)
    assert any(made_of.values())
    audit.check_sums(lake.state)


def test_a_block_that_was_replaced_before_it_came_to_a_store_is_not_waited_for() -> None:
    lake = SeveralStores()
    one, two = replicated(lake)
    merged = lake.merge((one, two))
    other = lake.merge((lake.block(7), lake.block(10)))
    last = lake.merge((merged, other))
    lake.clean()
    lake.clean()
    assert merged.id not in lake.state.retired
    assert lake.holds(EU, one)
    lake.copy(last.id, EU)
    lake.clean()
    assert not lake.holds(EU, one)
    assert not lake.state.tombstones


def test_a_copy_goes_when_the_store_is_no_longer_wanted() -> None:
    lake = SeveralStores()
    one, two = replicated(lake)
    merged = lake.merge((one, two))
    lake.clean()
    assert lake.holds(EU, one)
    want(lake.fold)
    lake.clean()
    assert not lake.holds(EU, one)
    assert not lake.state.tombstones
    assert stores_of(lake.now_of(merged.id)) == (MAIN,)


def test_a_store_that_is_away_holds_up_only_what_it_has_to_vouch_for() -> None:
    """Another store is cleaned, and does not count as away, too."""
    lake = SeveralStores()
    one, two = replicated(lake)
    lake.merge((one, two))
    three, four = lake.block(7), lake.block(10)
    for each in (three, four):
        lake.copy(each.id, EU)
    three, four = lake.now_of(three.id), lake.now_of(four.id)
    merged = lake.merge((three, four))
    lake.clean()
    lake.copy(merged.id, EU)
    want(lake.fold)
    lake.named[MAIN].cut_off()
    run_virtually(lake.cleaner.delete_tombstoned())
    assert lake.holds(EU, one)
    assert not lake.holds(EU, three)
    assert not lake.holds(EU, four)
    assert not any("store eu is unreachable" in each for each in lake.cleaner.blocked)
    lake.named[MAIN].heal()
    lake.pass_time(HOUR_NS)
    lake.clean()
    assert not lake.state.tombstones


def test_nothing_goes_from_a_store_whose_successor_is_listed_there_but_gone() -> None:
    lake = SeveralStores()
    one, two = replicated(lake)
    merged = lake.merge((one, two))
    lake.copy(merged.id, EU)
    missing = keys_at(lake.now_of(merged.id), EU)[2]
    lake.named[EU].delete(missing)
    lake.clean()
    assert lake.holds(EU, one)
    assert any(missing in sentence for sentence in lake.cleaner.blocked)


def test_no_copy_goes_while_a_reader_holds_the_index_that_lists_it() -> None:
    lake = SeveralStores()
    want(lake.fold, EU)
    one = lake.block(1)
    lake.copy(one.id, EU)
    had = lake.now_of(one.id)
    lake.fold.put(PinsTaken(("query",), LeaseTime(lake.fold.now + 10**15)))
    lake.repair.find_bad(one.id, EU)
    lake.clean()
    assert lake.holds(EU, had)
    lake.fold.put(PinsTaken(("query",), LeaseTime(lake.fold.now + 10**15)))
    lake.clean()
    assert not lake.holds(EU, had)


def test_a_bad_copy_goes_only_while_another_one_is_there() -> None:
    lake = SeveralStores()
    want(lake.fold, EU)
    one = lake.block(1)
    lake.copy(one.id, EU)
    had = lake.now_of(one.id)
    lake.repair.find_bad(one.id, EU)
    home = keys_at(one, MAIN)[0]
    body = lake.store.read(home)
    lake.store.delete(home)
    lake.clean()
    assert lake.holds(EU, had)
    lake.store.create(home, body)
    lake.clean()
    assert not lake.holds(EU, had)
    assert everything(lake, EU) == set()
    lake.fold.put(AttemptFenced(lake.repair.plan, lake.repair.token, "its worker died"))
    list(sweeps(lake))
    assert everything(lake, EU, "attempts/") == set()


# ── retention ──────────────────────────────────────────────────────────────────────────────────


def test_retention_reaches_every_copy() -> None:
    lake = SeveralStores()
    one, two = replicated(lake)
    lake.fold.put(BlocksExpired(DAY_START_NS * 2, (one.id,)))
    assert one.id in lake.state.retired
    lake.pass_time(lake.state.policy.expired_delay_ns)
    lake.clean()
    for store in (MAIN, EU):
        assert not lake.holds(store, one)
        assert lake.holds(store, two)
    assert not lake.state.tombstones
    assert one.id not in lake.state.retired


# ── a store that is away ───────────────────────────────────────────────────────────────────────


def test_a_store_that_is_away_holds_up_only_its_own_tombstones() -> None:
    lake = SeveralStores()
    one, two = replicated(lake)
    lake.named[EU].cut_off()
    merged = lake.merge((lake.now_of(one.id), lake.now_of(two.id)))
    known = lake.now_of(merged.id)
    assert stores_of(known) == (MAIN,)
    before = lake.state.room()
    lake.clean()
    assert not lake.holds(MAIN, one)
    assert lake.holds(EU, one)
    assert lake.state.room() == before + 2  # what waits for a store is no block any more
    want(lake.fold)  # nobody wants copies in the EU any more: they are due there at once
    lake.clean()
    assert [each.store for each in lake.state.tombstones] == [EU, EU]
    assert any(
        "store eu is unreachable, and 2 copies wait" in each for each in lake.cleaner.blocked
    )
    lake.named[EU].heal()
    lake.pass_time(10**11)
    lake.clean()
    assert not lake.holds(EU, one)
    assert not lake.state.tombstones
    assert lake.cleaner.blocked == ()


def test_a_store_that_goes_away_while_it_is_cleaned_is_remembered() -> None:
    lake = SeveralStores()
    one, two = replicated(lake)
    merged = lake.merge((one, two))
    lake.copy(merged.id, EU)
    lake.named[EU].cut_off()
    lake.clean()
    assert not lake.holds(MAIN, one)
    assert one.id not in lake.state.retired
    assert len(lake.state.tombstones) == 2
    lake.named[EU].heal()
    lake.pass_time(10**11)
    lake.clean()
    assert not lake.holds(EU, one)


def test_a_leader_whose_log_was_restored_with_other_stores_deletes_nothing_there() -> None:
    lake = SeveralStores()
    one, two = replicated(lake)
    lake.copy(lake.merge((one, two)).id, EU)
    lake.named[EU].create(keys.successor(lake.state.incarnation), b"feedbeef")
    with pytest.raises(NotLeading, match="restored as another one"):
        lake.clean()
    assert lake.holds(EU, one)


def test_a_long_list_is_looked_at_in_parts_to_its_end() -> None:
    lake = SeveralStores(bounds=CleanerBounds(looked_at_once=2))
    want(lake.fold, EU)
    blocks = [lake.block(first) for first in (1, 4, 7)]
    for each in blocks:
        lake.copy(each.id, EU)
    waits = [lake.now_of(each.id) for each in blocks]
    merged = [lake.merge((each,)) for each in waits]
    lake.clean()
    assert len(lake.state.tombstones) == 3
    lake.copy(merged[2].id, EU)
    for _ in range(3):
        lake.clean()
    assert [lake.holds(EU, each) for each in waits] == [True, True, False]


def test_the_list_of_a_store_is_bounded_with_an_alarm_and_other_stores_go_on() -> None:
    lake = SeveralStores(msgspec.structs.replace(SMALL, tombstones_max=2))
    one, two = replicated(lake)
    lake.merge((one, two))
    lake.clean()
    assert len(lake.state.tombstones) == 2
    assert any("2 copies wait to be deleted in it, the most" in s for s in lake.cleaner.blocked)
    three, four = lake.block(7), lake.block(10)
    lake.copy(three.id, EU)
    five, six = lake.block(13), lake.block(16)
    had = lake.now_of(three.id)
    lake.merge((had, four))
    lake.merge((five, six))
    lake.clean()
    assert three.id not in lake.state.retired, "it would stop pushes"
    assert not lake.holds(MAIN, had)
    assert not lake.holds(MAIN, five)
    assert len(lake.state.tombstones) == 2
    assert lake.state.tombstones.of_block(three.id)
    assert not lake.state.tombstones.of_block(one.id), "the oldest is left to the search"
    assert lake.holds(EU, one)


def test_a_store_that_left_the_settings_holds_up_nothing_though_only_one_is_left() -> None:
    lake = SeveralStores()
    one, two = replicated(lake)
    lake.fold.put(StoresSet(StoreSet((StoreSpec(MAIN),))))
    lake.restart_with(MAIN)
    lake.merge((one, two))
    lake.clean()
    assert not lake.holds(MAIN, one)
    assert one.id not in lake.state.retired
    assert [each.store for each in lake.state.tombstones] == [EU, EU]


# ── leftovers ──────────────────────────────────────────────────────────────────────────────────


def test_what_a_task_announced_in_a_store_is_swept_there_and_a_listed_copy_stays() -> None:
    lake = SeveralStores()
    want(lake.fold, EU, US)
    one = lake.block(1)
    entry = lake.repair.entry((one.id, EU), (one.id, US), attempt="both")
    plan, token = lake.repair.plan, lake.repair.token
    for made in entry.copies:
        files = [key for _, key in made.files]
        store = lake.named[made.store]
        intent = keys.intent(plan=plan, token=token, attempt="both", ordinal=0)
        store.create(intent, "\n".join(files).encode())
        for key in files:
            store.create(key, b"x" * one.files[0].size)
    only_eu = msgspec.structs.replace(entry, copies=entry.copies[:1])
    lake.fold.put(only_eu)
    written = {key: one.id for _, key in entry.copies[0].files}
    assert leftovers.unlisted_keys(lake.state, written, EU) == []
    assert leftovers.unlisted_keys(lake.state, written, US) == list(written)
    assert leftovers.unlisted_keys(lake.state, written) == []


@pytest.mark.parametrize("ends_first", [False, True])
def test_a_copy_that_was_refused_is_swept_though_another_of_the_same_task_went(
    ends_first: bool,
) -> None:
    """Only the intents of the task say what it wrote, so they stay until its last sweep."""
    lake = SeveralStores()
    want(lake.fold, EU)
    one, two = lake.block(1), lake.block(4)
    plan, token = lake.repair.plan, lake.repair.token
    entry = lake.repair.entry((one.id, EU), (two.id, EU), attempt="both")
    written: list[str] = []
    for ordinal, made in enumerate(entry.copies):
        files = [key for _, key in made.files]
        written = [*files, keys.manifest_of(files[0])]
        intent = keys.intent(plan=plan, token=token, attempt="both", ordinal=ordinal)
        lake.named[EU].create(intent, "\n".join(written).encode())
        for key in written:
            lake.named[EU].create(key, b"x" * one.files[0].size)
    lake.fold.put(msgspec.structs.replace(entry, copies=entry.copies[:1]))
    copied, refused = lake.now_of(one.id), set(written)
    merged = lake.merge((copied, two))
    if ends_first:
        nothing = PlanResult(REPAIR, (), Account(0, 0, 0), repaired=RangeResult(tokens=None))
        lake.fold.put(PlanCompleted(plan, token, nothing))
        assert plan not in lake.state.plans
        lake.repair = Repairing(lake.fold)
    lake.copy(merged.id, EU)
    lake.clean()
    assert not lake.holds(EU, copied)
    assert refused < everything(lake, EU)
    if not ends_first:
        lake.fold.put(AttemptFenced(plan, token, "its worker died"))
    list(sweeps(lake))
    now = lake.now_of(merged.id)
    assert everything(lake, EU) == {*keys_at(now, EU), *map(keys.manifest_of, keys_at(now, EU))}


def test_what_waits_for_a_store_is_no_leftover() -> None:
    lake = SeveralStores()
    one, two = replicated(lake)
    lake.merge((one, two))
    lake.clean()
    written = dict.fromkeys(keys_at(one, EU), one.id)
    assert leftovers.unlisted_keys(lake.state, written, EU) == []
    for buried in list(lake.state.tombstones):
        lake.fold.put(TombstonesEnded(EU, (buried.key,)))
    assert leftovers.unlisted_keys(lake.state, written, EU) == list(written)


def sweeps(lake: SeveralStores) -> Iterator[int]:
    lake.pass_time(lake.state.policy.leftovers_ns + 1)
    while run_virtually(lake.cleaner.sweep()):
        yield 1


def test_an_attempt_that_wrote_at_home_is_swept_while_another_store_is_away() -> None:
    lake = SeveralStores()
    want(lake.fold, EU)
    lake.block(1)
    assert len(lake.state.leftovers) == 1
    lake.named[EU].cut_off()
    list(sweeps(lake))
    assert not lake.state.leftovers


def test_a_repairs_attempt_is_swept_in_every_store_that_answers() -> None:
    """What it left in one that is away is found there by its intents, and holds up nobody: at the
    bound of ended attempts no plan would be leased any more.
    """
    lake = SeveralStores()
    want(lake.fold, EU)
    made = lake.block(1)
    (key,) = lake.state.leftovers
    ended = lake.state.leftovers[key]
    lake.state.leftovers[key] = msgspec.structs.replace(ended, store=StoreName(""))
    stem = keys.stem(block=made.id, plan=key.plan, token=key.token, attempt="r1")
    table = keys.table(name="series", tenant=made.tenant, day=made.day, stem=stem)
    for name in (EU, US):
        intent = keys.intent(plan=key.plan, token=key.token, attempt="r1", ordinal=0)
        lake.named[name].create(intent, table.encode())
    lake.named[EU].cut_off()
    list(sweeps(lake))
    assert not lake.state.leftovers
    assert everything(lake, EU, "attempts/")
    assert not everything(lake, US, "attempts/")


def test_what_a_repair_left_in_a_store_that_was_away_goes_only_after_it_was_fenced() -> None:
    """The attempt is forgotten without a listing of that store. What fences it (S1) is the entry
    that ended it, for good, whether it is remembered or not: its report is refused for ever. Then
    the search finds what it announced there, and leaves alone what the index lists by then.
    """
    lake = SeveralStores()
    want(lake.fold, EU)
    one = lake.block(1)
    for name in (MAIN, EU, US):
        claim.mark(lake.named[name], lake.state.incarnation)
    orphans = OrphansOfStores(lake, lake.stores, lake.clock, lake.metrics)
    report = lake.write_copy(one.id, EU)
    plan, token = lake.repair.plan, lake.repair.token
    written = everything(lake, EU, "lake/")
    lake.pass_time(10**15)  # long after its lease: it may still report
    run_virtually(orphans.sweep_now(limit=99))
    assert everything(lake, EU, "lake/") == written
    lake.fold.put(AttemptFenced(plan, token, "its worker died"))
    lake.named[EU].cut_off()
    list(sweeps(lake))
    assert not lake.state.leftovers
    lake.named[EU].heal()
    assert isinstance(lake.fold.put(report)[0], Refused)
    run_virtually(orphans.sweep_now(limit=99))
    assert everything(lake, EU, "lake/") == written, "it may be all that the store has"
    lake.repair = Repairing(lake.fold)
    lake.copy(one.id, EU)
    run_virtually(orphans.sweep_now(limit=99))
    now = lake.now_of(one.id)
    listed = {*keys_at(now, EU), *map(keys.manifest_of, keys_at(now, EU))}
    assert set(everything(lake, EU, "lake/")) == listed
    assert isinstance(lake.fold.put(report)[0], Refused)
