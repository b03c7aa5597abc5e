"""A front in this process, on a loopback port, served by a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from maar.app.http.gate import Gate
from maar.app.http.server import HttpServer
from support.http.front import Front


@contextmanager
def serve_front(front: Front) -> Iterator[str]:
    """Its address, while it lasts."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(front.app, drain_s=1, gate=Gate(front.door.settings, front.registry))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread.start()
    try:
        yield url
    finally:
        server.should_exit = True
        thread.join()
