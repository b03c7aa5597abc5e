"""Which worker gets which plan next: small jobs first among those that can run (S11). Read-only.

Healthy plans wait in the lines of their kinds; a plan goes only to a worker that supports its kind.
Plans that have failed run alone on a worker, preferably another one than the last. They form one
more line, so that failing and healthy plans do not hold each other up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import merge
from itertools import chain, groupby, islice
from typing import NamedTuple

from maar.metastore.decide import jobs, shares, verdict
from maar.metastore.decide.execution import may_run_now
from maar.metastore.decide.jobs import JobBook, Moment
from maar.metastore.decide.workers import PRESENT_NS, WorkerRegistry
from maar.metastore.fold.plans import lease, parking, rollback
from maar.metastore.fold.plans import plan as plans
from maar.metastore.records.entries import (
    Entry,
    Grant,
    PlanBisected,
    PlanExcluded,
    PlansLeased,
    PlansParked,
)
from maar.metastore.records.entries import PlansScheduled as Scheduled
from maar.metastore.state.state import MetaState
from maar.metastore.state.timeline import NEVER, PlanBucket, PlanStanding, place_of
from maar.model.ids import BlockId, PlanId, WorkerId
from maar.model.plan import JobId, Plan, PlanKind, PlanSpec
from maar.model.time import LeaseTime
from maar.scheduling.resources import Room
from maar.services.kinds import KINDS, PlanLine

GRANTED_AT_ONCE = 64  # keeps the leader's loop responsive; the next poll gets more
SET_ASIDE_AT_ONCE = 100
FAILING_SEEN_MAX = 64  # of a line, in one round: enough to find a plan that fits the worker
FAILING = PlanLine(1 << 16, 0)  # the line of all plans that run alone, after all others
PROBE = PlanLine(1 << 16, 1)  # among those, the line of excluded plans


class Wish(NamedTuple):
    """A worker, how many plans it has room for, and which kinds of them it can carry out."""

    worker: WorkerId
    capacity: int
    kinds: Collection[PlanKind] = KINDS.on_engine()


class Offer(NamedTuple):
    """A plan that can be handed out, or one that would be scheduled for it."""

    plan: Plan | None
    spec: PlanSpec | None = None


# ── plans at their limit ───────────────────────────────────────────────────────────────────────


def set_aside(
    state: MetaState, now: LeaseTime, *, hearing_since: LeaseTime = verdict.ALWAYS
) -> list[Entry]:
    """Plans at their limit: those that their kind can divide are, the others are excluded (S17).

    When the schedule has no room for a second half, the whole plan is excluded and probed instead.
    """
    entries: list[Entry] = []
    room = state.policy.plans_max - len(state.plans)  # a plan in two is one more
    for plan, counts_as_failure in islice(_at_limit(state, now, hearing_since), SET_ASIDE_AT_ONCE):
        seen = plan.lease.token if plan.lease else None
        at = state.kinds[plan.kind].divides_at(plan)
        if at is not None and room > 0:
            entries.append(PlanBisected(plan.id, seen, at, counts_as_failure))
            room -= 1
        else:
            probes = plan.failures + counts_as_failure - plan.failure_limit
            until = LeaseTime(now + plans.probe_delay(state, probes))
            entries.append(PlanExcluded(plan.id, seen, until, counts_as_failure))
    return entries


def _at_limit(
    state: MetaState, now: LeaseTime, hearing_since: LeaseTime
) -> Iterator[tuple[Plan, bool]]:
    """Plans at their limit that nobody works on, and whether their expired lease counts."""
    raised = state.raised_limit(now)
    for line in sorted(state.plans.lines):
        limit = max(line.limit, raised)
        leased = line.standing is PlanStanding.LEASED
        if line.standing > PlanStanding.LEASED or line.failures + leased < limit:
            continue
        if not state.kinds.of_line(line.line).gives_up:
            continue
        for plan in state.plans.line(line, now if leased else NEVER):
            if plan.removable:
                continue  # it is rolled back, not divided or set aside
            counts_as_failure = verdict.expiry_counts(state, plan, hearing_since=hearing_since)
            if plan.failures + counts_as_failure >= limit:
                yield plan, counts_as_failure


# ── what waits ─────────────────────────────────────────────────────────────────────────────────


def healthy(
    state: MetaState, line: PlanLine, *, now: LeaseTime, hearing_since: LeaseTime
) -> Iterator[Plan]:
    """Plans of a line that have not failed, best first: unassigned, then abandoned ones."""
    for plan in _waiting(state, now, lambda one: one.line == line and not one.failures):
        if not verdict.expiry_counts(state, plan, hearing_since=hearing_since):
            yield plan


def failing(
    state: MetaState, line: PlanLine, *, now: LeaseTime, hearing_since: LeaseTime
) -> Iterator[Plan]:
    """Plans of a line that have failed and may try again, best first.

    While the limit is raised, excluded plans below it are included, even before their pause is
    over.
    """
    raised = state.raised_limit(now)
    for plan in _waiting(state, now, lambda one: one.line == line and _may_fail(one)):
        failures = plan.failures + verdict.expiry_counts(state, plan, hearing_since=hearing_since)
        endless = not state.kinds[plan.kind].gives_up
        if failures and (endless or failures < max(plan.failure_limit, raised)):
            yield plan
    yield from _in_order(
        state,
        NEVER,
        lambda one: (
            one.standing is PlanStanding.EXCLUDED and one.line == line and one.failures < raised
        ),
    )


def _may_fail(line: PlanBucket) -> bool:
    """Whether its plans have failed, or will have once their expired leases are ended."""
    return line.failures > 0 or line.standing is PlanStanding.LEASED


def probes(state: MetaState, now: LeaseTime) -> list[Plan]:
    """Excluded plans whose pause is over, the longest waiting first; none while one is probed.

    Some of each kind are offered, so that a worker finds one of a kind that it supports.
    """
    if state.plans.probing():
        return []
    raised = state.raised_limit(now)
    kinds: dict[int, list[PlanBucket]] = {}
    for bucket in state.plans.lines:
        if bucket.standing is PlanStanding.EXCLUDED and bucket.failures >= raised:
            kinds.setdefault(bucket.line.rank, []).append(bucket)
    found: list[Plan] = []
    for buckets in kinds.values():
        lines = (state.plans.line(bucket, now) for bucket in buckets)
        calm = (plan for plan in merge(*lines, key=place_of) if not plan.urgent)
        found += islice(calm, FAILING_SEEN_MAX)
    return sorted(found, key=place_of)


def _waiting(
    state: MetaState, now: LeaseTime, wanted: Callable[[PlanBucket], bool]
) -> Iterator[Plan]:
    """Plans that can be handed out: unassigned, or with an expired lease; not while somebody rolls
    back what an earlier attempt left.
    """
    for plan in _in_order(
        state, now, lambda line: line.standing <= PlanStanding.LEASED and wanted(line)
    ):
        if not rollback.live_holder(state, plan.id, now):
            yield plan


def _in_order(
    state: MetaState, now: LeaseTime, wanted: Callable[[PlanBucket], bool]
) -> Iterator[Plan]:
    """Sorts by line, standing, fewest failures, longest wait, order of planning. Urgent plans are
    not among them: those go first, and nobody is given a plan twice.
    """
    lines = sorted(filter(wanted, state.plans.lines))
    for _, same in groupby(lines, key=lambda line: line[:3]):
        for plan in merge(*(state.plans.line(line, now) for line in same), key=place_of):
            if not plan.urgent:
                yield plan


def urgent(state: MetaState, now: LeaseTime) -> list[Plan]:
    """Plans that somebody wants to be carried out now, and that can be, the oldest first."""
    able = (plan for plan in state.plans.urgent_plans() if may_run_now(state, plan, now))
    return list(islice(able, GRANTED_AT_ONCE))


# ── a round of handing out ─────────────────────────────────────────────────────────────────────


def assign(
    state: MetaState,
    wishes: Sequence[Wish],
    *,
    now: LeaseTime,
    worker_registry: WorkerRegistry | None = None,
    book: JobBook | None = None,
    at: Moment | None = None,
) -> list[Entry]:
    """Hand out what waits, and plan more: as many as there are free slots.

    At most three entries: evictions, new plans, and leases (also of the new plans).
    """
    capacities: dict[WorkerId, int] = {}
    able: dict[WorkerId, frozenset[PlanKind]] = {}
    for wish in wishes:
        capacities[wish.worker] = capacities.get(wish.worker, 0) + max(0, wish.capacity)
        able[wish.worker] = frozenset(wish.kinds)
    worker_registry = worker_registry or WorkerRegistry()
    for worker, capacity in capacities.items():
        worker_registry.hear(worker, wants=capacity > 0, kinds=able[worker], now=now)
    worker_registry.forget_absent(now)
    if not any(capacities.values()):
        return []
    at = at or jobs.moment(state, now)
    if book is None:
        book = JobBook()
        book.turn(state, at)
    scheduled = _ScheduledWork(state, book, at)
    round_ = _Round(state, worker_registry, scheduled, now, sum(capacities.values()))
    for worker, capacity in capacities.items():
        round_.serve(worker, capacity)
    return round_.entries()


class _ScheduledWork:
    """What the schedule lets run in one round, and what is left of the resources."""

    def __init__(self, state: MetaState, book: JobBook, at: Moment) -> None:
        self._state = state
        self._book = book
        self._at = at
        self._refused: dict[JobId, bool] = {}
        occupied = state.plans.slots_in_use(at.now)
        self.room = Room(occupied, slots=state.policy.resource_slots)

    def due(self, line: PlanLine) -> Iterator[PlanSpec]:
        """What can become a plan of a line now, best first."""
        state, at = self._state, self._at
        rules = state.kinds.of_line(line)
        if rules.by_interval:
            yield from self._book.sessions(state, rules.kind, at, self.room)
            return
        for spec in state.kinds.due(state, line, now=at.now):
            found = self._book.let_through(state, spec, at) if rules.scheduled else spec
            if found is not None:
                yield found

    def may_run(self, plan: Plan) -> bool:
        """Whether no run policy refuses a plan that waits, and its resources are free. One that
        lacks only those reserves them.
        """
        rules = self._state.kinds[plan.kind]
        if not rules.scheduled:
            return True
        job = plan.job.id if plan.job else rules.job_of(plan.key)
        if job not in self._refused:
            refused = jobs.window_refusal(self._state, job, self._at)
            self._refused[job] = refused is not None
        if self._refused[job]:
            return False
        if self.room.why_not(plan.resources):
            self.room.reserve(plan.resources)
            return False
        return True

    def priority(self, offer: Offer) -> int:
        what = offer.plan or offer.spec
        known = self._book.known.get(what.job.id) if what and what.job else None
        if known is None:
            return 0
        return known.urgency(self._at.now, self._state.policy.granularity_ns).priority


class _Line:
    """Offers of one line, computed lazily."""

    def __init__(self, offers: Iterator[Offer]) -> None:
        self._offers = offers
        self._seen: list[Offer] = []

    def first(self) -> Offer | None:
        if not self._seen:
            self._seen = list(islice(self._offers, 1))
        return self._seen[0] if self._seen else None

    def take(self) -> Offer:
        return self._seen.pop()


class _Round:
    """One round of handing out plans: what is on offer, and what each worker got so far."""

    def __init__(
        self,
        state: MetaState,
        worker_registry: WorkerRegistry,
        scheduled: _ScheduledWork,
        now: LeaseTime,
        wanted: int,
    ) -> None:
        self._state = state
        self._scheduled = scheduled
        self._worker_registry = worker_registry
        self._now = now
        self._left = min(wanted, GRANTED_AT_ONCE, lease.attempts_left(state))
        self._given: list[tuple[Offer, WorkerId]] = []
        self._new = 0  # plans to be scheduled
        self._taken: set[BlockId] = set()  # by those
        room = state.policy.plans_max - len(state.plans)
        self._new_max = room if room > 0 else parking.room(state)
        since = worker_registry.hearing_since
        may_run = scheduled.may_run
        planned = {one.line for one in state.plans.lines}  # of most kinds no plan is there
        lines = sorted(planned.union(state.kinds.lines(state.policy)))
        self._urgent = list(filter(may_run, urgent(state, now)))
        self._lines = {
            line: _Line(
                chain(
                    map(Offer, filter(may_run, healthy(state, line, now=now, hearing_since=since)))
                    if line in planned
                    else (),
                    (Offer(None, spec) for spec in scheduled.due(line)),
                )
            )
            for line in lines
        }
        self._failing = {
            line: list(
                islice(
                    filter(may_run, failing(state, line, now=now, hearing_since=since)),
                    FAILING_SEEN_MAX,
                )
            )
            for line in sorted(planned)
        }
        self._failing[PROBE] = list(filter(may_run, probes(state, now)))
        if not any(self._failing.values()) and not any(plan.failures for plan in self._urgent):
            worker_registry.drained = None  # other workers took those plans

    # ── which worker ──

    def serve(self, worker: WorkerId, capacity: int) -> None:
        work = self._work_of(worker)
        if any(plan.failures for plan in work):
            return  # it runs alone until it ends
        given = self._give_urgent(worker, capacity, busy=bool(work))
        if given is None:
            return
        if self._worker_registry.drained == worker:
            if work:
                return
            self._worker_registry.drained = None
            if self._left > 0 and capacity > given == 0 and self._give_alone(worker):
                return
        while given < capacity and self._left > 0:
            taken = self._serve_one(worker, alone=not work and not given)
            if not taken:
                return
            given += taken

    def _give_urgent(self, worker: WorkerId, capacity: int, *, busy: bool) -> int | None:
        """How many slots go to plans that were asked for; None when the worker gets nothing else.

        One that has failed runs alone, like any other: a busy worker is drained for it.
        """
        registry, given = self._worker_registry, 0
        for plan in list(self._urgent):
            if (
                given >= capacity
                or self._left <= 0
                or plan.kind not in registry.heard[worker].kinds
                or self._scheduled.room.why_not(plan.resources)
            ):
                continue
            if plan.failures and (busy or given):
                if registry.drained is None:
                    registry.drained = worker
                if registry.drained == worker:
                    return None
                continue
            self._urgent.remove(plan)
            self._give(Offer(plan), worker)
            if plan.failures:
                if registry.drained == worker:
                    registry.drained = None
                return None
            given += self._state.kinds[plan.kind].slots(self._state.policy)
        return given

    def _work_of(self, worker: WorkerId) -> list[Plan]:
        """A rollback comes with the plan that it precedes, and takes no slot of its own."""
        held = self._state.plans.work_of(worker, self._now)
        return [plan for plan in held if plan.rolls_back is None]

    def _serve_one(self, worker: WorkerId, *, alone: bool) -> int:
        """How many slots of the worker the plan takes that it got; 0 when it gets no more.

        A plan that takes more slots than are free is handed out all the same, or it might never be:
        its tasks wait for each other.
        """
        waiting = self._waiting()
        able = alone and bool(self._suspect(worker))
        kinds, done = self._state.kinds, self._worker_registry.heard[worker].kinds
        lines = [
            line
            for line in waiting
            if (able if line == FAILING else kinds.of_line(line).kind in done)
        ]
        if not lines:
            return 0
        share = self._state.policy.least_share
        line = shares.next_line(self._worker_registry.turns, lines, share=share)
        if line == FAILING:
            return 0 if self._give_alone(worker) else 1
        if not alone and self._drain(worker):
            return 0
        self._worker_registry.turns = shares.after(self._worker_registry.turns, waiting, line)
        self._give(self._lines[line].take(), worker)
        return kinds.of_line(line).slots(self._state.policy)

    def _waiting(self) -> list[PlanLine]:
        """Lines that have something to offer, those that go first at the front."""
        full = self._new >= self._new_max
        lines = [
            line
            for line, offers in self._lines.items()
            if (offer := self._first(offers)) and not (offer.spec and full)
        ]
        lines = self._by_urgency(lines)
        return [*lines, FAILING] if any(self._failing.values()) else lines

    def _by_urgency(self, lines: list[PlanLine]) -> list[PlanLine]:
        """Lines of scheduled kinds change places among each other: the most urgent job first."""
        kinds = self._state.kinds
        scheduled = [line for line in lines if kinds.of_line(line).scheduled]
        if len(scheduled) < 2:
            return lines

        def less_urgent(line: PlanLine) -> int:
            offer = self._lines[line].first()
            return -self._scheduled.priority(offer) if offer else 0

        ordered = iter(sorted(scheduled, key=less_urgent))
        return [next(ordered) if line in scheduled else line for line in lines]

    def _first(self, offers: _Line) -> Offer | None:
        """Two kinds may want the same block, or the same store: the first to be served gets it."""
        room = self._scheduled.room
        while offer := offers.first():
            what = offer.plan or offer.spec
            assert what is not None
            taken = offer.spec is not None and not self._taken.isdisjoint(what.inputs)
            if not taken and not room.why_not(what.resources):
                break
            offers.take()
        return offer

    # ── plans that run alone ──

    def _suspect(self, worker: WorkerId) -> dict[PlanLine, Plan]:
        """By line, the first plan that this worker may try."""
        found = {}
        for line, candidates in self._failing.items():
            for plan in candidates:
                if self._suits(plan, worker):
                    found[line] = plan
                    break
        return found

    def _suits(self, plan: Plan, worker: WorkerId) -> bool:
        """Prefer another worker than the one it failed on, if one is there and asks soon."""
        if plan.kind not in self._worker_registry.heard[worker].kinds:
            return False
        if self._scheduled.room.why_not(plan.resources):
            return False
        if not plan.attempts or plan.attempts[-1].worker != worker:
            return True
        since = place_of(plan).since
        if since > self._now:  # its pause is cut short
            since = plan.attempts[-1].ended_at or since
        return self._now - since > PRESENT_NS or not self._worker_registry.others(worker, plan.kind)

    def _give_alone(self, worker: WorkerId) -> bool:
        found = self._suspect(worker)
        if not found:
            return False
        worker_registry, share = self._worker_registry, self._state.policy.least_share
        line = shares.next_line(worker_registry.failing_turns, sorted(found), share=share)
        worker_registry.failing_turns = shares.after(
            worker_registry.failing_turns, sorted(found), line
        )
        worker_registry.turns = shares.after(worker_registry.turns, self._waiting(), FAILING)
        self._failing[line].remove(found[line])
        if line == PROBE:
            self._failing[PROBE] = []  # one at a time
        self._give(Offer(found[line]), worker)
        return True

    def _drain(self, worker: WorkerId) -> bool:
        """Whether to drain this worker for a plan that must run alone, when no worker is free."""
        worker_registry, share = self._worker_registry, self._state.policy.least_share
        if worker_registry.drained is not None or not shares.overdue(
            worker_registry.turns, FAILING, share=share
        ):
            return False
        wanted = {plan.kind for plan in self._suspect(worker).values()}
        if not wanted or any(self._free(other, wanted) for other in worker_registry.heard):
            return False
        worker_registry.drained = worker
        return True

    def _free(self, worker: WorkerId, wanted: set[PlanKind]) -> bool:
        """Whether it asks for work and is idle: then it can take a plan of these kinds alone."""
        if wanted.isdisjoint(self._worker_registry.heard[worker].kinds):
            return False
        busy = self._work_of(worker)
        served = any(worker == other for _, other in self._given)
        return self._worker_registry.heard[worker].wants and not busy and not served

    # ── the resulting entries ──

    def _give(self, offer: Offer, worker: WorkerId) -> None:
        self._given.append((offer, worker))
        what = offer.plan or offer.spec
        assert what is not None
        self._scheduled.room.take(what.resources)
        if offer.spec is not None:
            self._new += 1
            self._taken.update(offer.spec.inputs)
        self._left -= 1

    def entries(self) -> list[Entry]:
        state = self._state
        granted = {offer.plan.id for offer, _ in self._given if offer.plan}
        room = max(0, state.policy.plans_max - len(state.plans))
        evicted = parking.plans_to_evict(state, self._new - room, spare=granted)
        specs = tuple(offer.spec for offer, _ in self._given if offer.spec)[: room + len(evicted)]
        scheduled_at = state.index + 1 + bool(evicted)
        fresh = iter([PlanId(scheduled_at, ordinal) for ordinal in range(len(specs))])
        grants = [
            grant
            for offer, worker in self._given
            if (grant := self._grant(offer, worker, fresh)) is not None
        ]
        return [
            *([PlansParked(evicted)] if evicted else []),
            *([Scheduled(specs)] if specs else []),
            *([PlansLeased(tuple(grants))] if grants else []),
        ]

    def _grant(self, offer: Offer, worker: WorkerId, fresh: Iterator[PlanId]) -> Grant | None:
        plan, what = offer.plan, offer.plan or offer.spec
        assert what is not None
        lease_ns = self._state.kinds[what.kind].lease_ns(self._state.policy)
        expires_at = LeaseTime(self._now + lease_ns)
        if plan is None:
            scheduled = next(fresh, None)
            return Grant(scheduled, worker, expires_at) if scheduled else None
        seen = plan.lease.token if plan.lease else None
        since = self._worker_registry.hearing_since
        counts_as_failure = verdict.expiry_counts(self._state, plan, hearing_since=since)
        return Grant(plan.id, worker, expires_at, seen, counts_as_failure, by_hand=plan.urgent)
