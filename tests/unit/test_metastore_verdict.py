"""A failure counts only when it is the plan's own; what is spared is spared so often, no more."""

from __future__ import annotations

import msgspec
import pytest

from maar.metastore.decide import verdict
from maar.metastore.decide.lease_clock import LeaseClock
from maar.metastore.decide.workers import WorkerRegistry
from maar.metastore.leader.term import patience_s
from maar.metastore.records.effects import AttemptEnded
from maar.metastore.records.entries import Grant, PlansLeased, TermStarted
from maar.model.plan import AttemptEnd
from maar.model.policy import CompactionSettings, RetentionSettings, policy_of
from maar.model.time import SECOND_NS, LeaseTime
from support.metastore.fold import SMALL, Fold
from support.metastore.leader_term import W1, W2, Office


def abandoned(*, started: bool, renewed: bool, restarted: bool, deaf: bool) -> Office:
    """A lease that ran out, 16 s after it was last granted or renewed."""
    office = Office()
    office.wait(1)
    office.add(1, 2, 3)
    (lease,) = office.poll()
    office.wait(5)
    if started:
        office.renew(lease, started=True)
    office.wait(5)
    if restarted:
        office.fold.put(TermStarted(2, "two"))
        office.crew = WorkerRegistry(hearing_since=office.now)
    if deaf:
        office.crew.listen(LeaseTime(office.now - 6 * SECOND_NS), pause_ns=5 * SECOND_NS)
        office.crew.listen(office.now, pause_ns=5 * SECOND_NS)
    office.wait(1)
    if renewed:
        office.renew(lease)
    office.wait(16)
    return office


@pytest.mark.parametrize(
    ("started", "renewed", "restarted", "deaf", "counts"),
    [
        (True, False, False, False, True),  # it began, and fell silent before this leader's ears
        (True, True, False, False, True),
        (False, False, False, False, False),  # the work never began: the worker's fault
        (True, False, True, False, False),  # nobody knows what the leader before did not hear
        (True, True, True, False, True),  # heard in this term, and then no more
        (True, False, False, True, False),  # the leader itself was away for a while
        (True, True, False, True, True),
        (False, True, True, True, False),
    ],
)
def test_an_expired_lease_counts_when_it_began_and_the_leader_was_there(
    started: bool, renewed: bool, restarted: bool, deaf: bool, counts: bool
) -> None:
    office = abandoned(started=started, renewed=renewed, restarted=restarted, deaf=deaf)
    (plan,) = office.fold.state.plans.values()
    (lease,) = office.poll(W2)
    after = office.plan(plan.id)
    assert lease.plan == plan.id
    assert (after.failures, after.spared) == ((1, 0) if counts else (0, 1))
    assert after.attempts[0].end is AttemptEnd.EXPIRED
    assert after.attempts[0].counted is counts


def test_a_leader_that_comes_round_in_time_was_never_away() -> None:
    crew = WorkerRegistry()
    for second in range(100):
        crew.listen(LeaseTime(second * SECOND_NS), pause_ns=5 * SECOND_NS)
    assert crew.hearing_since == verdict.ALWAYS


@pytest.mark.parametrize("lease_s", [0.1, 1.0, 15.0])
def test_a_leader_that_waits_for_requests_is_not_away_however_short_leases_are(
    lease_s: float,
) -> None:
    policy = policy_of(CompactionSettings(lease_s=lease_s), RetentionSettings())
    clock = LeaseClock(stall_ns=policy.stall_ns, monotonic_ns=0)
    crew = WorkerRegistry(hearing_since=LeaseTime(0))
    for round_ in range(100):
        waited_ns = round_ * int(patience_s(policy.stall_ns) * SECOND_NS)
        crew.listen(clock.now(waited_ns), pause_ns=policy.stall_ns)
    assert crew.hearing_since == 0


@pytest.mark.parametrize(("own", "failures", "spared"), [(True, 1, 0), (False, 0, 1)])
def test_a_worker_says_whether_the_plan_or_what_is_around_it_failed(
    own: bool, failures: int, spared: int
) -> None:
    office = Office()
    office.add(1, 2, 3)
    (lease,) = office.begun()
    (ended,) = office.fail(lease, own=own, cause="the store did not answer")
    assert ended == AttemptEnded(
        lease.plan, lease.token, AttemptEnd.FAILED, "the store did not answer", own
    )
    plan = office.plan(lease.plan)
    assert (plan.failures, plan.spared) == (failures, spared)
    assert plan.eligible_at == office.now + SMALL.retry_ns


def spared_once(office: Office) -> None:
    (lease,) = office.poll(W1)
    office.fail(lease, own=False)
    office.rested()


def test_what_was_spared_too_often_counts_after_all_and_then_is_spared_anew() -> None:
    policy = msgspec.structs.replace(SMALL, spared_max=3, failure_limit=5)
    office = Office(Fold(policy=policy))
    office.add(1, 2, 3)
    seen = []
    for _ in range(8):
        spared_once(office)
        (plan,) = office.fold.state.plans.values()
        seen.append((plan.failures, plan.spared))
    assert seen == [(0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]


def test_a_plan_that_kills_every_worker_before_it_starts_is_set_aside_in_the_end() -> None:
    policy = msgspec.structs.replace(SMALL, spared_max=2, failure_limit=2)
    office = Office(Fold(policy=policy))
    office.add(1, 2, 3)
    (lease,) = office.poll(W1)
    for _ in range(2 * 3):
        assert office.plan(lease.plan).failures < 2
        office.wait(16)
        office.poll(W1)
    assert lease.plan in office.fold.state.finished  # divided: two plans own its inputs
    assert len(office.fold.state.plans) == 2


def test_a_completion_and_a_counted_failure_forget_what_was_spared() -> None:
    office = Office()
    office.add(1, 2, 3)
    spared_once(office)
    (lease,) = office.poll(W2)
    office.fail(lease, own=True)
    assert office.plan(lease.plan).spared == 0
    office.rested()
    (lease,) = office.poll(W1)
    office.complete(lease)
    assert office.plan(lease.plan).spared == 0


def test_replicas_fold_the_verdict_and_judge_nothing_themselves() -> None:
    """The same expired lease, by two leaders of different minds."""
    for counts in (True, False):
        office = Office()
        office.add(1, 2, 3)
        (lease,) = office.begun()
        office.wait(16)
        grant = Grant(lease.plan, W2, LeaseTime(office.now + 1), lease.token, counts)
        office.fold.put(PlansLeased((grant,)))
        assert office.plan(lease.plan).failures == counts
