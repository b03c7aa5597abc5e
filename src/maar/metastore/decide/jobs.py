"""Which job runs next, and why another does not: the leader's view of the schedule.

What a leader keeps here follows from the state, so a new one begins with nothing. Every job is
looked at after each of its sessions, and else about once a minute, a few in each turn of the loop:
so a turn costs the same, however many jobs there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from maar.metastore.records.effects import (
    Completed,
    CopyEnded,
    Effect,
    RepairEnded,
    RepairWanted,
)
from maar.metastore.records.entries import (
    AlarmsChanged,
    AssumedSuccess,
    Entry,
    JobsAssumed,
    JobsForgotten,
    RunsEnded,
)
from maar.metastore.state.state import MetaState
from maar.model.ids import BlockId, PlanId, StoreName, TenantId
from maar.model.plan import JobId, Plan, PlanJob, PlanKind, PlanSpec
from maar.model.schedule import Alarm, JobRecord, Schedule, ScheduleRule, Weight
from maar.model.time import SECOND_NS, LeaseTime, WallTime
from maar.model.words import span_text
from maar.scheduling import pace, priority, rules, spread, status, windows
from maar.scheduling.priority import Urgency
from maar.scheduling.queue import JobQueue, QueuedJob
from maar.scheduling.resources import Room
from maar.services.rules import JobState

LISTED_EVERY_NS = 60 * SECOND_NS  # all jobs are listed, and each is looked at
LOOKED_AT_ONCE = 50  # jobs, in one turn of the loop
LISTED_AT_ONCE = 500  # tenants that are asked for their jobs, in one turn
TRIED_AT_ONCE = 100  # jobs that are refused before a round gives up; they are put aside
CHANGED_AT_ONCE = 500  # jobs, in one entry
COUNTED_SHARE = 8  # of the time to a warning: less than that is not worth an entry
ASIDE_MAX_NS = 30 * SECOND_NS  # what refused a job may be over sooner than it said


class Moment(NamedTuple):
    """By which clocks a decision is made; wall time is for windows and alarms only (S2). Also what
    the leader knows just then that the log does not.
    """

    now: LeaseTime
    wall: WallTime
    offset_of: windows.OffsetOf = windows.utc_only
    down: frozenset[StoreName] = frozenset()  # stores that do not answer


def moment(state: MetaState, now: LeaseTime) -> Moment:
    """As the log knows it, for who has no clock of his own."""
    return Moment(now, state.wall_at(now))


class KnownJob(msgspec.Struct, frozen=True, gc=False):
    """A job as it was when it was last looked at. There may be very many, for long: the garbage
    collector has nothing to walk here.
    """

    found: JobState
    schedule: Schedule
    by: tuple[JobId, ...]  # the rules that had a say in its schedule
    last_success: LeaseTime  # its own, or assumed
    due_at: LeaseTime

    @property
    def id(self) -> JobId:
        return self.found.id

    @property
    def weight(self) -> int:
        return Weight.HIGHEST if self.found.on_demand else self.schedule.weight

    def is_due(self, now: LeaseTime) -> bool:
        if self.found.nothing:
            return False
        return self.found.on_demand or (self.schedule.interval_ns > 0 and self.due_at <= now)

    @property
    def is_done(self) -> bool:
        """Whether it really succeeded the last time, and nothing has come to do since."""
        found = self.found
        return bool(found.nothing) or (found.succeeded_at is not None and not found.unfinished)

    def unsuccessful_since(self) -> LeaseTime:
        """Since when it has not succeeded although there was something to do."""
        since = self.found.waiting_since
        return LeaseTime(max(self.last_success, since)) if since is not None else self.last_success

    def age_ns(self, state: MetaState, at: Moment) -> int:
        if self.found.nothing:
            return 0
        since, offsets = self.unsuccessful_since(), state.offsets
        return status.age_ns(since, now=at.now, wall=at.wall, offsets=offsets)

    def urgency(self, now: LeaseTime, granularity_ns: int) -> Urgency:
        due_at = LeaseTime(min(self.due_at, now)) if self.found.on_demand else self.due_at
        found = priority.urgency(due_at, now=now, weight=self.weight, granularity_ns=granularity_ns)
        return found if self.is_due(now) else found._replace(priority=priority.NOT_DUE)


# ── one job ────────────────────────────────────────────────────────────────────────────────────


class JobRules:
    """What is set for jobs. What is configured is put in order once, not for each job."""

    def __init__(self) -> None:
        self._of: tuple[ScheduleRule, ...] = ()
        self._configured: dict[JobId, ScheduleRule] = {}

    def in_force(self, state: MetaState, job: JobId) -> tuple[Schedule, tuple[JobId, ...]]:
        if self._of is not state.policy.schedules:
            self._of = state.policy.schedules
            self._configured = rules.by_pattern(self._of)
        default = state.kinds[job.kind].default_schedule(state.policy, job)
        return rules.in_force(default, job, self._configured, state.schedules)


def look(
    state: MetaState,
    job: JobId,
    found: JobRules,
    now: LeaseTime,
    *,
    down: Collection[StoreName] = (),
) -> KnownJob | None:
    """A job as it is now; None when there is no such job."""
    schedule, by = found.in_force(state, job)
    answer = state.kinds[job.kind].job(state, job, schedule, now=now, down=down)
    if answer is None:
        return None
    record = state.jobs.get(job) or JobRecord(job)
    last = answer.last_success
    if last is not None and answer.unfinished:
        answer = msgspec.structs.replace(answer, waiting_since=record.assumed)
    if last is None:
        assumed = record.assumed
        last = assumed if assumed is not None else spread.assumed_success(job, schedule, now=now)
    expected_ns = answer.expected_ns or record.last_work_ns
    due = priority.due_at(last, schedule, expected_ns=expected_ns)
    if answer.on_demand:
        due = LeaseTime(min(due, now))
    return KnownJob(answer, schedule, by, last, due)


class Hindrance(NamedTuple):
    """Why a job does not run now, and until when that is so at least."""

    why: str
    until: LeaseTime


def rests(state: MetaState, known: KnownJob, now: LeaseTime) -> Hindrance | None:
    """Backpressure: after a session a job rests, and it spreads its sessions over its interval."""
    record = state.jobs.get(known.id)
    if record is None or known.found.on_demand:
        return None
    if record.eligible_at > now:
        left = span_text(record.eligible_at - now)
        return Hindrance(f"it rests for another {left} after its last session", record.eligible_at)
    late = status.alarm_level(now - known.unsuccessful_since(), known.schedule) is not None
    if record.run_started is None or not known.found.parts or late:
        return None
    paced = pace.next_session_at(
        record.run_started,
        interval_ns=known.schedule.interval_ns,
        done=known.found.done,
        parts=known.found.parts,
    )
    if paced <= now:
        return None
    told = f"{known.found.done} of {known.found.parts} parts are done, as many as the time allows"
    return Hindrance(f"{told}; the next session is in {span_text(paced - now)}", paced)


def window_refusal(
    state: MetaState, job: JobId, at: Moment, *, longest_ns: int = ASIDE_MAX_NS
) -> Hindrance | None:
    found = windows.verdict(state.run_policies.values(), job, at.wall, offset_of=at.offset_of)
    if found.allowed:
        return None
    return Hindrance(found.why, LeaseTime(at.now + min(found.wait_ns, longest_ns)))


def pause_reason(state: MetaState, job: JobId, at: Moment) -> str:
    """Why nobody may run it, not even by hand; '' when that is allowed."""
    pauses = (policy for policy in state.run_policies.values() if policy.pauses)
    return windows.verdict(pauses, job, at.wall, offset_of=at.offset_of).why


def pending(state: MetaState, job: JobId) -> Hindrance | None:
    plan = state.plans.pending_of(job)
    if plan is None:
        return None
    until = plan.lease.expires_at if plan.lease else plan.eligible_at
    doing = f"{plan.lease.worker} works on it" if plan.lease else "it is tried again"
    return Hindrance(f"plan {plan.id} is on the schedule: {doing}", until)


def hindrance(
    state: MetaState, known: KnownJob, at: Moment, *, longest_ns: int = ASIDE_MAX_NS
) -> Hindrance | None:
    """Why a job that is due does not run, but for resources; the worst first."""
    if known.found.why_not:
        return Hindrance(known.found.why_not, at.now)
    return (
        pending(state, known.id)
        or window_refusal(state, known.id, at, longest_ns=longest_ns)
        or rests(state, known, at.now)
    )


def woken_jobs(state: MetaState, effects: Sequence[Effect]) -> Iterator[JobId]:
    """Jobs that wait for nothing but blocks, and have some now, or lack a copy that has ended."""
    changed: list[BlockId] = []
    for effect in effects:
        if isinstance(effect, Completed):
            changed += effect.added
        elif isinstance(effect, CopyEnded):
            changed.append(effect.block)
    if not changed:
        return
    tenants = {found.outline.tenant for found in state.blocks.find_live(changed).values()}
    for kind in state.kinds:
        if state.kinds[kind].by_interval:
            yield from state.kinds[kind].jobs_to_wake(state, tenants)


# ── all jobs ───────────────────────────────────────────────────────────────────────────────────


class JobBook:
    """The leader's jobs by urgency, all made from the state, and anew in each term.

    A round goes through all tenants, asks for their jobs and looks at each; then through all jobs
    that were known, of which those are gone that did not come up. A turn is a slice of it, so it
    takes as long with a hundred thousand jobs as with a thousand.
    """

    def __init__(self) -> None:
        self.known: dict[JobId, KnownJob] = {}
        self.queue = JobQueue()
        self._rules = JobRules()
        self._tenants: deque[tuple[PlanKind, deque[TenantId]]] = deque()  # not asked yet
        self._todo: deque[JobId] = deque()  # not looked at yet
        self._missed: deque[JobId] = deque()  # that may be gone
        self._dirty: dict[JobId, None] = {}  # their sessions ended, or began
        self._listed_at: LeaseTime | None = None
        self._round = 0
        self._seen: dict[JobId, int] = {}  # the round in which each came up
        self._set: tuple[object, ...] = ()  # what jobs go by, when they were last listed
        self._anew = False  # since then that was changed: none stays aside
        self._looked: list[JobId] = []  # since the last entries were made
        self._resumed: dict[
            JobId, LeaseTime
        ] = {}  # had nothing to do until then; not in the log yet
        self._gone: list[JobId] = []

    # ── looking at jobs ──

    def turn(self, state: MetaState, at: Moment) -> None:
        """Look at some jobs; all of them, when what they go by was changed."""
        going_by = (
            state.policy,
            state.schedules.hash,
            state.run_policies.hash,
            state.stores,
            at.down,
        )
        if going_by != self._set:
            self._set, self._listed_at, self._anew = going_by, None, True
        due = self._listed_at is None or at.now - self._listed_at >= LISTED_EVERY_NS
        if due and (not self._is_listing or self._listed_at is None):
            self._begin_round(state, at.now)
        self._look_at_dirty(state, at)
        self._list(state)
        for _ in range(min(LOOKED_AT_ONCE, len(self._todo))):
            job = self._todo.popleft()
            if self._anew:
                self.queue.bring_back(job)
            self._look(state, job, at)
        if self._is_listing and not self._todo and not self._tenants:
            self._end_round(state)

    @property
    def behind(self) -> int:
        """How many jobs, and tenants, wait to be looked at."""
        tenants = sum(len(some) for _, some in self._tenants)
        return tenants + len(self._todo) + len(self._missed) + len(self._dirty)

    @property
    def _is_listing(self) -> bool:
        return bool(self._tenants or self._todo or self._missed)

    def _begin_round(self, state: MetaState, now: LeaseTime) -> None:
        """Nothing is done for each tenant or job here, but that their names are copied: the fold
        goes on between two turns.
        """
        self._listed_at = now
        self._round += 1
        self._todo.clear()
        self._tenants = deque(
            (kind, deque(state.kinds[kind].job_tenants(state)))
            for kind in state.kinds
            if is_scheduled(state, kind)
        )
        self._missed = deque((*self.known, *state.jobs, *state.alarms))

    def _list(self, state: MetaState) -> None:
        """Ask some tenants for their jobs, as many as a turn may need."""
        asked = 0
        while self._tenants and asked < LISTED_AT_ONCE and len(self._todo) < LOOKED_AT_ONCE:
            kind, tenants = self._tenants[0]
            if not tenants:
                self._tenants.popleft()
                continue
            asked += 1
            for job in state.kinds[kind].job_ids(state, tenants.popleft()):
                self._seen[job] = self._round
                self._todo.append(job)

    def _end_round(self, state: MetaState) -> None:
        """Those that were known and did not come up are gone."""
        self._anew = False
        for _ in range(min(LISTED_AT_ONCE, len(self._missed))):
            job = self._missed.popleft()
            if self._seen.get(job) != self._round and is_scheduled(state, job.kind):
                self._forget(job)
                self._gone.append(job)

    def _look_at_dirty(self, state: MetaState, at: Moment) -> None:
        for _ in range(min(LOOKED_AT_ONCE, len(self._dirty))):
            job = next(iter(self._dirty))
            del self._dirty[job]
            self._look(state, job, at)

    def _look(self, state: MetaState, job: JobId, at: Moment) -> KnownJob | None:
        kinds = state.kinds
        known = None
        if job.kind in kinds:
            known = look(state, job, self._rules, at.now, down=at.down)
        if known is None:
            self._forget(job)
            return None
        known = self._note_resumed(known, at.now)
        self.known[job] = known
        self._looked.append(job)
        waits = known.found.on_demand or known.schedule.interval_ns > 0
        runnable = not known.found.nothing and not known.found.why_not
        if kinds[job.kind].by_interval and waits and runnable and not pending(state, job):
            wanted = QueuedJob(known.due_at, job, known.weight, known.found.resources)
            self.queue.put(wanted)
        else:
            self.queue.discard(job)
        return known

    def _note_resumed(self, known: KnownJob, now: LeaseTime) -> KnownJob:
        """A job that had nothing to do since its last success has waited from now on only: it is
        due all the same, but no alarm counts the time before. The log keeps it where it matters.
        """
        before = self.known.get(known.id)
        if not known.found.unfinished:
            return known
        idle_ns = now - known.unsuccessful_since()
        counts = idle_ns >= known.schedule.warning_ns // COUNTED_SHARE
        if counts and before is not None and before.found.nothing:
            self._resumed[known.id] = now
        since = self._resumed.get(known.id)
        if since is None:
            return known
        found = msgspec.structs.replace(known.found, waiting_since=since)
        return msgspec.structs.replace(known, found=found)

    def look_at(self, state: MetaState, job: JobId, at: Moment) -> KnownJob | None:
        """A job as it is now, for who asks about it; nothing is noted."""
        return look(state, job, self._rules, at.now, down=at.down)

    def _forget(self, job: JobId) -> None:
        self._seen.pop(job, None)
        self._resumed.pop(job, None)
        self.queue.discard(job)
        if self.known.pop(job, None) is not None:
            self._gone.append(job)

    def follow(self, state: MetaState, effects: Sequence[Effect]) -> None:
        """Look again at the jobs whose plans the fold changed, and at those that somebody asked
        for, or that have something to do since a block came.
        """
        self._dirty |= dict.fromkeys(filter(self._could_not_run, woken_jobs(state, effects)))
        for effect in effects:
            if isinstance(effect, RepairWanted | RepairEnded):
                self._dirty[effect.job] = None
            plan_id = getattr(effect, "plan", None)
            if isinstance(plan_id, PlanId):
                plan = state.plans.get(plan_id) or state.finished.get(plan_id)
                if plan is not None and plan.job is not None:
                    self._dirty[plan.job.id] = None

    def _could_not_run(self, job: JobId) -> bool:
        """Since it had nothing to do, or nothing that it could do: a store was away."""
        known = self.known.get(job)
        return known is None or bool(known.found.nothing or known.found.why_not)

    # ── what the log should know ──

    def entries(self, state: MetaState, at: Moment) -> list[Entry]:
        """New jobs, runs that have ended, alarms that begin or cease, and jobs that are gone."""
        looked, self._looked = self._looked[:CHANGED_AT_ONCE], self._looked[CHANGED_AT_ONCE:]
        known = [self.known[job] for job in dict.fromkeys(looked) if job in self.known]
        room = state.policy.jobs_max - len(state.jobs)
        assumed = [
            AssumedSuccess(one.id, one.last_success) for one in known if _is_new(state, one)
        ][: max(0, room)]
        assumed += self._not_told_yet(state, room)
        ended = [one.id for one in known if _run_is_over(state, one, at.now)]
        missed = dict.fromkeys(self._gone[:CHANGED_AT_ONCE])
        gone = [job for job in missed if _is_gone(state, job, self.known)]
        self._gone = self._gone[CHANGED_AT_ONCE:]
        changes = [self._alarm(state, one, at) for one in known]
        raised = tuple(change for change in changes if isinstance(change, Alarm))
        ceased = tuple(change for change in changes if isinstance(change, JobId))
        entries: list[Entry] = []
        if assumed:
            entries.append(JobsAssumed(tuple(assumed)))
        if ended:
            entries.append(RunsEnded(tuple(ended)))
        if gone:
            entries.append(JobsForgotten(tuple(gone)))
        if raised or ceased:
            entries.append(AlarmsChanged(raised, ceased))
        return entries

    def _not_told_yet(self, state: MetaState, room: int) -> Iterator[AssumedSuccess]:
        """Jobs that had nothing to do until lately, until the log has it: an append may fail, and
        nobody else knows.
        """
        for job, since in list(islice(self._resumed.items(), CHANGED_AT_ONCE)):
            record = state.jobs.get(job) or JobRecord(job)
            no_room = job not in state.jobs and room <= 0
            if no_room or (record.assumed is not None and record.assumed >= since):
                del self._resumed[job]
            else:
                yield AssumedSuccess(job, since)

    def _alarm(self, state: MetaState, known: KnownJob, at: Moment) -> Alarm | JobId | None:
        """An alarm that begins or escalates, the job of one that ceases, or nothing to tell."""
        age_ns = known.age_ns(state, at)
        level = status.alarm_level(age_ns, known.schedule)
        before = state.alarms.get(known.id)
        if level is None:
            return known.id if before is not None else None
        if before is not None and before.level >= level:
            return None  # it escalates once, and does not ring twice
        why = hindrance(state, known, at)
        note = f"{known.id} has not succeeded for {span_text(age_ns)}" + (
            f": {why.why}" if why else ""
        )
        return Alarm(known.id, level, at.now, at.wall, note)

    # ── what runs next ──

    def let_through(self, state: MetaState, spec: PlanSpec, at: Moment) -> PlanSpec | None:
        """A plan that its kind found to be due, with its job; None while the job is held back."""
        known = self._look(state, state.kinds[spec.kind].job_of(spec.key), at)
        if known is None or not known.is_due(at.now):
            return None
        if window_refusal(state, known.id, at) or rests(state, known, at.now):
            return None
        return with_job(spec, known)

    @property
    def _aside_ns(self) -> int:
        """How long a refused job stays aside at most. With very many of them it is longer, so that
        those that are tried again leave time for the others.
        """
        return ASIDE_MAX_NS * (1 + self.queue.aside // 1_000)

    def session(self, state: MetaState, job: JobId, at: Moment) -> PlanSpec | None:
        """The next session of a job that may run now; else it is put aside."""
        known = self._look(state, job, at)
        if known is None or not known.is_due(at.now):
            return None
        held = hindrance(state, known, at, longest_ns=self._aside_ns)
        if held is not None:
            self.queue.put_aside(job, LeaseTime(max(held.until, at.now + SECOND_NS)))
            return None
        kind = state.kinds[job.kind]
        spec = kind.session(state, known.found, known.schedule, now=at.now, down=at.down)
        if spec is None:
            self.queue.put_aside(job, LeaseTime(at.now + ASIDE_MAX_NS))
            return None
        return with_job(spec, known)

    def sessions(
        self, state: MetaState, kind: PlanKind, at: Moment, room: Room
    ) -> Iterator[PlanSpec]:
        """The sessions of a kind that can begin now, the most urgent first (Fig. 4 of the seed:
        refresh, the highest, may it run? no: the next; yes: its tasks).

        A job that lacks only resources reserves them: none less urgent gets them in this round.
        """
        self.queue.wake(at.now)
        found = self.queue.candidates(
            at.now,
            granularity_ns=state.policy.granularity_ns,
            kind=kind,
            occupied=lambda wanted: bool(room.why_not(wanted)),
        )
        tried = 0
        for queued in found:
            spec = self.session(state, queued.id, at)
            if spec is None:
                tried += 1
                if tried == TRIED_AT_ONCE:
                    return  # those are aside: the next round comes to the others
                continue
            if room.why_not(spec.resources):
                room.reserve(spec.resources)
                continue
            yield spec

    def of_plan(self, state: MetaState, plan: Plan, now: LeaseTime) -> KnownJob | None:
        """The job whose session a plan is."""
        if plan.job is None:
            return None
        return self.known.get(plan.job.id) or look(state, plan.job.id, self._rules, now)

    def schedule_of(self, state: MetaState, job: JobId) -> Schedule:
        return self._rules.in_force(state, job)[0]

    def stop(self, state: MetaState, plan: Plan, at: Moment) -> str:
        """Why a session should end after its present task, in a sentence; '' when it goes on."""
        if plan.job is None or plan.lease is None or not state.kinds[plan.kind].by_interval:
            return ""
        held = pause_reason(state, plan.job.id, at)
        if not held and not plan.lease.ignores_windows:
            refused = window_refusal(state, plan.job.id, at)
            held = refused.why if refused is not None else ""
        if held:
            return held
        if at.now - plan.lease.granted_at >= state.policy.session_ns:
            return "the session has lasted as long as one may"
        return state.kinds[plan.kind].why_stop(state, plan, at.down) or self._more_urgent(
            state, plan, at
        )

    def _more_urgent(self, state: MetaState, plan: Plan, at: Moment) -> str:
        mine = self.of_plan(state, plan, at.now)
        granularity_ns = state.policy.granularity_ns
        least = mine.urgency(at.now, granularity_ns).priority if mine else priority.NOT_DUE
        found = self.queue.candidates(
            at.now,
            granularity_ns=granularity_ns,
            occupied=lambda wanted: set(wanted).isdisjoint(plan.resources),
        )
        for queued in islice(found, TRIED_AT_ONCE):
            known = self.known.get(queued.id)
            if known is None or known.urgency(at.now, granularity_ns).priority <= least:
                return ""
            shared = set(queued.resources) & set(plan.resources)
            if shared and hindrance(state, known, at) is None:
                return f"{queued.id} is more urgent, and waits for {min(shared)}"
        return ""


def with_job(spec: PlanSpec, known: KnownJob) -> PlanSpec:
    """A session's plan knows its job, its resources, and what follows from its end."""
    schedule = known.schedule
    job = PlanJob(known.id, schedule.unwind_permille, schedule.backoff_ns, known.found.on_demand)
    resources = tuple(sorted({*spec.resources, *known.found.resources}))
    return msgspec.structs.replace(spec, job=job, resources=resources)


def _is_new(state: MetaState, known: KnownJob) -> bool:
    record = state.jobs.get(known.id)
    return known.found.last_success is None and (record is None or record.assumed is None)


def _run_is_over(state: MetaState, known: KnownJob, now: LeaseTime) -> bool:
    """All its parts are done: it goes back to the queue until its next interval."""
    record = state.jobs.get(known.id)
    started = record is not None and record.run_started is not None
    return started and not known.is_due(now) and pending(state, known.id) is None


def _is_gone(state: MetaState, job: JobId, known: dict[JobId, KnownJob]) -> bool:
    remembered = job in state.jobs or job in state.alarms
    return remembered and job not in known and job not in state.plans.of_job


def is_scheduled(state: MetaState, kind: PlanKind) -> bool:
    return kind in state.kinds and state.kinds[kind].scheduled
