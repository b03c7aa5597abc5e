"""Lets DuckDB read the objects of a store that is no directory: a file system over ranged reads."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fsspec import AbstractFileSystem

from maar.ports.object_store import ObjectStore

PROTOCOL = "maar"
_NEVER_CHANGED = datetime(1970, 1, 1, tzinfo=UTC)  # objects are written once


class StoreFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """maar://key, for reading only."""

    protocol = PROTOCOL
    cachable = False  # an instance belongs to its store

    def __init__(self, store: ObjectStore) -> None:
        super().__init__()
        self._store = store

    def _open(self, path: str, mode: str = "rb", **_options: Any) -> Any:
        if mode != "rb":
            raise PermissionError(f"{path} is an object, and objects are only read here")
        return self._store.open(self._strip_protocol(path))

    def info(self, path: str, **_options: Any) -> dict[str, Any]:
        key = self._strip_protocol(path)
        with self._store.open(key) as file:
            return {"name": key, "size": file.seek(0, 2), "type": "file"}

    def glob(self, path: str, **_options: Any) -> list[str]:
        """The key itself: only listed keys are read, so nothing is ever searched for (S3)."""
        return [path]

    def exists(self, path: str, **_options: Any) -> bool:  # noqa: ARG002  (fsspec's signature)
        return True

    def modified(self, path: str) -> datetime:  # noqa: ARG002  (fsspec's signature)
        return _NEVER_CHANGED
