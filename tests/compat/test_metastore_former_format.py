"""A log or snapshot from before the first release is refused with a sentence, however it is met.

golden/former was written by such a maar: version 5 of a format that is read no more.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from maar.adapters.sqlite.log import DATABASE, SqliteLog
from maar.metastore.records.entries import decode
from maar.metastore.records.former_formats import FormerFormat
from maar.metastore.recovery import restoring
from maar.metastore.replica import snapshot
from maar.metastore.service import MetastoreService
from maar.model import keys
from maar.model.errors import Corrupt, NotFound, Rejected
from maar.model.ids import Incarnation
from maar.model.policy import Policy
from maar.ports.metastore.log import Candidate
from support.clock.fake_clock import FakeClock
from support.stores.memory_store import MemoryStore

FORMER = Path(__file__).parent / "golden" / "former"
SENTENCE = (
    r"entry \d+ of the log was written by a maar from before its first release.*No profile is lost"
    r".*move the old log away, run `maar metastore restore --without-snapshot --log .* --store .*`"
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    shutil.copy(FORMER / "log.db", tmp_path / DATABASE)
    return tmp_path


@pytest.fixture
def store() -> MemoryStore:
    found = MemoryStore()
    body = (FORMER / "snapshot.maar").read_bytes()
    found.create(keys.snapshot(incarnation=Incarnation("0badcafe"), index=40), body)
    return found


async def loaded(directory: Path, store: MemoryStore) -> None:
    log = SqliteLog.open_reader(directory)
    try:
        await (await snapshot.restore(log, store)).catch_up(log)
    finally:
        await log.close()


def test_the_log_is_refused(log: Path, store: MemoryStore) -> None:
    with pytest.raises(FormerFormat, match=SENTENCE):
        asyncio.run(loaded(log, store))


def test_so_is_one_whose_beginning_is_only_in_its_snapshots(log: Path, store: MemoryStore) -> None:
    async def truncated() -> None:
        ours = SqliteLog.open(log)
        term = await ours.campaign(Candidate("test"))
        await ours.truncate(before=20, term=term)
        await ours.close()

    asyncio.run(truncated())
    with pytest.raises(FormerFormat, match=SENTENCE):
        asyncio.run(loaded(log, store))


def test_a_replica_stops_and_says_the_command_that_helps(log: Path, store: MemoryStore) -> None:
    async def test() -> None:
        ours = SqliteLog.open(log)
        service = MetastoreService(
            ours,
            store,
            FakeClock(),
            Policy(),
            entropy=bytes,
            candidate=Candidate("test"),
            take_snapshot=no_snapshot,
            registry=CollectorRegistry(),
            log_url="sqlite:///var/lib/maar/log",
        )
        with pytest.raises(Rejected, match=SENTENCE) as refusal:
            await service.start()
        command = (
            "`maar metastore restore --without-snapshot --log sqlite:///var/lib/maar/log "
            f"--store {store.settings().url}`"
        )
        assert command in str(refusal.value)
        assert command in service.ready()
        assert (await service.replica()).standing == "stopped"
        assert [record.index for record in await ours.read(after=0)][:2] == [1, 2]  # as it was
        await service.stop()
        await ours.close()

    asyncio.run(test())


async def no_snapshot() -> int:
    raise AssertionError("nothing is led")


def test_a_snapshot_is_refused_and_passed_by(store: MemoryStore) -> None:
    ((_, key),) = snapshot.list_snapshots(store)
    with pytest.raises(Corrupt, match="it was written by a maar from before its first release"):
        snapshot.decode(store.read(key))
    with pytest.raises(Corrupt, match="before its first release"):
        asyncio.run(restoring.newest(store, key))
    with pytest.raises(NotFound, match="no good snapshot"):  # then the objects are asked
        asyncio.run(restoring.newest(store))


@pytest.mark.parametrize("version", [0, 1, 5, 6])
def test_a_record_that_begins_with_a_number_is_of_no_version_of_today(version: int) -> None:
    with pytest.raises(FormerFormat):
        decode(msgspec.msgpack.encode([version, 1, 1, [15]]), index=7)
