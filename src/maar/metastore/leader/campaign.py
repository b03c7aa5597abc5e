"""Standing for office beside the fold; an office that was won and is not wanted is given back."""

from __future__ import annotations

import asyncio
import logging

from maar.model.errors import Retryable
from maar.ports.log import Candidate, Log, Term

log_ = logging.getLogger("maar.metastore")

RETRY_S = 0.5
RESIGN_S = 2.0  # a log that does not answer takes office away by itself, only later


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
        """The term, once; raises why nobody can campaign in this log."""
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
        """Return when it was won or lost; never while nobody stands."""
        if self._standing is None:
            await asyncio.Event().wait()
        else:
            await asyncio.wait([self._standing])


async def resign(log: Log, term: Term) -> None:
    try:
        async with asyncio.timeout(RESIGN_S):
            await log.resign(term)
    except (Retryable, TimeoutError) as error:
        log_.warning("office left to lapse term=%d cause=%s", term, str(error) or "no answer")
