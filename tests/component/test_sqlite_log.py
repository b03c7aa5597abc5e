"""What only a log in a file can suffer: other hands, a second server, a full disk, a kill."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from maar.adapters.sqlite.log import DATABASE, LOCK, STEP_MAX, STEP_S, SqliteLog, next_step
from maar.model.errors import (
    Corrupt,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Rejected,
    StoreFull,
    TermLost,
    Unavailable,
)
from maar.ports.metastore.log import EMPTY, Candidate, Record, verify
from support.metastore.filled_log import fill

pytestmark = pytest.mark.component

FULL = 2  # of `PRAGMA synchronous`


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "log"


class Broken:
    """A connection whose COMMIT reports an I/O error after doing, or not doing, its work."""

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


def tampered(directory: Path, statement: str) -> None:
    with sqlite3.connect(directory / DATABASE) as db:
        db.execute(statement)
    db.close()


async def written(directory: Path, count: int = 5) -> None:
    log = SqliteLog.open(directory)
    await fill(log, count)
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
            "import sys; from pathlib import Path; from maar.adapters.sqlite.log import SqliteLog\n"
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


def test_an_orderly_close_leaves_everything_in_the_one_file(directory: Path) -> None:
    """Who copies the file of a server that was stopped has the log."""
    asyncio.run(written(directory, 5))
    assert {path.name for path in directory.iterdir()} == {DATABASE, "lock"}


def test_a_full_disk_refuses_and_room_heals(directory: Path) -> None:
    async def test() -> None:
        log = SqliteLog.open(directory)
        term, head = await fill(log, 3)
        log.db.execute("PRAGMA max_page_count = 8")
        with pytest.raises(StoreFull):
            await log.append([b"x" * 400_000], term=term, head=head)
        assert await log.head() == head
        log.db.execute("PRAGMA max_page_count = 100000")
        assert (await log.append([b"x" * 400_000], term=term, head=head)).index == 4
        await log.close()

    asyncio.run(test())


def test_a_commit_that_failed_stops_appends_until_the_head_was_read(directory: Path) -> None:
    async def test(*, stores: bool) -> None:
        log = SqliteLog.open(directory / str(stores))
        term, head = await fill(log, 1)
        log.db = Broken(log.db, stores=stores)  # type: ignore[assignment]
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


class Blind:
    """A connection that must not be asked."""

    def execute(self, sql: str, *_: Any) -> object:
        raise AssertionError(f"the file was asked: {sql}")


def test_whoever_leads_knows_the_head_without_asking_the_file(directory: Path) -> None:
    async def test() -> None:
        log = SqliteLog.open(directory)
        try:
            term = await log.campaign(Candidate("a"))
            head = await log.append([b"one"], term=term, head=await log.head())
            db, log.db = log.db, Blind()  # type: ignore[assignment]
            assert await log.head() == head
            log.db = db
            head = await log.append([b"two", b"three"], term=term, head=head)
            assert (await log.head(), head.index) == (head, 3)
            assert await log.append([], term=term, head=head) == await log.head() == head
            await log.resign(term)
            log.db = Blind()  # type: ignore[assignment]
            with pytest.raises(AssertionError):
                await log.head()
            log.db = db
        finally:
            await log.close()

    asyncio.run(test())


def test_the_file_is_asked_for_the_head_when_the_lock_is_not_ours_any_more(directory: Path) -> None:
    async def test() -> None:
        log = SqliteLog.open(directory)
        try:
            term = await log.campaign(Candidate("a"))
            head = await log.append([b"one"], term=term, head=await log.head())
            (directory / LOCK).unlink()
            other = SqliteLog.open(directory)
            theirs = await other.campaign(Candidate("b"))
            newer = await other.append([b"two"], term=theirs, head=head)
            assert await log.head() == newer
            await other.close()
        finally:
            await log.close()

    asyncio.run(test())


def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(directory: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from maar.adapters.sqlite.log import SqliteLog
from maar.ports.metastore.log import Candidate

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
    assert next_step(STEP_MAX, took_s=0.0) == STEP_MAX
    assert next_step(1, took_s=60.0) == 1, "it goes on, however slow the disk is"


def test_a_commit_of_unknown_outcome_is_not_settled_while_a_reader_keeps_the_wal(
    directory: Path,
) -> None:
    """What a failed sync left in the WAL counts only when it is in the database, and the WAL is
    empty; a reader in the middle of something keeps it from being so.
    """

    async def test() -> None:
        log = SqliteLog.open(directory)
        term, head = await fill(log, 1)
        reader = sqlite3.connect(directory / DATABASE, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM log").fetchall()
        log.db = Broken(log.db, stores=True)  # type: ignore[assignment]
        with pytest.raises(OutcomeUnknown):
            await log.append([b"maybe"], term=term, head=head)
        with pytest.raises(Unavailable, match="another process reads the log"):
            await log.head()
        with pytest.raises(OutcomeUnknown, match="ask for the head first"):
            await log.append([b"next"], term=term, head=head)
        reader.execute("ROLLBACK")
        reader.close()
        assert (await log.head()).index == 2
        wal = directory / f"{DATABASE}-wal"
        assert wal.stat().st_size == 0, "a power cut can take nothing that is in the database"
        with sqlite3.connect(f"{(directory / DATABASE).as_uri()}?immutable=1", uri=True) as alone:
            assert alone.execute("SELECT max(idx) FROM log").fetchone() == (2,)
        alone.close()
        await log.close()

    asyncio.run(test())


def test_every_commit_is_synced_whatever_this_build_of_sqlite_does_by_itself(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def lazy(*args: Any, **options: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = connect(*args, **options)
        db.execute("PRAGMA synchronous = NORMAL")  # as some builds are made for WAL
        return db

    monkeypatch.setattr(sqlite3, "connect", lazy)

    async def test() -> None:
        log = SqliteLog.open(directory)
        term, head = await fill(log, 1)
        assert log.db.execute("PRAGMA synchronous").fetchone() == (FULL,)
        log.db = Broken(log.db, stores=True)  # type: ignore[assignment]
        with pytest.raises(OutcomeUnknown):
            await log.append([b"maybe"], term=term, head=head)
        await log.head()
        assert log.db.execute("PRAGMA synchronous").fetchone() == (FULL,), "and after a new start"
        assert log.db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        await log.close()

    asyncio.run(test())


def test_a_leader_whose_term_another_server_took_neither_appends_nor_acts(directory: Path) -> None:
    """The lock was removed by hand, and a second server began."""

    async def test() -> None:
        first = SqliteLog.open(directory)
        term, head = await fill(first, 2)
        first.hold(term)
        (directory / LOCK).unlink()
        second = SqliteLog.open(directory)
        taken = await second.campaign(Candidate("second"))
        assert taken > term
        with pytest.raises(TermLost, match=f"the log is at term {taken}"):
            first.hold(term)
        with pytest.raises(TermLost, match=f"the log is at term {taken}"):
            await first.append([b"late"], term=term, head=head)
        with pytest.raises(TermLost):
            await first.truncate(before=2, term=term)
        with pytest.raises(Rejected, match="was removed or replaced while this server ran"):
            await first.campaign(Candidate("first"))
        second.hold(taken)
        assert (await second.append([b"ours"], term=taken, head=head)).index == 3
        await first.close()
        await second.close()

    asyncio.run(test())


def test_every_directory_above_a_new_log_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    fsync = os.fsync

    def remember(handle: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{handle}").readlink()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", remember)
    directory = tmp_path / "a" / "b" / "log"
    asyncio.run(written(directory, 1))
    assert {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")} <= synced


def test_a_network_file_system_is_refused_unless_it_is_allowed(
    directory: Path, tmp_path: Path
) -> None:
    told = tmp_path / "mountinfo"
    told.write_text(
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        f"97 22 0:51 / {directory.parent} rw,relatime shared:2 - nfs4 filer:/maar rw\n"
    )
    with pytest.raises(InvalidInput, match=r"network file system \(nfs4\)"):
        SqliteLog.open(directory, mounts=told)
    assert not directory.exists(), "it was refused before anything was made"
    asyncio.run(SqliteLog.open(directory, allow_network_fs=True, mounts=told).close())
