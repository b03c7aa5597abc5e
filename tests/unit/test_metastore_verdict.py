"""A failure counts only when the plan was at fault; others are excused, up to a limit."""

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
from maar.model.services import CompactService, ServicesSettings
from maar.model.time import SECOND_NS, LeaseTime
from support.metastore.fold import SMALL, Fold
from support.metastore.leader_term import W1, W2, LeaderDecisions


def abandoned(*, started: bool, renewed: bool, restarted: bool, deaf: bool) -> LeaderDecisions:
    """A lease that ran out, 16 s after it was last granted or renewed."""
    leader_term = LeaderDecisions()
    leader_term.wait(1)
    leader_term.add(1, 2, 3)
    (lease,) = leader_term.poll()
    leader_term.wait(5)
    if started:
        leader_term.renew(lease, started=True)
    leader_term.wait(5)
    if restarted:
        leader_term.fold.put(TermStarted(2, "two"))
        leader_term.worker_registry = WorkerRegistry(hearing_since=leader_term.now)
    if deaf:
        leader_term.worker_registry.listen(
            LeaseTime(leader_term.now - 6 * SECOND_NS), pause_ns=5 * SECOND_NS
        )
        leader_term.worker_registry.listen(leader_term.now, pause_ns=5 * SECOND_NS)
    leader_term.wait(1)
    if renewed:
        leader_term.renew(lease)
    leader_term.wait(16)
    return leader_term


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
    leader_term = abandoned(started=started, renewed=renewed, restarted=restarted, deaf=deaf)
    (plan,) = leader_term.fold.state.plans.values()
    (lease,) = leader_term.poll(W2)
    after = leader_term.plan(plan.id)
    assert lease.plan == plan.id
    assert (after.failures, after.excused) == ((1, 0) if counts else (0, 1))
    assert after.attempts[0].end is AttemptEnd.EXPIRED
    assert after.attempts[0].counted is counts


def test_a_leader_that_comes_round_in_time_was_never_away() -> None:
    worker_registry = WorkerRegistry()
    for second in range(100):
        worker_registry.listen(LeaseTime(second * SECOND_NS), pause_ns=5 * SECOND_NS)
    assert worker_registry.hearing_since == verdict.ALWAYS


@pytest.mark.parametrize("lease_s", [0.1, 1.0, 15.0])
def test_a_leader_that_waits_for_requests_is_not_away_however_short_leases_are(
    lease_s: float,
) -> None:
    policy = policy_of(
        CompactionSettings(),
        RetentionSettings(),
        ServicesSettings(compact=CompactService(lease_s=lease_s)),
    )
    clock = LeaseClock(stall_ns=policy.stall_ns, monotonic_ns=0)
    worker_registry = WorkerRegistry(hearing_since=LeaseTime(0))
    for round_ in range(100):
        waited_ns = round_ * int(patience_s(policy.stall_ns) * SECOND_NS)
        worker_registry.listen(clock.now(waited_ns), pause_ns=policy.stall_ns)
    assert worker_registry.hearing_since == 0


@pytest.mark.parametrize(("own", "failures", "excused"), [(True, 1, 0), (False, 0, 1)])
def test_a_worker_says_whether_the_plan_or_what_is_around_it_failed(
    own: bool, failures: int, excused: int
) -> None:
    leader_term = LeaderDecisions()
    leader_term.add(1, 2, 3)
    (lease,) = leader_term.start_plans()
    (ended,) = leader_term.fail(lease, own=own, cause="the store did not answer")
    assert ended == AttemptEnded(
        lease.plan, lease.token, AttemptEnd.FAILED, "the store did not answer", own
    )
    plan = leader_term.plan(lease.plan)
    assert (plan.failures, plan.excused) == (failures, excused)
    assert plan.eligible_at == leader_term.now + SMALL.retry_ns


def excused_once(leader_term: LeaderDecisions) -> None:
    (lease,) = leader_term.poll(W1)
    leader_term.fail(lease, own=False)
    leader_term.pass_rest()


def test_what_was_spared_too_often_counts_after_all_and_then_is_spared_anew() -> None:
    policy = msgspec.structs.replace(SMALL, excused_max=3, failure_limit=5)
    leader_term = LeaderDecisions(Fold(policy=policy))
    leader_term.add(1, 2, 3)
    seen = []
    for _ in range(8):
        excused_once(leader_term)
        (plan,) = leader_term.fold.state.plans.values()
        seen.append((plan.failures, plan.excused))
    assert seen == [(0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]


def test_a_plan_that_kills_every_worker_before_it_starts_is_set_aside_in_the_end() -> None:
    policy = msgspec.structs.replace(SMALL, excused_max=2, failure_limit=2)
    leader_term = LeaderDecisions(Fold(policy=policy))
    leader_term.add(1, 2, 3)
    (lease,) = leader_term.poll(W1)
    for _ in range(2 * 3):
        assert leader_term.plan(lease.plan).failures < 2
        leader_term.wait(16)
        leader_term.poll(W1)
    assert lease.plan in leader_term.fold.state.finished  # divided: two plans own its inputs
    assert len(leader_term.fold.state.plans) == 2


def test_a_completion_and_a_counted_failure_forget_what_was_spared() -> None:
    leader_term = LeaderDecisions()
    leader_term.add(1, 2, 3)
    excused_once(leader_term)
    (lease,) = leader_term.poll(W2)
    leader_term.fail(lease, own=True)
    assert leader_term.plan(lease.plan).excused == 0
    leader_term.pass_rest()
    (lease,) = leader_term.poll(W1)
    leader_term.complete(lease)
    assert leader_term.plan(lease.plan).excused == 0


def test_replicas_fold_the_verdict_and_judge_nothing_themselves() -> None:
    """The same expired lease, by two leaders of different versions."""
    for counts in (True, False):
        leader_term = LeaderDecisions()
        leader_term.add(1, 2, 3)
        (lease,) = leader_term.start_plans()
        leader_term.wait(16)
        grant = Grant(lease.plan, W2, LeaseTime(leader_term.now + 1), lease.token, counts)
        leader_term.fold.put(PlansLeased((grant,)))
        assert leader_term.plan(lease.plan).failures == counts
