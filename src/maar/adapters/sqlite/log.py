"""The log in one SQLite file: durable when append returns, one server per directory (S18).

WAL with synchronous=FULL; all calls run on one thread, a batch is one transaction. A lock file
beside the database is held as long as the process runs, so a second server is refused at its start.
A leader compares the term row before it appends or acts, so a stale leader is refused too.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from maar.adapters.sqlite.mounts import MOUNTS, network_type
from maar.background import Threads
from maar.model.errors import (
    Corrupt,
    HeadMoved,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Rejected,
    StoreFull,
    TermLost,
    Unavailable,
)
from maar.ports.metastore.log import (
    BATCH_BYTES_MAX,
    EMPTY,
    Candidate,
    Head,
    Leadership,
    Record,
    Term,
    check_limits,
    follow,
    verify,
)

T = TypeVar("T")

DATABASE = "log.db"
LOCK = "lock"
FORMAT = 1
CLOSED = 2  # sealed, or being copied into: the name says which; older programs refuse it too
COPYING = "copying"
STEP_S = 0.015  # of a truncation, which appends wait for
STEP_FIRST, STEP_MAX = 50, 1_000  # entries
LOOK_S = 0.2
BUSY_MS = 5_000
SETTLE_MS = 1_000  # for readers to end; the leader asks again

_SCHEMA = """
CREATE TABLE IF NOT EXISTS log (
  idx INTEGER PRIMARY KEY, term INTEGER NOT NULL, body BLOB NOT NULL, hash BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS leader (
  one INTEGER PRIMARY KEY CHECK (one = 1), format INTEGER NOT NULL,
  term INTEGER NOT NULL, name TEXT NOT NULL,
  base INTEGER NOT NULL, base_hash BLOB NOT NULL
);
INSERT OR IGNORE INTO leader VALUES (1, 1, 0, '', 0, zeroblob(32));
"""  # base: the last entry that was truncated, from which the chain goes on


class SqliteLog:
    """Made by `open` (the one writer) or `open_reader` (another process, reading only)."""

    def __init__(
        self, directory: Path, *, writes: bool, network_fs: bool = False, mounts: Path = MOUNTS
    ) -> None:
        self._directory = directory
        self._writes = writes
        if writes and not network_fs:
            _check_local(directory, mounts)
        self._lock = _lock_directory(directory) if writes else None
        self._thread = Threads(1, "sqlite-log")
        self._unsettled = False
        self._closed = False
        self._leads = Term(0)
        self._appended: Head | None = None  # the last entry, while we lead and know of every one
        self._lock_path = str(directory / LOCK)
        self._looking = threading.Lock()
        try:
            self.db = self._connect()
            self._witness = self._connect(writes=False)  # of the term, asked by any thread
        except BaseException:  # raised again: nobody else could give back the thread and the lock
            self._thread.close(wait=True)
            self._unlock()
            raise

    @classmethod
    def open(
        cls, directory: Path, *, allow_network_fs: bool = False, mounts: Path = MOUNTS
    ) -> SqliteLog:
        """The writer; Rejected when a server already runs on this directory, or none can."""
        return cls(directory, writes=True, network_fs=allow_network_fs, mounts=mounts)

    @classmethod
    def open_reader(cls, directory: Path) -> SqliteLog:
        """A reader beside the living writer."""
        if not (directory / DATABASE).exists():
            raise NotFound(f"there is no log in {directory}; start a server there first")
        return cls(directory, writes=False)

    async def campaign(self, candidate: Candidate) -> Term:
        return await self._run(lambda: self._campaign(candidate))

    def hold(self, term: Term) -> None:
        """The lock never expires, so nothing is renewed; but its file can be removed (S18).

        While the lock file is in place nobody else leads, so the database is not queried: that
        would cost every turn of the leader's loop more than anything else here.
        """
        if term == self._leads and self._lock_in_place():
            return
        current = self._term()
        if term != self._leads or current != term:
            raise TermLost(f"term {term} does not lead any more; the log is at term {current}")

    def _term(self) -> int:
        """The term in the file, read without waiting for appends."""
        try:
            with self._looking:
                return int(self._witness.execute("SELECT term FROM leader").fetchone()[0])
        except sqlite3.Error as error:
            raise TermLost(
                f"the log in {self._directory} does not say who leads: {error}"
            ) from error

    async def resign(self, term: Term) -> None:
        await self._run(lambda: self._resign(term))

    async def leadership(self) -> Leadership | None:
        """The leader in the file; it still names a leader that was killed, until the next start."""
        return await self._run(self._leadership)

    async def wait_change(self, *, after: int) -> None:
        """A file has no change notification, so readers poll."""
        if (await self.head()).index <= after:
            await asyncio.sleep(LOOK_S)

    async def append(
        self,
        bodies: Sequence[bytes],
        *,
        term: Term,
        head: Head,
        reserve: bool = False,  # noqa: ARG002  a disk says when it is full, not before
    ) -> Head:
        check_limits(bodies)
        return await self._run(lambda: self._append(bodies, term, head))

    async def read(self, *, after: int, limit_bytes: int = BATCH_BYTES_MAX) -> list[Record]:
        return await self._run(lambda: self._read(after, limit_bytes))

    async def head(self) -> Head:
        """While we lead and our lock is in place nobody else appends, so the file is not asked: an
        append that is under way is not acknowledged, and nobody has read it (S18).
        """
        appended = self._appended
        if appended is not None and self._leads and self._lock_in_place():
            return appended
        return await self._run(self._settled_head)

    async def first(self) -> int:
        return await self._run(self._first)

    async def truncate(self, *, before: int, term: Term) -> None:
        """Truncate in short steps, so that appends can run in between."""
        step = STEP_FIRST
        while step:
            step = await self._run(partial(self._truncate_some, before, term, step))

    async def seal(self, note: str) -> None:
        await self._run(lambda: self._seal(note))

    async def seal_note(self) -> str:
        return await self._run(self._seal_note)

    async def begin(self, base: Head, *, term: Term) -> Head:
        return await self._run(lambda: self._begin(base, term))

    async def add(self, records: Sequence[Record]) -> Head:
        return await self._run(lambda: self._add(records))

    async def finish(self) -> None:
        await self._run(self._finish)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with self._looking:
            self._witness.close()
        await self._run(self.db.close)  # the last connection to close checkpoints the WAL
        self._thread.close(wait=True)
        self._unlock()

    async def _run(self, call: Callable[[], T]) -> T:
        return await self._thread.do(call)

    # ── everything below runs on the one thread ────────────────────────────────────────────────

    def _connect(self, *, writes: bool | None = None) -> sqlite3.Connection:
        path = self._directory / DATABASE
        writes = self._writes if writes is None else writes
        mode = "rwc" if writes else "ro"
        with _errors(self._directory):
            db = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={mode}",
                uri=True,
                isolation_level=None,
                check_same_thread=False,  # opened by the caller's thread, used by ours alone
            )
            db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            if writes:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = FULL")
                db.execute("PRAGMA secure_delete = OFF")  # some builds write all that they free
                db.executescript(_SCHEMA)
            (form,) = db.execute("SELECT format FROM leader").fetchone()
        if form not in (FORMAT, CLOSED):
            raise Rejected(
                f"the log in {self._directory} has format {form}, this program knows {FORMAT}; "
                "start the program that wrote it"
            )
        return db

    def _campaign(self, candidate: Candidate) -> Term:
        self._check_lock()
        with self._transaction() as db:
            self._check_open(db)
            db.execute("UPDATE leader SET term = term + 1, name = ?", (_leader_text(candidate),))
            term = Term(db.execute("SELECT term FROM leader").fetchone()[0])
        self._appended = None
        self._leads = term
        return term

    def _resign(self, term: Term) -> None:
        if term != self._leads:
            return
        self._leads = Term(0)
        with self._transaction() as db:
            db.execute("UPDATE leader SET name = '' WHERE term = ?", (term,))

    def _leadership(self) -> Leadership | None:
        with _errors(self._directory):
            row = self.db.execute("SELECT format, term, name FROM leader").fetchone()
        form, term, name = row
        if form != FORMAT or not name or (self._writes and term != self._leads):
            return None
        return Leadership(Term(term), _candidate(name))

    def _seal(self, note: str) -> None:
        if self._leads:
            raise Rejected(f"the log in {self._directory} is led; stop its metastore first")
        with self._transaction() as db:
            form, name = db.execute("SELECT format, name FROM leader").fetchone()
            if form == CLOSED and name != COPYING:
                return
            db.execute("UPDATE leader SET format = ?, name = ?", (CLOSED, f"sealed {note}"))

    def _seal_note(self) -> str:
        with _errors(self._directory):
            form, name = self.db.execute("SELECT format, name FROM leader").fetchone()
        return str(name).removeprefix("sealed ") if form == CLOSED and name != COPYING else ""

    def _begin(self, base: Head, term: Term) -> Head:
        with self._transaction() as db:
            row = db.execute("SELECT format, name, term, base, base_hash FROM leader").fetchone()
            form, name, last, index, digest = row
            if (form, name) == (CLOSED, COPYING):
                if Head(index, digest) != base:
                    raise Rejected(
                        f"another copy was begun in {self._directory}; finish it, or remove the "
                        "directory and begin anew"
                    )
                return self._head(db)
            if form == CLOSED or self._leads or self._head(db) != EMPTY:
                raise Rejected(f"the log in {self._directory} is not empty; copy into another one")
            db.execute(
                "UPDATE leader SET format = ?, name = ?, term = ?, base = ?, base_hash = ?",
                (CLOSED, COPYING, max(term, last), base.index, base.hash),
            )
            return base

    def _add(self, records: Sequence[Record]) -> Head:
        with self._transaction() as db:
            self._check_copying(db)
            head = verify(self._head(db), records)
            self._insert(db, records)
            db.executemany(
                "UPDATE leader SET term = max(term, ?)", [(r.term,) for r in records[-1:]]
            )
        return head

    def _finish(self) -> None:
        with self._transaction() as db:
            db.execute(
                "UPDATE leader SET format = ?, name = '' WHERE format = ? AND name = ?",
                (FORMAT, CLOSED, COPYING),
            )

    def _insert(self, db: sqlite3.Connection, records: Sequence[Record]) -> None:
        db.executemany(
            "INSERT INTO log VALUES (?, ?, ?, ?)",
            [(r.index, r.term, r.body, r.hash) for r in records],
        )

    def _append(self, bodies: Sequence[bytes], term: Term, head: Head) -> Head:
        if self._unsettled:
            raise OutcomeUnknown("an earlier append has an unknown outcome; ask for the head first")
        try:
            with self._transaction() as db:
                self._check_term(db, term)
                now = self._head(db)
                if now != head:
                    raise HeadMoved(f"the log's head is {now.index}, not {head.index} as presumed")
                records = follow(head, bodies, term)
                self._insert(db, records)
        except BaseException:  # raised again: the file has to be asked what is in it
            self._appended = None
            raise
        self._appended = Head(records[-1].index, records[-1].hash) if records else head
        return self._appended

    def _settled_head(self) -> Head:
        """After a failed commit, the file's content counts once it is certainly on the disk."""
        with _errors(self._directory):
            if self._unsettled:
                self.db.close()
                self.db = self._connect()
                self._settle()
                self._unsettled = False
            return self._head(self.db)

    def _settle(self) -> None:
        """Checkpoint the WAL into the database, and truncate it.

        After a failed sync the kernel may have dropped pages that a second sync reports as written.
        So the WAL's content counts only when it was copied to the database and synced there, and no
        WAL is left that a power cut could shorten. A reader can prevent that: then the outcome
        stays unknown.
        """
        self.db.execute(f"PRAGMA busy_timeout = {SETTLE_MS}")
        busy, *_ = self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        self.db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        if busy:
            raise Unavailable(
                f"the outcome of the last append to {self._directory} is not known yet: another "
                "process reads the log, so its WAL cannot be checkpointed; ask again"
            )

    def _read(self, after: int, limit_bytes: int) -> list[Record]:
        try:
            return self._read_verified(after, limit_bytes)
        except Corrupt:
            self.db.close()  # read again with nothing cached; real damage stays
            self.db = self._connect()
            return self._read_verified(after, limit_bytes)

    def _read_verified(self, after: int, limit_bytes: int) -> list[Record]:
        with _errors(self._directory):
            self.db.execute("BEGIN")
            try:
                head = self._head_at(after)
                records = list(_within(self._rows(after), limit_bytes))
                end = self._head(self.db)
            finally:
                self.db.execute("ROLLBACK")
        if not records and end.index > after:
            raise Corrupt(f"the log in {self._directory} has lost the entry after {after}")
        verify(head, records)
        return records

    def _rows(self, after: int) -> Iterator[Record]:
        rows = self.db.execute("SELECT * FROM log WHERE idx > ? ORDER BY idx", (after,))
        for index, term, body, digest in rows:
            yield Record(index, Term(term), body, digest)

    def _head_at(self, index: int) -> Head:
        """The entry at an index, from which the next one's hash must follow."""
        base, base_hash = self.db.execute("SELECT base, base_hash FROM leader").fetchone()
        if index < base:
            raise NotFound(
                f"entries up to {base} of the log in {self._directory} were truncated; "
                "start from a snapshot"
            )
        if index == base:
            return Head(base, base_hash)
        row = self.db.execute("SELECT hash FROM log WHERE idx = ?", (index,)).fetchone()
        if row is None and index > self._head(self.db).index:
            raise NotFound(f"the log in {self._directory} has no entry {index} yet")
        if row is None:
            raise Corrupt(f"the log in {self._directory} has lost entry {index}")
        return Head(index, row[0])

    def _head(self, db: sqlite3.Connection) -> Head:
        row = db.execute("SELECT idx, hash FROM log ORDER BY idx DESC LIMIT 1").fetchone()
        if row is None:
            row = db.execute("SELECT base, base_hash FROM leader").fetchone()
        return Head(row[0], row[1])

    def _first(self) -> int:
        with _errors(self._directory):
            return int(self.db.execute("SELECT coalesce(min(idx), 0) FROM log").fetchone()[0])

    def _truncate_some(self, before: int, term: Term, step: int) -> int:
        """Delete one step of entries; the size of the next step, or none when there are no more."""
        begun = time.perf_counter()
        with self._transaction() as db:
            self._check_term(db, term)
            last = db.execute(
                "SELECT idx, hash FROM"
                " (SELECT idx, hash FROM log WHERE idx < ? ORDER BY idx LIMIT ?)"
                " ORDER BY idx DESC LIMIT 1",
                (before, step),
            ).fetchone()
            if last is None:
                return 0
            db.execute("UPDATE leader SET base = ?, base_hash = ?", last)
            db.execute("DELETE FROM log WHERE idx <= ?", last[:1])
        return next_step(step, took_s=time.perf_counter() - begun)

    def _check_term(self, db: sqlite3.Connection, term: Term) -> None:
        (current,) = db.execute("SELECT term FROM leader").fetchone()
        if current != term or term != self._leads:
            raise TermLost(f"term {term} does not lead any more; the log is at term {current}")

    def _check_lock(self) -> None:
        """Check that our lock file is still in place: a removed one excludes nobody, and two
        servers would take the term from each other for ever.
        """
        if self._lock is not None and not self._lock_in_place():  # a reader has none
            raise Rejected(
                f"{self._directory / LOCK} was removed or replaced while this server ran, so that "
                "another one may lead the log by now. Stop all servers of this directory, and "
                "start one"
            )

    def _lock_in_place(self) -> bool:
        """Whether the file that we hold the lock on is the one that another server would open."""
        if self._lock is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._lock), os.stat(self._lock_path))
        except OSError:
            return False

    def _check_open(self, db: sqlite3.Connection) -> None:
        form, name = db.execute("SELECT format, name FROM leader").fetchone()
        if form == FORMAT:
            return
        if name == COPYING:
            raise Rejected(
                f"the log in {self._directory} is being copied into; finish the copy, or remove "
                "the directory and begin anew"
            )
        raise Rejected(f"the log in {self._directory} was {name.replace(' ', ': ', 1)}")

    def _check_copying(self, db: sqlite3.Connection) -> None:
        if db.execute("SELECT format, name FROM leader").fetchone() != (CLOSED, COPYING):
            raise Rejected(f"no copy was begun in {self._directory}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if not self._writes:
            raise Rejected(f"the log in {self._directory} was opened for reading only")
        with _errors(self._directory):
            self.db.execute("BEGIN IMMEDIATE")
        try:
            with _errors(self._directory):
                yield self.db
        except BaseException:  # raised again: an open transaction would block every other one
            self._rollback()
            raise
        try:
            with _errors(self._directory):
                self.db.execute("COMMIT")
        except StoreFull:
            self._rollback()
            raise
        except Unavailable as error:
            self._unsettled = True
            raise OutcomeUnknown(f"{error}; it may or may not have been stored") from error

    def _rollback(self) -> None:
        try:
            self.db.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # after some errors SQLite has already rolled back

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _leader_text(candidate: Candidate) -> str:
    return f"{candidate.name} {candidate.address}".rstrip()


def _candidate(text: str) -> Candidate:
    name, _, address = text.partition(" ")
    return Candidate(name, address)


def next_step(step: int, *, took_s: float) -> int:
    """How many entries take STEP_S: uncached ones take many times as long as cached ones."""
    fitting = step * STEP_S / max(took_s, STEP_S / 2)
    return max(1, min(STEP_MAX, int(fitting)))


def _within(records: Iterator[Record], limit_bytes: int) -> Iterator[Record]:
    size = 0
    for record in records:
        size += len(record.body)
        if size > limit_bytes and size > len(record.body):
            return
        yield record


def _make_directory(directory: Path) -> None:
    """Create a directory durably, so that a power cut cannot remove it with its synced files.

    Every parent is synced, since a process that created one may have died before it did. Parents
    that we may not even read were not created by us.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for parent in directory.absolute().parents:
        try:
            handle = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
        except PermissionError:
            continue
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _check_local(directory: Path, mounts: Path) -> None:
    if kind := network_type(directory, mounts):
        raise InvalidInput(
            f"the log cannot be kept in {directory}: that is a network file system ({kind}), where "
            "locks and shared memory do not work between hosts, so that two servers could write "
            "one log. Choose a local disk (log.dir), or etcd (log.url) for several hosts; "
            "log.allow_network_fs = true accepts the risk",
            reason="settings",
        )


def _lock_directory(directory: Path) -> int:
    try:
        _make_directory(directory)
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InvalidInput(
            f"the log cannot be kept in {directory}: {error.strerror}; choose another directory"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise Rejected(
            f"a maar server already runs on {directory}; stop it first, "
            "or give this one a directory of its own"
        ) from error
    return lock


@contextmanager
def _errors(directory: Path) -> Iterator[None]:
    """SQLite's errors, sorted by what the caller should do."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            raise StoreFull(f"the disk of the log in {directory} is full: {error}") from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise Corrupt(f"the log in {directory} is damaged: {error}") from error
        raise Unavailable(f"the log in {directory} does not answer: {error}") from error
