"""One query's hold on one view: a cursor of its own, the parts to read, and a way to stop."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import pyarrow as pa

from maar.model.block import BlockMeta, Dataset
from maar.model.errors import Corrupt, InvalidInput, NotFound, Overloaded, Unavailable
from maar.ports.reader.query import Scope
from maar.ports.stores.stores import Stores
from maar.query.decide.budget import LEVEL_0, OBJECT_FACTOR, ROWS, AnswerBudget
from maar.query.decide.select import DATASET_LABELS, PATTERNS, Parts, service_of
from maar.query.read.block_reader import BlockReader
from maar.query.read.database import QueryDatabase, engine
from maar.query.read.known_copies import KnownCopies
from maar.query.read.level0 import DecodedPart, Level0, TooMuch
from maar.query.read.sources import Source, bytes_wanted, sources_of
from maar.query.read.sql import Statement
from maar.query.read.tables import tables_of

BATCH_ROWS = 65_536
GROUPS_AT_ONCE = 200  # whose labels are put together on the event loop: each takes some 10 us

_KINDS = {
    "INTERRUPT Error": "InterruptException",
    "Out of Memory Error": "OutOfMemoryException",
}
_GONE = ("No files found", "does not exist", "No such file")


class Stopped(Exception):
    """The query was given up while its thread was at work."""


class PartGone(Exception):
    """A listed object is not there: the view was too old, or the store has lost it."""


class TakesLonger(Exception):
    """What was to be answered at once needs DuckDB after all, or looks at too much."""


class Reading:
    """Used by one thread; only `stop` may come from another."""

    def __init__(
        self,
        database: QueryDatabase,
        parts: Parts,
        *,
        stores: Stores,
        level0: Level0,
        blocks: BlockReader,
        copies: KnownCopies,
        budget: AnswerBudget,
    ) -> None:
        self.parts = parts
        self.stores = stores
        self.level0 = level0
        self.blocks = blocks
        self.budget = budget
        self._copies = copies
        self._database = database
        self._opened: Any = None  # DuckDB's cursor, which small queries do not need
        self._sources: dict[str, list[Source] | None] = {}
        self.chosen: dict[tuple[Scope, str], Any] = {}  # of sources, by `choose`
        self._decoded: dict[str, list[DecodedPart]] = {}  # by block
        self._hurries = False
        self._stopped = threading.Event()
        self._closing = threading.Lock()
        self._closed = False

    def stop(self) -> None:
        """May be repeated: an interrupt that comes between two statements has no effect."""
        self._stopped.set()
        with self._closing:
            if not self._closed and self._opened is not None:
                self._opened.interrupt()

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """On the event loop, where nobody could stop DuckDB: it is not opened meanwhile."""
        self._hurries = True
        try:
            yield
        finally:
            self._hurries = False

    def check_groups(self, number: int) -> None:
        """Whether the labels of so many series and types can be put together at once."""
        self.check()
        if self._hurries and number > GROUPS_AT_ONCE:
            raise TakesLonger

    def compile(self, patterns: list[str]) -> None:
        """Refuse what RE2 cannot compile before any file is opened."""
        for pattern in patterns:
            try:
                self._cursor.execute("SELECT regexp_full_match('', ?)", [pattern]).fetchall()
            except engine().Error as error:
                raise InvalidInput(
                    f"{pattern[:200]!r} is not a regular expression that RE2 knows: "
                    f"{_last_line(str(error))}",
                    reason="selector",
                ) from error

    @cached_property
    def tables(self) -> dict[str, str]:
        with translate_errors():
            return tables_of(self._cursor, self.parts, stores=self.stores, decode=self._decode)

    def choose_copies_again(self, bad: Collection[BlockMeta]) -> None:
        """After copies were found bad, the files to read are others, and what was read of those is
        worth nothing.
        """
        self.forget(bad)
        self.__dict__.pop("tables", None)
        self._sources.clear()
        self.chosen.clear()
        for meta in bad:
            self._decoded.pop(meta.id, None)
        held = sum(part.size for parts in self._decoded.values() for part in parts)
        self.budget.back_to(held)  # the answer is begun anew

    def forget(self, bad: Collection[BlockMeta]) -> None:
        """What anybody keeps of some blocks: it may be of a copy that is damaged."""
        copies = (at for meta in bad for file in meta.files for at in file.locations)
        names = {*(meta.id for meta in bad), *(at.key for at in copies)}
        if names:
            self.blocks.forget(names)
            self.level0.forget(names)

    def run(self, text: str, statement: Statement, *, objects: bool = False) -> pa.Table:
        """The rows, counted as they come; `objects` when they will be made into Python's."""
        self.check()
        factor = 1 + OBJECT_FACTOR if objects else 1
        with translate_errors():
            rows = self._cursor.sql(text, params=statement.values).to_arrow_reader(BATCH_ROWS)
            try:
                batches = []
                while (batch := _next(rows)) is not None:
                    self.check()
                    self.budget.take(batch.nbytes * factor, ROWS)
                    batches.append(batch)
                return pa.Table.from_batches(batches, rows.schema)
            finally:
                rows.close()

    def register(self, name: str, table: pa.Table) -> None:
        self._cursor.register(name, table)

    def sources(self, service: str) -> list[Source] | None:
        """The parts as runs, of one service or ('') of all; None when they are too much to hold, or
        not all found yet.
        """
        if service not in self._sources:
            with translate_errors():
                self._sources[service] = self._find_sources(service)
        return self._sources[service]

    def _find_sources(self, service: str) -> list[Source] | None:
        """A query does a part of the search at most, and the next ones go on with it: DuckDB has
        several threads, and is the faster one where nothing is known.
        """
        reader = self.blocks
        if bytes_wanted(self.parts, service=service) > reader.cache.bytes_max:
            return None
        cold = [(meta, reader.cold_rows(meta, service)) for meta in self.parts.blocks]
        if sum(rows for _, rows in cold) > reader.cold_rows_max:
            left = reader.cold_rows_max
            for meta, rows in cold:
                self.check()
                reader.totals(meta, service)
                left -= rows
                if left <= 0:
                    return None
        return sources_of(
            self.parts, service=service, reader=reader, decode=self._decode, check=self.check
        )

    def has_at_hand(self, scope: Scope, runs_max: int, *, labels: bool = True) -> bool:
        """Whether there is nothing to read, decode or look for, and no more than so many runs; for
        patterns DuckDB is asked. `labels`: also those that the scope does not name.
        """
        if self.parts.raw or any(matcher.op in PATTERNS for matcher in scope.matchers):
            return False
        service, left = service_of(scope.matchers), runs_max
        labels = labels or any(each.name not in DATASET_LABELS for each in scope.matchers)
        for meta in self.parts.blocks:
            runs = self.blocks.runs_at_hand(meta, service, labels=labels)
            if runs is None or runs > left:
                return False
            left -= runs
        return True

    def may_share(self, sources: list[Source]) -> bool:
        """Whether some of these parts may have the same profile."""
        return self._copies.among(sources)

    def check(self) -> None:
        if self._stopped.is_set():
            raise Stopped

    def close(self) -> None:
        with self._closing:
            self._closed = True
            if self._opened is not None:
                self._database.release(self._opened)

    @property
    def _cursor(self) -> Any:
        if self._hurries:
            raise TakesLonger
        with self._closing:
            if self._opened is None:
                self._opened = self._database.cursor(self.parts.blocks)
            return self._opened

    def _decode(self, meta: BlockMeta, datasets: Sequence[Dataset]) -> list[DecodedPart]:
        """Once for a query: what SQL is asked after a look at the runs is counted once too."""
        if meta.id not in self._decoded:
            self._decoded[meta.id] = self._decode_now(meta, datasets)
        return self._decoded[meta.id]

    def _decode_now(self, meta: BlockMeta, datasets: Sequence[Dataset]) -> list[DecodedPart]:
        self.check()
        try:
            parts = self.level0.parts(meta, datasets)
        except TooMuch:
            if meta.plan is None:
                raise
            return list(self._decode_pieces(meta, datasets))
        self.budget.take(sum(part.size for part in parts), LEVEL_0)
        return parts

    def _decode_pieces(self, meta: BlockMeta, datasets: Sequence[Dataset]) -> Iterator[DecodedPart]:
        for part in self.level0.pieces(meta, datasets):
            self.budget.take(part.size, LEVEL_0)
            yield part
            self.check()


@contextmanager
def translate_errors() -> Iterator[None]:
    """Errors of DuckDB and of the store, said in ours."""
    try:
        yield
    except TakesLonger:
        raise  # before DuckDB is loaded, to be asked what its errors are
    except NotFound as error:
        raise PartGone(str(error)) from error
    except engine().Error as error:
        raise _error_of(error) from error
    except (pa.ArrowException, OSError) as error:  # of level 0, which is read without DuckDB
        raise _unreadable(str(error)) from error


def _next(rows: pa.RecordBatchReader) -> pa.RecordBatch | None:
    """The next rows; an error of DuckDB between two batches comes as Arrow's, its kind as text."""
    try:
        return next(rows, None)
    except (pa.ArrowException, OSError) as error:
        text = str(error)
        kind = next((kind for words, kind in _KINDS.items() if words in text), "Error")
        raise getattr(engine(), kind)(text) from error


def _error_of(error: Exception) -> Exception:
    text, duckdb = str(error), engine()
    if isinstance(error, duckdb.InterruptException):
        return Stopped()
    if isinstance(error, duckdb.OutOfMemoryException):
        return Overloaded(
            "the query needs more memory than the query role may use; ask for a shorter time "
            "range or fewer series, or raise query.memory_bytes_max"
        )
    kind, _, why = _last_line(text).partition(": ")
    if kind.rpartition(".")[2] == Unavailable.__name__:  # the store's own, which comes as text
        return Unavailable(why)
    if any(sign in text for sign in _GONE):
        return PartGone(_last_line(text))
    if isinstance(error, duckdb.InvalidInputException | duckdb.IOException) or (
        type(error) is duckdb.Error  # an error of the store's file system, as text
    ):
        return _unreadable(text)
    return error


def _unreadable(text: str) -> Corrupt:
    return Corrupt(
        f"a block could not be read: {_last_line(text)}. Its bytes may not be what was written; "
        "compare its objects with the checksums in the index"
    )


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1][:300] if text.strip() else "no reason was given"
