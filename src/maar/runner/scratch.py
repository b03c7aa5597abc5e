"""Scratch directories that are deleted when their owner has ended.

The kernel drops a file lock when its holder ends, however it ends: so a lock that can be taken
proves that the owner has ended. A process id would not, since it can be reused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

_LOCK = "lock"
_PREFIX = "worker-"


class WorkerScratch:
    """The directory of one worker or task; creating it deletes those of ended owners."""

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(parent):
            _wipe_dead(parent)
            self.path = parent / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
            self.path.mkdir(mode=0o700)
            handle = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            self._lock = _take(handle)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


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


def _take(handle: int) -> int | None:
    """Lock an open file; None, and closed, when somebody else holds it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle
