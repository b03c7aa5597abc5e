"""Several fronts accept from one listening socket, so that each has about as many connections.

The socket is one, so nothing is lost with a front that dies: what it has not accepted, another
does. Left alone, whoever wakes up first would take a whole burst. So each takes one connection at a
time, and one that has more than another lets that one go first, for a moment.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path

log = logging.getLogger("maar.front")

PAUSE_S = 0.001  # for each connection that it has more than another
PAUSE_MAX_S = 0.02  # whoever did not come by then is busy
GONE_NS = 1_000_000_000  # a front that says nothing for so long is gone, or hangs
RETRY_S = 0.5  # after a failure, as when descriptors are used up
_COUNT = struct.Struct("<qq")  # connections, and when that was said


def pause_s(own: int, others: Sequence[int]) -> float:
    """How long a front lets the others go first."""
    more = own - min(others, default=own)
    return min(PAUSE_MAX_S, more * PAUSE_S) if more > 0 else 0.0


class ConnectionCounts:
    """How many connections each front has, in a file that all of them have in memory.

    Each writes its own number only, many times a second. They are hints: no bound depends on them.
    """

    def __init__(
        self,
        file: Path,
        *,
        fronts: int,
        number: int,
        now_ns: Callable[[], int] = time.monotonic_ns,  # the same for all processes of a host
    ) -> None:
        self._now_ns = now_ns
        size = fronts * _COUNT.size
        try:
            self._shared = _shared_bytes(file, size)
        except OSError as error:
            log.warning("connections are not spread evenly among the fronts cause=%s", error)
            self._shared = mmap.mmap(-1, size)
        self._own = number - 1
        self._others = [place for place in range(fronts) if place != self._own]
        self.tell(0)

    def tell(self, connections: int) -> None:
        _COUNT.pack_into(self._shared, self._own * _COUNT.size, connections, self._now_ns())

    def others(self) -> list[int]:
        """Of those that are there: for one that is gone, nobody has to wait."""
        told = (_COUNT.unpack_from(self._shared, at * _COUNT.size) for at in self._others)
        now_ns = self._now_ns()
        return [connections for connections, at_ns in told if now_ns - at_ns < GONE_NS]

    def close(self) -> None:
        self._shared.close()


def _shared_bytes(file: Path, size: int) -> mmap.mmap:
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(handle, 0, size)  # on a full disk, the first write would end us (SIGBUS)
        return mmap.mmap(handle, size)
    finally:
        os.close(handle)


async def accept_in_turn(
    listener: socket.socket,
    make_protocol: Callable[[], asyncio.Protocol],
    counts: ConnectionCounts,
    connections: Callable[[], int],
) -> None:
    """For ever."""
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    while True:
        await _readable(loop, listener)
        if wait_s := pause_s(connections(), counts.others()):
            await asyncio.sleep(wait_s)
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError, InterruptedError):
            continue  # another front was faster, or the client is gone
        except OSError as error:
            log.error("connection not accepted cause=%s", error)
            await asyncio.sleep(RETRY_S)
            continue
        accepted.setblocking(False)
        try:
            await loop.connect_accepted_socket(make_protocol, accepted)
        except OSError as error:  # it is gone already
            log.debug("connection lost cause=%s", error)
            accepted.close()
        counts.tell(connections())


async def _readable(loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
    """Wait for a connection, without being called again and again until it is accepted."""
    ready = loop.create_future()

    def wake() -> None:
        loop.remove_reader(listener)
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(listener, wake)
    try:
        await ready
    finally:
        loop.remove_reader(listener)
