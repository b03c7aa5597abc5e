"""An HTTP server on a socket that was opened before, stopped by its role and not by signals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from maar.app.http.gate import Gate
from maar.app.http.one_port import both

KEEP_ALIVE_S = 75


class HttpServer(uvicorn.Server):
    """HTTP/1.1 and HTTP/2, and whatever is spoken over them, on the same port."""

    def __init__(self, app: Any, *, drain_s: float, gate: Gate) -> None:
        self._gate = gate
        super().__init__(
            uvicorn.Config(
                app,
                http=both(gate),  # type: ignore[arg-type]
                ws="none",
                loop="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=max(1, int(drain_s)),
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        self._gate.sweep()
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not handle signals: the role decides in which order its parts stop."""
        yield
