"""Rollbacks: the entry that fences, those by hand, and what one may delete."""

from __future__ import annotations

import pytest

from maar.metastore.decide import rollbacks
from maar.metastore.records.effects import (
    Refused,
    RollbackScheduled,
    RolledBack,
)
from maar.metastore.records.entries import (
    AdoptionEnded,
    AttemptKey,
    BlocksAdopted,
    Reincarnated,
    RollbacksScheduled,
    RollbackWish,
)
from maar.model.errors import LeaseLost, NotFound, Unavailable
from maar.model.ids import FencingToken, Incarnation, PlanId
from maar.model.plan import PlanState
from maar.model.refusal import Refusal
from maar.ports.plans.board import ConfirmDeletes, Report
from support.metastore.fold import output, result
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
from support.metastore.rollback_steps import LEASE_S, leader, waiting

# ── the fencing entry ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("started", [False, True])
def test_inputs_return_to_their_old_places_in_the_fencing_entry(started: bool) -> None:
    one = leader(rollback_delay_ns=0)
    before = one.add(1, 2)
    plan = schedule_plan(one, 3, 4, removable=True)
    inputs = one.plan(plan).inputs
    after = one.add(5, 6)
    assert waiting(one) == [*before, *after]
    if started:
        begin(one, plan)
        one.wait(LEASE_S + 1)
    index = one.fold.state.index
    survey(one)
    assert one.fold.state.index == index + 1
    assert waiting(one) == [*before, *inputs, *after]
    assert one.fold.state.owners == {}
    assert plan not in one.fold.state.plans
    assert one.plan(plan).state is PlanState.ROLLED_BACK, "history keeps it"


def test_nobody_who_was_fenced_completes_or_renews() -> None:
    one = leader(rollback_delay_ns=0)
    plan = schedule_plan(one, 1, 2, removable=True)
    token = begin(one, plan)
    former = lease_held(one, plan)
    inputs = one.metas(*one.plan(plan).inputs)
    one.wait(LEASE_S + 1)
    survey(one)
    (effect,) = one.report(former, Report(plan, token, result(plan, token, inputs)))
    assert effect == Refused(Refusal.STALE_TOKEN, plan, token)
    assert one.fold.live() == {meta.id for meta in inputs}
    assert all(isinstance(each, Refused) for each in one.renew(former, started=True))


def test_a_wish_that_saw_another_lease_is_refused() -> None:
    """It was prepared before somebody came, or before a renewal arrived."""
    one = leader(rollback_delay_ns=0)
    plan = schedule_plan(one, 1, 2, removable=True)
    (stale,) = rollbacks.survey(one.fold.state, now=one.now).entries()
    begin(one, plan)
    assert one.put([stale]) == [Refused(Refusal.OUTDATED, plan)]
    one.wait(LEASE_S + 1)
    (late,) = rollbacks.survey(one.fold.state, now=one.now).entries()
    one.renew(lease_held(one, plan))
    assert one.put([late]) == [Refused(Refusal.LEASE_LIVE, plan)]


def test_one_rollback_for_a_plan_at_a_time() -> None:
    one = leader(rollback_delay_ns=0)
    plan = schedule_plan(one, 1, 2, removable=True)
    (entry,) = rollbacks.survey(one.fold.state, now=one.now).entries()
    assert [type(each) for each in one.put([entry])] == [RolledBack, RollbackScheduled]
    assert one.put([entry]) == [Refused(Refusal.ROLLBACK_PENDING, plan)]


def test_a_rollback_that_nothing_has_to_be_done_for_is_not_made() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    token = FencingToken(one.fold.incarnation, 4)
    wish = RollbackWish(plan, (token,), None, "x")
    assert one.put([RollbacksScheduled((wish,))]) == [Refused(Refusal.NOT_DEAD, plan)]


# ── by hand ────────────────────────────────────────────────────────────────────────────────────


def by_hand(one: LeaderDecisions, plan: PlanId) -> tuple[str, PlanId | None]:
    one.put(rollbacks.by_hand(one.fold.state, plan, now=one.now))
    reply = rollbacks.by_hand_reply(one.fold.state, plan, now=one.now)
    return reply.outcome, reply.rollback


def test_by_hand_the_delay_is_passed_by_and_a_second_wish_finds_the_first() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=True)
    outcome, rollback = by_hand(one, plan)
    assert outcome == "scheduled"
    assert by_hand(one, plan) == ("scheduled", rollback)
    assert survey(one).wishes == (), "a cleaning finds it too"
    undone(one, plan)
    assert by_hand(one, plan) == ("nothing_to_do", None)


def test_by_hand_a_live_lease_is_respected() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=True)
    begin(one, plan)
    assert by_hand(one, plan) == ("lease_live", None)
    assert one.plan(plan).state is PlanState.INFLIGHT


def test_by_hand_of_a_plan_that_stays_only_its_dead_attempts() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    assert by_hand(one, plan) == ("nothing_to_do", None)
    begin(one, plan)
    one.fail(lease_held(one, plan))
    assert by_hand(one, plan)[0] == "scheduled"
    assert one.plan(plan).state is PlanState.REQUESTED


def test_by_hand_a_plan_that_never_was_is_not_found() -> None:
    with pytest.raises(NotFound):
        by_hand(leader(), PlanId(99, 0))


# ── what a rollback may delete ─────────────────────────────────────────────────────────────────


def confirm(one: LeaderDecisions, plan: PlanId, token: FencingToken, *keys: str) -> tuple[str, ...]:
    request = ConfirmDeletes(plan, token, keys)
    effects = one.put(rollbacks.confirm_entries(one.fold.state, request, now=one.now))
    return rollbacks.deletable(effects, one.fold.state, request)


def written(one: LeaderDecisions, plan: PlanId, token: FencingToken) -> str:
    inputs = one.metas(*one.plan(plan).inputs)
    return output(plan, token, inputs, profiles=20).files[0].locations[0].key


@pytest.fixture
def undoing() -> tuple[LeaderDecisions, PlanId, FencingToken]:
    """A leader, a plan with a dead attempt whose rollback w2 holds, and the dead token."""
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    dead = begin(one, plan, W1)
    one.fail(lease_held(one, plan))
    survey(one)
    assert execute(one, rollback_of(one, plan).id, W2).answer == "granted"
    return one, plan, dead


Undoing = tuple[LeaderDecisions, PlanId, FencingToken]


def test_only_keys_of_its_own_tokens_may_go(undoing: Undoing) -> None:
    one, plan, dead = undoing
    rollback = rollback_of(one, plan)
    token = lease_held(one, rollback.id).token
    later = FencingToken(dead.incarnation, dead.index + 1)
    other = PlanId(plan.index, 1)
    asked = (
        written(one, plan, dead),
        written(one, plan, later),
        written(one, plan, dead).replace(f"-{plan}-", f"-{other}-"),
        "segments/v1/anything.parquet",
    )
    assert confirm(one, rollback.id, token, *asked) == asked[:1]


def test_a_confirmation_renews_and_a_lost_lease_confirms_nothing(undoing: Undoing) -> None:
    one, plan, dead = undoing
    rollback = rollback_of(one, plan)
    token = lease_held(one, rollback.id).token
    key = written(one, plan, dead)
    one.wait(LEASE_S)
    assert confirm(one, rollback.id, token, key) == (key,)
    one.wait(LEASE_S)
    assert execute(one, rollback.id, W3).answer == "lease_live"
    one.wait(1)
    assert execute(one, rollback.id, W3).answer == "granted"
    with pytest.raises(LeaseLost):
        confirm(one, rollback.id, token, key)
    foreign = FencingToken(Incarnation("feedface"), token.index)
    with pytest.raises(LeaseLost):
        confirm(one, rollback.id, foreign, key)


def test_a_plan_that_is_no_rollback_deletes_nothing() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    token = begin(one, plan)
    with pytest.raises(LeaseLost, match="no rollback"):
        confirm(one, plan, token, written(one, plan, token))


def test_what_is_listed_is_never_deleted() -> None:
    """The lost end of a log had completed the attempt, and the restored one adopts its block."""
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    dead = begin(one, plan)
    adopted = output(plan, dead, one.metas(*one.plan(plan).inputs), profiles=20)
    one.put([Reincarnated(Incarnation("feedface"), ()), BlocksAdopted((adopted,)), AdoptionEnded()])
    assert adopted.id in one.fold.state.blocks
    (wish,) = survey(one).wishes
    assert wish.tokens == (dead,)
    rollback = rollback_of(one, plan)
    execute(one, rollback.id)
    keys = tuple(file.locations[0].key for file in adopted.files)
    stray = tuple(key.replace("-a1.", "-a2.") for key in keys)
    token = lease_held(one, rollback.id).token
    assert confirm(one, rollback.id, token, *keys, *stray) == stray, "another task's are not listed"


def test_what_is_not_remembered_any_more_is_not_deleted(undoing: Undoing) -> None:
    """A restore may have found that the attempt was completed after all, and spared it."""
    one, plan, dead = undoing
    rollback = rollback_of(one, plan)
    one.fold.state.leftovers.pop(AttemptKey(plan, dead))
    assert (
        confirm(one, rollback.id, lease_held(one, rollback.id).token, written(one, plan, dead))
        == ()
    )


def test_while_adopting_nothing_is_rolled_back() -> None:
    """Which attempts were completed after all is not known yet (S5)."""
    one = leader(rollback_delay_ns=0)
    plan = schedule_plan(one, 1, 2, removable=False)
    dead = begin(one, plan)
    one.put([Reincarnated(Incarnation("feedface"), ())])
    wish = RollbacksScheduled((RollbackWish(plan, (dead,), None, "x"),))
    assert one.put([wish]) == [Refused(Refusal.ADOPTING, plan)]
    with pytest.raises(Unavailable):
        rollbacks.by_hand(one.fold.state, plan, now=one.now)


def test_dead_attempts_are_remembered_until_the_rollback_has_ended(undoing: Undoing) -> None:
    one, plan, dead = undoing
    assert AttemptKey(plan, dead) in one.fold.state.leftovers.dead
    undone(one, plan)
    assert one.fold.state.leftovers.dead == {}
    assert AttemptKey(plan, dead) in one.fold.state.leftovers, "a late listing has the last word"
