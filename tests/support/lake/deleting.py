"""Deletions in a whole lake, and the plans that carry them out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from maar.adapters.stores.open import open_store
from maar.metastore.replica.timing import Timing
from maar.metastore.service import MetastoreService
from maar.model.errors import NotFound
from maar.model.ids import MAIN_STORE, TenantId, WorkerId
from maar.model.plan import LeasedPlan, PlanKind
from maar.model.policy import Level, Policy
from maar.model.predicate import EVER_NS, Mask
from maar.model.time import SECOND_NS
from maar.ports.plans.board import PollRequest, Renewal, Report
from maar.ports.reader.query import GetProfile
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.services.compact.rules import COMPACT
from maar.services.erase.rules import ERASE
from maar.services.runs import carry_out
from support.lake.query_lake import TENANT, Known
from support.lake.whole_lake import ALWAYS, Asker, WholeLake, profile

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


def open_in(directory: Path) -> ObjectStore:
    return open_store(StoreSettings(MAIN_STORE, (directory / "store").as_uri()))


@pytest.fixture
def lake(tmp_path: Path) -> WholeLake:
    return WholeLake(tmp_path, open_in(tmp_path), POLICY, OFTEN)


def of(service: str, number: int, **how: Any) -> Known:
    name = f"{service}_{number}"
    return profile(name, number + 1, service=service, client_id=name, **how)


def mask(service: str, *, first: int = 0, until: int = EVER_NS) -> Mask:
    return Mask(TENANT, service, first, until)


async def grant_all(
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
    while plans := await grant_all(lake, service, *kinds):
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

    async def is_gone() -> bool:
        await work(lake, service, COMPACT, ERASE)
        lake.clock.advance(60 * SECOND_NS)
        return not await service.deletions()

    await eventually(is_gone)


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
