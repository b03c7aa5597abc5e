"""A cleaning that keeps failing is tried again and again: nobody else would clean in its place."""

from __future__ import annotations

from maar.metastore.decide import wishes
from maar.metastore.decide.schedule import Wish, probes
from maar.metastore.records.effects import Leased
from maar.metastore.records.entries import PlanExcluded
from maar.metastore.views import reads
from maar.model.ids import PlanId
from maar.model.plan import ROLLBACK, Account, PlanResult, PlanState
from maar.ports.plans.board import Answer, Report, SchedulePlan
from maar.services.clean.rules import CLEAN
from support.metastore.leader_term import W1, W2, LeaderDecisions
from support.metastore.plan_steps import begin, execute, schedule_plan
from support.metastore.schedule_steps import leader_with

OFTEN = 9  # three times the limit


def cleaner(leader: LeaderDecisions) -> list[Leased]:
    return leader.hand_out(Wish(W1, 1, (ROLLBACK, CLEAN)))


def due(leader: LeaderDecisions) -> PlanId:
    """Somebody died while he wrote, so that a cleaning is due; it is handed out."""
    plan = schedule_plan(leader, 1, 2, removable=False)
    begin(leader, plan, W2)
    leader.wait(3600)
    (lease,) = cleaner(leader)
    assert leader.plan(lease.plan).kind == CLEAN
    leader.fail(lease)
    return lease.plan


def failed_often(leader: LeaderDecisions) -> PlanId:
    plan = due(leader)
    for _ in range(OFTEN - 1):
        leader.pass_rest()
        leader.keep_house()
        (lease,) = cleaner(leader)
        assert lease.plan == plan
        leader.renew(lease, started=True)
        leader.fail(lease)
    return plan


def test_it_is_never_set_aside() -> None:
    leader = LeaderDecisions()
    plan = failed_often(leader)
    assert leader.plan(plan).failures == OFTEN
    assert leader.plan(plan).state is PlanState.REQUESTED
    leader.pass_rest()
    (lease,) = cleaner(leader)
    nothing = PlanResult(CLEAN, (), Account(0, 0, 0))
    leader.report(lease, Report(lease.plan, lease.token, nothing))
    assert leader.plan(plan).state is PlanState.COMPLETED


def test_an_executor_that_dies_each_time_does_not_end_it_either() -> None:
    leader = leader_with(failure_limit=1)
    plan = due(leader)
    for _ in range(OFTEN):
        leader.pass_rest()
        leader.keep_house()
        (lease,) = cleaner(leader)
        assert lease.plan == plan
        leader.renew(lease, started=True)
        leader.wait(60)
    assert leader.plan(plan).state is PlanState.INFLIGHT


def test_by_hand_nobody_waits_for_its_rest() -> None:
    leader = LeaderDecisions()
    plan = failed_often(leader)
    request = SchedulePlan(CLEAN)
    leader.put(wishes.entries(leader.fold.state, request, now=leader.now))
    told = wishes.answer([], leader.fold.state, request, now=leader.now)
    assert told.plan == plan
    assert execute(leader, plan, W2).answer is Answer.GRANTED


def test_meanwhile_a_plan_that_was_set_aside_is_probed() -> None:
    leader = leader_with(failure_limit=1)
    plan = due(leader)
    bad = schedule_plan(leader, 5, removable=False)
    leader.put([PlanExcluded(bad, None, leader.now)])
    leader.pass_rest()
    (cleaning,) = cleaner(leader)
    assert cleaning.plan == plan
    assert [each.id for each in probes(leader.fold.state, leader.now)] == [bad]


def test_the_status_names_it_among_what_fails() -> None:
    leader = LeaderDecisions()
    plan = failed_often(leader)
    assert plan in [each.id for each in leader.fold.state.plans.values() if reads.failing(each)]
