"""An object store in memory: small, real, and held to the same contract as the others."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path

from maar.adapters.stores.key import check_key
from maar.model.errors import AlreadyExists, NotFound
from maar.ports.stores.object_store import ObjectInfo, StoreSettings


class MemoryStore:
    def __init__(self, name: str = "main") -> None:
        self._name = name
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self.clock: int | None = None  # what it shows, when it has one of its own

    def create(self, key: str, body: bytes) -> None:
        with self._lock:
            if check_key(key) in self._objects:
                raise AlreadyExists(f"{key} exists; objects are created once and never changed")
            self._objects[key] = bytes(body)

    def smuggle(self, key: str, body: bytes) -> None:
        """Put an object where no store of ours would: others write to the same place."""
        with self._lock:
            self._objects[key] = body

    def create_from_file(self, key: str, path: Path) -> None:
        self.create(key, path.read_bytes())

    def read(self, key: str) -> bytes:
        with self._lock:
            if check_key(key) not in self._objects:
                raise NotFound(f"there is no object {key}")
            return self._objects[key]

    def read_range(self, key: str, *, start: int, length: int) -> bytes:
        return self.read(key)[start : start + length]

    def size(self, key: str) -> int:
        return len(self.read(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._lock:
            found = [
                ObjectInfo(k, len(v)) for k, v in self._objects.items() if k.startswith(prefix)
            ]
        yield from sorted(found)

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(check_key(key), None)

    def local_path(self, key: str) -> Path | None:  # noqa: ARG002 - there is no file
        return None

    def open(self, key: str) -> io.BytesIO:
        return io.BytesIO(self.read(key))

    def clock_ns(self) -> int | None:
        return self.clock

    def settings(self) -> StoreSettings:
        return StoreSettings(self._name, "memory://")
