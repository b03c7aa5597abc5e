"""Process hygiene: die with the parent, and leave no child processes behind."""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn

import maar
from maar.app.processes import watcher
from maar.model.errors import InvalidInput

PACKAGE = Path(maar.__file__).parent
CANNOT_RUN = 78  # the exit code of a child that would fail again after a restart

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends, even by kill -9."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we could ask
        os._exit(CANNOT_RUN)


def compiled_code(data_dir: Path, package: Path = PACKAGE) -> dict[str, str]:
    """Where Numba keeps compiled code, as children are told: beside the sources, unless they cannot
    be written; then in the data directory.
    """
    if os.access(package, os.W_OK):
        return {}
    return {"NUMBA_CACHE_DIR": str(data_dir / "compiled")}


def leads_its_session() -> bool:
    """Whether it leads its own session; one started from a shell shares the shell's."""
    return os.getsid(0) == os.getpid()


def take_the_session_along() -> subprocess.Popen[bytes] | None:
    """End whatever is left of our own session when this process ends, however it ends."""
    if not leads_its_session():
        return None
    watched_end, _our_end = os.pipe()  # ours is closed by the kernel alone, when we are gone
    watching = subprocess.Popen(
        [sys.executable, "-I", "-S", watcher.__file__, str(os.getsid(0))],
        stdin=watched_end,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(watched_end)
    return watching


def end_the_session() -> None:
    """Kill all others of our own session."""
    if leads_its_session():
        for member in watcher.session_members(os.getpid()):
            if member != os.getpid():
                with suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)


def lock_directory(directory: Path) -> IO[bytes]:
    """Make the directory ours until the returned file is closed or this process ends (S18)."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = open(directory / "server.lock", "ab")  # noqa: SIM115 - open as long as we serve
    except OSError as error:
        raise InvalidInput(
            f"cannot use {directory} as the data directory: {error.strerror}; "
            "choose another with --data"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise InvalidInput(
            f"another maar server is using {directory}; stop it, or choose another with --data"
        ) from error
    return file


def leave(code: int) -> NoReturn:
    """End when all is closed in order: a thread that is stuck in a library must not keep us."""
    logging.shutdown()
    os._exit(code)
