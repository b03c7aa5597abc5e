"""A restored log has a new incarnation; the fold adopts, and deletes nothing meanwhile."""

from __future__ import annotations

import msgspec
import pytest

from maar.metastore.decide import prepare
from maar.metastore.decide.workers import WorkerRegistry
from maar.metastore.records.effects import Adopted, Missed, Refused
from maar.metastore.records.entries import (
    AdoptionEnded,
    AttemptKey,
    BlocksAdded,
    BlocksAdopted,
    BlocksExpired,
    BlocksForgotten,
    BlocksMissed,
    LeftoversSwept,
    PlanExcluded,
    PlansParked,
    RegistrationFloor,
    Reincarnated,
)
from maar.metastore.replica import snapshot
from maar.model.ids import FencingToken, Incarnation, PlanId, WorkerId
from maar.model.plan import PlanState
from maar.model.policy import HOUR_NS
from maar.model.refusal import Refusal
from maar.model.time import LeaseTime
from maar.ports.metastore.log import Head
from maar.ports.plans.board import PollRequest
from maar.services.compact.rules import COMPACT
from support.lake.lost_log import Lives
from support.metastore.fold import INCARNATION, SMALL, Fold, output, segment

NEW = Incarnation("00000002")
OTHER = Incarnation("feedbeef")


def reborn(fold: Fold) -> None:
    fold.put(Reincarnated(NEW))
    assert fold.state.adopting == (INCARNATION,)


def test_a_restored_log_has_another_incarnation_and_no_plan_of_the_old_one() -> None:
    lake = Lives(policy=msgspec.structs.replace(SMALL, plans_max=3))
    leased = lake.schedule([lake.push(1), lake.push(2)])
    token = lake.lease(leased)
    made = lake.write(leased, token)
    excluded = lake.schedule([lake.push(3)])
    lake.fold.put(PlanExcluded(excluded, None, LeaseTime(HOUR_NS)))
    parked = lake.schedule([lake.push(4)])
    lake.fold.put(PlanExcluded(parked, None, LeaseTime(HOUR_NS)))
    lake.fold.put(PlansParked((parked,)))
    state = lake.state
    assert set(state.parked) == {parked}

    lake.fold.put(Reincarnated(NEW))

    assert state.incarnation == NEW
    assert state.adopting == (INCARNATION,)
    assert not state.plans
    assert not state.parked
    assert not state.owners
    assert set(state.queue.places) == set(state.blocks.where)  # every input waits again
    assert state.finished[leased].state is PlanState.CANCELLED
    (answer,) = lake.complete_as(leased, token, made)
    assert answer == Refused(Refusal.STALE_TOKEN, leased, token)
    assert AttemptKey(leased, token) in state.leftovers


def test_tokens_of_a_restored_log_are_of_its_new_incarnation() -> None:
    lake = Lives()
    first = lake.push(1)
    lake.lose(lake.save())
    lake.adopt()
    assert lake.lease(lake.schedule([first])).incarnation == "00000002"


@pytest.mark.parametrize(
    "entry", [Reincarnated(INCARNATION), Reincarnated(Incarnation("")), Reincarnated(NEW, (NEW,))]
)
def test_no_incarnation_recurs(entry: Reincarnated) -> None:
    fold = Fold()
    assert fold.put(entry) == (Refused(Refusal.INCARNATION),)
    assert not fold.state.adopting


def test_a_log_restored_while_it_adopts_goes_on_with_all_its_lives() -> None:
    fold = Fold()
    reborn(fold)
    fold.put(Reincarnated(Incarnation("00000003"), (OTHER,)))
    assert fold.state.adopting == (NEW, INCARNATION, OTHER)
    assert fold.put(Reincarnated(NEW)) == (Refused(Refusal.INCARNATION),)


def test_nothing_is_deleted_forgotten_or_swept_and_the_floor_stands_while_adopting() -> None:
    lake = Lives()
    first, second = lake.push(1), lake.push(2)
    lake.merge([first, second])
    kept = lake.push(3)
    fold, state = lake.fold, lake.state
    fold.now += 10 * HOUR_NS
    leftovers = tuple(state.leftovers)
    assert leftovers
    reborn(fold)
    assert Refused(Refusal.ADOPTING) in fold.put(BlocksForgotten((first.id,)))
    assert Refused(Refusal.ADOPTING) in fold.put(BlocksExpired(1 << 62, (kept.id,)))
    assert Refused(Refusal.ADOPTING) in fold.put(LeftoversSwept(leftovers))
    fold.put(RegistrationFloor(LeaseTime(fold.now - 1)))
    assert state.registration_floor < 0
    assert first.id in state.retired
    assert kept.id in state.blocks
    assert state.leftovers

    fold.put(AdoptionEnded())
    assert not state.adopting
    fold.put(BlocksForgotten((first.id,)))
    fold.put(LeftoversSwept(leftovers))
    assert first.id not in state.retired
    assert not state.leftovers
    fold.put(RegistrationFloor(LeaseTime(fold.now - 1)))
    assert state.registration_floor > 0


def test_no_plan_is_made_while_adopting_and_one_is_afterwards() -> None:
    fold = Fold()
    fold.put(BlocksAdded(tuple(segment(n) for n in range(3))))
    reborn(fold)
    poll = PollRequest(WorkerId("w"), 1, kinds=(COMPACT,))
    now = LeaseTime(HOUR_NS)
    assert prepare.assignments(fold.state, [poll], now=now, worker_registry=WorkerRegistry()) == []
    fold.put(AdoptionEnded())
    assert prepare.assignments(fold.state, [poll], now=now, worker_registry=WorkerRegistry())


def test_the_leader_does_not_try_to_move_the_floor_while_adopting() -> None:
    lake = Lives()
    gone = [lake.push(1), lake.push(2)]
    lake.merge(gone)
    lake.fold.now += HOUR_NS
    lake.fold.put(BlocksForgotten(tuple(meta.id for meta in gone)))
    far = LeaseTime(lake.fold.now + 20 * HOUR_NS)

    def floors() -> list[object]:
        kept = prepare.housekeeping(lake.state, now=far, floor_max=far)
        return [entry for entry in kept if isinstance(entry, RegistrationFloor)]

    assert floors()
    reborn(lake.fold)
    assert not floors()


def test_adopted_blocks_are_in_the_index_and_the_queue_once() -> None:
    fold = Fold()
    reborn(fold)
    one, two = segment(1, at=5), segment(2, at=9 * HOUR_NS)  # named by a time not reached again
    assert fold.put(BlocksAdopted((one, two))) == (
        Adopted(one.id, "", one.profiles),
        Adopted(two.id, "", two.profiles),
    )
    assert fold.put(BlocksAdopted((one,))) == (Adopted(one.id, ""),)
    assert fold.live() == {one.id, two.id}
    assert set(fold.state.queue.places) == {one.id, two.id}
    assert fold.state.tally.blocks_adopted == 2
    assert fold.state.tally.profiles_added == one.profiles + two.profiles
    assert fold.state.anchor.data_ns > 0


def test_what_the_floor_refuses_is_not_adopted_but_blocks_of_that_age_are() -> None:
    fold = Fold()
    fold.now = 2 * HOUR_NS
    fold.put(RegistrationFloor(LeaseTime(HOUR_NS)))
    reborn(fold)
    old = segment(1, at=HOUR_NS)
    (answer,) = fold.put(BlocksAdopted((old,)))
    assert isinstance(answer, Adopted)
    assert "older than the registration floor" in answer.refusal
    made = output(PlanId(9, 0), FencingToken(INCARNATION, 10), (old,), profiles=10)
    fold.put(BlocksAdopted((made,)))
    assert fold.live() == {made.id}


def test_a_full_index_still_adopts() -> None:
    """Only when adoption has ended can anything be merged or deleted, which makes room."""
    fold = Fold(policy=msgspec.structs.replace(SMALL, blocks_max=1))
    reborn(fold)
    one, two = segment(1), segment(2)
    assert fold.put(BlocksAdopted((one, two))) == (
        Adopted(one.id, "", one.profiles),
        Adopted(two.id, "", two.profiles),
    )
    fold.put(AdoptionEnded())
    fold.put(BlocksAdded((segment(3),)))
    assert fold.live() == {one.id, two.id}


def test_missed_blocks_leave_the_index_and_are_counted() -> None:
    fold = Fold()
    one, two = segment(1), segment(2)
    fold.put(BlocksAdded((one, two)))
    reborn(fold)
    assert fold.put(BlocksMissed((one.id,))) == (Missed(1, one.profiles),)
    assert fold.put(BlocksMissed((one.id,))) == (
        Refused(Refusal.INPUT_GONE, what=one.id),
        Missed(0, 0),
    )
    assert fold.live() == {two.id}
    assert set(fold.state.queue.places) == {two.id}
    assert (fold.state.tally.blocks_missed, fold.state.tally.profiles_missed) == (1, one.profiles)
    assert one.id not in fold.state.retired  # its objects are gone: there is nothing to delete


def test_a_plan_whose_input_was_missed_ends_and_its_other_inputs_are_free() -> None:
    lake = Lives()
    one, two = lake.push(1), lake.push(2)
    reborn(lake.fold)
    plan = lake.schedule([one, two])
    lake.fold.put(BlocksMissed((one.id,)))
    assert plan not in lake.state.plans
    assert set(lake.state.queue.places) == {two.id}
    assert not lake.state.owners


def test_a_replaced_block_comes_back_when_what_replaced_it_was_missed_and_only_then() -> None:
    lake = Lives()
    one, two = lake.push(1), lake.push(2)
    made = lake.merge([one, two])
    reborn(lake.fold)
    assert lake.fold.put(BlocksAdopted((one,))) == (Adopted(one.id, ""),)
    assert lake.fold.live() == {made.id}
    lake.fold.put(BlocksMissed((made.id,)))
    lake.fold.put(BlocksAdopted((one, two)))
    assert lake.fold.live() == {one.id, two.id}
    assert not lake.state.retired


@pytest.mark.parametrize("entry", [BlocksAdopted((segment(1),)), BlocksMissed(()), AdoptionEnded()])
def test_a_log_that_was_not_restored_adopts_nothing(
    entry: BlocksAdopted | BlocksMissed | AdoptionEnded,
) -> None:
    fold = Fold()
    assert fold.put(entry) == (Refused(Refusal.NOT_ADOPTING),)
    assert not fold.live()


def test_a_snapshot_of_an_adopting_state_says_so() -> None:
    fold = Fold()
    fold.put(BlocksAdded((segment(1),)))
    reborn(fold)
    fold.put(BlocksMissed((segment(1).id,)))
    fold.put(BlocksAdopted((segment(2),)))
    state, _ = snapshot.decode(snapshot.encode(fold.state, Head(fold.state.index, bytes(32))))
    assert state.adopting == (INCARNATION,)
    assert state.tally == fold.state.tally


def test_only_segments_are_registered() -> None:
    lake = Lives()
    made = lake.make_output(lake.schedule([lake.push(1)]), FencingToken(INCARNATION, 1))
    fold = Fold()
    fold.put(BlocksAdded((made,)))
    assert fold.live() == set()
