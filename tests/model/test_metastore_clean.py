"""Whatever attempts, tasks, readers and the store do, cleaning never deletes what somebody needs.

After every step each object of a live block is there, and of a retired one as long as its delay
lasts or a reader may hold it; a sweep deletes nothing that the index lists. When everything has
come to rest, nothing is left that the index does not list.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from maar.metastore.fold.deleting import retirement
from maar.metastore.leader.deleting.orphans import Orphans
from maar.metastore.leader.stores import claim
from maar.metastore.records.effects import Completed, Leased
from maar.metastore.records.entries import (
    AttemptFenced,
    BlocksExpired,
    Grant,
    PinsTaken,
    PlanFailed,
    PlansLeased,
    RetentionHeld,
    RetentionUndone,
)
from maar.metastore.records.packs import unpack
from maar.metastore.state.retired import Cause
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import Corrupt, MaarError, Unavailable
from maar.model.ids import FencingToken, PlanId, WorkerId
from maar.model.policy import MINUTE_NS
from maar.model.time import LeaseTime
from support.lake.fold_and_store import Lake, announce, objects_of
from support.metastore.fold import SMALL
from support.stores.memory_store import MemoryStore

TASK_NS = 30 * MINUTE_NS  # no task writes later than this after its beginning
POLICY = msgspec.structs.replace(
    SMALL,
    leftovers_ns=45 * MINUTE_NS,
    leftovers_max=50,
    pin_ns=50 * MINUTE_NS,
    retention_ns=1,  # everything is too old, and time explains it
    expired_delay_ns=40 * MINUTE_NS,
)


class Flaky(MemoryStore):
    """Calls for some keys fail, always the same, before anything has happened."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: int | None = None  # a third of all keys
        self.error: MaarError = Unavailable("the store did not answer")

    def _may_fail(self, key: str) -> None:
        if zlib.crc32(key.encode()) % 3 == self.failing:
            raise self.error

    def read(self, key: str) -> bytes:
        self._may_fail(key)
        return super().read(key)

    def size(self, key: str) -> int:
        self._may_fail(key)
        return len(super().read(key))

    def delete(self, key: str) -> None:
        self._may_fail(key)
        super().delete(key)


@dataclass
class Task:
    """One task attempt; it may live on when its lease is long over."""

    plan: PlanId
    token: FencingToken
    made: BlockMeta
    until: int
    unwritten: list[str] = field(default_factory=list)


class Cleaning(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = Flaky()
        self.lake = Lake(POLICY, self.store)
        claim.mark(self.store, self.lake.state.incarnation)
        self.orphans = Orphans(self.lake, self.store, self.lake.clock, self.lake.metrics)
        self.loop = asyncio.new_event_loop()
        self.tasks: list[Task] = []
        self.held: dict[str, tuple[int, set[str]]] = {}  # reader: until when, which objects
        self.number = 0

    @initialize(numbers=st.integers(1, 4))
    def begin(self, numbers: int) -> None:
        for _ in range(numbers):
            self.arrive_and_plan()

    # what happens

    @rule()
    def arrive_and_plan(self) -> None:
        """Segments come, and somebody sets to work on them."""
        metas = self.lake.add(*range(self.number, self.number + 2))
        self.number += 2
        self.lease_out(self.lake.schedule(metas))

    @rule(at_once=st.booleans())
    def plan_more(self, at_once: bool) -> None:
        """What is free is merged further, or anew; perhaps without any trouble."""
        state = self.lake.state
        metas = [state.blocks.get(b) for b in state.blocks.where if b not in state.owners]
        free = [meta for meta in metas if meta.level < 3]
        if free:
            level = max(meta.level for meta in free)
            self.lease_out(self.lake.schedule([meta for meta in free if meta.level == level][:3]))
            if at_once and self.is_current(self.tasks[-1]):
                self.put(self.tasks[-1], len(self.tasks[-1].unwritten))
                self.report(self.tasks[-1])

    @rule(data=st.data())
    def lease_again(self, data: st.DataObject) -> None:
        if plans := list(self.lake.state.plans.values()):
            self.lease_out(data.draw(st.sampled_from(plans)).id)

    def lease_out(self, plan_id: PlanId) -> None:
        """Refused while somebody's lease is live."""
        plan = self.lake.state.plans[plan_id]
        replaces = plan.lease.token if plan.lease else None
        until = LeaseTime(self.lake.fold.now + POLICY.lease_ns)
        grant = Grant(plan.id, WorkerId("w"), until, replaces)
        for effect in self.lake.fold.put(PlansLeased((grant,))):
            if isinstance(effect, Leased):
                self.start_task(plan.id, effect.token)

    def start_task(self, plan: PlanId, token: FencingToken) -> None:
        attempt = f"0-{len(self.tasks)}-ab"
        made = self.lake.make_output(plan, token, attempt)
        announce(self.store, made, plan, token, attempt)
        until = self.lake.fold.now + TASK_NS
        self.tasks.append(Task(plan, token, made, until, objects_of(made)))

    @rule(data=st.data())
    def start_a_twin(self, data: st.DataObject) -> None:
        """The engine lost sight of a task, and began another under the same token."""
        leased = [plan for plan in self.lake.state.plans.values() if plan.lease]
        if leased:
            plan = data.draw(st.sampled_from(leased))
            assert plan.lease is not None
            self.start_task(plan.id, plan.lease.token)
            self.put(self.tasks[-1], 1)

    @rule(data=st.data(), whole=st.booleans())
    def write(self, data: st.DataObject, whole: bool) -> None:
        """Any task that can still live, whatever became of its lease."""
        alive = [t for t in self.tasks if t.unwritten and self.lake.fold.now <= t.until]
        if alive:
            task = data.draw(st.sampled_from(alive))
            self.put(task, len(task.unwritten) if whole else 1)

    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        """Also by a zombie; the fold knows better."""
        if written := [task for task in self.tasks if not task.unwritten]:
            self.report(data.draw(st.sampled_from(written)))

    @rule(data=st.data())
    def write_and_complete(self, data: st.DataObject) -> None:
        """As it goes when nothing is wrong."""
        if current := [t for t in self.tasks if self.is_current(t) and t.unwritten]:
            task = data.draw(st.sampled_from(current))
            self.put(task, len(task.unwritten))
            self.report(task)

    def put(self, task: Task, count: int) -> None:
        for key in task.unwritten[:count]:
            self.store.create(key, b"x" * task.made.files[0].size)
        del task.unwritten[:count]

    def report(self, task: Task) -> None:
        current = self.is_current(task)
        (effect,) = self.lake.complete(task.plan, task.token, task.made)
        assert not current or isinstance(effect, Completed)

    def is_current(self, task: Task) -> bool:
        plan = self.lake.state.plans.get(task.plan)
        return plan is not None and plan.lease is not None and plan.lease.token == task.token

    @rule(data=st.data(), fenced=st.booleans(), swept=st.booleans())
    def end(self, data: st.DataObject, fenced: bool, swept: bool) -> None:
        """Perhaps a first sweep comes while its tasks go on."""
        leased = [plan for plan in self.lake.state.plans.values() if plan.lease]
        if leased:
            plan = data.draw(st.sampled_from(leased))
            assert plan.lease is not None
            token, now = plan.lease.token, self.lake.now()
            kind = AttemptFenced(plan.id, token, "?") if fenced else None
            self.lake.fold.put(kind or PlanFailed(plan.id, token, "?", now))
            if swept:
                self.pass_time_and_sweep(2)

    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        blocks = sorted(self.lake.state.blocks.where)
        if blocks:
            self.lake.fold.put(BlocksExpired(1 << 62, (data.draw(st.sampled_from(blocks)),)))

    @rule(data=st.data(), minutes=st.sampled_from([0, 16, 38, 39, 40, 41]))
    def bring_back(self, data: st.DataObject, minutes: int) -> None:
        """What expired returns, with its objects, or is refused; other blocks always are."""
        self.lake.pass_time(minutes * MINUTE_NS)
        state = self.lake.state
        if state.retired:
            block = data.draw(st.sampled_from(sorted(state.retired)))
            retired, live = state.retired[block], set(state.blocks.where)
            lately = self.lake.fold.now - retired.at <= 39 * MINUTE_NS
            self.lake.fold.put(RetentionUndone((block,)))
            assert set(state.blocks.where) >= live
            came = block in state.blocks
            assert came or not (retired.cause is Cause.EXPIRED and lately)
            if came:
                assert retired.cause is Cause.EXPIRED
                assert block in state.queue.places or state.blocks.get(block).level > 2

    @rule(held=st.booleans())
    def hold_or_release(self, held: bool) -> None:
        self.lake.fold.put(RetentionHeld(held, "a person", confirmed=not held))

    @rule(data=st.data(), reader=st.sampled_from("ab"), going=st.booleans())
    def pin(self, data: st.DataObject, reader: str, going: bool) -> None:
        """A reader begins, and perhaps what it reads begins to go."""
        until = self.lake.fold.now + POLICY.pin_ns
        self.lake.fold.put(PinsTaken((reader,), LeaseTime(until)))
        live = map(self.lake.state.blocks.get, self.lake.state.blocks.where)
        self.held[reader] = (until, {key for meta in live for key in objects_of(meta)})
        if going:
            self.expire(data)
            self.pass_time_and_remove(16)

    @rule(minutes=st.sampled_from([0, 1, 2, 16, 46]))
    def pass_time_and_sweep(self, minutes: int) -> None:
        self.lake.pass_time(minutes * MINUTE_NS)
        needed = self.lake.listed_keys() & self.lake.objects()
        self.clean(self.lake.cleaner.sweep())
        assert needed <= self.lake.objects()

    @rule(minutes=st.sampled_from([0, 1, 16]))
    def pass_time_and_remove(self, minutes: int) -> None:
        self.lake.pass_time(minutes * MINUTE_NS)
        self.clean(self.lake.cleaner.remove())

    @rule(minutes=st.sampled_from([0, 46]))
    def sweep_orphans(self, minutes: int) -> None:
        """Every attempt is known to this log, until its last sweep: it has no orphans."""
        self.lake.pass_time(minutes * MINUTE_NS)
        before = self.lake.objects()
        with contextlib.suppress(MaarError):
            self.loop.run_until_complete(self.orphans.sweep())
        assert self.lake.objects() == before

    @rule(failing=st.sampled_from([None, 0, 1, 2]), lasting=st.booleans())
    def spoil_or_heal_the_store(self, failing: int | None, lasting: bool) -> None:
        self.store.failing = failing
        self.store.error = Corrupt("it is odd") if lasting else Unavailable("no answer")

    def clean(self, part: Coroutine[Any, Any, bool]) -> bool:
        try:
            return self.loop.run_until_complete(part)
        except MaarError:
            return False

    # what must hold

    @invariant()
    def what_the_index_lists_is_there(self) -> None:
        state, now = self.lake.state, self.lake.fold.now
        live = map(state.blocks.get, state.blocks.where)
        delayed = (
            unpack(retired.packed)
            for retired in state.retired.values()
            if now - retired.at <= retirement.delay_ns(state, retired)
            or (
                state.hold.why
                and retired.at + POLICY.expired_delay_ns >= state.hold.at
                and retired.cause is Cause.EXPIRED
            )
        )
        needed = {key for meta in (*live, *delayed) for key in objects_of(meta)}
        assert needed <= self.lake.objects()

    @invariant()
    def what_a_reader_holds_is_there(self) -> None:
        for until, objects in self.held.values():
            assert self.lake.fold.now > until or objects <= self.lake.objects()

    @precondition(lambda self: self.lake.state.leftovers)
    @invariant()
    def leftovers_are_bounded(self) -> None:
        assert len(self.lake.state.leftovers) <= POLICY.leftovers_max

    def teardown(self) -> None:
        """Faults are healed, leases end, time passes: nothing is left that nobody speaks for."""
        try:
            self.come_to_rest()
        finally:
            self.lake.cleaner.close()
            self.orphans.close()
            self.loop.close()

    def come_to_rest(self) -> None:
        self.store.failing = None
        self.lake.fold.put(RetentionHeld(False, confirmed=True))
        for plan in list(self.lake.state.plans.values()):
            if plan.lease:
                self.lake.fold.put(AttemptFenced(plan.id, plan.lease.token, "the end"))
        for _ in range(3):
            self.lake.pass_time(POLICY.leftovers_ns + POLICY.retire_delay_ns + POLICY.pin_ns)
            while self.clean(self.lake.cleaner.sweep()):
                pass
            while self.clean(self.lake.cleaner.remove()):
                pass
        assert self.lake.state.leftovers == {}
        assert self.lake.state.retired == {}
        assert self.lake.cleaner.blocked == ()
        assert self.lake.objects() - self.lake.objects(keys.MARKERS) == self.lake.listed_keys()


Cleaning.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestCleaning = Cleaning.TestCase
