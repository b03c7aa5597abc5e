"""The plans of the schedule, in priority buckets from which the next one is taken in O(log n).

It is a mapping from ids to plans; the buckets are derived from the plans and updated with them. A
plan's bucket is given by its kind's line, its standing, failures and limit. Within a bucket, plans
are ordered by the time from which they can be handed out. Passing time moves no plan: readers of a
bucket take those whose time has come.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, ValuesView
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeVar

from maar.metastore.state.sorted_items import SortedItems, add_to, discard_from
from maar.model.ids import PlanId, WorkerId
from maar.model.plan import JobId, Plan, PlanKind, PlanState
from maar.model.time import LeaseTime
from maar.services.kinds import KINDS, Kinds, PlanLine

NEVER = LeaseTime(1 << 62)  # excluded by an operator: not handed out until it is requeued


class PlanStanding(IntEnum):
    """In the order in which plans of a line are handed out."""

    UNASSIGNED = 0  # nobody holds it
    LEASED = 1  # abandoned, once its lease has expired
    STARTED = 2  # removable: never handed out again, whatever becomes of its lease
    EXCLUDED = 3  # over its limit, and probed now and then
    BARRED = 4  # by an operator


class PlanBucket(NamedTuple):
    """The key of a bucket of waiting plans; sorts by which bucket is served first."""

    line: PlanLine  # of its kind
    standing: PlanStanding
    failures: int
    limit: int


class PlanPlace(NamedTuple):
    since: LeaseTime  # it can be handed out from then on; if leased, after then
    plan: PlanId


def place_of(plan: Plan) -> PlanPlace:
    return PlanPlace(plan.lease.expires_at if plan.lease else plan.eligible_at, plan.id)


def _standing(plan: Plan) -> PlanStanding:
    if plan.removable and plan.state is PlanState.INFLIGHT:
        return PlanStanding.STARTED
    if plan.lease is not None:
        return PlanStanding.LEASED
    if plan.state is not PlanState.EXCLUDED:
        return PlanStanding.UNASSIGNED
    return PlanStanding.BARRED if plan.eligible_at >= NEVER else PlanStanding.EXCLUDED


T = TypeVar("T")


def _drop(plans: dict[T, dict[PlanId, None]], of: T, plan: PlanId) -> None:
    some = plans[of]
    del some[plan]
    if not some:
        del plans[of]


@dataclass(slots=True)
class Timeline:
    """Requested, inflight and excluded plans."""

    by_id: dict[PlanId, Plan] = field(default_factory=dict)
    lines: dict[PlanBucket, SortedItems[PlanPlace]] = field(default_factory=dict)
    held: dict[WorkerId, set[PlanId]] = field(default_factory=dict)  # by lease, live or expired
    leases: int = 0
    removable: dict[PlanId, None] = field(default_factory=dict)
    rollbacks: dict[PlanId, PlanId] = field(default_factory=dict)  # pending, by their target
    urgent: dict[PlanId, None] = field(default_factory=dict)
    occupied: dict[str, dict[PlanId, None]] = field(default_factory=dict)  # resources, by lease
    of_job: dict[JobId, dict[PlanId, None]] = field(default_factory=dict)
    kinds: Kinds = KINDS

    def __len__(self) -> int:
        return len(self.by_id)

    def __contains__(self, plan: PlanId) -> bool:
        return plan in self.by_id

    def __iter__(self) -> Iterator[PlanId]:
        return iter(self.by_id)

    def __getitem__(self, plan: PlanId) -> Plan:
        return self.by_id[plan]

    def get(self, plan: PlanId) -> Plan | None:
        return self.by_id.get(plan)

    def values(self) -> ValuesView[Plan]:
        return self.by_id.values()

    def items(self) -> ItemsView[PlanId, Plan]:
        return self.by_id.items()

    def __setitem__(self, plan_id: PlanId, plan: Plan) -> None:
        before = self.by_id.get(plan_id)
        if before is not None:
            self._leave(before)
        self.by_id[plan_id] = plan
        add_to(self.lines, self.line_of(plan), place_of(plan))
        if plan.removable:
            self.removable[plan_id] = None
        if plan.rolls_back is not None:
            self.rollbacks[plan.rolls_back] = plan_id
        if plan.urgent:
            self.urgent[plan_id] = None
        if plan.job is not None:
            self.of_job.setdefault(plan.job.id, {})[plan_id] = None
        if plan.lease is not None:
            self.held.setdefault(plan.lease.worker, set()).add(plan_id)
            self.leases += 1
            for resource in plan.resources:
                self.occupied.setdefault(resource, {})[plan_id] = None

    def __delitem__(self, plan_id: PlanId) -> None:
        self._leave(self.by_id.pop(plan_id))

    def _leave(self, plan: Plan) -> None:
        discard_from(self.lines, self.line_of(plan), place_of(plan))
        self.removable.pop(plan.id, None)
        self.urgent.pop(plan.id, None)
        if plan.rolls_back is not None:
            del self.rollbacks[plan.rolls_back]
        if plan.job is not None:
            _drop(self.of_job, plan.job.id, plan.id)
        if plan.lease is not None:
            for resource in plan.resources:
                _drop(self.occupied, resource, plan.id)
            mine = self.held[plan.lease.worker]
            mine.discard(plan.id)
            if not mine:
                del self.held[plan.lease.worker]
            self.leases -= 1

    def line_of(self, plan: Plan) -> PlanBucket:
        line = self.kinds.line(plan.kind, plan.key)
        return PlanBucket(line, _standing(plan), plan.failures, plan.failure_limit)

    def line(self, line: PlanBucket, now: LeaseTime) -> Iterator[Plan]:
        """Plans of a bucket whose time has come, the longest waiting first."""
        leased = line.standing is PlanStanding.LEASED
        for since, plan in self.lines.get(line, ()):
            if since > now or (leased and since == now):
                return
            yield self.by_id[plan]

    def work_of(self, worker: WorkerId, now: LeaseTime) -> list[Plan]:
        """What a worker holds under leases that are live."""
        mine = (self.by_id[plan] for plan in self.held.get(worker, ()))
        return [plan for plan in mine if plan.lease and not plan.lease.is_expired(now)]

    def slots_in_use(self, now: LeaseTime, *, but: PlanId | None = None) -> dict[str, int]:
        """How many slots of each resource live leases hold, those of one plan left out."""
        counts = {}
        for resource, plans in self.occupied.items():
            leases = (self.by_id[plan].lease for plan in plans if plan != but)
            live = sum(lease is not None and not lease.is_expired(now) for lease in leases)
            if live:
                counts[resource] = live
        return counts

    def pending_of(self, job: JobId) -> Plan | None:
        """The oldest plan of a job that is on the schedule."""
        first = min(self.of_job.get(job, ()), default=None)
        return self.by_id[first] if first is not None else None

    def rollback_of(self, target: PlanId) -> Plan | None:
        """The pending rollback of a plan, which may itself be long gone."""
        rollback = self.rollbacks.get(target)
        return None if rollback is None else self.by_id[rollback]

    def removable_plans(self) -> Iterator[Plan]:
        return (self.by_id[plan] for plan in self.removable)

    def urgent_plans(self) -> Iterator[Plan]:
        """The oldest first."""
        return (self.by_id[plan] for plan in sorted(self.urgent))

    def rollback_plans(self) -> Iterator[Plan]:
        return (self.by_id[plan] for plan in self.rollbacks.values())

    def abandoned_plans(self, now: LeaseTime) -> Iterator[Plan]:
        """Plans that stay, whose last attempt has begun to write and whose lease has expired."""
        for bucket in sorted(self.lines):
            writes = self.kinds.of_line(bucket.line).writes
            if writes and bucket.standing is PlanStanding.LEASED:
                for plan in self.line(bucket, now):
                    if not plan.removable and plan.attempts[-1].started_at is not None:
                        yield plan

    def has_pending(self, kind: PlanKind) -> bool:
        """Whether a plan of the kind is on the schedule."""
        return any(self.kinds.of_line(bucket.line).kind == kind for bucket in self.lines)

    def of_kind(self, kind: PlanKind) -> Iterator[Plan]:
        """The plans of a kind that are on the schedule."""
        for bucket, places in self.lines.items():
            if self.kinds.of_line(bucket.line).kind == kind:
                yield from (self.by_id[place.plan] for place in places)

    def probing(self) -> bool:
        """Whether a worker is probing a plan that is at its failure limit."""
        return any(
            line.standing is PlanStanding.LEASED
            and line.failures >= line.limit
            and self.kinds.of_line(line.line).gives_up
            for line in self.lines
        )
