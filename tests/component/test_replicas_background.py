"""What only a leader does in the background: it begins and ends with its term."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from maar.metastore.leader.deleting.cleaner import Cleaner
from maar.metastore.replica.follower import Follower
from maar.model.errors import (
    Corrupt,
    StoreFull,
)
from maar.ports.metastore.log import Head, Term
from support.clock.virtual_time import run_virtually
from support.metastore.fold import segment
from support.metastore.replica_steps import term_of, world
from support.metastore.replicas_world import BRISK, ReplicatedWorld, WorldReplica

__all__ = ["world"]

pytestmark = pytest.mark.component


def test_background_tasks_begin_with_a_term_and_have_ended_before_the_replica_follows_again(
    world: ReplicatedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[WorldReplica] = []
    begun = 0

    async def forever(cleaner: Cleaner) -> None:
        nonlocal begun
        (leader,) = (m for m in world.members if cleaner_of(m) is cleaner)
        running.append(leader)
        begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)  # some take a while
            running.remove(leader)

    looked = Follower.look

    async def look(follower: Follower) -> None:
        assert not any(member.service.follower is follower for member in running)
        await looked(follower)

    monkeypatch.setattr(Cleaner, "forever", forever)
    monkeypatch.setattr(Follower, "look", look)

    async def test() -> None:
        async with world.running():
            for number in range(1, 5):
                leader = await world.leader()
                await world.until(lambda number=number: begun == number)  # type: ignore[misc]
                world.shared.depose()
                await world.until(lambda leader=leader: leader not in running)  # type: ignore[misc]
        assert running == []

    run_virtually(test())


def cleaner_of(member: WorldReplica) -> Cleaner | None:
    return member.service.leader_term.cleaner if member.service.leader_term else None


def test_whoever_does_not_lead_any_more_shows_nothing_that_only_a_leader_knows(
    world: ReplicatedWorld,
) -> None:
    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            await world.until(lambda: (leader.metric("letters_drain_age_seconds") or 0) >= 0)
            await world.fail_over(leader)
            await world.until(lambda: leader.metric("leads") == 0)
            assert leader.metric("letters_drain_age_seconds") == -1
            placed = leader.registry.get_sample_value("maar_placement_rules_age_seconds")
            assert placed == 0

    run_virtually(test())


def test_a_log_that_stays_full_does_not_make_one_snapshot_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two let go all that can go. When they made no room, more of them only cost."""
    timing = BRISK._replace(snapshot_look_s=0.05, snapshot_backoff_s=5.0)
    world = ReplicatedWorld(timing=timing)
    taken = 0
    take = world.snapshot

    async def counted() -> int:
        nonlocal taken
        taken += 1
        return await take()

    monkeypatch.setattr(world, "snapshot", counted)

    async def refused(leader: WorldReplica) -> None:
        """Once more there was no room, and the snapshots' own loop has come round after it."""
        now = await leader.service.now()
        with pytest.raises(StoreFull):
            await leader.service.add_blocks((segment(1, at=now.lease_time),))
        await asyncio.sleep(2 * timing.snapshot_look_s)

    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            append = leader.log.append

            async def full(
                bodies: Sequence[bytes], *, term: Term, head: Head, reserve: bool = False
            ) -> Head:
                if not reserve:
                    raise StoreFull("no room")
                return await append(bodies, term=term, head=head, reserve=reserve)

            monkeypatch.setattr(leader.log, "append", full)
            for _ in range(10):
                await refused(leader)
            assert taken == 2
            await asyncio.sleep(timing.snapshot_backoff_s)
            await world.until(lambda: taken > 2)

    run_virtually(test())


def test_a_snapshot_that_is_not_where_it_should_be_is_none(
    world: ReplicatedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what was read and found whole lets go of the log."""

    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            await leader.service.snapshot()
            leader_term = term_of(leader)
            first, newest = await leader.log.first(), leader_term.snapshots.newest

            async def elsewhere() -> int:
                return world.shared.head.index

            monkeypatch.setattr(world, "snapshot", elsewhere)
            with pytest.raises(Corrupt, match="not in the store"):
                await leader.service.snapshot()
            assert (await leader.log.first(), leader_term.snapshots.newest) == (first, newest)

    run_virtually(test())
