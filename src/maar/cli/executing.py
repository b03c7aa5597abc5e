"""Plans that a command executes in its own process, under leases of the server that it is told."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from maar.cli.output.failure import EXIT_REFUSED, EXIT_UNAVAILABLE
from maar.ports.plans.outcome import ASK_AGAIN, TAKEN, OutcomeName

if TYPE_CHECKING:
    from maar.adapters.http_board import HttpBoard
    from maar.app.execution import Executor
    from maar.app.settings.config import Settings

T = TypeVar("T")
Work = Callable[["Executor", "HttpBoard"], Awaitable[T]]


def exit_code_of(outcome: OutcomeName) -> int:
    """As documented in docs/cli.md."""
    if outcome in TAKEN:
        return 0
    return EXIT_UNAVAILABLE if outcome in ASK_AGAIN else EXIT_REFUSED


def open_board(server: str) -> HttpBoard:
    from maar.adapters.http_board import HttpBoard

    return HttpBoard(server)


def carry_out(server: str, settings: Settings, work: Work[T]) -> T:
    """Do some work with an executor for this server; Ctrl-C hands back what it had in hand."""

    async def run() -> tuple[T, bool]:
        async with _executing(server, settings) as (executor, board):
            return await work(executor, board), executor.stopped

    done, stopped = asyncio.run(run())
    if stopped:
        raise KeyboardInterrupt
    return done


@asynccontextmanager
async def _executing(server: str, settings: Settings) -> AsyncIterator[tuple[Executor, HttpBoard]]:
    from maar.app.execution import Executor, site_of

    board = open_board(server)
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    try:
        setup = await board.setup()
        site = await site_of(board, setup, settings.store_places(), server=server)
        executor = Executor(site, settings.worker)
        for number in numbers:
            loop.add_signal_handler(number, executor.stop)
        yield executor, board
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
        await board.close()
