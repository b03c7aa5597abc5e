"""Replicas whose states differ: the wrong one stops, whichever it is, and the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from maar.metastore.fold.deleting import trust
from maar.metastore.leader import peers
from maar.metastore.records.entries import VERSION, StateHashed, TermStarted
from maar.metastore.replica import snapshot
from maar.metastore.replica.integrity import STATE_NS
from maar.metastore.replica.log_fold import NEWEST
from maar.metastore.state.digest import digest
from maar.metastore.state.state import NOT_RAISED, MetaState
from maar.model.block import BlockMeta
from maar.model.errors import Corrupt, Unavailable
from maar.model.time import DAY_NS, SECOND_NS, TimeRange
from maar.ports.metastore.log import Head
from maar.ports.reader.index import ViewRequest
from support.clock.virtual_time import run_virtually
from support.lake.fold_and_store import with_time
from support.metastore.fold import DAY_START_NS, TENANT, segment
from support.metastore.next_version import NEXT, NEXT_VERSION, drop_entries
from support.metastore.replica_steps import follower_of, term_of
from support.metastore.replicas_world import PATIENCE_S, Member, ReplicatedWorld
from support.metastore.world import PATIENT

pytestmark = pytest.mark.component

RANGE = TimeRange(DAY_START_NS, DAY_START_NS + 10**6 * SECOND_NS)
YEAR_NS = 365 * DAY_NS


def state_of(member: Member) -> MetaState:
    return follower_of(member).state


def flip(member: Member) -> None:
    """A bit of memory, in what no entry puts right again."""
    state_of(member).tally.profiles_added ^= 1 << 20


async def add(world: ReplicatedWorld, number: int) -> BlockMeta:
    """As a client does: it asks whoever leads, and asks again until somebody has answered."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            service = (await world.leader()).service
            try:
                meta = segment(number, at=(await service.now()).lease_time)
                assert (await service.add_blocks((meta,))).refusals == ("",)
                return meta
            except Unavailable:
                await asyncio.sleep(0.01)


async def state_hash(world: ReplicatedWorld) -> None:
    """Something happens, and some minutes pass: whoever leads states its hash."""
    before = len(hashes(world))
    await add(world, world.shared.head.index)
    for member in world.members:
        member.clock.advance(STATE_NS)
    await until(world, lambda: len(hashes(world)) > before)


async def until(world: ReplicatedWorld, reached: Callable[[], bool]) -> None:
    """Time passes meanwhile, on all clocks alike and ten times as fast."""

    def looked() -> bool:
        for member in world.members:
            member.clock.advance(SECOND_NS // 20)
        return reached()

    await world.until(looked)


async def while_time_passes(world: ReplicatedWorld, ns: int) -> None:
    """Long enough for every background task to come round, on clocks and in truth."""
    end = asyncio.get_running_loop().time() + 1.2
    for member in world.members:
        member.clock.advance(ns)
    await until(world, lambda: asyncio.get_running_loop().time() > end)


def hashes(world: ReplicatedWorld) -> list[StateHashed]:
    return [e.entry for e in world.entries() if isinstance(e.entry, StateHashed)]


def standing(member: Member) -> str:
    return member.service.standing().standing


def heard(leader: Member) -> list[str]:
    """What the leader shows of its replicas."""
    return [one.standing for one in leader.service.peers.replicas()]


async def answers(member: Member) -> bool:
    try:
        await member.service.view(ViewRequest(TENANT, RANGE, "checkout"))
    except Unavailable:
        return False
    return True


def states(world: ReplicatedWorld) -> set[bytes]:
    return {digest(state_of(member)) for member in world.members}


def test_every_replica_votes_and_all_agree() -> None:
    world = ReplicatedWorld()

    async def test() -> None:
        async with world.running():
            await state_hash(world)
            await until(world, lambda: len(hashes(world)) == 3)
            leader = await world.leader()
            statement, *votes = hashes(world)
            followers = await world.followers()
            assert {vote.replica for vote in votes} == {m.candidate.name for m in followers}
            assert {(vote.at, vote.digest) for vote in votes} == {(statement.at, statement.digest)}
            status = await leader.service.status()
            assert {one.standing for one in status.replicas} == {"leader", "follower"}
            assert {one.digest for one in status.replicas} == {statement.digest}

    run_virtually(test())


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("leads", [True, False], ids=["the leader", "a follower"])
def test_a_flipped_state_is_found_and_stopped_whichever_replica_it_is(
    number: int, leads: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world = ReplicatedWorld()
    bad = world.members[number]

    async def test() -> None:
        async with world.running():
            while (bad is await world.leader()) is not leads:
                world.shared.depose()
                await asyncio.sleep(0.01)
            flip(bad)
            await state_hash(world)
            await until(world, lambda: standing(bad) == "stopped")
            assert "two states" in bad.service.ready()
            assert "metastore rebuild" in bad.service.ready()
            assert bad.metric("stopped") == 1
            assert not await answers(bad)
            assert any(r.levelname == "ERROR" and "stopped" in r.message for r in caplog.records)
            leader = await world.leader()
            assert leader is not bad
            await add(world, 900)
            for member in world.members:
                if member is not bad:
                    await until(world, lambda member=member: member.service.ready() == "")  # type: ignore[misc]
                    assert await answers(member)
                    assert member.metric("stopped") == 0
            await until(world, lambda: "stopped" in heard(leader))
            assert (await bad.service.rebuild()).standing == "follower"
            await state_hash(world)
            await until(world, lambda: hashes(world)[-1].replica != "")
            await world.even()
            assert len(states(world)) == 1
            assert {standing(member) for member in world.members} == {"leader", "follower"}
            assert bad.metric("stopped") == 0

    run_virtually(test())


def test_one_that_differs_is_in_doubt_until_the_third_has_voted() -> None:
    """It neither answers nor campaigns meanwhile, and goes on folding."""
    world = ReplicatedWorld()

    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            bad, third = await world.followers()
            third.log.cut = True
            world.cut.add(third.address)
            flip(bad)
            await state_hash(world)
            await until(world, lambda: standing(bad) == "in doubt")
            assert "votes of most of 3 replicas" in bad.service.ready()
            assert not await answers(bad)
            assert await answers(leader)
            at = world.shared.head.index
            await add(world, 901)
            await until(world, lambda: state_of(bad).index > at)
            await leader.service.stop()
            await asyncio.sleep(0.3)
            assert world.shared.leader_term is None  # though nobody else could lead
            terms = [e.entry for e in world.entries() if isinstance(e.entry, TermStarted)]
            assert bad.candidate.name not in {term.leader for term in terms[-1:]}
            third.log.cut = False
            world.cut.discard(third.address)
            assert await world.leader(but=leader) is third
            await until(world, lambda: standing(bad) == "stopped")

    run_virtually(test())


def test_replicas_that_a_lost_leader_left_in_doubt_elect_one_of_them() -> None:
    world = ReplicatedWorld()

    async def test() -> None:
        async with world.running():
            bad = await world.leader()
            good = await world.followers()
            for member in good:
                member.log.cut = True
            world.cut.update(world.addresses)
            flip(bad)
            await state_hash(world)
            await bad.service.stop()  # the statement is its last word
            for member in good:
                member.log.cut = False
            for member in good:
                await until(world, lambda member=member: standing(member) == "in doubt")  # type: ignore[misc]
            assert world.shared.leader_term is None
            for member in good:
                world.cut.discard(member.address)
            leader = await world.leader()
            assert leader in good
            await add(world, 902)
            await bad.restart()  # from the log, and so without its flaw
            assert standing(bad) == "follower"
            await world.even()
            assert len(states(world)) == 1

    run_virtually(test())


def test_one_that_finds_itself_in_doubt_when_it_is_elected_does_not_lead() -> None:
    """The hash that it differs from was the last word of the one before, who is gone."""
    world = ReplicatedWorld()

    async def test() -> None:
        async with world.running():
            bad = await world.leader()
            good = await world.followers()
            await world.even()
            world.cut.update(world.addresses)
            flip(bad)
            append = bad.log.append

            async def last_word(bodies: Sequence[bytes], **how: Any) -> Head:
                head = await append(bodies, **how)
                if hashes(world):
                    bad.log.cut = True
                    world.shared.depose()
                return head

            bad.log.append = last_word  # type: ignore[method-assign]
            for member in world.members:
                member.clock.advance(STATE_NS)
            await until(world, lambda: all(standing(m) == "in doubt" for m in good))
            await while_time_passes(world, SECOND_NS)
            assert [member.metric("terms_total") for member in good] == [0, 0]
            for member in good:
                world.cut.discard(member.address)
            assert await world.leader() in good

    run_virtually(test())


def test_no_snapshot_is_made_while_the_newest_statement_is_wrong_and_then_again() -> None:
    """A statement that was outvoted stays in the log and must not stop snapshots for ever."""
    world = ReplicatedWorld()

    async def test() -> None:
        async with world.running():
            bad = await world.leader()
            flip(bad)
            with pytest.raises((Corrupt, Unavailable)):
                await bad.service.snapshot()
            assert not snapshot.list_snapshots(world.store)
            await until(world, lambda: standing(bad) == "stopped")
            leader = await world.leader(but=bad)
            index = await leader.service.snapshot()
            assert index > hashes(world)[0].at
            assert (await bad.service.rebuild()).standing == "follower"
            assert (await bad.service.replica()).snapshot_index == index

    run_virtually(test())


# ── an upgrade ─────────────────────────────────────────────────────────────────────────────────


async def append_of_next_version(leader: Member) -> None:
    """What only the next program appends, and only when all can read it."""
    await term_of(leader).append(lambda state, _: drop_entries(state))


async def raise_limit(world: ReplicatedWorld) -> None:
    await (await world.leader()).service.raise_limit(9, for_ns=DAY_NS)
    await world.even()


def test_an_old_and_a_new_replica_go_through_an_upgrade_together() -> None:
    world = ReplicatedWorld(editions=(NEWEST, NEXT))
    old, new = world.members

    async def lead(member: Member) -> None:
        while await world.leader() is not member:
            world.shared.depose()
            await asyncio.sleep(0.01)

    async def test() -> None:
        async with world.running():
            for number, leader in enumerate((old, new, old, new)):
                await lead(leader)
                await add(world, number)
                assert await leader.service.snapshot() > 0  # either reads what the other made
                await old.restart()
                await new.restart()
                await until(world, lambda: not old.service.ready() and not new.service.ready())
                await world.even()
                assert len(states(world)) == 1
                await append_of_next_version(await world.leader())
            assert {envelope.version for envelope in world.entries()} == {VERSION}
            assert {state_of(member).version for member in world.members} == {VERSION}
            assert "LimitDropped" not in world.kinds()

            old.edition = NEXT  # its program is replaced
            await old.restart()
            await until(
                world, lambda: all(state_of(m).version == NEXT_VERSION for m in world.members)
            )
            await raise_limit(world)
            assert state_of(old).raised != NOT_RAISED
            await append_of_next_version(await world.leader())
            assert await (await world.leader()).service.snapshot() > 0
            await state_hash(world)
            await until(world, lambda: any(one.replica for one in hashes(world)))
            await world.even()
            assert {state_of(member).raised for member in world.members} == {NOT_RAISED}
            assert len(states(world)) == 1
            assert world.kinds().count("VersionActivated") == 1
            assert world.entries()[-1].version == NEXT_VERSION

            new.edition = NEWEST  # and nobody goes back
            await new.service.stop()
            new.renew()
            with pytest.raises(Exception, match=r"knows up to 1.*Start the newer program"):
                await new.service.start()
            assert standing(new) == "stopped"
            assert "Start the newer program" in new.service.ready()
            await until(world, lambda: not old.service.ready())
            await add(world, 99)

    run_virtually(test())


def test_while_a_replica_is_silent_no_version_is_activated() -> None:
    world = ReplicatedWorld(editions=(NEXT,) * 3)
    world.cut.add("m2:1")

    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            if leader.address == "m2:1":  # it is cut off from nobody itself
                world.cut = {"m1:1"}
                await leader.restart()
                leader = await world.leader()
            await add(world, 1)
            await while_time_passes(world, SECOND_NS)
            assert {state_of(member).version for member in world.members} == {1}
            world.cut.clear()
            await until(
                world, lambda: all(state_of(m).version == NEXT_VERSION for m in world.members)
            )

    run_virtually(test())


# ── clocks ─────────────────────────────────────────────────────────────────────────────────────


def test_a_leader_whose_clock_is_a_year_ahead_of_the_others_expires_nothing() -> None:
    world = ReplicatedWorld(policy=msgspec.structs.replace(PATIENT, retention_ns=90 * DAY_NS))

    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            others = await world.followers()
            start_ns = leader.clock.wall
            old = with_time(segment(1, at=0), start_ns - 100 * DAY_NS)
            fresh = with_time(segment(2, at=0), start_ns)
            await leader.service.add_blocks((old, fresh))
            leader.clock.wall += YEAR_NS
            leader_term = term_of(leader)
            await until(world, lambda: "ahead of those of most" in told(leader))
            assert await leader_term.cleaner.expire() == 0
            status = await leader.service.status()
            assert "nothing expires" in status.retention.trouble
            assert "nothing expires" in (await leader.service.retention()).trouble
            assert len(state_of(leader).blocks) == 2
            leader.clock.wall -= YEAR_NS
            await until(world, lambda: not told(leader))
            assert await leader_term.cleaner.expire() == 1
            assert set(state_of(leader).blocks.where) == {fresh.id}
            world.cut.update(member.address for member in others)
            leader.clock.advance(peers.CLOCK_FRESH_NS + 1)
            assert "only 1 of 3" in told(leader)

    run_virtually(test())


def told(member: Member) -> str:
    return trust.refusal(member.service.peers.clocks())
