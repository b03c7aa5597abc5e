"""What only a leader does in the background: it begins and ends with its term."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from maar.metastore.leader import snapshots
from maar.metastore.leader.cleaner import Cleaner
from maar.metastore.leader.leader import Leader
from maar.metastore.leader.snapshots import Snapshots
from maar.metastore.replica.follower import Follower
from maar.metastore.replica.log_fold import LogFold
from maar.model.errors import (
    Corrupt,
    StoreFull,
)
from maar.ports.log import Head, Term
from support.metastore.fold import segment
from support.metastore.replica_steps import follower_of, world
from support.metastore.replicas_world import Member, ReplicatedWorld

__all__ = ["world"]

pytestmark = pytest.mark.component


def test_duties_begin_with_an_office_and_have_ended_before_the_replica_follows_again(
    world: ReplicatedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[LogFold] = []
    begun = 0

    async def forever(cleaner: Cleaner) -> None:
        nonlocal begun
        assert isinstance(cleaner._leader, Leader)
        replica = cleaner._leader._replica
        running.append(replica)
        begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)  # some take a while
            running.remove(replica)

    looked = Follower.look

    async def look(follower: Follower) -> None:
        assert follower.replica not in running
        await looked(follower)

    monkeypatch.setattr(Cleaner, "forever", forever)
    monkeypatch.setattr(Follower, "look", look)

    async def test() -> None:
        async with world.running():
            for number in range(1, 5):
                leader = await world.leader()
                await world.until(lambda number=number: begun == number)  # type: ignore[misc]
                replica = follower_of(leader).replica
                world.shared.depose()
                await world.until(lambda replica=replica: replica not in running)  # type: ignore[misc]
        assert running == []

    asyncio.run(test())


def test_whoever_does_not_lead_any_more_shows_nothing_that_only_a_leader_knows(
    world: ReplicatedWorld,
) -> None:
    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            await world.until(lambda: (leader.metric("letters_drain_age_seconds") or 0) >= 0)
            await world.failed_over(leader)
            await world.until(lambda: leader.metric("leads") == 0)
            assert leader.metric("letters_drain_age_seconds") == -1
            placed = leader.registry.get_sample_value("maar_placement_rules_age_seconds")
            assert placed == 0

    asyncio.run(test())


def test_a_log_that_stays_full_does_not_make_one_snapshot_after_the_other(
    world: ReplicatedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two let go all that can go. When they made no room, more of them only cost."""
    monkeypatch.setattr(snapshots, "LOOK_S", 0.01)
    monkeypatch.setattr(snapshots, "BACKOFF_S", 600.0)
    looks = taken = 0
    due, take = Snapshots._due, Snapshots.take

    def looked(self: Snapshots, leader: Leader) -> bool:
        nonlocal looks
        looks += 1
        return due(self, leader)

    async def counted(self: Snapshots, leader: Leader) -> int:
        nonlocal taken
        taken += 1
        return await take(self, leader)

    monkeypatch.setattr(Snapshots, "_due", looked)
    monkeypatch.setattr(Snapshots, "take", counted)

    async def refused(leader: Member) -> None:
        """Once more there was no room, and the snapshots' own loop has come round after it."""
        now = await leader.service.now()
        with pytest.raises(StoreFull):
            await leader.service.add_blocks((segment(1, at=now.lease_time),))
        before = looks
        await world.until(lambda: looks > before + 1)

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
            monkeypatch.setattr(snapshots, "BACKOFF_S", 0.0)  # as if that had passed
            await world.until(lambda: taken > 2)

    asyncio.run(test())


def test_a_snapshot_that_is_not_where_it_should_be_is_none(world: ReplicatedWorld) -> None:
    """Only what was read and found whole lets go of the log."""

    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            await leader.service.snapshot()
            leader_term = leader.service._leader_term
            assert leader_term is not None
            first, newest = await leader.log.first(), leader_term.snapshots.newest

            async def elsewhere() -> int:
                return world.shared.head.index

            leader_term.snapshots._take = elsewhere
            with pytest.raises(Corrupt, match="not in the store"):
                await leader.service.snapshot()
            assert (await leader.log.first(), leader_term.snapshots.newest) == (first, newest)

    asyncio.run(test())
