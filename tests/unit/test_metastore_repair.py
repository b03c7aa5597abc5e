"""Sessions of repairs in the log: what they are given, what counts, and what survives."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from random import Random

import msgspec
import pytest
import xxhash

from maar.metastore.decide import repairs
from maar.metastore.decide.jobs import JobBook, Moment, moment
from maar.metastore.decide.stores import LEAVES, LOST, UNWANTED, WIPED
from maar.metastore.records.effects import CopyAdded, CopyEnded, Effect, Refused, RepairEnded
from maar.metastore.records.entries import (
    CopiesEnded,
    Grant,
    PlanCompleted,
    PlanFailed,
    PlansLeased,
    PlansScheduled,
    RepairAsked,
)
from maar.metastore.state.index import Index
from maar.metastore.state.snapshot_parts import parts_of, state_of
from maar.metastore.views import reads
from maar.metastore.views import repairs as views
from maar.metastore.views.alarms import every_alarm
from maar.model.block import BlockMeta
from maar.model.errors import InvalidInput
from maar.model.ids import BlockId, StoreName, TenantId, WorkerId
from maar.model.plan import Account, JobId, LeasedPlan, PlanJob, PlanResult, PlanSpec
from maar.model.policy import HOUR_NS
from maar.model.repair import LostBlock, RangeResult, RepairPart, RepairType
from maar.model.schedule import AlarmLevel
from maar.model.stores import CopyBad
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime
from maar.model.token_range import RING, TokenRange
from maar.ports.plan_board import CommitPart, PartCommitted
from maar.services.repair import rules
from maar.services.repair.ranges import VNODES, token_of, vnode, vnode_number, vnodes
from maar.services.repair.rules import REPAIR, REPAIRING, tasks
from maar.services.rules import JobState
from support.lake.fold_and_store import Lake
from support.metastore.copies import EU, MAIN, US, Repairing, copy_of, want
from support.metastore.fold import DAY_START_NS, TENANT, segment

VNODE_JOB = JobId(TENANT, REPAIR, RepairType.VNODE)
INCREMENTAL_JOB = JobId(TENANT, REPAIR, RepairType.INCREMENTAL)


def number_of(block: BlockId) -> int:
    """The range that a block is in, counted from 0: tokens 1 to 2**56 are the first."""
    return ((xxhash.xxh3_64_intdigest(block.encode()) - 1) % 2**64) >> 56


def block(lake: Lake, first: int = 1) -> BlockMeta:
    return lake.merge(lake.add(first, first + 1, first + 2))


def now_of(lake: Lake, *down: StoreName) -> Moment:
    return moment(lake.state, LeaseTime(lake.fold.now))._replace(down=frozenset(down))


def moved(lake: Lake, meta: BlockMeta, home: StoreName) -> BlockMeta:
    """The same block, as if another store were its home."""
    files = tuple(
        msgspec.structs.replace(
            file,
            locations=tuple(msgspec.structs.replace(at, store=home) for at in file.locations),
        )
        for file in meta.files
    )
    there = msgspec.structs.replace(meta, store=home, files=files)
    lake.state.blocks.remove(meta.id)
    lake.state.blocks.add(there)
    return there


def due(lake: Lake, *down: StoreName, repairing: rules.Repairing = REPAIRING) -> list[PlanSpec]:
    """Sessions of all jobs that have something to do, and no plan: those that were asked for, and
    those that copy.
    """
    state, now, found = lake.state, LeaseTime(lake.fold.now), []
    tenants = REPAIRING.job_tenants(state)
    for job in (job for tenant in tenants for job in REPAIRING.job_ids(state, tenant)):
        schedule = REPAIRING.default_schedule(state.policy, job)
        known = repairing.job(state, job, schedule, now=now, down=down)
        wanted = job == INCREMENTAL_JOB or job in state.repairs.asked
        busy = any(REPAIRING.job_of(plan.key) == job for plan in state.plans.of_kind(REPAIR))
        if known is None or known.nothing or not wanted or busy:
            continue
        made = repairing.session(state, known, schedule, now=now, down=down)
        found += [made] if made is not None else []
    return found


def ask(lake: Lake, job: JobId = VNODE_JOB, *, wanted: bool = True) -> tuple[Effect, ...]:
    entries = repairs.ask_entries(lake.state, job, wanted=wanted)
    return tuple(effect for entry in entries for effect in lake.fold.put(entry))


def begin(lake: Lake, spec: PlanSpec) -> LeasedPlan:
    named = msgspec.structs.replace(spec, job=PlanJob(REPAIRING.job_of(spec.key)))
    lake.fold.put(PlansScheduled((named,)))
    return grant(lake, max(lake.state.plans))


def grant(lake: Lake, plan: object) -> LeasedPlan:
    until = LeaseTime(lake.fold.now + 600 * SECOND_NS)
    seen = lake.state.plans[plan].lease  # type: ignore[index]
    lake.fold.put(
        PlansLeased((Grant(plan, WorkerId("w"), until, seen.token if seen else None),))  # type: ignore[arg-type]
    )
    return reads.leased_plan(lake.state, plan)  # type: ignore[arg-type]


def commit(
    lake: Lake, plan: LeasedPlan, result: RangeResult, empty: tuple[TokenRange, ...] = ()
) -> PartCommitted:
    request = CommitPart(plan.id, plan.token, result, empty)
    now = LeaseTime(lake.fold.now)
    effects = [
        effect
        for entry in repairs.commit_entries(lake.state, request, now=now)
        for effect in lake.fold.put(entry)
    ]
    return repairs.commit_reply(effects, lake.state, request)


def parts(plan: LeasedPlan) -> tuple[RepairPart, ...]:
    assert plan.repair is not None
    return plan.repair.parts


def carry_out(lake: Lake, plan: LeasedPlan, **told: object) -> None:
    """Every part as a worker that finds nothing wrong would commit it."""
    for part in parts(plan):
        count = part.end - part.first
        result = RangeResult(tokens=part.tokens, checked=count, **told)  # type: ignore[arg-type]
        assert commit(lake, plan, result, part.empty).accepted


def finish(lake: Lake, plan: LeasedPlan) -> None:
    result = PlanResult(REPAIR, (), Account(0, 0, 0))
    effects = lake.fold.put(PlanCompleted(plan.id, plan.token, result))
    assert not any(isinstance(effect, Refused) for effect in effects)


def done_at(lake: Lake, *stores: StoreName) -> Iterator[tuple[int, int]]:
    """When each range was last repaired whole, as (number, time)."""
    for number, history in sorted(lake.state.repairs.of(TENANT, stores).items()):
        for piece in history.pieces:
            if piece.tokens == vnode(number):
                yield number, piece.started_at


class TestSession:
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

        def watch(index: Index, tenant: TenantId, numbers: Collection[int]) -> object:
            looked.append(set(numbers))
            return seen(index, tenant, numbers)

        monkeypatch.setattr(Index, "in_vnodes", watch)
        ask(lake)
        for first in (0, 2, 4):
            looked.clear()
            plan = begin(lake, due(lake, repairing=two)[0])
            assert all(numbers == {first, first + 1} for numbers in looked)
            order = lake.state.plans[plan.id].repair
            assert order is not None
            assert order.ranges == (vnode(first), vnode(first + 1))
            live = set(lake.state.blocks.where)
            assert {meta.id for meta in plan.inputs} == {
                each
                for each in live
                if lake.state.blocks.get(each).level and number_of(each) in (first, first + 1)
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
        assert dict(done_at(lake, MAIN)) == dict.fromkeys(range(VNODES), 100 * SECOND_NS)

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


class TestAsked:
    def test_it_ends_when_every_range_was_repaired_since(self) -> None:
        lake = Lake()
        block(lake)
        ask(lake)
        plan = begin(lake, due(lake)[0])
        carry_out(lake, plan)
        assert VNODE_JOB not in lake.state.repairs.asked
        told = views.last_asked(lake.state, VNODE_JOB)
        assert (told.outcome, told.ranges, told.checked) == ("completed", VNODES, 1)
        finish(lake, plan)
        assert due(lake) == []

    def test_history_from_before_does_not_count(self) -> None:
        lake = Lake()
        block(lake)
        ask(lake)
        plan = begin(lake, due(lake)[0])
        carry_out(lake, plan)
        finish(lake, plan)
        lake.fold.now += SECOND_NS
        ask(lake)
        (spec,) = due(lake)
        assert spec.repair is not None
        assert len(spec.repair.ranges) == VNODES
        plan = begin(lake, spec)
        commit(lake, plan, RangeResult(tokens=vnode(3)))
        assert views.last_asked(lake.state, VNODE_JOB).outcome == "running"

    def test_a_second_wish_joins_the_first(self) -> None:
        lake = Lake()
        block(lake)
        ask(lake)
        at = lake.state.repairs.asked[VNODE_JOB].at
        lake.fold.now += SECOND_NS
        assert ask(lake) == (), "it changes nothing"
        assert lake.state.repairs.asked[VNODE_JOB].at == at

    def test_the_next_session_takes_what_the_last_one_left(self) -> None:
        """A session that was stopped in the middle ends well; another one goes on."""
        lake = Lake()
        for number in (1, 11, 21):
            block(lake, number)
        ask(lake)
        plan = begin(lake, due(lake)[0])
        first = parts(plan)[0]
        commit(lake, plan, RangeResult(tokens=first.tokens), first.empty)
        finish(lake, plan)
        (spec,) = due(lake)
        assert spec.repair is not None
        done = {first.tokens, *first.empty}
        assert set(spec.repair.ranges) == set(vnodes()) - done

    def test_it_can_be_called_off(self) -> None:
        lake = Lake()
        block(lake)
        ask(lake)
        assert ask(lake, wanted=False) == (RepairEnded(VNODE_JOB, "cancelled"),)
        assert due(lake) == []
        assert isinstance(lake.fold.put(RepairAsked(VNODE_JOB, wanted=False))[0], Refused)

    def test_a_tenant_without_blocks_has_nothing_to_repair(self) -> None:
        lake = Lake()
        job = JobId(TenantId("nobody"), REPAIR, RepairType.VNODE)
        assert ask(lake, job) == ()
        assert views.after((), lake.state, job).outcome == "nothing_to_do"

    @pytest.mark.parametrize(
        "job", [JobId(TENANT, REPAIR, "half"), JobId(TenantId(""), REPAIR, "")]
    )
    def test_what_cannot_be_is_refused(self, job: JobId) -> None:
        with pytest.raises(InvalidInput):
            repairs.check(job)

    def test_a_dry_run_counts_and_changes_nothing(self) -> None:
        lake = Lake()
        meta = block(lake)
        want(lake.fold, EU)
        index = lake.state.index
        ranges = views.to_read(lake.state, VNODE_JOB).ranges()
        told = views.dry_run(lake.state, VNODE_JOB, ranges)
        assert (told.outcome, told.blocks, told.bytes) == ("would_run", 1, 2 * meta.size)
        assert views.dry_run(lake.state, INCREMENTAL_JOB).bytes == meta.size
        assert lake.state.index == index


class TestIncremental:
    def test_only_what_is_not_at_all_its_stores_is_looked_at(self) -> None:
        lake = Lake()
        one, two = block(lake), block(lake, 11)
        assert due(lake) == []
        want(lake.fold, EU)
        (spec,) = due(lake)
        plan = begin(lake, spec)
        assert [meta.id for meta in plan.inputs] == sorted((one.id, two.id))
        made = copy_of(one, EU, plan.id, plan.token)
        commit(lake, plan, RangeResult(copies=(made,), checked=1))
        finish(lake, plan)
        plan = begin(lake, due(lake)[0])
        assert [meta.id for meta in plan.inputs] == [two.id]

    def test_what_was_copied_counts_before_the_session_ends(self) -> None:
        """Where blocks are compacted sooner than a session ends, one commit at its end would find
        none of them alive, again and again.
        """
        lake = Lake()
        metas = [block(lake, 10 * n + 1) for n in range(rules.COMMITTED_BLOCKS_MAX + 1)]
        want(lake.fold, EU)
        plan = begin(lake, due(lake)[0])
        first, second = tasks(plan)
        assert {meta.id for meta in (*first.inputs, *second.inputs)} == {meta.id for meta in metas}
        made = tuple(copy_of(meta, EU, plan.id, plan.token) for meta in first.inputs)
        assert commit(lake, plan, RangeResult(copies=made, checked=len(made))).refused == ()
        assert list(lake.state.to_copy(TENANT)) == [meta.id for meta in second.inputs]

    def test_a_task_has_few_blocks_and_bytes_or_one_that_is_larger(self) -> None:
        most, many = rules.COMMITTED_BYTES_MAX, rules.COMMITTED_BLOCKS_MAX
        assert rules.part_ends([1] * (2 * many + 1)) == [many, 2 * many, 2 * many + 1]
        assert rules.part_ends([most, 1, most + 1, 1, 1]) == [1, 2, 3, 5]
        assert rules.part_ends([1]) == [1]

    def test_at_100_percent_there_is_nothing_to_do_and_it_is_known_since_when(self) -> None:
        lake = Lake()
        meta = block(lake)
        want(lake.fold, EU)
        assert views.percent_copied(lake.state, TENANT) == 0
        lake.fold.now = 50 * SECOND_NS
        plan = begin(lake, due(lake)[0])
        lake.fold.now = 70 * SECOND_NS
        made = copy_of(meta, EU, plan.id, plan.token)
        commit(lake, plan, RangeResult(copies=(made,), checked=1))
        finish(lake, plan)
        assert due(lake) == []
        assert views.percent_copied(lake.state, TENANT) == 100
        assert lake.state.all_copied_at(TENANT) == 50 * SECOND_NS
        jobs = views.status(lake.state, tenant="", at=now_of(lake)).jobs
        (told,) = [job for job in jobs if job.type == "incremental"]
        assert (told.state, told.percent_repaired) == ("COMPLETED", 100.0)
        assert told.max_repaired_at == DAY_START_NS + 50 * SECOND_NS  # by the wall clock

    def test_it_writes_no_history(self) -> None:
        lake = Lake()
        block(lake)
        want(lake.fold, EU)
        plan = begin(lake, due(lake)[0])
        commit(lake, plan, RangeResult(tokens=vnode(1)), (vnode(2),))
        assert not lake.state.repairs.history


class TestAgainstTheRest:
    def test_a_block_that_was_replaced_meanwhile_is_refused_alone(self) -> None:
        lake = Lake()
        one, two, other = block(lake), block(lake, 11), block(lake, 21)
        want(lake.fold, EU)
        plan = begin(lake, due(lake)[0])
        made = tuple(copy_of(meta, EU, plan.id, plan.token) for meta in (one, other))
        lake.merge([one, two])
        reply = commit(lake, plan, RangeResult(copies=made, checked=2))
        assert reply.accepted
        assert [text.partition(":")[0] for text in reply.refused] == [one.id]
        assert EU in {at.store for at in lake.state.blocks.get(other.id).files[0].locations}

    def test_what_is_lost_is_named_until_it_is_found_whole(self) -> None:
        lake = Lake()
        meta = block(lake)
        ask(lake)
        plan = begin(lake, due(lake)[0])
        tokens = vnode(vnode_number(token_of(meta.id)))
        lost = (LostBlock(meta.id, "in main: is missing"),)
        commit(lake, plan, RangeResult(tokens=tokens, lost=lost, checked=1))
        (told,) = views.status(lake.state, tenant="", at=now_of(lake)).lost
        (alarm,) = every_alarm(lake.state)
        assert (alarm.id.tenant, alarm.level) == (TENANT, AlarmLevel.ERROR)
        assert f"no copy is whole of 1 block of {TENANT} ({meta.id})" in alarm.note
        assert (told.block, told.what) == (meta.id, "in main: is missing")
        assert meta.id in lake.state.blocks
        commit(lake, plan, RangeResult(tokens=tokens, checked=1))
        assert views.status(lake.state, tenant="", at=now_of(lake)).lost == ()
        assert every_alarm(lake.state) == ()

    def test_a_block_that_left_the_index_is_not_lost(self) -> None:
        lake = Lake()
        one, two = block(lake), block(lake, 11)
        ask(lake)
        plan = begin(lake, due(lake)[0])
        lake.merge([one, two])
        lost = (LostBlock(one.id, "in main: is missing"),)
        commit(lake, plan, RangeResult(tokens=vnode(0), lost=lost, checked=1))
        assert not lake.state.repairs.lost

    def test_a_bad_copy_and_its_successor_are_one_step(self) -> None:
        lake = Lake()
        meta = block(lake)
        want(lake.fold, EU)
        plan = begin(lake, due(lake)[0])
        made = copy_of(meta, EU, plan.id, plan.token)
        commit(lake, plan, RangeResult(copies=(made,)))
        again = copy_of(meta, EU, plan.id, plan.token, "r2")
        bad = CopyBad(meta.id, EU, "is missing")
        reply = commit(lake, plan, RangeResult(copies=(again,), ended=(bad,), checked=2))
        assert reply == PartCommitted(True)
        listed = {at.key for f in lake.state.blocks.get(meta.id).files for at in f.locations}
        assert {key for _, key in again.files} <= listed
        assert not {key for _, key in made.files} & listed

    def test_a_session_stops_when_other_stores_are_wanted(self) -> None:
        lake = Lake()
        block(lake)
        ask(lake)
        plan = begin(lake, due(lake)[0])
        assert commit(lake, plan, RangeResult(tokens=vnode(1))).stop == ""
        want(lake.fold, EU)
        assert "other stores" in commit(lake, plan, RangeResult(tokens=vnode(2))).stop

    def test_what_somebody_else_has_repaired_meanwhile_counts_for_both(self) -> None:
        lake = Lake()
        for number in (1, 11, 21):
            block(lake, number)
        ask(lake)
        spec = due(lake)[0]
        lake.fold.put(PlansScheduled((spec,)))
        waiting = max(lake.state.plans)
        other = begin(lake, spec)
        first, *rest = parts(other)
        commit(lake, other, RangeResult(tokens=first.tokens), first.empty)
        lake.fold.put(
            PlanFailed(other.id, other.token, "stopped", LeaseTime(lake.fold.now + 1), False)
        )
        plan = grant(lake, waiting)
        assert [part.tokens for part in parts(plan)] == [part.tokens for part in rest]
        carry_out(lake, plan)
        assert views.last_asked(lake.state, VNODE_JOB).outcome == "completed"
        assert views.last_asked(lake.state, VNODE_JOB).ranges == VNODES
        finish(lake, plan)
        lake.fold.now += 2 * SECOND_NS
        assert parts(grant(lake, other.id)) == (), "nothing is left of its session"

    def test_a_failed_session_rests(self) -> None:
        lake = Lake()
        block(lake)
        ask(lake)
        plan = begin(lake, due(lake)[0])
        until = LeaseTime(lake.fold.now + 5 * SECOND_NS)
        lake.fold.put(PlanFailed(plan.id, plan.token, "the store eu is away", until, False))
        (told,) = views.status(lake.state, tenant="", at=now_of(lake)).jobs
        assert (told.state, "eu is away" in told.why) == ("BLOCKED", True)

    def test_new_blocks_wait_for_the_next_repair_of_their_range(self) -> None:
        lake = Lake()
        block(lake)
        ask(lake)
        plan = begin(lake, due(lake)[0])
        late = block(lake, 11)
        assert late.id not in {meta.id for meta in plan.inputs}
        carry_out(lake, plan)
        assert views.last_asked(lake.state, VNODE_JOB).outcome == "completed"


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


def test_copies_are_counted_for_whoever_asked() -> None:
    lake = Lake()
    meta = block(lake)
    want(lake.fold, EU, US)
    ask(lake, INCREMENTAL_JOB)
    plan = begin(lake, due(lake)[0])
    made = tuple(copy_of(meta, store, plan.id, plan.token) for store in (EU, US))
    request = CommitPart(plan.id, plan.token, RangeResult(copies=made, checked=1))
    effects = [
        effect
        for entry in repairs.commit_entries(lake.state, request, now=LeaseTime(lake.fold.now))
        for effect in lake.fold.put(entry)
    ]
    assert sum(isinstance(effect, CopyAdded) for effect in effects) == 2
    told = views.last_asked(lake.state, INCREMENTAL_JOB)
    assert (told.outcome, told.copied, told.checked) == ("completed", 2, 1)


def job_of(lake: Lake, job: JobId, *down: StoreName) -> JobState:
    now = LeaseTime(lake.fold.now)
    schedule = REPAIRING.default_schedule(lake.state.policy, job)
    found = REPAIRING.job(lake.state, job, schedule, now=now, down=down)
    assert found is not None
    return found


class TestStoreThatIsDown:
    def test_only_its_own_ranges_wait_and_they_are_not_repaired(self) -> None:
        lake = Lake()
        want(lake.fold)
        block(lake)
        other = moved(lake, block(lake, 11), US)
        ask(lake)
        (spec,) = due(lake, US)
        assert spec.repair is not None
        assert spec.repair.stores == (MAIN,)
        assert spec.resources == ("store:main",)
        plan = begin(lake, spec)
        carry_out(lake, plan)
        finish(lake, plan)
        assert due(lake, US) == []
        assert views.last_asked(lake.state, VNODE_JOB).outcome == "running"
        assert lake.state.repairs.of(TENANT, (US,)) == {}
        (spec,) = due(lake)  # it is back
        assert spec.repair is not None
        assert spec.repair.stores == (US,)
        plan = begin(lake, spec)
        assert [meta.id for meta in plan.inputs] == [other.id]
        carry_out(lake, plan)
        assert views.last_asked(lake.state, VNODE_JOB).outcome == "completed"

    def test_a_tenant_of_which_no_range_has_all_its_stores_says_so_and_grows_old(self) -> None:
        lake = Lake()
        block(lake)
        want(lake.fold, EU)
        ask(lake)
        plan = begin(lake, next(each for each in due(lake) if each.repair and each.repair.ranges))
        carry_out(lake, plan)
        finish(lake, plan)
        lake.fold.now += 20 * DAY_NS
        found = job_of(lake, VNODE_JOB, EU)
        assert found.why_not == "no range has all its stores: eu is away"
        assert found.last_success is not None
        assert lake.fold.now - found.last_success >= 20 * DAY_NS
        assert job_of(lake, VNODE_JOB, US).why_not == ""

    def test_what_other_stores_lack_is_copied_meanwhile(self) -> None:
        lake = Lake()
        one, two = block(lake), block(lake, 11)
        want(lake.fold, EU, US)
        plan = begin(lake, due(lake)[0])
        made = copy_of(one, US, plan.id, plan.token)
        commit(lake, plan, RangeResult(copies=(made,), checked=1))
        finish(lake, plan)
        (spec,) = due(lake, EU)
        assert spec.repair is not None
        assert spec.repair.down == (EU,)
        assert "store:eu" not in job_of(lake, INCREMENTAL_JOB, EU).resources
        plan = begin(lake, spec)
        assert [meta.id for meta in plan.inputs] == [two.id], "the other one lacks only the EU"
        assert plan.repair is not None
        assert plan.repair.wanted == ((MAIN, US),)
        made = copy_of(two, US, plan.id, plan.token)
        commit(lake, plan, RangeResult(copies=(made,), checked=1))
        finish(lake, plan)
        assert due(lake, EU) == []
        assert "waits for store eu" in job_of(lake, INCREMENTAL_JOB, EU).why_not
        assert lake.state.all_copied_at(TENANT) is None
        plan = begin(lake, due(lake)[0])
        assert [meta.id for meta in plan.inputs] == sorted((one.id, two.id))

    def test_a_session_that_was_to_use_it_stops(self) -> None:
        lake = Lake()
        block(lake)
        want(lake.fold, EU)
        ask(lake)
        for spec in due(lake):
            begin(lake, spec)
        for plan in lake.state.plans.of_kind(REPAIR):
            assert "store eu is away" in REPAIRING.why_stop(lake.state, plan, {EU})
            assert REPAIRING.why_stop(lake.state, plan, {US}) == ""
            assert REPAIRING.why_stop(lake.state, plan, ()) == ""

    def test_one_that_knows_of_it_goes_on(self) -> None:
        lake = Lake()
        block(lake)
        want(lake.fold, EU, US)
        begin(lake, due(lake, EU)[0])
        (plan,) = lake.state.plans.of_kind(REPAIR)
        assert REPAIRING.why_stop(lake.state, plan, {EU}) == ""
        assert "store us is away" in REPAIRING.why_stop(lake.state, plan, {EU, US})

    def test_the_leader_looks_again_when_a_store_goes_or_comes(self) -> None:
        lake, book = Lake(), JobBook()
        block(lake)
        want(lake.fold, EU)
        at = moment(lake.state, LeaseTime(lake.fold.now))
        book.turn(lake.state, at)
        assert book.known[VNODE_JOB].found.why_not == ""
        book.turn(lake.state, at._replace(down=frozenset({EU})))
        assert "eu is away" in book.known[VNODE_JOB].found.why_not
        assert "waits for store eu" in book.known[INCREMENTAL_JOB].found.why_not
        plan = begin(lake, due(lake)[0])
        told = book.stop(lake.state, lake.state.plans[plan.id], at._replace(down=frozenset({EU})))
        assert "store eu is away" in told
        book.turn(lake.state, at)
        assert book.known[VNODE_JOB].found.why_not == ""
        assert book.stop(lake.state, lake.state.plans[plan.id], at) == ""


class TestSessions:
    def test_they_are_counted_by_success(self) -> None:
        lake = Lake()
        block(lake)
        ask(lake)
        plan = begin(lake, due(lake)[0])
        until = LeaseTime(lake.fold.now + SECOND_NS)
        failed = lake.fold.put(PlanFailed(plan.id, plan.token, "eu is away", until, False))
        lake.metrics.count(failed, lake.state)
        lake.fold.now += 2 * SECOND_NS
        plan = grant(lake, plan.id)
        done = PlanCompleted(plan.id, plan.token, PlanResult(REPAIR, (), Account(0, 0, 0)))
        for _ in range(2):  # the second time it is only answered again
            lake.metrics.count(lake.fold.put(done), lake.state)

        def told(successful: str) -> float | None:
            labels = {"tenant": str(TENANT), "type": "vnode", "successful": successful}
            return lake.registry.get_sample_value("maar_repair_sessions_total", labels)

        assert (told("yes"), told("no")) == (1, 1)
        for successful in ("yes", "no"):
            labels = {"kind": "repair", "successful": successful}
            assert lake.registry.get_sample_value("maar_metastore_sessions_total", labels) == 1

    def test_a_copy_that_was_whole_when_it_ended_is_not_counted_as_damaged(self) -> None:
        lake = Lake()
        meta = block(lake)
        want(lake.fold, EU)
        for number, why in enumerate((LEAVES, UNWANTED, LOST, WIPED)):
            lake.fold.put(Repairing(lake.fold).entry((meta.id, EU), attempt=f"r{number}"))
            ended = lake.fold.put(CopiesEnded(EU, (meta.id,), gone=True, why=why))
            assert CopyEnded(meta.id, EU, why) in ended
            lake.metrics.count(ended, lake.state)
        assert lake.registry.get_sample_value("maar_repair_damaged_copies_total") == 1

    def test_other_plans_are_not_counted(self) -> None:
        lake = Lake()
        one, two = lake.add(1, 2)
        plan = lake.schedule((one, two))
        token = lake.lease(plan)
        lake.metrics.count(lake.complete(plan, token, lake.write(plan, token)), lake.state)
        samples = [
            each.value
            for family in lake.registry.collect()
            for each in family.samples
            if each.name == "maar_repair_sessions_total"
        ]
        assert samples == []


class TestReported:
    def test_what_readers_complain_of_is_looked_at_first(self) -> None:
        lake = Lake()
        old, bad = block(lake), block(lake, 11)
        want(lake.fold, EU)
        (entry,) = repairs.healing(lake.state, [(TENANT, bad.id), (TENANT, bad.id)])
        lake.fold.put(entry)
        plan = grant(lake, max(lake.state.plans))
        assert [meta.id for meta in plan.inputs] == [bad.id, old.id]
        assert plan.repair is not None
        assert plan.repair.suspects == (bad.id,)

    def test_one_session_at_a_time_and_none_for_what_is_lost(self) -> None:
        lake = Lake()
        bad = block(lake)
        (entry,) = repairs.healing(lake.state, [(TENANT, bad.id)])
        lake.fold.put(entry)
        assert repairs.healing(lake.state, [(TENANT, bad.id)]) == []
        plan = grant(lake, max(lake.state.plans))
        lost = (LostBlock(bad.id, "in main: is missing"),)
        commit(lake, plan, RangeResult(lost=lost, checked=1))
        finish(lake, plan)
        assert repairs.healing(lake.state, [(TENANT, bad.id)]) == []

    def test_a_block_that_was_replaced_meanwhile_is_left_out(self) -> None:
        lake = Lake()
        one, two = block(lake), block(lake, 11)
        (entry,) = repairs.healing(lake.state, [(TENANT, one.id)])
        lake.fold.put(entry)
        lake.merge([one, two])
        assert grant(lake, max(lake.state.plans)).inputs == ()
