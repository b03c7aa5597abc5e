"""Cleaning: when it is due, what it takes and what it leaves alone."""

from __future__ import annotations

import pytest

from maar.metastore.decide.jobs import JobBook, moment
from maar.metastore.decide.rollbacks import AT_ONCE_MAX
from maar.metastore.records.effects import (
    Refused,
)
from maar.metastore.records.entries import (
    BlocksExpired,
    PlanFailed,
)
from maar.model.plan import AttemptEnd, PlanState
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.plans.board import Report
from maar.services.clean.rules import CLEANING
from maar.services.rules import JobState, PlanScope
from support.metastore.fold import DAY_START_NS, result
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
from support.metastore.rollback_steps import DELAY_S, LEASE_S, POLICY, leader

# ── what a cleaning leaves alone ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("started", [None, False, True], ids=["requested", "granted", "inflight"])
def test_a_removable_plan_is_too_young_until_the_delay_is_over(started: bool | None) -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=True)
    if started is not None:
        execute(one, plan)
    if started:
        one.renew(lease_held(one, plan), started=True)
    one.wait(DELAY_S)
    one.fold.now -= 1
    assert why_skipped(one, plan) == "too_young"
    one.fold.now += 1
    (wish,) = survey(one).wishes
    assert wish.target == plan
    assert one.plan(plan).state is PlanState.ROLLED_BACK


def test_a_live_lease_is_left_alone_to_its_last_nanosecond() -> None:
    one = leader(rollback_delay_ns=0)
    plan = schedule_plan(one, 1, 2, removable=True)
    begin(one, plan)
    one.fold.now += POLICY.lease_ns
    assert why_skipped(one, plan) == "live_lease"
    assert survey(one).wishes == ()
    one.fold.now += 1
    assert why_skipped(one, plan) == ""


def test_a_plan_that_stays_is_left_alone_and_only_its_dead_attempts_are_swept() -> None:
    one = leader(rollback_delay_ns=0)
    plan = schedule_plan(one, 1, 2, removable=False)
    one.wait(10_000)
    assert why_skipped(one, plan) == "immutable"
    assert survey(one).wishes == ()
    dead = begin(one, plan)
    assert why_skipped(one, plan) == "live_lease"
    one.fail(lease_held(one, plan))
    (wish,) = survey(one).wishes
    assert (wish.target, wish.tokens) == (plan, (dead,))
    assert one.plan(plan).state is PlanState.REQUESTED
    assert why_skipped(one, plan) == "immutable", "the plan itself stays"
    undone(one, plan)
    assert survey(one).wishes == ()


def test_an_expired_lease_of_a_plan_that_stays_is_fenced_and_its_attempt_rolled_back() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    dead = begin(one, plan)
    former = lease_held(one, plan)
    one.wait(LEASE_S + 1)
    (wish,) = survey(one).wishes
    assert wish.tokens == (dead,)
    inputs = one.metas(*one.plan(plan).inputs)
    (effect,) = one.report(former, Report(plan, dead, result(plan, dead, inputs)))
    assert isinstance(effect, Refused)


def test_a_plan_that_kills_its_workers_is_not_spared_because_a_cleaning_comes_first() -> None:
    """Else nobody would ever count its failures (S11)."""
    one = leader(failure_limit=2)
    plan = schedule_plan(one, 1, 2, removable=False)
    for failures in (1, 2):
        begin(one, plan)
        one.wait(LEASE_S + 1)
        survey(one)
        last = one.plan(plan).attempts[-1]
        assert (last.end, last.counted) == (AttemptEnd.EXPIRED, True)
        assert one.plan(plan).failures == failures
        undone(one, plan)
    (entry,) = one.set_aside()
    assert type(entry).__name__ == "PlanBisected"


def test_a_worker_that_could_not_be_heard_is_not_to_blame() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    begin(one, plan)
    one.wait(LEASE_S + 1)
    one.worker_registry.hearing_since = one.now
    survey(one)
    assert (one.plan(plan).failures, one.plan(plan).excused) == (0, 1)


def test_dead_attempts_of_a_plan_that_has_ended_are_swept() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    dead = begin(one, plan, W1)
    one.wait(LEASE_S + 1)
    one.put([PlanFailed(plan, dead, "x", LeaseTime(0))])
    begin(one, plan, W2)
    blocks = one.plan(plan).inputs
    one.put([BlocksExpired(DAY_START_NS + 10**15, blocks)])
    assert one.plan(plan).state is PlanState.CANCELLED
    undone(one, plan)  # the one that came with the second grant
    (wish,) = survey(one).wishes
    assert wish.target == plan
    assert wish.tokens == (one.plan(plan).attempts[-1].token,), "a later token gets another one"
    undone(one, plan)
    assert one.fold.state.leftovers.dead == {}


def test_an_entry_of_a_cleaning_has_a_bound_and_the_next_takes_the_rest() -> None:
    one = leader(rollback_delay_ns=0)
    count = AT_ONCE_MAX + 3
    for number in range(count):
        schedule_plan(one, number, removable=True)
    one.wait(1)
    assert len(survey(one).wishes) == AT_ONCE_MAX
    assert len(survey(one).wishes) == 3
    assert len(one.fold.state.plans.rollbacks) == count


# ── when a cleaning is due ─────────────────────────────────────────────────────────────────────


def due(one: LeaderDecisions) -> bool:
    state, at = one.fold.state, moment(one.fold.state, one.now)
    return any(
        JobBook().let_through(state, spec, at) for spec in CLEANING.due(state, 0, now=one.now)
    )


def test_a_cleaning_is_due_when_there_is_something_to_clean() -> None:
    one = leader()
    assert not due(one)
    schedule_plan(one, 1, 2, removable=True)
    one.wait(DELAY_S - 1)
    assert not due(one)
    one.wait(1)
    assert due(one)
    survey(one)
    assert due(one), "the rollback waits to be executed"


def test_a_plan_that_stays_is_cleaned_up_after_when_no_worker_comes_any_more() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    execute(one, plan)
    one.wait(LEASE_S + 1000)
    assert not due(one), "it had not begun to write"
    begin(one, plan, W2)
    one.wait(LEASE_S + 60)
    one.fold.now -= 1
    assert not due(one), "a worker may still come"
    one.fold.now += 1
    assert due(one)
    (wish,) = survey(one).wishes
    assert wish.target == plan
    undone(one, plan)
    assert not due(one)


def test_a_rollback_that_rests_after_a_failure_is_nothing_to_clean() -> None:
    """Else a cleaning would come in vain, minute by minute, for as long as it is excluded."""
    one = leader(rollback_delay_ns=0)
    plan = schedule_plan(one, 1, 2, removable=True)
    survey(one)
    rollback = rollback_of(one, plan)
    execute(one, rollback.id)
    until = LeaseTime(one.fold.now + 100 * SECOND_NS)
    one.put([PlanFailed(rollback.id, lease_held(one, rollback.id).token, "x", until)])
    assert not list(CLEANING.due(one.fold.state, 0, now=one.now))
    one.wait(100)
    assert due(one)


def test_the_job_of_cleaning_counts_from_when_there_was_something_to_clean() -> None:
    one = leader()
    (tenant,) = CLEANING.job_tenants(one.fold.state)
    (job,) = CLEANING.job_ids(one.fold.state, tenant)
    schedule = CLEANING.default_schedule(one.fold.policy, job)
    assert schedule.interval_ns == one.fold.policy.clean_interval_ns

    def found() -> JobState:
        state = CLEANING.job(one.fold.state, job, schedule, now=one.now)
        assert state is not None
        return state

    one.wait(10 * DELAY_S)
    assert found().nothing, "no alarm, however long ago the last cleaning was"
    schedule_plan(one, 1, 2, removable=True)
    since = one.now
    one.wait(DELAY_S)
    assert (found().nothing, found().waiting_since) == ("", since)


def test_on_demand_only_means_never_by_itself() -> None:
    one = leader(clean_interval_ns=0)
    schedule_plan(one, 1, 2, removable=True)
    one.wait(100 * DELAY_S)
    assert not due(one)
    assert not isinstance(CLEANING.on_request(one.fold.state, PlanScope(), now=one.now), str)
