"""A log of an older version goes on under this program, and then no older one may touch it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from maar.adapters.sqlite.log import DATABASE, SqliteLog
from maar.metastore.leader.leader import Leader
from maar.metastore.records import entries
from maar.metastore.records.entries import (
    VERSION,
    BlocksAdded,
    Entry,
    Genesis,
    PolicySet,
    TermStarted,
    VersionActivated,
)
from maar.metastore.replica import snapshot
from maar.metastore.replica.follower import Follower
from maar.metastore.replica.log_fold import LogFold
from maar.metastore.state.digest import digest
from maar.model.errors import Rejected
from maar.model.policy import Policy
from maar.ports.log import Candidate, Head
from support.clock.fake_clock import FakeClock
from support.metastore.fold import segment
from support.stores.memory_store import MemoryStore

GOLDEN = Path(__file__).parent / "golden"
STORED_KEY = "metastore/v1/0badcafe/entry-0000000000000022-golden.msgpack"


@pytest.fixture(params=[1, 2, 3, 4])
def old(request: pytest.FixtureRequest) -> int:
    version: int = request.param
    return version


@pytest.fixture
def store(old: int) -> MemoryStore:
    found = MemoryStore()
    found.create(STORED_KEY, (GOLDEN / f"stored-entry-v{old}.msgpack").read_bytes())
    return found


@pytest.fixture
def old_log(tmp_path: Path, old: int) -> Path:
    shutil.copy(GOLDEN / f"log-v{old}" / DATABASE, tmp_path / DATABASE)
    return tmp_path


async def led(directory: Path, store: MemoryStore, policy: Policy) -> Leader:
    """One term of office, in which a block is registered."""
    log = SqliteLog.open(directory)
    candidate, clock = Candidate("test"), FakeClock()
    follower = Follower(log, clock, LogFold(store), candidate)
    leader = Leader(log, store, clock, follower, await log.campaign(candidate))
    await leader.begin("test", policy, lambda size: b"\x0b" * size, newest)
    at = leader.state.lease_time
    added = segment(leader.state.index, at=at, life=leader.state.incarnation)
    await leader.commit([BlocksAdded((added,))], now=leader.now())
    assert added.id in leader.state.blocks
    await log.close()
    return leader


def newest(version: int) -> list[Entry]:
    """As a lone replica has it: nobody else must know the version too."""
    return [VersionActivated(VERSION)] if version < VERSION else []


async def written(directory: Path, *, after: int = 0) -> list[entries.Envelope]:
    log = SqliteLog.open_reader(directory)
    found = [entries.decode(r.body, index=r.index) for r in await log.read(after=after)]
    await log.close()
    return found


def test_the_first_new_leader_of_an_old_log_activates_the_newest_version_and_no_other_does(
    old_log: Path, store: MemoryStore, old: int
) -> None:
    async def test() -> None:
        before = len(await written(old_log))
        for _ in range(3):
            assert (await led(old_log, store, Policy())).state.version == VERSION
        came = await written(old_log, after=before)
        assert [(e.version, type(e.entry)) for e in came] == [
            (old, TermStarted),
            (old, VersionActivated),
            (VERSION, PolicySet),
            (VERSION, BlocksAdded),
            *[(VERSION, TermStarted), (VERSION, BlocksAdded)] * 2,
        ]

    asyncio.run(test())


def test_a_new_log_begins_with_genesis_and_the_newest_version(tmp_path: Path) -> None:
    async def test() -> None:
        await led(tmp_path, MemoryStore(), Policy())
        kinds = [type(e.entry) for e in await written(tmp_path)]
        assert kinds == [Genesis, TermStarted, VersionActivated, BlocksAdded]

    asyncio.run(test())


def test_an_older_program_refuses_the_log_and_its_snapshots_with_a_sentence(
    old_log: Path, store: MemoryStore, old: int
) -> None:
    async def upgraded() -> bytes:
        state = (await led(old_log, store, Policy())).state
        return snapshot.encode(state, Head(state.index, b"h" * 32))

    body = asyncio.run(upgraded())

    async def replayed() -> None:
        log = SqliteLog.open_reader(old_log)
        try:
            await LogFold(store, knows=old).catch_up(log)
        finally:
            await log.close()

    with pytest.raises(Rejected, match=rf"knows up to {old}.*Start the newer program"):
        asyncio.run(replayed())
    with pytest.raises(Rejected, match=rf"knows up to {old}.*Start the newer program"):
        snapshot.decode(body, knows=old)


def test_a_snapshot_of_a_log_that_is_not_upgraded_yet_can_be_read_by_those_before() -> None:
    """A new replica may make it while an old one still runs beside it."""
    state, head = snapshot.decode((GOLDEN / "snapshot-v3.maar").read_bytes())
    again, _ = snapshot.decode(snapshot.encode(state, head), knows=3)
    assert digest(again) == digest(state)


def test_a_replica_comes_to_the_leaders_state_through_the_change_of_versions(
    old_log: Path, store: MemoryStore
) -> None:
    async def test() -> None:
        leader = await led(old_log, store, Policy())
        log = SqliteLog.open_reader(old_log)
        replica = LogFold(store)
        await replica.catch_up(log)
        await log.close()
        assert digest(replica.state) == digest(leader.state)

    asyncio.run(test())
