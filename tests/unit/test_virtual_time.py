"""The loop of virtual time: waiting costs nothing, and work is never late."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.clock.virtual_time import Gate, LoopClock, Meeting, run_virtually


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


def test_time_stands_still_while_a_thread_is_at_work_however_long_it_takes() -> None:
    async def story() -> None:
        async with asyncio.timeout(0.001):
            await asyncio.to_thread(time.sleep, 0.02)

    run_virtually(story())


def test_a_thread_that_waits_at_a_gate_is_not_at_work() -> None:
    clock, gate, meeting = LoopClock(), Gate(), Meeting(2)

    def waits() -> int:
        gate.wait()
        return clock.monotonic_ns() // 1_000_000_000

    async def story() -> list[int]:
        async with asyncio.timeout(7200):
            both = [asyncio.create_task(asyncio.to_thread(waits)) for _ in range(2)]
            first = asyncio.create_task(asyncio.to_thread(meeting.wait))
            await asyncio.sleep(3600)
            assert not first.done()
            gate.set()
            await asyncio.to_thread(meeting.wait)
            await first
            return list(await asyncio.gather(*both))

    assert run_virtually(story()) == [3600, 3600]


def test_a_thread_that_nobody_waits_for_any_more_is_still_at_work() -> None:
    ended = threading.Event()

    def slow() -> None:
        time.sleep(0.02)
        ended.set()

    async def story() -> None:
        work = asyncio.create_task(asyncio.to_thread(slow))
        await asyncio.sleep(0)
        work.cancel()
        await asyncio.sleep(0.001)
        assert ended.is_set()

    run_virtually(story())


def test_what_waits_for_a_thread_that_rests_is_not_at_work_either() -> None:
    gate, threads = Gate(), ThreadPoolExecutor(1)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        both = [loop.run_in_executor(threads, gate.wait) for _ in range(2)]
        await asyncio.sleep(60)
        gate.set()
        await asyncio.gather(*both)

    run_virtually(story())
    threads.shutdown()
