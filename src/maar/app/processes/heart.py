"""Detects hung processes: each sends heartbeats, and its supervisor measures the silence.

Heartbeats come from the event loop, so a stuck loop sends none. A process that starts may keep its
loop busy for minutes (a long log is read), so a thread sends its heartbeats until it has reported
that it runs.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress

BEAT_S = 1.0
TICK_S = 1.0
STARTING_PATIENCE = 10  # times as long: a start may be slow, but it may not be stopped for ever

_STARTING, _RUNNING = b"s", b"r"


class Beats:
    """The process's side: writes heartbeats into a pipe; -1 when nobody listens."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._started = threading.Event()
        if pipe >= 0:
            os.set_blocking(pipe, False)
            self._send(_STARTING)
            threading.Thread(target=self._start, name="maar-beats", daemon=True).start()

    def mark_running(self) -> None:
        """From now on heartbeats have to come from the event loop."""
        self._started.set()
        self._send(_RUNNING)

    async def go_on(self) -> None:
        """Beat from the event loop, for ever. Nothing here can fail, so it needs no `Loop`."""
        while True:
            if self._started.is_set():
                self._send(_RUNNING)
            await asyncio.sleep(BEAT_S)

    def _start(self) -> None:
        while not self._started.wait(BEAT_S):
            self._send(_STARTING)

    def _send(self, beat: bytes) -> None:
        if self._pipe >= 0:
            with suppress(OSError):  # full, when the supervisor is stopped; closed, when it is gone
                os.write(self._pipe, beat)


class Heart:
    """The supervisor's side: how long one process has sent no heartbeat.

    Silence is counted in ticks of the supervisor itself: while the supervisor is stopped or the
    machine is suspended, it could not have heard anything.
    """

    def __init__(self, hung_after_s: float) -> None:
        self._hung_after_s = hung_after_s  # 0: never
        self.running = False
        self.silent_s = 0.0

    def on_beat(self, beats: bytes) -> None:
        self.running = self.running or _RUNNING in beats
        self.silent_s = 0.0

    def pass_time(self, seconds: float) -> None:
        """Count the time since the last tick, capped so that a pause of ours does not count."""
        self.silent_s += min(seconds, 2 * TICK_S)

    def hangs(self) -> bool:
        limit_s = self._hung_after_s * (1 if self.running else STARTING_PATIENCE)
        return 0 < limit_s < self.silent_s
