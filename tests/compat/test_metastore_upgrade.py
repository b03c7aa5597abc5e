"""A log goes on under a program that knows a newer version, and then no older one may touch it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from maar.adapters.sqlite.log import DATABASE, SqliteLog
from maar.metastore.leader.leader import Leader
from maar.metastore.records.entries import (
    VERSION,
    BlocksAdded,
    Entry,
    Envelope,
    Genesis,
    PolicySet,
    TermStarted,
    VersionActivated,
)
from maar.metastore.replica import snapshot
from maar.metastore.replica.follower import Follower
from maar.metastore.replica.log_fold import NEWEST, Edition, LogFold
from maar.metastore.state.digest import digest
from maar.model.errors import Rejected
from maar.model.policy import Policy
from maar.ports.metastore.log import Candidate, Head
from support.clock.fake_clock import FakeClock
from support.metastore.fold import segment
from support.metastore.next_version import (
    NEXT,
    NEXT_VERSION,
    LimitDropped,
    drop_entries,
    read_whole,
)
from support.stores.memory_store import MemoryStore

GOLDEN = Path(__file__).parent / "golden"
STORED_KEY = "metastore/v1/0badcafe/entry-0000000000000022-golden.msgpack"


@pytest.fixture
def store() -> MemoryStore:
    found = MemoryStore()
    found.create(STORED_KEY, (GOLDEN / "stored-entry-v1.msgpack").read_bytes())
    return found


@pytest.fixture
def old_log(tmp_path: Path) -> Path:
    shutil.copy(GOLDEN / "log-v1" / DATABASE, tmp_path / DATABASE)
    return tmp_path


async def led(directory: Path, store: MemoryStore, edition: Edition = NEXT) -> Leader:
    """One term, in which a block is registered and every kind of entry is written."""
    log = SqliteLog.open(directory)
    candidate, clock = Candidate("test"), FakeClock()
    follower = Follower(log, clock, LogFold(store, edition=edition), candidate)
    leader = Leader(log, store, clock, follower, await log.campaign(candidate))

    def alone(version: int) -> list[Entry]:
        """As a lone replica has it: nobody else must know the version too."""
        return [VersionActivated(edition.version)] if version < edition.version else []

    await leader.begin("test", Policy(), lambda size: b"\x0b" * size, alone)
    at = leader.state.lease_time
    added = segment(leader.state.index, at=at, life=leader.state.incarnation)
    await leader.commit([BlocksAdded((added,)), *drop_entries(leader.state)], now=leader.now())
    assert added.id in leader.state.blocks
    await log.close()
    return leader


async def written(directory: Path, *, after: int = 0) -> list[Envelope]:
    log = SqliteLog.open_reader(directory)
    records = await log.read(after=after)
    await log.close()
    return [read_whole(r.body, index=r.index) for r in records]


def test_the_first_new_leader_of_an_old_log_activates_the_newest_version_and_no_other_does(
    old_log: Path, store: MemoryStore
) -> None:
    async def test() -> None:
        before = len(await written(old_log))
        assert (await led(old_log, store, NEWEST)).state.version == VERSION
        for _ in range(3):
            assert (await led(old_log, store)).state.version == NEXT_VERSION
        came = await written(old_log, after=before)
        ours = [NEXT_VERSION] * 2
        assert [(e.version, type(e.entry)) for e in came] == [
            *[(VERSION, kind) for kind in (TermStarted, PolicySet, BlocksAdded)],
            *[(VERSION, kind) for kind in (TermStarted, VersionActivated)],
            *zip(ours, (BlocksAdded, LimitDropped), strict=True),
            *[(NEXT_VERSION, kind) for kind in (TermStarted, BlocksAdded, LimitDropped)] * 2,
        ]

    asyncio.run(test())


@pytest.mark.parametrize(
    ("edition", "kinds"),
    [
        (NEWEST, [Genesis, TermStarted, BlocksAdded]),
        (NEXT, [Genesis, TermStarted, VersionActivated, BlocksAdded, LimitDropped]),
    ],
)
def test_a_new_log_begins_with_genesis_and_the_newest_version(
    tmp_path: Path, edition: Edition, kinds: list[type]
) -> None:
    async def test() -> None:
        await led(tmp_path, MemoryStore(), edition)
        assert [type(e.entry) for e in await written(tmp_path)] == kinds

    asyncio.run(test())


def test_an_older_program_refuses_the_log_and_its_snapshots_with_a_sentence(
    old_log: Path, store: MemoryStore
) -> None:
    async def upgraded() -> bytes:
        state = (await led(old_log, store)).state
        return snapshot.encode(state, Head(state.index, b"h" * 32))

    body = asyncio.run(upgraded())

    async def replayed() -> None:
        log = SqliteLog.open_reader(old_log)
        try:
            await LogFold(store).catch_up(log)
        finally:
            await log.close()

    with pytest.raises(Rejected, match=rf"knows up to {VERSION}.*Start the newer program"):
        asyncio.run(replayed())
    with pytest.raises(Rejected, match=rf"knows up to {VERSION}.*Start the newer program"):
        snapshot.decode(body)
    assert snapshot.decode(body, knows=NEXT_VERSION)[0].version == NEXT_VERSION


def test_a_snapshot_of_a_log_that_is_not_upgraded_yet_can_be_read_by_those_before(
    old_log: Path, store: MemoryStore
) -> None:
    """A new replica may make it while an old one still runs beside it."""

    async def test() -> None:
        log = SqliteLog.open_reader(old_log)
        index = await snapshot.make(log, store, edition=NEXT)
        await log.close()
        ((found, key),) = snapshot.list_snapshots(store)
        state, _ = snapshot.decode(store.read(key), knows=VERSION)
        assert (found, state.version) == (index, VERSION)

    asyncio.run(test())


def test_a_replica_comes_to_the_leaders_state_through_the_change_of_versions(
    old_log: Path, store: MemoryStore
) -> None:
    async def test() -> None:
        leader = await led(old_log, store)
        log = SqliteLog.open_reader(old_log)
        replica = LogFold(store, edition=NEXT)
        await replica.catch_up(log)
        await log.close()
        assert replica.state.version == NEXT_VERSION
        assert digest(replica.state) == digest(leader.state)

    asyncio.run(test())
