"""Plans while leaders change: one that was deposed confirms no delete, and grants nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

import pytest

from maar.model.errors import MaarError
from maar.model.plan import PlanState
from maar.model.time import DAY_NS, SECOND_NS
from maar.ports.clock import Clock
from maar.ports.object_store import ObjectStore
from support.metastore.executing import Executor, add, plan_of, schedule, written
from support.metastore.replicas_world import Member, ReplicatedWorld

pytestmark = pytest.mark.component

LEASE_NS = 15 * SECOND_NS


class Place(NamedTuple):
    store: ObjectStore
    clock: Clock


def executor(world: ReplicatedWorld, member: Member, tmp_path: Path, name: str) -> Executor:
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
            left = written(world.store, plan, first.plan.token)
            assert left
            new = await world.fail_over(old)
            with pytest.raises(MaarError):
                await second.undo()
            assert written(world.store, plan, first.plan.token) == left
            again = executor(world, new, tmp_path, "second")
            again.held = second.held
            await again.undo()  # under the lease that the old leader gave
            assert not written(world.store, plan, first.plan.token)
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
