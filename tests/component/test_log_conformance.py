"""One suite for every log: ordered, durable, fenced, chained. A new adapter joins by a fixture."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from maar.adapters.sqlite_log import DATABASE, SqliteLog
from maar.model.errors import (
    Corrupt,
    HeadMoved,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Rejected,
    StoreFull,
    TermLost,
    TooLarge,
)
from maar.ports.log import BATCH_BYTES_MAX, EMPTY, ENTRY_BYTES_MAX, Head, Log, Record, Term, verify

pytestmark = pytest.mark.component

T = TypeVar("T")
Opened = Callable[[], Awaitable[Log]]


class SqliteFactory:
    """Opens the same log again and again; the one before is closed first."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._open: SqliteLog | None = None

    async def __call__(self) -> Log:
        await self.close()
        self._open = SqliteLog.open(self.directory)
        return self._open

    async def reader(self) -> Log:
        return SqliteLog.open_reader(self.directory)

    async def close(self) -> None:
        if self._open is not None:
            await self._open.close()


Factory = SqliteFactory  # | EtcdFactory, when there is one


@pytest.fixture(params=["sqlite"])
def factory(request: pytest.FixtureRequest, tmp_path: Path) -> Factory:
    assert request.param == "sqlite"
    return SqliteFactory(tmp_path / "log")


def run(factory: Factory, test: Callable[[Log], Awaitable[T]]) -> T:
    async def opened() -> T:
        try:
            return await test(await factory())
        finally:
            await factory.close()

    return asyncio.run(opened())


async def filled(log: Log, count: int, size: int = 10) -> tuple[Term, Head]:
    term = await log.campaign("one")
    head = await log.head()
    for n in range(count):
        head = await log.append([b"%d-" % n + b"x" * size], term=term, head=head)
    return term, head


def test_an_empty_log_has_a_head_and_nothing_else(factory: Factory) -> None:
    async def test(log: Log) -> None:
        assert await log.head() == EMPTY
        assert await log.first() == 0
        assert await log.read(after=0) == []

    run(factory, test)


def test_what_is_appended_is_read_in_order_and_chained(factory: Factory) -> None:
    async def test(log: Log) -> None:
        term = await log.campaign("one")
        head = await log.append([b"a", b""], term=term, head=EMPTY)
        head = await log.append([b"c"], term=term, head=head)
        records = await log.read(after=0)
        assert [(r.index, r.term, r.body) for r in records] == [
            (1, term, b"a"),
            (2, term, b""),
            (3, term, b"c"),
        ]
        assert verify(EMPTY, records) == head == await log.head()
        assert [r.index for r in await log.read(after=2)] == [3]
        assert await log.read(after=3) == []
        assert await log.first() == 1

    run(factory, test)


def test_an_append_presumes_the_head(factory: Factory) -> None:
    async def test(log: Log) -> None:
        term, head = await filled(log, 2)
        for wrong in (EMPTY, Head(2, b"\1" * 32), Head(3, head.hash)):
            with pytest.raises(HeadMoved):
                await log.append([b"late"], term=term, head=wrong)
        assert await log.head() == head

    run(factory, test)


def test_of_many_appenders_with_one_head_one_wins(factory: Factory) -> None:
    async def test(log: Log) -> None:
        term = await log.campaign("one")
        tries = [log.append([b"%d" % n], term=term, head=EMPTY) for n in range(20)]
        outcomes = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(isinstance(outcome, Head) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, HeadMoved) for outcome in outcomes) == 19
        assert (await log.head()).index == 1

    run(factory, test)


def test_a_new_term_fences_the_old_leader(factory: Factory) -> None:
    async def test(log: Log) -> None:
        old, head = await filled(log, 1)
        new = await log.campaign("two")
        assert new > old
        with pytest.raises(TermLost):
            await log.append([b"zombie"], term=old, head=head)
        with pytest.raises(TermLost):
            await log.truncate(before=2, term=old)
        assert (await log.append([b"mine"], term=new, head=head)).index == 2

    run(factory, test)


def test_terms_grow_over_restarts(factory: Factory) -> None:
    async def campaign(log: Log) -> Term:
        return await log.campaign("again")

    assert run(factory, campaign) < run(factory, campaign) < run(factory, campaign)


def test_limits_are_those_of_the_port(factory: Factory) -> None:
    async def test(log: Log) -> None:
        term = await log.campaign("one")
        with pytest.raises(TooLarge, match="entry"):
            await log.append([b"x" * (ENTRY_BYTES_MAX + 1)], term=term, head=EMPTY)
        half = b"x" * ENTRY_BYTES_MAX
        with pytest.raises(TooLarge, match="batch"):
            await log.append([half, half, b"x"], term=term, head=EMPTY)
        head = await log.append([half, half], term=term, head=EMPTY)
        assert head.index == 2
        assert 2 * len(half) == BATCH_BYTES_MAX

    run(factory, test)


def test_a_read_returns_what_fits_and_at_least_one(factory: Factory) -> None:
    async def test(log: Log) -> None:
        await filled(log, 10, size=100)
        assert [r.index for r in await log.read(after=0, limit_bytes=1)] == [1]
        assert [r.index for r in await log.read(after=3, limit_bytes=310)] == [4, 5, 6]
        seen: list[int] = []
        while some := await log.read(after=seen[-1] if seen else 0, limit_bytes=250):
            seen += [r.index for r in some]
        assert seen == list(range(1, 11))

    run(factory, test)


def test_what_was_acknowledged_is_there_after_a_restart(factory: Factory) -> None:
    async def write(log: Log) -> Head:
        return (await filled(log, 5))[1]

    async def read(log: Log) -> Head:
        assert len(await log.read(after=0)) == 5
        return await log.head()

    assert run(factory, write) == run(factory, read)


def test_truncation_keeps_the_chain_and_the_head(factory: Factory) -> None:
    async def test(log: Log) -> None:
        term, head = await filled(log, 2_500, size=1)
        await log.truncate(before=2_400, term=term)
        assert await log.first() == 2_400
        assert await log.head() == head
        assert len(await log.read(after=2_399)) == 101
        with pytest.raises(NotFound):
            await log.read(after=2_398)
        await log.truncate(before=head.index + 1, term=term)
        assert await log.head() == head
        assert await log.first() == 0
        assert await log.read(after=head.index) == []
        assert (await log.append([b"on"], term=term, head=head)).index == head.index + 1

    run(factory, test)


def test_a_reader_sees_what_the_writer_appends_and_writes_nothing(factory: Factory) -> None:
    async def test(log: Log) -> None:
        term, head = await filled(log, 3)
        reader = await factory.reader()
        try:
            assert await reader.head() == head
            head = await log.append([b"more"], term=term, head=head)
            assert [r.body for r in await reader.read(after=3)] == [b"more"]
            with pytest.raises(Rejected, match="reading only"):
                await reader.append([b"no"], term=term, head=head)
        finally:
            await reader.close()

    run(factory, test)


# ── what only SQLite can suffer ────────────────────────────────────────────────────────────────


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
    tampered(directory, "UPDATE leader SET format = 2")
    with pytest.raises(Rejected, match="format 2"):
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

async def main():
    log = SqliteLog.open(Path(sys.argv[1]))
    term, head = await log.campaign("victim"), await log.head()
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
