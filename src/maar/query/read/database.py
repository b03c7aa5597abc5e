"""DuckDB, opened within its bounds and cut off from everything but the files that it is given."""

from __future__ import annotations

from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Any

import duckdb

from maar.ports.object_store import ObjectStore
from maar.query.read.remote import StoreFileSystem
from maar.query.settings import QuerySettings


def open_database(settings: QuerySettings, store: ObjectStore) -> tuple[Any, ExitStack]:
    """A database in memory, and what to close after it."""
    scratch = ExitStack()
    spill = settings.spill_dir or scratch.enter_context(TemporaryDirectory(prefix="maar-query-"))
    database = duckdb.connect(
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
    database.execute("SET parquet_metadata_cache = true")  # files never change
    database.register_filesystem(StoreFileSystem(store))
    return database, scratch
