"""Polls an engine from a thread, so that no caller has to wait for one that hangs.

Silence is counted in polls and not in time: a process that was frozen together with the engine, by
a signal or with its host, has missed no poll.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Pulse(Generic[Answer]):
    """The newest answer, how many polls ago it came, and the error that ended polling."""

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
            # raised to the caller that asks for the answer
            except Exception as error:  # noqa: BLE001
                self.error = error
                return
            self._answered.set()
