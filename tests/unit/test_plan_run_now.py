"""A plan that somebody wants to be carried out now: the next worker that can do it gets it."""

from __future__ import annotations

import pytest

from maar.metastore.decide import execution, schedule
from maar.metastore.decide.schedule import Wish
from maar.metastore.records.effects import Leased
from maar.metastore.records.entries import PlansLeased, PlansScheduled
from maar.model.ids import PlanId, TenantId, WorkerId
from maar.model.plan import PlanSpec, PlanState, QueueKey
from maar.ports.plans.board import Answer, Execution
from maar.services.compact.rules import COMPACT
from maar.services.ingest.rules import INGEST
from maar.services.logcompact.rules import LOGCOMPACT
from support.metastore.leader_term import W1, W2, LeaderDecisions
from support.metastore.plan_steps import begin, execute, lease_held, schedule_plan, survey, undone
from support.metastore.schedule_steps import leader_with, plans_of


def run_now(leader: LeaderDecisions, plan: PlanId, *, workers: int = 1) -> Execution:
    state = leader.fold.state
    leader.put(execution.run_now_entries(state, plan, now=leader.now))
    return execution.run_now_answer(state, plan, now=leader.now, workers=workers)


def failed_once(leader: LeaderDecisions, *numbers: int) -> PlanId:
    """A plan that rests after a failure."""
    plan = schedule_plan(leader, *numbers, removable=False)
    begin(leader, plan)
    leader.fail(lease_held(leader, plan))
    assert leader.plan(plan).eligible_at > leader.now
    return plan


def test_it_goes_before_plans_that_came_first() -> None:
    leader = LeaderDecisions()
    first, second, third = (schedule_plan(leader, n, n + 1, removable=False) for n in (1, 3, 5))
    told = run_now(leader, third)
    assert (told.answer, told.workers) == (Answer.ASKED, 1)
    assert plans_of(leader.poll()) == [third]
    assert plans_of(leader.poll(W2, 2)) == [first, second]


def test_it_is_asked_once_and_urgent_until_somebody_has_it() -> None:
    leader = LeaderDecisions()
    plan = schedule_plan(leader, 1, 2, removable=False)
    run_now(leader, plan)
    index = leader.fold.state.index
    assert run_now(leader, plan).answer is Answer.ASKED
    assert leader.fold.state.index == index, "said twice, noted once"
    (lease,) = leader.poll()
    assert not leader.plan(plan).urgent
    leader.fail(lease)
    assert leader.poll(W2) == [], "it rests again: one attempt was asked for"


def test_a_plan_that_rests_after_a_failure_does_not_rest_on() -> None:
    leader = LeaderDecisions()
    plan = failed_once(leader, 1, 2)
    assert leader.poll(W2) == []
    assert run_now(leader, plan).answer is Answer.ASKED
    assert plans_of(leader.poll(W2)) == [plan]


def test_a_plan_that_has_failed_runs_alone() -> None:
    leader = LeaderDecisions()
    plan = failed_once(leader, 1, 2)
    healthy = [schedule_plan(leader, n, n + 1, removable=False) for n in (3, 5)]
    run_now(leader, plan)
    assert plans_of(leader.poll(W1, 4)) == [plan], "and nothing beside it"
    assert plans_of(leader.poll(W2, 4)) == healthy


def test_a_busy_worker_is_drained_for_one_that_has_failed() -> None:
    leader = LeaderDecisions()
    schedule_plan(leader, 3, 4, removable=False)
    (busy,) = leader.start_plans(W1, 1)
    plan = failed_once(leader, 1, 2)
    waiting = schedule_plan(leader, 5, 6, removable=False)
    run_now(leader, plan)
    assert leader.poll(W1, 3) == []
    leader.complete(busy)
    assert plans_of(leader.poll(W1, 4)) == [plan]
    assert plans_of(leader.poll(W2, 4)) == [waiting]


def test_only_a_worker_of_its_kind_gets_it() -> None:
    leader = LeaderDecisions()
    plan = schedule_plan(leader, 1, 2, removable=False)
    run_now(leader, plan)
    assert leader.hand_out(Wish(W1, 4, (LOGCOMPACT,))) == []
    assert plans_of(leader.hand_out(Wish(W2, 4, (COMPACT,)))) == [plan]


def test_nobody_gets_it_twice_in_a_round() -> None:
    leader = LeaderDecisions()
    plan = schedule_plan(leader, 1, 2, removable=False)
    run_now(leader, plan)
    (entry,) = schedule.assign(leader.fold.state, [Wish(W1, 2), Wish(W2, 2)], now=leader.now)
    assert isinstance(entry, PlansLeased)
    assert [(grant.plan, grant.worker) for grant in entry.grants] == [(plan, W1)]


@pytest.mark.parametrize("guard", [True, False])
def test_a_live_lease_is_respected_with_and_without_the_guard(guard: bool) -> None:
    leader = leader_with(execution_guard=guard)
    plan = schedule_plan(leader, 1, 2, removable=False)
    begin(leader, plan, W1)
    told = run_now(leader, plan)
    assert (told.answer, told.holder) == (Answer.LEASE_LIVE, W1)
    assert not leader.plan(plan).urgent
    assert leader.poll(W2) == []


def test_a_removable_plan_that_has_begun_must_be_rolled_back() -> None:
    leader = LeaderDecisions()
    plan = schedule_plan(leader, 1, 2, removable=True)
    begin(leader, plan)
    leader.fail(lease_held(leader, plan))
    assert run_now(leader, plan).answer is Answer.MUST_BE_ROLLED_BACK
    assert leader.poll(W2) == []
    leader.wait(3600)
    survey(leader)
    assert run_now(leader, plan).answer is Answer.MUST_BE_ROLLED_BACK


def test_one_at_its_limit_is_excluded() -> None:
    leader = LeaderDecisions()
    plan = failed_once(leader, 1)
    leader.pass_rest()
    begin(leader, plan, W2)
    undone(leader, plan, W2)  # what the first attempt left
    leader.fail(lease_held(leader, plan))
    leader.set_aside()
    assert leader.plan(plan).state is PlanState.EXCLUDED
    assert run_now(leader, plan).answer is Answer.EXCLUDED


def test_what_has_ended_is_told_as_to_an_executor() -> None:
    leader = LeaderDecisions()
    assert run_now(leader, PlanId(99, 0)).answer is Answer.NOT_FOUND
    plan = schedule_plan(leader, 1, 2, removable=False)
    begin(leader, plan)
    leader.complete(lease_held(leader, plan))
    told = run_now(leader, plan)
    assert told.answer is Answer.ALREADY_COMPLETED
    assert told.result is not None


def test_without_a_worker_it_says_so() -> None:
    leader = LeaderDecisions()
    plan = schedule_plan(leader, 1, 2, removable=False)
    told = run_now(leader, plan, workers=leader.worker_registry.able(COMPACT, leader.now))
    assert told.workers == 0
    assert "none was heard of lately" in told.sentence
    leader.hand_out(Wish(W1, 0, (COMPACT,)))
    assert leader.worker_registry.able(COMPACT, leader.now) == 1
    assert leader.worker_registry.able(INGEST, leader.now) == 0
    leader.wait(31)
    assert leader.worker_registry.able(COMPACT, leader.now) == 0


def test_no_worker_carries_out_a_bulk_write() -> None:
    leader = LeaderDecisions()
    key = QueueKey("main", TenantId("acme"), 0, 0)  # type: ignore[arg-type]
    leader.put([PlansScheduled((PlanSpec(INGEST, True, key, (), 2),))])
    (plan,) = leader.fold.state.plans
    told = run_now(leader, plan)
    assert told.answer is Answer.WRONG_KIND
    assert "only by whoever has its source" in told.sentence
    assert not leader.plan(plan).urgent


def test_whoever_says_what_it_can_do_is_refused_what_it_cannot() -> None:
    leader = LeaderDecisions()
    plan = schedule_plan(leader, 1, 2, removable=False)
    state, worker = leader.fold.state, WorkerId("joiner")
    kinds = (LOGCOMPACT,)
    assert execution.entries(state, plan, worker, now=leader.now, kinds=kinds) == []
    told = execution.answer(state, plan, worker, now=leader.now, kinds=kinds)
    assert told.answer is Answer.WRONG_KIND
    assert told.sentence == (
        f"plan {plan} is of the kind compact, and whoever asks for it carries out logcompact only"
    )
    assert execute(leader, plan).answer is Answer.GRANTED, "who says nothing is believed"
    assert isinstance(lease_held(leader, plan), Leased)
