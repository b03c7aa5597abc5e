"""When a cleaning is due, and which removable plans it leaves alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum

from maar.model.block import BlockOutline
from maar.model.ids import MAIN_STORE, NO_TENANT, BlockId, StoreName, TenantId
from maar.model.plan import JobId, Plan, PlanKind, PlanResult, PlanSpec, QueueKey
from maar.model.policy import HOUR_NS, MINUTE_NS, Policy
from maar.model.refusal import Refusal
from maar.model.schedule import Schedule
from maar.model.time import LeaseTime
from maar.services.rules import NO_SHARD, Board, JobState, KindRules, PlanScope

CLEAN = PlanKind("clean")
WHOLE_LAKE = QueueKey(MAIN_STORE, NO_TENANT, NO_SHARD, 0)
LAKE_JOB = JobId(NO_TENANT, CLEAN)


class SkipReason(StrEnum):
    """Why a cleaning leaves a plan alone."""

    LIVE_LEASE = "live_lease"
    TOO_YOUNG = "too_young"
    IMMUTABLE = "immutable"


class Cleaning(KindRules):
    """One at a time, for the whole lake; it owns nothing and writes nothing."""

    kind = CLEAN
    writes = False
    on_engine = False
    gives_up = False  # it owns nothing that could be bad, and set aside it would keep others away

    def due(self, board: Board, _line: int, *, now: LeaseTime) -> Iterator[PlanSpec]:
        """When there is something to clean; how often that is looked for is its schedule's."""
        if _has_work(board, now) and not board.plans.has_pending(CLEAN):
            yield self._spec(board.policy)

    def on_request(self, board: Board, _scope: PlanScope, *, now: LeaseTime) -> PlanSpec | str:  # noqa: ARG002
        return self._spec(board.policy)

    def _spec(self, policy: Policy) -> PlanSpec:
        return PlanSpec(CLEAN, False, WHOLE_LAKE, (), policy.failure_limit)

    # ── its one job ──

    scheduled = True

    def default_schedule(self, policy: Policy, _job: JobId) -> Schedule:
        """As often as the settings of cleaning say; an alarm only after many times that."""
        return Schedule(
            interval_ns=policy.clean_interval_ns, warning_ns=15 * MINUTE_NS, error_ns=HOUR_NS
        )

    def job_of(self, _key: QueueKey) -> JobId:
        return LAKE_JOB

    def job_tenants(self, _board: Board) -> Collection[TenantId]:
        return (LAKE_JOB.tenant,)

    def job_ids(self, _board: Board, _tenant: TenantId) -> Iterable[JobId]:
        return (LAKE_JOB,)

    def job(
        self,
        board: Board,
        job: JobId,
        schedule: Schedule,
        *,
        now: LeaseTime,
        down: Collection[StoreName] = (),  # noqa: ARG002
    ) -> JobState | None:
        if not schedule.interval_ns:
            return JobState(job, now, nothing="cleanings are made on demand only")
        since = min(_waits_since(board, now), default=None)
        if since is None:
            return JobState(job, now, nothing="nothing is to be rolled back")
        last = board.last_success(CLEAN, WHOLE_LAKE)
        last = last if last is not None else LeaseTime(since - schedule.interval_ns)
        return JobState(job, last, waiting_since=since)

    def misfit(self, _board: Board, spec: PlanSpec) -> Refusal | None:
        return Refusal.INPUT_KEY if spec.inputs or spec.key != WHOLE_LAKE else None

    def refusal(
        self,
        _plan: Plan,
        _inputs: Mapping[BlockId, BlockOutline],
        result: PlanResult,
        _deletable: Mapping[TenantId, int],
    ) -> Refusal | None:
        return Refusal.OUTPUT if result.outputs else None

    def scope(self, _key: QueueKey) -> str:
        return "the whole lake"


CLEANING = Cleaning()


def is_live(plan: Plan, now: LeaseTime) -> bool:
    """Whether somebody holds it under a lease that has not expired."""
    return plan.lease is not None and not plan.lease.is_expired(now)


def why_left_alone(plan: Plan, policy: Policy, *, now: LeaseTime) -> SkipReason | None:
    """Why a removable plan is not rolled back yet; None when it is."""
    if is_live(plan, now):
        return SkipReason.LIVE_LEASE
    young = now - plan.scheduled_at < policy.rollback_delay_ns
    # Whoever opened a bulk write executes it at once: when its lease has ended, nobody comes back.
    delayed = policy.terms(plan.kind).delayed or not plan.attempts
    return SkipReason.TOO_YOUNG if young and delayed else None


def _can_be_executed(rollback: Plan, now: LeaseTime) -> bool:
    """Nobody is at it, and it does not rest after a failure: else cleanings would come in vain."""
    return not is_live(rollback, now) and rollback.eligible_at <= now


def _was_left(plan: Plan, policy: Policy, now: LeaseTime) -> bool:
    """It began to write and died, and no worker has come since to roll that back."""
    assert plan.lease is not None
    return now - plan.lease.expires_at >= policy.clean_interval_ns


def _has_work(board: Board, now: LeaseTime) -> bool:
    return any(True for _ in _waits_since(board, now))


def _waits_since(board: Board, now: LeaseTime) -> Iterator[LeaseTime]:
    """What there is to clean: since when each has waited."""
    dead_at = board.oldest_dead_at()
    if dead_at is not None and now - dead_at >= board.policy.clean_interval_ns:
        yield dead_at
    for plan in board.plans.rollback_plans():
        if _can_be_executed(plan, now):
            yield LeaseTime(max(plan.scheduled_at, plan.eligible_at))
    for plan in board.plans.abandoned_plans(now):
        if _was_left(plan, board.policy, now):
            assert plan.lease is not None
            yield plan.lease.expires_at
    for plan in board.plans.removable_plans():
        if why_left_alone(plan, board.policy, now=now) is None:
            yield plan.lease.expires_at if plan.lease else plan.scheduled_at
