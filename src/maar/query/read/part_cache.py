"""What was read of immutable objects and is kept, within a bound, for the next query."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Container, Hashable
from typing import Any, NamedTuple, Protocol, TypeVar


class Sized(Protocol):
    @property
    def size(self) -> int: ...


T = TypeVar("T", bound=Sized)


class Weighed(NamedTuple):
    """Something whose size somebody else knows."""

    what: Any
    size: int


class PartCache:
    """The least recently used goes first. Safe to use from many threads; each thing is made by one
    of them only, and the others wait for it.

    Keys name blocks and objects, which never change, so that nothing here can become wrong; but it
    was wrong from the start if it was read of a damaged copy, and then it is forgotten. A block is
    of one tenant, and whoever asks has found it in a view of that tenant's; what is of a segment
    has the tenant in its key.
    """

    def __init__(self, bytes_max: int, *, count: Callable[[str], None] = lambda _: None) -> None:
        self.bytes_max = bytes_max
        self._count = count  # is told of every hit and miss
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._pending: dict[Hashable, threading.Event] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        return self._bytes

    def peek(self, key: Hashable) -> Any:
        """What is kept, or None."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is kept, or made now. An error is nobody else's: the next one tries again."""
        mine: threading.Event | None = None
        while mine is None:
            with self._lock:
                kept: T | None = self._kept.get(key)
                if kept is not None:
                    self._kept.move_to_end(key)
                    self._count("hit")
                    return kept
                at_work = self._pending.get(key)
                if at_work is None:
                    mine = self._pending[key] = threading.Event()
            if at_work is not None:  # then look again: it may have failed, or was not kept
                at_work.wait()
        self._count("miss")
        try:
            made = make()
            self._keep(key, made, mine)
            return made
        finally:
            with self._lock:
                if self._pending.get(key) is mine:
                    del self._pending[key]
            mine.set()

    def forget(self, names: Container[str]) -> None:
        """Drop what was made of some blocks and objects, and do not keep what is being made of
        them: a copy that was read is damaged.
        """
        with self._lock:
            for key in [key for key in self._kept if _mentions(key, names)]:
                self._bytes -= self._kept.pop(key).size
            for key in [key for key in self._pending if _mentions(key, names)]:
                self._pending.pop(key).set()

    def _keep(self, key: Hashable, made: Sized, mine: threading.Event) -> None:
        if made.size > self.bytes_max:
            return
        with self._lock:
            if self._pending.get(key) is not mine:
                return  # it was forgotten meanwhile
            self._kept[key] = made
            self._bytes += made.size
            while self._bytes > self.bytes_max:
                _, dropped = self._kept.popitem(last=False)
                self._bytes -= dropped.size


def _mentions(key: Hashable, names: Container[str]) -> bool:
    if isinstance(key, tuple):
        return any(_mentions(part, names) for part in key)
    return isinstance(key, str) and key in names
