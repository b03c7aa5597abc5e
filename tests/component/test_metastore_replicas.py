"""Several replicas of the metastore over one log: one leads, all answer, none acts twice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec
import pytest

from maar.metastore.leader import leader as leading
from maar.metastore.leader import peers, snapshots
from maar.metastore.leader.cleaner import Cleaner
from maar.metastore.leader.leader import Leader
from maar.metastore.leader.snapshots import Snapshots
from maar.metastore.records.entries import VERSION, BlocksAdded, TermStarted
from maar.metastore.replica import snapshot
from maar.metastore.replica.follower import Follower
from maar.metastore.replica.log_fold import LogFold
from maar.metastore.service import MetastoreService
from maar.metastore.state.digest import digest
from maar.model.block import BlockMeta
from maar.model.errors import (
    Corrupt,
    MaarError,
    NotLeading,
    OutcomeUnknown,
    Rejected,
    StoreFull,
    TermLost,
    Unavailable,
)
from maar.model.ids import HOME, BlockId, WorkerId
from maar.model.time import DAY_NS, SECOND_NS, TimeRange
from maar.ports.log import Head, Term
from maar.ports.metastore import Beat, PlanFilter, PollRequest, ViewRequest
from support.clock.fake_clock import FakeClock
from support.metastore.fold import DAY_START_NS, TENANT, segment
from support.metastore.replicas_world import Member, ReplicatedWorld
from support.metastore.rings import writer
from support.metastore.world import PATIENT

pytestmark = pytest.mark.component

RANGE = TimeRange(DAY_START_NS, DAY_START_NS + 10**6 * SECOND_NS)
W1 = WorkerId("w1")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ReplicatedWorld:
    monkeypatch.setattr(peers, "ASK_S", 0.05)
    return ReplicatedWorld()


async def add(service: MetastoreService, *numbers: int) -> list[BlockMeta]:
    now = await service.now()
    metas = [segment(n, at=now.lease_time) for n in numbers]
    reply = await service.add_blocks(tuple(metas))
    assert set(reply.refusals) == {""}
    return metas


async def view(service: MetastoreService, reader: str = "") -> set[BlockId]:
    found = await service.view(ViewRequest(TENANT, RANGE, "checkout", reader))
    return {meta.id for meta in found.blocks}


def same_states(world: ReplicatedWorld) -> None:
    assert len({digest(follower_of(member).state) for member in world.members}) == 1


def follower_of(member: Member) -> Follower:
    assert member.service._follower is not None
    return member.service._follower


def added(world: ReplicatedWorld) -> list[BlockId]:
    found = [e.entry for e in world.entries() if isinstance(e.entry, BlocksAdded)]
    return [meta.id for entry in found for meta in entry.blocks]


# ── who answers what ───────────────────────────────────────────────────────────────────────────


def test_one_leads_the_others_follow_and_say_who(world: ReplicatedWorld) -> None:
    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            metas = await add(leader.service, 1, 2, 3)
            assert leader.metric("leads") == leader.metric("offices_total") == 1
            for follower in await world.followers():
                assert follower.service.ready() == ""
                assert await follower.standing() == "follower"
                assert follower.metric("leads") == 0
                with pytest.raises(NotLeading) as refused:
                    await follower.service.add_blocks(tuple(metas))
                assert refused.value.leader == leader.address
                for call in (
                    follower.service.now(),
                    follower.service.poll(PollRequest(W1, 1)),
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

    asyncio.run(test())


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
            (plan,) = (await leader.service.poll(PollRequest(W1, 1))).granted
            for member in world.members:
                (found,) = await member.service.plans(PlanFilter())
                assert found.id == plan.id
                assert await member.service.blocks(limit=100)
                assert (await member.service.explain(plan.inputs[0].id)).plan == plan.id
                assert (await member.service.retention()).default_ns >= 0
                assert await member.service.expiring() == ()

    asyncio.run(test())


def test_a_follower_that_does_not_get_to_the_head_answers_nothing(
    world: ReplicatedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maar.metastore.service.PATIENCE_S", 0.1)

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

    asyncio.run(test())


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

    asyncio.run(test())


def test_a_leader_that_does_not_answer_a_pin_is_not_waited_for(
    world: ReplicatedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maar.metastore.service.PIN_S", 0.1)

    async def test() -> None:
        async with world.running():
            leader, follower = await world.leader(), (await world.followers())[0]
            await world.even()
            leader.log.open.clear()
            async with asyncio.timeout(30):
                with pytest.raises(Unavailable, match=f"{leader.address}.*does not answer"):
                    await view(follower.service, "me")
            leader.log.open.set()
            monkeypatch.setattr("maar.metastore.service.PIN_S", 30.0)
            assert await view(follower.service, "me") == set()

    asyncio.run(test())


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
            with pytest.raises(NotLeading, match="lost its office"):
                await leader.service.pin("me")

    asyncio.run(test())


@pytest.mark.parametrize("asked", ["now", "rings", "beat", "status"])
def test_what_needs_no_entry_is_not_answered_by_one_that_was_deposed(
    world: ReplicatedWorld, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """One that slept may be asked before its loop has come round and knows that it is over."""
    monkeypatch.setattr(leading, "STUCK_S", 600.0)  # of this machine, which may be busy

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
            office = service._office
            assert office is not None
            world.shared.depose()
            with pytest.raises(NotLeading, match="lost its office"):
                await calls[asked]()
            assert office.over

    asyncio.run(test())


def test_a_follower_tells_lease_time_by_entries_and_by_its_own_clock(
    world: ReplicatedWorld,
) -> None:
    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            follower = (await world.followers())[0]
            await add(leader.service, 1, 2, 3)
            (plan,) = (await leader.service.poll(PollRequest(W1, 1))).granted
            leader.clock.advance(7 * SECOND_NS)
            await add(leader.service, 4)
            before = (await follower.service.plan(plan.id)).now
            assert before >= 7 * SECOND_NS
            follower.clock.advance(5 * SECOND_NS)
            assert (await follower.service.plan(plan.id)).now - before == 5 * SECOND_NS

    asyncio.run(test())


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

    asyncio.run(test())


def test_who_is_asked_during_an_election_waits_for_its_end(world: ReplicatedWorld) -> None:
    async def test() -> None:
        async with world.running():
            for _ in range(5):
                before = await world.leader()
                world.shared.depose()
                office = before.service._office
                assert office is not None
                await world.until(lambda office=office: office.over)  # type: ignore[misc]
                asked = [member.service.now() for member in world.members]
                answers = await asyncio.gather(*asked, return_exceptions=True)
                refused = [a for a in answers if isinstance(a, BaseException)]
                assert len(refused) == 2
                assert all(isinstance(one, NotLeading) and one.leader for one in refused)

    asyncio.run(test())


# ── from one leader to the next ────────────────────────────────────────────────────────────────


def test_whoever_is_elected_next_goes_on_where_the_last_stopped(world: ReplicatedWorld) -> None:
    async def test() -> None:
        async with world.running():
            seen: set[BlockId] = set()
            leader = await world.leader()
            for number in range(6):
                seen |= {meta.id for meta in await add(leader.service, number)}
                leader = await world.failed_over(leader)
            assert await view(leader.service) == seen
            await world.even()
            same_states(world)
            terms = [e.entry.term for e in world.entries() if isinstance(e.entry, TermStarted)]
            assert terms == sorted(set(terms))
            lost = sum(member.metric("offices_lost_total") or 0 for member in world.members)
            assert lost >= 5
            await world.until(lambda: sum(m.metric("leads") or 0 for m in world.members) == 1)

    asyncio.run(test())


def test_lease_time_goes_on_whatever_the_clocks_say(world: ReplicatedWorld) -> None:
    """Boots at different times, walls a year apart: nothing jumps, and no lease is lost (S2)."""
    for number, member in enumerate(world.members):
        member.clock = FakeClock(monotonic_ns=10**15 * (number + 1), wall_ns=365 * DAY_NS * number)
        member.renew()

    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            await add(leader.service, 1, 2, 3)
            (plan,) = (await leader.service.poll(PollRequest(W1, 1))).granted
            leader.clock.advance(3 * SECOND_NS)
            for _ in range(4):
                leader = await world.failed_over(leader)
                assert 0 <= (await leader.service.now()).lease_time <= 8 * SECOND_NS
                status = await leader.service.status()
                assert [one.id for one in status.leased] == [plan.id]
            times = [envelope.lease_time for envelope in world.entries()]
            assert times == sorted(times)

    asyncio.run(test())


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
            office = zombie.service._office
            assert office is not None
            with pytest.raises(NotLeading):
                office.leader.confirm()
            zombie.log.open.set()
            with pytest.raises(NotLeading, match="lost its office"):
                await call
            await world.until(lambda: office.over)
            with pytest.raises(NotLeading):
                await office.append(lambda *_: [])
            assert added(world) == [new.id]
            assert await view(zombie.service) == {new.id}
            (reply,) = (await other.service.add_blocks((late,))).refusals
            assert reply == ""

    asyncio.run(test())


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

    asyncio.run(test())


@pytest.mark.parametrize("stored", [True, False])
def test_a_leader_cut_off_from_the_log_during_an_append_leaves_office_and_says_so(
    world: ReplicatedWorld, monkeypatch: pytest.MonkeyPatch, *, stored: bool
) -> None:
    """Whoever leads next finds out what the log holds; nobody waits for one that cannot."""
    monkeypatch.setattr(leading, "UNSETTLED_S", 0.5)
    monkeypatch.setattr(leading, "SETTLE_S", 0.05)

    async def test() -> None:
        async with world.running():
            first = await world.leader()
            now = await first.service.now()
            office = first.service._office
            assert office is not None
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
            await world.until(lambda: office.over and first.service._office is not office)
            other = await world.leader(but=first)
            assert (await other.service.add_blocks(tuple(metas))).refusals == ("", "")
            assert sorted(added(world)) == sorted(
                meta.id for meta in (metas[:1] * stored + metas)
            ), "what was stored is repeated, and has no effect"
            assert await view(other.service) == {meta.id for meta in metas}

    asyncio.run(test())


def away(member: Member) -> object:
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
            office = world.shared.office
            assert office is None or office.holder != leader.candidate
            other = await world.leader(but=leader)
            await add(other.service, 2)
            await leader.restart()
            assert len(await view(leader.service)) == 2
            assert await leader.standing() == "follower"

    asyncio.run(test())


def test_office_is_held_only_while_the_loop_goes_round(
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

    asyncio.run(test())


# ── duties ─────────────────────────────────────────────────────────────────────────────────────


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
            office = leader.service._office
            assert office is not None
            first, newest = await leader.log.first(), office.snapshots.newest

            async def elsewhere() -> int:
                return world.shared.head.index

            office.snapshots._take = elsewhere
            with pytest.raises(Corrupt, match="not in the store"):
                await leader.service.snapshot()
            assert (await leader.log.first(), office.snapshots.newest) == (first, newest)

    asyncio.run(test())


# ── falling behind ─────────────────────────────────────────────────────────────────────────────


async def truncated_twice(leader: Member) -> set[BlockId]:
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

    asyncio.run(test())


def test_a_replica_joins_from_nothing(world: ReplicatedWorld) -> None:
    late = world.members.pop()

    async def test() -> None:
        async with world.running():
            seen = await truncated_twice(await world.leader())
            world.members.append(late)
            await late.service.start()
            assert await view(late.service) == seen
            assert late.service.standing().snapshot_index >= world.shared.base.index

    asyncio.run(test())


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

    asyncio.run(test())


def test_ready_never_lies(world: ReplicatedWorld) -> None:
    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            one, _ = await world.followers()
            one.log.cut = True
            await world.until(lambda: follower_of(one).trouble != "")
            one.clock.advance(11 * SECOND_NS)
            assert "out of step" in one.service.ready()
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

    asyncio.run(test())


# ── stopping ───────────────────────────────────────────────────────────────────────────────────


def test_the_one_that_folded_differently_stops_and_is_rebuilt(
    world: ReplicatedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            await world.until(lambda: follower_of(leader).state.version == VERSION)
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

    asyncio.run(test())


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

    asyncio.run(test())


def test_nobody_leads_in_a_log_that_was_sealed() -> None:
    world = ReplicatedWorld(knows=(VERSION,))
    world.shared.sealed = "it lives elsewhere now"

    async def test() -> None:
        (member,) = world.members
        with pytest.raises(Rejected, match="elsewhere"):
            await member.service.start()
        assert "elsewhere" in member.service.ready()
        assert await member.standing() == "stopped"
        await member.service.stop()

    asyncio.run(test())


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
                    await follower.service.ended()
            assert "ZeroDivisionError" in follower.service.ready()

    asyncio.run(test())


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

    asyncio.run(test())


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

    asyncio.run(test())


def test_versions_wait_for_all_and_the_status_knows_all(world: ReplicatedWorld) -> None:
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

    asyncio.run(test())


def test_what_only_the_new_version_knows_of_a_policy_is_set_when_it_is_activated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "ASK_S", 0.05)
    policy = msgspec.structs.replace(PATIENT, expired_delay_ns=90 * SECOND_NS)
    world = ReplicatedWorld(policy=policy)
    late = world.members.pop()

    async def test() -> None:
        async with world.running():
            leader = await world.leader()
            await add(leader.service, 1)
            await world.even()
            assert all(follower_of(m).state.policy == PATIENT for m in world.members)
            world.members.append(late)
            await late.service.start()
            await world.until(lambda: world.kinds().count("PolicySet") == 2)
            await world.even()
            assert all(follower_of(m).state.policy == policy for m in world.members)
            same_states(world)

    asyncio.run(test())
