"""Asks an engine again and again from a thread, so that nobody has to wait for one that hangs.

Silence is counted in beats and not in time: whoever was frozen together with the engine, by a
signal or with its host, has missed no beat.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Pulse(Generic[Answer]):
    """The newest answer, how many beats ago it came, and what ended it all."""

    def __init__(self, ask: Callable[[], Answer], first: Answer, *, beat_s: float = 1.0) -> None:
        self._ask = ask
        self._beat_s = beat_s
        self._closed = threading.Event()
        self._asked = threading.Event()
        self._answered = threading.Event()
        self.answer = first
        self.missed = 0
        self.error: Exception | None = None
        for each in (self._count, self._keep_asking):
            threading.Thread(target=each, name="maar-pulse", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        self._asked.set()

    def _count(self) -> None:
        while not self._closed.is_set():
            self._asked.set()
            if self._answered.wait(self._beat_s):
                self._answered.clear()
                self.missed = 0
                self._closed.wait(self._beat_s)
            else:
                self.missed += 1

    def _keep_asking(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            if self._closed.is_set():
                return
            try:
                self.answer = self._ask()
            except Exception as error:  # noqa: BLE001  # told to whoever asks for the answer
                self.error = error
                return
            self._answered.set()
