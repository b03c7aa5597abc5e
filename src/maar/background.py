"""What a process does beside its event loop's requests: repeated steps, and calls that block.

Every step that is repeated for ever is a `Loop`, so that failures are logged, counted and retried
in one way; what is repeated only until it succeeds, or whose failure has to end the process, is
none. Calls that may block for long run in `Threads`. Time is the event loop's: a test in virtual
time runs all this on another event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, TypeVar

from maar.model.errors import MaarError, Unavailable

Outcome = TypeVar("Outcome")
Failure = TypeVar("Failure", bound=Exception)
Item = TypeVar("Item")
Made = TypeVar("Made")

EXPECTED = MaarError, OSError  # a store or a peer that is away; anything else is a bug


class Loop(Generic[Outcome]):
    """Does a step, waits, and does it again, until its task is cancelled.

    A step that fails is tried again and ends nothing: what runs beside requests must not take them
    down. A failure that is to be expected is logged once for each cause, a bug each time, with
    its traceback.
    """

    def __init__(
        self,
        step: Callable[[], Awaitable[Outcome]],
        *,
        failed: str,
        log: logging.Logger,
        every_s: float | Callable[[Outcome | None], float],
        retry_s: float | None = None,
        recovered: str = "",
        level: int = logging.WARNING,
        on_failure: Callable[[Exception], None] | None = None,
        wake: asyncio.Event | None = None,
        rest_s: float = 0.0,
    ) -> None:
        """`failed` and `recovered` are what the log says; the cause is added.

        `every_s` is the pause between two steps. A function gets what the step returned, or None
        when it failed. After a failure the pause is `retry_s`, if that is given. `wake` ends a
        pause early, though not before `rest_s` have passed. `on_failure` counts.
        """
        self._step = step
        self._failed = failed
        self._log = log
        self._every_s = every_s
        self._retry_s = retry_s
        self._recovered = recovered
        self._level = level
        self._on_failure = on_failure
        self._wake = wake
        self._rest_s = rest_s
        self._pause_s = 0.0
        self.trouble = ""  # why the last step failed, in a sentence

    async def run(
        self, *, first_after_s: float = 0.0, while_: Callable[[], bool] = lambda: True
    ) -> None:
        if first_after_s:
            await asyncio.sleep(first_after_s)
        while while_():
            await self.turn()
            await self._pause()

    async def turn(self) -> bool:
        """One step; whether it succeeded."""
        outcome: Outcome | None = None
        try:
            outcome = await self._step()
        except EXPECTED as error:
            trouble = str(error) or type(error).__name__
            level = logging.DEBUG if trouble == self.trouble else self._level
            self._log.log(level, "%s cause=%s", self._failed, trouble)
            self._fail(error, trouble)
        except Exception as error:  # noqa: BLE001  # the boundary of a step; the next may succeed
            self._log.exception("%s", self._failed)
            detail = f"a bug in maar ({type(error).__name__}); its log has the details"
            self._fail(error, detail)
        else:
            if self.trouble and self._recovered:
                self._log.info("%s", self._recovered)
            self.trouble = ""
        self._pause_s = self._every_s(outcome) if callable(self._every_s) else self._every_s
        if self.trouble and self._retry_s is not None:
            self._pause_s = self._retry_s
        return not self.trouble

    def _fail(self, error: Exception, trouble: str) -> None:
        self.trouble = trouble
        if self._on_failure is not None:
            self._on_failure(error)

    async def _pause(self) -> None:
        if self._wake is None:
            await asyncio.sleep(self._pause_s)
            return
        await asyncio.sleep(self._rest_s)
        await wait_any(self._pause_s, self._wake)
        self._wake.clear()


async def wait_any(seconds: float, *events: asyncio.Event) -> None:
    """Return when one of the events is set, or after this time."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def run_until_first_ends(*works: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run several things until the first of them ends; raise what that one raised.

    When this returns or raises, none of them runs any more.
    """
    tasks = [asyncio.create_task(work()) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(*tasks)
    for task in done:
        task.result()


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Return when they have ended; what they raise meanwhile is of no interest any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Threads:
    """Threads of one part of maar: while a slow store keeps them, nobody else's are kept."""

    def __init__(
        self, number: int, name: str, *, when_closed: type[Unavailable] = Unavailable
    ) -> None:
        self._pool = ThreadPoolExecutor(number, thread_name_prefix=name)
        self._when_closed = when_closed
        self._closed = False

    def close(self, *, wait: bool = False) -> None:
        """What has not begun never will; what runs is waited for only if that is asked for."""
        self._closed = True
        self._pool.shutdown(wait=wait, cancel_futures=True)

    def start(self, act: Callable[..., Made], *arguments: Any) -> asyncio.Future[Made]:
        if self._closed:
            raise self._when_closed("this part of the process has shut down; ask again")
        return asyncio.get_running_loop().run_in_executor(self._pool, act, *arguments)

    async def do(self, act: Callable[..., Made], *arguments: Any) -> Made:
        return await self.start(act, *arguments)

    async def each(
        self, act: Callable[[Item], Made], items: Iterable[Item], *, catching: type[Failure]
    ) -> list[Made | Failure]:
        """What became of each; one that fails in this way stops no other."""

        def act_or_error(item: Item) -> Made | Failure:
            try:
                return act(item)
            except catching as error:
                return error

        return list(await asyncio.gather(*(self.do(partial(act_or_error, item)) for item in items)))
