"""A second try beside a slow first one: whichever succeeds first counts, and seconds are rare."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def hedged(
    first: Awaitable[T],
    second: Callable[[], Awaitable[T] | None],
    *,
    after_s: float,
) -> tuple[T, bool]:
    """The result, and whether it is the second's. Fails as the first did, once both have failed.

    `second` gives None when it may not be tried now. What loses goes on by itself, unheard.
    """
    tries = [asyncio.ensure_future(first)]
    try:
        await asyncio.wait(tries, timeout=after_s)
        if not tries[0].done() and (other := second()) is not None:
            tries.append(asyncio.ensure_future(other))
        waiting = set(tries)
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                if each.exception() is None:
                    return each.result(), each is not tries[0]
        return tries[0].result(), False
    finally:
        for each in tries:
            each.add_done_callback(_ignore_failure)


def _ignore_failure(attempt: asyncio.Future[T]) -> None:
    """Its failure is nobody's concern any more."""
    if not attempt.cancelled():
        attempt.exception()
