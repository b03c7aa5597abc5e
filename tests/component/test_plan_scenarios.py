"""The scenarios of the design, by their letters: many execute and clean the same plans at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from maar.metastore.service import MetastoreService
from maar.model.ids import PlanId
from maar.model.plan import PlanState
from maar.model.policy import KindTerms
from maar.model.time import SECOND_NS, utc_day
from support.metastore.executing import (
    Executor,
    add,
    objects_written,
    plan_of,
    rollbacks_of,
    schedule,
)
from support.metastore.fold import SMALL
from support.metastore.world import PATIENT, World
from support.spark.plans import TIME_NS

pytestmark = pytest.mark.component

LEASE_NS = 15 * SECOND_NS
DELAY_NS = 600 * SECOND_NS

IMMUTABLE = ["compact", "logcompact", "cluster"]
REMOVABLE = ["logcompact", "cluster"]
ONE_LEVEL = SMALL.levels[:1]  # what was merged once is finished


class Case:
    """A plan of a kind on the timeline, over three real profiles, and whoever comes."""

    def __init__(self, world: World, service: MetastoreService, tmp_path: Path) -> None:
        self.world = world
        self.service = service
        self.plan = PlanId(0, 0)
        self.x = Executor(service, world, tmp_path, "x")
        self.y = Executor(service, world, tmp_path, "y")
        self.cleaner = Executor(service, world, tmp_path, "cleaner")

    def wait(self, ns: int) -> None:
        self.world.clock.advance(ns)

    async def add_merged(self, *numbers: int) -> None:
        """A block that compaction does not want any more."""
        await add(self.service, self.world.store, *numbers)
        plan = await schedule(self.service, "compact", shard=1)
        assert await self.x.execute(plan) == "completed"
        self.x.made = None

    async def state(self) -> PlanState:
        return (await plan_of(self.service, self.plan)).state

    async def check(self, *, completed: bool) -> None:
        """Every profile once; of the objects, those of the attempt that completed, if any did."""
        blocks = await self.service.blocks(limit=100)
        assert sum(block.profiles for block in blocks) == 3
        found = await plan_of(self.service, self.plan)
        assert (found.state is PlanState.COMPLETED) is completed
        won = found.attempts[-1].token if completed else None
        for attempt in found.attempts:
            there = objects_written(self.world.store, self.plan, attempt.token)
            assert bool(there) is (attempt.token == won), (attempt, there)


@asynccontextmanager
async def case(tmp_path: Path, kind: str, *, removable: bool) -> AsyncIterator[Case]:
    world = World(tmp_path / "log")
    terms = KindTerms(kind, LEASE_NS, 1800 * SECOND_NS, removable)
    policy = msgspec.structs.replace(
        PATIENT, kinds=(terms,), rollback_delay_ns=DELAY_NS, levels=ONE_LEVEL
    )
    async with world.running(policy) as service:
        made = Case(world, service, tmp_path)
        if kind == "cluster":
            await made.add_merged(1, 2)
            await made.add_merged(3)
            made.plan = await schedule(service, kind, tenant="acme", day=utc_day(TIME_NS))
        else:
            await add(service, world.store, 1, 2, 3)
            made.plan = await schedule(service, kind, shard=1)
        yield made


# ── plans that stay ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", IMMUTABLE)
def test_immutable_a_many_execute_a_new_plan(tmp_path: Path, kind: str) -> None:
    """At most one completes; the others are refused, or get the stored result."""

    async def test() -> None:
        async with case(tmp_path, kind, removable=False) as one:
            answers = await asyncio.gather(one.x.execute(one.plan), one.y.execute(one.plan))
            assert sorted(answers) in (
                ["completed", "lease_live"],
                ["already_completed", "completed"],
            )
            again = await one.y.ask(one.plan)
            assert again.answer == "already_completed"
            made = one.x.made or one.y.made
            assert again.result is not None
            assert made is not None
            assert again.result.outputs[0].files == made.outputs[0].files
            await one.check(completed=True)

    asyncio.run(test())


@pytest.mark.parametrize("kind", IMMUTABLE)
@pytest.mark.parametrize("x_dies", [False, True], ids=["x-goes-on", "x-dies"])
def test_immutable_b_somebody_comes_while_it_is_inflight(
    tmp_path: Path, kind: str, x_dies: bool
) -> None:
    """Y gets in only after X's lease, and then undoes what X wrote before it starts."""

    async def test() -> None:
        async with case(tmp_path, kind, removable=False) as one:
            assert await one.x.begin(one.plan) == "granted"
            assert await one.state() is PlanState.INFLIGHT
            refused = await one.y.ask(one.plan)
            assert (refused.answer, refused.holder) == ("lease_live", "x")
            assert 0 < refused.seconds_left <= 15
            if x_dies:
                one.wait(LEASE_NS + 1)
                assert await one.y.execute(one.plan) == "completed"
                (undone,) = one.y.undone
                assert undone.tokens == (one.x.plan.token,)
                assert not (await one.x.complete()).accepted, "a zombie completes nothing"
            else:
                assert (await one.x.complete()).accepted
                assert (await one.y.ask(one.plan)).answer == "already_completed"
            await one.check(completed=True)

    asyncio.run(test())


@pytest.mark.parametrize("kind", IMMUTABLE)
@pytest.mark.parametrize("x_dies", ["never", "after-its-rollback", "in-its-rollback"])
def test_immutable_c_two_come_to_a_plan_that_was_left_inflight(
    tmp_path: Path, kind: str, x_dies: str
) -> None:
    """Whoever completes has rolled the old attempt back, unless the other had already."""

    async def test() -> None:
        async with case(tmp_path, kind, removable=False) as one:
            first = Executor(one.service, one.world, tmp_path, "first")
            await first.begin(one.plan)
            one.wait(LEASE_NS + 1)
            assert (await one.x.ask(one.plan)).answer == "granted"
            (rollback,) = one.x.plan.rollbacks
            assert rollback.tokens == (first.plan.token,)
            assert (await one.y.ask(one.plan)).answer == "lease_live"
            if x_dies == "never":
                await one.x.undo()
                assert await one.x.start()
                await one.x.write()
                assert (await one.x.complete()).accepted
                assert await one.y.execute(one.plan) == "already_completed"
            else:
                if x_dies == "after-its-rollback":
                    await one.x.undo()
                one.wait(LEASE_NS + 1)
                assert await one.y.execute(one.plan) == "completed"
                again = [] if x_dies == "after-its-rollback" else [rollback.plan]
                assert [each.plan for each in one.y.undone] == again
            await one.check(completed=True)
            (only,) = await rollbacks_of(one.service, one.plan)
            assert only.state is PlanState.COMPLETED

    asyncio.run(test())


# ── plans that can be removed ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", REMOVABLE)
def test_removable_a_many_execute_a_new_plan(tmp_path: Path, kind: str) -> None:
    async def test() -> None:
        async with case(tmp_path, kind, removable=True) as one:
            answers = await asyncio.gather(one.x.execute(one.plan), one.y.execute(one.plan))
            assert sorted(answers) in (
                ["completed", "lease_live"],
                ["already_completed", "completed"],
            )
            await one.check(completed=True)

    asyncio.run(test())


@pytest.mark.parametrize("kind", REMOVABLE)
@pytest.mark.parametrize("x", ["completes", "fails", "dies"])
def test_removable_b_somebody_comes_while_it_is_inflight(tmp_path: Path, kind: str, x: str) -> None:
    """X may complete it; if X does not, nobody does."""

    async def test() -> None:
        async with case(tmp_path, kind, removable=True) as one:
            await one.x.begin(one.plan)
            assert (await one.y.ask(one.plan)).answer == "lease_live"
            if x == "completes":
                assert (await one.x.complete()).accepted
                assert await one.y.execute(one.plan) == "already_completed"
                await one.check(completed=True)
                return
            if x == "fails":
                assert (await one.x.fail()).accepted
            else:
                one.wait(LEASE_NS + 1)
            assert await one.state() is PlanState.INFLIGHT, "it is not requested again"
            assert await one.y.execute(one.plan) == "must_be_rolled_back"
            one.wait(DELAY_NS)
            await one.cleaner.clean()
            assert await one.y.execute(one.plan) == "rolled_back"
            await one.check(completed=False)

    asyncio.run(test())


@pytest.mark.parametrize("kind", REMOVABLE)
def test_removable_c_two_come_to_a_plan_that_was_left_inflight(tmp_path: Path, kind: str) -> None:
    """Both fail, at once or one after the other, before and after the delay."""

    async def test() -> None:
        async with case(tmp_path, kind, removable=True) as one:
            first = Executor(one.service, one.world, tmp_path, "first")
            await first.begin(one.plan)
            one.wait(LEASE_NS + 1)
            answers = await asyncio.gather(one.x.execute(one.plan), one.y.execute(one.plan))
            assert set(answers) == {"must_be_rolled_back"}
            one.wait(DELAY_NS)
            assert await one.x.execute(one.plan) == "must_be_rolled_back"
            await one.cleaner.clean()
            await one.check(completed=False)
            assert not (await first.complete()).accepted

    asyncio.run(test())


@pytest.mark.parametrize("kind", REMOVABLE)
@pytest.mark.parametrize("x", ["executes", "was granted it", "has died"])
@pytest.mark.parametrize("old", [False, True], ids=["young", "old"])
def test_removable_d_a_cleaning_comes_while_it_is_executed(
    tmp_path: Path, kind: str, x: str, old: bool
) -> None:
    """A live lease and a young plan are left alone; else it is rolled back."""

    async def test() -> None:
        async with case(tmp_path, kind, removable=True) as one:
            if old:
                one.wait(DELAY_NS)
            await one.x.ask(one.plan)
            if x != "was granted it":
                assert await one.x.start()
                await one.x.write()
            if x == "has died":
                one.wait(LEASE_NS + 1)
            cleaned = await one.cleaner.clean()
            skipped = {each.plan: each.why for each in cleaned.step.skipped}
            if x == "has died" and old:
                assert one.plan not in skipped
                assert [each.target for each in cleaned.executed] == [one.plan]
                assert not (await one.x.complete()).accepted
                await one.check(completed=False)
                return
            assert skipped[one.plan] == ("too_young" if x == "has died" else "live_lease")
            assert cleaned.executed == ()
            if x == "executes":
                assert (await one.x.complete()).accepted
                await one.check(completed=True)

    asyncio.run(test())


@pytest.mark.parametrize("kind", REMOVABLE)
@pytest.mark.parametrize("cleaner", ["finishes", "dies before", "dies after"])
@pytest.mark.parametrize("old", [False, True], ids=["young", "old"])
def test_removable_e_somebody_comes_after_a_cleaning(
    tmp_path: Path, kind: str, cleaner: str, old: bool
) -> None:
    """Y executes it if the cleaning left it alone, or died before it made the rollback plan."""

    async def test() -> None:
        async with case(tmp_path, kind, removable=True) as one:
            if old:
                one.wait(DELAY_NS)
            if cleaner == "finishes":
                await one.cleaner.clean()
            elif cleaner == "dies after" and old:
                await one.cleaner.roll_back(one.plan)
            answer = await one.y.execute(one.plan)
            if not old or cleaner == "dies before":
                assert answer == "completed"
                await one.check(completed=True)
                return
            pending = cleaner == "dies after"
            assert answer == ("must_be_rolled_back" if pending else "rolled_back")
            one.wait(LEASE_NS + 1)
            await one.cleaner.clean()  # the next one finishes what the first has begun
            assert await one.y.execute(one.plan) == "rolled_back"
            await one.check(completed=False)
            assert len(await rollbacks_of(one.service, one.plan)) == 1

    asyncio.run(test())
