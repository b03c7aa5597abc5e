"""A directory as an object store: objects are created atomically, durably and only once."""

from __future__ import annotations

import errno
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from maar.adapters.stores.key import PRIVATE, check_key, directory_of
from maar.model.errors import (
    AlreadyExists,
    InvalidInput,
    MaarError,
    NotFound,
    OutcomeUnknown,
    StoreFull,
    Unavailable,
)
from maar.ports.stores.object_store import ObjectInfo, StoreSettings

TEMPORARY = f"{PRIVATE}tmp"
LEFTOVER_AGE_S = 3600  # far longer than any upload: what is older was left by a dead process
PIECE = 4 << 20  # synced piece by piece: others that sync would have to wait for all of it
LINK_TRIES = 100  # others may remove the same empty directory at the same time

T = TypeVar("T")

_FULL = (errno.ENOSPC, errno.EDQUOT)
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)


class LocalStore:
    """See ports.object_store. Objects are written to a temporary file, then linked."""

    def __init__(self, root: Path, settings: StoreSettings, *, make: bool = True) -> None:
        self.root = root
        self._settings = settings
        self._temporary = root / TEMPORARY
        self._durable: set[Path] = set()  # directories whose own entry this process has synced
        self._lock = threading.Lock()
        if not make:
            self._check_root()
        try:
            self._temporary.mkdir(parents=make, exist_ok=True)
        except OSError as error:
            raise _error_of(error, str(root), creating=True) from error
        self._remove_leftovers()

    def create(self, key: str, body: bytes) -> None:
        view = memoryview(body)
        self._create(key, (view[at : at + PIECE] for at in range(0, max(1, len(view)), PIECE)))

    def create_from_file(self, key: str, path: Path) -> None:
        self._create(key, _pieces(path))

    def read(self, key: str) -> bytes:
        return self._guard(key, self.local_path(key).read_bytes)

    def read_range(self, key: str, *, start: int, length: int) -> bytes:
        path = self.local_path(key)

        def some() -> bytes:
            with path.open("rb") as file:
                file.seek(start)
                return file.read(max(length, 0))

        return self._guard(key, some)

    def size(self, key: str) -> int:
        path = self.local_path(key)
        info = self._guard(key, path.stat)
        if not path.is_file():
            self._check_root()
            raise NotFound(f"object {key} does not exist")
        return info.st_size

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder = directory_of(prefix)
        for info in self._walk(self.root / folder, f"{folder}/" if folder else ""):
            if info.key.startswith(prefix):
                yield info

    def delete(self, key: str) -> None:
        path = self.local_path(key)
        try:
            path.unlink()
        except OSError as error:
            if error.errno not in _ABSENT:
                raise _error_of(error, key) from error
        self._remove_empty(path.parent)

    def local_path(self, key: str) -> Path:
        return self.root / check_key(key)

    def open(self, key: str) -> Any:
        path = self.local_path(key)
        return self._guard(key, lambda: path.open("rb"))

    def clock_ns(self) -> int | None:
        """None: files are dated by this host's own clock."""
        return None

    def settings(self) -> StoreSettings:
        return self._settings

    def _create(self, key: str, pieces: Iterable[bytes | memoryview]) -> None:
        final = self.local_path(key)
        temporary = self._temporary / f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            with self._open_new(temporary) as file:
                for piece in pieces:
                    file.write(piece)
                    file.flush()
                    os.fsync(file.fileno())
            self._link(temporary, final)
        except FileExistsError as error:
            # A caller that finds its own earlier try here takes it as stored, so it must be
            # durable.
            self._sync_entry(final, key)
            raise AlreadyExists(f"object {key} exists already; keys are written once") from error
        except OSError as error:
            raise _error_of(error, key, creating=True) from error
        finally:
            with suppress(OSError):  # that it could not be written is said already
                temporary.unlink()
        self._sync_entry(final, key)

    def _open_new(self, temporary: Path) -> BinaryIO:
        """Whoever empties a store takes the directory of temporary files along."""
        try:
            return temporary.open("xb")
        except FileNotFoundError:
            self._check_root()
            self._temporary.mkdir(exist_ok=True)
            return temporary.open("xb")

    def _link(self, temporary: Path, final: Path) -> None:
        """Link the file to its name; recreate a directory that another process just removed."""
        for tries_left in reversed(range(LINK_TRIES)):
            try:
                self._make_durable(final.parent)
                os.link(temporary, final)
                return
            except FileNotFoundError:
                if not tries_left:
                    raise
                with self._lock:
                    self._durable.difference_update(final.parents)

    def _remove_empty(self, directory: Path) -> None:
        """Remove directories that became empty, since only objects count."""
        while directory != self.root:
            try:
                directory.rmdir()
            except OSError:
                return  # it is not empty, or another process was faster
            with self._lock:
                self._durable.discard(directory)
            directory = directory.parent

    def _sync_entry(self, final: Path, key: str) -> None:
        try:
            _sync_directory(final.parent)
        except OSError as error:
            # The name exists, but a power cut may remove it: neither success nor failure.
            raise OutcomeUnknown(
                f"object {key} was linked, but its directory could not be synced ({error}); "
                "read it before writing again"
            ) from error

    def _make_durable(self, directory: Path) -> None:
        """Make a directory and sync each entry above it that this process has not yet synced.

        Another process may have created it without syncing it yet, so existence proves nothing.
        """
        if directory == self.root or directory in self._durable:
            return
        self._make_durable(directory.parent)
        try:
            # Not with exist_ok: that fails when somebody removes the directory in between, and a
            # FileExistsError from here would pass for an object that exists.
            directory.mkdir()
        except FileExistsError:
            pass  # if it is removed again, linking fails and we start over
        _sync_directory(directory.parent)
        with self._lock:
            self._durable.add(directory)

    def _walk(self, directory: Path, prefix: str) -> Iterator[ObjectInfo]:
        try:
            with os.scandir(directory) as entries:
                found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except OSError as error:
            if error.errno in _ABSENT:
                self._check_root()
                return
            raise _error_of(error, prefix) from error
        # A directory sorts as its keys do: with the slash that follows its name.
        for name in sorted(f"{name}/" if folder else name for name, folder in found):
            if name.startswith(PRIVATE):
                continue
            if name.endswith("/"):
                yield from self._walk(directory / name, prefix + name)
            else:
                try:
                    yield ObjectInfo(prefix + name, (directory / name).stat().st_size)
                except FileNotFoundError:
                    continue  # deleted while we listed

    def _remove_leftovers(self) -> None:
        """As far as that is possible: a disk that is read-only can still be read."""
        oldest = time.time() - LEFTOVER_AGE_S
        with suppress(OSError):
            for path in self._temporary.iterdir():
                with suppress(OSError):  # also when its owner, or another opener, was faster
                    if path.stat().st_mtime < oldest:
                        path.unlink()

    def _guard(self, key: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except OSError as error:
            self._check_root()
            raise _error_of(error, key) from error

    def _check_root(self) -> None:
        """A disk that is not mounted has lost nothing: that is not the same as a missing object."""
        if not self.root.is_dir():
            raise Unavailable(
                f"the directory {self.root} of store {self._settings.name} is not there; mount it, "
                "or make it if the store is new"
            )


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as source:
        yield source.read(PIECE)
        while piece := source.read(PIECE):
            yield piece


def _error_of(error: OSError, key: str, *, creating: bool = False) -> MaarError:
    if error.errno in _FULL:
        return StoreFull(
            f"the object store has no room for {key} ({error.strerror}); nothing was written. "
            "Free some space and try again"
        )
    if error.errno == errno.ENAMETOOLONG:
        return InvalidInput(f"object key {key!r} has a part that is too long for this file system")
    if error.errno in _ABSENT and not creating:
        return NotFound(f"object {key} does not exist")
    return Unavailable(f"the object store could not serve {key}: {error}")
