"""Reads the log a page ahead: while one page is applied, the next is being read."""

from __future__ import annotations

import asyncio
from types import TracebackType

from maar.background import cancel
from maar.ports.metastore.log import BATCH_BYTES_MAX, Log, Record

FULL_BYTES = BATCH_BYTES_MAX // 2  # behind a page of this size there are probably more


class ReadAhead:
    """Use it in `async with`, so that no read is in flight when it ends."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._after = -1  # of the page that is under way
        self._page: asyncio.Task[list[Record]] | None = None

    async def __aenter__(self) -> ReadAhead:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._call_off()

    async def read(self, *, after: int) -> list[Record]:
        """As `Log.read`."""
        if self._page is None or self._after != after:
            await self._call_off()
            self._begin(after)
        page = self._page
        assert page is not None
        try:
            records = await page
        finally:
            if page.done():
                self._page = None
        if sum(len(record.body) for record in records) >= FULL_BYTES:
            self._begin(records[-1].index)
        return records

    def _begin(self, after: int) -> None:
        self._after = after
        self._page = asyncio.create_task(self._log.read(after=after))

    async def _call_off(self) -> None:
        page, self._page = self._page, None
        if page is not None:
            await cancel(page)
