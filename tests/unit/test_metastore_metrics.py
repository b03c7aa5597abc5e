"""What the metastore counts is what happened, and counting it costs no walk over all blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from maar.metastore.records.effects import AttemptEnded, Effects, Expired
from maar.metastore.records.entries import (
    BlocksAdded,
    Entry,
    PlanExcluded,
    PlansParked,
)
from maar.metastore.replica import repair_metrics
from maar.metastore.replica.metrics import MetastoreMetrics
from maar.metastore.state.index import Chunk, Index
from maar.metastore.views import last_hour
from maar.metastore.views.last_hour import HOUR_NS, PAUSE_NS, LastHour, Opened, walk
from maar.model.block import TABLES, BlockMeta, Kind
from maar.model.ids import FencingToken, PlanId, TenantId, segment_id
from maar.model.plan import AttemptEnd
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime, TimeRange, WallTime
from support.metastore.fold import DAY, DAY_START_NS, INCARNATION, SMALL, Fold, output, segment
from support.metastore.leader_term import LeaderDecisions
from support.metastore.plan_steps import begin, lease_held, schedule_plan, survey, undone
from support.metastore.plans import add_plan, complete_plan, fail_plan, lease_plan


@dataclass
class Counted(Fold):
    """A fold whose effects are counted as the leader counts them."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.metrics = MetastoreMetrics(self.registry)
        super().__post_init__()

    def put(self, entry: Entry) -> Effects:
        effects = super().put(entry)
        self.metrics.count(effects, self.state)
        return effects

    def observe(self) -> None:
        now = self.now
        self.metrics.observe(self.state, LeaseTime(now), WallTime(DAY_START_NS + now))

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"maar_metastore_{name}", labels)


def test_the_first_compaction_is_timed_from_the_naming_of_every_segment() -> None:
    it = Counted()
    plan = add_plan(it, segment(1), segment(2, at=0), segment(3, at=0))
    it.now = 12 * SECOND_NS
    entry = complete_plan(it, plan)
    assert it.value("first_compaction_seconds_count") == 3
    assert it.value("first_compaction_seconds_sum") == pytest.approx(36)
    it.put(entry)
    assert it.value("first_compaction_seconds_count") == 3, "a repeated report is no compaction"


def test_later_compactions_are_not_first_ones() -> None:
    it = Counted()
    complete_plan(it, add_plan(it, segment(1), segment(2), segment(3)))
    (meta,) = it.metas(tuple(it.live()))
    complete_plan(it, add_plan(it, meta))
    assert it.value("first_compaction_seconds_count") == 3


def test_expiries_spared_attempts_and_reassignments_are_counted_apart() -> None:
    it = Counted()
    plan = add_plan(it, segment(1), segment(2))
    lease_plan(it, plan)
    assert it.value("reassignments_total") == 0
    it.now = 16 * SECOND_NS
    lease_plan(it, plan, counts=False)
    it.now = 32 * SECOND_NS
    fail_plan(it, plan)
    assert it.value("attempts_ended_total", end="expired", counted="no") == 1
    assert it.value("attempts_ended_total", end="expired", counted="yes") == 1
    assert it.value("attempts_ended_total", end="failed", counted="yes") == 1
    assert it.value("reassignments_total") == 2


def test_an_eviction_is_counted_and_the_parked_plan_shown() -> None:
    it = Counted(policy=msgspec.structs.replace(SMALL, plans_max=1))
    plan = add_plan(it, segment(1))
    fail_plan(it, plan)
    it.put(PlansParked((plan,)))
    it.observe()
    assert it.value("evictions_total") == 1
    assert it.value("plans", state="parked") == 1
    assert it.value("held_blocks", level="0") == 1


def test_backlog_plans_and_remains_are_shown_as_they_are() -> None:
    it = Counted()
    it.put(BlocksAdded((segment(1, size=10), segment(2, size=20))))
    lease_held = add_plan(it, segment(3, shard=2))
    it.put(PlanExcluded(lease_held, None, LeaseTime(SECOND_NS)))
    complete_plan(it, add_plan(it, segment(4, shard=3), segment(5, shard=3)))
    it.now = 5 * SECOND_NS
    it.observe()
    assert it.value("queued_blocks", level="0") == 2
    assert it.value("queued_bytes", level="0") == 30
    assert it.value("oldest_queued_seconds", level="0") == 5
    assert it.value("held_blocks", level="0") == 1
    assert it.value("blocks", level="1", kind="block") == 1
    assert it.value("plans", state="excluded") == it.value("plans", state="completed") == 1
    assert it.value("plans", state="inflight") == 0
    assert it.value("retired_blocks") == 2
    assert it.value("leftover_attempts") == 1
    assert it.value("state_items", collection="retired") == 2
    assert it.value("failure_limit") == 2


def test_a_level_that_is_empty_again_shows_nothing() -> None:
    it = Counted()
    plan = add_plan(it, segment(1), segment(2))
    it.observe()
    assert it.value("blocks", level="0", kind="segment") == 2
    complete_plan(it, plan)
    it.observe()
    assert it.value("blocks", level="0", kind="segment") is None


def test_a_clock_that_disagrees_with_the_data_is_a_number_and_a_trouble() -> None:
    it = Counted()
    it.put(BlocksAdded((segment(1),)))
    it.observe()
    assert it.value("retention_trouble") == 0
    year = 365 * DAY_NS
    it.metrics.observe(it.state, LeaseTime(0), WallTime(DAY_START_NS + year))
    assert it.value("retention_trouble") == 1
    assert it.value("retention_clock_ahead_seconds") == pytest.approx(year / SECOND_NS, rel=0.01)


def test_what_retention_took_is_counted_in_blocks() -> None:
    it = Counted()
    it.metrics.count((Expired(blocks=3, profiles=30),), it.state)
    assert it.value("expired_blocks_total") == 3


def test_an_attempt_that_ended_after_its_plan_was_archived_is_still_counted() -> None:
    it = Counted()
    token = FencingToken(it.state.incarnation, 1)
    ended = AttemptEnded(PlanId(1, 0), token, AttemptEnd.FENCED, "", counted=False)
    it.metrics.count((ended,), it.state)
    assert it.value("attempts_ended_total", end="fenced", counted="no") == 1


# ── what a query of the last hour opens ────────────────────────────────────────────────────────

WALL = DAY_START_NS + 12 * HOUR_NS


def block(number: int, *, level: int, min_ns: int, max_ns: int, tenant: str = "acme") -> BlockMeta:
    kind = Kind.BLOCK if level else Kind.SEGMENT
    return msgspec.structs.replace(
        segment(number, tenant=TenantId(tenant)),
        id=segment_id(lease_time_ns=number, entropy=number),
        kind=kind,
        level=level,
        tenant=TenantId(tenant if level else ""),
        day=DAY if level else -1,
        min_time_ns=min_ns,
        max_time_ns=max_ns,
    )


def index_of(*metas: BlockMeta) -> Index:
    index = Index()
    for meta in metas:
        index.add(meta)
    return index


def counted(index: Index, range_: TimeRange) -> last_hour.Counts:
    steps = walk(index, range_)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: last_hour.Counts = end.value
            return found


def test_blocks_of_the_last_hour_are_counted_exactly_by_level_with_their_files() -> None:
    hour = TimeRange(WALL - HOUR_NS, WALL)
    metas = []
    for number in range(300):
        start = WALL - 2 * HOUR_NS + number * HOUR_NS // 150  # half of them in the last hour
        level = number % 3
        metas.append(block(number, level=level, min_ns=start, max_ns=start + 1, tenant=f"t{level}"))
    truth = {
        level: sum(m.level == level and hour.overlaps(m.min_time_ns, m.max_time_ns) for m in metas)
        for level in range(3)
    }
    assert counted(index_of(*metas), hour) == {
        level: Opened(count, count * (len(TABLES) if level else 1))
        for level, count in truth.items()
    }


def test_a_block_that_only_reaches_into_the_hour_counts() -> None:
    hour = TimeRange(WALL - HOUR_NS, WALL)
    early = block(1, level=1, min_ns=WALL - 5 * HOUR_NS, max_ns=WALL - HOUR_NS)
    before = block(2, level=1, min_ns=WALL - 5 * HOUR_NS, max_ns=WALL - HOUR_NS - 1)
    assert counted(index_of(early, before), hour) == {1: Opened(1, len(TABLES))}


def test_a_walk_goes_in_steps_and_tells_only_what_it_has_finished() -> None:
    metas = [
        block(n, level=1, min_ns=WALL - 10, max_ns=WALL - 5, tenant=f"t{n}") for n in range(30)
    ]
    index = index_of(*metas)
    opened = LastHour(step_cost=5)
    steps = 0
    while not opened.go_on(index, now=LeaseTime(0), wall=WallTime(WALL)):
        assert opened.counts == {}
        steps += 1
        if steps == 1:
            index.add(block(99, level=2, min_ns=WALL - 9, max_ns=WALL - 8, tenant="new"))
            index.remove(metas[29].id)
    assert 5 <= steps <= 30
    assert opened.counts == {1: Opened(29, 29 * len(TABLES))}


def test_a_walk_begins_again_after_a_pause_and_not_before() -> None:
    index = index_of(block(1, level=1, min_ns=WALL - 10, max_ns=WALL - 5))
    opened = LastHour()
    assert opened.go_on(index, now=LeaseTime(7), wall=WallTime(WALL))
    assert not opened.go_on(index, now=LeaseTime(7 + PAUSE_NS - 1), wall=WallTime(WALL))
    later = WallTime(WALL + 2 * HOUR_NS)
    assert opened.go_on(index, now=LeaseTime(7 + PAUSE_NS), wall=later)
    assert opened.counts == {}, "that hour has passed"


def test_a_step_decodes_no_more_than_it_may_however_large_a_partition_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = WALL - 3 * HOUR_NS
    index = index_of(*(block(n, level=0, min_ns=old, max_ns=WALL - 1) for n in range(2_000)))
    decoded = []
    packed = Chunk.packed.fget  # type: ignore[attr-defined]

    def counting(chunk: Chunk) -> Any:
        decoded.append(len(chunk))
        return packed(chunk)

    monkeypatch.setattr(Chunk, "packed", property(counting))
    opened = LastHour()
    chunks = [chunk for partition in index.partitions() for chunk in partition.chunks]
    most = last_hour.STEP_COST // last_hour.DECODED_COST + max(map(len, chunks))
    while True:
        decoded.clear()
        done = opened.go_on(index, now=LeaseTime(0), wall=WallTime(WALL))
        assert sum(decoded) <= most
        if done:
            break
    assert opened.counts == {0: Opened(2_000, 2_000)}


def test_the_last_hour_is_shown_by_level() -> None:
    it = Counted()
    it.put(BlocksAdded((segment(1), segment(2))))
    it.now = 60 * SECOND_NS
    it.observe()
    assert it.value("last_hour_blocks", level="0") == 2
    assert it.value("last_hour_files", level="0") == 2


# ── rollbacks ──────────────────────────────────────────────────────────────────────────────────


def test_rollbacks_are_counted_from_their_making_to_their_end() -> None:
    it = Counted(policy=msgspec.structs.replace(SMALL, rollback_delay_ns=0))
    one = LeaderDecisions(it)
    stays, goes = (
        schedule_plan(one, number, removable=removable)
        for number, removable in ((1, False), (2, True))
    )
    begin(one, stays)
    begin(one, goes)
    one.fail(lease_held(one, stays))
    it.observe()
    assert it.value("dead_attempts") == 1
    one.wait(16)
    survey(one)
    it.observe()
    assert it.value("rollbacks_scheduled_total") == it.value("pending_rollbacks") == 2
    assert it.value("rolled_back_plans_total", kind="compact") == 1
    assert it.value("dead_attempts") == 2
    undone(one, stays)
    entry = undone(one, goes)
    it.observe()
    assert it.value("completed_plans_total", kind="rollback") == len(entry) + 1 == 2
    assert it.value("pending_rollbacks") == it.value("dead_attempts") == 0


def test_a_repeated_report_is_counted_once() -> None:
    it = Counted()
    plan = add_plan(it, segment(1), segment(2), segment(3))
    again = complete_plan(it, plan)
    it.put(again)
    assert it.value("completed_plans_total", kind="compact") == 1


def test_gauges_of_repairs_are_set_in_steps_and_go_with_their_tenants() -> None:
    it, every = Counted(), repair_metrics.EVERY_NS
    tenants = [TenantId(f"t{number:02}") for number in range(repair_metrics.TENANTS_AT_ONCE + 5)]
    for number, tenant in enumerate(tenants):
        plan, token = PlanId(1, number), FencingToken(INCARNATION, 1)
        it.state.blocks.add(output(plan, token, (segment(number),), profiles=1, tenant=tenant))

    def shown() -> int:
        found = ({"tenant": tenant, "type": "vnode"} for tenant in tenants)
        name = "maar_repair_repaired_ratio"
        return sum(it.registry.get_sample_value(name, labels) is not None for labels in found)

    steps = []
    for _ in range(3):
        it.metrics.repairs.observe(it.state, LeaseTime(it.now))
        steps.append(shown())
    assert steps == [repair_metrics.TENANTS_AT_ONCE, len(tenants), len(tenants)]
    gone = next(iter(it.state.blocks.of_day(tenants[0], DAY))).id
    it.state.blocks.remove(gone)
    it.now += every
    for _ in range(2):
        it.metrics.repairs.observe(it.state, LeaseTime(it.now))
    assert shown() == len(tenants) - 1
