"""Repairs that somebody asks for, and what is told of those that run."""

from __future__ import annotations

import pytest

from maar.metastore.decide import jobs, repairs
from maar.metastore.decide.stores import LEAVES, LOST, UNWANTED, WIPED
from maar.metastore.records.effects import CopyAdded, CopyEnded, Refused, RepairEnded
from maar.metastore.records.entries import (
    CopiesEnded,
    PlanCompleted,
    PlanFailed,
    RepairAsked,
    ScheduleSet,
)
from maar.metastore.views import repairs as views
from maar.metastore.views import schedule
from maar.model.errors import InvalidInput
from maar.model.ids import TenantId
from maar.model.plan import Account, JobId, PlanResult
from maar.model.repair import LostBlock, RangeResult, RepairType
from maar.model.schedule import ScheduleRule
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.plans.board import CommitPart
from maar.services.repair.ranges import VNODES, vnode, vnodes
from maar.services.repair.rules import REPAIR
from support.lake.fold_and_store import Lake
from support.metastore.copies import EU, US, Repairing, copy_of, want
from support.metastore.fold import TENANT
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
    parts,
)


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

    def test_a_range_in_pieces_that_was_repaired_lately_is_done_all_the_same(self) -> None:
        """Neighbours less than an hour apart become one with the earlier time: what this run has
        done must not look like what it has still to do.
        """
        lake = Lake()
        block(lake)
        for _ in range(2):
            lake.fold.now += SECOND_NS
            ask(lake)
            plan = begin(lake, due(lake)[0])
            for whole in vnodes():
                half = whole.tokens // 2
                for piece in (whole.part(0, half), whole.part(half, whole.tokens)):
                    assert views.last_asked(lake.state, VNODE_JOB).outcome == "running"
                    commit(lake, plan, RangeResult(tokens=piece))
            assert views.last_asked(lake.state, VNODE_JOB).outcome == "completed"
            finish(lake, plan)
        known = lake.state.repairs.history.values()
        assert {len(each.pieces) for each in known} == {1}, "what one run did becomes one"

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

    def test_what_was_never_repaired_as_a_whole_has_no_last_success(self) -> None:
        lake = Lake()
        block(lake)
        ask(lake)
        plan = begin(lake, due(lake)[0])
        commit(lake, plan, RangeResult(tokens=vnode(3)))
        ask(lake, wanted=False)
        finish(lake, plan)
        at = jobs.moment(lake.state, LeaseTime(lake.fold.now))
        told = next(iter(views.told_jobs(lake.state, at)))
        assert (told.max_repaired_at, told.age_s, told.repaired) == (None, None, 1)
        assert told.why.startswith("it was never repaired as a whole; ")
        known = jobs.look(lake.state, VNODE_JOB, jobs.JobRules(), at.now)
        assert known is not None
        assert known.is_due(at.now), "what is left is due all the same"
        assert schedule.view(lake.state, known, at).last_success is None
        assert not known.is_done

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

    def test_a_dry_run_counts_ranges_as_they_are_set_to_be(self) -> None:
        lake = Lake()
        meta = block(lake)
        assert views.to_read(lake.state, VNODE_JOB).ranges() == VNODES
        lake.fold.put(ScheduleSet(ScheduleRule(VNODE_JOB, size_target=-(-meta.size // 3))))
        assert views.to_read(lake.state, VNODE_JOB).ranges() == VNODES + 2


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
