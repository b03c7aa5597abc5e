"""Profiles as clients push them, a clock that stands still, and a writer that keeps everything."""

# ruff: noqa: ARG002 - a stand-in takes what its port is given, and needs little of it

from __future__ import annotations

import gzip
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from maar.model.errors import AlreadyExists, MaarError, NotFound
from maar.model.ids import Shard
from maar.model.profile import RawProfile
from maar.model.time import SECOND_NS
from maar.ports.stores.object_store import ObjectInfo, StoreSettings
from maar.pprof.encode import encode
from maar.pprof.plain import PlainFunction, PlainLine, PlainLocation, PlainProfile, PlainSample
from support.clock.virtual_time import run_virtually

NOW_NS = 1_794_000_000 * SECOND_NS
CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"

T = TypeVar("T")


def run(task: Coroutine[Any, Any, T]) -> T:
    return run_virtually(task)


class SetClock:
    """Time that stands still until it is told otherwise."""

    def __init__(self, wall_ns: int = NOW_NS) -> None:
        self.now_ns = wall_ns

    def wall_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns


def pprof(
    *,
    time_ns: int = NOW_NS,
    types: Sequence[tuple[str, str]] = (("cpu", "nanoseconds"),),
    period_type: tuple[str, str] = ("cpu", "nanoseconds"),
    functions: Sequence[str] = ("main", "work"),
    value: int = 10_000_000,
) -> bytes:
    """One sample whose stack is `functions`, root first."""
    return encode(
        PlainProfile(
            sample_types=types,
            samples=[
                PlainSample(tuple(range(len(functions)))[::-1], tuple(value for _ in types)),
            ],
            locations=[PlainLocation(lines=(PlainLine(row),)) for row in range(len(functions))],
            functions=[PlainFunction(name) for name in functions],
            period_type=period_type,
            period=10_000_000,
            time_ns=time_ns,
            duration_ns=SECOND_NS,
        )
    )


class MemoryWriter:
    """A segment writer whose segments are a list. `failure` is raised instead of storing."""

    def __init__(self) -> None:
        self.stored: list[tuple[Shard, RawProfile]] = []
        self.failure: MaarError | None = None

    async def push(self, shard: Shard, profiles: tuple[RawProfile, ...]) -> None:
        if self.failure is not None:
            raise self.failure
        self.stored += [(shard, profile) for profile in profiles]

    def profiles(self) -> list[RawProfile]:
        return [profile for _, profile in self.stored]


class OneShard:
    """A router to one writer, which has one shard."""

    def __init__(self, writer: MemoryWriter) -> None:
        self._writer = writer

    async def push(self, profiles: Sequence[RawProfile]) -> None:
        await self._writer.push(Shard(1), tuple(profiles))


class FailingStore:
    """Objects in a dict. `failures` are raised by the next creates, one each."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.failures: list[MaarError] = []

    def create(self, key: str, body: bytes) -> None:
        if self.failures:
            raise self.failures.pop(0)
        if key in self.objects:
            raise AlreadyExists(key)
        self.objects[key] = body

    def create_from_file(self, key: str, path: Path) -> None:
        self.create(key, path.read_bytes())

    def read(self, key: str) -> bytes:
        if key not in self.objects:
            raise NotFound(key)
        return self.objects[key]

    def read_range(self, key: str, *, start: int, length: int) -> bytes:
        return self.read(key)[start : start + length]

    def size(self, key: str) -> int:
        return len(self.read(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for key in sorted(self.objects):
            if key.startswith(prefix):
                yield ObjectInfo(key, len(self.objects[key]))

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def local_path(self, key: str) -> Path | None:
        return None

    def open(self, key: str) -> Any:
        raise NotImplementedError

    def clock_ns(self) -> int | None:
        return None

    def settings(self) -> StoreSettings:
        return StoreSettings("main", "memory://")


def gz(raw: bytes) -> bytes:
    return gzip.compress(raw, 6, mtime=0)
