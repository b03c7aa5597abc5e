"""Which stores are down: from the leader's look at markers to its decisions, and to who asks."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry

from maar.metastore.leader.term import LeaderTerm
from maar.metastore.service import MetastoreService
from maar.model.ids import FencingToken, PlanId, StoreName
from maar.model.stores import StoreSet, StoreSpec
from maar.ports.metastore.log import Candidate
from maar.ports.operator.repairs import RepairJob
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.ports.stores.stores import StorePlace, StorePlaces, Stores
from support.clock.fake_clock import FakeClock
from support.clock.virtual_time import run_virtually
from support.lake.several_stores import NamedStore
from support.metastore.copies import EU, MAIN
from support.metastore.fold import INCARNATION, SMALL, output, segment
from support.metastore.memory_log import MemoryLog, SharedLog

GIVEN = StoreSet((StoreSpec(MAIN), StoreSpec(EU)), (EU,))


async def no_snapshot() -> int:
    return 0


class Two:
    """A metastore with two stores, one of which can be cut off."""

    def __init__(self) -> None:
        self.named = {name: NamedStore(name) for name in (MAIN, EU)}
        places = tuple(StorePlace(StoreSettings(name, "memory://")) for name in self.named)
        self.service = MetastoreService(
            MemoryLog(SharedLog()),
            self.named[MAIN],
            FakeClock(),
            SMALL,
            entropy=bytes,
            candidate=Candidate("one"),
            take_snapshot=no_snapshot,
            registry=CollectorRegistry(),
            stores=Stores(StorePlaces(places), self._open),
            given_stores=lambda: GIVEN,
        )

    def _open(self, settings: StoreSettings, *, make: bool = False) -> ObjectStore:  # noqa: ARG002
        return self.named[StoreName(settings.name)]

    @property
    def term(self) -> LeaderTerm:
        assert self.service.leader_term is not None
        return self.service.leader_term

    async def until_down(self, *names: StoreName) -> None:
        """The leader looks every few seconds, of a time that passes as fast as it can."""
        async with asyncio.timeout(120):
            while self.term.moment().down != set(names) or not self.term.leader.state.stores.stores:
                await asyncio.sleep(1)

    async def vnode_job(self) -> RepairJob:
        found = (await self.service.repairs()).jobs
        return next(job for job in found if job.type == "vnode")


def test_a_store_that_goes_away_reaches_decisions_and_status_and_so_does_its_return() -> None:
    async def test() -> None:
        two = Two()
        await two.service.start()
        await two.until_down()
        plan, token = PlanId(1, 0), FencingToken(INCARNATION, 1)
        made = output(plan, token, (segment(1),), profiles=10)
        two.term.leader.state.blocks.add(made)
        assert (await two.vnode_job()).why.startswith("it was never repaired as a whole; ")
        two.named[EU].cut_off()
        await two.until_down(EU)
        assert (await two.vnode_job()).why == "no range has all its stores: eu is away"
        two.named[EU].heal()
        await two.until_down()
        assert (await two.vnode_job()).why.startswith("it was never repaired as a whole; ")
        await two.service.stop()

    run_virtually(test())
