"""What only a log in a file can suffer: other hands, a second server, a full disk, a kill."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from maar.adapters.sqlite_log import DATABASE, STEP_MOST, STEP_S, SqliteLog, next_step
from maar.model.errors import (
    Corrupt,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Rejected,
    StoreFull,
)
from maar.ports.log import EMPTY, Record, verify
from support.filled_log import filled

pytestmark = pytest.mark.component


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "log"


def tampered(directory: Path, statement: str) -> None:
    with sqlite3.connect(directory / DATABASE) as db:
        db.execute(statement)
    db.close()


async def written(directory: Path, count: int = 5) -> None:
    log = SqliteLog.open(directory)
    await filled(log, count)
    await log.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE log SET body = x'00' WHERE idx = 3",
        "UPDATE log SET hash = zeroblob(32) WHERE idx = 3",
        "UPDATE log SET term = 9 WHERE idx = 3",
        "DELETE FROM log WHERE idx = 3",
    ],
)
def test_a_changed_or_missing_entry_is_corrupt(directory: Path, statement: str) -> None:
    async def test() -> None:
        await written(directory)
        tampered(directory, statement)
        log = SqliteLog.open(directory)
        try:
            with pytest.raises(Corrupt, match=r"entry 3|lost the entry after 2|follows 2"):
                await log.read(after=0)
        finally:
            await log.close()

    asyncio.run(test())


def test_a_file_that_is_no_database_is_corrupt(directory: Path) -> None:
    directory.mkdir()
    (directory / DATABASE).write_bytes(b"not a database, but long enough to look at" * 100)
    with pytest.raises(Corrupt):
        SqliteLog.open(directory)


def test_a_second_server_on_a_directory_is_refused_with_a_sentence(directory: Path) -> None:
    async def test() -> None:
        log = SqliteLog.open(directory)
        with pytest.raises(Rejected, match="already runs on") as refusal:
            SqliteLog.open(directory)
        assert str(directory) in str(refusal.value)
        script = (
            "import sys; from pathlib import Path; from maar.adapters.sqlite_log import SqliteLog\n"
            "SqliteLog.open(Path(sys.argv[1]))"
        )
        other = subprocess.run(
            [sys.executable, "-c", script, str(directory)], capture_output=True, text=True
        )
        assert "already runs on" in other.stderr
        await log.close()
        again = SqliteLog.open(directory)
        await again.close()

    asyncio.run(test())


def test_a_directory_that_cannot_be_is_said_to_be_none(directory: Path) -> None:
    directory.parent.mkdir(exist_ok=True)
    directory.write_text("a file")
    with pytest.raises(InvalidInput, match="choose another directory"):
        SqliteLog.open(directory / "log")


def test_a_reader_needs_a_log(directory: Path) -> None:
    with pytest.raises(NotFound):
        SqliteLog.open_reader(directory)


def test_a_log_of_a_newer_format_is_refused(directory: Path) -> None:
    asyncio.run(written(directory))
    tampered(directory, "UPDATE leader SET format = 3")
    with pytest.raises(Rejected, match="format 3"):
        SqliteLog.open(directory)


def test_a_full_disk_refuses_and_room_heals(directory: Path) -> None:
    async def test() -> None:
        log = SqliteLog.open(directory)
        term, head = await filled(log, 3)
        log._db.execute("PRAGMA max_page_count = 8")
        with pytest.raises(StoreFull):
            await log.append([b"x" * 400_000], term=term, head=head)
        assert await log.head() == head
        log._db.execute("PRAGMA max_page_count = 100000")
        assert (await log.append([b"x" * 400_000], term=term, head=head)).index == 4
        await log.close()

    asyncio.run(test())


def test_a_commit_that_failed_stops_appends_until_the_head_was_read(directory: Path) -> None:
    """A connection whose COMMIT reports an I/O error after doing, or not doing, its work."""

    class Broken:
        def __init__(self, db: sqlite3.Connection, *, stores: bool) -> None:
            self._db = db
            self._stores = stores

        def execute(self, sql: str, *args: Any) -> object:
            if sql == "COMMIT":
                self._db.execute("COMMIT" if self._stores else "ROLLBACK")
                raise sqlite3.OperationalError("disk I/O error")
            return self._db.execute(sql, *args)

        def __getattr__(self, name: str) -> object:
            return getattr(self._db, name)

    async def test(*, stores: bool) -> None:
        log = SqliteLog.open(directory / str(stores))
        term, head = await filled(log, 1)
        log._db = Broken(log._db, stores=stores)  # type: ignore[assignment]
        with pytest.raises(OutcomeUnknown):
            await log.append([b"maybe"], term=term, head=head)
        with pytest.raises(OutcomeUnknown):
            await log.append([b"next"], term=term, head=head)
        settled = await log.head()
        assert settled.index == (2 if stores else 1)
        assert (await log.append([b"next"], term=term, head=settled)).index == settled.index + 1
        await log.close()

    asyncio.run(test(stores=True))
    asyncio.run(test(stores=False))


def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(directory: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from maar.adapters.sqlite_log import SqliteLog
from maar.ports.log import Candidate

async def main():
    log = SqliteLog.open(Path(sys.argv[1]))
    term, head = await log.campaign(Candidate("victim")), await log.head()
    while True:
        head = await log.append([b"x" * 500] * 3, term=term, head=head)
        print(head.index, head.hash.hex(), flush=True)

asyncio.run(main())
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(directory)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(30)]
    child.kill()
    lines += child.stdout.readlines()
    child.stdout.close()
    child.wait()
    index, digest = next(line for line in reversed(lines) if line.endswith("\n")).split()

    async def test() -> None:
        log = SqliteLog.open(directory)
        records: list[Record] = []
        while some := await log.read(after=records[-1].index if records else 0):
            records += some
        assert len(records) % 3 == 0
        assert records[int(index) - 1].hash.hex() == digest
        verify(EMPTY, records)
        await log.close()

    asyncio.run(test())


def test_a_truncation_goes_in_steps_of_little_time() -> None:
    assert next_step(100, took_s=STEP_S) == 100
    assert next_step(100, took_s=10 * STEP_S) == 10
    assert next_step(100, took_s=0.0) == 200, "one quick step says little"
    assert next_step(STEP_MOST, took_s=0.0) == STEP_MOST
    assert next_step(1, took_s=60.0) == 1, "it goes on, however slow the disk is"
