"""Repairs beside everything else: blocks that go, and stores that are down."""

from __future__ import annotations

from maar.metastore.decide.jobs import JobBook, moment
from maar.metastore.records.effects import Completed
from maar.metastore.records.entries import (
    AssumedSuccess,
    JobsAssumed,
    PlanFailed,
    PlansScheduled,
)
from maar.metastore.views import repairs as views
from maar.metastore.views.alarms import every_alarm
from maar.model.plan import JobId
from maar.model.policy import HOUR_NS
from maar.model.repair import LostBlock, RangeResult, RepairType
from maar.model.schedule import AlarmLevel
from maar.model.stores import CopyBad
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime
from maar.ports.plans.board import PartCommitted
from maar.services.repair import rules
from maar.services.repair.ranges import VNODES, token_of, vnode, vnode_number
from maar.services.repair.rules import REPAIR, REPAIRING, tasks
from support.lake.fold_and_store import Lake
from support.metastore.copies import EU, MAIN, US, copy_of, want
from support.metastore.fold import DAY_START_NS, TENANT
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
    job_of,
    job_status,
    look,
    move_to,
    now_of,
    parts,
)


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

    def test_what_was_never_repaired_is_on_time_then_late_and_not_completed(self) -> None:
        """A success that is only assumed says when it is due, and nothing else."""
        lake = Lake()
        block(lake)
        want(lake.fold, EU)
        for type_, first in (("incremental", "not all its blocks"), ("vnode", "it was never")):
            job = JobId(TENANT, REPAIR, RepairType(type_))
            lake.fold.now = 0
            lake.fold.put(JobsAssumed((AssumedSuccess(job, LeaseTime(-SECOND_NS)),)))
            told = job_status(lake, type_)
            assert (told.state, told.percent_repaired) == ("ON_TIME", 0.0)
            assert told.max_repaired_at is None
            assert told.why.startswith(first)
            assert "; it is due in " in told.why
            schedule = REPAIRING.default_schedule(lake.state.policy, job)
            lake.fold.now = schedule.interval_ns
            assert job_status(lake, type_).state == "ON_TIME"
            assert "due in" not in job_status(lake, type_).why
            lake.fold.now = schedule.warning_ns
            assert job_status(lake, type_).state == "LATE"
            lake.fold.now = schedule.error_ns
            assert job_status(lake, type_).state == "OVERDUE"

    def test_new_blocks_that_wait_for_the_next_run_are_not_completed(self) -> None:
        lake = Lake()
        meta = block(lake)
        want(lake.fold, EU)
        plan = begin(lake, due(lake)[0])
        made = copy_of(meta, EU, plan.id, plan.token)
        commit(lake, plan, RangeResult(copies=(made,), checked=1))
        finish(lake, plan)
        assert job_status(lake, "incremental").state == "COMPLETED"
        block(lake, 11)
        told = job_status(lake, "incremental")
        assert (told.state, told.percent_repaired) == ("ON_TIME", 50.0)
        assert told.why.startswith("not all its blocks are at all their stores yet; it is due in")

    def test_a_block_that_comes_after_a_quiet_day_is_no_alarm_until_it_has_waited_itself(
        self,
    ) -> None:
        lake, book = Lake(), JobBook()
        meta = block(lake)
        want(lake.fold, EU)
        for day in (1, 2):
            plan = begin(lake, due(lake)[0])
            made = copy_of(meta, EU, plan.id, plan.token)
            commit(lake, plan, RangeResult(copies=(made,), checked=1))
            finish(lake, plan)
            look(lake, book)
            lake.fold.now += DAY_NS
            look(lake, book)
            meta = block(lake, 10 * day + 1)
            lake.fold.now += 61 * SECOND_NS
            look(lake, book)
            assert INCREMENTAL_JOB not in lake.state.alarms
            assert job_status(lake, "incremental").state == "ON_TIME"
        known = book.known[INCREMENTAL_JOB]
        assert known.is_due(LeaseTime(lake.fold.now)), "it is copied at once all the same"
        came = lake.fold.now
        another = JobBook()  # of a new leader
        for at, level in ((HOUR_NS - 61 * SECOND_NS, None), (HOUR_NS, 1), (6 * HOUR_NS, 2)):
            lake.fold.now = came + at
            look(lake, another)
            alarm = lake.state.alarms.get(INCREMENTAL_JOB)
            assert (alarm.level if alarm else None) == level

    def test_nor_is_it_when_the_log_could_not_be_told_at_once(self) -> None:
        lake, book = Lake(), JobBook()
        meta = block(lake)
        want(lake.fold, EU)
        plan = begin(lake, due(lake)[0])
        made = copy_of(meta, EU, plan.id, plan.token)
        commit(lake, plan, RangeResult(copies=(made,), checked=1))
        finish(lake, plan)
        look(lake, book)
        lake.fold.now += DAY_NS
        look(lake, book)
        block(lake, 11)
        for _ in range(3):
            lake.fold.now += 61 * SECOND_NS
            book.turn(lake.state, now_of(lake))
            book.entries(lake.state, now_of(lake))  # the log takes nothing
        lake.fold.now += 61 * SECOND_NS
        look(lake, book)
        assert INCREMENTAL_JOB not in lake.state.alarms
        (told,) = [record for record in lake.state.jobs.values() if record.id == INCREMENTAL_JOB]
        assert told.assumed is not None
        assert told.assumed > DAY_NS, "a new leader knows it too"
        lake.fold.now += 61 * SECOND_NS
        book.turn(lake.state, now_of(lake))
        assert book.entries(lake.state, now_of(lake)) == [], "once is enough"

    def test_of_blocks_in_one_store_no_repair_is_due_and_the_status_says_so(self) -> None:
        lake = Lake()
        block(lake)
        lake.fold.now = 100 * DAY_NS
        told = job_status(lake, "vnode")
        assert (told.state, told.percent_repaired) == ("ON_TIME", 0.0)
        assert "it is not on the schedule" in told.why
        ask(lake)
        assert "schedule" not in job_status(lake, "vnode").why

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


class TestStoreThatIsDown:
    def test_only_its_own_ranges_wait_and_they_are_not_repaired(self) -> None:
        lake = Lake()
        want(lake.fold)
        block(lake)
        other = move_to(lake, block(lake, 11), US)
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
        assert found.why_not == "no range has all its stores: eu is unreachable"
        assert found.last_success is not None
        assert lake.fold.now - found.last_success >= 20 * DAY_NS
        assert job_of(lake, VNODE_JOB, US).why_not == ""

    def test_a_new_block_is_copied_to_the_others_without_waiting_to_be_looked_at(self) -> None:
        lake, book = Lake(), JobBook()
        old = block(lake)
        want(lake.fold, EU, US)
        plan = begin(lake, due(lake, EU)[0])
        made = copy_of(old, US, plan.id, plan.token)
        commit(lake, plan, RangeResult(copies=(made,), checked=1, away=(EU,)))
        finish(lake, plan)
        lake.fold.now += DAY_NS
        at = now_of(lake, EU)
        book.turn(lake.state, at)
        assert "waits for store eu" in book.known[INCREMENTAL_JOB].found.why_not
        new = block(lake, 11)
        assert new.plan is not None
        book.follow(lake.state, [Completed(new.plan, plan.token, added=(new.id,))])
        book.turn(lake.state, at)
        assert book.known[INCREMENTAL_JOB].found.why_not == ""

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
            assert "store eu is unreachable" in REPAIRING.why_stop(lake.state, plan, {EU})
            assert REPAIRING.why_stop(lake.state, plan, {US}) == ""
            assert REPAIRING.why_stop(lake.state, plan, ()) == ""

    def test_one_that_knows_of_it_goes_on(self) -> None:
        lake = Lake()
        block(lake)
        want(lake.fold, EU, US)
        begin(lake, due(lake, EU)[0])
        (plan,) = lake.state.plans.of_kind(REPAIR)
        assert REPAIRING.why_stop(lake.state, plan, {EU}) == ""
        assert "store us is unreachable" in REPAIRING.why_stop(lake.state, plan, {EU, US})

    def test_the_leader_looks_again_when_a_store_goes_or_comes(self) -> None:
        lake, book = Lake(), JobBook()
        block(lake)
        want(lake.fold, EU)
        at = moment(lake.state, LeaseTime(lake.fold.now))
        book.turn(lake.state, at)
        assert book.known[VNODE_JOB].found.why_not == ""
        book.turn(lake.state, at._replace(down=frozenset({EU})))
        assert "eu is unreachable" in book.known[VNODE_JOB].found.why_not
        assert "waits for store eu" in book.known[INCREMENTAL_JOB].found.why_not
        plan = begin(lake, due(lake)[0])
        told = book.stop(lake.state, lake.state.plans[plan.id], at._replace(down=frozenset({EU})))
        assert "store eu is unreachable" in told
        book.turn(lake.state, at)
        assert book.known[VNODE_JOB].found.why_not == ""
        assert book.stop(lake.state, lake.state.plans[plan.id], at) == ""
