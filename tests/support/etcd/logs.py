"""Logs in etcd that a test opens, leads and waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from maar.adapters.etcd.log import EtcdLog
from maar.adapters.etcd.settings import EtcdSettings
from maar.adapters.etcd.tuning import TUNING, Tuning
from maar.model.errors import TermLost
from maar.ports.metastore.log import Candidate, Log, Term

PATIENCE_S = 60.0


@asynccontextmanager
async def open_log(
    settings: EtcdSettings,
    registry: CollectorRegistry | None = None,
    tuning: Tuning = TUNING,
) -> AsyncIterator[EtcdLog]:
    log = await EtcdLog.open(settings, registry=registry, tuning=tuning)
    try:
        yield log
    finally:
        await log.close()


@asynccontextmanager
async def leading_log(
    settings: EtcdSettings,
    registry: CollectorRegistry | None = None,
    tuning: Tuning = TUNING,
) -> AsyncIterator[tuple[EtcdLog, Term]]:
    """A log whose leadership is renewed as a working apply loop would."""
    async with open_log(settings, registry, tuning) as log:
        async with asyncio.timeout(PATIENCE_S):
            term = await log.campaign(Candidate("one"))
        holding = asyncio.create_task(hold(log, term))
        try:
            yield log, term
        finally:
            holding.cancel()


async def hold(log: Log, term: Term) -> None:
    try:
        while True:
            log.hold(term)
            await asyncio.sleep(0.1)
    except TermLost:
        pass  # the test looks for itself


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await condition():
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"waited {PATIENCE_S:.0f} s in vain until {what}")


def at(settings: EtcdSettings, *endpoints: str) -> EtcdSettings:
    return EtcdSettings(endpoints=endpoints, prefix=settings.prefix, election_s=settings.election_s)
