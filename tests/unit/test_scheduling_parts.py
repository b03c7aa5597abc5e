"""Patterns, spreading, pace, resources, states and ages of jobs: pure functions of the schedule."""

from __future__ import annotations

import pytest

from maar.model.errors import InvalidInput
from maar.model.ids import StoreName, TenantId
from maar.model.plan import JobId, PlanKind
from maar.model.schedule import (
    AlarmLevel,
    ClockOffset,
    LockLevel,
    Schedule,
    ScheduleRule,
    check_rule,
    pattern,
    resources_of,
)
from maar.model.schedule_settings import ScheduleEntry
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime, WallTime
from maar.scheduling import pace, rules, spread, status
from maar.scheduling.queue import JobQueue, QueuedJob
from maar.scheduling.resources import Room
from maar.scheduling.status import JobStatus

HOUR_NS = 3600 * SECOND_NS
REPAIR = PlanKind("repair")
JOB = JobId(TenantId("acme"), REPAIR, "vnode")
WEEK = rules.with_interval(Schedule(interval_ns=0), 7 * DAY_NS)

# ── what is in force ───────────────────────────────────────────────────────────────────────────


def resolved(*given: ScheduleRule, commands: tuple[ScheduleRule, ...] = ()) -> Schedule:
    layers = rules.by_pattern(given), rules.by_pattern(commands)
    return rules.in_force(WEEK, JOB, *layers)[0]


def test_the_more_exact_rule_decides_and_the_rest_is_inherited() -> None:
    everybody = ScheduleRule(pattern(), interval_ns=10 * HOUR_NS, unwind_permille=500)
    tenant = ScheduleRule(pattern("acme"), interval_ns=20 * HOUR_NS)
    kind = ScheduleRule(pattern("*", "repair"), interval_ns=30 * HOUR_NS, weight=3)
    exact = ScheduleRule(pattern("acme", "repair", "vnode"), size_target=7)
    for order in ((everybody, tenant, kind, exact), (exact, kind, tenant, everybody)):
        found = resolved(*order)
        assert found.interval_ns == 20 * HOUR_NS, "a tenant is more exact than a kind"
        assert (found.unwind_permille, found.weight, found.size_target) == (500, 3, 7)


def test_a_command_decides_before_the_configuration_however_exact_that_is() -> None:
    exact = ScheduleRule(pattern("acme", "repair", "vnode"), interval_ns=HOUR_NS)
    command = ScheduleRule(pattern(), interval_ns=2 * HOUR_NS)
    assert resolved(exact, commands=(command,)).interval_ns == 2 * HOUR_NS


def test_thresholds_follow_an_interval_unless_the_same_rule_sets_them() -> None:
    assert (WEEK.initial_delay_ns, WEEK.warning_ns, WEEK.error_ns) == (
        DAY_NS,
        8 * DAY_NS,
        10 * DAY_NS,
    )
    hourly = resolved(ScheduleRule(pattern(), interval_ns=7 * HOUR_NS))
    assert (hourly.warning_ns, hourly.error_ns) == (8 * HOUR_NS, 10 * HOUR_NS)
    own = resolved(ScheduleRule(pattern(), interval_ns=7 * HOUR_NS, warning_ns=99 * HOUR_NS))
    assert (own.warning_ns, own.error_ns) == (99 * HOUR_NS, 10 * HOUR_NS)
    assert resolved(ScheduleRule(pattern(), warning_ns=5)).error_ns == 10 * DAY_NS


def test_a_rule_that_makes_no_sense_is_refused_with_a_sentence() -> None:
    wrong = [
        ScheduleRule(pattern(), interval_ns=-1),
        ScheduleRule(pattern(), warning_ns=10, error_ns=9),
        ScheduleRule(pattern(), weight=0),
        ScheduleRule(pattern(), size_target=-1),
        ScheduleRule(pattern(), unwind_permille=-1),
    ]
    for rule in wrong:
        with pytest.raises(InvalidInput):
            check_rule(rule)
    with pytest.raises(InvalidInput, match="warning"):
        ScheduleEntry(warning_s=10, error_s=9)


# ── spreading and pace ─────────────────────────────────────────────────────────────────────────


def test_a_thousand_new_jobs_come_due_all_over_the_interval() -> None:
    now = LeaseTime(50 * DAY_NS)
    jobs = [JobId(TenantId(f"t{n}"), REPAIR) for n in range(1000)]
    due = [spread.assumed_success(job, WEEK, now=now) + WEEK.interval_ns - now for job in jobs]
    assert min(due) >= WEEK.initial_delay_ns
    assert max(due) < WEEK.interval_ns
    for day in range(1, 7):
        share = sum(day * DAY_NS <= each < (day + 1) * DAY_NS for each in due)
        assert 120 < share < 215, "about a sixth of them on each of the six days"
    assert due == [
        spread.assumed_success(job, WEEK, now=now) + WEEK.interval_ns - now for job in jobs
    ], "the same for whoever leads"


@pytest.mark.parametrize(("permille", "total_s"), [(0, 30), (500, 45), (1000, 60)])
def test_the_published_sums_of_work_and_rest(permille: int, total_s: int) -> None:
    works = (10 * SECOND_NS, 20 * SECOND_NS)
    total = sum(work + pace.rest_ns(work, permille) for work in works)
    assert total == total_s * SECOND_NS


def test_a_weekly_job_of_seven_parts_does_one_a_day() -> None:
    begun = LeaseTime(5)
    starts = [
        pace.next_session_at(begun, interval_ns=7 * DAY_NS, done=done, parts=7) - begun
        for done in range(9)
    ]
    assert starts == [min(day, 7) * DAY_NS for day in range(9)]
    assert pace.next_session_at(begun, interval_ns=DAY_NS, done=0, parts=0) == begun


# ── resources ──────────────────────────────────────────────────────────────────────────────────


def test_a_session_occupies_its_stores_and_if_it_should_their_regions_sorted() -> None:
    stores = [StoreName(name) for name in ("c", "a", "b")]
    region = {"a": "eu", "b": "us", "c": "eu", "d": ""}.__getitem__
    only_stores = resources_of(stores, LockLevel.STORE, region)
    assert only_stores == ("store:a", "store:b", "store:c")
    with_regions = resources_of(stores, LockLevel.REGION, region)
    assert with_regions == ("region:eu", "region:us", *only_stores)
    room = Room(dict.fromkeys(with_regions, 1), slots=1)
    assert room.why_not(("store:a",)), "who locks stores only is kept off as well"
    alone = resources_of([StoreName("d")], LockLevel.REGION, region)
    assert alone == ("store:d",), "stores without a region are not one region"


def test_all_or_none_and_as_many_slots_as_are_set() -> None:
    room = Room({"a": 1}, slots=2)
    assert room.why_not(("a", "b")) == ""
    room.take(("a", "b"))
    assert "a is occupied" in room.why_not(("a", "b"))
    assert room.why_not(("b",)) == ""


def test_the_first_who_waits_reserves_and_only_the_first() -> None:
    room = Room({"a": 1}, slots=1)
    room.reserve(("a", "b"))
    room.reserve(("c",))
    assert "reserved" in room.why_not(("b",))
    assert room.why_not(("c",)) == ""


# ── states and alarms ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("age", "due", "blocked", "expected"),
    [
        (8 * DAY_NS - 1, True, False, JobStatus.ON_TIME),
        (8 * DAY_NS, True, False, JobStatus.LATE),
        (10 * DAY_NS - 1, True, False, JobStatus.LATE),
        (10 * DAY_NS, True, False, JobStatus.OVERDUE),
        (10 * DAY_NS, True, True, JobStatus.BLOCKED),
        (6 * DAY_NS, False, False, JobStatus.COMPLETED),
        (6 * DAY_NS, False, True, JobStatus.COMPLETED),
    ],
)
def test_states(age: int, due: bool, blocked: bool, expected: JobStatus) -> None:
    assert status.status(age_ns=age, due=due, blocked=blocked, schedule=WEEK) is expected


def test_a_success_that_is_only_assumed_is_not_completed() -> None:
    found = status.status(age_ns=1, due=False, blocked=False, schedule=WEEK, done=False)
    assert found is JobStatus.ON_TIME


def test_thresholds_of_zero_are_no_alarm() -> None:
    assert status.alarm_level(1 << 62, Schedule(interval_ns=1)) is None
    assert status.alarm_level(5, Schedule(interval_ns=1, error_ns=5)) is AlarmLevel.ERROR


def test_an_age_is_that_of_the_clock_that_shows_more() -> None:
    """Nobody led for three days in between: lease time stood still, the wall clock did not."""
    began = WallTime(1_000 * DAY_NS)
    offsets = (
        ClockOffset(LeaseTime(0), began),
        ClockOffset(LeaseTime(5 * DAY_NS), began + 3 * DAY_NS),
    )

    def age(since: int, now: int, wall: int) -> int:
        at = WallTime(began + wall)
        return status.age_ns(LeaseTime(since), now=LeaseTime(now), wall=at, offsets=offsets)

    assert age(1 * DAY_NS, 6 * DAY_NS, 9 * DAY_NS) == 8 * DAY_NS, "by the wall clock"
    assert age(5 * DAY_NS, 6 * DAY_NS, 9 * DAY_NS) == 1 * DAY_NS
    assert age(1 * DAY_NS, 6 * DAY_NS, -400 * DAY_NS) == 5 * DAY_NS, "a clock that was set back"
    assert age(-3, 6, 0) == 9, "before the first mark only lease time is known"


# ── the queue ──────────────────────────────────────────────────────────────────────────────────


def queued(name: str, due: int, weight: int = 1, *needs: str) -> QueuedJob:
    return QueuedJob(LeaseTime(due), JobId(TenantId(name), REPAIR), weight, needs)


def order(queue: JobQueue, now: int, *busy: str) -> str:
    found = queue.candidates(
        LeaseTime(now), granularity_ns=10, occupied=lambda needs: bool(set(needs) & set(busy))
    )
    return "".join(job.id.tenant for job in found)


def test_the_queue_is_by_priority_at_every_time() -> None:
    queue = JobQueue()
    for job in (queued("a", 100), queued("b", 0), queued("c", 95, 3), queued("d", 999)):
        queue.put(job)
    assert order(queue, 100) == "bca"
    assert order(queue, 200) == "cba", "after a while the weight has caught up"
    assert order(queue, 2000) == "cbad"
    queue.put(queued("b", 300))
    queue.discard(JobId(TenantId("c"), REPAIR))
    assert order(queue, 400) == "ab"


def test_of_jobs_whose_resources_are_occupied_one_is_looked_at() -> None:
    queue = JobQueue()
    for n, name in enumerate("abcd"):
        queue.put(queued(name, n, 1, "x"))
    queue.put(queued("e", 9, 1, "y"))
    assert order(queue, 100, "x") == "ae", "a may reserve; nobody looks at b, c and d"
    assert order(queue, 100) == "abcde"


def test_what_was_put_aside_comes_back_in_its_place() -> None:
    queue = JobQueue()
    for n, name in enumerate("abc"):
        queue.put(queued(name, n))
    a, b = (JobId(TenantId(name), REPAIR) for name in "ab")
    queue.put_aside(a, LeaseTime(50))
    queue.put_aside(b, LeaseTime(60))
    queue.put_aside(b, LeaseTime(90))
    queue.put(queued("a", 1))
    assert order(queue, 40) == "c"
    queue.wake(LeaseTime(60))
    assert order(queue, 60) == "ac"
    queue.bring_back(b)
    assert order(queue, 60) == "abc"
