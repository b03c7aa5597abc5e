"""Every log that we have, behind one factory: a new adapter joins here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from maar.adapters.etcd.log import EtcdLog
from maar.adapters.sqlite.log import SqliteLog
from maar.ports.metastore.log import (
    Log,
    LogCopy,
)
from support.etcd.cluster import EtcdCluster
from support.metastore.memory_log import MemoryLog, SharedLog

T = TypeVar("T")


class SqliteFactory:
    """Opens the same log again and again; the one before is closed first."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._open: SqliteLog | None = None

    async def __call__(self) -> SqliteLog:
        await self.close()
        self._open = SqliteLog.open(self.directory)
        return self._open

    async def reader(self) -> Log:
        return SqliteLog.open_reader(self.directory)

    async def depose(self) -> None:
        """The next campaign does that."""

    def another(self) -> SqliteFactory:
        return SqliteFactory(self.directory / "another")

    async def close(self) -> None:
        if self._open is not None:
            await self._open.close()


class MemoryFactory:
    """As many doors to one log as a test opens."""

    def __init__(self) -> None:
        self._shared = SharedLog()

    async def __call__(self) -> MemoryLog:
        return MemoryLog(self._shared)

    async def reader(self) -> Log:
        return MemoryLog(self._shared, writes=False)

    async def depose(self) -> None:
        self._shared.depose()

    def another(self) -> MemoryFactory:
        return MemoryFactory()

    async def close(self) -> None:
        self._shared.leader_term = None  # whoever closes its log has left


class EtcdFactory:
    """The same prefix of one cluster again and again."""

    def __init__(self, cluster: EtcdCluster, prefix: str) -> None:
        self._cluster = cluster
        self._settings = cluster.settings(prefix, election_s=10)
        self._open: list[EtcdLog] = []

    async def __call__(self) -> EtcdLog:
        self._open.append(await EtcdLog.open(self._settings))
        return self._open[-1]

    async def reader(self) -> Log:
        return await EtcdLog.open_reader(self._settings)

    async def depose(self) -> None:
        """The lease runs out."""
        await asyncio.to_thread(self._cluster.revoke_leases)

    def another(self) -> EtcdFactory:
        return EtcdFactory(self._cluster, f"{self._settings.prefix}-another")

    async def close(self) -> None:
        while self._open:
            await self._open.pop().close()


Factory = SqliteFactory | MemoryFactory | EtcdFactory


def make_factory(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Factory:
    if kind == "sqlite":
        return SqliteFactory(tmp_path / "log")
    if kind == "memory":
        return MemoryFactory()
    return EtcdFactory(request.getfixturevalue("etcd"), f"/{tmp_path.name}")


@pytest.fixture(params=["sqlite", "memory", "etcd"])
def factory(request: pytest.FixtureRequest, tmp_path: Path) -> Factory:
    return make_factory(request.param, request, tmp_path)


class Both(Log, LogCopy, Protocol):
    """The adapters implement both in one class."""


def run(factory: Factory, test: Callable[[Both], Awaitable[T]]) -> T:
    async def open_and_test() -> T:
        try:
            return await test(await factory())
        finally:
            await factory.close()

    return asyncio.run(open_and_test())
