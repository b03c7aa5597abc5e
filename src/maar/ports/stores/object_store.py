"""Objects that are created once and never changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from maar.model.errors import NotFound


class ObjectInfo(NamedTuple):
    key: str
    size: int


class ObjectStore(Protocol):
    """All calls block: async code runs them in threads. Errors are those of model.errors.

    Unavailable and StoreFull may be raised by every call; a failed create leaves nothing readable
    under its key, except after OutcomeUnknown.
    """

    def create(self, key: str, body: bytes) -> None:
        """Store a new object durably; AlreadyExists when the key is taken."""
        ...

    def create_from_file(self, key: str, path: Path) -> None:
        """The same from a local file, without holding it in memory where the store allows."""
        ...

    def read(self, key: str) -> bytes:
        """The whole object, or NotFound."""
        ...

    def read_range(self, key: str, *, start: int, length: int) -> bytes:
        """Some bytes of it."""
        ...

    def size(self, key: str) -> int:
        """Its size, or NotFound."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key starts with the prefix, in key order."""
        ...

    def delete(self, key: str) -> None:
        """Remove it; nothing happens when it is not there."""
        ...

    def local_path(self, key: str) -> Path | None:
        """The file that holds it, when the store is a directory of this host."""
        ...

    def open(self, key: str) -> Any:
        """A seekable binary file over ranged reads (for pyarrow and DuckDB)."""
        ...

    def clock_ns(self) -> int | None:
        """What time it is by the store's own clock; None when that is the clock of this host."""
        ...

    def settings(self) -> StoreSettings:
        """What another process (a Spark executor) needs to open the same store."""
        ...


def exists(store: ObjectStore, key: str) -> bool:
    try:
        store.size(key)
    except NotFound:
        return False
    return True


class StoreSettings(NamedTuple):
    """A store as plain, picklable data."""

    name: str
    url: str  # file:///dir or s3://bucket/prefix
    options: tuple[tuple[str, str], ...] = ()  # endpoint, region, keys; never logged
