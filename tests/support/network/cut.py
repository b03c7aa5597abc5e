"""A network that a test can cut: TCP lines that refuse, swallow, delay or half-close."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from enum import Flag, auto

from support.network.ports import free_port

CHUNK = 64 << 10
PATIENCE_S = 30.0


class Way(Flag):
    """The two ways of a line, as seen from who connects."""

    OUT = auto()  # what the caller sends
    BACK = auto()  # what it is answered


NEITHER = Way(0)
BOTH = Way.OUT | Way.BACK


class Line:
    """What connects to `address` reaches `target`, for as long as the line lets it.

    Its methods may be called from any thread; they return when they are in force.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, target: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.target = target
        self._loop = loop
        self._refuses = False
        self._silent = NEITHER
        self._delay_s = 0.0
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    def cut(self) -> None:
        """Break what is connected, and let nobody connect."""
        self._do(self._cut)

    def silence(self, way: Way = BOTH) -> None:
        """Swallow bytes; connections stay, and nobody is told: what a broken cable does."""
        self._do(lambda: self._set_silent(way))

    def delay(self, seconds: float) -> None:
        """Every piece of either way takes so much longer."""
        self._do(lambda: self._set_delay(seconds))

    def half_close(self, way: Way) -> None:
        """End one way of every connection; the other stays open."""
        self._do(lambda: self._half_close(way))

    def heal(self) -> None:
        """As if nothing had happened, but connections that lost bytes are broken."""
        self._do(self._heal)

    async def listen(self) -> None:
        host, _, port = self.address.rpartition(":")
        self._server = await asyncio.start_server(self._accept, host, int(port))

    async def close(self) -> None:
        self._cut()
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            await connection.wait_end()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        connection = _Connection(self, reader, writer)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)

    def loses(self, way: Way) -> bool:
        return bool(self._silent & way)

    @property
    def delay_s(self) -> float:
        return self._delay_s

    def _cut(self) -> None:
        self._refuses = True
        for connection in self._connections:
            connection.abort()

    def _set_silent(self, way: Way) -> None:
        self._silent = way

    def _set_delay(self, seconds: float) -> None:
        self._delay_s = seconds

    def _half_close(self, way: Way) -> None:
        for connection in self._connections:
            connection.half_close(way)

    def _heal(self) -> None:
        self._refuses, self._silent, self._delay_s = False, NEITHER, 0.0
        for connection in self._connections:
            if connection.lossy:
                connection.abort()

    def _do(self, work: Callable[[], None]) -> None:
        async def run() -> None:
            work()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE_S)


class _Connection:
    """One caller and its connection to the target."""

    def __init__(
        self, line: Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._line = line
        self._caller = reader, writer
        self._target: asyncio.StreamWriter | None = None
        self._done = asyncio.Event()
        self.lossy = False

    async def run(self) -> None:
        reader, writer = self._caller
        try:
            host, _, port = self._line.target.rpartition(":")
            there, self._target = await asyncio.open_connection(host, int(port))
            await asyncio.gather(
                self._pump(reader, self._target, Way.OUT), self._pump(there, writer, Way.BACK)
            )
        except OSError:
            pass  # either side is gone: so is the other
        finally:
            self.abort()
            self._done.set()

    async def wait_end(self) -> None:
        await self._done.wait()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way
    ) -> None:
        while piece := await reader.read(CHUNK):
            if self._line.delay_s:
                await asyncio.sleep(self._line.delay_s)
            if self._line.loses(way):
                self.lossy = True
                continue
            writer.write(piece)
            await writer.drain()
        self._end(writer)

    def half_close(self, way: Way) -> None:
        writer = self._target if way is Way.OUT else self._caller[1]
        if writer is not None:
            self._end(writer)

    def _end(self, writer: asyncio.StreamWriter) -> None:
        if not writer.is_closing():
            with contextlib.suppress(OSError):
                writer.write_eof()

    def abort(self) -> None:
        for writer in (self._caller[1], self._target):
            if writer is not None:
                writer.transport.abort()


class Lines:
    """Lines in a thread of their own, so that a test that waits does not hold them up."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lines", daemon=True)
        self._lines: list[Line] = []
        self._thread.start()

    def open(self, target: str) -> Line:
        line = Line(self._loop, target)
        asyncio.run_coroutine_threadsafe(line.listen(), self._loop).result(PATIENCE_S)
        self._lines.append(line)
        return line

    def close(self) -> None:
        for line in self._lines:
            asyncio.run_coroutine_threadsafe(line.close(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


@contextlib.contextmanager
def lines() -> Iterator[Lines]:
    opened = Lines()
    try:
        yield opened
    finally:
        opened.close()
