"""When a tenant's day is clustered, what is taken of it, and what must come of it.

A window is a tenant's day in one store and zone. It is due when the day is closed and compaction
wants none of its blocks any more, or has wanted some for too long; and again when enough came late.

A window that keeps failing has a block at fault. Its next plan is one that stays and is divided, as
those of compaction are, until that block is alone and excluded; the rest of the day is clustered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from maar.model.block import CLUSTERED, NO_DAY, BlockMeta, BlockOutline, Kind
from maar.model.ids import NO_ZONE, BlockId, StoreName, TenantId
from maar.model.keys import date_text
from maar.model.plan import (
    JobId,
    LeasedPlan,
    Plan,
    PlanKind,
    PlanResult,
    PlanSpec,
    PlanState,
    QueueKey,
)
from maar.model.policy import ClusterTerms, Policy
from maar.model.refusal import Refusal
from maar.model.schedule import Schedule
from maar.model.time import DAY_NS, LeaseTime, utc_day
from maar.model.words import count_text, size_text, span_text
from maar.services.cluster import parts
from maar.services.compact import accounting
from maar.services.rules import NO_SHARD, Board, DayWindow, JobState, KindRules, PlanScope, Setback

CLUSTER = PlanKind("cluster")
INPUTS_MAX = 1_000  # blocks of one plan
SEARCH_LIMIT = 2  # failures of a part of a day that has failed before: the second time it ran alone


class Clustering(KindRules):
    """One plan for a window at a time; it owns only blocks that no lane wants any more."""

    kind = CLUSTER

    def due(self, board: Board, _line: int, *, now: LeaseTime) -> Iterator[PlanSpec]:
        wall_ns = board.wall_at(now)
        first_open = utc_day(wall_ns - board.policy.cluster.closed_after_ns)
        pending: _Pending | None = None
        for window in board.windows_before(first_open):
            if not is_due(window, board.policy.cluster, wall_ns=wall_ns, now=now):
                continue
            if _rests(board, window.key, now):
                continue
            if pending is None:
                pending = _pending(board)
            if pending.takes_all(board, window):
                continue
            if spec := _spec(board, window):
                yield spec

    def on_request(self, board: Board, scope: PlanScope, *, now: LeaseTime) -> PlanSpec | str:
        """A closed day, due or not: what is finished of it now."""
        if scope.day == NO_DAY or not scope.tenant:
            return "a clustering is of one tenant and day; name both"
        if scope.shard or scope.level:
            return "a clustering is of all shards and levels; name neither"
        left_ns = _closes_ns(scope.day, board.policy.cluster) - board.wall_at(now)
        if left_ns > 0:
            return f"{_day(scope.day)} is open for another {span_text(left_ns)}"
        pending = _pending(board)
        for window in board.windows_of(scope.tenant, scope.day):
            spec = None if pending.takes_all(board, window) else _spec(board, window)
            if spec is not None:
                return spec
        return (
            f"nothing to cluster in {scope}: it takes two blocks at least that compaction does "
            "not want any more, and one of them not clustered yet"
        )

    # ── its jobs: one for each tenant ──

    scheduled = True

    def default_schedule(self, _policy: Policy, _job: JobId) -> Schedule:
        """A tenant has a day to cluster each day; one that waits for a second day is late."""
        return Schedule(interval_ns=DAY_NS, warning_ns=2 * DAY_NS, error_ns=4 * DAY_NS)

    def job_tenants(self, board: Board) -> Collection[TenantId]:
        return board.tenants_to_cluster()

    def job_ids(self, _board: Board, tenant: TenantId) -> Iterable[JobId]:
        return (JobId(tenant, CLUSTER),)

    def job(
        self,
        board: Board,
        job: JobId,
        schedule: Schedule,
        *,
        now: LeaseTime,
        down: Collection[StoreName] = (),  # noqa: ARG002
    ) -> JobState | None:
        """How long its oldest day has waited to be clustered; an interval before that, it was done.

        A day that is left out after failures waits too: nobody clusters it until an operator asks.
        """
        terms, wall_ns = board.policy.cluster, board.wall_at(now)
        windows = [
            window
            for window in board.windows_to_cluster(job.tenant)
            if is_due(window, terms, wall_ns=wall_ns, now=now)
        ]
        if not windows:
            return JobState(job, now, nothing="no closed day waits to be clustered")
        since = min(_due_since(window, terms, wall_ns=wall_ns, now=now) for window in windows)
        resting = all(_rests(board, window.key, now) for window in windows)
        why_not = "the clusterings of its days rest after failures" if resting else ""
        return JobState(job, LeaseTime(since - schedule.interval_ns), why_not=why_not)

    def misfit(self, board: Board, spec: PlanSpec) -> Refusal | None:
        """All inputs are finished blocks of one window."""
        if not spec.inputs:
            return Refusal.INPUT_REPEATED
        finished = {meta.id for meta in board.finished_blocks(spec.key)}
        whole = spec.key.shard == NO_SHARD and not spec.key.level and spec.key.day != NO_DAY
        return None if whole and finished.issuperset(spec.inputs) else Refusal.INPUT_KEY

    def slots(self, policy: Policy) -> int:
        return policy.cluster.slots

    def memory_bytes(self, policy: Policy) -> int:
        return policy.cluster.memory_bytes

    def divides_at(self, plan: Plan) -> int | None:
        """Of one that stays: so that the input at fault is found, and only that is left out."""
        return len(plan.inputs) // 2 or None

    def cut(self, plan: LeasedPlan) -> tuple[LeasedPlan, ...]:
        return parts.cut(plan)

    def join(self, plan: LeasedPlan, results: Sequence[PlanResult]) -> PlanResult:
        return parts.join(plan, results)

    def refusal(
        self,
        plan: Plan,
        inputs: Mapping[BlockId, BlockOutline],
        result: PlanResult,
        deletable: Mapping[TenantId, int],
    ) -> Refusal | None:
        """Every input profile is accounted for, in clustered blocks of the window."""
        if not accounting.adds_up(inputs, result):
            return Refusal.ACCOUNT
        if not all(_belongs(meta, plan.key) for meta in result.outputs):
            return Refusal.OUTPUT
        possible = accounting.possible(inputs, result, deletable, level=1)
        return None if possible else Refusal.SHARE

    def scope(self, key: QueueKey) -> str:
        return _day(key.day)

    def prospects(self, board: Board, meta: BlockOutline, *, now: LeaseTime) -> Iterator[str]:
        if meta.kind is not Kind.BLOCK or meta.level == CLUSTERED:
            return
        key = QueueKey(meta.store, meta.tenant, NO_SHARD, 0, meta.zone, meta.day)
        windows = board.windows_of(meta.tenant, meta.day)
        window = next(each for each in windows if each.key == key)
        yield _words(board, window, now)


CLUSTERING = Clustering()


# ── when it is due ─────────────────────────────────────────────────────────────────────────────


def is_due(window: DayWindow, terms: ClusterTerms, *, wall_ns: int, now: LeaseTime) -> bool:
    """Whether a window is worth clustering; a day that is clustered already, only when enough came
    late, or what came has waited long.
    """
    if wall_ns < _closes_ns(window.key.day, terms):
        return False
    if not window.clustered:
        waited = wall_ns >= _closes_ns(window.key.day, terms) + terms.wait_ns
        return window.blocks > 1 and (not window.queued or waited)
    if window.blocks < 1:
        return False
    many = 1000 * window.bytes >= terms.dirty_permille * window.clustered_bytes
    return many or _mean_wait_ns(window, now) >= terms.dirty_age_ns


def _due_since(window: DayWindow, terms: ClusterTerms, *, wall_ns: int, now: LeaseTime) -> int:
    """Since when a window that is due has been so; of one that is due again, about."""
    if window.clustered:
        return now - _mean_wait_ns(window, now)
    return now - (wall_ns - _closes_ns(window.key.day, terms))


def _closes_ns(day: int, terms: ClusterTerms) -> int:
    return (day + 1) * DAY_NS + terms.closed_after_ns


def _mean_wait_ns(window: DayWindow, now: LeaseTime) -> int:
    """How long its blocks that are not clustered have waited on average."""
    return (now * window.blocks - window.times_ns) // window.blocks


class _Pending(NamedTuple):
    """Windows that have a plan already, and what excluded plans hold of others."""

    windows: set[QueueKey]
    held: dict[QueueKey, list[BlockId]]

    def takes_all(self, board: Board, window: DayWindow) -> bool:
        """Whether nothing is left of a window for another plan, as far as is known without a look
        at its blocks: one at fault may be excluded for months, and workers ask every second.
        """
        held = board.outlines(self.held.get(window.key, ()))
        fresh = sum(1 for meta in held if meta.level != CLUSTERED)
        return window.key in self.windows or window.blocks <= fresh


def _pending(board: Board) -> _Pending:
    found = _Pending(set(), {})
    for plan in board.plans.of_kind(CLUSTER):
        if plan.state is PlanState.EXCLUDED:
            found.held.setdefault(plan.key, []).extend(plan.inputs)
        else:
            found.windows.add(plan.key)
    return found


def _rests(board: Board, key: QueueKey, now: LeaseTime) -> bool:
    """Whether its plans failed lately."""
    setback = board.setback(CLUSTER, key)
    return setback is not None and now < setback.until


def _is_searched(setback: Setback | None, policy: Policy) -> bool:
    """Whether it failed so often that the block at fault is looked for."""
    return setback is not None and setback.failures >= policy.failure_limit


def _spec(board: Board, window: DayWindow) -> PlanSpec | None:
    """What came since, oldest first, and what is clustered already if there is room for all of it:
    so a day that is too large for one plan is not rewritten over and over.
    """
    terms = board.policy.cluster
    fresh: list[BlockOutline] = []
    clustered: list[BlockOutline] = []
    for meta in board.finished_blocks(window.key):
        (clustered if meta.level == CLUSTERED else fresh).append(meta)
    taken: list[BlockOutline] = []
    size = 0
    for meta in sorted(fresh, key=lambda meta: meta.id):
        size += meta.size
        if taken and (size > terms.bytes_max or len(taken) >= INPUTS_MAX):
            break
        taken.append(meta)
    size = sum(meta.size for meta in (*taken, *clustered))
    if len(taken) + len(clustered) <= INPUTS_MAX and size <= terms.bytes_max:
        taken += clustered
    if not fresh or (len(taken) < 2 and not clustered):
        return None
    policy = board.policy
    removable, limit = policy.terms(CLUSTER).removable, policy.failure_limit
    if _is_searched(board.setback(CLUSTER, window.key), policy):
        removable, limit = False, min(SEARCH_LIMIT, limit)
    inputs = tuple(sorted(meta.id for meta in taken))
    return PlanSpec(CLUSTER, removable, window.key, inputs, limit)


# ── what must come of it, and words ────────────────────────────────────────────────────────────


def _belongs(meta: BlockMeta, key: QueueKey) -> bool:
    """A clustered block of the window; a worker need not name its zone."""
    return (
        (meta.kind, meta.level, meta.shard) == (Kind.BLOCK, CLUSTERED, NO_SHARD)
        and (meta.store, meta.tenant, meta.day) == (key.store, key.tenant, key.day)
        and meta.zone in (NO_ZONE, key.zone)
    )


def _day(day: int) -> str:
    return f"day {date_text(day)}" if day != NO_DAY else "a day"


def _then(setback: Setback, board: Board) -> str:
    if _is_searched(setback, board.policy):
        return "is divided until the block at fault is found, which alone is left out"
    return "pauses double"


def _words(board: Board, window: DayWindow, now: LeaseTime) -> str:
    """What clustering will do with a block that is finished and not clustered."""
    terms, wall_ns = board.policy.cluster, board.wall_at(now)
    day = f"Its {_day(window.key.day)}"
    left_ns = _closes_ns(window.key.day, terms) - wall_ns
    if left_ns > 0:
        return f"{day} can be clustered when it is closed, in {span_text(left_ns)}."
    setback = board.setback(CLUSTER, window.key)
    if setback is not None and now < setback.until:
        return (
            f"Clusterings of its day failed {count_text(setback.failures, 'time')} in a row; the "
            f"next one is due in {span_text(setback.until - now)}, and {_then(setback, board)}."
        )
    if is_due(window, terms, wall_ns=wall_ns, now=now):
        return f"{day} is due to be clustered when a worker asks for work."
    if window.clustered:
        share = f"{terms.dirty_permille / 10:g} %"
        return (
            f"{day} was clustered before the block came: it is due again when what came since has "
            f"{share} of its bytes (now {size_text(window.bytes)} of "
            f"{size_text(window.clustered_bytes)}), or has waited {span_text(terms.dirty_age_ns)} "
            f"on average (now {span_text(_mean_wait_ns(window, now))})."
        )
    if window.blocks < 2:
        return f"{day} has no other finished block that it could be clustered with."
    others = count_text(window.queued, "block")
    return (
        f"{day} is clustered when compaction is done with its other {others}, or without them in "
        f"{span_text(left_ns + terms.wait_ns)}."
    )
