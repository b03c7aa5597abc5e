"""Cleaning as it runs beside the metastore: on real stores, with no worker about, over restarts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from maar.adapters.sqlite.log import SqliteLog
from maar.adapters.stores.open import open_store
from maar.metastore.recovery import restoring
from maar.metastore.replica import snapshot
from maar.metastore.replica.timing import Timing
from maar.metastore.service import MetastoreService
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import InvalidInput, NotLeading, Unavailable
from maar.model.ids import MAIN_STORE, Incarnation, TenantId, WorkerId
from maar.model.plan import Account, LeasedPlan, PlanResult
from maar.model.time import DAY_NS, SECOND_NS, TimeRange, WallTime
from maar.ports.metastore.log import Candidate
from maar.ports.operator.operator import Status
from maar.ports.plans.board import ConfirmDeletes, PollRequest, Renewal, Report
from maar.ports.reader.index import ViewRequest
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.services.compact.rules import COMPACT
from support.clock.fake_clock import FakeClock
from support.lake.fold_and_store import announce, objects_of, put, with_server_time
from support.metastore.fold import DAY_START_NS, SMALL, entropy, output, segment

pytestmark = [pytest.mark.component, pytest.mark.timeout(240)]

POLICY = msgspec.structs.replace(
    SMALL,
    stall_ns=10**9 * SECOND_NS,  # the test's clock leaps
    retire_delay_ns=60 * SECOND_NS,
    expired_delay_ns=60 * SECOND_NS,
    leftovers_ns=120 * SECOND_NS,
    retention_ns=DAY_NS,
)
W = WorkerId("w")
BRISK = Timing(clean_s=0.02)


class World:
    """A log, a store and a clock, which outlive the services that run on them."""

    def __init__(self, directory: Path, store: ObjectStore) -> None:
        self.directory = directory
        self.store = store
        self.clock = FakeClock(wall_ns=DAY_START_NS)
        self.random = random.Random(7)
        self.registry = CollectorRegistry()

    @asynccontextmanager
    async def running(self, timing: Timing = BRISK) -> AsyncIterator[MetastoreService]:
        log = SqliteLog.open(self.directory)
        self.registry = CollectorRegistry()

        async def no_snapshot() -> int:
            raise Unavailable("there is nobody who makes one")

        service = MetastoreService(
            log,
            self.store,
            self.clock,
            POLICY,
            entropy=entropy(self.random),
            candidate=Candidate("test"),
            take_snapshot=no_snapshot,
            registry=self.registry,
            timing=timing,
        )
        try:
            await service.start()
            yield service
        finally:
            await service.stop()
            await log.close()

    async def objects(self) -> set[str]:
        found = await asyncio.to_thread(lambda: list(self.store.list("")))
        return {info.key for info in found if not info.key.startswith(("metastore/", "markers/"))}

    async def put(self, *metas: BlockMeta) -> None:
        for meta in metas:
            await asyncio.to_thread(put, self.store, meta)


@pytest.fixture(params=["directory", "s3"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param == "s3":
        settings = request.getfixturevalue("s3_server").bucket()
    else:
        settings = StoreSettings(MAIN_STORE, (tmp_path / "store").as_uri())
    return World(tmp_path / "log", open_store(settings))


@pytest.fixture
def local(tmp_path: Path) -> World:
    settings = StoreSettings(MAIN_STORE, (tmp_path / "store").as_uri())
    return World(tmp_path / "log", open_store(settings))


async def until(service: MetastoreService, holds: Callable[[Status], bool]) -> Status:
    async with asyncio.timeout(100):
        while not holds(status := await service.status()):
            await asyncio.sleep(0.02)
        return status


async def added(world: World, service: MetastoreService, *numbers: int) -> list[BlockMeta]:
    now = await service.now()
    metas = [segment(n, at=now.lease_time) for n in numbers]
    await world.put(*metas)
    reply = await service.add_blocks(tuple(metas))
    assert set(reply.refusals) == {""}
    return metas


async def leased(service: MetastoreService) -> LeasedPlan:
    (plan,) = (await service.poll(PollRequest(W, 1, kinds=(COMPACT,)))).granted
    return plan


async def written(world: World, plan: LeasedPlan, attempt: str) -> BlockMeta:
    profiles = sum(meta.profiles for meta in plan.inputs)
    made = output(plan.id, plan.token, plan.inputs, profiles=profiles, attempt=attempt)
    await asyncio.to_thread(announce, world.store, made, plan.id, plan.token, attempt)
    await world.put(made)
    return made


async def completed(service: MetastoreService, plan: LeasedPlan, made: BlockMeta) -> None:
    result = PlanResult(COMPACT, (made,), Account(made.profiles, 0, 0))
    report = Report(plan.id, plan.token, result)
    (outcome,) = (await service.poll(PollRequest(W, 0, reports=(report,)))).outcomes
    assert outcome.accepted, outcome.refusal


def test_everything_goes_in_its_time_with_no_worker_about(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            await added(world, service, 1, 2, 3)
            plan = await leased(service)
            winner = await written(world, plan, "0-1-aa")
            await written(world, plan, "0-2-bb")  # a twin under the same token
            await completed(service, plan, winner)
            await added(world, service, 4, 5, 6)
            failing = await leased(service)
            await written(world, failing, "0-3-cc")
            report = Report(failing.id, failing.token, None, "it broke")
            await service.poll(PollRequest(W, 0, reports=(report,)))
            before = await world.objects()
            assert len(before) == 6 + 3 * len(objects_of(winner)) + 3
            # the last worker has gone, and nobody pushes
            world.clock.advance(121 * SECOND_NS)
            status = await until(service, lambda s: s.leftovers == s.retired == 0)
            kept = await world.objects()
            assert set(objects_of(winner)) <= kept
            assert len(kept) == len(objects_of(winner)) + 3
            assert (status.blocked, status.profiles_expired) == ((), 0)
            # a day later
            world.clock.advance(DAY_NS)
            await until(service, lambda s: s.profiles_expired == 60)
            assert set(objects_of(winner)) <= await world.objects()  # readers may hold it still
            world.clock.advance(61 * SECOND_NS)
            status = await until(service, lambda s: s.retired == 0)
            assert await world.objects() == set()
            assert (status.levels, status.blocked) == ((), ())
            assert status.profiles_added == status.profiles_expired

    asyncio.run(test())


def test_a_restart_at_any_point_changes_nothing_about_what_goes(local: World) -> None:
    async def test() -> None:
        async with local.running() as service:
            await added(local, service, 1, 2, 3)
            plan = await leased(service)
            made = await written(local, plan, "0-1-aa")
            await written(local, plan, "0-2-bb")
            await completed(service, plan, made)
        async with local.running() as service:
            local.clock.advance(121 * SECOND_NS)
            await until(service, lambda s: s.leftovers == s.retired == 0)
            assert await local.objects() == set(objects_of(made))
            local.clock.advance(2 * DAY_NS)
            await until(service, lambda s: s.profiles_expired == 30)
        async with local.running() as service:
            assert (await service.status()).profiles_expired == 30
            assert await local.objects() == set(objects_of(made))
            local.clock.advance(61 * SECOND_NS)
            await until(service, lambda s: s.retired == 0)
            assert await local.objects() == set()

    asyncio.run(test())


def test_a_missing_output_stops_the_deletion_tells_everybody_and_passes(local: World) -> None:
    def metric(name: str) -> float | None:
        return local.registry.get_sample_value(f"maar_metastore_{name}")

    async def test() -> None:
        async with local.running() as service:
            await added(local, service, 1, 2, 3)
            plan = await leased(service)
            made = await written(local, plan, "0-1-aa")
            await completed(service, plan, made)
            key = made.files[0].locations[0].key
            body = local.store.read(key)
            local.store.delete(key)
            local.clock.advance(61 * SECOND_NS)
            status = await until(service, lambda s: bool(s.blocked))
            assert key in status.blocked[0]
            assert status.retired == 3
            assert metric("clean_blocked_blocks") == 3
            local.store.create(key, body)
            local.clock.advance(61 * SECOND_NS)
            status = await until(service, lambda _: metric("cleaned_blocks_total") == 3)
            assert (status.blocked, status.retired) == ((), 0)
            assert metric("clean_blocked_blocks") == 0

    asyncio.run(test())


def test_an_operator_sets_and_reads_retention_and_sees_what_would_go(local: World) -> None:
    acme = TenantId("acme")
    never_by_itself = BRISK._replace(expire_ns=10**18)

    async def test() -> None:
        async with local.running(never_by_itself) as service:
            metas = await added(local, service, 1, 2)
            with pytest.raises(InvalidInput, match="at least 1 hour"):
                await service.set_retention(acme, period_ns=5)
            found = await service.set_retention(acme, period_ns=0)
            assert (found.default_ns, found.tenants) == (DAY_NS, {"acme": 0})
            local.clock.advance(2 * DAY_NS)
            assert await service.expiring() == ()
            await service.set_retention(acme, period_ns=3 * DAY_NS)
            assert await service.expiring() == ()
            found = await service.set_retention(acme, period_ns=None)
            assert found.tenants == {}
            for tenant in ("", "acme"):
                dry = await service.expiring(tenant=tenant)
                assert [one.block for one in dry] == metas
            assert len(await service.expiring(limit=1)) == 1
            assert await service.expiring(tenant="globex") == ()
            assert service.leader_term is not None
            assert await service.leader_term.cleaner.expire() == 2
            assert await service.expiring() == ()
            assert (await service.status()).profiles_expired == 20

    asyncio.run(test())


def test_a_year_ahead_and_an_undated_push_take_nothing_and_undo_brings_back_what_was_right_to_take(
    local: World,
) -> None:
    """A whole metastore over a real log: one host, whose clock is wrong when it starts again."""
    year_ns = 365 * DAY_NS

    async def test() -> None:
        async with local.running() as service:
            await added(local, service, 1, 2)
        local.clock.wall += year_ns
        async with local.running() as service:
            now = await service.now()
            undated = with_server_time(segment(3, at=now.lease_time), local.clock.wall)
            await local.put(undated)
            await service.add_blocks((undated,))
            local.clock.advance(61 * SECOND_NS)
            status = await until(service, lambda s: s.retention.held)
            assert "clock not trusted: it is 365.0 days ahead" in status.retention.trouble
            assert (status.profiles_expired, status.retired) == (0, 0)
        local.clock.wall -= year_ns
        async with local.running() as service:
            status = await service.status()
            assert status.retention.held, "neither a restart nor a clock that is right ends it"
            found = await service.release_retention()
            assert (found.held, found.paused) == (False, "")
            local.clock.advance(DAY_NS + 61 * SECOND_NS)
            status = await until(service, lambda s: s.profiles_expired == 20)
            assert status.retention.expired == 2
            undone = await service.undo_retention(why="a mistake")
            assert (undone.blocks, undone.profiles) == (2, 20)
            local.clock.advance(10 * DAY_NS)
            status = await service.status()
            assert (status.profiles_expired, status.retired) == (0, 0)
            assert "a mistake" in status.retention.paused
            view = await service.view(ViewRequest(TenantId("acme"), TimeRange(0, 1 << 62)))
            assert len(view.blocks) == 3

    asyncio.run(test())


def test_a_leader_whose_log_is_restored_elsewhere_deletes_nothing_from_then_on(
    local: World, tmp_path: Path
) -> None:
    """As one that was stopped meanwhile: it still leads its own log, and cleaning is due in it."""

    async def test() -> None:
        async with local.running() as service:
            await added(local, service, 1, 2, 3)
            plan = await leased(service)
            await completed(service, plan, await written(local, plan, "0-1-aa"))
            await added(local, service, 4, 5, 6)
            failing = await leased(service)
            left = await written(local, failing, "0-2-bb")
            start = Renewal(failing.id, failing.token, started=True)
            report = Report(failing.id, failing.token, None, "it broke")
            await service.poll(PollRequest(W, 0, renewals=(start,)))
            await service.poll(PollRequest(W, 0, reports=(report,)))
            undo = (await service.roll_back(failing.id)).rollback
            (held,) = (await service.poll(PollRequest(W, 1, execute=undo))).granted
            confirm = ConfirmDeletes(held.id, held.token, tuple(objects_of(left)))
            assert await service.confirm_deletes(confirm) == confirm.keys
            reader = SqliteLog.open_reader(local.directory)
            await snapshot.make(reader, local.store)
            await reader.close()
            elsewhere = SqliteLog.open(tmp_path / "elsewhere")
            origin = await restoring.newest(local.store)
            await restoring.restore(
                elsewhere,
                local.store,
                origin,
                incarnation=Incarnation("00000002"),
                wall=WallTime(local.clock.wall_ns()),
            )
            await elsewhere.close()
            with pytest.raises(NotLeading, match="restored as another one"):
                await service.confirm_deletes(confirm)  # of whoever carries out the rollback
            before = await local.objects()
            local.clock.advance(121 * SECOND_NS)
            status = await until(service, lambda s: bool(s.blocked))
            assert status.retired == 3
            assert "was restored as another one" in status.blocked[0]
            assert await local.objects() == before

    asyncio.run(test())


def test_what_attempts_of_a_lost_log_left_is_told_then_swept_and_what_was_adopted_stays(
    world: World, tmp_path: Path
) -> None:
    async def test() -> None:
        async with world.running() as service:
            await added(world, service, 1, 2, 3)
            reader = SqliteLog.open_reader(world.directory)
            await snapshot.make(reader, world.store)
            await reader.close()
            ((_, saved),) = snapshot.list_snapshots(world.store)  # there is one more at the end
            whole = await leased(service)
            made = await adoptable(world, whole, "0-1-aa")
            await completed(service, whole, made)
            await added(world, service, 4, 5, 6)
            lost = await leased(service)
            unfinished = await written(world, lost, "0-2-bb")
            for key in objects_of(unfinished)[3:]:
                await asyncio.to_thread(world.store.delete, key)
        world.directory = tmp_path / "again"
        log = SqliteLog.open(world.directory)
        await restoring.restore(
            log,
            world.store,
            await restoring.newest(world.store, saved),
            incarnation=Incarnation("00000002"),
            wall=WallTime(world.clock.wall_ns()),
        )
        await log.close()
        async with world.running() as service:
            await until(service, lambda s: not s.adopting)
            assert (await service.find_orphans()).objects == 0, "tasks may still write"
            world.clock.advance(121 * SECOND_NS)
            found = await service.find_orphans()
            kinds = sorted(each.kind for each in found.first)
            assert (kinds, found.complete) == (["intent", "intent", *["output"] * 3], True)
            before = await world.objects()
            assert {each.key for each in found.first} <= before
            swept = await service.sweep_orphans()
            assert (swept.objects, swept.bytes) == (found.objects, found.bytes)
            assert before - await world.objects() >= {each.key for each in found.first}
            assert set(objects_of(made)) <= await world.objects()
            assert (await service.find_orphans()).objects == 0

    asyncio.run(test())


async def adoptable(world: World, plan: LeasedPlan, attempt: str) -> BlockMeta:
    """As `written`, with a manifest that says what the block is."""
    made = await written(world, plan, attempt)
    manifest = keys.manifest_of(made.files[0].locations[0].key)
    await asyncio.to_thread(world.store.delete, manifest)
    await asyncio.to_thread(world.store.create, manifest, msgspec.msgpack.encode(made))
    return made
