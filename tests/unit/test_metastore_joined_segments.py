"""Segments that plans joined: after a lost log, beside orphans, in a rollback and when deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from maar.metastore.decide import rollbacks
from maar.metastore.fold import registration
from maar.metastore.leader.stores.claim import check_unused
from maar.metastore.records.effects import Completed
from maar.metastore.records.entries import (
    BlocksAdded,
    Grant,
    PlanCompleted,
    PlansLeased,
    PlansScheduled,
    PlansStarted,
    RegistrationFloor,
    Start,
)
from maar.metastore.recovery import traces
from maar.metastore.views import reads
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import NotFound, Rejected
from maar.model.ids import FencingToken, PlanId, WorkerId, is_joined_segment
from maar.model.plan import PlanResult, PlanSpec
from maar.model.policy import HOUR_NS
from maar.model.time import LeaseTime
from maar.services import intents
from maar.services.compact.rules import COMPACTION
from maar.services.logcompact.rules import LOGCOMPACT
from maar.services.logcompact.run import run as logcompact
from support.clock.virtual_time import run_virtually
from support.lake.lost_log import Lives

W = WorkerId("w")


class JoiningLake(Lives):
    """Plans of logcompact, carried out by the real task."""

    def __init__(self, scratch: Path) -> None:
        super().__init__()
        self.scratch = scratch

    def begin_join(self, metas: list[BlockMeta]) -> tuple[PlanId, FencingToken]:
        inputs = tuple(meta.id for meta in metas)
        spec = PlanSpec(LOGCOMPACT, True, COMPACTION.lane(metas[0]), inputs, 3)
        self.fold.put(PlansScheduled((spec,)))
        plan = PlanId(self.state.index, 0)
        until = LeaseTime(self.fold.now + HOUR_NS)
        self.fold.put(PlansLeased((Grant(plan, W, until),)))
        token = self.state.token()
        self.fold.put(PlansStarted((Start(plan, token),)))
        return plan, token

    def write_join(self, plan: PlanId, attempt: str = "a1") -> PlanResult:
        leased = reads.leased_plan(self.state, plan)
        result = logcompact(
            leased, store=self.store, attempt=attempt, scratch=self.scratch, wall_ns=1
        )
        (made,) = result.outputs
        key = made.files[0].locations[0].key
        self.contents[key] = frozenset().union(*map(self.profiles_in, leased.inputs))
        return result

    def join(self, metas: list[BlockMeta]) -> BlockMeta:
        plan, token = self.begin_join(metas)
        result = self.write_join(plan)
        (effect,) = self.fold.put(PlanCompleted(plan, token, result))
        assert isinstance(effect, Completed), effect
        return result.outputs[0]


@pytest.fixture
def lake(tmp_path: Path) -> JoiningLake:
    return JoiningLake(tmp_path)


def object_of(meta: BlockMeta) -> str:
    return meta.files[0].locations[0].key


def same_but_for_who_tells(found: BlockMeta, made: BlockMeta) -> bool:
    names = set(made.__struct_fields__) - {"created_by", "created_at_ns"}
    return all(getattr(found, name) == getattr(made, name) for name in names)


# ── a lost log ─────────────────────────────────────────────────────────────────────────────────


def test_one_that_came_after_the_snapshot_is_adopted_as_it_was(lake: JoiningLake) -> None:
    inputs = [lake.push(1, 2), lake.push(3), lake.push(4)]
    saved = lake.save()
    made = lake.join(inputs)
    lake.pass_time(HOUR_NS)
    lake.clean()
    with pytest.raises(NotFound):
        lake.store.size(object_of(inputs[0]))
    lake.lose(saved)
    lake.adopt()
    (found,) = lake.live()
    assert same_but_for_who_tells(found, made)
    assert lake.visible_profiles() == {1, 2, 3, 4}


def test_one_below_the_floor_is_adopted_too(lake: JoiningLake) -> None:
    """It is as old as its oldest input, which nobody could register any more."""
    inputs = [lake.push(1), lake.push(2)]
    lake.pass_time(3 * HOUR_NS)
    lake.fold.put(RegistrationFloor(LeaseTime(lake.fold.now - HOUR_NS)))
    saved = lake.save()
    made = lake.join(inputs)
    assert registration.below_floor(lake.state, made.id)
    lake.pass_time(HOUR_NS)
    lake.clean()
    lake.lose(saved)
    lake.adopt()
    assert [meta.id for meta in lake.live()] == [made.id]
    assert lake.visible_profiles() == {1, 2}
    assert not lake.adoption.blocked


def test_a_writers_segment_below_the_floor_still_is_not(lake: JoiningLake) -> None:
    lake.push(1)
    late = lake.upload([9])
    lake.pass_time(3 * HOUR_NS)
    lake.fold.put(RegistrationFloor(LeaseTime(lake.fold.now - HOUR_NS)))
    saved = lake.save()
    lake.lose(saved)
    lake.adopt()
    assert late.id not in {meta.id for meta in lake.live()}


def test_inputs_that_are_still_there_are_adopted_with_it_and_counted_once(
    lake: JoiningLake,
) -> None:
    """Which replaced which is not known any more; queries and merges go by the profiles' ids."""
    saved = lake.save()
    inputs = [lake.push(1), lake.push(2)]
    made = lake.join(inputs)
    lake.lose(saved)
    lake.adopt()
    assert {meta.id for meta in lake.live()} == {made.id, *(meta.id for meta in inputs)}
    assert lake.visible_profiles() == {1, 2}
    merged = lake.merge(lake.live())
    assert merged.profiles == 2


def test_one_whose_object_is_gone_gives_its_inputs_back(lake: JoiningLake) -> None:
    inputs = [lake.push(1), lake.push(2)]
    made = lake.join(inputs)
    saved = lake.save()
    lake.store.delete(object_of(made))
    lake.lose(saved)
    lake.adopt()
    assert {meta.id for meta in lake.live()} == {meta.id for meta in inputs}


def test_without_any_snapshot_it_is_found_by_its_key(lake: JoiningLake) -> None:
    made = lake.join([lake.push(1), lake.push(2)])
    lake.pass_time(HOUR_NS)
    lake.clean()
    token = lake.state.token()
    found = traces.survey(lake.store)
    assert found.objects[token.incarnation] == 1
    named = keys.output_name(object_of(made))
    assert named is not None
    assert found.index == named.token.index, "a new log continues above all that was seen"
    lake.lose_all()
    lake.adopt()
    assert [meta.id for meta in lake.live()] == [made.id]
    assert is_joined_segment(made.id)


def test_what_an_attempt_left_that_never_completed_adds_nothing(lake: JoiningLake) -> None:
    inputs = [lake.push(1), lake.push(2)]
    saved = lake.save()
    plan, _ = lake.begin_join(inputs)
    lake.write_join(plan)
    lake.lose(saved)
    lake.adopt()
    assert lake.visible_profiles() == {1, 2}


def test_one_that_is_damaged_is_told_and_left(lake: JoiningLake) -> None:
    inputs = [lake.push(1), lake.push(2)]
    saved = lake.save()
    made = lake.join(inputs)
    body = lake.store.read(object_of(made))
    lake.store.delete(object_of(made))
    lake.store.create(object_of(made), body[:-9])
    lake.lose(saved)
    lake.adopt()
    assert made.id not in {meta.id for meta in lake.live()}
    assert object_of(made) in lake.adoption.blocked[0]


def test_a_writer_cannot_register_a_segment_under_the_key_of_a_plan(lake: JoiningLake) -> None:
    made = lake.join([lake.push(1), lake.push(2)])
    other = JoiningLake(lake.scratch)
    effects = other.fold.put(BlocksAdded((made,)))
    assert not other.live(), effects


def test_a_store_that_holds_only_joined_segments_is_not_taken_for_an_empty_one(
    lake: JoiningLake,
) -> None:
    lake.join([lake.push(1), lake.push(2)])
    lake.pass_time(HOUR_NS)
    lake.clean()
    for key in lake.objects(keys.MARKERS):
        lake.store.delete(key)
    with pytest.raises(Rejected, match=f"segments of log {lake.state.incarnation}"):
        check_unused(lake.store)


# ── deletion ───────────────────────────────────────────────────────────────────────────────────


def test_it_is_never_an_orphan(lake: JoiningLake) -> None:
    """Neither one in the index, nor one that an attempt is about to complete."""
    made = lake.join([lake.push(1), lake.push(2)])
    plan, token = lake.begin_join([lake.push(3), lake.push(4)])
    open_one = lake.write_join(plan)
    orphan = lake.upload([5])
    for _ in range(4):
        lake.pass_time(HOUR_NS)
        lake.fold.put(RegistrationFloor(LeaseTime(lake.fold.now - HOUR_NS)))
    lake.clean()
    there = lake.objects(keys.SEGMENTS)
    assert object_of(orphan) not in there
    assert {object_of(made), object_of(open_one.outputs[0])} <= there
    (effect,) = lake.fold.put(PlanCompleted(plan, token, open_one))
    assert isinstance(effect, Completed)
    assert lake.visible_profiles() == {1, 2, 3, 4}


def test_one_that_a_task_of_a_lost_part_of_the_log_writes_late_is_swept(lake: JoiningLake) -> None:
    """After the adoption: no entry speaks of it, and its inputs are there."""
    inputs = [lake.push(1), lake.push(2)]
    saved = lake.save()
    plan, _ = lake.begin_join(inputs)
    leased = reads.leased_plan(lake.state, plan)
    lake.lose(saved)
    lake.adopt()
    (late,) = logcompact(
        leased, store=lake.store, attempt="z", scratch=lake.scratch, wall_ns=1
    ).outputs
    lake.pass_time(HOUR_NS)
    lake.clean()
    assert object_of(late) not in lake.objects(keys.SEGMENTS)
    assert lake.visible_profiles() == {1, 2}


def test_when_it_was_merged_its_object_and_its_intents_are_deleted(lake: JoiningLake) -> None:
    made = lake.join([lake.push(1), lake.push(2)])
    lake.merge([made])
    lake.pass_time(HOUR_NS)
    while run_virtually(lake.cleaner.remove()):
        pass
    assert not lake.objects(keys.SEGMENTS)
    named = keys.output_name(object_of(made))
    assert named is not None
    assert not lake.objects(keys.attempt_prefix(plan=named.plan, token=named.token))


def test_a_rollback_finds_what_its_attempt_wrote(lake: JoiningLake) -> None:
    inputs = [lake.push(1), lake.push(2)]
    plan, token = lake.begin_join(inputs)
    (made,) = lake.write_join(plan).outputs
    lake.pass_time(2 * HOUR_NS)
    for entry in rollbacks.by_hand(lake.state, plan, now=lake.now()):
        lake.fold.put(entry)
    rollback = lake.state.plans.rollback_of(plan)
    assert rollback is not None
    assert rollback.tokens == (token,)
    written = intents.read(lake.store, plan=plan, token=token).written
    assert written == {object_of(made): made.id}
    queue = lake.state.queue
    assert all(meta.id in queue for meta in inputs), "back where they waited"
