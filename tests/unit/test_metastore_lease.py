"""Only the newest token finishes a plan, and everything else it presumes is checked in the fold."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from maar.metastore.fold.apply import apply
from maar.metastore.records.effects import (
    AttemptEnded,
    Bisected,
    Completed,
    Excluded,
    Leased,
    Refused,
    Renewed,
    Scheduled,
    Started,
)
from maar.metastore.records.entries import (
    AttemptFenced,
    BlocksAdded,
    Extension,
    Grant,
    LeasesRenewed,
    PlanBisected,
    PlanCompleted,
    PlanExcluded,
    PlanFailed,
    PlansArchived,
    PlansLeased,
    PlansScheduled,
    PlansStarted,
    Start,
    TermStarted,
)
from maar.model.block import Kind
from maar.model.ids import FencingToken, Incarnation, PlanId, WorkerId
from maar.model.plan import Account, AttemptEnd, PlanResult, PlanSpec, PlanState
from maar.model.refusal import Refusal
from maar.model.time import SECOND_NS, LeaseTime
from maar.services.compact.rules import COMPACT
from support.metastore.fold import Fold, output, result, segment

W1, W2 = WorkerId("w1"), WorkerId("w2")


def scheduled(fold: Fold, count: int = 3, first: int = 0) -> PlanId:
    """A plan over `count` new segments."""
    metas = tuple(segment(first + n) for n in range(count))
    fold.put(BlocksAdded(metas))
    key = fold.state.queue.places[metas[0].id].key
    spec = PlanSpec(COMPACT, False, key, tuple(m.id for m in metas), 2)
    (effect,) = fold.put(PlansScheduled((spec,)))
    assert isinstance(effect, Scheduled)
    return effect.plan


def leased(fold: Fold, plan: PlanId, worker: WorkerId = W1) -> FencingToken:
    held = fold.state.plans[plan].lease
    expires_at = LeaseTime(fold.now + 15 * SECOND_NS)
    grant = Grant(plan, worker, expires_at, held.token if held else None)
    effect = fold.put(PlansLeased((grant,)))[-1]
    assert isinstance(effect, Leased)
    return effect.token


def completion(fold: Fold, plan: PlanId, token: FencingToken) -> PlanCompleted:
    inputs = fold.metas(fold.state.plans[plan].inputs)
    return PlanCompleted(plan, token, result(plan, token, inputs))


def test_a_completion_replaces_the_inputs_by_the_output_in_one_step() -> None:
    fold = Fold()
    plan = scheduled(fold)
    token = leased(fold, plan)
    inputs = fold.state.plans[plan].inputs
    entry = completion(fold, plan, token)
    (effect,) = fold.put(entry)
    made = entry.result.outputs[0].id
    assert effect == Completed(plan, token, inputs, (made,))
    assert fold.live() == {made}
    assert set(fold.state.retired) == set(inputs)
    assert fold.state.owners == {}
    assert made in fold.state.queue


def test_a_repeated_completion_gets_the_same_answer_and_changes_nothing() -> None:
    fold = Fold()
    plan = scheduled(fold)
    token = leased(fold, plan)
    entry = completion(fold, plan, token)
    fold.put(entry)
    live = fold.live()
    assert fold.put(entry) == (Completed(plan, token),)
    assert fold.live() == live
    assert fold.state.tally.plans_completed == 1


def test_a_fenced_worker_cannot_finish_its_plan() -> None:
    fold = Fold()
    plan = scheduled(fold)
    old = leased(fold, plan)
    fold.now += 16 * SECOND_NS
    new = leased(fold, plan, W2)
    assert new > old
    assert fold.put(completion(fold, plan, old)) == (Refused(Refusal.STALE_TOKEN, plan, old),)
    assert isinstance(fold.put(completion(fold, plan, new))[0], Completed)
    again = PlanCompleted(plan, old, PlanResult(COMPACT, (), Account(0, 0, 0)))
    assert fold.put(again) == (Refused(Refusal.COMPLETED_BY_OTHER, plan, old),)


def test_a_greater_token_than_the_current_one_is_refused_too() -> None:
    fold = Fold()
    plan = scheduled(fold)
    token = leased(fold, plan)
    for wrong in (
        FencingToken(token.incarnation, token.index + 1),
        FencingToken(Incarnation("ffffffff"), token.index),
    ):
        assert fold.put(completion(fold, plan, wrong)) == (
            Refused(Refusal.STALE_TOKEN, plan, wrong),
        )


def test_an_expired_lease_completes_as_long_as_nobody_took_the_plan() -> None:
    fold = Fold()
    plan = scheduled(fold)
    token = leased(fold, plan)
    fold.now += 3600 * SECOND_NS
    assert isinstance(fold.put(completion(fold, plan, token))[0], Completed)


def test_a_live_lease_is_not_handed_on_and_expiry_means_exceeding() -> None:
    fold = Fold()
    plan = scheduled(fold)
    token = leased(fold, plan)
    fold.now += 15 * SECOND_NS
    grant = Grant(plan, W2, LeaseTime(fold.now + 1), token)
    assert fold.put(PlansLeased((grant,))) == (Refused(Refusal.LEASE_LIVE, plan),)
    fold.now += 1
    ended, granted = fold.put(PlansLeased((grant,)))
    assert isinstance(ended, AttemptEnded)
    assert ended.end is AttemptEnd.EXPIRED
    assert isinstance(granted, Leased)
    assert fold.state.plans[plan].failures == 1


def test_a_grant_prepared_from_an_older_state_is_refused() -> None:
    fold = Fold()
    plan = scheduled(fold)
    token = leased(fold, plan)
    fold.now += 16 * SECOND_NS
    stale = Grant(plan, W2, LeaseTime(fold.now + 1), None)
    assert fold.put(PlansLeased((stale,))) == (Refused(Refusal.OUTDATED, plan),)
    fold.put(LeasesRenewed((Extension(plan, token, LeaseTime(fold.now + 9)),)))
    seen_expired = Grant(plan, W2, LeaseTime(fold.now + 1), token)
    assert fold.put(PlansLeased((seen_expired,))) == (Refused(Refusal.LEASE_LIVE, plan),)


def test_a_renewal_needs_the_token_and_never_shortens() -> None:
    fold = Fold()
    plan = scheduled(fold)
    token = leased(fold, plan)
    wrong = FencingToken(token.incarnation, token.index - 1)
    later, sooner = LeaseTime(fold.now + 60), LeaseTime(1)
    assert isinstance(fold.put(LeasesRenewed((Extension(plan, wrong, later),)))[0], Refused)
    before = fold.state.plans[plan].lease
    assert fold.put(LeasesRenewed((Extension(plan, token, sooner),))) == (Renewed(plan, token),)
    assert fold.state.plans[plan].lease == before


def test_work_begins_once_and_is_recorded_on_the_attempt() -> None:
    fold = Fold()
    plan = scheduled(fold)
    token = leased(fold, plan)
    fold.now += 5
    start = PlansStarted((Start(plan, token),))
    assert fold.put(start) == (Started(plan, token),)
    fold.now += 5
    fold.put(start)
    found = fold.state.plans[plan]
    assert found.state is PlanState.INFLIGHT
    assert found.attempts[-1].started_at == 5


@pytest.mark.parametrize(
    ("account", "why"),
    [
        (Account(29, 0, 0), Refusal.ACCOUNT),  # one profile nowhere
        (Account(30, 1, 0), Refusal.ACCOUNT),  # one too many
        (Account(31, -1, 0), Refusal.ACCOUNT),
        (Account(29, 1, 0), Refusal.ACCOUNT),  # says 29, holds 30
        (Account(29, 0, 1), Refusal.ACCOUNT),  # quarantined, but where?
    ],
)
def test_a_result_that_loses_or_invents_profiles_is_refused(account: Account, why: Refusal) -> None:
    fold = Fold()
    plan = scheduled(fold)
    token = leased(fold, plan)
    good = completion(fold, plan, token)
    bad = msgspec.structs.replace(
        good, result=msgspec.structs.replace(good.result, account=account)
    )
    before = fold.live()
    assert fold.put(bad) == (Refused(why, plan, token),)
    assert fold.live() == before
    assert isinstance(fold.put(good)[0], Completed)


def test_a_result_that_is_true_of_its_outputs_and_has_lost_a_profile_is_refused() -> None:
    fold = Fold()
    plan = scheduled(fold)
    token = leased(fold, plan)
    good = completion(fold, plan, token)
    (made,) = good.result.outputs
    fewer = msgspec.structs.replace(made, profiles=made.profiles - 1)
    result = PlanResult(COMPACT, (fewer,), Account(fewer.profiles, 0, 0))
    bad = msgspec.structs.replace(good, result=result)
    assert fold.put(bad) == (Refused(Refusal.ACCOUNT, plan, token),)


def test_quarantined_profiles_are_accounted_for_and_never_queued() -> None:
    fold = Fold()
    plan = scheduled(fold)
    token = leased(fold, plan)
    inputs = fold.metas(fold.state.plans[plan].inputs)
    good = output(plan, token, inputs, profiles=28)
    bad = output(plan, token, inputs, profiles=1, ordinal=1, kind=Kind.QUARANTINE)
    made = PlanResult(COMPACT, (good, bad), Account(28, 1, 1))
    (effect,) = fold.put(PlanCompleted(plan, token, made))
    assert isinstance(effect, Completed)
    assert bad.id in fold.state.blocks
    assert bad.id not in fold.state.queue.places
    assert fold.state.tally.profiles_quarantined == 1
    assert fold.state.tally.duplicates_removed == 1


def test_an_output_takes_no_name_that_another_block_has_or_had() -> None:
    fold = Fold()
    before = scheduled(fold)
    fold.put(completion(fold, before, leased(fold, before)))
    (retired, *_) = fold.state.finished[before].inputs
    plan = scheduled(fold, first=10)
    token = leased(fold, plan)
    good = completion(fold, plan, token)
    (made,) = good.result.outputs
    for taken in (retired, fold.state.plans[plan].inputs[0]):
        other = msgspec.structs.replace(made, id=taken)
        bad = PlanCompleted(plan, token, PlanResult(COMPACT, (other,), good.result.account))
        assert fold.put(bad) == (Refused(Refusal.OUTPUT_TAKEN, plan, token),)
    assert isinstance(fold.put(good)[0], Completed)


def test_an_output_that_another_attempt_wrote_is_refused() -> None:
    fold = Fold()
    plan = scheduled(fold)
    old = leased(fold, plan)
    inputs = fold.metas(fold.state.plans[plan].inputs)
    fold.now += 16 * SECOND_NS
    new = leased(fold, plan, W2)
    leftovers = PlanCompleted(plan, new, result(plan, old, inputs))
    assert fold.put(leftovers) == (Refused(Refusal.OUTPUT_KEY, plan, new),)


@pytest.mark.parametrize(
    "change",
    [
        *({"level": -1}, {"id": "z" * 32}, {"id": ""}, {"size": -5}, {"size": 1 << 63}),
        *({"tenant": ""}, {"max_time_ns": 0}),
    ],
)
def test_an_output_that_makes_no_sense_is_refused_and_breaks_nothing(
    change: dict[str, Any],
) -> None:
    fold = Fold()
    plan = scheduled(fold)
    token = leased(fold, plan)
    inputs = fold.metas(fold.state.plans[plan].inputs)
    odd = output(plan, token, inputs, profiles=30, kind=Kind.QUARANTINE)
    made = PlanResult(COMPACT, (msgspec.structs.replace(odd, **change),), Account(0, 0, 30))
    assert fold.put(PlanCompleted(plan, token, made)) == (Refused(Refusal.OUTPUT, plan, token),)


@pytest.mark.parametrize("level", [0, 2])
def test_an_output_of_another_level_is_refused(level: int) -> None:
    fold = Fold()
    plan = scheduled(fold)
    token = leased(fold, plan)
    inputs = fold.metas(fold.state.plans[plan].inputs)
    made = PlanResult(
        COMPACT, (output(plan, token, inputs, profiles=30, level=level),), Account(30, 0, 0)
    )
    assert fold.put(PlanCompleted(plan, token, made)) == (Refused(Refusal.OUTPUT, plan, token),)


def test_a_block_has_one_owner() -> None:
    fold = Fold()
    plan = scheduled(fold)
    inputs, key = fold.state.plans[plan].inputs, fold.state.plans[plan].key
    rival = PlanSpec(COMPACT, False, key, inputs[:1], 2)
    (effect,) = fold.put(PlansScheduled((rival,)))
    assert effect == Refused(Refusal.INPUT_OWNED, PlanId(fold.state.index, 0))


def test_of_two_plans_in_one_entry_that_want_one_block_the_first_gets_it() -> None:
    fold = Fold()
    metas = tuple(segment(n) for n in range(3))
    fold.put(BlocksAdded(metas))
    key = fold.state.queue.places[metas[0].id].key
    one = PlanSpec(COMPACT, False, key, (metas[0].id, metas[1].id), 2)
    two = PlanSpec(COMPACT, False, key, (metas[1].id, metas[2].id), 2)
    first, second = fold.put(PlansScheduled((one, two)))
    assert first == Scheduled(PlanId(fold.state.index, 0))
    assert second == Refused(Refusal.INPUT_OWNED, PlanId(fold.state.index, 1))
    assert metas[2].id in fold.state.queue


def test_a_plan_over_a_gone_or_repeated_block_is_refused() -> None:
    fold = Fold()
    meta = segment(1)
    fold.put(BlocksAdded((meta,)))
    key = fold.state.queue.places[meta.id].key
    for inputs, why in (
        ((segment(9).id,), Refusal.INPUT_GONE),
        ((meta.id, meta.id), Refusal.INPUT_REPEATED),
        ((), Refusal.INPUT_REPEATED),
    ):
        (effect,) = fold.put(PlansScheduled((PlanSpec(COMPACT, False, key, inputs, 2),)))
        assert isinstance(effect, Refused)
        assert effect.why is why


def test_a_reported_failure_ends_the_lease_and_makes_the_plan_wait() -> None:
    fold = Fold()
    plan = scheduled(fold)
    token = leased(fold, plan)
    until = LeaseTime(fold.now + 5)
    (effect,) = fold.put(PlanFailed(plan, token, "out of disk", until))
    assert effect == AttemptEnded(plan, token, AttemptEnd.FAILED, "out of disk")
    assert fold.put(completion(fold, plan, token)) == (Refused(Refusal.STALE_TOKEN, plan, token),)
    grant = PlansLeased((Grant(plan, W2, LeaseTime(99), None),))
    assert fold.put(grant) == (Refused(Refusal.NOT_ELIGIBLE, plan),)
    fold.now += 5
    assert isinstance(fold.put(grant)[-1], Leased)


def test_a_fenced_attempt_is_dead_and_not_a_failure() -> None:
    fold = Fold()
    plan = scheduled(fold)
    token = leased(fold, plan)
    fold.put(AttemptFenced(plan, token, "rolled back"))
    assert fold.state.plans[plan].failures == 0
    assert fold.state.plans[plan].excused == 0
    assert fold.put(completion(fold, plan, token)) == (Refused(Refusal.STALE_TOKEN, plan, token),)


def test_a_plan_is_bisected_into_two_that_own_its_inputs() -> None:
    fold = Fold()
    plan = scheduled(fold, 3)
    token = leased(fold, plan)
    fold.now += 16 * SECOND_NS
    inputs = fold.state.plans[plan].inputs
    _, effect = fold.put(PlanBisected(plan, token, 1))
    left, right = PlanId(fold.state.index, 0), PlanId(fold.state.index, 1)
    assert effect == Bisected(plan, (left, right))
    assert fold.state.plans[left].inputs == inputs[:1]
    assert fold.state.plans[right].inputs == inputs[1:]
    assert fold.state.plans[left].parent == plan
    assert fold.state.owners == {inputs[0]: left, inputs[1]: right, inputs[2]: right}
    assert fold.state.finished[plan].state is PlanState.CANCELLED
    assert fold.state.finished[plan].failures == 1
    assert [fold.state.plans[half].failures for half in (left, right)] == [0, 0], "a new chance"
    late = PlanCompleted(plan, token, PlanResult(COMPACT, (), Account(30, 0, 0)))
    assert isinstance(fold.put(late)[0], Refused)


def test_a_plan_that_cannot_be_divided_is_left_alone() -> None:
    fold = Fold()
    plan = scheduled(fold, 1)
    assert fold.put(PlanBisected(plan, None, 1)) == (Refused(Refusal.NOT_DIVISIBLE, plan),)
    token = leased(fold, plan)
    assert fold.put(PlanBisected(plan, token, 0))[0] == Refused(Refusal.LEASE_LIVE, plan)
    assert fold.state.plans[plan].lease is not None


def test_an_excluded_plan_holds_its_input_visibly_and_can_be_probed() -> None:
    fold = Fold()
    plan = scheduled(fold, 1)
    until = LeaseTime(60)
    assert fold.put(PlanExcluded(plan, None, until)) == (Excluded(plan, until),)
    held = fold.state.plans[plan]
    assert held.state is PlanState.EXCLUDED
    assert fold.state.owners[held.inputs[0]] == plan
    fold.now = 60
    token = leased(fold, plan)
    assert isinstance(fold.put(completion(fold, plan, token))[0], Completed)


def test_an_operators_word_ends_a_live_lease_and_the_leaders_own_does_not() -> None:
    fold = Fold()
    plan = scheduled(fold, 1)
    token = leased(fold, plan)
    until = LeaseTime(60)
    assert fold.put(PlanExcluded(plan, token, until)) == (Refused(Refusal.LEASE_LIVE, plan),)
    assert fold.put(PlanExcluded(plan, token, until, note="bad host"))[-1] == Excluded(plan, until)
    assert fold.state.plans[plan].state is PlanState.EXCLUDED
    assert fold.put(completion(fold, plan, token)) == (Refused(Refusal.STALE_TOKEN, plan, token),)


def test_a_new_term_gives_live_leases_their_full_length_and_expired_ones_nothing() -> None:
    fold = Fold()
    live, dead = scheduled(fold, 1), scheduled(fold, 1, first=5)
    leased(fold, dead)
    fold.now += 10 * SECOND_NS
    leased(fold, live)
    fold.now += 10 * SECOND_NS
    fold.put(TermStarted(2, "two"))
    leases = [fold.state.plans[plan].lease for plan in (live, dead)]
    assert [lease.expires_at for lease in leases if lease] == [35 * SECOND_NS, 15 * SECOND_NS]


def test_an_old_term_changes_nothing() -> None:
    fold = Fold()
    fold.put(TermStarted(5, "five"))
    assert fold.put(TermStarted(4, "four")) == (Refused(Refusal.OLD_TERM),)
    assert fold.state.leader == "five"


def test_an_archived_plan_is_unknown() -> None:
    fold = Fold()
    plan = scheduled(fold)
    token = leased(fold, plan)
    entry = completion(fold, plan, token)
    fold.put(entry)
    fold.put(PlansArchived((plan,)))
    assert fold.put(entry) == (Refused(Refusal.UNKNOWN_PLAN, plan, token),)


def test_finished_plans_and_attempts_are_bounded() -> None:
    tight = msgspec.structs.replace(Fold().policy, finished_max=2, attempts_max=2)
    fold = Fold(policy=tight)
    plan = PlanId(0, 0)
    for n in range(4):
        plan = scheduled(fold, 1, first=n)
        for _ in range(2):
            leased(fold, plan)
            fold.now += 16 * SECOND_NS
        token = leased(fold, plan)
        assert len(fold.state.plans[plan].attempts) == 2
        fold.put(completion(fold, plan, token))
    assert len(fold.state.finished) == 2
    assert plan in fold.state.finished


def test_folding_an_entry_twice_is_folding_it_once() -> None:
    fold = Fold()
    plan = scheduled(fold)
    leased(fold, plan)
    for item in list(fold.log):
        assert apply(fold.state, item) == ()
    assert fold.state.plans[plan].failures == 0
