"""Several replicas over one log: which of them answers what, and never what is too old."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from maar.metastore.replica.follower import Follower
from maar.model.errors import (
    NotLeading,
    Unavailable,
)
from maar.model.ids import HOME, BlockId
from maar.model.time import SECOND_NS
from maar.ports.operator.operator import ListPlans
from maar.ports.plans.board import PollRequest
from maar.ports.reader.index import ViewRequest
from maar.ports.writer.membership import Beat
from maar.services.compact.rules import COMPACT
from support.clock.virtual_time import run_virtually
from support.metastore.fold import TENANT
from support.metastore.replica_steps import (
    RANGE,
    W1,
    add,
    follower_of,
    same_states,
    term_of,
    view,
    world,
)
from support.metastore.replicas_world import BRISK, ReplicatedWorld
from support.metastore.rings import writer
from support.metastore.world import PATIENT

__all__ = ["world"]

pytestmark = pytest.mark.component


def test_one_leads_the_others_follow_and_say_who(world: ReplicatedWorld) -> None:
    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            metas = await add(leader.service, 1, 2, 3)
            assert leader.metric("leads") == leader.metric("terms_total") == 1
            for follower in await world.followers():
                assert follower.service.ready() == ""
                assert await follower.standing() == "follower"
                assert follower.metric("leads") == 0
                with pytest.raises(NotLeading) as refused:
                    await follower.service.add_blocks(tuple(metas))
                assert refused.value.leader == leader.address
                for call in (
                    follower.service.now(),
                    follower.service.poll(PollRequest(W1, 1, kinds=(COMPACT,))),
                    follower.service.rings(),
                    follower.service.status(),
                    follower.service.letters(),
                    follower.service.snapshot(),
                    follower.service.pin("r"),
                ):
                    with pytest.raises(NotLeading):
                        await call
            await world.even()
            same_states(world)

    run_virtually(test())


def test_a_read_at_any_replica_sees_what_was_acknowledged_before_it(world: ReplicatedWorld) -> None:
    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            seen: set[BlockId] = set()
            for number in range(30):
                (meta,) = await add(leader.service, number)
                seen.add(meta.id)
                for member in world.members:
                    assert await view(member.service) == seen
                    assert (await member.service.block(meta.id)).id == meta.id
            (plan,) = (await leader.service.poll(PollRequest(W1, 1, kinds=(COMPACT,)))).granted
            for member in world.members:
                (found,) = await member.service.plans(ListPlans())
                assert found.id == plan.id
                assert await member.service.blocks(limit=100)
                assert (await member.service.explain(plan.inputs[0].id)).plan == plan.id
                assert (await member.service.retention()).default_ns >= 0
                assert await member.service.expiring() == ()

    run_virtually(test())


def test_a_follower_that_does_not_get_to_the_head_answers_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = ReplicatedWorld(timing=BRISK._replace(catch_up_s=0.1))

    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            follower = (await world.followers())[0]
            await world.even()

            async def stuck(_: object) -> list[object]:
                await asyncio.Event().wait()
                return []

            monkeypatch.setattr(follower_of(follower).replica, "fold", stuck)
            await add(leader.service, 1)
            with pytest.raises(Unavailable, match="behind"):
                await view(follower.service)

    run_virtually(test())


def test_a_pin_that_a_follower_is_asked_for_is_taken_by_the_leader(world: ReplicatedWorld) -> None:
    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            (meta,) = await add(leader.service, 1)
            follower = (await world.followers())[0]
            found = await follower.service.view(ViewRequest(TENANT, RANGE, "checkout", "me"))
            assert [block.id for block in found.blocks] == [meta.id]
            assert follower_of(leader).state.pins["me"].entry <= found.index
            world.cut.add(leader.address)
            with pytest.raises(Unavailable):  # what is not pinned may be deleted while it is read
                await follower.service.view(ViewRequest(TENANT, RANGE, "checkout", "you"))

    run_virtually(test())


def test_a_leader_that_does_not_answer_a_pin_is_not_waited_for() -> None:
    world = ReplicatedWorld(timing=BRISK._replace(pin_s=1.0))

    async def test() -> None:
        async with world.running():
            leader, follower = await world.leader(), (await world.followers())[0]
            await world.even()
            leader.log.open.clear()
            async with asyncio.timeout(30):
                with pytest.raises(Unavailable, match=f"{leader.address}.*does not answer"):
                    await view(follower.service, "me")
            leader.log.open.set()
            assert await view(follower.service, "me") == set()

    run_virtually(test())


def test_a_pin_that_needs_no_entry_is_not_confirmed_by_one_that_was_deposed(
    world: ReplicatedWorld,
) -> None:
    """Another may have dropped it since, and a zombie that looks at its own state cannot know."""

    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            await leader.service.pin("me")
            before = world.shared.head
            await leader.service.pin("me")
            assert world.shared.head == before, "the pin has most of its time left"
            world.shared.depose()
            with pytest.raises(NotLeading, match="lost leadership"):
                await leader.service.pin("me")

    run_virtually(test())


@pytest.mark.parametrize("asked", ["now", "rings", "beat", "status"])
def test_what_needs_no_entry_is_not_answered_by_one_that_was_deposed(
    asked: str,
) -> None:
    """One that slept may be asked before its loop has come round and knows that it is over."""
    world = ReplicatedWorld(timing=BRISK._replace(stuck_s=600.0))

    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            service = leader.service
            beat = Beat(HOME, writer("a"))
            calls = {
                "now": service.now,
                "rings": service.rings,
                "beat": lambda: service.beat(beat),
                "status": service.status,
            }
            await service.beat(beat)  # the next one changes nothing
            await calls[asked]()
            leader_term = term_of(leader)
            world.shared.depose()
            with pytest.raises(NotLeading, match="lost leadership"):
                await calls[asked]()
            assert leader_term.over

    run_virtually(test())


def test_a_follower_tells_lease_time_by_entries_and_by_its_own_clock(
    world: ReplicatedWorld,
) -> None:
    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            follower = (await world.followers())[0]
            await add(leader.service, 1, 2, 3)
            (plan,) = (await leader.service.poll(PollRequest(W1, 1, kinds=(COMPACT,)))).granted
            leader.clock.advance(7 * SECOND_NS)
            await add(leader.service, 4)
            before = (await follower.service.plan(plan.id)).now
            assert before >= 7 * SECOND_NS
            follower.clock.advance(5 * SECOND_NS)
            assert (await follower.service.plan(plan.id)).now - before == 5 * SECOND_NS

    run_virtually(test())


def test_an_idle_follower_measures_time_as_it_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is appended, and a reading that comes late would count as a pause (S2)."""
    stall_ns = 5 * SECOND_NS
    world = ReplicatedWorld(policy=msgspec.structs.replace(PATIENT, stall_ns=stall_ns))
    looks: list[Follower] = []
    looked = Follower.look

    async def look(follower: Follower) -> None:
        await looked(follower)
        looks.append(follower)

    monkeypatch.setattr(Follower, "look", look)

    async def test() -> None:
        async with world.running():
            await world.leader()
            idle = (await world.followers())[0]
            follower = follower_of(idle)
            before = follower.now()
            for _ in range(4):
                idle.clock.advance(3 * SECOND_NS)
                seen = looks.count(follower)
                async with asyncio.timeout(100):
                    while looks.count(follower) < seen + 2:
                        await asyncio.sleep(0.01)
            assert follower.now() - before == 12 * SECOND_NS
            idle.clock.advance(1000 * SECOND_NS)  # as if the process had been stopped
            assert follower.now() - before == 12 * SECOND_NS + stall_ns

    run_virtually(test())


def test_who_is_asked_during_an_election_waits_for_its_end(world: ReplicatedWorld) -> None:
    async def test() -> None:
        async with world.running():
            for _ in range(5):
                before = await world.leader()
                world.shared.depose()
                leader_term = term_of(before)
                await world.until(lambda leader_term=leader_term: leader_term.over)  # type: ignore[misc]
                asked = [member.service.now() for member in world.members]
                answers = await asyncio.gather(*asked, return_exceptions=True)
                refused = [a for a in answers if isinstance(a, BaseException)]
                assert len(refused) == 2
                assert all(isinstance(one, NotLeading) and one.leader for one in refused)

    run_virtually(test())
