"""Who gets which plan: small jobs first, those that failed alone and elsewhere, nobody never."""

from __future__ import annotations

import msgspec
import pytest

from maar.metastore.decide import schedule
from maar.metastore.decide.schedule import Wish
from maar.metastore.decide.verdict import ALWAYS
from maar.metastore.decide.workers import PRESENT_NS
from maar.metastore.records.effects import AttemptEnded, Leased, Refusal, Refused
from maar.metastore.records.entries import (
    AttemptFenced,
    AttemptKey,
    Grant,
    LimitRaised,
    LitterSwept,
    PlanBisected,
    PlanExcluded,
    PlanFailed,
    PlansLeased,
    PlansScheduled,
    PolicySet,
)
from maar.model.block import BlockMeta
from maar.model.ids import PlanId, WorkerId
from maar.model.plan import PlanState
from maar.model.policy import Policy
from maar.model.time import SECOND_NS, LeaseTime
from support.metastore.fold import SMALL, Fold
from support.metastore.leader_term import W1, W2, W3, Office


def office_with(**numbers: int) -> Office:
    return Office(Fold(policy=msgspec.structs.replace(SMALL, **numbers)))


def plans_of(leases: list[Leased]) -> list[PlanId]:
    return [lease.plan for lease in leases]


def failed_once(office: Office, worker: WorkerId = W1, first: int = 900) -> PlanId:
    """A plan that has failed on a worker, and can be had again."""
    office.add(first, first + 1, first + 2, shard=9)
    (lease,) = office.begun(worker)
    office.fail(lease)
    office.wait(SMALL.retry_ns / SECOND_NS)
    return lease.plan


# ── a round ────────────────────────────────────────────────────────────────────────────────────


def test_one_poll_plans_and_leases_with_ids_of_the_entry_that_scheduled() -> None:
    office = Office()
    office.add(1, 2, 3, 4, 5, 6)
    before = office.fold.state.index
    entries = schedule.assign(office.fold.state, [Wish(W1, 5)], now=LeaseTime(0))
    scheduled, leased = entries
    assert isinstance(scheduled, PlansScheduled)
    assert isinstance(leased, PlansLeased)
    assert [g.plan for g in leased.grants] == [PlanId(before + 1, 0), PlanId(before + 1, 1)]
    tokens = {effect.token.index for effect in office.put(entries) if isinstance(effect, Leased)}
    assert tokens == {before + 2}


def test_as_many_plans_are_made_as_there_are_free_slots() -> None:
    office = Office()
    office.add(*range(30))
    assert len(office.poll(W1, 4)) == 4
    assert len(office.fold.state.plans) == 4


def test_capacity_is_shared_in_the_order_of_asking() -> None:
    office = Office()
    office.add(*range(12))
    leases = office.hand_out(Wish(W1, 1), Wish(W2, 2), Wish(W3, 0))
    assert [lease.worker for lease in leases] == [W1, W2, W2]


def test_two_wishes_of_one_worker_are_one() -> None:
    office = Office()
    office.add(*range(12))
    assert len(office.hand_out(Wish(W1, 1), Wish(W1, 2))) == 3


@pytest.mark.parametrize("capacity", [0, -5])
def test_nobody_wants_anything(capacity: int) -> None:
    office = Office()
    office.add(*range(12))
    assert office.poll(W1, capacity) == []
    assert len(office.fold.state.plans) == 0


def test_small_jobs_go_first_whether_they_wait_or_are_still_to_be_planned() -> None:
    office = Office()
    office.add(*range(6))
    for lease in office.poll(W1, 2):
        office.complete(lease)
    (large,) = office.poll(W1, 1)
    assert office.plan(large.plan).key.level == 1
    office.wait(16)  # abandoned before it began
    office.add(*range(10, 16))
    small = office.poll(W2, 3)
    assert [office.plan(lease.plan).key.level for lease in small] == [0, 0, 1]
    assert small[2].plan == large.plan


def test_an_expired_lease_is_handed_on_even_when_live_leases_come_before_it() -> None:
    office = Office()
    office.add(1, 2, 3, 4, 5, 6)
    first, second = office.poll(W1, 2)
    office.wait(10)
    office.renew(first)
    office.wait(6)
    (again,) = office.poll(W2, 5)
    assert again.plan == second.plan
    assert again.token > second.token


def test_a_lease_has_expired_when_time_exceeds_it_and_not_before() -> None:
    office = Office()
    office.add(1, 2, 3)
    (lease,) = office.begun()
    office.fold.now += SMALL.lease_ns
    assert schedule.assign(office.fold.state, [Wish(W2, 1)], now=office.now) == []
    assert len(office.fold.state.plans.work_of(W1, office.now)) == 1
    office.fold.now += 1
    assert office.fold.state.plans.work_of(W1, office.now) == []
    assert plans_of(office.poll(W2)) == [lease.plan]


def test_the_order_among_plans_that_wait() -> None:
    """Unassigned before abandoned; fewer failures; longest since; order of planning."""
    office = office_with(failure_limit=9)
    office.add(*range(18))
    a, b, c, d, e, f = office.begun(W1, 6)
    office.put([PlanFailed(c.plan, c.token, "x", LeaseTime(0), counts=False)])
    office.put([PlanFailed(f.plan, f.token, "x", LeaseTime(0), counts=False)])
    for lease in (d, e):
        office.put([PlanFailed(lease.plan, lease.token, "x", LeaseTime(0))])
    (again,) = office.begun(W2, 1)  # fails a second time
    assert again.plan == c.plan
    office.put([PlanFailed(c.plan, again.token, "x", LeaseTime(0), counts=False)])
    office.wait(1)
    office.renew(a)
    office.wait(16)
    state, now = office.fold.state, office.now
    healthy = schedule.healthy(state, 0, now=now, hearing_since=now)
    assert [plan.id for plan in healthy] == plans_of([c, f, b, a])  # b's lease ended sooner
    failing = schedule.failing(state, 0, now=now, hearing_since=ALWAYS)
    assert [plan.id for plan in failing] == plans_of([d, e, b, a])


def test_a_plan_that_reported_a_failure_rests_first() -> None:
    office = Office()
    office.add(1, 2, 3)
    (lease,) = office.begun()
    office.fail(lease)
    assert office.poll(W2) == []
    office.wait(SMALL.retry_ns / SECOND_NS)
    assert plans_of(office.poll(W2)) == [lease.plan]


# ── alone, and elsewhere ───────────────────────────────────────────────────────────────────────


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


# ── shares ─────────────────────────────────────────────────────────────────────────────────────


def backlog_on_all_levels(office: Office) -> None:
    """Work for hours on level 0, and some on 1 and 2."""
    office.add(*range(36))
    for level in (0, 1):
        for lease in office.poll(W1, 12 >> level):
            assert office.plan(lease.plan).key.level == level
            office.complete(lease)
    office.add(*range(100, 130), shard=2)
    for lease in office.poll(W1, 10):
        office.complete(lease)
    office.add(*range(1000, 1600), shard=3)
    office.crew.turns.clear()


@pytest.mark.parametrize("slots", [1, 3, 16])
def test_higher_levels_get_their_share_however_many_slots_there_are(slots: int) -> None:
    office = Office()
    backlog_on_all_levels(office)
    levels: list[int] = []
    while len(levels) < 32:
        for lease in office.poll(W1, slots):
            levels.append(office.plan(lease.plan).key.level)
            office.complete(lease)
    assert set(levels[:9]) == {0, 1, 2}
    assert levels.count(1) >= 2
    assert levels.count(2) >= 2
    assert levels.count(0) > len(levels) / 2


def test_plans_that_failed_do_not_hold_up_the_healthy_ones_nor_the_other_way_round() -> None:
    """One slot; twenty plans that always fail, and enough work for hours."""
    office = office_with(failure_limit=99)
    for n in range(20):
        office.add(*range(1000 + 3 * n, 1003 + 3 * n), shard=7)
    bad = set(plans_of(leases := office.begun(W1, 20)))
    for lease in leases:
        office.fail(lease)
    office.rested()
    office.add(*range(600))
    given = []
    for _ in range(80):
        (lease,) = office.begun(W1, 1)
        given.append(lease.plan in bad)
        if lease.plan in bad:
            office.fail(lease)
        else:
            office.complete(lease)
        office.wait(1)
    for start in range(64):
        window = given[start : start + 10]
        assert any(window)
        assert sum(window) <= 2


# ── the limit ──────────────────────────────────────────────────────────────────────────────────


def test_a_plan_at_its_limit_is_halved_until_the_bad_input_is_alone_and_then_excluded() -> None:
    office = Office()
    blocks = office.add(1, 2, 3)
    bad = blocks[2]
    for _ in range(40):
        for lease in office.begun(W1, 10):
            if bad not in office.plan(lease.plan).inputs:
                office.complete(lease)  # else the worker dies and says nothing
        office.wait(16)
        office.set_aside()
        if any(p.state is PlanState.EXCLUDED for p in office.fold.state.plans.values()):
            break
    (held,) = (p for p in office.fold.state.plans.values() if p.state is PlanState.EXCLUDED)
    assert held.inputs == (bad,)
    assert blocks[0] not in office.fold.live()
    assert blocks[1] not in office.fold.live()


def test_an_excluded_plan_is_probed_with_doubling_delay() -> None:
    office = office_with(failure_limit=1)
    office.add(1)
    office.wait(11)
    delays = []
    for _ in range(3):
        assert len(office.begun()) == 1
        office.wait(16)
        (entry,) = office.set_aside()
        assert isinstance(entry, PlanExcluded)
        delays.append(entry.eligible_at - office.now)
        office.fold.now = entry.eligible_at - 1
        assert office.poll() == []
        office.fold.now += 1
    assert delays == [SMALL.probe_ns, 2 * SMALL.probe_ns, 4 * SMALL.probe_ns]


def excluded(office: Office, count: int) -> list[PlanId]:
    """Plans of one block each that are over their limit."""
    for n in range(count):
        office.add(n, shard=n + 1)
    office.wait(11)
    leases = office.begun(W1, count)
    office.wait(16)
    office.set_aside()
    assert [office.plan(lease.plan).state for lease in leases] == [PlanState.EXCLUDED] * count
    return plans_of(leases)


def test_excluded_plans_are_probed_one_at_a_time() -> None:
    office = office_with(failure_limit=1)
    plans = excluded(office, 3)
    office.wait(3600)
    probed = []
    for _ in range(3):
        (lease,) = office.hand_out(Wish(W1, 5), Wish(W2, 5))
        assert office.hand_out(Wish(W1, 5), Wish(W2, 5)) == []
        probed.append(lease.plan)
        office.complete(lease)
    assert sorted(probed) == plans


def test_a_probe_that_was_not_its_own_failure_comes_again_after_the_same_delay() -> None:
    office = office_with(failure_limit=1)
    (plan,) = excluded(office, 1)
    for _ in range(3):
        office.fold.now = office.plan(plan).eligible_at
        (lease,) = office.begun()
        office.fail(lease, own=False)
        (entry,) = office.set_aside()
        assert isinstance(entry, PlanExcluded)
        assert entry.eligible_at - office.now == SMALL.probe_ns


def test_what_was_set_aside_is_left_alone_until_it_is_probed() -> None:
    office = office_with(failure_limit=1)
    office.add(1, 2, 3)
    office.begun()
    office.wait(16)
    (entry,) = office.set_aside()
    assert isinstance(entry, PlanBisected)
    assert office.set_aside() == []


def test_planning_stops_at_the_bound_of_plans() -> None:
    office = office_with(plans_max=2)
    office.add(*range(12))
    assert len(office.poll(W1, 10)) == 2
    assert office.poll(W1, 10) == []


def test_at_the_bound_of_plans_the_whole_is_excluded_and_divided_when_there_is_room() -> None:
    office = office_with(plans_max=2, failure_limit=1)
    office.add(*range(6))
    leases = office.begun(W1, 2)
    office.wait(16)
    assert [type(entry) for entry in office.set_aside()] == [PlanExcluded, PlanExcluded]
    assert office.set_aside() == []
    roomy = msgspec.structs.replace(SMALL, plans_max=3, failure_limit=1)
    office.fold.put(PolicySet(roomy))
    office.rested()
    (probe,) = office.begun()
    office.wait(16)
    (entry,) = office.set_aside()
    assert isinstance(entry, PlanBisected)
    assert entry.plan == probe.plan == leases[0].plan


def test_a_flood_of_plans_at_their_limit_is_set_aside_in_bounded_steps() -> None:
    office = office_with(failure_limit=1)
    for n in range(150):
        office.add(n, shard=n + 1)
    office.wait(11)
    rounds = [len(office.begun(W1, 150)) for _ in range(3)]
    assert rounds == [schedule.GRANTED_AT_ONCE] * 2 + [150 - 2 * schedule.GRANTED_AT_ONCE]
    office.wait(16)
    assert [len(office.set_aside()) for _ in range(3)] == [schedule.SET_ASIDE_AT_ONCE, 50, 0]


# ── a raised limit ─────────────────────────────────────────────────────────────────────────────


def test_while_the_limit_is_raised_excluded_plans_are_tried_again_without_rest() -> None:
    office = office_with(failure_limit=1)
    plans = excluded(office, 3)
    assert office.poll(W2, 5) == []
    office.fold.put(LimitRaised(3, LeaseTime(office.now + 60 * SECOND_NS)))
    tried = office.hand_out(Wish(W2, 5), Wish(W3, 5))
    assert plans_of(tried) == plans[:2]  # each alone on a worker
    office.fail(tried[0])
    assert office.set_aside() == []  # two failures of three
    office.complete(tried[1])
    (third,) = office.poll(W3)
    assert third.plan == plans[2]


def test_when_the_raise_is_over_the_limit_of_the_plan_is_in_force_again() -> None:
    office = office_with(failure_limit=1)
    (plan,) = excluded(office, 1)
    office.fold.put(LimitRaised(9, LeaseTime(office.now + 5 * SECOND_NS)))
    (lease,) = office.begun(W2)
    office.fail(lease)
    office.wait(5)
    assert office.set_aside() == []
    office.wait(0.001)
    (entry,) = office.set_aside()
    assert isinstance(entry, PlanExcluded)
    assert office.plan(plan).failures == 2
    early = Grant(plan, W1, LeaseTime(office.now + 9), None)
    assert office.fold.put(PlansLeased((early,))) == (Refused(Refusal.NOT_ELIGIBLE, plan),)


# ── litter ─────────────────────────────────────────────────────────────────────────────────────


def test_no_attempt_begins_when_too_many_have_left_litter() -> None:
    office = office_with(litter_max=3)
    office.add(*range(30))
    first, second = office.poll(W1, 2)
    office.complete(first)
    assert len(office.fold.state.litter) == 1
    (third,) = office.poll(W1, 5)
    assert office.poll(W2, 5) == []
    spare = Grant(PlanId(0, 0), W2, LeaseTime(office.now + 9), None)
    plan = next(p for p in office.fold.state.plans.values() if p.lease).id
    office.wait(16)
    seen = office.plan(plan).lease
    assert seen is not None
    again = msgspec.structs.replace(spare, plan=plan, replaces=seen.token)
    assert office.fold.put(PlansLeased((again,))) == (Refused(Refusal.TOO_MANY, plan),)
    office.fold.put(LitterSwept(tuple(office.fold.state.litter)))
    assert plans_of(office.poll(W2, 1)) == [second.plan]
    assert third.plan != second.plan


def test_every_end_of_an_attempt_leaves_its_remains_to_be_looked_for() -> None:
    office = Office()
    office.add(*range(12))
    completed, failed, expired, fenced = office.begun(W1, 4)
    office.complete(completed)
    office.fail(failed)
    office.fold.put(AttemptFenced(fenced.plan, fenced.token, "by hand"))
    office.wait(16)
    for worker in (W1, W2, W3):
        office.poll(worker)
    left = office.fold.state.litter
    ended = [completed, failed, fenced, expired]
    assert list(left) == [AttemptKey(lease.plan, lease.token) for lease in ended]
    assert [remnant.completed for remnant in left.values()] == [True, False, False, False]


def test_a_log_of_version_1_keeps_no_litter_and_has_no_bound_of_it() -> None:
    tight = msgspec.structs.replace(SMALL, litter_max=1)
    office = Office(Fold(policy=tight, version=1))
    office.add(*range(12))
    for lease in office.poll(W1, 4):
        office.fail(lease)
    assert office.fold.state.litter == {}
    assert len(office.fold.state.plans) == 4


# ── nothing starves ────────────────────────────────────────────────────────────────────────────


HOUR_POLICY = Policy(levels=SMALL.levels, failure_limit=3, plans_max=60, parked_max=40)


def test_an_hour_in_which_one_plan_in_five_fails_starves_nobody() -> None:
    """Three workers of different sizes; shard 5 is poison, and a worker dies now and then."""
    office = Office(Fold(policy=HOUR_POLICY))
    slots = {W1: 1, W2: 1, W3: 2}
    running: dict[WorkerId, list[Leased]] = {worker: [] for worker in slots}
    number = 0
    waited_most = 0.0
    for second in range(3600):
        if second % 2 == 0:
            for shard in range(1, 6):
                if shard != 5 or second % 60 == 0:
                    office.add(number, shard=shard)
                    number += 1
        for worker, leases in running.items():
            step(office, leases, second, dies=worker == W3 and second % 600 == 599)
            leases += office.begun(worker, slots[worker] - len(leases))
        office.keep_house()
        office.wait(1)
        waited_most = max(waited_most, oldest_healthy_s(office))
        assert len(office.fold.state.plans) <= HOUR_POLICY.plans_max
    state = office.fold.state
    held = [p for p in [*state.plans.values(), *state.parked.values()] if p.key.shard == 5]
    assert waited_most < 60  # lanes close after 10, 20 and 40 s
    assert all(p.attempts for p in held)
    tried = [p.attempts[-1].granted_at for p in state.plans.values() if p.key.shard == 5]
    assert office.now - max(tried) < 120 * SECOND_NS  # the bad ones are tried all the time
    assert max(meta.level for meta in metas(office)) == 3


def step(office: Office, leases: list[Leased], second: int, *, dies: bool) -> None:
    """Work of two seconds, or a failure, or the end of a worker that says nothing."""
    if dies:
        leases.clear()
    for lease in list(leases):
        if office.plan(lease.plan).key.shard == 5:
            leases.remove(lease)
            assert isinstance(office.fail(lease, cause="poison")[0], AttemptEnded)
        elif (second + lease.plan.index) % 2 == 0:
            leases.remove(lease)
            office.complete(lease)
        else:
            office.renew(lease)


def oldest_healthy_s(office: Office) -> float:
    """How long the oldest block that is queued, and not poison, has waited after its time."""
    queue, found = office.fold.state.queue, [0.0]
    for level, fronts in queue.fronts.items():
        rule = HOUR_POLICY.levels[level]
        front = next((f for f in fronts if f.key.shard != 5), None)
        if front:
            found.append((office.now - front.added_at - rule.age_ns) / SECOND_NS)
    return max(found)


def metas(office: Office) -> list[BlockMeta]:
    return [office.fold.state.blocks.get(block) for block in office.fold.live()]
