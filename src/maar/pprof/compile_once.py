"""Compiles code once for all processes that share its cache: the others wait.

Without this, every process of a new installation would compile the same for itself, all at the same
time. A mark beside the cache says that it is complete; the lock is released when its holder ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import llvmlite.binding
import numba

log = logging.getLogger("maar.compiler")

_PACKAGE = Path(__file__).parents[1]
_COMPILED = ("pprof", "block", "query")  # the packages of maar with compiled functions
_doing: list[str] = []  # by each thread that waits or compiles


def doing() -> str:
    """What this process compiles or waits for, as a sentence; '' when nothing."""
    return next(iter(_doing), "")


def once(part: str, cache: str | None, make: Callable[[], None]) -> None:
    """Have `make` load what is in the cache, or compile it there, one process at a time.

    Without a directory that can be written, every process compiles for itself.
    """
    directory = Path(cache or "")
    mark = directory / f"maar-{part}-{stamp()}.whole"
    if not cache or mark.exists():
        make()
        return
    with _say(f"waits for another process that compiles maar's {part} code"):
        try:
            directory.mkdir(parents=True, exist_ok=True)
            lock = open(directory / f"maar-{part}.lock", "wb")  # noqa: SIM115 - see below
        except OSError as error:
            log.warning(
                "compile cache not usable, compiled for this process alone part=%s cause=%s",
                part,
                error,
            )
            make()
            return
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if mark.exists():
                make()
                return
            _compile(part, mark, make)


def _compile(part: str, mark: Path, make: Callable[[], None]) -> None:
    began = time.monotonic()
    log.info("compiling, once after an installation: about ten seconds of CPU part=%s", part)
    with _say(f"is compiling maar's {part} code, once after an installation"):
        make()
    for old in mark.parent.glob(f"maar-{part}-*.whole"):
        old.unlink(missing_ok=True)
    mark.touch()
    log.info("compiled part=%s seconds=%.1f", part, time.monotonic() - began)


def sources() -> list[Path]:
    """What may hold compiled functions, in folders too."""
    return sorted(source for package in _COMPILED for source in (_PACKAGE / package).rglob("*.py"))


def stamp() -> str:
    """What the compiled code depends on: the sources, the compiler, the processor."""
    made_of = [
        platform.python_version(),
        numba.__version__,
        llvmlite.binding.get_host_cpu_name(),
    ]
    for source in sources():
        seen = source.stat()
        made_of.append(f"{source.name} {seen.st_size} {seen.st_mtime_ns}")
    return hashlib.blake2b("\n".join(made_of).encode(), digest_size=8).hexdigest()


@contextmanager
def _say(sentence: str) -> Iterator[None]:
    _doing.insert(0, sentence)
    try:
        yield
    finally:
        _doing.remove(sentence)
