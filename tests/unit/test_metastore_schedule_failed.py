"""Plans that failed run alone and elsewhere; a busy worker is drained for one."""

from __future__ import annotations

from maar.metastore.decide.workers import PRESENT_NS
from maar.metastore.records.effects import Leased
from maar.model.ids import PlanId, WorkerId
from maar.model.time import SECOND_NS
from maar.services.kinds import KINDS
from support.metastore.fold import SMALL
from support.metastore.leader_term import W1, W2, W3, LeaderDecisions
from support.metastore.schedule_steps import plans_of


def failed_once(leader_term: LeaderDecisions, worker: WorkerId = W1, first: int = 900) -> PlanId:
    """A plan that has failed on a worker, and can be had again."""
    leader_term.add(first, first + 1, first + 2, shard=9)
    (lease,) = leader_term.start_plans(worker)
    leader_term.fail(lease)
    leader_term.wait(SMALL.retry_ns / SECOND_NS)
    return lease.plan


def test_a_plan_that_failed_runs_alone_on_its_worker() -> None:
    leader_term = LeaderDecisions()
    plan = failed_once(leader_term)
    (alone,) = leader_term.start_plans(W2, 8)
    assert alone.plan == plan
    leader_term.add(*range(12))
    assert leader_term.poll(W2, 7) == []  # not in company
    assert len(leader_term.poll(W1, 1)) == 1
    leader_term.complete(alone)
    assert len(leader_term.poll(W2, 8)) == 3


def test_a_plan_whose_lease_ran_out_by_its_own_fault_runs_alone_too() -> None:
    leader_term = LeaderDecisions()
    leader_term.add(*range(6))
    first, second = leader_term.start_plans(W1, 2)
    leader_term.wait(10)
    leader_term.renew(second)
    leader_term.wait(6)
    assert leader_term.poll(W1, 3) == []  # it has the other one
    (alone,) = leader_term.poll(W2, 3)
    assert alone.plan == first.plan
    assert leader_term.plan(first.plan).failures == 1


def test_a_worker_that_is_busy_does_not_get_a_plan_that_failed() -> None:
    leader_term = LeaderDecisions()
    leader_term.add(1, 2, 3)
    (busy,) = leader_term.start_plans(W2)
    plan = failed_once(leader_term)
    assert leader_term.poll(W2, 8) == []
    leader_term.complete(busy)
    assert plans_of(leader_term.poll(W2, 8)) == [plan]


def test_rather_another_worker_than_the_one_it_failed_on() -> None:
    leader_term = LeaderDecisions()
    leader_term.poll(W2)
    plan = failed_once(leader_term, W1)
    assert leader_term.poll(W1) == []
    assert plans_of(leader_term.poll(W2)) == [plan]


def test_the_same_worker_again_when_it_is_the_only_one() -> None:
    leader_term = LeaderDecisions()
    leader_term.poll(W2)
    leader_term.wait(PRESENT_NS / SECOND_NS)
    plan = failed_once(leader_term, W1)
    assert plans_of(leader_term.poll(W1)) == [plan]


def test_the_same_worker_again_when_the_others_do_not_come_for_it() -> None:
    leader_term = LeaderDecisions()
    plan = failed_once(leader_term, W1)
    for _ in range(6):
        assert leader_term.poll(W2, 0) == []  # it is there, and wants nothing
        assert leader_term.poll(W1) == []
        leader_term.wait(PRESENT_NS / SECOND_NS / 6)
    leader_term.poll(W2, 0)
    leader_term.wait(0.001)
    assert plans_of(leader_term.poll(W1)) == [plan]


def test_what_was_not_its_own_failure_needs_no_worker_for_itself() -> None:
    leader_term = LeaderDecisions()
    leader_term.add(*range(6))
    leases = leader_term.start_plans(W1, 2)
    for lease in leases:
        leader_term.fail(lease, own=False)
    leader_term.pass_rest()
    assert plans_of(leader_term.poll(W1, 2)) == plans_of(leases)


def drained(leader_term: LeaderDecisions) -> WorkerId | None:
    return leader_term.worker_registry.drained


def busy_worker(leader_term: LeaderDecisions, slots: int) -> list[Leased]:
    """A worker whose slots are full, while much more waits."""
    leader_term.add(*range(300))
    return leader_term.start_plans(W1, slots)


def turn(leader_term: LeaderDecisions, running: list[Leased], slots: int) -> list[Leased]:
    """The oldest plan completes, and the worker asks for what it has room for."""
    leader_term.complete(running.pop(0))
    leader_term.wait(1)
    for lease in running:
        leader_term.renew(lease)
    got = leader_term.poll(W1, slots - len(running))
    running += got
    return got


def test_a_worker_that_is_never_empty_is_drained_for_a_plan_that_failed() -> None:
    leader_term = LeaderDecisions()
    plan = failed_once(leader_term, W2)
    leader_term.wait(PRESENT_NS / SECOND_NS + 1)  # w2 is gone
    running = busy_worker(leader_term, 4)
    assert plan not in plans_of(running)
    handed = 4
    while running:
        got = turn(leader_term, running, 4)
        handed += len(got)
        assert handed <= 2 * SMALL.least_share
        if plan in plans_of(got):
            assert running == got
            break
    assert leader_term.plan(plan).lease is not None
    assert leader_term.worker_registry.drained is None


def test_nobody_is_drained_while_somebody_is_free() -> None:
    leader_term = LeaderDecisions()
    plan = failed_once(leader_term, W3)
    leader_term.wait(PRESENT_NS / SECOND_NS + 1)  # w3 is gone
    running = busy_worker(leader_term, 4)
    for _ in range(30):
        leader_term.worker_registry.hear(
            W2, wants=True, kinds=frozenset(KINDS), now=leader_term.now
        )  # empty, and comes soon
        assert len(turn(leader_term, running, 4)) == 1
        assert leader_term.worker_registry.drained is None
    assert plans_of(leader_term.poll(W2, 4)) == [plan]


def test_one_worker_at_a_time_is_drained() -> None:
    leader_term = LeaderDecisions()
    failed_once(leader_term, W3, first=900)
    failed_once(leader_term, W3, first=800)
    leader_term.wait(PRESENT_NS / SECOND_NS + 1)
    leader_term.add(*range(600))
    running = {W1: leader_term.start_plans(W1, 4), W2: leader_term.start_plans(W2, 4)}
    starved = 0
    for _ in range(12):
        leader_term.wait(1)
        for lease in [*running[W1], *running[W2]]:
            leader_term.renew(lease)
        for worker, leases in running.items():
            leader_term.complete(leases.pop(0))
            leases += leader_term.poll(worker, 4 - len(leases))
        starved = max(starved, sum(len(leases) < 3 for leases in running.values()))
    assert starved == 1


def test_a_worker_that_left_while_it_was_drained_holds_up_nobody() -> None:
    leader_term = LeaderDecisions()
    plan = failed_once(leader_term, W3)
    leader_term.wait(PRESENT_NS / SECOND_NS + 1)
    running = busy_worker(leader_term, 4)
    for _ in range(2 * SMALL.least_share):
        if leader_term.worker_registry.drained is None:
            turn(leader_term, running, 4)
    assert drained(leader_term) == W1
    leader_term.wait(PRESENT_NS / SECOND_NS + 1)  # w1 died, and w2 comes
    leader_term.poll(W2, 0)
    assert drained(leader_term) is None
    given: list[PlanId] = []
    for _ in range(SMALL.least_share):
        (lease,) = leader_term.start_plans(W2)
        leader_term.complete(lease)
        given.append(lease.plan)
    assert plan in given


def test_a_worker_is_drained_no_longer_when_others_were_quicker() -> None:
    leader_term = LeaderDecisions()
    plan = failed_once(leader_term, W3)
    leader_term.wait(PRESENT_NS / SECOND_NS + 1)
    running = busy_worker(leader_term, 4)
    for _ in range(2 * SMALL.least_share):
        if leader_term.worker_registry.drained is None:
            turn(leader_term, running, 4)
    assert leader_term.worker_registry.drained == W1
    given: list[PlanId] = []
    while plan not in given:  # one of eight at the latest
        assert len(given) < SMALL.least_share
        (lease,) = leader_term.start_plans(W2)
        leader_term.complete(lease)
        given.append(lease.plan)
    assert len(turn(leader_term, running, 4)) > 0
