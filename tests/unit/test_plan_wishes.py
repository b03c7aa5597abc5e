"""A plan that somebody asks for is scheduled and not executed; the same wish finds the same one."""

from __future__ import annotations

import pytest

from maar.metastore.decide import wishes
from maar.metastore.records.entries import PlanBisected, PlansArchived
from maar.model.errors import InvalidInput, Overloaded
from maar.model.plan import PlanKind
from maar.ports.plans.board import ScheduledPlan, SchedulePlan
from maar.services.clean.rules import CLEAN
from maar.services.compact.rules import COMPACT
from support.metastore.leader_term import LeaderDecisions
from support.metastore.plan_steps import begin, lease_held
from support.metastore.schedule_steps import leader_with


def asked(one: LeaderDecisions, **wish: object) -> ScheduledPlan:
    given = {"kind": COMPACT, "shard": 1, **wish}
    request = SchedulePlan(**given)  # type: ignore[arg-type]
    effects = one.put(wishes.entries(one.fold.state, request, now=one.now))
    return wishes.answer(effects, one.fold.state, request, now=one.now)


def completed(one: LeaderDecisions, told: ScheduledPlan) -> None:
    assert told.plan is not None
    begin(one, told.plan)
    one.complete(lease_held(one, told.plan))


def test_a_plan_is_scheduled_due_or_not_and_not_executed() -> None:
    one = LeaderDecisions()
    blocks = one.add(1, 2)
    told = asked(one)
    assert told.plan is not None
    assert (told.kind, told.state, told.created) == (COMPACT, "requested", True)
    assert one.plan(told.plan).inputs == tuple(blocks)
    assert one.plan(told.plan).lease is None


def test_the_same_scope_is_the_same_plan_while_one_is_pending() -> None:
    one = LeaderDecisions()
    one.add(1, 2)
    first = asked(one)
    one.add(3, 4)
    second = asked(one)
    assert (second.plan, second.created) == (first.plan, False)
    completed(one, first)
    third = asked(one)
    assert third.created
    assert third.plan != first.plan


def test_another_scope_is_another_plan() -> None:
    one = LeaderDecisions()
    one.add(1, 2)
    one.add(3, 4, shard=2)
    first, second = asked(one), asked(one, shard=2)
    assert first.created
    assert second.created
    assert first.plan != second.plan


def test_the_same_request_is_the_same_plan_also_when_that_has_ended() -> None:
    one = LeaderDecisions()
    one.add(1, 2)
    first = asked(one, request_id="dag-7")
    one.add(3, 4)
    completed(one, first)
    again = asked(one, request_id="dag-7")
    assert (again.plan, again.state, again.created) == (first.plan, "completed", False)
    other = asked(one, request_id="dag-8")
    assert other.created
    assert other.plan != first.plan


def test_a_request_is_remembered_as_long_as_its_plan() -> None:
    one = LeaderDecisions()
    one.add(1, 2)
    first = asked(one, request_id="dag-7")
    one.add(3, 4)
    completed(one, first)
    assert first.plan is not None
    one.put([PlansArchived((first.plan,))])
    assert asked(one, request_id="dag-7").created


def test_nothing_to_do_is_a_sentence() -> None:
    told = asked(LeaderDecisions())
    assert told.plan is None
    assert "no block waits" in told.why
    assert asked(LeaderDecisions(), kind=PlanKind("rollback")).why.startswith("a rollback is asked")


def test_one_cleaning_is_pending_at_a_time() -> None:
    one = LeaderDecisions()
    first, second = asked(one, kind=CLEAN, shard=0), asked(one, kind=CLEAN, shard=0)
    assert (first.created, second.created) == (True, False)
    assert first.plan == second.plan


def test_a_kind_that_there_is_not_is_wrong_use() -> None:
    with pytest.raises(InvalidInput, match="'brew' is not a kind of plan; there are compact"):
        asked(LeaderDecisions(), kind=PlanKind("brew"))
    with pytest.raises(InvalidInput, match="at most 200"):
        asked(LeaderDecisions(), request_id="x" * 201)


def test_a_full_schedule_is_told() -> None:
    one = leader_with(plans_max=1)
    one.add(1, 2)
    one.add(3, 4, shard=2)
    asked(one)
    with pytest.raises(Overloaded):
        asked(one, shard=2)


def test_a_request_that_found_a_plan_of_its_scope_finds_it_again_when_that_has_ended() -> None:
    one = LeaderDecisions()
    one.add(1, 2)
    first = asked(one)
    met = asked(one, request_id="dag-7")
    assert (met.plan, met.created) == (first.plan, False)
    one.add(3, 4)
    completed(one, first)
    again = asked(one, request_id="dag-7")
    assert (again.plan, again.state, again.created) == (first.plan, "completed", False)
    assert asked(one, request_id="dag-8").created


def test_a_request_is_noted_once() -> None:
    one = LeaderDecisions()
    one.add(1, 2)
    asked(one, request_id="dag-1")
    asked(one, request_id="dag-2")
    index = one.fold.state.index
    asked(one, request_id="dag-1")
    asked(one, request_id="dag-2")
    assert one.fold.state.index == index


def test_a_plan_remembers_the_last_requests_that_found_it() -> None:
    one = LeaderDecisions()
    one.add(1, 2)
    first = asked(one, request_id="mine")
    for number in range(40):
        asked(one, request_id=f"dag-{number}")
    assert first.plan is not None
    plan = one.plan(first.plan)
    assert plan.other_requests == tuple(f"dag-{number}" for number in range(8, 40))
    assert plan.request_id == "mine"


def test_the_halves_of_a_plan_answer_no_request_of_it() -> None:
    one = LeaderDecisions()
    one.add(1, 2)
    first = asked(one, request_id="dag-7")
    asked(one, request_id="dag-8")
    assert first.plan is not None
    one.put([PlanBisected(first.plan, None, 1)])
    for request in ("dag-7", "dag-8"):
        again = asked(one, request_id=request)
        assert (again.plan, again.state) == (first.plan, "cancelled")
