"""Plans while leaders change: one that was deposed confirms no delete, and grants nothing; what it
was asked for, the next one does.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

import pytest

from maar.model.errors import MaarError
from maar.model.ids import PlanId, WorkerId
from maar.model.plan import ROLLBACK, PlanState
from maar.model.time import DAY_NS, SECOND_NS
from maar.ports.clock import Clock
from maar.ports.plans.board import PollRequest
from maar.ports.stores.object_store import ObjectStore
from maar.services.clean.rules import CLEAN
from maar.services.compact.rules import COMPACT
from support.metastore.executing import (
    Executor,
    add,
    objects_written,
    plan_of,
    rollbacks_of,
    schedule,
)
from support.metastore.replicas_world import ReplicatedWorld, WorldReplica

pytestmark = pytest.mark.component

LEASE_NS = 15 * SECOND_NS
HOLD_NS = 60 * SECOND_NS


class Place(NamedTuple):
    store: ObjectStore
    clock: Clock


def executor(world: ReplicatedWorld, member: WorldReplica, tmp_path: Path, name: str) -> Executor:
    return Executor(member.service, Place(world.store, member.clock), tmp_path, name)


def wait(world: ReplicatedWorld, ns: int) -> None:
    for member in world.members:
        member.clock.advance(ns)


def test_a_deposed_leader_confirms_no_delete_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """The rollback is under way when its leader falls; nothing is deleted by its word any more."""
    world = ReplicatedWorld()

    async def test() -> None:
        async with world.running():
            old = await world.leader()
            await add(old.service, world.store, 1, 2, 3)
            plan = await schedule(old.service, "compact", shard=1)
            first = executor(world, old, tmp_path, "first")
            await first.begin(plan)
            wait(world, LEASE_NS + 1)
            second = executor(world, old, tmp_path, "second")
            assert (await second.ask(plan)).answer == "granted"
            left = objects_written(world.store, plan, first.plan.token)
            assert left
            new = await world.fail_over(old)
            with pytest.raises(MaarError):
                await second.undo()
            assert objects_written(world.store, plan, first.plan.token) == left
            again = executor(world, new, tmp_path, "second")
            again.held = second.held
            await again.undo()  # under the lease that the old leader gave
            assert not objects_written(world.store, plan, first.plan.token)
            assert await again.start()
            await again.write()
            assert (await again.complete()).accepted
            assert (await plan_of(new.service, plan)).state is PlanState.COMPLETED

    asyncio.run(test())


def test_a_plan_is_not_granted_twice_across_leaders_whose_clocks_are_a_year_apart(
    tmp_path: Path,
) -> None:
    """Lease time goes on from the log; the wall clock of whoever leads has no say in it."""
    world = ReplicatedWorld()

    async def test() -> None:
        async with world.running():
            old = await world.leader()
            for member in world.members:
                if member is not old:
                    member.clock.wall += 365 * DAY_NS
            await add(old.service, world.store, 1, 2, 3)
            plan = await schedule(old.service, "compact", shard=1)
            first = executor(world, old, tmp_path, "first")
            await first.begin(plan)
            new = await world.fail_over(old)
            second = executor(world, new, tmp_path, "second")
            assert (await second.ask(plan)).answer == "lease_live"
            again = executor(world, new, tmp_path, "first")
            again.held, again.made = first.held, first.made
            assert (await again.complete()).accepted

    asyncio.run(test())


def test_a_plan_that_was_asked_for_is_handed_out_by_the_next_leader(tmp_path: Path) -> None:
    """It rests after a failure, and whoever asked for it has his answer."""
    world = ReplicatedWorld()

    async def test() -> None:
        async with world.running():
            old = await world.leader()
            await add(old.service, world.store, 1, 2, 3)
            plan = await schedule(old.service, "compact", shard=1)
            first = executor(world, old, tmp_path, "first")
            await first.begin(plan)
            assert (await first.fail()).accepted
            poll = PollRequest(WorkerId("second"), 1, kinds=(COMPACT,))
            assert (await old.service.poll(poll)).granted == ()
            told = await old.service.run_now(plan)
            assert (told.answer, told.workers) == ("asked", 1)
            new = await world.fail_over(old)
            (given,) = (await new.service.poll(poll)).granted
            assert given.id == plan

    asyncio.run(test())


def test_what_an_abandoned_plan_holds_changes_hands_in_one_entry_when_a_worker_asks(
    tmp_path: Path,
) -> None:
    world = ReplicatedWorld()

    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            await add(leader.service, world.store, 1, 2, 3)
            plan = await schedule(leader.service, "logcompact", shard=1)
            first = executor(world, leader, tmp_path, "first")
            await first.begin(plan)
            wait(world, LEASE_NS + HOLD_NS + 1)
            cleaner = PollRequest(WorkerId("cleaner"), 1, kinds=(ROLLBACK, CLEAN))
            assert (await leader.service.poll(cleaner)).granted == (), "it needs no blocks"
            assert (await plan_of(leader.service, plan)).state is PlanState.INFLIGHT
            poll = PollRequest(WorkerId("second"), 1, kinds=(COMPACT,))
            (given,) = (await leader.service.poll(poll)).granted
            found = await plan_of(leader.service, plan)
            assert found.state is PlanState.ROLLED_BACK
            assert tuple(meta.id for meta in given.inputs) == found.inputs
            (rollback,) = await rollbacks_of(leader.service, plan)
            assert (rollback.id, given.id) == (
                PlanId(given.id.index, 0),
                PlanId(rollback.id.index, 1),
            )
            assert not (await first.complete()).accepted

    asyncio.run(test())
