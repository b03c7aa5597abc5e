"""The entry of a role's own process: its settings come by standard input, so no file holds keys."""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import socket
import sys
from collections.abc import Coroutine
from typing import Any

from maar.app.processes.heart import Beats
from maar.app.processes.process import die_with, leave


def main() -> None:
    role, parent, listen_fd, beats_fd, restarts = sys.argv[1], *map(int, sys.argv[2:6])
    die_with(parent)
    beats = Beats(beats_fd)
    faulthandler.register(signal.SIGUSR2)  # where it hangs, before it is killed for that
    # Import late: if the parent dies during the slow imports, we must not be left behind.
    import msgspec
    import uvloop

    from maar.app.processes import idle, logs
    from maar.app.roles import run
    from maar.app.roles.wiring import Fronts
    from maar.app.settings.config import Settings

    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=Settings)
    logs.configure(role=role, form=settings.server.log_format, level=settings.server.log_level)
    listener = socket.socket(fileno=listen_fd) if listen_fd >= 0 else None
    child = run.child_named(role)
    job = run.run(
        settings,
        child.roles,
        listener,
        restarts=restarts,
        started=beats.mark_running,
        fronts=Fronts(settings.server.fronts, child.number),
    )
    leave(uvloop.run(_beside(job, beats.go_on(), idle.give_back_when_idle())))


async def _beside(job: Coroutine[Any, Any, int], *others: Coroutine[Any, Any, None]) -> int:
    """The job, and what goes on for as long as it does."""
    going_on = [asyncio.create_task(other) for other in others]
    try:
        return await job
    finally:
        for task in going_on:
            task.cancel()


if __name__ == "__main__":
    main()
