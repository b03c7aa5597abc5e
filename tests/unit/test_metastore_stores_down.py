"""Which stores are down, or wiped: from the leader's look at markers to its decisions."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from maar.block.format import checksum
from maar.metastore.leader.term import LeaderTerm
from maar.metastore.records.entries import Tick
from maar.metastore.records.packs import pack
from maar.metastore.replica import snapshot
from maar.metastore.replica.timing import TIMING, Timing
from maar.metastore.service import MetastoreService
from maar.metastore.state.digest import digest
from maar.metastore.state.retired import Cause, Retired
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import Rejected
from maar.model.ids import FencingToken, PlanId, StoreName
from maar.model.predicate import Mask
from maar.model.stores import StoreSet, StoreSpec, keys_at
from maar.ports.metastore.log import Candidate
from maar.ports.operator.repairs import RepairJob
from maar.ports.stores.object_store import ObjectStore, StoreSettings, exists
from maar.ports.stores.stores import StorePlace, StorePlaces, Stores
from support.clock.fake_clock import FakeClock
from support.clock.virtual_time import run_virtually
from support.lake.several_stores import NamedStore
from support.metastore.copies import EU, MAIN
from support.metastore.fold import INCARNATION, SMALL, TENANT, output, segment
from support.metastore.logged import fold_log
from support.metastore.memory_log import MemoryLog, SharedLog

GIVEN = StoreSet((StoreSpec(MAIN), StoreSpec(EU)), (EU,))


class Two:
    """A metastore with two stores, which can be cut off and wiped; a second one may follow it."""

    def __init__(self, before: Two | None = None, *, timing: Timing = TIMING) -> None:
        stores = {name: NamedStore(name) for name in (MAIN, EU)}
        self.named: dict[StoreName, NamedStore] = before.named if before else stores
        self.shared: SharedLog = before.shared if before else SharedLog()
        places = tuple(StorePlace(StoreSettings(name, "memory://")) for name in self.named)
        self.service = MetastoreService(
            MemoryLog(self.shared),
            self.named[MAIN],
            FakeClock(),
            SMALL,
            entropy=bytes,
            candidate=Candidate("one"),
            take_snapshot=self.snapshot,
            registry=CollectorRegistry(),
            stores=Stores(StorePlaces(places), self._open),
            given_stores=lambda: GIVEN,
            timing=timing,
        )

    def _open(self, settings: StoreSettings, *, make: bool = False) -> ObjectStore:  # noqa: ARG002
        return self.named[StoreName(settings.name)]

    async def snapshot(self) -> int:
        return await snapshot.make(MemoryLog(self.shared), self.named[MAIN])

    @property
    def snapshots(self) -> set[int]:
        return {index for index, _ in snapshot.list_snapshots(self.named[MAIN])}

    @property
    def deletions(self) -> set[str]:
        return {info.key for info in self.named[MAIN].list(keys.DELETIONS)}

    @property
    def term(self) -> LeaderTerm:
        assert self.service.leader_term is not None
        return self.service.leader_term

    async def until_down(self, *names: StoreName) -> None:
        """The leader looks every few seconds, of a time that passes as fast as it can."""
        async with asyncio.timeout(120):
            while self.term.moment().down != set(names) or not self.term.leader.state.stores.stores:
                await asyncio.sleep(1)

    async def truncate(self) -> None:
        """As a log is that has been in use for long: it begins behind a snapshot."""
        for _ in range(2):
            await self.term.snapshots.take(self.term.leader)
            await self.term.append(lambda *_: [Tick()])
        assert self.shared.base.index > 1

    async def until_marked(self, store: StoreName) -> None:
        async with asyncio.timeout(120):
            while not exists(self.named[store], keys.marker(self.term.leader.state.incarnation)):
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
        assert (await two.vnode_job()).why == "no range has all its stores: eu is unreachable"
        two.named[EU].heal()
        await two.until_down()
        assert (await two.vnode_job()).why.startswith("it was never repaired as a whole; ")
        await two.service.stop()

    run_virtually(test())


def test_a_log_whose_snapshots_were_wiped_with_their_store_can_be_led_again() -> None:
    """What its beginning said was in the snapshots only; the leader still knows it."""

    async def test() -> None:
        two = Two()
        await two.service.start()
        await two.until_down()
        await two.service.delete_profiles(Mask(TENANT, "checkout", 0, 1_000), dry_run=False)
        await two.truncate()
        (deletion,) = two.deletions
        two.named[MAIN].wipe()
        await two.until_marked(MAIN)
        newest = two.term.snapshots.newest
        assert two.snapshots == {newest}
        async with asyncio.timeout(120):
            while two.deletions != {deletion}:
                await asyncio.sleep(1)
        await two.term.append(lambda *_: [Tick()])
        await two.term.snapshots.take(two.term.leader)
        assert len(two.snapshots) == 2, "another process goes on from it"
        known = digest(two.term.leader.state)
        await two.service.stop()
        again = Two(two)
        assert digest((await fold_log(MemoryLog(two.shared), two.named[MAIN])).state) == known
        await again.service.start()
        await again.until_down()
        await again.service.stop()

    run_virtually(test())


def test_of_another_store_nothing_but_copies_is_put_back() -> None:
    async def test() -> None:
        two = Two()
        await two.service.start()
        await two.until_down()
        await two.truncate()
        before = two.snapshots
        two.named[EU].wipe()
        await two.until_marked(EU)
        assert two.snapshots == before
        await two.service.stop()

    run_virtually(test())


def test_the_next_snapshot_is_made_although_the_last_one_has_vanished() -> None:
    """Its disk was mounted again, say, with only older ones on it."""

    async def test() -> None:
        two = Two()
        await two.service.start()
        await two.until_down()
        await two.truncate()
        for _, key in snapshot.list_snapshots(two.named[MAIN]):
            two.named[MAIN].delete(key)
        two.term.snapshots.hurry()
        await asyncio.sleep(60)
        assert two.term.snapshots.newest in two.snapshots
        await two.service.stop()

    run_virtually(test())


def test_what_another_process_can_fold_is_not_written_as_the_leader_knows_it() -> None:
    """Else nobody would notice that the leader is wrong, and the log that tells would go."""

    async def test() -> None:
        two = Two()
        await two.service.start()
        await two.until_down()
        await two.truncate()
        before, begins = two.snapshots, two.shared.base.index
        newest = two.term.snapshots.newest
        life = two.term.leader.state.incarnation
        two.named[MAIN].delete(keys.snapshot(incarnation=life, index=newest))
        two.term.leader.state.tally.duplicates_removed += 1
        two.term.snapshots.hurry()
        await asyncio.sleep(60)
        assert two.snapshots == before - {newest}
        assert two.shared.base.index == begins
        two.term.leader.state.tally.duplicates_removed -= 1
        two.term.snapshots.hurry()
        await asyncio.sleep(60)
        assert two.term.snapshots.newest > newest
        assert two.term.snapshots.newest in two.snapshots
        await two.service.stop()

    run_virtually(test())


def test_snapshots_that_have_vanished_are_replaced_long_before_the_next_one_is_due() -> None:
    """Their disk was away for a while, and the log was truncated behind others meanwhile."""

    async def test() -> None:
        two = Two()
        await two.service.start()
        await two.until_down()
        await two.truncate()
        for _, key in snapshot.list_snapshots(two.named[MAIN]):
            two.named[MAIN].delete(key)
        await asyncio.sleep(90)
        assert two.term.snapshots.newest in two.snapshots
        await two.service.stop()
        await fold_log(MemoryLog(two.shared), two.named[MAIN])

    run_virtually(test())


def test_a_disk_that_was_taken_for_wiped_has_snapshots_that_lead_on_when_it_is_back() -> None:
    """A directory whose disk is not mounted is empty. The metastore is started anew when it is
    mounted again, and what was written meanwhile is out of sight.
    """

    async def test() -> None:
        two = Two()
        await two.service.start()
        await two.until_down()
        await two.truncate()
        main = two.named[MAIN]
        mounted, main._objects = main._objects, {}
        await two.until_marked(MAIN)
        begins = two.shared.base.index
        for _ in range(3):
            await two.term.append(lambda *_: [Tick()])
            await two.term.snapshots.take(two.term.leader)
        assert two.shared.base.index == begins
        known = digest(two.term.leader.state)
        await two.service.stop()
        main._objects = mounted
        assert digest((await fold_log(MemoryLog(two.shared), main)).state) == known
        again = Two(two)
        await again.service.start()
        await again.until_down()
        await again.service.stop()

    run_virtually(test())


@pytest.mark.parametrize(("wait_s", "hurried"), [(90.0, False), (0.0, True)])
def test_the_log_of_lost_snapshots_goes_in_time_or_when_there_is_no_room_for_it(
    wait_s: float, hurried: bool
) -> None:
    async def test() -> None:
        two = Two(timing=Timing(lost_log_s=60.0))  # a day would be long, also a virtual one
        await two.service.start()
        await two.until_down()
        await two.truncate()
        two.named[MAIN].wipe()
        await two.until_marked(MAIN)
        begins = two.shared.base.index
        await asyncio.sleep(wait_s)
        for _ in range(2):
            await two.term.append(lambda *_: [Tick()])
            if hurried:
                two.term.snapshots.hurry()
            await two.term.snapshots.take(two.term.leader)
        assert two.shared.base.index > begins
        await two.service.stop()

    run_virtually(test())


# ── a block that is given up ───────────────────────────────────────────────────────────────────


def in_both(two: Two, number: int) -> BlockMeta:
    """A block with a copy in each store, and its objects."""
    made = output(PlanId(number, 0), FencingToken(INCARNATION, 1), (segment(number),), profiles=10)
    body = b"x" * made.files[0].size
    files = []
    for file in made.files:
        (home,) = file.locations
        copies = (home, msgspec.structs.replace(home, store=EU, key=f"{home.key}-copy"))
        for at in copies:
            two.named[at.store].create(at.key, body)
        changed = msgspec.structs.replace(
            file, size=len(body), checksum=checksum.of_bytes(body), locations=copies
        )
        files.append(changed)
    return msgspec.structs.replace(made, files=tuple(files))


def test_a_block_that_some_store_has_whole_is_given_up_by_force_only() -> None:
    async def test() -> None:
        two = Two()
        await two.service.start()
        await two.until_down()
        made = in_both(two, 1)
        state = two.term.leader.state
        state.blocks.add(made)
        two.named[MAIN].delete(keys_at(made, MAIN)[0])
        assert len((await two.service.loss(made.id)).damages) == 1
        with pytest.raises(Rejected, match="can be read"):
            await two.service.lose(made.id, note="")
        assert made.id in state.blocks
        two.named[EU].delete(keys_at(made, EU)[0])
        await two.service.lose(made.id, note="")
        assert made.id not in state.blocks
        await two.service.stop()

    run_virtually(test())


def test_sources_of_which_some_store_has_a_whole_copy_come_back() -> None:
    """In the other store they were deleted, or not, since what replaced them was whole there."""

    async def test() -> None:
        two = Two()
        await two.service.start()
        await two.until_down()
        source, lost, made = (in_both(two, number) for number in (1, 2, 3))
        state = two.term.leader.state
        for each in (source, lost):
            state.retired[each.id] = Retired(
                state.index, state.lease_time, (made.id,), pack(each), Cause.REPLACED
            )
        state.blocks.add(made)
        for store, block in ((MAIN, source), (MAIN, lost), (EU, lost), (MAIN, made), (EU, made)):
            two.named[store].delete(keys_at(block, store)[0])
        assert (await two.service.lose(made.id, note="")).returning == (source.id,)
        assert source.id in state.blocks
        await two.service.stop()

    run_virtually(test())
