"""Plans that hold blocks too long, or always fail, give them back."""

from __future__ import annotations

import msgspec
import pytest

from maar.metastore.decide import rollbacks
from maar.metastore.records.effects import (
    Refused,
)
from maar.metastore.records.entries import (
    Entry,
    RollbacksScheduled,
)
from maar.model.ids import PlanId
from maar.model.plan import PlanState
from maar.model.refusal import Refusal
from maar.model.time import SECOND_NS
from maar.services.compact.rules import COMPACT
from maar.services.rules import Setback
from support.metastore.fold import Fold
from support.metastore.leader_term import W2, LeaderDecisions
from support.metastore.plan_steps import (
    begin,
    execute,
    lease_held,
    rollback_of,
    schedule_plan,
    survey,
    undone,
)
from support.metastore.rollback_steps import DELAY_S, HOLD_S, LEASE_S, POLICY, leader

# ── plans that hold blocks too long ────────────────────────────────────────────────────────────


def held_too_long(one: LeaderDecisions) -> list[Entry]:
    entries = rollbacks.held_too_long(one.fold.state, now=one.now)
    one.put(entries)
    return entries


@pytest.mark.parametrize("started", [False, True])
def test_a_plan_that_nobody_works_on_holds_its_blocks_no_longer_than_the_bound(
    started: bool,
) -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=True)
    execute(one, plan)
    if started:
        one.renew(lease_held(one, plan), started=True)
    one.wait(LEASE_S + HOLD_S)
    assert held_too_long(one) == []
    one.fold.now += 1
    assert len(held_too_long(one)) == 1
    assert one.plan(plan).state is PlanState.ROLLED_BACK
    (taker,) = set(one.fold.state.owners.values())
    assert one.plan(taker).inputs == one.plan(plan).inputs
    assert (taker.index, one.plan(taker).kind) == (one.fold.state.index, COMPACT)


def test_what_a_plan_held_is_at_no_index_free_for_anybody_else() -> None:
    """One entry ends the holder and begins the taker: every prefix of the log has an owner."""
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=True)
    begin(one, plan)
    one.wait(LEASE_S + HOLD_S + 1)
    (entry,) = rollbacks.held_too_long(one.fold.state, now=one.now)
    assert isinstance(entry, RollbacksScheduled)
    inputs = one.plan(plan).inputs
    effects = one.put([entry])
    assert [type(effect).__name__ for effect in effects] == [
        "AttemptEnded",
        "RolledBack",
        "RollbackScheduled",
        "Scheduled",
    ]
    assert set(one.fold.state.owners) == set(inputs)
    assert one.fold.state.queue.queued == 0
    assert rollback_of(one, plan).id == PlanId(one.fold.state.index, 0)
    assert one.fold.state.owners[inputs[0]] == PlanId(one.fold.state.index, 1)
    assert not one.plan(one.fold.state.owners[inputs[0]]).removable


def test_who_comes_back_in_time_keeps_what_he_holds() -> None:
    """The leader's belief was old: the fold refuses the fence, and with it whoever would take."""
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=True)
    execute(one, plan)
    one.wait(LEASE_S + HOLD_S + 1)
    entries = rollbacks.held_too_long(one.fold.state, now=one.now)
    assert execute(one, plan, W2).answer == "granted"
    refused = [effect.why for effect in one.put(entries) if isinstance(effect, Refused)]
    assert refused == [Refusal.OUTDATED, Refusal.INPUT_OWNED]
    assert set(one.fold.state.owners.values()) == {plan}


def test_a_plan_whose_blocks_are_not_due_to_be_merged_holds_nobody_up() -> None:
    one = LeaderDecisions(Fold(policy=msgspec.structs.replace(POLICY, hold_max_ns=0)))
    plan = schedule_plan(one, 1, 2, removable=True)  # three make a batch, or ten seconds
    begin(one, plan)
    one.fail(lease_held(one, plan))
    one.fold.now += 1
    assert held_too_long(one) == []
    one.wait(10)
    assert len(held_too_long(one)) == 1


def test_what_makes_no_batch_waits_again_where_it_waited() -> None:
    one = LeaderDecisions(Fold(policy=msgspec.structs.replace(POLICY, hold_max_ns=0)))
    plan = schedule_plan(one, 1, 2, 3, 4, removable=True)
    begin(one, plan)
    one.fail(lease_held(one, plan))
    one.fold.now += 1
    held_too_long(one)
    *batch, last = one.plan(plan).inputs
    assert set(one.fold.state.owners) == set(batch)
    (lane,) = one.fold.state.queue.lanes
    assert [item.block for item in one.fold.state.queue.items(lane)] == [last]


def test_the_bound_counts_from_a_reported_end() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=True)
    begin(one, plan)
    one.wait(3)
    one.fail(lease_held(one, plan))
    one.wait(HOLD_S)
    assert held_too_long(one) == []
    one.fold.now += 1
    assert len(held_too_long(one)) == 1


def test_a_plan_that_was_never_leased_is_taken_after_the_delay() -> None:
    one = leader()
    schedule_plan(one, 1, 2, removable=True)
    one.wait(DELAY_S)
    assert held_too_long(one) == []
    one.fold.now += 1
    assert len(held_too_long(one)) == 1


def test_a_live_lease_and_a_plan_that_stays_hold_their_blocks() -> None:
    one = leader()
    stays = schedule_plan(one, 1, 2, removable=False)
    begin(one, stays)
    one.wait(10_000)
    works = schedule_plan(one, 3, 4, removable=True)
    begin(one, works)
    for _ in range(100):
        one.wait(LEASE_S)
        one.renew(lease_held(one, works))
    assert held_too_long(one) == []


# ── plans that always fail ─────────────────────────────────────────────────────────────────────


def setback_of(one: LeaderDecisions, plan: PlanId) -> Setback | None:
    found = one.plan(plan)
    return one.fold.state.setback(found.kind, found.key)


@pytest.mark.parametrize("how", ["after it started", "before it started"])
def test_a_removable_plan_that_always_fails_comes_back_ever_more_slowly(how: str) -> None:
    one = leader(rollback_delay_ns=0, probe_ns=60 * SECOND_NS, probe_max_ns=3600 * SECOND_NS)
    pauses = []
    for number in range(8):
        plan = schedule_plan(one, 2 * number, 2 * number + 1, removable=True)
        if how == "after it started":
            begin(one, plan)
        else:
            execute(one, plan)
        one.fail(lease_held(one, plan))
        survey(one)
        undone(one, plan)
        setback = setback_of(one, plan)
        assert setback is not None
        pauses.append((setback.until - one.fold.now) // SECOND_NS)
        one.fold.now = setback.until
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    plan = schedule_plan(one, 100, 101, removable=True)
    begin(one, plan)
    one.complete(lease_held(one, plan))
    assert setback_of(one, plan) is None, "a success ends it"


def test_a_plan_that_nobody_came_for_is_no_setback() -> None:
    one = leader(rollback_delay_ns=0)
    plan = schedule_plan(one, 1, 2, removable=True)
    survey(one)
    assert setback_of(one, plan) is None
