"""Who may execute a plan that is named by its id: refusals in their order, and the fence."""

from __future__ import annotations

import msgspec
import pytest

from maar.metastore.decide import execution, schedule
from maar.metastore.decide.schedule import Wish
from maar.metastore.records.effects import AttemptEnded, Completed, Leased, Refused
from maar.metastore.records.entries import PlanBisected, PlanExcluded, PlansLeased
from maar.metastore.state.digest import digest
from maar.metastore.state.timeline import NEVER
from maar.metastore.views import reads
from maar.model.ids import PlanId
from maar.model.plan import AttemptEnd, PlanState
from maar.model.refusal import Refusal
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime
from maar.ports.plans.board import Report
from support.lake.fold_and_store import WatchedFold
from support.metastore.fold import SMALL, Fold, result
from support.metastore.leader_term import W1, W2, W3, LeaderDecisions
from support.metastore.plan_steps import (
    begin,
    execute,
    lease_held,
    rollback_of,
    schedule_plan,
    survey,
    undone,
)

LEASE_S = SMALL.lease_ns // SECOND_NS
YEAR_NS = 365 * DAY_NS


def leader(**policy: object) -> LeaderDecisions:
    return LeaderDecisions(Fold(policy=msgspec.structs.replace(SMALL, **policy)))


def both_kinds() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("removable", [False, True], ids=["immutable", "removable"])


# ── a live lease ───────────────────────────────────────────────────────────────────────────────


@both_kinds()
@pytest.mark.parametrize("started", [False, True])
def test_a_live_lease_is_refused_with_its_holder(removable: bool, started: bool) -> None:
    """It comes first: a removable plan that is inflight is not told to be rolled back yet."""
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=removable)
    assert execute(one, plan, W1).answer == "granted"
    if started:
        one.renew(lease_held(one, plan), started=True)
    one.wait(5)
    seen = execute(one, plan, W2)
    assert (seen.answer, seen.holder) == ("lease_live", W1)
    assert seen.seconds_left == pytest.approx(LEASE_S - 5)
    assert "w1 executes plan" in seen.sentence


def test_a_lease_is_live_to_its_last_nanosecond() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=True)
    execute(one, plan, W1)
    one.fold.now += SMALL.lease_ns
    assert execute(one, plan, W2).answer == "lease_live"
    one.fold.now += 1
    assert execute(one, plan, W2).answer == "granted", "it was leased and never started"
    assert one.plan(plan).attempts[0].end is AttemptEnd.EXPIRED


def test_the_same_worker_that_asks_again_gets_the_same_lease() -> None:
    """The answer to its first wish was lost; also the rollback that came with it."""
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    begin(one, plan, W2)
    one.fail(lease_held(one, plan))
    assert execute(one, plan, W1).answer == "granted"
    first = reads.leased_plan(one.fold.state, plan)
    one.wait(10)
    assert execute(one, plan, W1).answer == "granted"
    again = reads.leased_plan(one.fold.state, plan)
    assert (again.token, again.rollbacks) == (first.token, first.rollbacks)
    assert len(again.rollbacks) == 1
    one.wait(10)
    assert execute(one, plan, W2).answer == "lease_live", "it begins anew with the second answer"


def test_a_worker_that_has_started_does_not_get_its_plan_twice() -> None:
    """Two jobs of an orchestrator may call themselves the same: they must not share a token."""
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    begin(one, plan, W1)
    assert execute(one, plan, W1).answer == "lease_live"


def test_of_two_that_ask_in_one_round_the_fold_chooses_the_first() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    state, now = one.fold.state, one.now
    both = [
        *execution.entries(state, plan, W1, now=now),
        *execution.entries(state, plan, W2, now=now),
    ]
    effects = one.put(both)
    assert [effect.worker for effect in effects if isinstance(effect, Leased)] == [W1]
    assert execution.answer(state, plan, W1, now=now).answer == "granted"
    assert execution.answer(state, plan, W2, now=now).answer == "lease_live"


def test_a_clock_that_is_a_year_ahead_ends_no_lease() -> None:
    fold = WatchedFold(policy=SMALL)
    one = LeaderDecisions(fold)
    plan = schedule_plan(one, 1, 2, removable=True)
    begin(one, plan, W1)
    fold.clock.wall += YEAR_NS
    one.add(3)
    assert execute(one, plan, W2).answer == "lease_live"
    assert survey(one).wishes == ()
    inputs = one.metas(*one.plan(plan).inputs)
    done = result(plan, lease_held(one, plan).token, inputs)
    effects = one.report(lease_held(one, plan), Report(plan, lease_held(one, plan).token, done))
    assert isinstance(effects[0], Completed)


# ── removable plans ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ends", ["fails", "expires"])
def test_a_removable_plan_that_has_started_is_never_executed_again(ends: str) -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=True)
    begin(one, plan, W1)
    if ends == "fails":
        one.fail(lease_held(one, plan))
        assert one.plan(plan).state is PlanState.INFLIGHT, "it is not requested again"
    one.wait(LEASE_S + 1)
    seen = execute(one, plan, W2)
    assert seen.answer == "must_be_rolled_back"
    assert f"maar plans rollback {plan}" in seen.sentence
    one.wait(10_000)
    one.set_aside()
    one.keep_house()
    wishes = [Wish(W2, 4)]
    assert schedule.assign(one.fold.state, wishes, now=one.now) == [], "no poll offers it"
    assert one.plan(plan).state is PlanState.INFLIGHT, "nor is it divided or excluded"


@pytest.mark.parametrize("started", [False, True])
def test_a_plan_with_a_rollback_is_not_executed_even_if_it_was_only_requested(
    started: bool,
) -> None:
    one = leader(rollback_delay_ns=0)
    plan = schedule_plan(one, 1, 2, removable=True)
    if started:
        begin(one, plan)
        one.wait(LEASE_S + 1)
    survey(one)
    seen = execute(one, plan, W2)
    assert seen.answer == "must_be_rolled_back"
    assert str(rollback_of(one, plan).id) in seen.sentence
    undone(one, plan)
    assert execute(one, plan, W2).answer == "rolled_back"


def test_a_grant_that_an_old_leader_prepared_is_refused_by_the_fold() -> None:
    """The check is in the fold, not only in the decision before it."""
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=True)
    (grant,) = execution.entries(one.fold.state, plan, W1, now=one.now)
    begin(one, plan, W2)
    one.fail(lease_held(one, plan))
    (effect,) = one.put([grant])
    assert isinstance(effect, Refused)
    assert effect.why is Refusal.MUST_BE_ROLLED_BACK


# ── plans that stay ────────────────────────────────────────────────────────────────────────────


def test_the_rollback_of_what_is_left_is_made_and_leased_with_the_grant() -> None:
    """In one entry: whoever is killed after it leaves a pending rollback, not an unknown one."""
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    dead = begin(one, plan, W1)
    one.wait(LEASE_S + 1)
    before = one.fold.state.index
    assert execute(one, plan, W2).answer == "granted"
    assert one.fold.state.index == before + 1
    rollback = rollback_of(one, plan)
    assert (rollback.tokens, rollback.id.index) == ((dead,), before + 1)
    (told,) = reads.leased_plan(one.fold.state, plan).rollbacks
    assert (told.plan, told.target, told.tokens) == (rollback.id, plan, (dead,))
    assert told.token == lease_held(one, plan).token == lease_held(one, rollback.id).token


def test_an_attempt_that_never_started_needs_no_rollback() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    execute(one, plan, W1)
    one.wait(LEASE_S + 1)
    execute(one, plan, W2)
    assert one.fold.state.plans.rollback_of(plan) is None


def test_a_rollback_that_died_half_way_is_finished_by_whoever_executes_next() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    dead = begin(one, plan, W1)
    one.wait(LEASE_S + 1)
    execute(one, plan, W2)
    first = rollback_of(one, plan)
    one.wait(LEASE_S + 1)  # it dies before the rollback is done, and before it starts the plan
    assert execute(one, plan, W3).answer == "granted"
    (told,) = reads.leased_plan(one.fold.state, plan).rollbacks
    assert (told.plan, told.tokens) == (first.id, (dead,))
    assert one.fold.state.plans.rollback_of(plan) is not None


def test_while_somebody_else_rolls_it_back_a_plan_waits() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    begin(one, plan, W1)
    one.fail(lease_held(one, plan))
    survey(one)
    assert execute(one, rollback_of(one, plan).id, W2).answer == "granted"
    seen = execute(one, plan, W3)
    assert (seen.answer, seen.holder) == ("lease_live", W2)
    assert "rolls back" in seen.sentence
    one.pass_rest()  # its lease ends, too
    assert execute(one, plan, W3).answer == "granted"


# ── without the guard ──────────────────────────────────────────────────────────────────────────


def test_without_the_guard_a_live_lease_is_taken_over_and_fenced_in_one_entry() -> None:
    one = leader(execution_guard=False)
    plan = schedule_plan(one, 1, 2, removable=False)
    old = begin(one, plan, W1)
    former = lease_held(one, plan)
    before = one.fold.state.index
    assert execute(one, plan, W2).answer == "granted"
    assert one.fold.state.index == before + 1
    ended = one.plan(plan).attempts[0]
    assert (ended.token, ended.end) == (old, AttemptEnd.FENCED)
    assert one.plan(plan).failures == 0, "nobody has failed"
    assert rollback_of(one, plan).tokens == (old,)
    inputs = one.metas(*one.plan(plan).inputs)
    effects = one.report(former, Report(plan, old, result(plan, old, inputs)))
    assert [type(effect) for effect in effects] == [Refused]
    assert [type(effect) for effect in one.renew(former)] == [Refused]


def test_without_the_guard_a_started_removable_plan_must_still_be_rolled_back() -> None:
    one = leader(execution_guard=False)
    plan = schedule_plan(one, 1, 2, removable=True)
    begin(one, plan, W1)
    assert execute(one, plan, W2).answer == "must_be_rolled_back"
    assert lease_held(one, plan).worker == W1


def test_without_the_guard_a_plan_that_was_only_granted_changes_hands() -> None:
    one = leader(execution_guard=False)
    plan = schedule_plan(one, 1, 2, removable=True)
    execute(one, plan, W1)
    former = lease_held(one, plan)
    assert execute(one, plan, W2).answer == "granted"
    assert [type(effect) for effect in one.renew(former, started=True)] == [Refused, Refused]
    assert one.plan(plan).state is PlanState.REQUESTED


def test_the_guard_travels_in_the_entry() -> None:
    """A replica that was configured otherwise folds it all the same (S13)."""
    one = leader(execution_guard=False)
    plan = schedule_plan(one, 1, 2, removable=False)
    begin(one, plan, W1)
    (entry,) = execution.entries(one.fold.state, plan, W2, now=one.now)
    assert isinstance(entry, PlansLeased)
    assert entry.grants[0].guarded is False
    guarded = leader()
    same = schedule_plan(guarded, 1, 2, removable=False)
    begin(guarded, same, W1)
    assert same == plan
    effects = guarded.put([entry])
    assert any(isinstance(effect, AttemptEnded) for effect in effects)
    assert lease_held(guarded, plan).worker == W2


# ── plans that have ended, or rest ─────────────────────────────────────────────────────────────


@both_kinds()
def test_a_completed_plan_answers_with_its_result(removable: bool) -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=removable)
    begin(one, plan)
    one.complete(lease_held(one, plan))
    seen = execute(one, plan, W2)
    assert seen.answer == "already_completed"
    assert seen.result == one.plan(plan).result
    assert seen.result is not None


def test_a_plan_that_rests_after_a_failure_is_executed_by_hand() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    begin(one, plan, W1)
    one.fail(lease_held(one, plan))
    assert one.poll(W2) == [], "a worker that polls waits"
    assert execute(one, plan, W2).answer == "granted"


@pytest.mark.parametrize("until", [LeaseTime(10**15), NEVER], ids=["probed later", "barred"])
def test_an_excluded_plan_says_how_it_is_freed(until: LeaseTime) -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    one.put([PlanExcluded(plan, None, until, False, "it eats the disk")])
    seen = execute(one, plan)
    assert seen.answer == "excluded"
    assert f"maar plans requeue {plan}" in seen.sentence
    assert "it eats the disk" in seen.sentence


def test_a_divided_plan_names_its_children() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    one.put([PlanBisected(plan, None, 1, False)])
    seen = execute(one, plan)
    assert (seen.answer, len(seen.children)) == ("cancelled", 2)
    assert all(execute(one, child).answer == "granted" for child in seen.children)


def test_nobody_knows_a_plan_that_never_was() -> None:
    assert execute(leader(), PlanId(99, 0)).answer == "not_found"


def test_too_many_ended_attempts_make_it_busy() -> None:
    one = leader(leftovers_max=1)
    first = schedule_plan(one, 1, 2, removable=False)
    second = schedule_plan(one, 3, 4, removable=False)
    execute(one, first)
    assert execute(one, second, W2).answer == "busy"


def test_answers_change_nothing() -> None:
    """Nobody who is refused leaves an entry."""
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=True)
    begin(one, plan, W1)
    before = digest(one.fold.state)
    assert execute(one, plan, W2).answer == "lease_live"
    one.wait(LEASE_S + 1)
    assert execute(one, plan, W2).answer == "must_be_rolled_back"
    assert digest(one.fold.state) == before
