"""Directories of this host that are gone when their owner is, and locks that tell who lives.

The kernel drops a file lock when its holder ends, however it ends: so a lock that can be taken is
proof that the worker, or the task, is no more. A process id would be no proof, it can come back.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LOCK = "lock"
_PREFIX = "worker-"
_LOOK_AGAIN_S = 0.05


class WorkerScratch:
    """The directory of one worker process; making it wipes those of dead workers."""

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(parent):
            _wipe_dead(parent)
            self.path = parent / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
            self.path.mkdir(mode=0o700)
            self._lock = _take(_create(self.path / _LOCK))

    def door(self, name: str) -> Door:
        """A new door for one task."""
        directory = self.path / name
        directory.mkdir()
        os.close(_create(directory / _LOCK))
        return Door(directory)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@dataclass(frozen=True, slots=True)
class Door:
    """A task works behind it; once shut, nobody is inside and nobody gets in."""

    directory: Path

    @contextlib.contextmanager
    def entered(self) -> Iterator[Path]:
        """Hold the door while working; FileNotFoundError when it was shut before we came."""
        lock = _take(os.open(self.directory / _LOCK, os.O_RDWR))
        if lock is None:
            raise FileNotFoundError(f"{self.directory} is in use or being shut")
        try:
            if os.fstat(lock).st_nlink == 0:  # shut between our opening and locking it
                raise FileNotFoundError(f"{self.directory} was shut")
            yield self.directory
        finally:
            os.close(lock)

    def shut(self, *, wait_s: float) -> bool:
        """True once nobody is inside; False when somebody still is after the wait."""
        until_s = time.monotonic() + wait_s
        try:
            handle = os.open(self.directory / _LOCK, os.O_RDWR)
        except FileNotFoundError:  # somebody removed it: who is inside can no longer be told
            return False
        try:
            while not _locked(handle):
                if time.monotonic() >= until_s:
                    return False
                time.sleep(_LOOK_AGAIN_S)
            (self.directory / _LOCK).unlink()  # while we hold it: who comes now finds no door
        finally:
            os.close(handle)
        shutil.rmtree(self.directory, ignore_errors=True)
        return True


@contextlib.contextmanager
def _one_at_a_time(parent: Path) -> Iterator[None]:
    """Nobody wipes what another worker has made and not locked yet."""
    handle = os.open(parent / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _wipe_dead(parent: Path) -> None:
    for directory in parent.glob(f"{_PREFIX}*"):
        try:
            lock = _take(os.open(directory / _LOCK, os.O_RDWR))
        except FileNotFoundError:  # half wiped already
            shutil.rmtree(directory, ignore_errors=True)
            continue
        if lock is not None:
            shutil.rmtree(directory, ignore_errors=True)
            os.close(lock)


def _create(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)


def _take(handle: int) -> int | None:
    """Lock an open file; None, and closed, when somebody else holds it."""
    if _locked(handle):
        return handle
    os.close(handle)
    return None


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
