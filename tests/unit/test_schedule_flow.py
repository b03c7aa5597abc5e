"""The schedule at work: which job runs, what holds it back, and what the log remembers of it."""

from __future__ import annotations

import gc

import msgspec

from maar.metastore.decide import execution, jobs, wishes
from maar.metastore.decide.jobs import JobBook
from maar.metastore.decide.schedule import Wish
from maar.metastore.records.effects import AlarmCeased, AlarmRaised, Leased, Refused
from maar.metastore.records.entries import (
    AlarmsChanged,
    Grant,
    JobsAssumed,
    JobsForgotten,
    PlansLeased,
    PlansScheduled,
    RunPolicyAdded,
    RunPolicyRemoved,
    RunsEnded,
    ScheduleRemoved,
    ScheduleSet,
    TermStarted,
)
from maar.metastore.state.state import MetaState
from maar.model.ids import TenantId
from maar.model.plan import JobId, PlanJob
from maar.model.refusal import Refusal
from maar.model.schedule import (
    EVERY_JOB,
    AlarmLevel,
    RunPolicy,
    Schedule,
    ScheduleRule,
    Weight,
    parse_minute,
    pattern,
)
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime, WallTime
from maar.ports.plans.board import Answer, SchedulePlan
from maar.scheduling import rules
from maar.services.clean.rules import CLEAN
from maar.services.compact.rules import COMPACT, COMPACTION
from maar.services.kinds import Kinds
from maar.services.rules import Board
from support.kinds.patrol.rules import PATROL, WEEKLY, Beat, Patrolling, beat
from support.metastore.fold import Fold
from support.metastore.leader_term import W1, W2, W3
from support.metastore.patrols import Patrols

A, B, C = beat("a"), beat("b"), beat("c")
HOUR_NS = 3600 * SECOND_NS
WEEK_NS = 7 * DAY_NS


def window(start: str, end: str, jobs_: JobId = EVERY_JOB) -> RunPolicyAdded:
    return RunPolicyAdded(RunPolicy(0, jobs_, parse_minute(start), parse_minute(end)))


# ── the loop ───────────────────────────────────────────────────────────────────────────────────


def test_scheduling_flow_of_figure_4() -> None:
    """Refresh priorities, pick the highest, should it run? No: the next. Yes: its tasks, one after
    the other; and when all are done, back to the queue.
    """
    world = Patrols({A: Beat(last=0, parts=2), B: Beat(last=-HOUR_NS), C: Beat(last=HOUR_NS)})
    assert world.ask() == [], "nothing is due"
    world.until(WEEK_NS + HOUR_NS)
    world.put([window("00:00", "00:00", pattern("b"))])
    (first,) = world.ask()
    assert world.job(first) == A, "b is more urgent, but may not run; c is less urgent than a"
    (other,) = world.ask(W2)
    assert world.job(other) == C, "a refusal delays one job only"
    world.wait(10)
    world.finish(first)
    world.look()
    assert world.state.run_started(A) is not None, "one of its two tasks is done"
    world.put([ScheduleSet(ScheduleRule(pattern("a"), warning_ns=1))])  # late: it is not paced
    (second,) = world.ask()
    assert world.job(second) == A
    world.wait(10)
    world.finish(second)
    entries = world.look()
    assert RunsEnded((A,)) in entries, "back to the queue"
    assert world.ask() == []
    assert world.state.jobs[A].last_work_ns == 20 * SECOND_NS
    world.until(2 * WEEK_NS + HOUR_NS)
    assert A in world.jobs(world.ask(W1, 2))


def test_a_job_comes_due_early_by_what_its_last_run_worked() -> None:
    world = Patrols({A: Beat(last=0)})
    world.until(WEEK_NS)
    (lease,) = world.ask()
    world.wait(300)
    world.finish(lease)
    world.look()
    done = world.now
    world.until(done + WEEK_NS - 300 * SECOND_NS - 1)
    assert world.ask() == []
    world.until(done + WEEK_NS - 300 * SECOND_NS)
    assert world.jobs(world.ask()) == [A]


def test_the_most_urgent_of_many_and_a_person_before_all() -> None:
    beats = {beat(f"t{n}"): Beat(last=-n * HOUR_NS) for n in range(20)}
    asked = beat("t0", "now")
    world = Patrols({**beats, asked: Beat(last=WEEK_NS, on_demand=True)})
    world.until(WEEK_NS)
    assert world.jobs(world.ask(W1, 4)) == [asked, beat("t19"), beat("t18"), beat("t17")]
    assert world.book.known[asked].weight == Weight.HIGHEST


def test_what_cannot_run_now_neither_runs_nor_stands_in_the_way() -> None:
    world = Patrols({A: Beat(last=-DAY_NS, why_not="its store is away"), B: Beat(last=0)})
    world.until(WEEK_NS)
    assert world.jobs(world.ask(W1, 4)) == [B]
    world.rules.beats[A].why_not = ""
    world.wait(61)
    assert world.jobs(world.ask(W1, 4)) == [A]


def test_new_jobs_get_an_assumed_success_that_the_next_leader_knows() -> None:
    world = Patrols({beat(f"t{n}"): Beat() for n in range(50)})
    (assumed,) = world.look()
    assert isinstance(assumed, JobsAssumed)
    assert len({item.at for item in assumed.jobs}) == 50
    before = {job: known.due_at for job, known in world.book.known.items()}
    world.wait(3600)
    world.book = JobBook()
    assert world.look() == []
    assert {job: known.due_at for job, known in world.book.known.items()} == before
    assert world.ask(W1, 50) == []
    world.until(WEEK_NS)
    assert len(world.ask(W1, 50)) == 50, "within the interval all of them came due"


def test_a_job_that_is_gone_is_forgotten_with_its_alarm() -> None:
    world = Patrols({A: Beat(last=-30 * DAY_NS), B: Beat(last=0)})
    world.look()
    assert A in world.state.alarms
    del world.rules.beats[A]
    world.wait(61)
    assert JobsForgotten((A,)) in world.look()
    assert (A in world.state.jobs, A in world.state.alarms) == (False, False)


def test_every_job_is_looked_at_although_a_turn_looks_at_few() -> None:
    many = {beat(f"t{n:04}"): Beat(last=0) for n in range(3 * jobs.LOOKED_AT_ONCE)}
    world = Patrols(many)
    for turn in range(1, 4):
        world.book.turn(world.state, world.moment)
        assert len(world.book.known) == turn * jobs.LOOKED_AT_ONCE


def test_a_turn_asks_few_of_very_many_tenants_for_their_jobs() -> None:
    class Idle(Patrolling):
        questions = 0

        def job_tenants(self, _board: Board) -> list[TenantId]:
            return [TenantId(f"t{n}") for n in range(3 * jobs.LISTED_AT_ONCE)]

        def job_ids(self, _board: Board, _tenant: TenantId) -> list[JobId]:
            self.questions += 1
            return []

    kind, book = Idle(), JobBook()
    fold = Fold(state=MetaState(kinds=Kinds(COMPACTION, kind)))
    for turn in range(1, 4):
        book.turn(fold.state, jobs.moment(fold.state, LeaseTime(fold.now)))
        assert kind.questions == turn * jobs.LISTED_AT_ONCE


def test_jobs_that_may_not_run_cost_a_round_little_and_hold_up_nobody() -> None:
    """However many a window refuses, a round tries some of them, and the next one others."""
    many = {beat(f"t{n:04}"): Beat(last=-1) for n in range(2 * jobs.TRIED_AT_ONCE + 1)}
    world = Patrols(many | {A: Beat(last=0)})
    world.until(WEEK_NS)
    world.put([window("00:00", "00:00", pattern(job.tenant)) for job in many])
    world.look()
    while world.book.behind:
        world.look()
    assert world.ask() == world.ask() == []
    assert world.jobs(world.ask()) == [A]


def test_the_collector_of_garbage_does_not_walk_what_is_known_of_jobs() -> None:
    world = Patrols({A: Beat(("s1", "s2"), last=0), B: Beat(last=None)})
    world.look()
    kept = [*world.book.known.values(), *world.state.jobs.values(), *world.state.jobs]
    assert kept
    assert not any(map(gc.is_tracked, kept))


# ── against compaction ─────────────────────────────────────────────────────────────────────────


def test_the_schedule_and_compaction_both_get_their_share() -> None:
    world = Patrols({beat(f"t{n}"): Beat(last=-n) for n in range(40)}, least_share=8)
    world.until(WEEK_NS)
    world.add(*range(300))
    got: list[str] = []
    for n in range(40):
        leases = world.hand_out(Wish(W1, 1, (COMPACT, PATROL)))
        kind = world.plan(leases[0].plan).kind
        got.append(kind)
        (world.finish if kind == PATROL else world.complete)(leases[0])
        if n % 3 == 0:
            world.add(*range(1000 + 10 * n, 1003 + 10 * n))
    assert got.count(PATROL) >= 40 // 8, "its least share, however much compaction waits"
    assert got.count(COMPACT) > got.count(PATROL)


# ── leases ─────────────────────────────────────────────────────────────────────────────────────


def test_a_session_is_leased_fenced_and_asked_for_again() -> None:
    """Fig. 2: refused while somebody holds it; a lost renewal ends it; then it is asked for again,
    and what the former holder still reports is refused.
    """
    world = Patrols({A: Beat(last=0)})
    world.until(WEEK_NS)
    (first,) = world.ask()
    assert world.ask(W2) == [], "refused: later"
    world.wait(599)
    world.renew(first)
    world.wait(599)
    assert world.ask(W2) == [], "renewed"
    world.wait(2)
    (again,) = world.ask(W2)
    assert again.plan == first.plan
    world.renew(first)
    (refused,) = world.finish(first)
    assert refused == Refused(Refusal.STALE_TOKEN, first.plan, first.token)


def test_after_a_failure_it_backs_off_as_its_schedule_says() -> None:
    world = Patrols({A: Beat(last=0)}, msgspec.structs.replace(WEEKLY, backoff_ns=1800 * SECOND_NS))
    world.until(WEEK_NS)
    (lease,) = world.ask()
    world.fail(lease)
    world.wait(1799)
    assert world.ask() == []
    world.wait(1)
    assert world.jobs(world.ask()) == [A]


def test_what_somebody_asked_for_is_tried_again_as_soon_as_other_plans_are() -> None:
    """A store that was wiped a moment ago costs a session, and must not cost half an hour."""
    schedule = msgspec.structs.replace(WEEKLY, backoff_ns=1800 * SECOND_NS)
    world = Patrols({A: Beat(last=WEEK_NS, on_demand=True)}, schedule)
    world.until(WEEK_NS)
    (lease,) = world.ask()
    world.fail(lease)
    assert world.ask() == []
    world.wait(world.fold.state.policy.retry_ns // SECOND_NS + 1)
    assert world.jobs(world.ask()) == [A]


# ── resources ──────────────────────────────────────────────────────────────────────────────────


def stores(*names: str, last: int = 0) -> Beat:
    return Beat(tuple(names), last)


def test_all_resources_or_none_and_one_slot_each() -> None:
    world = Patrols({A: stores("x", "y", last=-3), B: stores("y", "z", last=-2), C: stores("z")})
    world.until(WEEK_NS)
    (first,) = world.ask(W1, 3)
    assert world.job(first) == A, "b waits for y and reserves z: c does not pass it by"
    assert world.ask(W2, 3) == []
    world.finish(first)
    (second,) = world.ask(W2, 3)
    assert world.job(second) == B
    world.finish(second)
    assert world.jobs(world.ask(W2, 3)) == [C]


def test_two_slots_let_two_sessions_share_a_store() -> None:
    world = Patrols(
        {A: stores("x", last=-2), B: stores("x", last=-1), C: stores("x")}, resource_slots=2
    )
    world.until(WEEK_NS)
    assert len(world.ask(W1, 3)) == 2


def test_a_lease_that_expired_gives_its_resources_back() -> None:
    world = Patrols({A: stores("x", last=-2), B: stores("x")})
    world.until(WEEK_NS)
    (held,) = world.ask()
    world.wait(601)
    world.put([window("00:00", "00:00", pattern("a"))])
    assert world.jobs(world.ask(W2, 2)) == [B]
    assert world.plan(held.plan).lease is not None


def test_the_fold_refuses_a_grant_whose_resources_are_occupied() -> None:
    world = Patrols({A: stores("x", last=-2), B: stores("x")})
    world.until(WEEK_NS)
    world.ask()
    spec = world.book.session(world.state, B, world.moment)
    assert spec is not None
    world.put([PlansScheduled((spec,))])
    other = max(world.state.plans)
    refused = world.put([PlansLeased((Grant(other, W2, LeaseTime(world.now + 9)),))])
    assert refused == [Refused(Refusal.RESOURCE_BUSY, other)]


def test_who_executes_a_plan_by_its_id_is_told_that_it_is_busy() -> None:
    world = Patrols({A: stores("x", last=-2), B: stores("x")})
    world.until(WEEK_NS)
    (held,) = world.ask()
    spec = world.book.session(world.state, B, world.moment)
    assert spec is not None
    world.put([PlansScheduled((spec,))])
    other = max(world.state.plans)
    told = execution.preview(world.state, other, now=world.now)
    assert (told.answer, "store:x" in told.sentence) == (Answer.BUSY, True)
    assert execution.entries(world.state, other, W3, now=world.now) == []
    world.finish(held)
    world.put([window("00:00", "23:59")])
    assert execution.preview(world.state, other, now=world.now).answer is Answer.BUSY
    ignored = execution.preview(world.state, other, now=world.now, ignore_windows=True)
    assert ignored.answer is Answer.GRANTED
    (entry,) = execution.entries(world.state, other, W3, now=world.now, ignore_windows=True)
    assert isinstance(entry, PlansLeased)
    assert entry.grants[0].ignores_windows, "the log knows that somebody did"
    world.put([window("00:00", "00:00")])
    paused = execution.preview(world.state, other, now=world.now, ignore_windows=True)
    assert paused.answer is Answer.BUSY, "a pause is respected by everybody"


def test_a_session_that_passes_windows_by_is_not_stopped_by_one_but_by_a_pause() -> None:
    world = Patrols({A: stores("x", last=-2)})
    world.until(WEEK_NS)
    spec = world.book.session(world.state, A, world.moment)
    assert spec is not None
    world.put([PlansScheduled((spec,)), window("00:00", "23:59")])
    plan = max(world.state.plans)
    world.put(execution.entries(world.state, plan, W3, now=world.now, ignore_windows=True))
    assert world.book.stop(world.state, world.plan(plan), world.moment) == ""
    world.put([window("00:00", "00:00")])
    assert world.book.stop(world.state, world.plan(plan), world.moment) != ""


# ── windows ────────────────────────────────────────────────────────────────────────────────────


def test_a_window_is_waited_out_and_its_removal_is_noticed_at_once() -> None:
    world = Patrols({A: Beat(last=0)})
    world.until(WEEK_NS)  # midnight, by the wall clock of these tests
    world.put([window("23:00", "01:00")])
    policy = max(world.state.run_policies)
    assert world.ask() == []
    world.wait(3599)
    assert world.ask() == []
    world.wait(31)
    assert world.jobs(world.ask()) == [A]
    world.fold.now = WEEK_NS
    other = Patrols({A: Beat(last=0)})
    other.until(WEEK_NS)
    other.put([window("23:00", "01:00")])
    assert other.ask() == []
    other.put([RunPolicyRemoved(max(other.state.run_policies))])
    assert other.jobs(other.ask()) == [A]
    assert other.put([RunPolicyRemoved(policy)]) == [Refused(Refusal.UNKNOWN_RULE)]


def test_a_session_is_asked_to_stop_between_its_tasks() -> None:
    world = Patrols({A: stores("x"), B: stores("x", last=WEEK_NS)}, session_ns=300 * SECOND_NS)
    world.until(WEEK_NS)
    (lease,) = world.ask()
    plan = world.plan(lease.plan)

    def told() -> str:
        return world.book.stop(world.state, plan, world.moment)

    assert told() == ""
    world.wait(300)
    assert "as long as one may" in told()
    world.fold.now -= SECOND_NS
    world.put([window("00:00", "01:00")])
    assert "run policy" in told()
    world.put([RunPolicyRemoved(max(world.state.run_policies))])
    world.rules.beats[B].on_demand = True
    world.put([ScheduleSet(ScheduleRule(pattern("c")))])  # so that all jobs are looked at
    world.look()
    assert "more urgent" in told()
    world.rules.beats[B].stores = ("y",)
    world.put([ScheduleRemoved(pattern("c"))])
    world.look()
    assert told() == "", "it needs nothing that this session has"


def test_cleanings_and_clusterings_are_held_back_too() -> None:
    world = Patrols({A: Beat(last=0)})
    world.put([window("00:00", "00:00", pattern("*", CLEAN))])
    lake = JobId(A.tenant, CLEAN)
    assert jobs.window_refusal(world.state, lake, world.moment) is not None
    assert jobs.window_refusal(world.state, A, world.moment) is None


# ── backpressure ───────────────────────────────────────────────────────────────────────────────


def total_s(permille: int) -> int:
    """Two sessions of 10 s and 20 s, as fast as the schedule lets them."""
    schedule = Schedule(interval_ns=60 * SECOND_NS, unwind_permille=permille, warning_ns=1)
    world = Patrols({A: Beat(last=-(10**15), parts=3)}, schedule)
    begun = world.now
    for work in (10, 20):
        while not (leases := world.ask()):
            world.wait(1)
        world.wait(work)
        world.finish(leases[0])
    while not world.ask():
        world.wait(1)
    return (world.now - begun) // SECOND_NS


def test_rest_in_proportion_to_work_holds_no_slot_and_no_resource() -> None:
    assert [total_s(permille) for permille in (0, 500, 1000)] == [30, 45, 60]
    schedule = Schedule(interval_ns=HOUR_NS, unwind_permille=1000)
    world = Patrols({A: Beat(("x",), -HOUR_NS, 3), B: Beat(("x",), 0)}, schedule)
    world.until(HOUR_NS)
    (lease,) = world.ask()
    world.wait(100)
    world.finish(lease)
    assert world.jobs(world.ask(W1, 2)) == [B], "a rests, and b has its store meanwhile"


def test_a_session_that_failed_does_not_rest_for_its_work() -> None:
    world = Patrols({A: Beat(last=0)}, msgspec.structs.replace(WEEKLY, unwind_permille=10_000))
    world.until(WEEK_NS)
    (lease,) = world.ask()
    world.wait(500)
    world.fail(lease)
    assert world.state.jobs[A].eligible_at <= world.now


def test_a_weekly_job_of_seven_parts_is_spread_over_its_week_unless_it_is_late() -> None:
    world = Patrols({A: Beat(last=0, parts=7)})
    world.until(WEEK_NS)
    (lease,) = world.ask()
    begun = world.now
    world.wait(60)
    world.finish(lease)
    assert world.ask() == [], "as much is done as the time allows"
    world.until(begun + DAY_NS - SECOND_NS)
    assert world.ask() == []
    world.wait(31)
    assert world.book.known[A].age_ns(world.state, world.moment) >= 8 * DAY_NS
    for _ in range(6):
        (lease,) = world.ask()
        world.wait(60)
        world.finish(lease)
    assert world.rules.beats[A].last == world.now, "late: it is not held back"


# ── alarms ─────────────────────────────────────────────────────────────────────────────────────


def alarms(world: Patrols) -> list[tuple[str, int]]:
    """What rings in the next hour, minute by minute."""
    rang = []
    for _ in range(60):
        world.wait(61)
        world.book.turn(world.state, world.moment)
        for effect in world.put(world.book.entries(world.state, world.moment)):
            match effect:
                case AlarmRaised(alarm=alarm):
                    rang.append((str(alarm.id.tenant), int(alarm.level)))
                case AlarmCeased(alarm=alarm):
                    rang.append((str(alarm.id.tenant), 0))
                case _:
                    pass
    return rang


def test_an_alarm_escalates_once_survives_a_change_of_leader_and_ceases_by_itself() -> None:
    world = Patrols({A: Beat(last=0, why_not="its store is away")})
    world.until(8 * DAY_NS - 600 * SECOND_NS)
    assert alarms(world) == [("a", AlarmLevel.WARNING)]
    since = world.state.alarms[A].since
    assert "its store is away" in world.state.alarms[A].note
    world.book = JobBook()
    world.put([TermStarted(2, "two")])
    assert alarms(world) == [], "it rang already"
    world.until(10 * DAY_NS - 600 * SECOND_NS)
    assert alarms(world) == [("a", AlarmLevel.ERROR)]
    assert world.state.alarms[A].since == since, "it is the same trouble"
    world.book = JobBook()
    assert alarms(world) == []
    world.rules.beats[A].last = world.now
    assert alarms(world) == [("a", 0)]
    assert world.state.alarms == {}


def test_a_downtime_counts_although_lease_time_stood_still() -> None:
    world = Patrols({A: Beat(last=0, why_not="waiting")})
    world.until(2 * DAY_NS)
    assert alarms(world) == []
    world.wait(61)
    late = world.moment._replace(wall=WallTime(world.moment.wall + 7 * DAY_NS))
    world.book.turn(world.state, late)
    (entry,) = world.book.entries(world.state, late)
    assert isinstance(entry, AlarmsChanged)
    assert entry.raised[0].level is AlarmLevel.WARNING


def test_an_alarm_that_rings_twice_is_one_for_the_fold() -> None:
    world = Patrols({A: Beat(last=-9 * DAY_NS, why_not="x")})
    world.look()
    alarm = world.state.alarms[A]
    assert world.put([AlarmsChanged((alarm,))]) == []
    assert world.put([AlarmsChanged((), (B,))]) == []
    world.wait(61)
    assert world.look() == [], "the log is not told again what it knows"


# ── what is set by command ─────────────────────────────────────────────────────────────────────


def test_what_is_set_by_command_is_in_force_at_once_and_can_be_taken_back() -> None:
    world = Patrols({A: Beat(last=0)})
    world.until(HOUR_NS)
    assert world.ask() == []
    world.put([ScheduleSet(ScheduleRule(pattern("a"), interval_ns=HOUR_NS))])
    (lease,) = world.ask()
    world.finish(lease)
    world.put([ScheduleRemoved(pattern("a"))])
    world.wait(3600)
    assert world.ask() == []
    assert world.put([ScheduleRemoved(pattern("a"))]) == [Refused(Refusal.UNKNOWN_RULE)]


def test_a_command_decides_before_the_configuration() -> None:
    rule = ScheduleRule(pattern("a"), interval_ns=HOUR_NS)
    world = Patrols({A: Beat(last=0)}, schedules=(rule,))
    world.put([ScheduleSet(ScheduleRule(pattern(), interval_ns=2 * HOUR_NS))])
    world.until(HOUR_NS)
    assert world.ask() == []
    world.until(2 * HOUR_NS)
    assert world.jobs(world.ask()) == [A]


def test_configured_rules_reach_jobs_through_the_policy() -> None:
    rule = ScheduleRule(pattern("*", PATROL), interval_ns=HOUR_NS, weight=3)
    world = Patrols({A: Beat(last=0)}, schedules=(rule,))
    world.until(HOUR_NS)
    assert world.jobs(world.ask()) == [A]
    assert world.book.known[A].schedule == rules.with_interval(
        msgspec.structs.replace(WEEKLY, weight=3), HOUR_NS
    )


def test_the_state_has_a_bound_for_all_of_it() -> None:
    world = Patrols({A: Beat()}, schedules_max=1, run_policies_max=1, jobs_max=1)
    full = [Refused(Refusal.TOO_MANY)]
    one, other = ScheduleRule(pattern("x")), ScheduleRule(pattern("y"))
    assert world.put([ScheduleSet(one), ScheduleSet(one)])[0] != full[0]
    assert world.put([ScheduleSet(other)]) == full
    world.put([window("01:00", "02:00")])
    assert world.put([window("01:00", "02:00")]) == full
    world.look()
    world.rules.beats[B] = Beat(last=-WEEK_NS)
    world.wait(61)
    assert world.jobs(world.ask()) == [B], "a job that the log has no room for runs all the same"
    assert list(world.state.jobs) == [A]


def test_a_plan_that_somebody_asked_for_knows_its_job() -> None:
    world = Patrols({A: Beat(last=0)})
    world.look()
    spec = world.rules.session(world.state, world.book.known[A].found, WEEKLY, now=world.now)
    assert spec is not None
    world.rules.on_request = lambda *_, **__: spec  # type: ignore[method-assign]
    world.put(wishes.entries(world.state, SchedulePlan(PATROL, "a"), now=world.now))
    (plan,) = world.state.plans.values()
    assert plan.job == PlanJob(JobId(A.tenant, PATROL), on_demand=True)
    assert isinstance(world.ask()[0], Leased)
