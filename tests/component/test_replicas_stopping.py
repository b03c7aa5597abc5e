"""A replica that cannot go on stops and says why; rebuilding and upgrading go on."""

from __future__ import annotations

import asyncio
import logging

import pytest

from maar.metastore.replica.follower import Follower
from maar.metastore.replica.log_fold import NEWEST
from maar.model.errors import (
    MaarError,
    Rejected,
    TermLost,
    Unavailable,
)
from maar.ports.metastore.log import Term
from support.clock.virtual_time import run_virtually
from support.metastore.next_version import NEXT
from support.metastore.replica_steps import add, follower_of, same_states, view, world
from support.metastore.replicas_world import ReplicatedWorld

__all__ = ["world"]

pytestmark = pytest.mark.component


def test_the_one_that_folded_differently_stops_and_is_rebuilt(
    world: ReplicatedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            await world.even()
            wrong = (await world.followers())[0]
            follower_of(wrong).state.tally.profiles_added += 1  # a bit flips
            seen = {meta.id for meta in await add(leader.service, 1)}
            await leader.service.snapshot()
            await world.until(lambda: wrong.service.standing().standing == "stopped")
            assert "two states" in wrong.service.ready()
            assert wrong.metric("stopped") == 1
            assert any(record.levelno == logging.ERROR for record in caplog.records)
            for call in (view(wrong.service), wrong.service.now()):
                with pytest.raises(Unavailable, match="stopped"):
                    await call
            assert await view(leader.service) == seen
            assert (await wrong.service.rebuild()).standing == "follower"
            assert wrong.metric("stopped") == 0
            assert await view(wrong.service) == seen
            await world.even()
            same_states(world)

    run_virtually(test())


def test_a_log_that_lost_what_was_folded_stops_the_replica(world: ReplicatedWorld) -> None:
    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            follower = (await world.followers())[0]
            await add(leader.service, 1)
            await world.even()
            kept = world.shared.records[:]
            del world.shared.records[-1]
            await world.until(lambda: follower.service.standing().standing == "stopped")
            assert "entries were lost" in follower.service.ready()
            world.shared.records[:] = kept
            assert (await follower.service.rebuild()).standing in ("follower", "leader")

    run_virtually(test())


def test_nobody_leads_in_a_log_that_was_sealed() -> None:
    world = ReplicatedWorld(editions=(NEWEST,))
    world.shared.sealed = "it lives elsewhere now"

    async def test() -> None:
        (member,) = world.members
        with pytest.raises(Rejected, match="elsewhere"):
            await member.service.start()
        assert "elsewhere" in member.service.ready()
        assert await member.standing() == "stopped"
        await member.service.stop()

    run_virtually(test())


def test_a_defect_ends_the_process_and_says_so(
    world: ReplicatedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with world.running():
            follower = (await world.followers())[0]

            async def broken(_: object) -> None:
                raise ZeroDivisionError

            monkeypatch.setattr(Follower, "look", broken)
            async with asyncio.timeout(100):
                with pytest.raises(MaarError, match="ZeroDivisionError"):
                    await follower.service.wait_defect()
            assert "ZeroDivisionError" in follower.service.ready()

    run_virtually(test())


def test_rebuild_reads_everything_again_and_goes_on(world: ReplicatedWorld) -> None:
    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            seen = {meta.id for meta in await add(leader.service, 1, 2)}
            for member in world.members:
                await member.service.rebuild()
                await world.until(lambda m=member: m.service.ready() == "")  # type: ignore[misc]
                assert await view(member.service) == seen
                assert member.metric("loads_total") == 2
            with pytest.raises(TermLost):
                world.members[0].log.hold(world.shared.term + 1)  # type: ignore[arg-type]

    run_virtually(test())


def test_a_rebuild_goes_on_when_whoever_ordered_it_has_gone(
    world: ReplicatedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its two lives a replica answers nothing: it must not be left there."""

    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            seen = {meta.id for meta in await add(leader.service, 1)}
            resign = leader.log.resign
            leaving, may_leave = asyncio.Event(), asyncio.Event()

            async def slowly(term: Term) -> None:
                leaving.set()
                await may_leave.wait()
                await resign(term)

            monkeypatch.setattr(leader.log, "resign", slowly)
            ordered = asyncio.create_task(leader.service.rebuild())
            async with asyncio.timeout(100):
                await leaving.wait()
            ordered.cancel()
            await asyncio.wait([ordered])
            assert ordered.cancelled()
            may_leave.set()
            await world.until(lambda: leader.metric("loads_total") == 2)
            await world.until(lambda: leader.service.ready() == "")
            assert await view(leader.service) == seen

    run_virtually(test())


def test_versions_wait_for_all_and_the_status_knows_all(world: ReplicatedWorld) -> None:
    for replica in world.members:
        replica.edition = NEXT
        replica.renew()
    late = world.members.pop()

    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            await add(leader.service, 1)
            before = leader.log.holds
            await world.until(lambda: leader.log.holds > before + 4)  # it has kept house meanwhile
            assert "VersionActivated" not in world.kinds()
            status = await leader.service.status()
            assert {one.standing for one in status.replicas} == {
                *("leader", "follower", "unreachable")
            }
            world.members.append(late)
            await late.service.start()
            await world.until(lambda: "VersionActivated" in world.kinds())
            await world.even()
            status = await leader.service.status()
            assert status.leader == leader.address
            assert sorted(one.standing for one in status.replicas) == [
                *("follower", "follower", "leader")
            ]
            assert world.kinds().count("VersionActivated") == 1
            assert world.kinds().count("PolicySet") == 1
            same_states(world)

    run_virtually(test())
