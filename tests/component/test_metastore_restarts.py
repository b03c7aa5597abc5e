"""The metastore over a real log through restarts, snapshots, lost answers and damage."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from maar.adapters.sqlite.log import SqliteLog
from maar.metastore.records import entries
from maar.metastore.replica import snapshot
from maar.metastore.service import MetastoreService
from maar.model.errors import (
    Corrupt,
    OutcomeUnknown,
    StoreFull,
    Unavailable,
)
from maar.model.policy import Level
from maar.model.time import SECOND_NS, LeaseTime, WallTime
from maar.ports.metastore.log import ENTRY_BYTES_MAX, Candidate, Head, Log, Term
from maar.ports.plans.board import Renewal
from support.clock.fake_clock import FakeClock
from support.clock.virtual_time import run_virtually
from support.metastore.fold import entropy, segment
from support.metastore.service_steps import W2, add, poll, report_of, view, world
from support.metastore.world import PATIENT, World

__all__ = ["world"]

pytestmark = pytest.mark.component


def test_a_restart_changes_nothing_and_lease_time_does_not_jump(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            await add(service, 1, 2, 3, 4)
            (plan,) = (await poll(service)).granted
            before = await service.status()
            seen = await view(service)
        world.clock = FakeClock(monotonic_ns=10**15, wall_ns=10**18)  # another boot, a year off
        async with world.running() as service:
            after = await service.status()
            assert after.term == before.term + 1
            assert after.incarnation == before.incarnation
            assert after.lease_time - before.lease_time < SECOND_NS
            assert await view(service) == seen
            assert [p.id for p in after.leased] == [plan.id]
            (outcome,) = (await poll(service, 0, reports=(report_of(plan),))).outcomes
            assert outcome.accepted

    run_virtually(test())


def test_a_snapshot_and_the_log_behind_it_restore_everything(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            await add(service, 1, 2, 3, 4)
            (plan,) = (await poll(service)).granted
            first = await service.snapshot()
            await poll(service, 0, reports=(report_of(plan),))
            second = await service.snapshot()
            assert second > first
            status = await service.status()
            assert status.snapshot_index == second
            assert status.log_first == first + 1
            await add(service, 5)
            seen = await view(service)
        async with world.running() as service:
            assert await view(service) == seen
            assert (await service.status()).completed == 1
            (again,) = (await poll(service, 0, reports=(report_of(plan),))).outcomes
            assert again.accepted

    run_virtually(test())


def test_a_snapshot_that_two_asked_for_is_one_and_the_log_goes_back_to_the_one_before(
    world: World,
) -> None:
    async def test() -> None:
        async with world.running() as service:
            await add(service, 1, 2, 3, 4)
            first = await service.snapshot()
            await add(service, 5)
            one, two = await asyncio.gather(service.snapshot(), service.snapshot())
            assert first < min(one, two)
            status = await service.status()
            assert status.snapshot_index == max(one, two)
            assert status.log_first == (first if one == two else min(one, two)) + 1

    run_virtually(test())


def test_a_damaged_newest_snapshot_falls_back_to_the_one_before(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            await add(service, 1, 2)
            await service.snapshot()
            await add(service, 3, 4)
            await service.snapshot()
            await add(service, 5)
            seen = await view(service)
        newest = snapshot.list_snapshots(world.store)[0][1]
        body = bytearray(world.store.read(newest))
        body[len(body) // 2] ^= 1
        world.store.delete(newest)
        world.store.create(newest, bytes(body))
        async with world.running() as service:
            assert await view(service) == seen
            await service.snapshot()

    run_virtually(test())


def test_without_any_good_snapshot_a_truncated_log_is_refused(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            await add(service, 1)
            await service.snapshot()
            await add(service, 2)
            await service.snapshot()
        for _, key in snapshot.list_snapshots(world.store):
            world.store.delete(key)
        with pytest.raises(Corrupt, match="no good snapshot"):
            async with world.running():
                pass

    run_virtually(test())


def test_snapshots_are_made_when_due_and_only_a_few_are_kept(world: World) -> None:
    policy = msgspec.structs.replace(PATIENT, snapshot_entries=5)

    async def test() -> None:
        async with world.running(policy) as service:
            for n in range(5):
                before = (await service.status()).snapshot_index
                for m in range(6):
                    await add(service, 10 * n + m)
                async with asyncio.timeout(100):
                    while (await service.status()).snapshot_index == before:
                        await asyncio.sleep(0.05)
            assert len(snapshot.list_snapshots(world.store)) == snapshot.KEPT
            text = generate_latest(world.registry).decode()
            assert "maar_metastore_snapshot_index" in text

    run_virtually(test())


def test_a_snapshot_of_a_diverged_fold_is_refused(world: World) -> None:
    """The other process must not bless a state that the leader does not have."""

    async def test() -> None:
        async with world.running() as service:
            await add(service, 1)
            await service.snapshot()
            index, key = snapshot.list_snapshots(world.store)[0]
            state, head = snapshot.decode(world.store.read(key))
            state.tally.profiles_added += 1  # as if it had folded differently
            world.store.delete(key)
            world.store.create(key, snapshot.encode(state, head))
            with pytest.raises(Corrupt, match="no snapshot is made"):
                await service.snapshot()
            assert (await service.status()).log_first == 1
            assert index > 0

    run_virtually(test())


class LossyLog:
    """A log whose appends, when told, do or do not happen, and never say."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.fault = ""

    async def append(
        self, bodies: Sequence[bytes], *, term: Term, head: Head, reserve: bool = False
    ) -> Head:
        fault, self.fault = self.fault, ""
        if fault == "full":
            raise StoreFull("no room")
        if fault == "corrupt":
            raise Corrupt("the hash of entry 3 is wrong")
        if fault == "lost":
            raise OutcomeUnknown("no answer")
        stored = await self._log.append(bodies, term=term, head=head, reserve=reserve)
        if fault == "stored":
            raise OutcomeUnknown("no answer")
        return stored

    def __getattr__(self, name: str) -> Callable[..., Awaitable[object]]:
        found: Callable[..., Awaitable[object]] = getattr(self._log, name)
        return found


def test_an_unknown_outcome_is_settled_before_anything_else_is_appended(world: World) -> None:
    lossy: list[LossyLog] = []

    def wrap(log: Log) -> Log:
        lossy.append(LossyLog(log))
        return lossy[0]  # type: ignore[return-value]

    async def test() -> None:
        async with world.running(wrap=wrap) as service:
            lossy[0].fault = "stored"
            (one,) = await add(service, 1)
            lossy[0].fault = "lost"
            with pytest.raises(Unavailable, match="send it again"):
                await add(service, 2)
            lossy[0].fault = "full"
            with pytest.raises(StoreFull):
                await add(service, 2)
            (two,) = await add(service, 2)
            assert await view(service) == {one.id, two.id}
            assert service.ready() == ""
        async with world.running() as service:
            assert await view(service) == {one.id, two.id}

    run_virtually(test())


def test_a_log_without_room_has_snapshots_made_though_none_is_due(world: World) -> None:
    """They are what lets old entries go; the log keeps some room for what they need."""
    lossy: list[LossyLog] = []

    def wrap(log: Log) -> Log:
        lossy.append(LossyLog(log))
        return lossy[0]  # type: ignore[return-value]

    async def test() -> None:
        async with world.running(wrap=wrap) as service:
            await add(service, 1)
            for number in (2, 3):
                before = (await service.status()).snapshot_index
                lossy[0].fault = "full"
                with pytest.raises(StoreFull):
                    await add(service, number)
                async with asyncio.timeout(100):
                    while (await service.status()).snapshot_index == before:
                        await asyncio.sleep(0.05)
            assert (await service.status()).log_first > 1

    run_virtually(test())


def test_a_fault_that_it_cannot_survive_stops_it_loudly(world: World) -> None:
    lossy: list[LossyLog] = []

    def wrap(log: Log) -> Log:
        lossy.append(LossyLog(log))
        return lossy[0]  # type: ignore[return-value]

    async def test() -> None:
        async with world.running(wrap=wrap) as service:
            ended = asyncio.create_task(service.wait_defect())
            await add(service, 1)
            assert not ended.done()
            lossy[0].fault = "corrupt"
            with pytest.raises(Unavailable):
                await add(service, 2)
            async with asyncio.timeout(100):
                while "entry 3" not in service.ready():
                    await asyncio.sleep(0.01)
            assert (await service.replica()).standing == "stopped"
            assert world.registry.get_sample_value("maar_metastore_stopped") == 1
            assert not ended.done(), "a process that is started again would only stop again"
            ended.cancel()
            with pytest.raises(Unavailable, match="entry 3"):
                await service.now()

    run_virtually(test())


def test_a_leader_that_lost_its_term_folds_what_others_wrote_and_returns(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            await add(service, 1)
            term = (await service.status()).term
            assert world.log is not None
            await world.log.campaign(Candidate("rival"))
            with pytest.raises(Unavailable, match="leadership"):
                await add(service, 2)
            await add(service, 2)
            assert (await service.status()).term == term + 2

    run_virtually(test())


def test_an_update_prepared_in_an_old_term_is_refused_and_dropped(world: World) -> None:
    """A rival wrote meanwhile: what the old leader had decided is never folded, by anybody."""

    async def kinds() -> list[str]:
        assert world.log is not None
        records = await world.log.read(after=0)
        found = (entries.decode(record.body, index=record.index) for record in records)
        return [type(envelope.entry).__name__ for envelope in found]

    async def test() -> None:
        async with world.running() as service:
            await add(service, 1, 2, 3)
            before = await service.status()
            assert world.log is not None
            term = await world.log.campaign(Candidate("rival"))
            started = entries.encode_entry(entries.TermStarted(term, "a rival"))
            body = entries.encode(
                entries.VERSION, LeaseTime(before.lease_time), WallTime(0), started
            )
            await world.log.append([body], term=term, head=await world.log.head())
            with pytest.raises(Unavailable, match="leadership"):
                await poll(service)
            assert not {"PlansScheduled", "PlansLeased"} & set(await kinds())
            (plan,) = (await poll(service)).granted
            assert plan.token.index > before.index + 2  # after the rival's entry and our new term
            assert (await service.status()).term == term + 1
            (outcome,) = (await poll(service, 0, reports=(report_of(plan),))).outcomes
            assert outcome.accepted
            assert (await kinds()).count("PlansScheduled") == 1

    run_virtually(test())


def test_a_restart_of_the_leader_is_no_plans_fault(world: World) -> None:
    """Workers that nobody could hear get their full lease again, and are excused once."""

    async def test() -> None:
        async with world.running() as service:
            await add(service, 1, 2, 3)
            (plan,) = (await poll(service)).granted
            await poll(service, 0, renewals=(Renewal(plan.id, plan.token, started=True),))
        async with world.running() as service:
            world.clock.advance(16 * SECOND_NS)
            (again,) = (await poll(service, worker=W2)).granted
            found = (await service.plan(plan.id)).plan
            assert (found.failures, found.excused) == (0, 1)
            await poll(service, 0, W2, renewals=(Renewal(again.id, again.token, started=True),))
            world.clock.advance(16 * SECOND_NS)
            assert len((await poll(service)).granted) == 1
            found = (await service.plan(plan.id)).plan
            assert (found.failures, found.excused) == (1, 0)

    run_virtually(test())


def test_an_entry_too_large_for_the_log_is_kept_in_the_store(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            now = await service.now()
            big = segment(1, at=now.lease_time)
            big = msgspec.structs.replace(big, datasets=big.datasets * 20_000)
            assert len(msgspec.msgpack.encode(big)) > ENTRY_BYTES_MAX
            assert (await service.add_blocks((big,))).refusals == ("",)
            (stored,) = (i.key for i in world.store.list("metastore/") if "/entry-" in i.key)
            assert hashlib.sha256(world.store.read(stored)).hexdigest() in stored
            seen = await view(service)
        async with world.running() as service:
            assert await view(service) == seen == {big.id}
        for _, key in snapshot.list_snapshots(world.store):
            world.store.delete(key)  # else it need not be read again
        world.store.delete(stored)
        world.store.create(stored, b"something else")
        with pytest.raises(Corrupt, match="does not match the hash"):
            async with world.running():
                pass

    run_virtually(test())


def test_a_new_policy_reaches_the_fold_at_the_next_start(world: World) -> None:
    eager = msgspec.structs.replace(PATIENT, levels=(Level(1, 1, 0),))

    async def test() -> None:
        async with world.running() as service:
            await add(service, 1)
            assert (await poll(service)).granted == ()
        async with world.running(eager) as service:
            assert len((await poll(service)).granted) == 1

    run_virtually(test())


def test_before_it_leads_it_says_so_and_answers_nothing(world: World) -> None:
    async def test() -> None:
        log = SqliteLog.open(world.directory)
        service = MetastoreService(
            log,
            world.store,
            world.clock,
            PATIENT,
            entropy=entropy(world.random),
            candidate=Candidate("test"),
            take_snapshot=world.snapshot,
            registry=CollectorRegistry(),
        )
        assert "reading" in service.ready()
        with pytest.raises(Unavailable):
            await service.now()
        await log.close()

    run_virtually(test())
