"""A replica that fell behind the log catches up from a snapshot, and says when it is ready."""

from __future__ import annotations

import pytest

from maar.metastore.replica import snapshot
from maar.metastore.replica.log_fold import LogFold
from maar.model.errors import (
    Corrupt,
    NotLeading,
    Unavailable,
)
from maar.model.ids import BlockId
from maar.model.time import SECOND_NS
from support.clock.virtual_time import run_virtually
from support.metastore.replica_steps import add, follower_of, same_states, view, world
from support.metastore.replicas_world import ReplicatedWorld, WorldReplica

__all__ = ["world"]

pytestmark = pytest.mark.component


async def truncated_twice(leader: WorldReplica) -> set[BlockId]:
    seen = {meta.id for meta in await add(leader.service, 1, 2, 3)}
    await leader.service.snapshot()
    seen |= {meta.id for meta in await add(leader.service, 4)}
    await leader.service.snapshot()
    return seen | {meta.id for meta in await add(leader.service, 5)}


def test_a_replica_that_lags_past_truncation_reads_a_snapshot_by_itself(
    world: ReplicatedWorld,
) -> None:
    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            behind = (await world.followers())[0]
            behind.log.cut = True
            seen = await truncated_twice(leader)
            assert behind.service.standing().index < world.shared.base.index
            behind.log.cut = False
            await world.even()
            assert await view(behind.service) == seen
            assert behind.metric("loads_total") == 2
            assert (await behind.service.replica()).snapshot_index >= world.shared.base.index
            same_states(world)

    run_virtually(test())


def test_a_replica_joins_from_nothing(world: ReplicatedWorld) -> None:
    late = world.members.pop()

    async def test() -> None:
        async with world.running():
            seen = await truncated_twice(await world.leader())
            world.members.append(late)
            await late.service.start()
            assert await view(late.service) == seen
            assert late.service.standing().snapshot_index >= world.shared.base.index

    run_virtually(test())


def test_a_log_truncated_while_a_snapshot_is_looked_for_is_no_damage(
    world: ReplicatedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored = snapshot.restore

    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            seen = await truncated_twice(leader)
            tries = 0

            async def late(*args: object, **how: object) -> LogFold:
                nonlocal tries
                tries += 1
                if tries == 1:
                    await add(leader.service, 6)
                    await leader.service.snapshot()
                    raise Corrupt("no good snapshot")
                return await restored(*args, **how)  # type: ignore[arg-type]

            monkeypatch.setattr(snapshot, "restore", late)
            follower = (await world.followers())[0]
            await follower.service.rebuild()
            assert follower.service.ready() == ""
            assert tries > 1
            assert await view(follower.service) > seen

    run_virtually(test())


def test_ready_never_lies(world: ReplicatedWorld) -> None:
    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            one, _ = await world.followers()
            one.log.cut = True
            await world.until(lambda: follower_of(one).trouble != "")
            one.clock.advance(11 * SECOND_NS)
            assert "behind the log" in one.service.ready()
            assert "does not answer" in one.service.ready()
            assert 11 <= (await one.service.replica()).behind_s == one.metric("behind_seconds")
            with pytest.raises(Unavailable):
                await view(one.service)
            one.log.cut = False
            await world.until(lambda: one.service.ready() == "")
            for member in world.members:
                member.log.campaigns = False
            world.shared.depose()
            await world.until(lambda: all(m.service.ready() for m in world.members))
            assert {m.service.ready() for m in world.members} == {
                "no replica of the metastore leads"
            }
            with pytest.raises(NotLeading, match="no replica"):
                await leader.service.now()
            assert await view(leader.service) == set()  # what can be answered, is
            for member in world.members:
                member.log.campaigns = True
            await world.until(lambda: all(m.service.ready() == "" for m in world.members))

    run_virtually(test())
