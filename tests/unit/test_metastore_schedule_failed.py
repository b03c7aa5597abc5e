"""Plans that failed run alone and elsewhere; a busy worker is drained for one."""

from __future__ import annotations

from maar.metastore.decide.workers import PRESENT_NS
from maar.metastore.records.effects import Leased
from maar.model.ids import PlanId, WorkerId
from maar.model.time import SECOND_NS
from support.metastore.fold import SMALL
from support.metastore.leader_term import W1, W2, W3, Office
from support.metastore.schedule_steps import plans_of


def failed_once(office: Office, worker: WorkerId = W1, first: int = 900) -> PlanId:
    """A plan that has failed on a worker, and can be had again."""
    office.add(first, first + 1, first + 2, shard=9)
    (lease,) = office.begun(worker)
    office.fail(lease)
    office.wait(SMALL.retry_ns / SECOND_NS)
    return lease.plan


def test_a_plan_that_failed_runs_alone_on_its_worker() -> None:
    office = Office()
    plan = failed_once(office)
    (alone,) = office.begun(W2, 8)
    assert alone.plan == plan
    office.add(*range(12))
    assert office.poll(W2, 7) == []  # not in company
    assert len(office.poll(W1, 1)) == 1
    office.complete(alone)
    assert len(office.poll(W2, 8)) == 3


def test_a_plan_whose_lease_ran_out_by_its_own_fault_runs_alone_too() -> None:
    office = Office()
    office.add(*range(6))
    first, second = office.begun(W1, 2)
    office.wait(10)
    office.renew(second)
    office.wait(6)
    assert office.poll(W1, 3) == []  # it has the other one
    (alone,) = office.poll(W2, 3)
    assert alone.plan == first.plan
    assert office.plan(first.plan).failures == 1


def test_a_worker_that_is_busy_does_not_get_a_plan_that_failed() -> None:
    office = Office()
    office.add(1, 2, 3)
    (busy,) = office.begun(W2)
    plan = failed_once(office)
    assert office.poll(W2, 8) == []
    office.complete(busy)
    assert plans_of(office.poll(W2, 8)) == [plan]


def test_rather_another_worker_than_the_one_it_failed_on() -> None:
    office = Office()
    office.poll(W2)
    plan = failed_once(office, W1)
    assert office.poll(W1) == []
    assert plans_of(office.poll(W2)) == [plan]


def test_the_same_worker_again_when_it_is_the_only_one() -> None:
    office = Office()
    office.poll(W2)
    office.wait(PRESENT_NS / SECOND_NS)
    plan = failed_once(office, W1)
    assert plans_of(office.poll(W1)) == [plan]


def test_the_same_worker_again_when_the_others_do_not_come_for_it() -> None:
    office = Office()
    plan = failed_once(office, W1)
    for _ in range(6):
        assert office.poll(W2, 0) == []  # it is there, and wants nothing
        assert office.poll(W1) == []
        office.wait(PRESENT_NS / SECOND_NS / 6)
    office.poll(W2, 0)
    office.wait(0.001)
    assert plans_of(office.poll(W1)) == [plan]


def test_what_was_not_its_own_failure_needs_no_worker_for_itself() -> None:
    office = Office()
    office.add(*range(6))
    leases = office.begun(W1, 2)
    for lease in leases:
        office.fail(lease, own=False)
    office.rested()
    assert plans_of(office.poll(W1, 2)) == plans_of(leases)


def drained(office: Office) -> WorkerId | None:
    return office.crew.drained


def busy_worker(office: Office, slots: int) -> list[Leased]:
    """A worker whose slots are full, while much more waits."""
    office.add(*range(300))
    return office.begun(W1, slots)


def turn(office: Office, running: list[Leased], slots: int) -> list[Leased]:
    """The oldest plan completes, and the worker asks for what it has room for."""
    office.complete(running.pop(0))
    office.wait(1)
    for lease in running:
        office.renew(lease)
    got = office.poll(W1, slots - len(running))
    running += got
    return got


def test_a_worker_that_is_never_empty_is_drained_for_a_plan_that_failed() -> None:
    office = Office()
    plan = failed_once(office, W2)
    office.wait(PRESENT_NS / SECOND_NS + 1)  # w2 is gone
    running = busy_worker(office, 4)
    assert plan not in plans_of(running)
    handed = 4
    while running:
        got = turn(office, running, 4)
        handed += len(got)
        assert handed <= 2 * SMALL.least_share
        if plan in plans_of(got):
            assert running == got
            break
    assert office.plan(plan).lease is not None
    assert office.crew.drained is None


def test_nobody_is_drained_while_somebody_is_free() -> None:
    office = Office()
    plan = failed_once(office, W3)
    office.wait(PRESENT_NS / SECOND_NS + 1)  # w3 is gone
    running = busy_worker(office, 4)
    for _ in range(30):
        office.crew.hear(W2, wants=True, now=office.now)  # empty, and comes soon
        assert len(turn(office, running, 4)) == 1
        assert office.crew.drained is None
    assert plans_of(office.poll(W2, 4)) == [plan]


def test_one_worker_at_a_time_is_drained() -> None:
    office = Office()
    failed_once(office, W3, first=900)
    failed_once(office, W3, first=800)
    office.wait(PRESENT_NS / SECOND_NS + 1)
    office.add(*range(600))
    running = {W1: office.begun(W1, 4), W2: office.begun(W2, 4)}
    starved = 0
    for _ in range(12):
        office.wait(1)
        for lease in [*running[W1], *running[W2]]:
            office.renew(lease)
        for worker, leases in running.items():
            office.complete(leases.pop(0))
            leases += office.poll(worker, 4 - len(leases))
        starved = max(starved, sum(len(leases) < 3 for leases in running.values()))
    assert starved == 1


def test_a_worker_that_left_while_it_was_drained_holds_up_nobody() -> None:
    office = Office()
    plan = failed_once(office, W3)
    office.wait(PRESENT_NS / SECOND_NS + 1)
    running = busy_worker(office, 4)
    for _ in range(2 * SMALL.least_share):
        if office.crew.drained is None:
            turn(office, running, 4)
    assert drained(office) == W1
    office.wait(PRESENT_NS / SECOND_NS + 1)  # w1 died, and w2 comes
    office.poll(W2, 0)
    assert drained(office) is None
    given: list[PlanId] = []
    for _ in range(SMALL.least_share):
        (lease,) = office.begun(W2)
        office.complete(lease)
        given.append(lease.plan)
    assert plan in given


def test_a_worker_is_drained_no_longer_when_others_were_quicker() -> None:
    office = Office()
    plan = failed_once(office, W3)
    office.wait(PRESENT_NS / SECOND_NS + 1)
    running = busy_worker(office, 4)
    for _ in range(2 * SMALL.least_share):
        if office.crew.drained is None:
            turn(office, running, 4)
    assert office.crew.drained == W1
    given: list[PlanId] = []
    while plan not in given:  # one of eight at the latest
        assert len(given) < SMALL.least_share
        (lease,) = office.begun(W2)
        office.complete(lease)
        given.append(lease.plan)
    assert len(turn(office, running, 4)) > 0
