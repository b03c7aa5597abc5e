"""The disks that this host writes to: how much is free, and when pushes are refused.

Below a reserve pushes are refused, so that the log, compaction and cleaning, which make room again,
can still write. Operators are warned well before. A disk that gets room again is used again at
once. One that does not answer, as a network mount whose server is gone, holds nobody up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from enum import IntEnum
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily

from maar.app.settings.config import Settings
from maar.app.settings.log_url import FilePlace
from maar.ports.clock import Clock

DATA, LOG, STORE = "data", "log", "store"  # data: scratch files, and what queries spill
RESERVE_PART = 20  # of a disk, when nothing else is said
RESERVE_MAX = 512 << 20
WARNED_AT = 3  # reserves that are left
SPENT_AT = 8  # parts of the reserve: with less of it left, the log may not take another entry
LOOK_NS = 1_000_000_000  # it is not measured more often
ANSWER_S = 0.25  # a disk takes microseconds, and whoever asks may be an event loop
HANGS_NS = 5_000_000_000  # silent for so long: a busy machine can be late, too


class Free(NamedTuple):
    bytes: int
    of: int  # bytes in all
    device: int = 0  # directories of the same one share it


UNKNOWN = Free(0, 0, -1)  # of disks that do not answer, told of together


class DiskState(IntEnum):
    ROOMY = 0
    LOW = 1  # operators are warned
    FULL = 2  # pushes are refused
    SPENT = 3  # nothing can be written
    HANGS = 4  # it does not answer


class Disk(NamedTuple):
    """One of the directories, as it was found."""

    name: str
    path: str
    free: Free
    reserve: int
    hangs: bool = False

    @property
    def standing(self) -> DiskState:
        if self.hangs:
            return DiskState.HANGS
        if self.free.bytes * SPENT_AT < self.reserve:
            return DiskState.SPENT
        if self.free.bytes < self.reserve:
            return DiskState.FULL
        return DiskState.LOW if self.free.bytes < WARNED_AT * self.reserve else DiskState.ROOMY

    @property
    def sentence(self) -> str:
        """'' while there is room."""
        left = f"the disk of {self.path} ({self.name}) has {_size(self.free.bytes)} left"
        match self.standing:
            case DiskState.ROOMY:
                return ""
            case DiskState.LOW:
                refused = f"below {_size(self.reserve)} pushes are refused"
                return f"{left} of {_size(self.free.of)}; {refused}: free some space, or add some"
            case DiskState.FULL:
                kept = f"{_size(self.reserve)} are kept for the log and compaction"
                return f"{left}, and {kept}, so that pushes are refused until some is freed"
            case DiskState.SPENT:
                return f"{left}: nothing can be written until some is freed"
            case DiskState.HANGS:
                why = "if it is a network mount, look at its server"
                return f"the disk of {self.path} ({self.name}) does not answer; {why}"


def reserve_of(free: Free, told: int) -> int:
    return told or min(RESERVE_MAX, free.of // RESERVE_PART)


def measure_disk(path: Path) -> Free | None:
    """None when there is no such directory: it is not on this host."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    room = found.f_bavail if found.f_favail or not found.f_files else 0  # no inode, no file
    return Free(room * found.f_frsize, found.f_blocks * found.f_frsize, os.stat(path).st_dev)


class Patiently:
    """Measures in a thread, and waits for it a moment: TimeoutError when there is no answer. Until
    there is one, it waits no more.
    """

    def __init__(
        self,
        measure: Callable[[Path], Free | None] = measure_disk,
        *,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._measure = measure
        self._answer_s = answer_s
        self._asked: dict[Path, Future[Free | None]] = {}

    def __call__(self, path: Path) -> Free | None:
        asked, patience_s = self._asked.get(path), 0.0
        if asked is None:
            asked, patience_s = Future(), self._answer_s
            self._asked[path] = asked
            Thread(target=self._answer, args=(asked, path), name="disk", daemon=True).start()
        free = asked.result(patience_s)
        del self._asked[path]
        return free

    def _answer(self, asked: Future[Free | None], path: Path) -> None:
        try:
            asked.set_result(self._measure(path))
        except Exception as error:  # noqa: BLE001 -- whoever waits is told
            asked.set_exception(error)


class Disks:
    """Measured on demand, at most once a second."""

    def __init__(
        self,
        directories: Mapping[str, Path],
        clock: Clock,
        *,
        reserve_bytes: int = 0,  # 0: a twentieth of each disk, at most 512 MiB
        measure: Callable[[Path], Free | None] | None = None,
    ) -> None:
        self._directories = directories
        self._clock = clock
        self._reserve_bytes = reserve_bytes
        self._measure = measure or Patiently()
        self._looked_ns: int | None = None
        self._found: Sequence[Disk] = ()
        self._silent_since_ns: dict[str, int] = {}

    def look(self) -> Sequence[Disk]:
        now_ns = self._clock.monotonic_ns()
        if self._looked_ns is None or now_ns - self._looked_ns >= LOOK_NS:
            self._looked_ns = now_ns
            self._found = list(self._measure_all(now_ns))
        return self._found

    def _measure_all(self, now_ns: int) -> Iterator[Disk]:
        before = {disk.name: disk for disk in self._found}
        for name, path in self._directories.items():
            try:
                free = self._measure(path)
            except TimeoutError:
                silent_ns = now_ns - self._silent_since_ns.setdefault(name, now_ns)
                if silent_ns >= HANGS_NS:
                    yield Disk(name, str(path), UNKNOWN, 0, hangs=True)
                elif name in before:
                    yield before[name]
                continue
            self._silent_since_ns.pop(name, None)
            if free is not None:
                yield Disk(name, str(path), free, reserve_of(free, self._reserve_bytes))

    def no_room(self) -> str:
        """Why no push can be taken; '' when one can."""
        return "; ".join(sentences(d for d in self.look() if d.standing >= DiskState.FULL).values())

    def no_room_to_read(self) -> str:
        """Why no query can be answered: reading needs no room, but pins and spilling do."""
        needed = (disk for disk in self.look() if disk.name in (DATA, LOG))
        return "; ".join(sentences(d for d in needed if d.standing >= DiskState.SPENT).values())

    def plain(self) -> list[dict[str, Any]]:
        """For `maar status`."""
        troubles = sentences(self.look())
        return [
            {
                "name": disk.name,
                "path": disk.path,
                "free_bytes": disk.free.bytes,
                "total_bytes": disk.free.of,
                "reserve_bytes": disk.reserve,
                "trouble": troubles.get(disk.name, ""),
            }
            for disk in self.look()
        ]

    def collect(self) -> Sequence[GaugeMetricFamily]:
        """For Prometheus."""
        labels = ["directory"]
        free = GaugeMetricFamily("maar_disk_free_bytes", "Free on the disk", labels=labels)
        total = GaugeMetricFamily("maar_disk_total_bytes", "Size of the disk", labels=labels)
        kept = GaugeMetricFamily(
            "maar_disk_reserve_bytes", "Below this, pushes are refused", labels=labels
        )
        for disk in (disk for disk in self.look() if not disk.hangs):
            free.add_metric([disk.name], disk.free.bytes)
            total.add_metric([disk.name], disk.free.of)
            kept.add_metric([disk.name], disk.reserve)
        return free, total, kept

    def register_in(self, registry: CollectorRegistry) -> Disks:
        registry.register(self)
        return self


def sentences(disks: Iterable[Disk]) -> dict[str, str]:
    """Warnings, one per disk: directories of the same disk are reported together."""
    by_device: dict[int, list[Disk]] = {}
    for disk in disks:
        by_device.setdefault(disk.free.device, []).append(disk)
    return {
        some[0].name: some[0]._replace(name=", ".join(disk.name for disk in some)).sentence
        for some in by_device.values()
    }


def disks_of(
    settings: Settings, clock: Clock, *, measure: Callable[[Path], Free | None] | None = None
) -> Disks:
    """The directories of these settings that are on this host."""
    directories = {DATA: settings.data_dir}
    place = settings.log_place
    if isinstance(place, FilePlace):
        directories[LOG] = place.directory
    store = urlsplit(settings.store_settings().url)
    if store.scheme == "file":
        directories[STORE] = Path(unquote(store.path))
    reserve = settings.server.reserve_bytes
    return Disks(directories, clock, reserve_bytes=reserve, measure=measure)


def _size(number: int) -> str:
    if number >= 10 << 30:
        return f"{number / (1 << 30):,.0f} GiB"
    return f"{number / (1 << 20):,.1f} MiB"
