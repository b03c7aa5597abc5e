"""When a tenant's repair is due, which ranges a session takes, and how its progress is told.

A repair owns no blocks: it is a reader that writes copies. A session is one plan; what it repaired
counts range by range, as soon as the log has it, whatever becomes of the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from maar.model.block import BlockOutline
from maar.model.ids import MAIN_STORE, BlockId, StoreName, TenantId
from maar.model.plan import (
    JobId,
    LeasedPlan,
    Plan,
    PlanKind,
    PlanResult,
    PlanSpec,
    QueueKey,
)
from maar.model.policy import HOUR_NS, MINUTE_NS, Policy
from maar.model.refusal import Refusal
from maar.model.repair import RepairOrder, RepairType
from maar.model.schedule import LockLevel, Schedule, resources_of
from maar.model.time import DAY_NS, LeaseTime
from maar.model.token_range import RING, TokenRange
from maar.services.repair.groups import NEVER, GroupFactory, RangeState, RepairGroup, by_stores
from maar.services.repair.history import NO_HISTORY, VnodeHistory, last_repair
from maar.services.repair.ranges import VNODES, vnode
from maar.services.repair.subranges import ExactSizes, subranges, uniform
from maar.services.rules import NO_SHARD, Board, JobState, KindRules, PlanScope

REPAIR = PlanKind("repair")
SESSION_BLOCKS_MAX = 128  # of a vnode session, about: the leader unpacks them between requests
PART_BLOCKS_MAX = 64  # of a range with more than that, in one session
SESSION_RANGES_MAX = 1_000
INCREMENTAL_BLOCKS_MAX = 500  # of one session
COMMITTED_BLOCKS_MAX = 16  # of one task of it …
COMMITTED_BYTES_MAX = 256 << 20  # … or a single larger one
SIZE_TARGET = 8 << 30  # bytes of a task, in one store
TYPES = tuple(RepairType)
_LEVELS = {RepairType.VNODE: 0, RepairType.INCREMENTAL: 1}  # where a plan's key tells its type


class RepairProgress(NamedTuple):
    """How far a repair has come."""

    done: int  # ranges that need nothing now
    ranges: int
    oldest: LeaseTime | None  # when the first of those that can be repaired was; None: never
    newest: LeaseTime | None
    work_ns: int  # that all of it took the last time


class Repairing(KindRules):
    """Jobs of two types for each tenant: all copies range by range, and what is not copied yet."""

    kind = REPAIR
    scheduled = True
    by_interval = True
    any_store = True  # wherever a copy is missing

    def __init__(
        self, groups: GroupFactory = by_stores, *, session_blocks_max: int = SESSION_BLOCKS_MAX
    ) -> None:
        self._groups = groups
        self._blocks_max = session_blocks_max

    # ── its jobs ──

    def default_schedule(self, _policy: Policy, job: JobId) -> Schedule:
        if job.type == RepairType.INCREMENTAL:
            return Schedule(
                interval_ns=MINUTE_NS,
                warning_ns=HOUR_NS,
                error_ns=6 * HOUR_NS,
                backoff_ns=MINUTE_NS,
            )
        return Schedule(
            interval_ns=7 * DAY_NS,
            initial_delay_ns=DAY_NS,
            warning_ns=8 * DAY_NS,
            error_ns=10 * DAY_NS,
            backoff_ns=30 * MINUTE_NS,
            size_target=SIZE_TARGET,
        )

    def job_of(self, key: QueueKey) -> JobId:
        return JobId(key.tenant, REPAIR, type_of(key))

    def job_tenants(self, board: Board) -> Collection[TenantId]:
        return board.tenants_with_blocks()

    def job_ids(self, board: Board, tenant: TenantId) -> Iterable[JobId]:
        """A tenant whose blocks lie in one store only is scrubbed when somebody asks for it, or if
        the settings say so.
        """
        several = any(len(each) > 1 for each in store_sets(board, tenant))
        for type_ in TYPES:
            job = JobId(tenant, REPAIR, type_)
            scrubs = type_ is RepairType.VNODE and board.policy.repair.scrub
            if several or scrubs or board.repair_asked(job) is not None:
                yield job

    def jobs_to_wake(self, board: Board, tenants: Collection[TenantId]) -> Iterable[JobId]:
        """A block that is not at all its stores is copied without waiting to be looked at."""
        for tenant in tenants:
            if next(iter(board.to_copy(tenant)), None) is not None:
                yield JobId(tenant, REPAIR, RepairType.INCREMENTAL)

    def job(
        self,
        board: Board,
        job: JobId,
        schedule: Schedule,
        *,
        now: LeaseTime,
        down: Collection[StoreName] = (),
    ) -> JobState | None:
        if job.type == RepairType.INCREMENTAL:
            return self._incremental_job(board, job, schedule, now=now, down=down)
        return self._vnode_job(board, job, schedule, now=now, down=down)

    def _incremental_job(
        self,
        board: Board,
        job: JobId,
        schedule: Schedule,
        *,
        now: LeaseTime,
        down: Collection[StoreName],
    ) -> JobState:
        """With all copies in place there is nothing to do: the interval is skipped. What only
        stores lack that are down waits for them, and holds up nothing else.
        """
        if next(iter(board.to_copy(job.tenant)), None) is None:
            return JobState(job, now, nothing="all its blocks are at all their stores")
        stores = {name for each in store_sets(board, job.tenant) for name in each}
        waits = next(iter(board.to_copy(job.tenant, down=down)), None) is None
        absent = ", ".join(sorted(stores.intersection(down)))
        return JobState(
            job,
            board.all_copied_at(job.tenant),
            resources=resources(board, stores.difference(down), schedule.lock_level),
            why_not=f"what is not copied yet waits for store {absent}, which is unreachable"
            if waits
            else "",
            unfinished=True,
            on_demand=board.repair_asked(job) is not None,
        )

    def _vnode_job(
        self,
        board: Board,
        job: JobId,
        schedule: Schedule,
        *,
        now: LeaseTime,
        down: Collection[StoreName],
    ) -> JobState | None:
        away = {*board.stores_away(), *down}
        sets = list(store_sets(board, job.tenant))
        if not sets:
            return None
        asked = board.repair_asked(job)
        repairable = [each for each in sets if away.isdisjoint(each)]
        why_not = ""
        if not repairable:
            names = ", ".join(sorted({name for each in sets for name in each if name in away}))
            why_not = f"no range has all its stores: {names} is unreachable"
            repairable = sets  # it grows old all the same
        since = asked if asked is not None else LeaseTime(now - schedule.interval_ns)
        progress = vnode_progress(board, job.tenant, repairable, schedule, since=since)
        oldest = progress.oldest
        never_whole = oldest is None and progress.newest is not None
        if oldest is None and progress.newest is not None:  # what is left is due
            oldest = LeaseTime(min(now - schedule.interval_ns, progress.newest))
        stores = repairable[0]
        if len(repairable) > 1:
            stores = min(repairable, key=lambda each: _oldest(board, job.tenant, each, schedule))
        return JobState(
            job,
            oldest,
            resources=resources(board, stores, schedule.lock_level),
            why_not=why_not,
            expected_ns=progress.work_ns,
            done=progress.done,
            parts=progress.ranges,
            on_demand=asked is not None,
            never_whole=never_whole,
        )

    def session(
        self,
        board: Board,
        job: JobState,
        schedule: Schedule,
        *,
        now: LeaseTime,
        down: Collection[StoreName] = (),
    ) -> PlanSpec | None:
        type_, tenant = RepairType(job.id.type), job.id.tenant
        if type_ is RepairType.INCREMENTAL:
            if next(iter(board.to_copy(tenant, down=down)), None) is None:
                return None
            order = RepairOrder(type_, down=tuple(sorted(down)))
            return spec(board.policy, tenant, order)
        group = self._next_group(board, job.id, schedule, now=now, down=down)
        if group is None:
            return None
        made = spec(board.policy, tenant, RepairOrder(type_, group.stores, group.ranges))
        taken = resources(board, group.stores, schedule.lock_level)
        return msgspec.structs.replace(made, resources=taken)

    def why_stop(self, board: Board, plan: Plan, down: Collection[StoreName]) -> str:
        """A store has gone away that the session was to use: the next one leaves it out."""
        order = plan.repair
        if order is None or not down:
            return ""
        sets = (order.stores,) if order.stores else store_sets(board, plan.key.tenant)
        absent = {name for each in sets for name in each if name in down}.difference(order.down)
        names = ", ".join(sorted(absent))
        return f"store {names} is unreachable: what it should hold waits for it" if absent else ""

    def _next_group(
        self,
        board: Board,
        job: JobId,
        schedule: Schedule,
        *,
        now: LeaseTime,
        down: Collection[StoreName],
    ) -> RepairGroup | None:
        """The group whose oldest range has waited longest, with the ranges of one session."""
        asked = board.repair_asked(job)
        offset = self._work_ns(board, job.tenant, schedule)
        before = asked if asked is not None else LeaseTime(now - schedule.interval_ns + offset)
        oldest = range_states(
            board, job.tenant, schedule.size_target, before=before, blocks_max=self._blocks_max
        )
        states = [each for each in oldest if each.repaired_at < before]
        for group in self._groups(states, {*board.stores_away(), *down}):
            return _limit(board, job.tenant, group, self._blocks_max)
        return None

    def _work_ns(self, board: Board, tenant: TenantId, schedule: Schedule) -> int:
        whole_only = not schedule.size_target
        return sum(
            board.repair_times(tenant, stores, whole_only=whole_only).work_ns
            for stores in store_sets(board, tenant)
        )

    def due(self, _board: Board, _line: int, *, now: LeaseTime) -> Iterator[PlanSpec]:  # noqa: ARG002
        """Its plans are the sessions that the schedule makes."""
        return iter(())

    def misfit(self, _board: Board, spec: PlanSpec) -> Refusal | None:
        order, tenant = spec.repair, spec.key.tenant
        if order is None or spec.inputs or not tenant or spec.key != key_of(tenant, order.type):
            return Refusal.INPUT_KEY
        return None

    def is_about(self, key: QueueKey, scope: PlanScope) -> bool:
        return key.tenant == scope.tenant and key.level == scope.level

    # ── how it runs ──

    def lease_ns(self, policy: Policy) -> int:
        return policy.terms(REPAIR).lease_ns

    def renew_ns(self, lease_ns: int) -> int:
        return lease_ns // 10

    def refusal(
        self,
        _plan: Plan,
        _inputs: Mapping[BlockId, BlockOutline],
        result: PlanResult,
        _deletable: Mapping[TenantId, int],
    ) -> Refusal | None:
        """All that it made is in the log already, part by part."""
        return Refusal.OUTPUT if result.outputs or result.account.total() else None

    def scope(self, key: QueueKey) -> str:
        return str(type_of(key))


REPAIRING = Repairing()


def key_of(tenant: TenantId, type_: RepairType) -> QueueKey:
    return QueueKey(MAIN_STORE, tenant, NO_SHARD, _LEVELS[type_])


def type_of(key: QueueKey) -> RepairType:
    return next(type_ for type_, level in _LEVELS.items() if level == key.level)


def spec(policy: Policy, tenant: TenantId, order: RepairOrder) -> PlanSpec:
    return PlanSpec(
        REPAIR, False, key_of(tenant, order.type), (), policy.failure_limit, repair=order
    )


def resources(board: Board, stores: Iterable[StoreName], level: LockLevel) -> tuple[str, ...]:
    return resources_of(stores, level, board.stores.region)


def store_sets(board: Board, tenant: TenantId) -> Iterator[tuple[StoreName, ...]]:
    """The sets of stores that should hold blocks of a tenant: one for each home that they have."""
    found = {board.stores.wanted_stores(tenant, home) for home in board.homes_of(tenant)}
    yield from sorted(found)


def part_ends(sizes: Sequence[int]) -> list[int]:
    """Where the tasks of an incremental session end, among its blocks."""
    ends, first, total = [], 0, 0
    for at, size in enumerate(sizes):
        full = at - first == COMMITTED_BLOCKS_MAX or total + size > COMMITTED_BYTES_MAX
        if at > first and full:
            ends.append(at)
            first, total = at, 0
        total += size
    return [*ends, len(sizes)]


def range_states(
    board: Board,
    tenant: TenantId,
    size_target: int,
    *,
    before: LeaseTime,
    blocks_max: int = SESSION_BLOCKS_MAX,
) -> Iterator[RangeState]:
    """Of each set of stores the oldest ranges of a tenant that were last repaired before a time, as
    many as one session may take, divided to the target; each with the time of its last repair. Of
    all others no block is looked at.
    """
    for stores in store_sets(board, tenant):
        known = board.repair_history(tenant, stores)
        times = board.repair_times(tenant, stores, whole_only=not size_target).times
        oldest = _oldest_first(times, before=before)
        if not oldest:
            continue
        all_blocks = board.blocks_of(tenant, stores)  # tokens are spread evenly
        blocks = all_blocks // VNODES + 1
        numbers = oldest[: max(1, blocks_max * VNODES // max(1, all_blocks))]
        within = None
        if size_target and blocks > blocks_max:
            within = _oldest_part(known.get(numbers[0], NO_HISTORY), numbers[0], blocks)
        sizes = None
        if size_target:
            sizes = ExactSizes(board.tokens_of(tenant, stores, numbers, within))
        for number in numbers:
            history, whole = known.get(number, NO_HISTORY), vnode(number)
            for part in _pieces(within or whole, size_target, sizes):
                at = last_repair(history, part, whole, whole_only=not size_target)
                yield RangeState(part, stores, NEVER if at is None else at)


def _oldest_part(history: VnodeHistory, number: int, blocks: int) -> TokenRange:
    """Of a range with more blocks than a session may take, a part with about as many: the one that
    was not repaired for longest.
    """
    whole = vnode(number)
    even = uniform(blocks, tokens=whole.tokens)
    parts = subranges(whole, target=PART_BLOCKS_MAX, size_of=even)

    def age(part: TokenRange) -> LeaseTime:
        at = last_repair(history, part, whole, whole_only=False)
        return NEVER if at is None else at

    return min(parts, key=age)


def _oldest_first(times: Sequence[LeaseTime | None], *, before: LeaseTime) -> list[int]:
    """The numbers of the fixed ranges of which some part was last repaired before a time."""
    known = ((NEVER if at is None else at, number) for number, at in enumerate(times))
    return [number for at, number in sorted(known) if at < before]


def _pieces(whole: TokenRange, target: int, sizes: ExactSizes | None) -> Iterable[TokenRange]:
    return (whole,) if sizes is None else subranges(whole, target=target, size_of=sizes)


def vnode_progress(
    board: Board,
    tenant: TenantId,
    sets: Iterable[tuple[StoreName, ...]],
    schedule: Schedule,
    *,
    since: LeaseTime,
) -> RepairProgress:
    """From history alone: which blocks there are does not matter."""
    whole_only = not schedule.size_target
    found = [board.repair_times(tenant, stores, whole_only=whole_only) for stores in sets]
    ranges = sum(len(each.times) for each in found)
    whole = ranges == sum(len(each.known) for each in found)
    return RepairProgress(
        sum(each.repairs_since(since) for each in found),
        ranges,
        min((each.known[0] for each in found), default=None) if whole else None,
        max((each.known[-1] for each in found if each.known), default=None),
        sum(each.work_ns for each in found),
    )


def _oldest(
    board: Board, tenant: TenantId, stores: tuple[StoreName, ...], schedule: Schedule
) -> LeaseTime:
    """When the oldest range of a set of stores was repaired."""
    at = vnode_progress(board, tenant, (stores,), schedule, since=NEVER).oldest
    return NEVER if at is None else at


def _limit(board: Board, tenant: TenantId, group: RepairGroup, blocks_max: int) -> RepairGroup:
    """As many of its ranges as a session may take, one at least."""
    taken: list[TokenRange] = []
    all_blocks, tokens = board.blocks_of(tenant, group.stores), 0
    for each in group.ranges[:SESSION_RANGES_MAX]:
        tokens += each.tokens
        if taken and all_blocks * tokens // RING > blocks_max:
            break
        taken.append(each)
    return group._replace(ranges=tuple(taken))


def tasks(plan: LeasedPlan) -> Iterator[LeasedPlan]:
    """The tasks of a leased session, one for each of its parts."""
    assert plan.repair is not None
    for part in plan.repair.parts:
        repair = msgspec.structs.replace(
            plan.repair, parts=(part,), wanted=plan.repair.wanted[part.first : part.end]
        )
        yield msgspec.structs.replace(
            plan, inputs=plan.inputs[part.first : part.end], masks=(), repair=repair
        )
