"""Why a block is not compacted yet: every place where one can be has an answer that is true."""

from __future__ import annotations

import msgspec
import pytest

from maar.metastore.records.entries import (
    BlocksAdded,
    BlocksExpired,
    BlocksForgotten,
    LimitRaised,
    PinsTaken,
    PlanCompleted,
    PlanExcluded,
    PlansParked,
    PlansStarted,
    PolicySet,
    Start,
)
from maar.metastore.state.timeline import NEVER
from maar.metastore.views.explain import LOOKED_AT_MAX, explain
from maar.model.block import BlockMeta, Kind
from maar.model.errors import NotFound
from maar.model.ids import BlockId, Zone
from maar.model.plan import Account, PlanResult
from maar.model.policy import Level
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.operator.operator import Explanation
from maar.services.compact.rules import COMPACT, batch_of, cut
from support.metastore.fold import DAY_START_NS, SMALL, Fold, output, segment
from support.metastore.plans import add_plan, complete_plan, fail_plan, lease_plan


def added(fold: Fold, *metas: BlockMeta) -> tuple[BlockMeta, ...]:
    fold.put(BlocksAdded(metas))
    assert all(meta.id in fold.state.blocks for meta in metas)
    return metas


def compacted(fold: Fold, *metas: BlockMeta) -> BlockMeta:
    """The block that the inputs have become."""
    return complete_plan(fold, add_plan(fold, *metas)).result.outputs[0]


def of(
    fold: Fold, block: BlockId | BlockMeta, standing: str, looked_at_max: int = LOOKED_AT_MAX
) -> str:
    """All that is said of a block, in one text."""
    name = block.id if isinstance(block, BlockMeta) else block
    now = LeaseTime(fold.now)
    found: Explanation = explain(fold.state, name, now=now, looked_at_max=looked_at_max)
    assert found.block == name
    assert found.standing == standing
    assert all(sentence.endswith(".") for sentence in found.sentences)
    return " ".join(found.sentences)


# ── in the queue ───────────────────────────────────────────────────────────────────────────────


def test_a_queued_block_names_its_lane_its_place_and_what_closes_its_batch() -> None:
    fold = Fold()
    added(fold, segment(1, shard=4), segment(9, shard=5))
    fold.now = 4 * SECOND_NS
    _, second = segment(1, shard=4), *added(fold, segment(2, shard=4, size=2048))
    text = of(fold, second, "queued")
    assert "lane of all tenants, shard 4, level 0, store main, since 0 s" in text
    assert "1 block of the lane came before it" in text
    assert "closes at 3 blocks (now 2), at 1.0 MiB (now 3.0 KiB)" in text
    assert "has waited 10 s (6 s left)" in text, "the age is that of the oldest of the batch"


def test_a_lane_is_told_with_its_zone_and_day() -> None:
    fold = Fold()
    (meta,) = added(fold, msgspec.structs.replace(segment(1), zone=Zone("east")))
    assert "level 0, zone east, store main" in of(fold, meta, "queued")
    made = compacted(fold, meta)
    assert "level 1, zone east, day 2024-10-04, store main" in of(fold, made, "queued")


def test_a_batch_that_is_closed_says_by_what_and_how_many_plans_come_first() -> None:
    fold = Fold()
    metas = added(fold, *(segment(n) for n in range(7)))
    by_count = of(fold, metas[4], "queued")
    assert "closed (by count: 3 of 3 blocks)" in by_count
    assert "asks for work, after 1 other of its lane" in by_count
    rest = of(fold, metas[6], "queued")
    assert "Its batch is open: it closes at 3 blocks (now 1)" in rest
    fold.now = 11 * SECOND_NS
    assert "by age: its oldest block has waited longer than 10 s" in of(fold, metas[6], "queued")


def test_a_batch_closes_by_size_too_and_by_a_gap_in_time() -> None:
    fold = Fold()
    (large,) = added(fold, segment(1, size=1 << 20))
    assert "by size: 1.0 MiB of 1.0 MiB" in of(fold, large, "queued")
    fold = Fold(policy=msgspec.structs.replace(SMALL, span_ns=60 * SECOND_NS))
    early, _ = added(fold, segment(1), segment(2, at=61 * SECOND_NS))
    assert "too far away in time (compaction.span_s)" in of(fold, early, "queued")


def test_the_batch_is_the_one_that_the_planner_would_cut() -> None:
    fold = Fold()
    metas = added(fold, *(segment(n, size=1 + (n % 4) * 300_000) for n in range(40)))
    level = SMALL.levels[0]
    items = list(fold.state.queue.items(fold.state.queue.places[metas[0].id].key))
    closed = cut(iter(items), level, span_ns=SMALL.span_ns, now=LeaseTime(0))
    for number, batch in enumerate(closed):
        for item in batch.items:
            ahead = fold.state.queue.ahead(item.block)
            found = batch_of(fold.state, item, level, ahead=ahead, now=LeaseTime(0))
            assert found == (number, *batch)


def test_a_block_is_told_that_its_batch_goes_with_others_while_workers_are_behind() -> None:
    fold = Fold(policy=msgspec.structs.replace(SMALL, backlog_count=6))
    metas = added(fold, *(segment(n) for n in range(10)))
    assert "one plan takes 6 blocks (compaction.backlog_count)" in of(fold, metas[4], "queued")
    assert "asks for work, after 1 other of its lane" in of(fold, metas[8], "queued")
    assert "Its batch is open: it closes at 3 blocks (now 1)" in of(fold, metas[9], "queued")
    assert "About 1 plan of its lane" in of(fold, metas[9], "queued", looked_at_max=5)


def test_behind_very_many_blocks_a_place_is_estimated() -> None:
    fold = Fold()
    metas = added(fold, *(segment(n) for n in range(30)))
    assert "About 9 plans of its lane come first" in of(fold, metas[29], "queued", looked_at_max=10)
    assert "after 3 others of its lane" in of(fold, metas[10], "queued", looked_at_max=10)


def test_what_keeps_closed_batches_waiting_is_said() -> None:
    fold = Fold(policy=msgspec.structs.replace(SMALL, plans_max=1, leftovers_max=2))
    high = compacted(fold, segment(1, shard=2), segment(2, shard=2), segment(3, shard=2))
    other = compacted(fold, *(segment(n, shard=2) for n in (4, 5, 6)))
    add_plan(fold, segment(7, shard=3))
    added(fold, *(segment(n, shard=4) for n in (10, 11, 12)))
    for block in (high, other):
        text = of(fold, block, "queued")
        assert "Lower levels go first, save for one plan in 8; they have 1 full lane." in text
        assert "The schedule is full: it holds 1 plans" in text
        assert "Nothing is handed out: 2 ended attempts" in text


# ── in a plan ──────────────────────────────────────────────────────────────────────────────────


def test_an_owned_block_names_plan_worker_and_what_is_left_of_the_lease() -> None:
    fold = Fold()
    first, second = segment(1), segment(2)
    plan = add_plan(fold, first, second)
    text = of(fold, first, "owned")
    assert f"Plan {plan} (compact, level 0) owns it, with 1 other block" in text
    assert "waits for a worker with a free slot" in text
    token = lease_plan(fold, plan)
    fold.now = 5 * SECOND_NS
    text = of(fold, first, "owned")
    assert f"Worker worker-7 holds it under token {token} and has not begun yet" in text
    assert "its lease lasts another 10 s" in text
    fold.put(PlansStarted((Start(plan, token),)))
    fold.now = 8 * SECOND_NS
    assert "and began 3 s ago; its lease lasts another 7 s" in of(fold, first, "owned")
    fold.now = 20 * SECOND_NS
    text = of(fold, first, "owned")
    assert "stopped renewing; its lease expired 5 s ago" in text
    assert "the next worker that asks gets the plan" in text


def test_a_plan_that_failed_says_how_often_why_and_how_long_it_rests() -> None:
    fold = Fold()
    (meta,) = added(fold, segment(1))
    plan = add_plan(fold, segment(2), segment(3))
    fail_plan(fold, plan, "the task was killed", rest_s=4)
    text = of(fold, segment(2), "owned")
    assert "tried again in 4 s" in text
    assert "failed 1 time of at most 2, and runs alone" in text
    assert "last: the task was killed." in text
    fold.put(LimitRaised(9, LeaseTime(60 * SECOND_NS)))
    assert "failed 1 time of at most 9" in of(fold, segment(2), "owned")
    fold.now = 61 * SECOND_NS
    assert "failed 1 time of at most 2" in of(fold, segment(2), "owned")
    assert "by age" in of(fold, meta, "queued"), "another block has nothing to do with it"


def test_a_held_block_says_why_and_when_it_is_tried_again() -> None:
    fold = Fold()
    meta = segment(1)
    plan = add_plan(fold, meta)
    fail_plan(fold, plan, "block is corrupt")
    fold.put(PlanExcluded(plan, None, LeaseTime(90 * SECOND_NS)))
    text = of(fold, meta, "held")
    assert (
        f"Plan {plan} holds it and is excluded: it failed 1 time; last: block is corrupt." in text
    )
    assert "tried again in 90 s" in text
    assert f"`maar plans requeue {plan}`" in text
    fold.put(LimitRaised(9, LeaseTime(30 * SECOND_NS)))
    assert "since the failure limit is raised" in of(fold, meta, "held")
    fold.now = 91 * SECOND_NS
    assert "of the excluded plans, one at a time" in of(fold, meta, "held")
    assert explain(fold.state, meta.id, now=LeaseTime(fold.now)).plan == plan


def test_a_block_held_by_hand_gives_the_operators_reason() -> None:
    fold = Fold()
    meta = segment(1)
    plan = add_plan(fold, meta)
    fold.put(
        PlanExcluded(plan, None, NEVER, counts_as_failure=False, note="bad host, see the ticket")
    )
    text = of(fold, meta, "held")
    assert "was excluded by hand, 'bad host, see the ticket'" in text
    assert f"not tried again until somebody runs `maar plans requeue {plan}`" in text


def test_a_block_of_a_parked_plan_says_how_it_comes_back() -> None:
    fold = Fold(policy=msgspec.structs.replace(SMALL, plans_max=2))
    meta = segment(1)
    plan = add_plan(fold, meta)
    fail_plan(fold, plan, "out of memory")
    add_plan(fold, segment(2))
    fold.put(PlansParked((plan,)))
    assert plan in fold.state.parked
    text = of(fold, meta, "held")
    assert "is parked: it had failed 1 time" in text
    assert "last: out of memory" in text
    assert "less than half full (now 1 of 2)" in text
    assert f"`maar plans requeue {plan}`" in text


# ── done with ──────────────────────────────────────────────────────────────────────────────────


def test_a_finished_block_is_of_the_top_level_or_of_target_size() -> None:
    fold = Fold()
    plan = add_plan(fold, segment(1), segment(2))
    token = lease_plan(fold, plan)
    big = output(plan, token, (segment(1), segment(2)), profiles=20, size=100_000)
    fold.put(PlanCompleted(plan, token, PlanResult(COMPACT, (big,), Account(20, 0, 0))))
    text = of(fold, big, "finished")
    assert "97.7 KiB, and a block of 97.7 KiB or more is not merged further" in text
    one_level = msgspec.structs.replace(SMALL, levels=(Level(3, 1 << 20, SECOND_NS),))
    fold = Fold(policy=one_level)
    top = compacted(fold, segment(1), segment(2), segment(3))
    assert "nothing merges blocks of level 1, which is the top" in of(fold, top, "finished")
    fold.put(PolicySet(SMALL))
    assert "Its batch is open" in of(fold, top, "queued"), "there are more levels now"
    fold.put(PolicySet(one_level))
    assert "nothing merges blocks of level 1" in of(fold, top, "finished"), "and again fewer"


def test_a_quarantined_block_says_who_gave_up_and_where_the_causes_are() -> None:
    fold = Fold()
    metas = (segment(1), segment(2))
    plan = add_plan(fold, *metas)
    token = lease_plan(fold, plan)
    bad = output(plan, token, metas, profiles=3, kind=Kind.QUARANTINE, ordinal=1)
    good = output(plan, token, metas, profiles=17)
    fold.put(PlanCompleted(plan, token, PlanResult(COMPACT, (good, bad), Account(17, 0, 3))))
    text = of(fold, bad, "quarantined")
    assert f"its 3 profiles could not be decoded by plan {plan}" in text
    assert f"column `cause` of {bad.files[0].locations[0].key}" in text


def test_a_retired_block_names_its_successor_its_end_and_who_holds_it() -> None:
    fold = Fold()
    fold.put(PinsTaken(("reader-a",), LeaseTime(100 * SECOND_NS)))
    old = segment(1)
    new = compacted(fold, old, segment(2), segment(3))
    fold.put(PinsTaken(("reader-b",), LeaseTime(100 * SECOND_NS)))
    fold.now = 60 * SECOND_NS
    text = of(fold, old, "retired")
    assert f"replaced by {new.id} 60 s ago" in text
    assert "stay for another 14 min (compaction.retire_delay_s)" in text
    assert "Reader reader-a holds the index" in text
    assert "for another 40 s unless it renews" in text
    assert "reader-b" not in text, "who came later never saw the block"
    fold.now = 1000 * SECOND_NS
    text = of(fold, old, "retired")
    assert "could be deleted 100 s ago" in text
    assert "reader-a" not in text, "a pin that has expired holds nothing"


def test_of_many_readers_a_few_are_named() -> None:
    fold = Fold()
    fold.put(PinsTaken(tuple(f"reader-{n}" for n in range(9)), LeaseTime(100 * SECOND_NS)))
    compacted(fold, segment(1), segment(2), segment(3))
    text = of(fold, segment(1), "retired")
    assert text.count("holds the index") == 5
    assert "So do 4 more readers." in text


def test_a_block_that_retention_took_says_so() -> None:
    fold = Fold()
    (meta,) = added(fold, segment(1))
    fold.put(BlocksExpired(DAY_START_NS + 10**12, (meta.id,)))
    assert "Retention took it 0 s ago" in of(fold, meta, "retired")


def test_of_what_is_gone_or_never_was_nothing_is_made_up() -> None:
    fold = Fold()
    old = segment(1, at=SECOND_NS)
    fold.now = 2 * SECOND_NS
    compacted(fold, old, segment(2, at=SECOND_NS), segment(3, at=SECOND_NS))
    fold.put(BlocksForgotten((old.id,)))
    with pytest.raises(NotFound, match="was merged into another, and its objects are deleted"):
        explain(fold.state, old.id, now=LeaseTime(0))
    for never in ("0" * 32, "nonsense", ""):
        with pytest.raises(NotFound, match="nothing is known of block"):
            explain(fold.state, BlockId(never), now=LeaseTime(0))
