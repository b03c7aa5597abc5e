"""From one leader to the next: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio

import pytest

from maar.metastore.leader.leader import Leader
from maar.metastore.records.entries import BlocksAdded, TermStarted
from maar.model.errors import (
    NotLeading,
    OutcomeUnknown,
)
from maar.model.ids import BlockId
from maar.model.time import DAY_NS, SECOND_NS
from maar.ports.metastore.log import Head
from maar.ports.plans.board import PollRequest
from maar.services.compact.rules import COMPACT
from support.clock.fake_clock import FakeClock
from support.clock.virtual_time import run_virtually
from support.metastore.fold import segment
from support.metastore.replica_steps import W1, add, same_states, term_of, view, world
from support.metastore.replicas_world import BRISK, ReplicatedWorld, WorldReplica

__all__ = ["world"]

pytestmark = pytest.mark.component


def added(world: ReplicatedWorld) -> list[BlockId]:
    found = [e.entry for e in world.entries() if isinstance(e.entry, BlocksAdded)]
    return [meta.id for entry in found for meta in entry.blocks]


def test_whoever_is_elected_next_goes_on_where_the_last_stopped(world: ReplicatedWorld) -> None:
    async def test() -> None:
        async with world.running():
            seen: set[BlockId] = set()
            leader = await world.leader()
            for number in range(6):
                seen |= {meta.id for meta in await add(leader.service, number)}
                leader = await world.fail_over(leader)
            assert await view(leader.service) == seen
            await world.even()
            same_states(world)
            terms = [e.entry.term for e in world.entries() if isinstance(e.entry, TermStarted)]
            assert terms == sorted(set(terms))
            lost = sum(member.metric("terms_lost_total") or 0 for member in world.members)
            assert lost >= 5
            await world.until(lambda: sum(m.metric("leads") or 0 for m in world.members) == 1)

    run_virtually(test())


def test_lease_time_goes_on_whatever_the_clocks_say(world: ReplicatedWorld) -> None:
    """Boots at different times, walls a year apart: nothing jumps, and no lease is lost (S2)."""
    for number, member in enumerate(world.members):
        member.clock = FakeClock(monotonic_ns=10**15 * (number + 1), wall_ns=365 * DAY_NS * number)
        member.renew()

    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            await add(leader.service, 1, 2, 3)
            (plan,) = (await leader.service.poll(PollRequest(W1, 1, kinds=(COMPACT,)))).granted
            leader.clock.advance(3 * SECOND_NS)
            for _ in range(4):
                leader = await world.fail_over(leader)
                assert 0 <= (await leader.service.now()).lease_time <= 8 * SECOND_NS
                status = await leader.service.status()
                assert [one.id for one in status.leased] == [plan.id]
            times = [envelope.lease_time for envelope in world.entries()]
            assert times == sorted(times)

    run_virtually(test())


def test_an_append_under_way_while_its_leader_is_deposed_is_refused(
    world: ReplicatedWorld,
) -> None:
    """As of a process that is stopped for a while, and wakes up as a zombie."""

    async def test() -> None:
        async with world.running():
            zombie = await world.leader()
            before = await zombie.service.now()
            late, new = segment(1, at=before.lease_time), segment(2, at=before.lease_time)
            zombie.log.open.clear()
            call = asyncio.create_task(zombie.service.add_blocks((late,)))
            await asyncio.sleep(0.05)
            world.shared.depose()
            other = await world.leader(but=zombie)
            assert (await other.service.add_blocks((new,))).refusals == ("",)
            leader_term = term_of(zombie)
            with pytest.raises(NotLeading):
                leader_term.leader.confirm()
            zombie.log.open.set()
            with pytest.raises(NotLeading, match="lost leadership"):
                await call
            await world.until(lambda: leader_term.over)
            with pytest.raises(NotLeading):
                await leader_term.append(lambda *_: [])
            assert added(world) == [new.id]
            assert await view(zombie.service) == {new.id}
            (reply,) = (await other.service.add_blocks((late,))).refusals
            assert reply == ""

    run_virtually(test())


def test_an_append_that_arrives_unheard_has_one_effect_when_it_is_repeated(
    world: ReplicatedWorld,
) -> None:
    async def test() -> None:
        async with world.running():
            first = await world.leader()
            now = await first.service.now()
            meta = segment(1, at=now.lease_time)
            first.log.silent = True
            call = asyncio.create_task(first.service.add_blocks((meta,)))
            await world.until(lambda: first.log.cut)
            assert "has not said" in first.service.ready()
            world.shared.depose()
            other = await world.leader(but=first)
            assert (await other.service.add_blocks((meta,))).refusals == ("",)
            first.log.silent = first.log.cut = False
            with pytest.raises(NotLeading):
                await call
            await world.even()
            assert await view(first.service) == {meta.id}
            assert (await other.service.status()).profiles_added == meta.profiles
            same_states(world)

    run_virtually(test())


@pytest.mark.parametrize("stored", [True, False])
def test_a_leader_cut_off_from_the_log_during_an_append_resigns_and_says_so(
    monkeypatch: pytest.MonkeyPatch, *, stored: bool
) -> None:
    """Whoever leads next finds out what the log holds; nobody waits for one that cannot."""
    world = ReplicatedWorld(timing=BRISK._replace(unsettled_s=0.5, settle_s=0.05))

    async def test() -> None:
        async with world.running():
            first = await world.leader()
            now = await first.service.now()
            leader_term = term_of(first)
            metas = [segment(n, at=now.lease_time) for n in (1, 2)]
            if stored:
                first.log.silent = True
            else:
                monkeypatch.setattr(first.log, "append", away(first))
            calls = [asyncio.create_task(first.service.add_blocks((metas[0],)))]
            await world.until(lambda: first.log.cut)
            calls.append(asyncio.create_task(first.service.add_blocks((metas[1],))))
            async with asyncio.timeout(30):
                answers = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(answer) for answer in answers] == [NotLeading, NotLeading]
            await world.until(
                lambda: leader_term.over and first.service.leader_term is not leader_term
            )
            other = await world.leader(but=first)
            assert (await other.service.add_blocks(tuple(metas))).refusals == ("", "")
            assert sorted(added(world)) == sorted(
                meta.id for meta in (metas[:1] * stored + metas)
            ), "what was stored is repeated, and has no effect"
            assert await view(other.service) == {meta.id for meta in metas}

    run_virtually(test())


def away(member: WorldReplica) -> object:
    """An append that is lost on its way, and with it the line to the log."""

    async def append(*_: object, **__: object) -> Head:
        member.log.cut = True
        raise OutcomeUnknown("the line broke")

    return append


def test_a_leader_that_stops_resigns_and_another_takes_over_at_once(
    world: ReplicatedWorld,
) -> None:
    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            await add(leader.service, 1)
            await leader.service.stop()
            leader_term = world.shared.leader_term
            assert leader_term is None or leader_term.holder != leader.candidate
            other = await world.leader(but=leader)
            await add(other.service, 2)
            await leader.restart()
            assert len(await view(leader.service)) == 2
            assert await leader.standing() == "follower"

    run_virtually(test())


def test_leadership_is_held_only_while_the_loop_makes_progress(
    world: ReplicatedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds = 0
    held = Leader.hold

    def hold(leader: Leader) -> None:
        nonlocal holds
        holds += 1
        held(leader)

    monkeypatch.setattr(Leader, "hold", hold)

    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            before = holds
            async with asyncio.timeout(100):
                while holds < before + 4:  # also while nothing is to be done
                    await asyncio.sleep(0.01)
            leader.log.open.clear()
            call = asyncio.create_task(add(leader.service, 1))
            await asyncio.sleep(0.1)
            before = holds
            await asyncio.sleep(1)
            assert holds == before, "a loop that waits for its log makes no progress"
            leader.log.open.set()
            await call

    run_virtually(test())
