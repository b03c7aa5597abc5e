"""Blocks of one zone and day are merged with each other, however late their profiles came."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec

from maar.adapters.stores.open import open_store
from maar.metastore.decide import schedule
from maar.metastore.decide.schedule import Wish
from maar.metastore.records.effects import Completed, Refused
from maar.metastore.records.entries import (
    BlocksAdded,
    BlocksOutlined,
    PlanCompleted,
    PlansLeased,
    PlansScheduled,
    decode_to_fold,
    encode_entry,
)
from maar.metastore.records.packs import outline, pack
from maar.metastore.state.queue import Queue
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.block import NO_DAY, BlockMeta, Kind
from maar.model.ids import HOME, MAIN_STORE, TenantId, WorkerId, Zone
from maar.model.lane import Item
from maar.model.plan import Account, LeasedPlan, PlanResult, PlanSpec, QueueKey
from maar.model.policy import Level, Policy
from maar.model.refusal import Refusal
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime
from maar.ports.stores.object_store import StoreSettings
from maar.services.compact.rules import COMPACT, COMPACTION
from support.clock.virtual_time import run_virtually
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
    return PlanResult(COMPACT, tuple(outputs), Account(days.total(), 0, 0))


def leased(fold: Fold) -> list[LeasedPlan]:
    entries = schedule.assign(fold.state, [Wish(W1, 64)], now=LeaseTime(fold.now))
    for entry in entries:
        fold.put(entry)
    granted = [plan for plan in fold.state.plans.values() if plan.lease]
    return [
        LeasedPlan(
            plan.id, plan.kind, plan.lease.token, plan.key, fold.metas(plan.inputs), 1 << 30, 1
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
    assert COMPACTION.lane(meta) == QueueKey(MAIN_STORE, meta.tenant, meta.shard, 0, EAST, NO_DAY)
    assert COMPACTION.lane(block) == QueueKey(MAIN_STORE, TENANT, meta.shard, 1, EAST, DAY)
    assert COMPACTION.lane(outline(pack(block))) == COMPACTION.lane(block)


def test_eighty_profiles_of_twenty_days_end_as_a_block_for_each_day() -> None:
    """Four segments with a profile of each day."""
    levels = tuple(Level(10, 1 << 20, age * SECOND_NS) for age in (10, 50, 50))
    fold = Fold(policy=msgspec.structs.replace(SMALL, levels=levels))
    for number in range(4):
        fold.put(BlocksAdded((of_days(number, 20, at=fold.now),)))
        fold.now += 11 * SECOND_NS
        merged(fold)
    assert len(live(fold.state)) == 80
    settle(fold)
    assert {meta.level for meta in live(fold.state)} == {3}
    assert len(live(fold.state)) == 20
    assert sum(meta.profiles for meta in live(fold.state)) == 80
    assert fold.state.queue.lanes == {}
    assert fold.state.queue.places.lanes == 0


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


def at_level_1() -> tuple[Fold, LeasedPlan]:
    """A plan that merges two blocks of a day."""
    fold = Fold()
    for number in range(6):
        fold.put(BlocksAdded((of_days(number, 1),)))
    for plan in leased(fold):
        fold.put(PlanCompleted(plan.id, plan.token, made_of(plan)))
    (plan,) = leased(fold)
    assert plan.key.level == 1
    return fold, plan


def test_an_output_of_another_day_zone_or_tenant_is_refused() -> None:
    fold, plan = at_level_1()
    for wrong in ({"day": DAY + 1}, {"zone": WEST}, {"tenant": TenantId("somebody-else")}):
        effect = completed(fold, plan, **wrong)
        assert isinstance(effect, Refused)
        assert effect.why is Refusal.OUTPUT
    assert isinstance(completed(fold, plan), Completed)


def test_a_worker_that_knows_no_zones_makes_blocks_of_its_plans_zone() -> None:
    fold, plan = at_level_1()
    assert isinstance(completed(fold, plan, zone=Zone("")), Completed)
    (made,) = live(fold.state)
    assert made.zone == EAST
    assert COMPACTION.lane(made) in fold.state.queue.lanes


def test_a_plan_of_two_days_is_refused() -> None:
    fold = Fold()
    for number in range(4):
        fold.put(BlocksAdded((of_days(number, 2),)))
    fold.now += 30 * SECOND_NS
    (first, *_) = leased(fold)
    fold.put(PlanCompleted(first.id, first.token, made_of(first)))
    one, two = (meta for meta in live(fold.state) if meta.level == 1)
    assert one.day != two.day
    spec = PlanSpec(COMPACT, False, COMPACTION.lane(one), (one.id, two.id), 2)
    (effect,) = fold.put(PlansScheduled((spec,)))
    assert isinstance(effect, Refused)
    assert effect.why is Refusal.INPUT_KEY


def test_a_block_is_kept_as_the_log_has_it() -> None:
    body = encode_entry(BlocksAdded((of_days(1, 1),)))
    read = decode_to_fold(body, index=1)
    assert isinstance(read, BlocksOutlined)
    ((found, kept),) = read.blocks
    assert found.zone == EAST
    assert kept == pack(of_days(1, 1))


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
                await lake.push(service, profiles[at : at + 10])
                if at % 20:
                    lake.clock.advance(SECOND_NS)
            while await lake.compact_all(service) != {3}:
                pass
            return list(await service.blocks())

    blocks = run_virtually(run())
    assert sorted(meta.day for meta in blocks) == [NOON_NS // DAY_NS - n for n in range(20)][::-1]
    assert {meta.zone for meta in blocks} == {HOME}
    manifests = [store.read(info.key) for info in store.list(keys.MANIFESTS)]
    zones = {msgspec.msgpack.decode(body, type=BlockMeta).zone for body in manifests}
    assert zones == {HOME}, "who adopts blocks from the store must find it again"
    assert sum(meta.profiles for meta in blocks) == 80
