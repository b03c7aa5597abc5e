"""Replicas of one process over a real etcd: with clocks of their own, and where etcd is full."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import msgspec
import pytest
from aetcd import rpc
from prometheus_client import CollectorRegistry

from maar.adapters.etcd.log import EtcdLog
from maar.adapters.system_clock import SystemClock
from maar.metastore.replica import snapshot
from maar.metastore.service import MetastoreService
from maar.model.block import BlockMeta
from maar.model.errors import NotLeading, StoreFull
from maar.model.ids import WorkerId
from maar.model.policy import Level, Policy
from maar.model.predicate import EVER_NS, Mask
from maar.model.time import DAY_NS, SECOND_NS, TimeRange
from maar.ports.metastore.log import Candidate
from maar.ports.plans.board import PollRequest, Renewal, Report
from maar.ports.reader.index import ViewRequest
from maar.services.compact.rules import COMPACT
from support.etcd.cluster import EtcdCluster, running
from support.metastore.fold import SMALL, TENANT, entropy, result, segment
from support.stores.memory_store import MemoryStore

pytestmark = pytest.mark.component

YEAR_NS = 365 * DAY_NS
EVER = TimeRange(0, 1 << 62)
WORKER = WorkerId("w")
PATIENCE_S = 60.0
POLICY = msgspec.structs.replace(
    SMALL,
    levels=(Level(count=3, bytes=1 << 20, age_ns=SECOND_NS), *SMALL.levels[1:]),
    retention_ns=30 * DAY_NS,
    lease_ns=30 * SECOND_NS,
)


class WrongClock(SystemClock):
    """Goes as it should, and shows another date."""

    def __init__(self, ahead_ns: int) -> None:
        self._ahead_ns = ahead_ns

    def wall_ns(self) -> int:
        return super().wall_ns() + self._ahead_ns


class Household:
    """Replicas that reach each other by call."""

    def __init__(self, etcd: EtcdCluster, names: tuple[str, ...], *, election_s: float = 2.0):
        self._etcd = etcd
        self._names = names
        self._election_s = election_s
        self._store = MemoryStore()
        self.members: dict[str, MetastoreService] = {}

    async def join(
        self, name: str, *, ahead_ns: int = 0, policy: Policy = POLICY
    ) -> MetastoreService:
        settings = self._etcd.settings(election_s=self._election_s)
        member = self.members[name] = MetastoreService(
            await EtcdLog.open(settings),
            self._store,
            WrongClock(ahead_ns),
            policy,
            entropy=entropy(random.Random()),
            candidate=Candidate(name, name),
            take_snapshot=self._snapshot,
            registry=CollectorRegistry(),
            others=[other for other in self._names if other != name],
            connect=lambda other: self.members[other],
        )
        await member.start()
        return member

    async def leader(self) -> MetastoreService:
        found: list[MetastoreService] = []

        async def one_leads() -> bool:
            statuses = {name: await one.replica() for name, one in self.members.items()}
            found[:] = [
                self.members[name] for name, s in statuses.items() if s.standing == "leader"
            ]
            return len(found) == 1

        await until(one_leads, "one of them leads")
        return found[0]

    async def leave(self, name: str) -> None:
        await self.members.pop(name).stop()

    async def _snapshot(self) -> int:
        log = await EtcdLog.open_reader(self._etcd.settings())
        try:
            return await snapshot.make(log, self._store)
        finally:
            await log.close()


@asynccontextmanager
async def household(
    etcd: EtcdCluster, *names: str, election_s: float = 2.0
) -> AsyncIterator[Household]:
    made = Household(etcd, names, election_s=election_s)
    try:
        yield made
    finally:
        for name in list(made.members):
            await made.leave(name)


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S} s in vain until {what}"
        await asyncio.sleep(0.05)


def of_today(number: int, *, at: int) -> BlockMeta:
    meta = segment(number, at=at)
    now = time.time_ns()
    (dataset,) = meta.datasets
    times = {"min_time_ns": now, "max_time_ns": now + 1}
    return msgspec.structs.replace(
        meta, datasets=(msgspec.structs.replace(dataset, **times),), dated_ns=now, **times
    )


async def register(service: MetastoreService, *numbers: int) -> set[str]:
    at = (await service.now()).lease_time
    metas = tuple(of_today(number, at=at) for number in numbers)
    reply = await service.add_blocks(metas)
    assert set(reply.refusals) == {""}
    return {meta.id for meta in metas}


async def shown(service: MetastoreService) -> set[str]:
    return {meta.id for meta in (await service.view(ViewRequest(TENANT, EVER))).blocks}


def test_a_leader_whose_clock_is_a_year_ahead_deletes_nothing_and_freezes_nothing(
    tmp_path: Path,
) -> None:
    async def story(etcd: EtcdCluster) -> None:
        async with household(etcd, "early", "right", "fair") as home:
            early = await home.join("early", ahead_ns=YEAR_NS)
            for name in ("right", "fair"):
                await home.join(name)
            assert await home.leader() is early
            began, first = time.monotonic_ns(), (await early.now()).lease_time
            added = await register(early, 1, 2, 3, 4, 5)
            reply = await early.poll(PollRequest(WORKER, 1, kinds=(COMPACT,)))
            (plan,) = reply.granted
            await _some_housekeeping(early)
            assert "ahead" in (await early.retention()).trouble
            assert await early.expiring() == ()
            for one in home.members.values():
                assert await shown(one) == added, "retention went by the wrong clock"
            late = (await early.now()).lease_time
            passed = time.monotonic_ns() - began
            assert 0 < late - first <= passed, "lease time follows the wall clock"

            await home.leave("early")
            heir = await home.leader()
            now = (await heir.now()).lease_time
            assert late <= now <= late + time.monotonic_ns() - began - passed + SECOND_NS
            kept = await heir.poll(PollRequest(WORKER, 0, (Renewal(plan.id, plan.token, True),)))
            assert [one.plan for one in kept.kept] == [plan.id], "a live lease was lost"
            report = Report(plan.id, plan.token, result(plan.id, plan.token, plan.inputs))
            (outcome,) = (await heir.poll(PollRequest(WORKER, 0, (), (report,)))).outcomes
            assert outcome.accepted, outcome
            await register(heir, 6, 7)
            await until(lambda: _hands_out_by_age(heir), "age closes a batch: time goes on")
            await _some_housekeeping(heir)
            assert (await heir.retention()).trouble == ""
            assert len(await shown(heir)) == len(added) - len(plan.inputs) + 1 + 2

            # And back again: who comes late, with a clock like that, follows like all others.
            early = await home.join("early", ahead_ns=YEAR_NS)
            assert await shown(early) == await shown(heir)

    with running(tmp_path, members=3) as etcd:
        asyncio.run(story(etcd))


def test_a_deletion_holds_across_a_change_of_leaders(tmp_path: Path) -> None:
    """Its leader goes right after the answer; a plan from before it completes at the next one."""
    mask = Mask(TENANT, "checkout", 0, EVER_NS)

    async def hidden(service: MetastoreService) -> set[str]:
        found = (await service.view(ViewRequest(TENANT, EVER))).masks
        assert set(found.values()) <= {(mask,)}
        return set(found)

    async def story(etcd: EtcdCluster) -> None:
        async with household(etcd, "first", "second") as home:
            first, second = await home.join("first"), await home.join("second")
            assert await home.leader() is first
            old = await register(first, 1, 2, 3, 4)
            (plan,) = (await first.poll(PollRequest(WORKER, 1, kinds=(COMPACT,)))).granted
            made = await first.delete_profiles(mask, dry_run=False, request_id="ticket-17")
            assert (made.blocks, await hidden(first)) == (4, old)
            new = await register(first, 5)
            await until(lambda: _has(second, new), "the follower has what the leader has")
            assert await hidden(second) == old

            await home.leave("first")
            heir = await home.leader()
            assert [each.predicate for each in await heir.deletions()] == [made.predicate]
            again = await heir.delete_profiles(mask, dry_run=False, request_id="ticket-17")
            assert again == made
            report = Report(plan.id, plan.token, result(plan.id, plan.token, plan.inputs))
            (outcome,) = (await heir.poll(PollRequest(WORKER, 0, (), (report,)))).outcomes
            assert outcome.accepted, outcome
            (left,) = old - {meta.id for meta in plan.inputs}
            (merged,) = await shown(heir) - {left, *new}
            assert await hidden(heir) == {left, merged}, "it was granted before the deletion"
            newer = await register(heir, 6, 7)
            assert await hidden(heir) == {left, merged}
            (plan,) = (await heir.poll(PollRequest(WORKER, 1, kinds=(COMPACT,)))).granted
            told = {str(meta.id): plan.masks_of(at) for at, meta in enumerate(plan.inputs)}
            assert told.pop(left) == (mask,)
            assert set(told) <= new | newer
            assert set(told.values()) == {()}

            first = await home.join("first")
            assert await hidden(first) == {left, merged}

    with running(tmp_path, members=1) as etcd:
        asyncio.run(story(etcd))


async def _has(service: MetastoreService, blocks: set[str]) -> bool:
    return blocks <= await shown(service)


async def _some_housekeeping(service: MetastoreService) -> None:
    """Until the loop, which looks twice a second, has had its chance a few times."""
    start = (await service.now()).lease_time

    async def passed() -> bool:
        return (await service.now()).lease_time > start + 3 * SECOND_NS

    await until(passed, "three seconds of lease time have passed")


async def _hands_out_by_age(service: MetastoreService) -> bool:
    return bool((await service.poll(PollRequest(WORKER, 1, kinds=(COMPACT,)))).granted)


QUOTA = 64 << 20
ELECTION_S = 4.0  # what a busy machine may stall for without an election
JUNK = b"/junk/"
PIECE = 32 << 10
AT_ONCE = 64


def test_etcd_at_its_quota_takes_nothing_more_but_loses_nothing_and_recovers(
    tmp_path: Path,
) -> None:
    async def story(etcd: EtcdCluster) -> None:
        async with (
            household(etcd, "only", election_s=ELECTION_S) as home,
            junk_in(etcd) as junk,
        ):
            only = await home.join("only")
            term = (await only.replica()).term
            numbers = iter(range(1, 1_000_000))
            added = await register(only, next(numbers))
            said: list[str] = []

            async def taken() -> bool:
                try:
                    added.update(await register(only, next(numbers)))
                except StoreFull as error:
                    said.append(str(error))
                    return False
                return True

            async def refused() -> bool:
                return not await taken()

            await junk.fill(0.82)
            await until(refused, "registrations are refused before etcd refuses them")
            assert "alarm:NOSPACE" not in await asyncio.to_thread(etcd.etcdctl, "alarm", "list")
            assert await shown(only) >= added, "reading needs no room"
            pinned, _ = await asyncio.gather(only.pin("a new reader"), taken())
            assert pinned, "what a reader needs is taken still, whoever else is refused"
            await junk.clear()
            await until(taken, "registrations are taken again")

            await junk.fill(2.0)
            await until(refused, "registrations are refused while etcd takes nothing")
            assert "alarm:NOSPACE" in await asyncio.to_thread(etcd.etcdctl, "alarm", "list")
            await asyncio.sleep(ELECTION_S + 1)  # the election's lease is renewed all the same
            assert await refused()
            assert await shown(only) >= added
            await junk.clear()
            await until(taken, "registrations are taken again, and nobody had to disarm an alarm")
            assert await shown(only) >= added
            assert (await only.replica()).term == term, "a full etcd cost leadership"
            assert all("quota" in sentence for sentence in said), said
            status = await only.status()
            assert status.profiles_added == 10 * len(await shown(only))

    with running(tmp_path, quota_bytes=QUOTA) as etcd:
        asyncio.run(story(etcd))


def test_room_that_was_given_back_in_large_pieces_is_seen(tmp_path: Path) -> None:
    """After a few large deletions etcd goes on counting them as used until the next write."""

    async def story(etcd: EtcdCluster) -> None:
        async with household(etcd, "only") as home, junk_in(etcd, piece=1 << 20) as junk:
            only = await home.join("only")
            numbers = iter(range(1, 1_000_000))

            async def taken() -> bool:
                try:
                    await register(only, next(numbers))
                except (StoreFull, NotLeading):  # who lost the lease cannot get it back meanwhile
                    return False
                return True

            async def not_taken() -> bool:
                return not await taken()

            await junk.fill(2.0)
            await until(not_taken, "no registration is taken")
            await junk.clear()
            await until(taken, "registrations are taken again")

    with running(tmp_path, quota_bytes=QUOTA) as etcd:
        asyncio.run(story(etcd))


class Junk:
    """What somebody else keeps in the same etcd."""

    def __init__(self, channel: grpc.aio.Channel, *, piece: int) -> None:
        self._piece = piece
        self._kv = rpc.KVStub(channel)
        self._maintenance = rpc.MaintenanceStub(channel)
        self._count = 0

    async def fill(self, share: float) -> None:
        """Up to a share of the quota; over all of it, until etcd refuses."""
        while (missing := share * QUOTA - await self._in_use()) > 0:
            puts = [self._put() for _ in range(int(missing / self._piece / 2) + 1)]
            for at in range(0, len(puts), AT_ONCE):
                if not all(await asyncio.gather(*puts[at : at + AT_ONCE])):
                    for left in puts[at + AT_ONCE :]:
                        left.close()
                    return

    async def _put(self) -> bool:
        """Small values, which leave few holes: etcd's alarm goes by the size of its file."""
        self._count += 1
        key = JUNK + str(self._count).encode()
        try:
            await self._kv.Put(rpc.PutRequest(key=key, value=secrets.token_bytes(self._piece)))
        except grpc.aio.AioRpcError as error:
            if "space exceeded" in (error.details() or ""):
                return False
            raise
        return True

    async def _in_use(self) -> int:
        await asyncio.sleep(0.3)  # etcd commits, and counts, ten times a second
        return int((await self._maintenance.Status(rpc.StatusRequest())).dbSizeInUse)

    async def clear(self) -> None:
        end = JUNK[:-1] + b"0"
        await self._kv.DeleteRange(rpc.DeleteRangeRequest(key=JUNK, range_end=end))


@asynccontextmanager
async def junk_in(etcd: EtcdCluster, *, piece: int = PIECE) -> AsyncIterator[Junk]:
    async with grpc.aio.insecure_channel(etcd.endpoints[0]) as channel:
        yield Junk(channel, piece=piece)
