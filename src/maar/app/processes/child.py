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

    from maar.app.processes import logs
    from maar.app.roles import run
    from maar.app.settings.config import Settings

    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=Settings)
    logs.configure(role=role, form=settings.server.log_format, level=settings.server.log_level)
    listener = socket.socket(fileno=listen_fd) if listen_fd >= 0 else None
    names = run.roles_of(run.ProcessName(role))
    job = run.run(settings, names, listener, restarts=restarts, started=beats.mark_running)
    leave(uvloop.run(_beating(job, beats)))


async def _beating(job: Coroutine[Any, Any, int], beats: Beats) -> int:
    going_on = asyncio.create_task(beats.go_on())
    try:
        return await job
    finally:
        going_on.cancel()


if __name__ == "__main__":
    main()
