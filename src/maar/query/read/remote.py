"""Lets DuckDB read objects of stores that are no directories: a file system over ranged reads."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fsspec import AbstractFileSystem

from maar.model.ids import StoreName
from maar.ports.stores.stores import Stores
from maar.query.read.tables import PROTOCOL

_NEVER_CHANGED = datetime(1970, 1, 1, tzinfo=UTC)  # objects are written once


class StoreFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """maar://store/key, for reading only."""

    protocol = PROTOCOL
    cachable = False  # an instance belongs to its stores

    def __init__(self, stores: Stores) -> None:
        super().__init__()
        self._stores = stores

    def _open(self, path: str, mode: str = "rb", **_options: Any) -> Any:
        if mode != "rb":
            raise PermissionError(f"{path} is an object, and objects are only read here")
        return self._open_object(path)

    def info(self, path: str, **_options: Any) -> dict[str, Any]:
        with self._open_object(path) as file:
            return {
                "name": self._strip_protocol(path),
                "size": file.seek(0, 2),
                "type": "file",
            }

    def _open_object(self, path: str) -> Any:
        store, _, key = self._strip_protocol(path).partition("/")
        return self._stores.open(StoreName(store)).open(key)

    def glob(self, path: str, **_options: Any) -> list[str]:
        """The key itself: only listed keys are read, so nothing is ever searched for (S3)."""
        return [path]

    def exists(self, path: str, **_options: Any) -> bool:  # noqa: ARG002  (fsspec's signature)
        return True

    def modified(self, path: str) -> datetime:  # noqa: ARG002  (fsspec's signature)
        return _NEVER_CHANGED
