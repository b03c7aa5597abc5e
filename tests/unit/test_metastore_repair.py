"""Sessions of repairs in the log: what they are given, what counts, and what survives."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

import msgspec
import pytest

from maar.metastore.decide.jobs import JobBook
from maar.metastore.records.entries import AssumedSuccess, JobsAssumed
from maar.metastore.state.index import Index
from maar.metastore.state.snapshot_parts import parts_of, state_of
from maar.model.ids import TenantId
from maar.model.policy import HOUR_NS
from maar.model.repair import RangeResult
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime
from maar.model.token_range import RING, TokenRange
from maar.services.repair import rules
from maar.services.repair.ranges import VNODES, token_of, vnode, vnode_number, vnodes
from maar.services.repair.rules import REPAIR, REPAIRING, tasks
from support.lake.fold_and_store import Lake
from support.metastore.copies import EU, MAIN, copy_of, want
from support.metastore.fold import TENANT, segment
from support.metastore.repair_steps import (
    INCREMENTAL_JOB,
    VNODE_JOB,
    ask,
    begin,
    block,
    carry_out,
    commit,
    due,
    finish,
    grant,
    now_of,
    number_of,
    parts,
    repair_times,
)


class TestSession:
    def test_in_a_lake_that_is_younger_than_the_interval_what_is_due_runs(self) -> None:
        """New jobs are spread over the interval, and not all due at its end."""
        lake = Lake()
        block(lake)
        want(lake.fold, EU)
        schedule = REPAIRING.default_schedule(lake.state.policy, VNODE_JOB)
        assumed = LeaseTime(schedule.initial_delay_ns - schedule.interval_ns)
        lake.fold.put(JobsAssumed((AssumedSuccess(VNODE_JOB, assumed),)))
        lake.fold.now = schedule.initial_delay_ns
        book = JobBook()
        book.turn(lake.state, now_of(lake))
        spec = book.session(lake.state, VNODE_JOB, now_of(lake))
        assert spec is not None
        assert spec.repair is not None
        assert spec.repair.ranges == tuple(vnodes())

    def test_nothing_is_due_before_somebody_asks(self) -> None:
        lake = Lake()
        block(lake)
        assert due(lake) == []
        ask(lake)
        (spec,) = due(lake)
        assert (spec.kind, spec.inputs, spec.removable) == (REPAIR, (), False)
        assert spec.repair is not None
        assert spec.repair.stores == (MAIN,)
        assert set(spec.repair.ranges) == set(vnodes())

    def test_one_session_at_a_time(self) -> None:
        lake = Lake()
        block(lake)
        ask(lake)
        begin(lake, due(lake)[0])
        assert due(lake) == []

    def test_a_part_is_a_range_with_its_blocks_and_the_empty_ones_before_it(self) -> None:
        lake = Lake()
        metas = [block(lake, first) for first in (1, 11, 21)]
        ask(lake)
        plan = begin(lake, due(lake)[0])
        assert {meta.id for meta in plan.inputs} == {meta.id for meta in metas}
        seen: list[TokenRange] = []
        for part, task in zip(parts(plan), tasks(plan), strict=True):
            seen += [*part.empty, *([part.tokens] if part.tokens else [])]
            assert all(token_of(meta.id) in part.tokens for meta in task.inputs if part.tokens)
            assert task.repair is not None
            assert len(task.repair.wanted) == len(task.inputs)
        assert sorted(seen) == sorted(vnodes())
        assert len(parts(plan)) <= 4

    def test_it_takes_the_oldest_ranges_of_about_so_many_blocks_and_looks_at_no_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        two = rules.Repairing(session_blocks_max=2)
        lake = Lake()
        for number in range(1, 90, 3):
            block(lake, number)
        looked: list[Collection[int]] = []
        seen = Index.in_vnodes

        def watch(
            index: Index, tenant: TenantId, numbers: Collection[int], within: object
        ) -> object:
            assert within is None
            looked.append(set(numbers))
            return seen(index, tenant, numbers)

        monkeypatch.setattr(Index, "in_vnodes", watch)
        ask(lake)
        many = 2 * VNODES // 30  # ranges: blocks lie evenly in all of them
        for first in (0, many, 2 * many):
            looked.clear()
            plan = begin(lake, due(lake, repairing=two)[0])
            numbers = range(first, first + many)
            assert looked
            assert all(seen == set(numbers) for seen in looked)
            order = lake.state.plans[plan.id].repair
            assert order is not None
            assert order.ranges == tuple(map(vnode, numbers))
            live = set(lake.state.blocks.where)
            assert {meta.id for meta in plan.inputs} == {
                each
                for each in live
                if lake.state.blocks.get(each).level and number_of(each) in numbers
            }
            carry_out(lake, plan)
            finish(lake, plan)

    def test_a_segment_is_not_looked_at(self) -> None:
        lake = Lake()
        block(lake)
        lake.add(50)
        ask(lake)
        assert len(begin(lake, due(lake)[0]).inputs) == 1

    def test_a_lease_of_ten_minutes_is_renewed_every_minute(self) -> None:
        lake = Lake()
        block(lake)
        ask(lake)
        plan = begin(lake, due(lake)[0])
        assert (plan.lease_ns, plan.renew_ns) == (600 * SECOND_NS, 60 * SECOND_NS)

    def test_blocks_of_another_home_are_of_another_session(self) -> None:
        lake = Lake()
        block(lake)
        want(lake.fold, EU)
        ask(lake)
        vnode_ones = [spec for spec in due(lake) if spec.repair and spec.repair.ranges]
        (spec,) = vnode_ones
        assert spec.repair is not None
        assert spec.repair.stores == (EU, MAIN)


class TestHistory:
    def test_ranges_count_from_the_grant_whenever_they_are_committed(self) -> None:
        lake = Lake()
        block(lake)
        ask(lake)
        lake.fold.now = 100 * SECOND_NS
        plan = begin(lake, due(lake)[0])
        lake.fold.now = 300 * SECOND_NS
        carry_out(lake, plan)
        assert dict(repair_times(lake, MAIN)) == dict.fromkeys(range(VNODES), 100 * SECOND_NS)

    def test_a_commit_under_a_token_that_is_not_the_newest_changes_nothing(self) -> None:
        lake = Lake()
        block(lake)
        ask(lake)
        old = begin(lake, due(lake)[0])
        lake.fold.now += 700 * SECOND_NS
        grant(lake, old.id)
        assert not commit(lake, old, RangeResult(tokens=vnode(3))).accepted
        assert not lake.state.repairs.history

    def test_what_was_committed_survives_a_lost_lease_and_is_not_done_again(self) -> None:
        lake = Lake()
        for number in (1, 11, 21):
            block(lake, number)
        ask(lake)
        old = begin(lake, due(lake)[0])
        first = parts(old)[0]
        assert commit(lake, old, RangeResult(tokens=first.tokens), first.empty).accepted
        lake.fold.now += 700 * SECOND_NS
        again = grant(lake, old.id)
        assert parts(again)[0].tokens == parts(old)[1].tokens
        assert len(again.inputs) < len(old.inputs)

    def test_a_range_whose_store_was_away_is_not_repaired(self) -> None:
        lake = Lake()
        meta = block(lake)
        want(lake.fold, EU)
        ask(lake)
        (spec,) = [each for each in due(lake) if each.repair and each.repair.ranges]
        plan = begin(lake, spec)
        tokens = vnode(vnode_number(token_of(meta.id)))
        made = copy_of(meta, EU, plan.id, plan.token)
        assert commit(lake, plan, RangeResult(tokens=tokens, copies=(made,), away=(EU,))).accepted
        assert not lake.state.repairs.history
        assert lake.state.blocks.copies.is_all_copied(TENANT)  # the copy counts all the same

    def test_it_counts_only_for_the_same_stores(self) -> None:
        lake = Lake()
        block(lake)
        ask(lake)
        plan = begin(lake, due(lake)[0])
        carry_out(lake, plan)
        finish(lake, plan)
        assert len(lake.state.repairs.of(TENANT, (MAIN,))) == VNODES
        want(lake.fold, EU)
        assert lake.state.repairs.of(TENANT, (EU, MAIN)) == {}

    def test_compaction_of_the_very_blocks_leaves_it(self) -> None:
        lake = Lake()
        one, two = block(lake), block(lake, 11)
        ask(lake)
        plan = begin(lake, due(lake)[0])
        carry_out(lake, plan)
        known = dict(lake.state.repairs.history)
        lake.fold.now += HOUR_NS
        lake.merge([one, two])
        assert one.id not in lake.state.blocks
        assert dict(lake.state.repairs.history) == known

    def test_a_snapshot_has_it(self) -> None:
        lake = Lake()
        block(lake)
        ask(lake)
        ask(lake, INCREMENTAL_JOB)
        plan = begin(lake, due(lake)[0])
        first = parts(plan)[0]
        commit(lake, plan, RangeResult(tokens=first.tokens, work_ns=7), first.empty)
        again = state_of(parts_of(lake.state))
        for name in ("history", "asked", "answered", "copied", "lost"):
            was, now = getattr(lake.state.repairs, name), getattr(again.repairs, name)
            assert list(was.items()) == list(now.items())
            assert was.hash == now.hash

    def test_a_range_that_is_in_none_of_the_fixed_ones_counts_for_none(self) -> None:
        lake = Lake()
        block(lake)
        ask(lake)
        plan = begin(lake, due(lake)[0])
        across = TokenRange(vnode(3).start + 5, vnode(4).start + 5)
        assert commit(lake, plan, RangeResult(tokens=across)).accepted
        assert not lake.state.repairs.history

    def test_it_is_forgotten_after_a_month(self) -> None:
        lake = Lake()
        block(lake)
        ask(lake)
        plan = begin(lake, due(lake)[0])
        commit(lake, plan, RangeResult(tokens=vnode(3)))
        commit(lake, plan, RangeResult(tokens=vnode(4)))
        lake.fold.now += 31 * DAY_NS
        plan = grant(lake, plan.id)
        commit(lake, plan, RangeResult(tokens=vnode(4)))
        assert [key.vnode for key in lake.state.repairs.history] == [4]

    def test_it_is_bounded(self) -> None:
        lake = Lake()
        lake.state.policy = msgspec.structs.replace(lake.state.policy, ranges_max=5)
        block(lake)
        ask(lake)
        carry_out(lake, begin(lake, due(lake)[0]))
        assert len(lake.state.repairs.history) == 5


def test_every_chunk_knows_the_ranges_of_its_blocks_whatever_came_and_went() -> None:
    lake, chance = Lake(), Random(5)
    metas = [segment(number, at=chance.randrange(10**12)) for number in range(400)]
    for meta in metas:
        lake.state.blocks.add(meta)
    for meta in chance.sample(metas, 250):
        lake.state.blocks.remove(meta.id)
    again = state_of(parts_of(lake.state))
    for state in (lake.state, again):
        chunks = [chunk for each in state.blocks.partitions() for chunk in each.chunks]
        assert sum(map(len, chunks)) == 150
        for chunk in chunks:
            assert list(chunk.vnodes) == [number_of(each) for each in chunk.ids]


def test_the_ring_is_covered() -> None:
    assert sum(each.tokens for each in vnodes()) == RING
