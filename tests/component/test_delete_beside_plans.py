"""Deletions while plans run that were granted, or opened, before them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from maar.metastore.service import MetastoreService
from maar.model.refusal import Refusal
from maar.model.time import SECOND_NS
from maar.ports.plans.board import PollRequest, Renewal, Report, SchedulePlan
from maar.services.cluster.rules import CLUSTER
from maar.services.compact.rules import COMPACT
from maar.services.ingest import run as ingesting
from maar.services.ingest.rules import INGEST
from maar.services.ingest.source import FileState, ReadFile, Whose
from maar.services.logcompact.rules import LOGCOMPACT
from support.lake.deleting import (
    ATTEMPTS,
    OFTEN,
    POLICY,
    WORKER,
    bytes_of,
    carried_out,
    eventually,
    finish,
    grant_all,
    lake,
    mask,
    never_seen,
    of,
    open_in,
    run,
    work,
)
from support.lake.query_lake import TENANT, Known
from support.lake.whole_lake import WholeLake, patient

__all__ = ["lake"]

pytestmark = pytest.mark.component


def test_a_plan_that_was_granted_before_is_not_disturbed_and_brings_nothing_back(
    lake: WholeLake,
) -> None:
    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            gone, kept = of("cart", 1), of("mail", 1)
            await lake.push(service, [gone, kept])
            (plan,) = await grant_all(lake, service, COMPACT)
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
            (plan,) = await grant_all(lake, service, LOGCOMPACT)
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
    lake = WholeLake(tmp_path, open_in(tmp_path), patient(POLICY), OFTEN)

    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            gone = [of("cart", number) for number in range(4)]
            kept = [of("mail", number) for number in range(4)]
            for shard, (one, other) in enumerate(zip(gone, kept, strict=True), start=1):
                await lake.push(service, [one, other], shard=shard)
            await work(lake, service, COMPACT)
            lake.clock.advance(14 * 3600 * SECOND_NS)  # the day is closed
            day = (await service.blocks())[0].day
            # It waits and holds its blocks, so that the rewriting for the deletion cannot be first.
            made = await service.schedule_plan(SchedulePlan(CLUSTER, tenant=TENANT, day=day))
            assert made.plan is not None, made
            if not late:
                await service.delete_profiles(mask("cart"), dry_run=False)
            (plan,) = await grant_all(lake, service, CLUSTER)
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


def test_a_worker_that_deletes_too_much_or_too_little_is_refused(lake: WholeLake) -> None:
    async def test() -> None:
        async with lake.running() as service:
            await lake.push(service, [of("cart", 1), of("mail", 1)])
            await service.delete_profiles(mask("cart"), dry_run=False)
            (plan,) = await grant_all(lake, service, COMPACT)
            for masks, why in (
                ((), Refusal.HIDDEN),
                (((mask(""),),), Refusal.SHARE),
            ):
                wrong = msgspec.structs.replace(plan, masks=masks)
                with pytest.raises(AssertionError, match=str(why)):
                    await finish(lake, service, wrong)
            await finish(lake, service, plan)

    run(test)
