"""When level 0 of a lane is deep, which of its segments are joined, and what must come of it.

Compaction goes first: it comes earlier in the union of kinds, so a free slot is its own, save for
the share that every line of plans has. And the batch that it takes next from a lane is left to it.
So segments are joined where compaction is behind, and in number only while it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import msgspec

from maar.model.block import NO_DAY, BlockMeta, BlockOutline, Dataset, Kind
from maar.model.ids import (
    NO_TENANT,
    NO_ZONE,
    BlockId,
    TenantId,
    block_time_ns,
    is_joined_segment,
    joined_segment_id,
)
from maar.model.lane import Item
from maar.model.plan import Account, Plan, PlanKind, PlanResult, PlanSpec, QueueKey
from maar.model.policy import Policy
from maar.model.refusal import Refusal
from maar.model.time import LeaseTime
from maar.services.rules import NO_SHARD, Board, KindRules, PlanScope

LOGCOMPACT = PlanKind("logcompact")
LINE = 0  # of the lanes in which segments wait
DUE_AT_ONCE = 4  # a grant names every input with its datasets, and a reply has a bound


class Logcompaction(KindRules):
    """Many segments of a lane become one, which waits where the oldest of them waited."""

    kind = LOGCOMPACT
    keeps_place = True

    def due(self, board: Board, _line: int, *, now: LeaseTime) -> Iterator[PlanSpec]:
        """From lanes that are deep, the longest waiting first."""
        return islice(_all_due(board, now), DUE_AT_ONCE)

    def on_request(self, board: Board, scope: PlanScope, *, now: LeaseTime) -> PlanSpec | str:  # noqa: ARG002
        """The oldest segments of a shard, deep or not, whatever failed before."""
        if scope.shard == NO_SHARD:
            return "segments are joined shard by shard: name one"
        for front in board.queue.oldest_first(LINE):
            if self.is_about(front.key, scope):
                batch = next(cut(board.queue.items(front.key), board.policy), None)
                if batch is not None:
                    return _spec(board.policy, batch)
        return f"fewer than two segments that were not joined yet wait in {scope}"

    def is_about(self, key: QueueKey, scope: PlanScope) -> bool:
        """A shard says enough: segments are of all tenants, and of any day."""
        return (key.shard, scope.level, scope.day) == (scope.shard, 0, NO_DAY)

    def misfit(self, board: Board, spec: PlanSpec) -> Refusal | None:
        """Segments of one lane, none of which was joined before."""
        places = [board.queue.place(block) for block in spec.inputs]
        alike = all(place is not None and place.key == spec.key for place in places)
        new = not any(map(is_joined_segment, spec.inputs))
        fits = alike and new and len(places) > 1 and spec.key.level == 0
        return None if fits else Refusal.INPUT_KEY

    def divides_at(self, plan: Plan) -> int | None:
        """Of one that is not removable: so that an input at fault is found."""
        return len(plan.inputs) // 2 or None

    def refusal(
        self,
        plan: Plan,
        inputs: Mapping[BlockId, BlockOutline],
        result: PlanResult,
        deletable: Mapping[TenantId, int],
    ) -> Refusal | None:
        """One segment of the same lane, with every profile of every input, dataset by dataset."""
        if not result.outputs and not deletable:
            return Refusal.OUTPUT
        if len(result.outputs) > 1 or not all(_belongs(made, plan) for made in result.outputs):
            return Refusal.OUTPUT
        came = sum(each.profiles for each in inputs.values())
        kept = sum(made.profiles for made in result.outputs)
        if result.account != Account(kept, 0, 0, came - kept) or (kept == 0) != (
            not result.outputs
        ):
            return Refusal.ACCOUNT
        parts = _shares(part for each in inputs.values() for part in _parts(each.datasets))
        left = _shares(part for made in result.outputs for part in made.datasets)
        if not deletable:
            return None if parts == left else Refusal.SHARE
        return None if _within(left, parts, deletable) else Refusal.SHARE

    def level(self, _key: QueueKey) -> str:
        return "0"


LOGCOMPACTION = Logcompaction()


# ── which segments ─────────────────────────────────────────────────────────────────────────────


def _all_due(board: Board, now: LeaseTime) -> Iterator[PlanSpec]:
    """A lane that compaction has not closed is never deep, so only those are looked at."""
    rule = board.policy.logcompact
    for front in board.queue.full_lanes(LINE):
        if now - front.added_at <= rule.depth_age_ns:
            return  # those that follow are younger
        if board.queue.count_unjoined(front.key) >= rule.depth_count:
            yield from _due_in(board, front.key, now)


def _due_in(board: Board, key: QueueKey, now: LeaseTime) -> Iterator[PlanSpec]:
    """As long as what is left of a lane is deep."""
    policy = board.policy
    level = policy.level(key.level)
    setback = board.setback(LOGCOMPACT, key)
    if level is None or (setback is not None and now < setback.until):
        return
    left = board.queue.count_unjoined(key)
    items = islice(board.queue.items(key), level.count, None)
    if setback is not None and setback.failures >= policy.failure_limit:
        # What has failed so often goes to compaction: only segments that came since are joined.
        since = [item for item in items if item.added_at > setback.until]
        left, items = len(since), islice(since, None)
    for batch in cut(items, policy):
        if left < policy.logcompact.depth_count:
            return
        yield _spec(policy, batch)
        left -= len(batch)


def cut(items: Iterator[Item], policy: Policy) -> Iterator[list[Item]]:
    """Batches of a lane, in its order: of at least two, no larger than a plan may be, and no
    further apart in time than compaction merges.
    """
    rule = policy.logcompact
    batch: list[Item] = []
    size = oldest = newest = 0
    for item in items:
        if is_joined_segment(item.block) or item.size > rule.plan_bytes:
            continue
        time = block_time_ns(item.block)
        oldest, newest = (min(oldest, time), max(newest, time)) if batch else (time, time)
        full = len(batch) >= rule.plan_count or size + item.size > rule.plan_bytes
        if full or newest - oldest > policy.span_ns:
            if len(batch) > 1:
                yield batch
            batch, size, oldest, newest = [], 0, time, time
        batch.append(item)
        size += item.size
    if len(batch) > 1:
        yield batch


def _spec(policy: Policy, batch: list[Item]) -> PlanSpec:
    removable = policy.terms(LOGCOMPACT).removable
    inputs = tuple(item.block for item in batch)
    return PlanSpec(LOGCOMPACT, removable, batch[0].key, inputs, policy.failure_limit)


# ── what must come of it ───────────────────────────────────────────────────────────────────────


class _ProfileCount(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A Dataset as far as the count of its profiles; the rest stays unread."""

    tenant: TenantId
    service: str
    types: msgspec.Raw
    min_time_ns: int
    max_time_ns: int
    profiles: int


class _ServiceShare(NamedTuple):
    """What a service has in a segment: with another time range, queries would miss it."""

    profiles: int
    min_time_ns: int
    max_time_ns: int


_parts = msgspec.msgpack.Decoder(tuple[_ProfileCount, ...]).decode


def _shares(parts: Iterable[_ProfileCount | Dataset]) -> dict[tuple[TenantId, str], _ServiceShare]:
    found: dict[tuple[TenantId, str], _ServiceShare] = {}
    for part in parts:
        name = part.tenant, part.service
        one = _ServiceShare(part.profiles, part.min_time_ns, part.max_time_ns)
        had = found.get(name)
        found[name] = one if had is None else _together(had, one)
    return found


def _together(one: _ServiceShare, other: _ServiceShare) -> _ServiceShare:
    return _ServiceShare(
        one.profiles + other.profiles,
        min(one.min_time_ns, other.min_time_ns),
        max(one.max_time_ns, other.max_time_ns),
    )


def _within(
    left: dict[tuple[TenantId, str], _ServiceShare],
    came: dict[tuple[TenantId, str], _ServiceShare],
    deletable: Mapping[TenantId, int],
) -> bool:
    """Tenants that nothing is deleted of have all that they had; the others no more than that."""
    spared = {name: share for name, share in came.items() if not deletable.get(name[0])}
    if any(left.get(name) != share for name, share in spared.items()):
        return False
    return all(name in came and _fits(share, came[name]) for name, share in left.items())


def _fits(part: _ServiceShare, whole: _ServiceShare) -> bool:
    return (
        0 < part.profiles <= whole.profiles
        and whole.min_time_ns <= part.min_time_ns
        and part.max_time_ns <= whole.max_time_ns
    )


def _belongs(meta: BlockMeta, plan: Plan) -> bool:
    """A segment of the plan's lane, named so that it is never joined again."""
    key = plan.key
    return (
        (meta.kind, meta.level, meta.tenant, meta.day) == (Kind.SEGMENT, 0, NO_TENANT, NO_DAY)
        and (meta.store, meta.shard) == (key.store, key.shard)
        and meta.zone in (NO_ZONE, key.zone)
        and meta.plan == plan.id
        and meta.id == joined_segment_id(plan=plan.id, oldest_input=min(plan.inputs))
    )
