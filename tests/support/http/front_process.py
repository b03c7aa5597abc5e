"""A front over memory, in a process of its own that may open few descriptors.

    python -m support.http.front_process DESCRIPTORS SETTINGS-AS-JSON

Prints its port, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec


async def serve(settings: Any) -> None:
    from maar.app.http.gate import Gate
    from maar.app.http.server import HttpServer
    from support.http.front import Front

    front = Front(api=settings)
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    server = HttpServer(front.app, drain_s=1, gate=Gate(settings, front.registry))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    print(listener.getsockname()[1], flush=True)  # noqa: T201 - for whoever started this
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


def main() -> None:
    import uvloop

    from maar.api.settings import ApiSettings
    from maar.pprof import decode

    decode.warm()
    descriptors = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    uvloop.run(serve(msgspec.convert(json.loads(sys.argv[2]), ApiSettings)))


@contextmanager
def front_process(*, descriptors: int, **settings: Any) -> Iterator[int]:
    """The port of one, while it lasts."""
    command = [sys.executable, "-m", __name__, str(descriptors), json.dumps(settings)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


if __name__ == "__main__":
    main()
