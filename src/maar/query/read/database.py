"""DuckDB, opened within its bounds and cut off from everything but the files that it is given."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Any

from maar.model.block import BlockMeta
from maar.ports.stores.stores import Stores
from maar.query.read.level0 import COLUMNS
from maar.query.settings import QuerySettings

# Memory of a footer that is parsed, in its bytes. DuckDB counts one, so its own limit is no bound.
FOOTER_FACTOR = 9


def engine() -> Any:
    """DuckDB, loaded by the first query that needs it: small ones do not, and it is 40 MB."""
    import duckdb

    return duckdb


class QueryDatabase:
    """DuckDB in memory; the footers that it has parsed are kept, within a bound.

    Safe to use from many threads.
    """

    def __init__(self, settings: QuerySettings, stores: Stores) -> None:
        self._settings = settings
        self._stores = stores
        self._in_use = 0
        self._lock = threading.Lock()
        self._database: Any = None
        self._scratch = ExitStack()
        self._kept: dict[str, int] = {}  # bytes of footers, by key

    def cursor(self, blocks: Iterable[BlockMeta]) -> Any:
        """For a query about some blocks, until it is released.

        DuckDB cannot forget a footer. What does not fit is not kept, until nobody is at work and a
        new database can take the place of the full one.
        """
        footers = {
            self._stores.nearest(file.locations)[0].key: file.footer_size
            for meta in blocks
            for file in meta.files
            if file.table in COLUMNS
        }
        with self._lock:
            full = not self._in_use and self._kept and not self._fit(footers)
            if self._database is None or full:
                self._close()
                self._open()
            cursor = self._database.cursor()
            self._in_use += 1
            kept = self._fit(footers)
            if kept:
                self._kept |= footers
        if kept:
            cursor.execute("SET parquet_metadata_cache = true")  # its own; files never change
        return cursor

    def release(self, cursor: Any) -> None:
        cursor.close()
        with self._lock:
            self._in_use -= 1

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        database, self._database = self._database, None  # who cannot open the next tries again
        if database is not None:
            database.close()
        self._scratch.close()

    def _fit(self, footers: dict[str, int]) -> bool:
        size = sum((self._kept | footers).values())
        return size * FOOTER_FACTOR <= self._settings.footer_cache_bytes_max

    def _open(self) -> None:
        self._kept = {}
        self._database, self._scratch = open_database(self._settings, self._stores)


def open_database(settings: QuerySettings, stores: Stores) -> tuple[Any, ExitStack]:
    """A database in memory, and what to close after it."""
    from maar.query.read.remote import StoreFileSystem  # with what DuckDB needs for it

    scratch = ExitStack()
    spill = settings.spill_dir or scratch.enter_context(TemporaryDirectory(prefix="maar-query-"))
    database = engine().connect(
        ":memory:",
        config={
            "memory_limit": f"{settings.memory_bytes_max}B",
            "threads": settings.threads,
            "temp_directory": spill,
            "max_temp_directory_size": f"{settings.spill_bytes_max}B",
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,  # no Python variable is ever a table
        },
    )
    database.register_filesystem(StoreFileSystem(stores))
    return database, scratch
