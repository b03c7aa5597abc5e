"""Blocks of one zone and day are merged with each other, however late their profiles came."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest

from maar.adapters.stores.open import open_store
from maar.metastore.decide import schedule
from maar.metastore.decide.schedule import Wish
from maar.metastore.fold.apply import apply
from maar.metastore.records.effects import Completed, Refused, Scheduled
from maar.metastore.records.entries import (
    VERSION,
    BlocksAdded,
    BlocksOutlined,
    Entry,
    Grant,
    PlanCompleted,
    PlansLeased,
    PlansScheduled,
    PolicySet,
    VersionActivated,
    decode_to_fold,
    encode_entry,
)
from maar.metastore.records.packs import outline, pack, unpack
from maar.metastore.replica import snapshot
from maar.metastore.state import snapshot_parts
from maar.metastore.state.digest import digest
from maar.metastore.state.queue import Queue, key_of
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.block import NO_DAY, BlockMeta, Kind
from maar.model.ids import HOME, MAIN_STORE, TenantId, WorkerId, Zone
from maar.model.lane import Item
from maar.model.plan import Account, LeasedPlan, PlanResult, PlanSpec, PlanState, QueueKey, Service
from maar.model.policy import Level, Policy
from maar.model.refusal import Refusal
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime
from maar.ports.log import Head
from maar.ports.object_store import StoreSettings
from support.lake.whole_lake import NOON_NS, WholeLake, profile
from support.metastore.fold import DAY, SMALL, TENANT, Fold, output, segment

EAST, WEST = Zone("east"), Zone("west")
W1 = WorkerId("w1")


def of_days(number: int, days: int, *, zone: Zone = EAST, **how: int) -> BlockMeta:
    """A segment with a profile of each of some days, the last one DAY."""
    meta = segment(number, profiles=days, **how)  # type: ignore[arg-type]
    start = meta.min_time_ns - (days - 1) * DAY_NS
    return msgspec.structs.replace(meta, min_time_ns=start, zone=zone)


def held(meta: BlockMeta) -> dict[int, int]:
    """Profiles of each day."""
    if meta.level:
        return {meta.day: meta.profiles}
    return dict.fromkeys(range(DAY - meta.profiles + 1, DAY + 1), 1)


def made_of(plan: LeasedPlan) -> PlanResult:
    """What a worker makes of it: a block for every day."""
    days: Counter[int] = Counter()
    for meta in plan.inputs:
        days.update(held(meta))
    outputs = []
    for ordinal, (day, profiles) in enumerate(sorted(days.items())):
        made = output(
            *(plan.id, plan.token, plan.inputs),
            profiles=profiles,
            ordinal=ordinal,
            level=plan.key.level + 1,
            day=day,
        )
        outputs.append(msgspec.structs.replace(made, zone=plan.key.zone))
    return PlanResult(tuple(outputs), Account(days.total(), 0, 0))


def leased(fold: Fold) -> list[LeasedPlan]:
    entries = schedule.assign(fold.state, [Wish(W1, 64)], now=LeaseTime(fold.now))
    for entry in entries:
        fold.put(entry)
    granted = [plan for plan in fold.state.plans.values() if plan.lease]
    return [
        LeasedPlan(
            plan.id, plan.service, plan.lease.token, plan.key, fold.metas(plan.inputs), 1 << 30, 1
        )
        for plan in granted
        if plan.lease
    ]


def merged(fold: Fold) -> int:
    """All that is due is merged; how many plans that took."""
    count = 0
    while granted := leased(fold):
        for plan in granted:
            (done,) = fold.put(PlanCompleted(plan.id, plan.token, made_of(plan)))
            assert isinstance(done, Completed), done
            count += 1
    return count


def settle(fold: Fold) -> None:
    """Long enough that every lane has closed by age, level by level."""
    for _ in SMALL.levels:
        fold.now += 60 * SECOND_NS
        merged(fold)


def live(state: MetaState) -> list[BlockMeta]:
    return [state.blocks.get(block) for block in state.blocks.where]


# ── what a lane is ─────────────────────────────────────────────────────────────────────────────


def test_a_lane_has_a_zone_and_from_level_1_on_a_day() -> None:
    meta = of_days(1, 1)
    block = msgspec.structs.replace(
        meta, kind=Kind.BLOCK, level=1, day=DAY, tenant=TenantId("acme")
    )
    assert key_of(meta, version=5) == QueueKey(MAIN_STORE, meta.tenant, meta.shard, 0, EAST, NO_DAY)
    assert key_of(block, version=5) == QueueKey(MAIN_STORE, TENANT, meta.shard, 1, EAST, DAY)
    assert key_of(outline(pack(block)), version=5) == key_of(block, version=5)
    for each in (meta, block):
        old = key_of(each, version=4)
        assert (old.zone, old.day) == ("", NO_DAY)


@pytest.mark.parametrize(("version", "blocks"), [(4, 80), (VERSION, 20)])
def test_eighty_profiles_of_twenty_days_end_as_a_block_for_each_day(
    version: int, blocks: int
) -> None:
    """Four segments with a profile of each day. Before version 5 nothing was ever merged."""
    levels = tuple(Level(10, 1 << 20, age * SECOND_NS) for age in (10, 50, 50))
    fold = Fold(policy=msgspec.structs.replace(SMALL, levels=levels), version=version)
    for number in range(4):
        fold.put(BlocksAdded((of_days(number, 20, at=fold.now),)))
        fold.now += 11 * SECOND_NS
        merged(fold)
    assert len(live(fold.state)) == 80
    settle(fold)
    assert {meta.level for meta in live(fold.state)} == {3}
    assert len(live(fold.state)) == blocks
    assert sum(meta.profiles for meta in live(fold.state)) == 80
    assert fold.state.queue.lanes == {}
    assert len(fold.state.queue.places._keys) == 0


def test_zones_are_never_merged_with_each_other() -> None:
    fold = Fold()
    for number in range(6):
        fold.put(BlocksAdded((of_days(number, 1, zone=EAST if number % 2 else WEST),)))
    plans = leased(fold)
    assert {(plan.key.zone, *{m.zone for m in plan.inputs}) for plan in plans} == {
        (EAST, EAST),
        (WEST, WEST),
    }
    merged(fold)
    assert Counter(meta.zone for meta in live(fold.state)) == {EAST: 1, WEST: 1}


def test_a_poll_looks_at_few_lanes_however_many_days_wait() -> None:
    fold = Fold()
    fold.put(BlocksAdded((of_days(1, 200),)))
    fold.now += 30 * SECOND_NS
    (plan,) = leased(fold)
    fold.put(PlanCompleted(plan.id, plan.token, made_of(plan)))
    fold.now += 60 * SECOND_NS
    assert len(fold.state.queue.lanes) == 200
    looked_at: list[QueueKey] = []

    class Watched:
        def __getattr__(self, name: str) -> object:
            return getattr(fold.state.queue, name)

        def items(self, key: QueueKey) -> Iterator[Item]:
            looked_at.append(key)
            return fold.state.queue.items(key)

    state = dataclasses.replace(fold.state, queue=cast(Queue, Watched()))
    (_, granted) = schedule.assign(state, [Wish(W1, 2)], now=LeaseTime(fold.now))
    assert isinstance(granted, PlansLeased)
    assert len(granted.grants) == 2
    assert len(looked_at) <= 4


# ── what a plan may make ───────────────────────────────────────────────────────────────────────


def completed(fold: Fold, plan: LeasedPlan, **changes: object) -> object:
    made = made_of(plan)
    outputs = tuple(msgspec.structs.replace(meta, **changes) for meta in made.outputs)
    result = msgspec.structs.replace(made, outputs=outputs)
    (effect,) = fold.put(PlanCompleted(plan.id, plan.token, result))
    return effect


def at_level_1(version: int = VERSION) -> tuple[Fold, LeasedPlan]:
    """A plan that merges two blocks of a day."""
    fold = Fold(version=version)
    for number in range(6):
        fold.put(BlocksAdded((of_days(number, 1),)))
    for plan in leased(fold):
        fold.put(PlanCompleted(plan.id, plan.token, made_of(plan)))
    (plan,) = leased(fold)
    assert plan.key.level == 1
    return fold, plan


def test_an_output_of_another_day_or_zone_is_refused() -> None:
    fold, plan = at_level_1()
    for wrong in ({"day": DAY + 1}, {"zone": WEST}):
        effect = completed(fold, plan, **wrong)
        assert isinstance(effect, Refused)
        assert effect.why is Refusal.OUTPUT
    assert isinstance(completed(fold, plan), Completed)


def test_a_worker_that_knows_no_zones_makes_blocks_of_its_plans_zone() -> None:
    fold, plan = at_level_1()
    assert isinstance(completed(fold, plan, zone=Zone("")), Completed)
    (made,) = live(fold.state)
    assert made.zone == EAST
    assert key_of(made, version=VERSION) in fold.state.queue.lanes


def test_a_plan_of_two_days_is_refused() -> None:
    fold = Fold()
    for number in range(4):
        fold.put(BlocksAdded((of_days(number, 2),)))
    fold.now += 30 * SECOND_NS
    (first, *_) = leased(fold)
    fold.put(PlanCompleted(first.id, first.token, made_of(first)))
    one, two = (meta for meta in live(fold.state) if meta.level == 1)
    assert one.day != two.day
    spec = PlanSpec(Service.COMPACT, False, key_of(one, version=VERSION), (one.id, two.id), 2)
    (effect,) = fold.put(PlansScheduled((spec,)))
    assert isinstance(effect, Refused)
    assert effect.why is Refusal.INPUT_KEY


# ── the change of versions ─────────────────────────────────────────────────────────────────────


def before_days() -> Fold:
    """A log of version 4: blocks of six days wait at level 1, and some are owned by a plan."""
    fold = Fold(version=4)
    for number in range(9):
        fold.put(BlocksAdded((of_days(number, 6, at=number),)))
    fold.now += 30 * SECOND_NS
    for plan in leased(fold)[:2]:
        fold.put(PlanCompleted(plan.id, plan.token, made_of(plan)))
    ids = tuple(meta.id for meta in live(fold.state) if meta.level == 1)[:2]
    spec = PlanSpec(Service.COMPACT, False, fold.state.queue.places[ids[0]].key, ids, 2)
    (effect,) = fold.put(PlansScheduled((spec,)))
    assert isinstance(effect, Scheduled)
    fold.put(BlocksAdded((of_days(20, 1, at=20), of_days(21, 3, zone=WEST, at=21))))
    return fold


def loaded(state: MetaState) -> MetaState:
    again, _ = snapshot.decode(snapshot.encode(state, Head(state.index, b"h" * 32)))
    snapshot_parts.audit(again)
    snapshot_parts.compare(state, again)
    return again


def test_when_lanes_get_days_every_replica_comes_to_the_same_state() -> None:
    """Whether it folds the whole log, or begins with a snapshot from before or after."""
    fold = before_days()
    early = loaded(fold.state)
    fold.put(VersionActivated(VERSION))
    apply(early, fold.log[-1])
    late = loaded(fold.state)
    assert digest(early) == digest(late) == digest(fold.state)
    snapshot_parts.compare(early, late)
    followers = early, late
    entries: list[Entry] = [
        BlocksAdded((of_days(30, 2, at=30),)),
        *schedule.assign(fold.state, [Wish(W1, 64)], now=LeaseTime(fold.now)),
    ]
    for entry in entries:
        effects = fold.put(entry)
        assert all(apply(state, fold.log[-1]) == effects for state in followers)
        assert {digest(state) for state in followers} == {digest(fold.state)}
    for state in (fold.state, *followers):
        snapshot_parts.audit(state)


def test_blocks_that_waited_keep_their_turn_in_the_lanes_of_their_days() -> None:
    fold = before_days()
    before = {b: item[:5] for b, item in fold.state.queue.places.items()}
    assert len({item.key for item in fold.state.queue.places.values()}) == 2
    fold.put(VersionActivated(VERSION))
    places = fold.state.queue.places
    assert {b: item[:5] for b, item in places.items()} == before
    for block, item in places.items():
        meta = fold.state.blocks.get(block)
        day = NO_DAY if meta.level == 0 else meta.day
        assert (item.key.day, item.key.zone) == (day, meta.zone)
        assert (block in fold.state.queue) != (block in fold.state.owners)
    assert len({item.key.day for item in places.values()}) == 7
    again = digest(fold.state)
    fold.put(VersionActivated(VERSION))  # once is enough
    assert digest(fold.state) == again


def test_a_plan_of_many_days_that_was_scheduled_before_is_completed() -> None:
    fold = before_days()
    plan = next(p for p in fold.state.plans.values() if p.key.level == 1)
    fold.put(VersionActivated(VERSION))
    assert len({meta.day for meta in fold.metas(plan.inputs)}) == 2
    until = LeaseTime(fold.now + 15 * SECOND_NS)
    fold.put(PlansLeased((Grant(plan.id, W1, until),)))
    token = fold.state.token()
    inputs = fold.metas(plan.inputs)
    given = LeasedPlan(plan.id, plan.service, token, plan.key, inputs, 1 << 30, 1)
    (done,) = fold.put(PlanCompleted(plan.id, token, made_of(given)))
    assert isinstance(done, Completed), done
    assert fold.state.finished[plan.id].state is PlanState.COMPLETED
    came = fold.state.tally.profiles_added
    settle(fold)
    assert {meta.level for meta in live(fold.state)} == {3}
    assert sum(meta.profiles for meta in live(fold.state)) == came


def test_under_an_older_version_a_block_is_kept_as_older_programs_keep_it() -> None:
    """So that replicas that were upgraded sooner or later hold the same bytes when hashes go over
    them: without zones, which those programs would drop.
    """
    fold = before_days()
    for meta in live(fold.state):
        found = fold.state.blocks.found((meta.id,))[meta.id]
        assert found.outline.zone == ""
        kept = len(msgspec.msgpack.decode(pack(meta, version=4)))
        assert BlockMeta.__struct_fields__[kept] == "zone"
    for plan in fold.state.finished.values():
        assert plan.result is not None
        assert {meta.zone for meta in plan.result.outputs} == {""}


def as_an_older_program(state: MetaState) -> MetaState:
    """Its snapshot: what it did not know when it folded an entry is not in it."""
    plans = {
        plan.id: msgspec.structs.replace(
            plan,
            result=plan.result
            and msgspec.structs.replace(
                plan.result,
                outputs=tuple(unpack(pack(meta, version=4)) for meta in plan.result.outputs),
            ),
        )
        for plan in state.finished.values()
    }
    again = loaded(state)
    again.finished.update(plans)
    fields = msgspec.structs.asdict(state.policy)
    del fields["expired_delay_ns"]
    again.policy = Policy(**fields)
    return again


def test_replicas_agree_whoever_made_the_snapshot_before_the_version_was_activated() -> None:
    """Workers and leaders may be upgraded first: what they write then has fields that the programs
    of other replicas drop, and hashes go over them an entry later.
    """
    fold = before_days()
    fold.put(PolicySet(msgspec.structs.replace(SMALL, expired_delay_ns=60 * SECOND_NS)))
    plan = next(p for p in fold.state.plans.values() if p.key.level == 1)
    fold.put(PlansLeased((Grant(plan.id, W1, LeaseTime(fold.now + 15 * SECOND_NS)),)))
    token, inputs = fold.state.token(), fold.metas(plan.inputs)
    given = LeasedPlan(plan.id, plan.service, token, plan.key, inputs, 1 << 30, 1)
    made = made_of(given)
    outputs = [msgspec.structs.replace(meta, dated_ns=meta.max_time_ns) for meta in made.outputs]
    result = msgspec.structs.replace(made, outputs=tuple(outputs))
    (done,) = fold.put(PlanCompleted(plan.id, token, result))
    assert isinstance(done, Completed), done
    other = as_an_older_program(fold.state)
    assert digest(other) == digest(fold.state)
    fold.put(VersionActivated(VERSION))
    apply(other, fold.log[-1])
    assert other.finished == fold.state.finished
    assert other.policy == fold.state.policy
    assert digest(other) == digest(fold.state)
    fold.put(PolicySet(msgspec.structs.replace(SMALL, expired_delay_ns=60 * SECOND_NS)))
    assert fold.state.policy.expired_delay_ns == 60 * SECOND_NS


@pytest.mark.parametrize(
    ("version", "fields"), [(4, 18), (VERSION, len(BlockMeta.__struct_fields__))]
)
def test_a_log_has_no_more_of_a_block_than_its_version_knows(version: int, fields: int) -> None:
    """A program that writes a log of an older version: others would keep what they do not know."""
    body = encode_entry(BlocksAdded((of_days(1, 1),)), version=version)
    assert [len(block) for block in msgspec.msgpack.decode(body)[1]] == [fields]
    read = decode_to_fold(body, index=1)
    assert isinstance(read, BlocksOutlined)
    ((found, kept),) = read.blocks
    assert found.zone == (EAST if version == VERSION else "")
    assert kept == pack(of_days(1, 1), version=version)


# ── with real segments and merges ──────────────────────────────────────────────────────────────


def test_late_profiles_are_merged_by_day_with_real_segments_and_merges(tmp_path: Path) -> None:
    """80 profiles over 20 days, in 8 pushes; every one is found again."""
    store = open_store(StoreSettings(MAIN_STORE, (tmp_path / "store").as_uri()))
    policy = Policy(
        levels=tuple(Level(count=1000, bytes=1 << 40, age_ns=SECOND_NS) for _ in range(3)),
        stall_ns=10**9 * SECOND_NS,
        retention_ns=0,
    )
    lake = WholeLake(tmp_path, store, policy)
    profiles = [
        profile(f"f{n}", n + 1, time_ns=NOON_NS - n % 20 * DAY_NS, service=f"s{n % 3}")
        for n in range(80)
    ]

    async def run() -> list[BlockMeta]:
        async with lake.running() as service:
            for at in range(0, 80, 10):
                await lake.pushed(service, profiles[at : at + 10])
                if at % 20:
                    lake.clock.advance(SECOND_NS)
            while await lake.raised(service) != {3}:
                pass
            return list(await service.blocks())

    blocks = asyncio.run(run())
    assert sorted(meta.day for meta in blocks) == [NOON_NS // DAY_NS - n for n in range(20)][::-1]
    assert {meta.zone for meta in blocks} == {HOME}
    manifests = [store.read(info.key) for info in store.list(keys.MANIFESTS)]
    zones = {msgspec.msgpack.decode(body, type=BlockMeta).zone for body in manifests}
    assert zones == {HOME}, "who adopts blocks from the store must find it again"
    assert sum(meta.profiles for meta in blocks) == 80
