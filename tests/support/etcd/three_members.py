"""Three members of etcd that tests share, and what tests do with a log in them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from maar.adapters.etcd import connection
from maar.adapters.etcd.log import EtcdLog
from maar.adapters.etcd.settings import EtcdSettings
from maar.model.errors import (
    OutcomeUnknown,
)
from maar.ports.log import Log, Record
from support.etcd.cluster import EtcdCluster, running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """Three members; each test takes a prefix of its own and leaves them healthy."""
    with running(tmp_path_factory.mktemp("etcd"), members=3) as made:
        yield made


@pytest.fixture
def settings(cluster: EtcdCluster, tmp_path: Path) -> EtcdSettings:
    return cluster.settings(f"/{tmp_path.name}", election_s=6)


async def all_of(log: Log) -> list[Record]:
    records: list[Record] = []
    while some := await log.read(after=records[-1].index if records else 0):
        records += some
    return records


Work = Callable[[], Awaitable[object]]


def between(log: EtcdLog, *, before: Work | None = None, lost: bool = False) -> None:
    """Let something happen before the next write of a log, or its answer be lost."""
    asked = log._connection.once

    async def once(ask: connection.Ask, request: object, *, within_s: float) -> object:
        log._connection.once = asked  # type: ignore[method-assign]
        if before is not None:
            await before()
        reply = await asked(ask, request, within_s=within_s)
        if lost:
            raise OutcomeUnknown("no reply")
        return reply

    log._connection.once = once  # type: ignore[method-assign]
