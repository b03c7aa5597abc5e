"""The schedule on a virtual clock: the real decisions and the real fold, with jobs that only wait.

Every tenant has one job, which needs some of the stores for a while. Nothing else is made up: who
runs next, what occupies a store, what is late and which alarms ring is what a leader would decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import combinations

import msgspec

from maar.metastore.decide import schedule as handing_out
from maar.metastore.decide.jobs import JobBook, KnownJob, Moment
from maar.metastore.decide.schedule import Wish
from maar.metastore.decide.workers import WorkerRegistry
from maar.metastore.fold.apply import Indexed, apply
from maar.metastore.records.effects import AlarmRaised, Effect, Leased
from maar.metastore.records.entries import (
    Entry,
    Envelope,
    Genesis,
    PlanCompleted,
    PlansStarted,
    PolicySet,
    RunPolicyAdded,
    RunPolicyRemoved,
    Start,
    TermStarted,
)
from maar.metastore.state.state import MetaState
from maar.metastore.views.schedule import view
from maar.model.block import BlockOutline
from maar.model.ids import MAIN_STORE, BlockId, Incarnation, Shard, StoreName, TenantId, WorkerId
from maar.model.plan import Account, JobId, Plan, PlanKind, PlanResult, PlanSpec, QueueKey
from maar.model.policy import Policy
from maar.model.refusal import Refusal
from maar.model.schedule import EVERY_JOB, AlarmLevel, RunPolicy, Schedule, store_resource
from maar.model.time import SECOND_NS, LeaseTime, WallTime
from maar.scheduling import rules
from maar.scheduling.status import JobStatus, alarm_level
from maar.services.compact.rules import COMPACTION
from maar.services.kinds import Kinds
from maar.services.rules import Board, JobState, KindRules

KIND = PlanKind("simulated")
WORKER = WorkerId("simulated")
EPOCH_S = 1_767_225_600  # 2026-01-01
SAMPLES = 240  # states are counted so often, evenly


class Scene(msgspec.Struct, frozen=True):
    """How many jobs there are, what each needs, and when none may run."""

    tenants: int = 60
    stores: int = 6
    copies: int = 3
    work_s: float = 48.0
    interval_s: float = 3600.0
    days: float = 1.0
    stopped_from_day: float = 0.0  # all jobs are paused from then …
    stopped_until_day: float = 0.0  # … until then
    wide: int = 0  # the first so many tenants need every store


class ScheduleSample(msgspec.Struct, frozen=True):
    at_s: float
    states: dict[str, int]


class ScheduleReport(msgspec.Struct, frozen=True):
    scene: Scene
    sessions: int
    busy_share: float  # of all stores, over the whole time
    latest: float  # the longest time without a success, in intervals
    late: int  # tenants that were ever LATE or OVERDUE
    alarms: int  # that rang
    samples: tuple[ScheduleSample, ...]


class OccupyingRules(KindRules):
    """Jobs that occupy stores, and do nothing."""

    kind = KIND
    scheduled = True
    by_interval = True
    writes = False

    def __init__(self, needs: Mapping[JobId, tuple[str, ...]], schedule: Schedule) -> None:
        self._needs = needs
        self._schedule = schedule
        self.last: dict[JobId, LeaseTime] = {}

    def due(self, _board: Board, _line: int, *, now: LeaseTime) -> Iterator[PlanSpec]:  # noqa: ARG002
        return iter(())

    def lease_ns(self, _policy: Policy) -> int:
        return 600 * SECOND_NS

    def default_schedule(self, _policy: Policy, _job: JobId) -> Schedule:
        return self._schedule

    def job_tenants(self, _board: Board) -> Collection[TenantId]:
        return [job.tenant for job in self._needs]

    def job_ids(self, _board: Board, tenant: TenantId) -> Iterable[JobId]:
        return (JobId(tenant, KIND),)

    def job(
        self,
        _board: Board,
        job: JobId,
        _schedule: Schedule,
        *,
        now: LeaseTime,  # noqa: ARG002
        down: Collection[StoreName] = (),  # noqa: ARG002
    ) -> JobState | None:
        return JobState(job, self.last.get(job), resources=self._needs[job])

    def session(
        self,
        _board: Board,
        job: JobState,
        _schedule: Schedule,
        *,
        now: LeaseTime,  # noqa: ARG002
        down: Collection[StoreName] = (),  # noqa: ARG002
    ) -> PlanSpec | None:
        key = QueueKey(MAIN_STORE, job.id.tenant, Shard(0), 0)
        return PlanSpec(KIND, False, key, (), 3)

    def misfit(self, _board: Board, _spec: PlanSpec) -> Refusal | None:
        return None

    def refusal(
        self,
        _plan: Plan,
        _inputs: Mapping[BlockId, BlockOutline],
        _result: PlanResult,
        _deletable: Mapping[TenantId, int],
    ) -> Refusal | None:
        return None


class Simulation:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        needs = dict(_jobs(scene))
        interval_ns = int(scene.interval_s * SECOND_NS)
        schedule = rules.with_interval(Schedule(interval_ns=interval_ns), interval_ns)
        self._rules = OccupyingRules(needs, schedule)
        self._state = MetaState(kinds=Kinds(COMPACTION, self._rules))
        self._book, self._registry = JobBook(), WorkerRegistry()
        self._now = LeaseTime(0)
        self._running: list[tuple[int, int, Leased]] = []  # by their end
        self._sessions = self._alarms = 0
        self._ever_late: set[JobId] = set()
        self._latest = self._held_s = 0.0
        for entry in (Genesis(Incarnation("51100000")), TermStarted(1, "one"), PolicySet(Policy())):
            self._put(entry)

    def report(self) -> ScheduleReport:
        scene = self._scene
        samples: list[ScheduleSample] = []
        end = int(scene.days * 86_400 * SECOND_NS)
        pause = [int(day * 86_400 * SECOND_NS) for day in _pause(scene)]
        step = max(SECOND_NS, end // SAMPLES)
        while self._now < end:
            while pause and self._now >= pause[0]:
                self._switch(paused=len(pause) == 2)
                del pause[0]
            self._finish()
            self._hand_out()
            if self._now >= len(samples) * step:
                samples.append(self._sample())
            upto = min([end, *pause[:1], len(samples) * step, *self._next()])
            self._now = LeaseTime(max(upto, self._now + SECOND_NS))
        return ScheduleReport(
            scene,
            self._sessions,
            self._held_s / (scene.stores * scene.days * 86_400),
            self._latest,
            len(self._ever_late),
            self._alarms,
            tuple(samples),
        )

    def _moment(self) -> Moment:
        return Moment(self._now, WallTime(EPOCH_S * SECOND_NS + self._now))

    def _put(self, entry: Entry) -> list[Effect]:
        index, wall = self._state.index + 1, self._moment().wall
        effects = apply(
            self._state, Indexed(index, Envelope(self._state.version, self._now, wall, entry))
        )
        self._book.follow(self._state, effects)
        self._alarms += sum(isinstance(effect, AlarmRaised) for effect in effects)
        return list(effects)

    def _switch(self, *, paused: bool) -> None:
        if paused:
            self._put(RunPolicyAdded(RunPolicy(0, EVERY_JOB)))
        else:
            self._put(RunPolicyRemoved(next(iter(self._state.run_policies))))

    def _finish(self) -> None:
        while self._running and self._running[0][0] <= self._now:
            _, _, lease = heappop(self._running)
            plan = self._state.plans[lease.plan]
            assert plan.job is not None
            self._note_age(plan.job.id)
            self._rules.last[plan.job.id] = self._now
            result = PlanResult(KIND, (), Account(0, 0, 0))
            self._put(PlanCompleted(lease.plan, lease.token, result))

    def _hand_out(self) -> None:
        at = self._moment()
        self._book.turn(self._state, at)
        while self._book.behind:
            self._book.turn(self._state, at)
        while entries := self._book.entries(self._state, at):
            for entry in entries:
                self._put(entry)
        wish = Wish(WORKER, self._scene.stores, (KIND,))
        for entry in handing_out.assign(
            self._state,
            [wish],
            now=self._now,
            worker_registry=self._registry,
            book=self._book,
            at=at,
        ):
            for effect in self._put(entry):
                if isinstance(effect, Leased):
                    self._begin(effect)

    def _begin(self, lease: Leased) -> None:
        self._put(PlansStarted((Start(lease.plan, lease.token),)))
        self._sessions += 1
        plan = self._state.plans[lease.plan]
        self._held_s += self._scene.work_s * len(plan.resources)
        ends = self._now + int(self._scene.work_s * SECOND_NS)
        heappush(self._running, (ends, self._sessions, lease))

    def _next(self) -> Iterator[int]:
        """When something may change."""
        yield from (end for end, _, _ in self._running[:1])
        due = (known.due_at for known in self._book.known.values() if known.due_at > self._now)
        yield from (first for first in [min(due, default=None)] if first is not None)

    def _sample(self) -> ScheduleSample:
        at, states = self._moment(), Counter[str]()
        for known in self._book.known.values():
            states[self._stands(known, at)] += 1
            self._note_age(known.id)
        return ScheduleSample(self._now / SECOND_NS, {state: states[state] for state in JobStatus})

    def _stands(self, known: KnownJob, at: Moment) -> str:
        """As people see it, but that one that cannot run is shown as late when it is."""
        level = alarm_level(known.age_ns(self._state, at), known.schedule)
        if level is None:
            return view(self._state, known, at).state
        return JobStatus.OVERDUE if level is AlarmLevel.ERROR else JobStatus.LATE

    def _note_age(self, job: JobId) -> None:
        """A job is oldest just before it succeeds, so that is when to look."""
        known = self._book.known[job]
        age_ns = known.age_ns(self._state, self._moment())
        self._latest = max(self._latest, age_ns / SECOND_NS / self._scene.interval_s)
        if age_ns >= known.schedule.warning_ns:
            self._ever_late.add(job)


def _jobs(scene: Scene) -> Iterator[tuple[JobId, tuple[str, ...]]]:
    """Each tenant needs another set of stores, as long as there are other sets."""
    names = [StoreName(f"s{number}") for number in range(scene.stores)]
    sets = list(combinations(names, scene.copies))
    for number in range(scene.tenants):
        stores = names if number < scene.wide else sets[number * 7 % len(sets)]
        job = JobId(TenantId(f"t{number:04}"), KIND)
        yield job, tuple(sorted(store_resource(store) for store in stores))


def _pause(scene: Scene) -> tuple[float, ...]:
    stopped = scene.stopped_until_day > scene.stopped_from_day
    return (scene.stopped_from_day, scene.stopped_until_day) if stopped else ()


def simulate(scene: Scene) -> ScheduleReport:
    return Simulation(scene).report()
