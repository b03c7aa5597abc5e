"""A service is deleted while everything else goes on: nobody sees it again, and its bytes go.

The oracle is the list of profiles that were pushed and not deleted: every way to ask must show
exactly those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from maar.adapters.sqlite.log import SqliteLog
from maar.adapters.stores.open import open_store
from maar.block.format.segment import open_segment
from maar.metastore.recovery import restoring
from maar.metastore.replica import snapshot
from maar.metastore.replica.timing import Timing
from maar.metastore.service import MetastoreService
from maar.model import keys
from maar.model.block import Kind
from maar.model.errors import InvalidInput, NotFound, Rejected
from maar.model.ids import MAIN_STORE, Incarnation, TenantId, WorkerId
from maar.model.plan import LeasedPlan, PlanKind
from maar.model.policy import Level, Policy
from maar.model.predicate import EVER_NS, Mask
from maar.model.refusal import Refusal
from maar.model.time import SECOND_NS, WallTime
from maar.ports.deletions import Deletion
from maar.ports.object_store import ObjectStore, StoreSettings
from maar.ports.plan_board import PollRequest, Renewal, Report, SchedulePlan
from maar.ports.query import GetProfile, ListLabelValues, Scope
from maar.services.cluster.rules import CLUSTER
from maar.services.compact.rules import COMPACT
from maar.services.erase.rules import ERASE
from maar.services.ingest import run as ingesting
from maar.services.ingest.rules import INGEST
from maar.services.ingest.source import FileState, ReadFile, Whose
from maar.services.logcompact.rules import LOGCOMPACT
from maar.services.runs import carry_out
from support.lake.query_lake import TENANT, Known, known_profile
from support.lake.whole_lake import ALWAYS, NOON_NS, Asker, WholeLake, letters_of, patient, profile

pytestmark = pytest.mark.component

WORKER = WorkerId("w")
GLOBEX = TenantId("globex")
AGE_NS = SECOND_NS
# Levels are merged when told to; nothing that was replaced is kept for long.
POLICY = Policy(
    levels=tuple(Level(count=1000, bytes=1 << 40, age_ns=AGE_NS) for _ in range(2)),
    stall_ns=10**9 * SECOND_NS,
    retire_delay_ns=SECOND_NS,
    leftovers_ns=SECOND_NS,
    registration_floor_lag_ns=SECOND_NS,
    retention_ns=0,
)
OFTEN = Timing(drain_s=0.05, clean_s=0.02)
ATTEMPTS = count(1)


def opened(directory: Path) -> ObjectStore:
    return open_store(StoreSettings(MAIN_STORE, (directory / "store").as_uri()))


@pytest.fixture
def lake(tmp_path: Path) -> WholeLake:
    return WholeLake(tmp_path, opened(tmp_path), POLICY, OFTEN)


def of(service: str, number: int, **how: Any) -> Known:
    name = f"{service}_{number}"
    return profile(name, number + 1, service=service, client_id=name, **how)


def mask(service: str, *, first: int = 0, until: int = EVER_NS) -> Mask:
    return Mask(TENANT, service, first, until)


async def granted(
    lake: WholeLake, service: MetastoreService, *kinds: PlanKind
) -> tuple[LeasedPlan, ...]:
    lake.clock.advance(AGE_NS + 1)
    found = (await service.poll(PollRequest(WORKER, 8, kinds=kinds))).granted
    starts = tuple(Renewal(plan.id, plan.token, started=True) for plan in found)
    await service.poll(PollRequest(WORKER, 0, renewals=starts))
    return found


async def finish(lake: WholeLake, service: MetastoreService, plan: LeasedPlan) -> None:
    result = await asyncio.to_thread(
        carry_out,
        plan,
        store=lake.store,
        attempt=f"a{next(ATTEMPTS)}",
        scratch=lake.directory / "scratch",
        wall_ns=lake.clock.wall_ns(),
        guard=lambda: None,
    )
    report = Report(plan.id, plan.token, result)
    reply = await service.poll(PollRequest(WORKER, 0, reports=(report,)))
    assert reply.outcomes[0].accepted, reply.outcomes[0].refusal


async def work(lake: WholeLake, service: MetastoreService, *kinds: PlanKind) -> int:
    """Until nothing is due; how many plans that were."""
    done = 0
    while plans := await granted(lake, service, *kinds):
        for plan in plans:
            await finish(lake, service, plan)
            done += 1
    return done


async def eventually(what: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await what():
            await asyncio.sleep(0.01)


async def carried_out(lake: WholeLake, service: MetastoreService) -> None:
    """Workers work and time passes until no deletion is left."""

    async def gone() -> bool:
        await work(lake, service, COMPACT, ERASE)
        lake.clock.advance(60 * SECOND_NS)
        return not await service.deletions()

    await eventually(gone)


async def never_seen(ask: Asker, profiles: Sequence[Known]) -> None:
    for each in profiles:
        with pytest.raises(NotFound):
            await ask.engine.call(GetProfile(TENANT, each.raw.id, ALWAYS))


def bytes_of(lake: WholeLake) -> bytes:
    """Everything that the store holds, but for the metastore's own."""
    found = []
    for info in lake.store.list(""):
        if not info.key.startswith(("metastore/", "markers/", "dlq/")):
            found.append(lake.store.read(info.key))
    return b"".join(found)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 120))


@pytest.mark.parametrize("level", [0, 1, 2])
def test_nobody_sees_it_from_the_answer_on_and_what_comes_later_stays(
    lake: WholeLake, level: int
) -> None:
    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            gone = [of("cart", number) for number in range(4)]
            kept = [of("mail", number) for number in range(3)]
            await lake.push(service, [*gone, *kept])
            for _ in range(level):
                for plan in await granted(lake, service, COMPACT):
                    await finish(lake, service, plan)
            await ask.sees([*gone, *kept])
            dry = await service.delete_profiles(mask("cart"), dry_run=True)
            assert (dry.predicate, dry.profiles, dry.blocks, dry.at_most) == (None, 4, 1, False)
            await ask.sees([*gone, *kept])
            made = await service.delete_profiles(mask("cart"), dry_run=False)
            assert (made.profiles, made.blocks) == (4, 1)
            assert made.predicate is not None
            await ask.sees(kept)
            await never_seen(ask, gone)
            values = ListLabelValues(Scope(TENANT, ALWAYS), "service_name")
            assert await ask.engine.call(values) == ("mail",)
            again = [of("cart", 9), gone[0]]  # the very same profile, pushed again
            await lake.push(service, again)
            await ask.sees([*kept, *again])
            await carried_out(lake, service)
            await ask.sees([*kept, *again])
            await never_seen(ask, gone[1:])
            status = await service.status()
            assert (status.deletions, status.profiles_deleted) == (0, 4)

    run(test)
    assert not list(lake.store.list(keys.DELETIONS))


def test_its_bytes_go(lake: WholeLake) -> None:
    async def test() -> None:
        async with lake.running() as service:
            await lake.push(service, [of("cart", 1), of("mail", 1)])
            await work(lake, service, COMPACT)
            assert b"cart_1" in bytes_of(lake)
            await service.delete_profiles(mask("cart"), dry_run=False)
            await carried_out(lake, service)
            held = bytes_of(lake)
            assert b"cart_1" not in held
            assert b"mail_1" in held

    run(test)


def test_a_time_range_is_deleted_and_no_more(lake: WholeLake) -> None:
    """Within one block, and one dataset of it: the index cannot tell how many there are."""

    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            every = [
                of("cart", number, time_ns=NOON_NS + number * SECOND_NS) for number in range(6)
            ]
            other = of("mail", 3, time_ns=NOON_NS + 3 * SECOND_NS)
            await lake.push(service, [*every, other])
            range_ = mask("cart", first=NOON_NS + 2 * SECOND_NS, until=NOON_NS + 4 * SECOND_NS)
            made = await service.delete_profiles(range_, dry_run=False)
            assert (made.profiles, made.at_most) == (6, True)
            left = [*every[:2], *every[4:], other]
            await ask.sees(left)  # level 0
            await never_seen(ask, every[2:4])
            await work(lake, service, COMPACT)
            await ask.sees(left)
            second = mask("cart", first=NOON_NS + 5 * SECOND_NS, until=NOON_NS + 6 * SECOND_NS)
            await service.delete_profiles(second, dry_run=False)
            await ask.sees([*every[:2], every[4], other])  # level 2, not rewritten yet
            await never_seen(ask, every[5:])
            await carried_out(lake, service)
            await ask.sees([*every[:2], every[4], other])

    run(test)


def test_all_services_of_a_tenant_and_no_other_tenant(lake: WholeLake) -> None:
    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            ours = [of("cart", 1), of("mail", 1)]
            theirs = known_profile(
                [(("main", "other"), {}, (1, 5))], time_ns=NOON_NS, tenant=GLOBEX, service="cart"
            )
            await lake.push(service, [*ours, theirs])
            await service.delete_profiles(mask(""), dry_run=False)
            await ask.sees([])
            assert await ask.values(tenant=GLOBEX) == {"other": 5}
            await carried_out(lake, service)
            await ask.sees([])
            assert await ask.values(tenant=GLOBEX) == {"other": 5}

    run(test)


def test_a_plan_that_was_granted_before_is_not_disturbed_and_brings_nothing_back(
    lake: WholeLake,
) -> None:
    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            gone, kept = of("cart", 1), of("mail", 1)
            await lake.push(service, [gone, kept])
            (plan,) = await granted(lake, service, COMPACT)
            await service.delete_profiles(mask("cart"), dry_run=False)
            await finish(lake, service, plan)
            assert await lake.levels(service) == {1}
            await ask.sees([kept])
            await never_seen(ask, [gone])
            await carried_out(lake, service)
            await ask.sees([kept])
            assert b"cart_1" not in bytes_of(lake)

    run(test)


def test_it_stays_deleted_while_segments_are_joined(lake: WholeLake) -> None:
    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            gone = [of("cart", number) for number in range(6)]
            kept = [of("mail", number) for number in range(6)]
            for one, other in zip(gone, kept, strict=True):
                await lake.push(service, [one, other])
            asked = SchedulePlan(LOGCOMPACT, shard=1)
            made = await service.schedule_plan(asked)
            assert made.plan is not None
            await service.delete_profiles(mask("cart"), dry_run=False)
            (plan,) = await granted(lake, service, LOGCOMPACT)
            await finish(lake, service, plan)
            await ask.sees(kept)
            (block,) = await service.blocks()
            assert [each.service for each in block.datasets] == ["mail"]
            later = of("cart", 9)
            await lake.push(service, [later])
            await carried_out(lake, service)
            await ask.sees([*kept, later])

    run(test)


@pytest.mark.parametrize("late", [False, True])
def test_it_stays_deleted_while_its_day_is_clustered(tmp_path: Path, late: bool) -> None:
    lake = WholeLake(tmp_path, opened(tmp_path), patient(POLICY), OFTEN)

    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            gone = [of("cart", number) for number in range(4)]
            kept = [of("mail", number) for number in range(4)]
            for shard, (one, other) in enumerate(zip(gone, kept, strict=True), start=1):
                await lake.push(service, [one, other], shard=shard)
            await work(lake, service, COMPACT)
            lake.clock.advance(14 * 3600 * SECOND_NS)  # the day is closed
            if not late:
                await service.delete_profiles(mask("cart"), dry_run=False)
            (plan,) = await granted(lake, service, CLUSTER)
            if late:
                await service.delete_profiles(mask("cart"), dry_run=False)
            await finish(lake, service, plan)
            await ask.sees(kept)
            await never_seen(ask, gone)
            await carried_out(lake, service)
            await ask.sees(kept)
            assert b"cart_1" not in bytes_of(lake)

    run(test)


class Backfilling:
    """A bulk write, step by step: opened, granted, and completed when a test says so."""

    def __init__(self, lake: WholeLake, service: MetastoreService) -> None:
        self._lake, self._service = lake, service

    async def open(self) -> None:
        """Every one has a source of its own."""
        wish = SchedulePlan(INGEST, tenant=TENANT, request_id=f"backfill-{next(ATTEMPTS)}")
        plan = (await self._service.schedule_plan(wish)).plan
        assert plan is not None
        self.plan = plan

    async def begin(self) -> None:
        asked = PollRequest(WORKER, 1, kinds=(INGEST,), execute=self.plan)
        (self._leased,) = (await self._service.poll(asked)).granted
        started = Renewal(self._leased.id, self._leased.token, started=True)
        await self._service.poll(PollRequest(WORKER, 0, renewals=(started,)))

    async def complete(self, profiles: Sequence[Known]) -> None:
        """What is known is looked at when it began; here that is nothing."""
        files = [ReadFile(each.raw.id.hex(), FileState.GOOD, each.raw) for each in profiles]
        result, told = await asyncio.to_thread(
            ingesting.run,
            self._leased,
            store=self._lake.store,
            attempt=f"a{next(ATTEMPTS)}",
            scratch=self._lake.directory / "scratch",
            wall_ns=self._lake.clock.wall_ns(),
            files=files,
            share=0,
            whose=Whose(TENANT, ""),
            known=(),
        )
        assert told.kept == len(profiles)
        report = Report(self._leased.id, self._leased.token, result)
        reply = await self._service.poll(PollRequest(WORKER, 0, reports=(report,)))
        assert reply.outcomes[0].accepted, reply.outcomes[0].refusal


@pytest.mark.parametrize("granted_before", [True, False])
def test_a_backfill_that_was_opened_before_it_is_hidden_and_one_opened_later_stays(
    lake: WholeLake, granted_before: bool
) -> None:
    """The very same profiles, three times: backfilled and deleted, deleted while they are being
    backfilled, and backfilled again.
    """

    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            gone = [of("cart", number) for number in range(3)]
            kept = [of("mail", number) for number in range(3)]
            first, second, later = (Backfilling(lake, service) for _ in range(3))
            await first.open()
            await first.begin()
            await first.complete([*gone, *kept])
            await ask.sees([*gone, *kept])
            await second.open()
            if granted_before:
                await second.begin()
            await service.delete_profiles(mask("cart"), dry_run=False)
            await ask.sees(kept)
            if not granted_before:
                await second.begin()
            await second.complete([*gone, of("mail", 9)])
            await ask.sees([*kept, of("mail", 9)])
            await never_seen(ask, gone)
            await later.open()
            await later.begin()
            await later.complete(gone[:2])
            await ask.sees([*kept, of("mail", 9), *gone[:2]])
            await carried_out(lake, service)
            await ask.sees([*kept, of("mail", 9), *gone[:2]])
            await never_seen(ask, gone[2:])
            assert b"cart_2" not in bytes_of(lake)
            assert b"cart_1" in bytes_of(lake)

    run(test)


def test_it_does_not_go_while_a_backfill_from_before_it_may_bring_something(
    lake: WholeLake,
) -> None:
    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            filling = Backfilling(lake, service)
            await filling.open()
            await service.delete_profiles(mask("cart"), dry_run=False)

            async def waits_for_it() -> bool:
                lake.clock.advance(10 * SECOND_NS)
                (deletion,) = await service.deletions()
                return f"plan {filling.plan} was opened before it" in deletion.waits

            await eventually(waits_for_it)
            lake.clock.advance(3600 * SECOND_NS)
            await filling.begin()
            await filling.complete([of("cart", 1)])
            await ask.sees([])
            await carried_out(lake, service)
            await ask.sees([])

    run(test)


def test_quarantine_is_rewritten_too(lake: WholeLake) -> None:
    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            broken = [
                Known(msgspec.structs.replace(each.raw, payload=f"bytes of {name}".encode()), [])
                for name in ("cart", "mail")
                for each in [of(name, 1)]
            ]
            await lake.push(service, broken)
            await work(lake, service, COMPACT)
            (block,) = await service.blocks()
            assert block.kind is Kind.QUARANTINE
            await service.delete_profiles(mask("cart"), dry_run=False)
            await never_seen(ask, broken[:1])
            await carried_out(lake, service)
            (block,) = await service.blocks()
            assert (block.kind, block.profiles) == (Kind.QUARANTINE, 1)
            assert await ask.engine.call(GetProfile(TENANT, broken[1].raw.id, ALWAYS))
            with lake.store.open(block.files[0].locations[0].key) as file:
                causes = open_segment(file).read(columns=["cause"])["cause"].to_pylist()
            assert all(causes)
            assert b"bytes of cart" not in bytes_of(lake)
            assert (await service.status()).profiles_quarantined == 2

    run(test)


def test_a_dead_letter_from_before_it_is_hidden_too(lake: WholeLake) -> None:
    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            gone, kept, later = of("cart", 1), of("mail", 1), of("cart", 2)
            meta = await lake.write(service, [gone, kept])
            lake.clock.advance(1)
            await service.delete_profiles(mask("cart"), dry_run=False)
            lake.clock.advance(1)
            await lake.push(service, [later])
            await lake.post_letter(service, meta)
            await ask.sees([kept, later])  # whether or not it has been delivered
            await letters_of(service).drain()
            await ask.sees([kept, later])
            await carried_out(lake, service)
            await ask.sees([kept, later])

    run(test)


@pytest.mark.parametrize("merged", [False, True])
def test_it_stays_deleted_in_a_log_that_is_restored_from_before_it(
    lake: WholeLake, merged: bool
) -> None:
    """The snapshot knows nothing of it; the object in the store does."""
    saved: list[str] = []

    async def before() -> None:
        async with lake.running() as service:
            await lake.push(service, [of("cart", 1), of("mail", 1)])
            await service.snapshot()
            saved.extend(key for _, key in snapshot.list_snapshots(lake.store))
            await lake.push(service, [of("cart", 2), of("mail", 2)])  # only the store knows
            if merged:
                for plan in await granted(lake, service, COMPACT):
                    await finish(lake, service, plan)
            lake.clock.advance(1)
            await service.delete_profiles(mask("cart"), dry_run=False, request_id="gdpr")
            lake.clock.advance(1)
            await lake.push(service, [of("cart", 3)])

    async def restore() -> None:
        (lake.directory / "log").rename(lake.directory / "lost")
        log = SqliteLog.open(lake.directory / "log")
        origin = await restoring.newest(lake.store, saved[0])
        await restoring.restore(
            log, lake.store, origin, incarnation=Incarnation("feedf00d"), wall=WallTime(NOON_NS)
        )
        await log.close()

    async def after() -> None:
        async with lake.running() as service, lake.engine(service) as ask:

            async def adopted() -> bool:
                return not (await service.status()).adopting

            await eventually(adopted)
            left = [of("mail", 1), of("mail", 2), of("cart", 3)]
            await ask.sees(left)
            await never_seen(ask, [of("cart", 1), of("cart", 2)])
            # Lease time begins again at the snapshot's, before that of the deletion.
            again = of("cart", 4)
            await lake.push(service, [again])
            (known,) = await service.deletions()
            asked = await service.delete_profiles(mask("cart"), dry_run=False, request_id="gdpr")
            assert asked.predicate == known.predicate
            await ask.sees([*left, again])
            await carried_out(lake, service)
            await ask.sees([*left, again])

    for step in (before, restore, after):
        run(step)


def test_another_leader_goes_on_with_it(lake: WholeLake) -> None:
    async def before() -> None:
        async with lake.running() as service:
            await lake.push(service, [of("cart", 1), of("mail", 1)])
            await work(lake, service, COMPACT)
            await service.delete_profiles(mask("cart"), dry_run=False)
            await service.snapshot()

    async def after() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            await ask.sees([of("mail", 1)])
            assert [each.mask.service for each in await service.deletions()] == ["cart"]
            await carried_out(lake, service)
            await ask.sees([of("mail", 1)])

    run(before)
    run(after)


def test_the_same_request_again_is_the_same_deletion_and_takes_nothing_that_came_since(
    lake: WholeLake,
) -> None:
    """While it is carried out, afterwards, and when another leader has read a snapshot."""

    async def asked(service: MetastoreService) -> Deletion:
        return await service.delete_profiles(mask("cart"), dry_run=False, request_id="gdpr-17")

    made: list[Deletion] = []

    async def before() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            await lake.push(service, [of("cart", 1), of("mail", 1)])
            made.append(await asked(service))
            await lake.push(service, [of("cart", 2)])
            assert await asked(service) == made[0]
            assert [each.predicate for each in await service.deletions()] == [made[0].predicate]
            with pytest.raises(Rejected, match=r"'gdpr-17' is that of deletion \d+, which is of"):
                await service.delete_profiles(mask("mail"), dry_run=False, request_id="gdpr-17")
            theirs = msgspec.structs.replace(mask("mail"), tenant=TenantId("globex"))
            await service.delete_profiles(theirs, dry_run=False, request_id="gdpr-17")
            with pytest.raises(InvalidInput, match="200 characters"):
                await service.delete_profiles(mask("cart"), dry_run=False, request_id="x" * 201)
            await carried_out(lake, service)
            assert await asked(service) == made[0]
            await ask.sees([of("mail", 1), of("cart", 2)])
            await service.snapshot()

    async def after() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            assert await asked(service) == made[0]
            assert not await service.deletions()
            await ask.sees([of("mail", 1), of("cart", 2)])
            other = await service.delete_profiles(mask("cart"), dry_run=False)
            assert other.predicate != made[0].predicate
            await ask.sees([of("mail", 1)])

    run(before)
    run(after)
    assert (made[0].profiles, made[0].blocks) == (1, 1)


def test_a_worker_that_deletes_too_much_or_too_little_is_refused(lake: WholeLake) -> None:
    async def test() -> None:
        async with lake.running() as service:
            await lake.push(service, [of("cart", 1), of("mail", 1)])
            await service.delete_profiles(mask("cart"), dry_run=False)
            (plan,) = await granted(lake, service, COMPACT)
            for masks, why in (
                ((), Refusal.HIDDEN),
                (((mask(""),),), Refusal.SHARE),
            ):
                wrong = msgspec.structs.replace(plan, masks=masks)
                with pytest.raises(AssertionError, match=str(why)):
                    await finish(lake, service, wrong)
            await finish(lake, service, plan)

    run(test)


def test_it_ends_in_a_lake_in_which_nothing_else_happens(lake: WholeLake) -> None:
    """Nothing is merged, so that nothing but the deletion needs the registration floor."""

    async def test() -> None:
        async with lake.running() as service:
            await service.delete_profiles(mask("nobody"), dry_run=False)

            async def gone() -> bool:
                lake.clock.advance(10 * SECOND_NS)
                return not await service.deletions()

            await eventually(gone)

    run(test)


def test_what_cannot_be_asked_for(lake: WholeLake) -> None:
    async def test() -> None:
        async with lake.running() as service:
            for wrong in (
                mask("cart", first=5_000, until=5_000),
                mask("cart", first=-1_000),
                mask("cart", first=1),
                Mask(TenantId("no/such"), "cart", 0, EVER_NS),
            ):
                with pytest.raises(InvalidInput):
                    await service.delete_profiles(wrong, dry_run=False)
            assert not await service.deletions()
            for number in range(POLICY.predicates_max):
                await service.delete_profiles(mask(f"s{number}"), dry_run=False)
            with pytest.raises(Rejected, match="100 deletions"):
                await service.delete_profiles(mask("cart"), dry_run=False)

    run(test)
