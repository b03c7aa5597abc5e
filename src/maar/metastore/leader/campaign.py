"""Campaigns for leadership while the replica follows; resigns a term that it must not use."""

from __future__ import annotations

import asyncio
import logging

from maar.model.errors import Retryable
from maar.ports.metastore.log import Candidate, Log, Term

log_ = logging.getLogger("maar.metastore")

RETRY_S = 0.5
RESIGN_S = 2.0  # if the log does not answer in time, the lease simply expires later


class Campaign:
    def __init__(self, log: Log, candidate: Candidate) -> None:
        self._log = log
        self._candidate = candidate
        self._standing: asyncio.Task[Term] | None = None

    def stand(self) -> None:
        if self._standing is None:
            self._standing = asyncio.create_task(self._stand())

    async def _stand(self) -> Term:
        told = ""
        while True:
            try:
                return await self._log.campaign(self._candidate)
            except Retryable as error:
                if str(error) != told:
                    log_.warning("campaign postponed cause=%s", error)
                told = str(error)
                await asyncio.sleep(RETRY_S)

    def won(self) -> Term | None:
        """The term that was won, once; raises why nobody can campaign in this log."""
        if self._standing is None or not self._standing.done():
            return None
        ended, self._standing = self._standing, None
        return ended.result()

    async def withdraw(self) -> None:
        ended, self._standing = self._standing, None
        if ended is None:
            return
        ended.cancel()
        await asyncio.wait([ended])
        if not ended.cancelled() and ended.exception() is None:
            await resign(self._log, ended.result())

    async def wait_end(self) -> None:
        """Return when the campaign was won or lost; never while there is none."""
        if self._standing is None:
            await asyncio.Event().wait()
        else:
            await asyncio.wait([self._standing])


async def resign(log: Log, term: Term) -> None:
    try:
        async with asyncio.timeout(RESIGN_S):
            await log.resign(term)
    except (Retryable, TimeoutError) as error:
        log_.warning(
            "could not resign, lease will expire term=%d cause=%s", term, str(error) or "no answer"
        )
