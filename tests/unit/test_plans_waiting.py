"""The table "What waits for what" of docs/plans.md, row by row: each bound at its boundary."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from maar.metastore.decide import rollbacks
from maar.metastore.fold.plans import leftovers
from maar.metastore.records.effects import Cancelled, Leased, Refused
from maar.metastore.records.entries import AttemptKey, BlocksExpired, PlansScheduled
from maar.model.ids import BlockId, PlanId
from maar.model.plan import PlanSpec, PlanState
from maar.model.refusal import Refusal
from maar.model.time import SECOND_NS
from maar.ports.plans.board import Report
from maar.services.compact.rules import COMPACT
from support.metastore.fold import DAY_START_NS, SMALL, Fold, result
from support.metastore.leader_term import W1, W2, LeaderDecisions
from support.metastore.plan_steps import (
    begin,
    execute,
    lease_held,
    rollback_of,
    schedule_plan,
    survey,
    undone,
    why_skipped,
)

PAGE = Path(__file__).parents[2] / "docs" / "plans.md"
TESTS = Path(__file__).parents[1]
LEASE_S, HOLD_S, DELAY_S = 15, 60, 600
POLICY = msgspec.structs.replace(
    SMALL,
    lease_ns=LEASE_S * SECOND_NS,
    hold_max_ns=HOLD_S * SECOND_NS,
    rollback_delay_ns=DELAY_S * SECOND_NS,
    leftovers_ns=2700 * SECOND_NS,
)


def leader() -> LeaderDecisions:
    return LeaderDecisions(Fold(policy=POLICY))


def compaction_takes(one: LeaderDecisions) -> set[BlockId]:
    """What a worker that polls gets to merge, after the planner has looked for what is held."""
    one.put(rollbacks.held_too_long(one.fold.state, now=one.now))
    return {block for lease in one.poll(W2, 4) for block in one.plan(lease.plan).inputs}


def test_every_row_has_a_test_and_every_test_a_row() -> None:
    section = PAGE.read_text().partition("## What waits for what")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(test_\w+)`", section))
    here = {name for name in globals() if name.startswith("test_")}
    assert here - {"test_every_row_has_a_test_and_every_test_a_row"} <= named
    tests = "".join(file.read_text() for file in TESTS.rglob("test_*.py"))
    assert [name for name in sorted(named) if f"def {name}(" not in tests] == []


# ── retention ──────────────────────────────────────────────────────────────────────────────────


def test_retention_takes_a_block_of_a_pending_plan() -> None:
    for removable in (False, True):
        one = leader()
        plan = schedule_plan(one, 1, 2, 3, removable=removable)
        token = begin(one, plan)
        former, inputs = lease_held(one, plan), one.plan(plan).inputs
        metas = one.metas(*inputs)
        effects = one.put([BlocksExpired(DAY_START_NS + 10**12, inputs[:1])])
        assert Cancelled(plan) in effects
        assert one.fold.live() == set(inputs[1:])
        assert [block for block in inputs if one.fold.state.queue.place(block)] == [*inputs[1:]]
        (late,) = one.report(former, Report(plan, token, result(plan, token, metas)))
        assert isinstance(late, Refused)


# ── compaction ─────────────────────────────────────────────────────────────────────────────────


def test_compaction_leaves_a_removable_plan_under_a_live_lease() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, 3, removable=True)
    begin(one, plan)
    for _ in range(50):
        one.wait(LEASE_S)
        assert compaction_takes(one) == set()
        one.renew(lease_held(one, plan))
    one.wait(LEASE_S + HOLD_S + 1)
    assert compaction_takes(one) == set(one.plan(plan).inputs)


def test_compaction_takes_what_a_removable_plan_holds_that_nobody_works_on() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, 3, removable=True)
    begin(one, plan)
    one.fail(lease_held(one, plan))
    one.wait(HOLD_S)
    assert compaction_takes(one) == set()
    one.fold.now += 1
    before = one.fold.state.index
    assert compaction_takes(one) == set(one.plan(plan).inputs), "in the same round"
    assert one.plan(plan).state is PlanState.ROLLED_BACK
    assert rollback_of(one, plan).id == PlanId(before + 1, 0), "fenced and freed in one entry"


def test_compaction_takes_what_a_removable_plan_holds_that_was_never_leased() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, 3, removable=True)
    one.wait(DELAY_S)
    assert one.put(rollbacks.held_too_long(one.fold.state, now=one.now)) == []
    assert one.plan(plan).state is PlanState.REQUESTED
    one.fold.now += 1
    assert compaction_takes(one) == set(one.plan(plan).inputs)


def test_compaction_leaves_a_plan_that_stays() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, 3, removable=False)
    inputs = one.plan(plan).inputs
    for _ in range(2):  # it fails at its limit
        begin(one, plan)
        one.fail(lease_held(one, plan))
    one.wait(100 * DELAY_S)
    one.set_aside()
    children = {one.fold.state.owners[block] for block in inputs}
    assert len(children) == 2, "it is divided, and its parts own what it owned"
    for child in children:
        assert one.plan(child).parent == plan


# ── any two plans ──────────────────────────────────────────────────────────────────────────────


def test_no_plan_takes_a_block_that_another_owns() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, 3, removable=True)
    found = one.plan(plan)
    (effect,) = one.put([PlansScheduled((PlanSpec(COMPACT, False, found.key, found.inputs, 2),))])
    assert isinstance(effect, Refused)
    assert effect.why is Refusal.INPUT_OWNED


# ── clean ──────────────────────────────────────────────────────────────────────────────────────


def test_clean_leaves_a_removable_plan_until_its_lease_and_the_delay_are_over() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, 3, removable=True)
    one.wait(DELAY_S)
    assert why_skipped(one, plan) == ""
    begin(one, plan)
    one.wait(LEASE_S)
    assert why_skipped(one, plan) == "live_lease"
    one.fold.now += 1
    assert why_skipped(one, plan) == ""
    young = schedule_plan(one, 4, 5, 6, removable=True)
    one.wait(DELAY_S)
    one.fold.now -= 1
    assert why_skipped(one, young) == "too_young"


def test_clean_leaves_a_plan_that_stays() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, 3, removable=False)
    one.wait(100 * DELAY_S)
    assert why_skipped(one, plan) == "immutable"


def test_clean_leaves_a_rollback_that_somebody_executes() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, 3, removable=False)
    begin(one, plan)
    one.fail(lease_held(one, plan))
    survey(one)
    rollback = rollback_of(one, plan).id
    assert execute(one, rollback, W1).answer == "granted"
    assert execute(one, rollback, W2).answer == "lease_live"
    one.wait(LEASE_S)
    one.fold.now += 1
    assert execute(one, rollback, W2).answer == "granted"


# ── rollbacks ──────────────────────────────────────────────────────────────────────────────────


def test_a_plan_that_is_executed_finds_a_rollback_that_somebody_executes() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, 3, removable=False)
    begin(one, plan)
    one.fail(lease_held(one, plan))
    survey(one)
    execute(one, rollback_of(one, plan).id, W1)
    assert execute(one, plan, W2).answer == "lease_live"
    assert not [lease for lease in one.poll(W2, 4) if isinstance(lease, Leased)]
    one.wait(LEASE_S)
    one.fold.now += 1
    assert execute(one, plan, W2).answer == "granted"


def test_a_rollback_leaves_a_later_attempt_to_the_next_one() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, 3, removable=False)
    first = begin(one, plan, W1)
    one.wait(LEASE_S + 1)
    second = begin(one, plan, W2)
    one.fail(lease_held(one, plan))
    assert rollback_of(one, plan).tokens == (first,)
    assert survey(one).wishes == (), "one at a time"
    one.wait(LEASE_S + 1)
    undone(one, plan)
    assert survey(one).wishes[0].tokens == (second,)


def test_the_last_sweep_waits_for_tasks_that_nobody_can_reach() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, 3, removable=True)
    token = begin(one, plan)
    one.fail(lease_held(one, plan))

    def due() -> list[AttemptKey]:
        state = one.fold.state
        span_ns = POLICY.leftovers_ns
        return leftovers.due(
            state.leftovers, now=one.now, leftovers_ns=span_ns, resting=(), limit=9
        )

    one.fold.now += POLICY.leftovers_ns
    assert due() == []
    one.fold.now += 1
    assert due() == [AttemptKey(plan, token)]
