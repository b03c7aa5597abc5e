"""A loop beside the requests: when it does its step, and what a failure does."""

from __future__ import annotations

import asyncio
import logging

import pytest

from maar.background import Loop, Threads, wait_any
from maar.model.errors import NotLeading, Unavailable
from support.clock.virtual_time import run_virtually

log = logging.getLogger("maar.test")

AWAY = Unavailable("the store is away")


class Steps:
    """Fails as it is told, and keeps when each step was done."""

    def __init__(self, *failures: Exception | None) -> None:
        self._failures = list(failures)
        self.at_s: list[float] = []

    async def __call__(self) -> int:
        self.at_s.append(asyncio.get_running_loop().time())
        if self._failures and (failure := self._failures.pop(0)):
            raise failure
        return len(self.at_s)


def seconds(steps: Steps, loop: Loop[int], count: int, *, first_after_s: float = 0.0) -> list[int]:
    """When the first steps were done, counted from the start."""

    async def story() -> list[int]:
        began_s = asyncio.get_running_loop().time()
        running = loop.run(first_after_s=first_after_s, while_=lambda: len(steps.at_s) < count)
        await running
        return [round(at_s - began_s) for at_s in steps.at_s]

    return run_virtually(story())


def test_a_step_is_done_at_once_and_again_after_each_pause() -> None:
    steps = Steps()
    assert seconds(steps, Loop(steps, failed="lost", log=log, every_s=5.0), 3) == [0, 5, 10]


def test_the_first_step_can_wait_too() -> None:
    steps = Steps()
    loop = Loop(steps, failed="lost", log=log, every_s=5.0)
    assert seconds(steps, loop, 2, first_after_s=7.0) == [7, 12]


def test_the_pause_can_follow_from_what_the_step_found() -> None:
    steps = Steps(None, AWAY)
    loop = Loop(steps, failed="lost", log=log, every_s=lambda found: 100.0 if found is None else 1)
    assert seconds(steps, loop, 4) == [0, 1, 101, 102]


def test_after_a_failure_it_is_tried_again_after_a_pause_of_its_own() -> None:
    steps = Steps(AWAY, None, ZeroDivisionError())
    loop = Loop(steps, failed="lost", log=log, every_s=60.0, retry_s=5.0)
    assert seconds(steps, loop, 4) == [0, 5, 65, 70]


@pytest.mark.parametrize("failure", [AWAY, OSError("no such device"), ZeroDivisionError("x")])
def test_a_failure_is_counted_and_kept_as_a_sentence_until_a_step_succeeds(
    failure: Exception,
) -> None:
    counted: list[Exception] = []
    steps = Steps(failure)
    loop = Loop(steps, failed="lost", log=log, every_s=1.0, on_failure=counted.append)
    assert not run_virtually(loop.turn())
    assert counted == [failure]
    defect = isinstance(failure, ZeroDivisionError)
    assert loop.trouble == (
        "a bug in maar (ZeroDivisionError); its log has the details" if defect else str(failure)
    )
    assert run_virtually(loop.turn())
    assert loop.trouble == ""
    assert counted == [failure]


def test_each_cause_is_told_once_and_a_bug_each_time_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    other, defect = Unavailable("the store is full"), ZeroDivisionError()
    steps = Steps(AWAY, AWAY, other, None, other, defect, defect)
    loop = Loop(steps, failed="it stays", recovered="it goes on", log=log, every_s=1.0)
    with caplog.at_level(logging.INFO):
        seconds(steps, loop, 8)
    assert [record.getMessage() for record in caplog.records] == [
        "it stays cause=the store is away",
        "it stays cause=the store is full",
        "it goes on",
        "it stays cause=the store is full",
        "it stays",
        "it stays",
        "it goes on",
    ]
    assert [bool(record.exc_info) for record in caplog.records].count(True) == 2


def test_whoever_wakes_it_ends_the_pause_but_not_the_rest_before_it() -> None:
    async def story() -> list[int]:
        wake, steps = asyncio.Event(), Steps()
        loop = Loop(steps, failed="lost", log=log, every_s=60.0, wake=wake, rest_s=5.0)
        running = asyncio.create_task(loop.run())
        for pause_s in (1, 30, 500):
            await asyncio.sleep(pause_s)
            wake.set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled()
        return [round(at_s - steps.at_s[0]) for at_s in steps.at_s][:4]

    assert run_virtually(story()) == [0, 5, 31, 96]


@pytest.mark.parametrize(("after_s", "waited_s"), [(3.0, 3.0), (30.0, 10.0)])
def test_waiting_ends_with_the_first_event_or_with_the_time(
    after_s: float, waited_s: float
) -> None:
    async def story() -> float:
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        began_s = loop.time()
        loop.call_later(after_s, event.set)
        await wait_any(10.0, asyncio.Event(), event)
        return loop.time() - began_s

    assert run_virtually(story()) == pytest.approx(waited_s)


def test_threads_do_each_item_and_give_back_the_failures_that_were_to_be_caught() -> None:
    def halve(number: int) -> int:
        if number % 2:
            raise Unavailable(f"{number} is odd")
        if number > 10:
            raise ZeroDivisionError
        return number // 2

    async def story() -> None:
        threads = Threads(2, "test")
        made = await threads.each(halve, [2, 3, 4], catching=Unavailable)
        assert [str(one) for one in made] == ["1", "3 is odd", "2"]
        with pytest.raises(ZeroDivisionError):
            await threads.each(halve, [2, 12], catching=Unavailable)
        threads.close()

    run_virtually(story())


@pytest.mark.parametrize("error", [Unavailable, NotLeading])
def test_threads_that_are_closed_refuse_with_an_error_that_callers_know(
    error: type[Unavailable],
) -> None:
    async def story() -> None:
        threads = Threads(1, "test", when_closed=error)
        assert await threads.do(max, 1, 2) == 2
        threads.close(wait=True)
        with pytest.raises(error):
            await threads.do(max, 1, 2)

    run_virtually(story())
