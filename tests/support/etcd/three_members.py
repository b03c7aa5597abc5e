"""What tests do with a log in the three members of etcd that they share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from maar.adapters.etcd import connection
from maar.adapters.etcd.log import EtcdLog
from maar.adapters.etcd.settings import EtcdSettings
from maar.model.errors import OutcomeUnknown
from maar.ports.metastore.log import Head, Log, Record, Term
from support.etcd.cluster import EtcdCluster


@pytest.fixture
def settings(cluster: EtcdCluster, tmp_path: Path) -> EtcdSettings:
    return cluster.settings(f"/{tmp_path.name}", election_s=6)


async def store_entry(log: EtcdLog, body: bytes, *, term: Term, head: Head) -> Head:
    """As a leader does it: what a slow disk leaves open is settled, and sent again."""
    while True:
        try:
            return await log.append([body], term=term, head=head)
        except OutcomeUnknown:
            if (now := await log.head()) != head:
                return now


async def all_of(log: Log) -> list[Record]:
    records: list[Record] = []
    while some := await log.read(after=records[-1].index if records else 0):
        records += some
    return records


Work = Callable[[], Awaitable[object]]


def between(log: EtcdLog, *, before: Work | None = None, lost: bool = False) -> None:
    """Let something happen before the next write of a log, or its answer be lost."""
    asked = log.connection.once

    async def once(ask: connection.Ask, request: object, *, within_s: float) -> object:
        log.connection.once = asked  # type: ignore[method-assign]
        if before is not None:
            await before()
        reply = await asked(ask, request, within_s=within_s)
        if lost:
            raise OutcomeUnknown("no reply")
        return reply

    log.connection.once = once  # type: ignore[method-assign]
