"""Compaction never mixes stores: not in lanes, plans or outputs, at no level, after no failure."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from maar.metastore.decide import operator_commands
from maar.metastore.fold.plans.plan import all_plans
from maar.metastore.records.effects import Completed, Leased, Refused, Scheduled
from maar.metastore.records.entries import BlocksAdded, PlanCompleted, PlansScheduled
from maar.model.block import BlockMeta
from maar.model.errors import MaarError
from maar.model.ids import BlockId, StoreName
from maar.model.plan import Account, PlanResult, PlanSpec, PlanState
from maar.model.policy import Level
from maar.model.refusal import Refusal
from maar.ports.plans.board import Report
from maar.services.compact.rules import COMPACT, COMPACTION
from support.metastore.fold import SMALL, Fold, output, result, segment
from support.metastore.leader_term import LeaderDecisions

STORES = tuple(map(StoreName, ("main", "eu", "us")))
POLICY = msgspec.structs.replace(
    SMALL,
    levels=tuple(Level(count=4, bytes=1 << 20, age_ns=level.age_ns) for level in SMALL.levels),
)


def in_store(meta: BlockMeta, store: StoreName) -> BlockMeta:
    """The same block in another store, its objects too."""
    files = tuple(
        msgspec.structs.replace(
            file,
            locations=tuple(msgspec.structs.replace(at, store=store) for at in file.locations),
        )
        for file in meta.files
    )
    return msgspec.structs.replace(meta, store=store, files=files)


class Stores:
    """Segments of several stores, with the same shards and tenant, and what becomes of them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.leader_term = LeaderDecisions(Fold(policy=POLICY))
        self.store_of: dict[BlockId, StoreName] = {}
        self.added = dict.fromkeys(STORES, 0)
        self.levels: set[tuple[StoreName, int]] = set()
        self._number = 0

    def add(self) -> None:
        metas = []
        for _ in range(self.random.randrange(1, 6)):
            self._number += 1
            store = self.random.choice(STORES)
            meta = segment(
                self._number,
                at=self.leader_term.fold.now,
                shard=self.random.choice((1, 2)),
                profiles=3,
            )
            metas.append(in_store(meta, store))
            self.store_of[meta.id] = store
            self.added[store] += 3
        self.leader_term.fold.put(BlocksAdded(tuple(metas)))

    def work(self, *, failing: float) -> None:
        for lease in self.leader_term.start_plans(capacity=4):
            if self.random.random() < failing:
                self.leader_term.fail(lease)
            else:
                self.complete(lease)

    def complete(self, lease: Leased) -> None:
        plan = self.leader_term.plan(lease.plan)
        inputs = self.leader_term.fold.metas(plan.inputs)
        made = result(lease.plan, lease.token, inputs).outputs[0]
        made = in_store(made, inputs[0].store)
        self.store_of[made.id] = made.store
        self.levels.add((made.store, made.level))
        report = Report(
            plan.id, lease.token, PlanResult(COMPACT, (made,), Account(made.profiles, 0, 0))
        )
        effects = self.leader_term.report(lease, report)
        assert any(isinstance(effect, Completed) for effect in effects), effects

    def second_chance(self) -> None:
        """An operator has everything tried again that was set aside."""
        state = self.leader_term.fold.state
        aside = [
            p.id for p in all_plans(state) if p.state in (PlanState.EXCLUDED, PlanState.PARKED)
        ]
        for plan in aside:
            try:
                self.leader_term.put(operator_commands.requeue(state, plan))
            except MaarError:
                continue  # it runs, or there is no room

    def check(self) -> None:
        state = self.leader_term.fold.state
        for plan in (each for each in all_plans(state) if each.inputs):
            assert {self.store_of[block] for block in plan.inputs} == {plan.key.store}
        for key in state.queue.lanes:
            assert {self.store_of[item.block] for item in state.queue.items(key)} == {key.store}
        held = dict.fromkeys(STORES, 0)
        for block in state.blocks.where:
            meta = state.blocks.get(block)
            assert meta.store == self.store_of[block]
            held[meta.store] += meta.profiles
        assert held == self.added


@pytest.mark.parametrize("seed", range(4))
def test_lanes_plans_and_outputs_stay_in_their_store(seed: int) -> None:
    world = Stores(seed)
    for step in range(60):
        world.add()
        world.leader_term.wait(world.random.choice((0, 5, 30)))
        world.work(failing=0.5 if step % 3 == 0 else 0.1)
        if step % 10 == 9:
            world.second_chance()
            world.check()
    states = {plan.state for plan in all_plans(world.leader_term.fold.state)}
    assert PlanState.CANCELLED in states  # bisected ones are among them
    for _ in range(60):
        world.leader_term.pass_rest()
        world.second_chance()
        world.work(failing=0)
    world.check()
    assert world.levels == {(store, level) for store in STORES for level in (1, 2, 3)}


def test_a_plan_over_two_stores_is_refused_by_the_fold() -> None:
    fold = Fold(policy=POLICY)
    here, there = segment(1), in_store(segment(2), StoreName("eu"))
    fold.put(BlocksAdded((here, there)))
    for key in (COMPACTION.lane(here), COMPACTION.lane(there)):
        spec = PlanSpec(COMPACT, False, key, (here.id, there.id), 3)
        (effect,) = fold.put(PlansScheduled((spec,)))
        assert isinstance(effect, Refused)
        assert effect.why is Refusal.INPUT_KEY
    assert not fold.state.owners
    assert len(fold.state.queue.lanes) == 2
    spec = PlanSpec(COMPACT, False, COMPACTION.lane(there), (there.id,), 3)
    (effect,) = fold.put(PlansScheduled((spec,)))
    assert isinstance(effect, Scheduled)


def test_an_output_in_another_store_is_refused() -> None:
    world = Stores(0)
    metas = tuple(in_store(segment(number), StoreName("eu")) for number in range(1, 5))
    world.leader_term.fold.put(BlocksAdded(metas))
    (lease,) = world.leader_term.start_plans()
    assert world.leader_term.plan(lease.plan).key.store == "eu"
    made = output(lease.plan, lease.token, metas, profiles=40)
    assert made.store == "main"
    entry = PlanCompleted(lease.plan, lease.token, PlanResult(COMPACT, (made,), Account(40, 0, 0)))
    (effect,) = world.leader_term.fold.put(entry)
    assert isinstance(effect, Refused)
    assert effect.why is Refusal.OUTPUT
