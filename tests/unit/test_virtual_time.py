"""The loop of virtual time: waiting costs nothing, and work is never late."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from support.clock.virtual_time import LoopClock, run_virtually


def test_time_jumps_when_everybody_waits() -> None:
    clock = LoopClock()

    async def story() -> list[int]:
        seen = []

        async def wake(after_s: float) -> None:
            await asyncio.sleep(after_s)
            seen.append(clock.monotonic_ns() // 1_000_000_000)

        await asyncio.gather(wake(3600), wake(60), wake(7200))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(86_400):
                await asyncio.Event().wait()
        return seen

    began = time.monotonic()
    assert run_virtually(story()) == [60, 3600, 7200]
    assert time.monotonic() - began < 600, "much less than a day"


def test_time_stands_still_while_there_is_something_to_do() -> None:
    async def story() -> None:
        async with asyncio.timeout(0.001):
            for _ in range(10_000):
                await asyncio.sleep(0)

    run_virtually(story())


def test_who_waits_for_a_thread_is_not_carried_into_the_future() -> None:
    told = threading.Event()

    async def story() -> None:
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(None, told.wait, 600)
        loop.call_later(0.01, told.set)  # in a hundredth of a second that really passes
        async with asyncio.timeout(300):
            assert await work

    run_virtually(story())
