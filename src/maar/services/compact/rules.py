"""Which blocks are worth merging, when a batch of them is due, and what must come of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush, merge
from itertools import islice, takewhile
from typing import NamedTuple

from maar.model.block import CLUSTERED, INGESTED, NO_DAY, BlockMeta, BlockOutline, Kind, day_of
from maar.model.ids import NO_TENANT, NO_ZONE, BlockId, TenantId, block_time_ns, is_joined_segment
from maar.model.keys import date_text
from maar.model.lane import Front, Item
from maar.model.plan import (
    Account,
    LeasedPlan,
    Plan,
    PlanKind,
    PlanResult,
    PlanSpec,
    QueueKey,
)
from maar.model.policy import Level, Policy
from maar.model.refusal import Refusal
from maar.model.time import LeaseTime
from maar.model.words import count_text, size_text, span_text
from maar.services.compact import accounting
from maar.services.rules import NO_SHARD, Board, KindRules, PlanScope, QueueRules, Waits

COMPACT = PlanKind("compact")
LARGE_BYTES = 96 << 20  # of segments: of larger plans, parts are written and merged again
LARGE_AT_ONCE = 4  # a grant names every input with its datasets, and a reply has a bound


class Compaction(KindRules, QueueRules):
    """A batch of blocks of one lane becomes blocks of the next level; its lines are the levels."""

    kind = COMPACT
    adopts = True

    def lines(self, policy: Policy) -> range:
        """Small jobs first: a lower level goes before a higher one."""
        return range(len(policy.levels))

    def line(self, key: QueueKey) -> int:
        return key.level

    def due(self, board: Board, line: int, *, now: LeaseTime) -> Iterator[PlanSpec]:
        """By the age of their oldest block. A lane with a deep backlog does not hold up others."""
        policy = board.policy
        level = policy.level(line)
        if level is None:
            return
        lanes = _due_lanes(board, line, level, now=now)
        coming = next(lanes, None)
        cuts: list[_Cut] = []
        large = 0
        while cuts or coming:
            if coming and (not cuts or (coming.entry, coming.ordinal) < cuts[0][:2]):
                items = board.queue.items(coming.key)
                _push(cuts, Batches(items, level, span_ns=policy.span_ns, now=now))
                coming = next(lanes, None)
                continue
            _, _, lane = heappop(cuts)
            batch = lane.take(policy, line) if large < LARGE_AT_ONCE else lane.take_one()
            large += len(batch) > level.count
            inputs = tuple(item.block for item in batch)
            yield PlanSpec(COMPACT, False, batch[0].key, inputs, policy.failure_limit)
            _push(cuts, lane)

    def on_request(self, board: Board, scope: PlanScope, *, now: LeaseTime) -> PlanSpec | str:
        """The oldest blocks of a shard and level, as many as make a batch, closed or not."""
        level = board.policy.level(scope.level)
        if level is None:
            return f"blocks of level {scope.level} are never merged"
        if scope.shard == NO_SHARD:
            return "blocks are merged within one shard: say which, and of which level"
        for front in board.queue.oldest_first(scope.level):
            if self.is_about(front.key, scope):
                items, span_ns = board.queue.items(front.key), board.policy.span_ns
                batch = next(cut(items, level, span_ns=span_ns, now=now)).items
                inputs = tuple(item.block for item in batch)
                return PlanSpec(COMPACT, False, front.key, inputs, board.policy.failure_limit)
        return f"no block waits to be merged in {scope}"

    def is_about(self, key: QueueKey, scope: PlanScope) -> bool:
        """A shard and a level say enough. Segments are of all tenants, so of the one named too."""
        whose = scope.tenant == NO_TENANT or key.tenant in (NO_TENANT, scope.tenant)
        same = (key.shard, key.level) == (scope.shard, scope.level)
        return whose and same and scope.day in (NO_DAY, key.day)

    def misfit(self, board: Board, spec: PlanSpec) -> Refusal | None:
        """What is merged is of one lane: stores above all are never mixed."""
        if not spec.inputs:
            return Refusal.INPUT_REPEATED
        places = (board.queue.place(block) for block in spec.inputs)
        alike = all(place is not None and place.key == spec.key for place in places)
        return None if alike else Refusal.INPUT_KEY

    def cut(self, plan: LeasedPlan) -> tuple[LeasedPlan, ...]:
        """No task for a block that is adopted: a Spark job would cost more than all the rest."""
        return () if adoptable(plan) else (plan,)

    def join(self, plan: LeasedPlan, results: Sequence[PlanResult]) -> PlanResult:
        return adoption_result(plan) if adoptable(plan) else super().join(plan, results)

    def divides_at(self, plan: Plan) -> int | None:
        return len(plan.inputs) // 2 or None

    def refusal(
        self,
        plan: Plan,
        inputs: Mapping[BlockId, BlockOutline],
        result: PlanResult,
        deletable: Mapping[TenantId, int],
    ) -> Refusal | None:
        """Every input profile is accounted for, in blocks of the next level of the same lane."""
        if result.adopted:
            return _adoption_refusal(plan, inputs, result)
        if not accounting.adds_up(inputs, result):
            return Refusal.ACCOUNT
        if not all(_belongs(meta, plan.key) for meta in result.outputs):
            return Refusal.OUTPUT
        possible = accounting.possible(inputs, result, deletable, level=plan.key.level)
        return None if possible else Refusal.SHARE

    def takes_fresh(self, key: QueueKey) -> bool:
        return key.level == 0

    def level(self, key: QueueKey) -> str:
        return str(key.level)

    # ── the queue ──

    def taking(
        self, board: Board, blocks: Iterable[BlockId], *, now: LeaseTime
    ) -> Iterator[PlanSpec]:
        places = sorted(place for block in blocks if (place := board.queue.place(block)))
        lanes: dict[QueueKey, list[Item]] = {}
        for place in places:
            lanes.setdefault(place.key, []).append(place)
        for key, items in lanes.items():
            level, policy = board.policy.level(key.level), board.policy
            if level is not None:
                for batch in cut(iter(items), level, span_ns=policy.span_ns, now=now):
                    inputs = tuple(item.block for item in batch.items)
                    if batch.closed:
                        yield PlanSpec(COMPACT, False, key, inputs, policy.failure_limit)

    def takes(self, meta: BlockOutline, policy: Policy) -> bool:
        """Below the top level, not yet of target size, and not in quarantine.

        Segments always are taken: however large, they have to be decoded.
        """
        if meta.kind is Kind.QUARANTINE or policy.level(meta.level) is None:
            return False
        return meta.kind is Kind.SEGMENT or meta.size < policy.target_block_bytes

    def takes_alike(self, one: Policy, other: Policy) -> bool:
        levels_alike = len(one.levels) == len(other.levels)
        return levels_alike and one.target_block_bytes == other.target_block_bytes

    def lane(self, meta: BlockOutline) -> QueueKey:
        """What is merged must be able to become one block.

        A segment holds profiles of any day; from level 1 on a block is of one, and waits for others
        of its day. Without that, late profiles would only ever meet blocks of other days.
        """
        day = day_of(meta) if meta.level else NO_DAY
        return QueueKey(meta.store, meta.tenant, meta.shard, meta.level, meta.zone, day)

    def line_of_level(self, level: int) -> int:
        return level

    def full(self, key: QueueKey, *, blocks: int, size: int, policy: Policy) -> bool:
        level = policy.level(key.level)
        return level is not None and (blocks >= level.count or size >= level.bytes)

    def closes_after_ns(self, line: int, policy: Policy) -> int | None:
        level = policy.level(line)
        return level.age_ns if level else None

    def why_queued(
        self, board: Board, meta: BlockMeta, *, now: LeaseTime, looked_at_max: int
    ) -> Waits:
        item = board.queue.place(meta.id)
        level = board.policy.level(meta.level)
        assert item is not None
        assert level is not None
        ahead = board.queue.ahead(meta.id)
        lane = (
            f"It waits in the lane of {meta.tenant or 'all tenants'}, shard {meta.shard}, "
            f"level {meta.level}{_zone_and_day(item)}, store {meta.store}, since "
            f"{span_text(now - item.added_at)}; "
            f"{count_text(ahead, 'block')} of the lane came before it."
        )
        if is_joined_segment(meta.id) and meta.level == 0:
            lane += (
                f" Plan {meta.plan} joined it from other segments, and it waits where the oldest "
                "of them waited."
            )
        if ahead > looked_at_max:
            plans = ahead // most_of_a_plan(board.policy, item.key.level)
            first = f"About {count_text(plans, 'plan')} of its lane come first."
            return Waits(True, (lane, first, *_lower_levels(board, meta.level)))
        batch = batch_of(board, item, level, ahead=ahead, now=now)
        if not batch.closed:
            return Waits(False, (lane, _open(batch, level, now)))
        after = f", after {count_text(batch.number, 'other')} of its lane" if batch.number else ""
        closed = (
            f"Its batch is closed ({_why_closed(batch, level, now)}) and becomes a plan when a "
            f"worker asks for work{after}."
        )
        return Waits(True, (lane, closed, *_lower_levels(board, meta.level)))

    def why_finished(self, meta: BlockMeta, policy: Policy) -> str:
        if meta.level == CLUSTERED:
            return (
                "It is finished: it was clustered, from blocks of all shards, and is only touched "
                "again when enough profiles of its day come late."
            )
        if meta.level == INGESTED:
            return (
                "It is finished: a backfill wrote it. Compaction leaves it as it is, and it is "
                "clustered with the other blocks of its day."
            )
        if policy.level(meta.level) is None:
            return f"It is finished: nothing merges blocks of level {meta.level}, which is the top."
        return (
            f"It is finished: it has {size_text(meta.size)}, and a block of "
            f"{size_text(policy.target_block_bytes)} or more is not merged further "
            "(compaction.target_block_bytes)."
        )


COMPACTION = Compaction()


# ── batches ────────────────────────────────────────────────────────────────────────────────────


class CutBatch(NamedTuple):
    """Blocks of a lane that lie together; only the last batch of a lane may be open."""

    items: list[Item]
    closed: bool


class Batches:
    """The closed batches of a lane, in its order."""

    def __init__(
        self, items: Iterator[Item], level: Level, *, span_ns: int, now: LeaseTime
    ) -> None:
        self._batches = cut(items, level, span_ns=span_ns, now=now)
        self._next: CutBatch | None = None  # not looked at before somebody asks: most take one

    def _look(self) -> CutBatch:
        if self._next is None:
            self._next = next(self._batches, CutBatch([], closed=False))
        return self._next

    @property
    def first(self) -> list[Item] | None:
        batch = self._look()
        return batch.items if batch.closed else None

    @property
    def _open(self) -> list[Item]:
        """What is left, once no batch is closed any more."""
        batch = self._look()
        return [] if batch.closed else batch.items

    def take_one(self) -> list[Item]:
        batch, self._next = self._look(), None
        assert batch.closed
        return batch.items

    def take(self, policy: Policy, line: int) -> list[Item]:
        """The first batch, and while workers are behind all that waits after it.

        Who has a free slot takes a batch soon after it closes; so where another one has closed
        meanwhile, nobody has. What profiles have in common is decoded and written once for a plan,
        so that one plan of many segments costs a fraction of many plans, and merging what they
        made. Hence the open batch at the end goes along, too. All have fewer bytes than a batch may
        have, and are no longer in time.
        """
        taken = self.take_one()
        if line > 0 or not policy.backlog_count:
            return taken  # blocks are merged at a cost that does not fall with their number
        behind = self.first is not None
        while self.first is not None and _fits(taken, self.first, policy):
            taken = taken + self.take_one()
        if behind and self._open and _fits(taken, self._open, policy):
            taken, self._next = taken + self._open, CutBatch([], closed=False)
        return taken


def most_of_a_plan(policy: Policy, line: int) -> int:
    """How many blocks of a lane one plan takes at most."""
    count = policy.levels[line].count
    return max(count, policy.backlog_count) if line == 0 else count


def _fits(taken: list[Item], more: list[Item], policy: Policy) -> bool:
    """Whether one plan may have both."""
    both = taken + more
    times = [block_time_ns(item.block) for item in both]
    return (
        len(both) <= policy.backlog_count
        and sum(item.size for item in both) <= min(policy.levels[0].bytes, LARGE_BYTES)
        and max(times) - min(times) <= policy.span_ns
    )


_Cut = tuple[int, int, Batches]


def _push(cuts: list[_Cut], lane: Batches) -> None:
    if lane.first is not None:
        heappush(cuts, (lane.first[0].entry, lane.first[0].ordinal, lane))


def _due_lanes(board: Board, line: int, level: Level, *, now: LeaseTime) -> Iterator[Front]:
    """Lanes that are full, and lanes that are old, each once, oldest first."""
    old = takewhile(lambda front: is_old(front, level, now), board.queue.oldest_first(line))
    last = None
    for front in merge(board.queue.full_lanes(line), old):
        if front != last:
            yield front
        last = front


def is_old(item: Item | Front, level: Level, now: LeaseTime) -> bool:
    return now - item.added_at > level.age_ns


def cut(items: Iterator[Item], level: Level, *, span_ns: int, now: LeaseTime) -> Iterator[CutBatch]:
    """Batches from the front of a lane, in its order."""
    batch: list[Item] = []
    size = oldest = newest = 0
    for item in items:
        time = block_time_ns(item.block)
        oldest, newest = (min(oldest, time), max(newest, time)) if batch else (time, time)
        if newest - oldest > span_ns:
            yield CutBatch(batch, closed=True)  # it can never grow: what follows is too far away
            batch, size, oldest, newest = [], 0, time, time
        batch.append(item)
        size += item.size
        if len(batch) >= level.count or size >= level.bytes:
            yield CutBatch(batch, closed=True)
            batch, size = [], 0
    if batch:
        yield CutBatch(batch, closed=is_old(batch[0], level, now))


class LaneBatch(NamedTuple):
    """The blocks that a block will be merged with, as things stand: one batch, or several."""

    number: int  # plans of the lane that come before its own
    items: list[Item]
    closed: bool


def batch_of(board: Board, item: Item, level: Level, *, ahead: int, now: LeaseTime) -> LaneBatch:
    policy, line = board.policy, item.key.level
    seen = ahead + most_of_a_plan(policy, line) + 1
    waiting = list(islice(board.queue.items(item.key), seen))
    batches = Batches(iter(waiting), level, span_ns=policy.span_ns, now=now)
    number = before = 0
    while batches.first is not None:
        batch = batches.take(policy, line)
        if item in batch:
            return LaneBatch(number, batch, closed=True)
        number, before = number + 1, before + len(batch)
    return LaneBatch(number, waiting[before:], closed=False)


# ── words ──────────────────────────────────────────────────────────────────────────────────────


def _zone_and_day(item: Item) -> str:
    zone = f", zone {item.key.zone}" if item.key.zone else ""
    return zone if item.key.day == NO_DAY else f"{zone}, day {date_text(item.key.day)}"


def _open(batch: LaneBatch, level: Level, now: LeaseTime) -> str:
    size = sum(item.size for item in batch.items)
    left = level.age_ns - (now - batch.items[0].added_at)
    return (
        f"Its batch is open: it closes at {level.count} blocks (now {len(batch.items)}), at "
        f"{size_text(level.bytes)} (now {size_text(size)}), or when its oldest block has waited "
        f"{span_text(level.age_ns)} ({span_text(left)} left), whichever comes first."
    )


def _why_closed(batch: LaneBatch, level: Level, now: LeaseTime) -> str:
    size = sum(item.size for item in batch.items)
    if len(batch.items) > level.count:
        return (
            f"with others: workers are behind, so that one plan takes {len(batch.items)} blocks "
            "(compaction.backlog_count)"
        )
    if len(batch.items) == level.count:
        return f"by count: {len(batch.items)} of {level.count} blocks"
    if size >= level.bytes:
        return f"by size: {size_text(size)} of {size_text(level.bytes)}"
    if is_old(batch.items[0], level, now):
        return f"by age: its oldest block has waited longer than {span_text(level.age_ns)}"
    return "what follows in the lane is too far away in time (compaction.span_s)"


def _lower_levels(board: Board, level: int) -> Iterator[str]:
    lower = sum(len(board.queue.full_lanes(number)) for number in range(level))
    if lower:
        yield (
            f"Lower levels go first, save for one plan in {board.policy.least_share}; they have "
            f"{count_text(lower, 'full lane')}."
        )


# ── what must come of it ───────────────────────────────────────────────────────────────────────


def adoptable(plan: LeasedPlan) -> bool:
    """Whether a plan would only write its one block again: it is decoded already, in order, and
    nothing of it is to be deleted. Such a batch closes by age, where little is pushed.
    """
    return plan.key.level > 0 and len(plan.inputs) == 1 and not plan.masks_of(0)


def adoption_result(plan: LeasedPlan) -> PlanResult:
    """The result of a plan whose block stays as it is."""
    (block,) = plan.inputs
    return PlanResult(COMPACT, (), Account(block.profiles, 0, 0), adopted=True)


def _adoption_refusal(
    plan: Plan, inputs: Mapping[BlockId, BlockOutline], result: PlanResult
) -> Refusal | None:
    """Segments are decoded, and blocks that wait together are merged: neither is adopted."""
    if plan.key.level == 0 or len(plan.inputs) != 1 or result.outputs:
        return Refusal.OUTPUT
    profiles = inputs[plan.inputs[0]].profiles
    return None if result.account == Account(profiles, 0, 0) else Refusal.ACCOUNT


def _belongs(meta: BlockMeta, key: QueueKey) -> bool:
    """A block of the next level, or one in quarantine, in the zone of its lane, which a worker need
    not name; from level 1 on, of its day.
    """
    if meta.store != key.store or meta.shard != key.shard or not meta.tenant:
        return False
    if key.tenant and meta.tenant != key.tenant:
        return False
    if meta.zone not in (NO_ZONE, key.zone) or key.day not in (NO_DAY, day_of(meta)):
        return False
    return meta.kind is Kind.QUARANTINE or meta.level == key.level + 1
