"""A small HTTP/2 client, which can also misbehave; it shares no code with the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS = 1, 4
PATIENCE_S = 20.0
Pairs = list[tuple[str, str]]


def frame_bytes(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + payload


@dataclass
class Answer:
    headers: dict[str, str] = field(default_factory=dict)
    trailers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    frames: int = 0  # of headers
    reset: int = -1
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def status(self) -> int:
        return int(self.headers[":status"])


class H2Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._encoder, self._decoder = hpack.Encoder(), hpack.Decoder()
        self.answers: dict[int, Answer] = {}
        self.goaway = -1
        self.goaway_says = ""
        self.closed = asyncio.Event()
        self.settings: dict[int, int] = {}
        self.granted = 0  # by WINDOW_UPDATE of the connection
        self.takes = True  # more of an answer than the first window
        self._next = 1

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def block(self, pairs: Pairs) -> bytes:
        return bytes(self._encoder.encode(pairs))

    def begin(
        self, path: str, headers: Pairs | None = None, *, method: str = "POST", end: bool = False
    ) -> int:
        """Send a request's head; gives its stream."""
        stream, self._next = self._next, self._next + 2
        self.answers[stream] = Answer()
        pseudo = [
            (":method", method), (":scheme", "http"), (":path", path), (":authority", "localhost")
        ]  # fmt: skip
        flags = END_HEADERS | (END_STREAM if end else 0)
        self.write(frame_bytes(HEADERS, flags, stream, self.block([*pseudo, *(headers or [])])))
        return stream

    def send(self, stream: int, body: bytes, *, end: bool = True) -> None:
        pieces = [body[at : at + 16384] for at in range(0, len(body), 16384)] or [b""]
        for number, piece in enumerate(pieces):
            last = end and number == len(pieces) - 1
            self.write(frame_bytes(DATA, END_STREAM if last else 0, stream, piece))

    async def answer(self, stream: int) -> Answer:
        answer = self.answers[stream]
        await asyncio.wait_for(answer.done.wait(), PATIENCE_S)
        return answer

    async def ask(
        self, path: str, headers: Pairs | None = None, body: bytes = b"", *, method: str = "POST"
    ) -> Answer:
        stream = self.begin(path, headers, method=method)
        self.send(stream, body)
        return await self.answer(stream)

    async def wait_end(self) -> int:
        """The code with which the server ended the connection, or -1 if it did without."""
        await asyncio.wait_for(self.closed.wait(), PATIENCE_S)
        return self.goaway

    async def listen(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(9)
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                self._take(head[3], head[4], int.from_bytes(head[5:9], "big"), payload)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the server hung up
        finally:
            self.closed.set()
            for answer in self.answers.values():
                answer.done.set()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        answer = self.answers.get(stream, Answer())
        match kind:
            case 1:
                fields = {str(name): str(value) for name, value in self._decoder.decode(payload)}
                answer.frames += 1
                (answer.trailers if answer.headers else answer.headers).update(fields)
            case 0:
                answer.body += payload
                if payload and self.takes:
                    more = len(payload).to_bytes(4, "big")
                    self.write(
                        frame_bytes(WINDOW, 0, 0, more) + frame_bytes(WINDOW, 0, stream, more)
                    )
            case 3:
                answer.reset = int.from_bytes(payload, "big")
                answer.done.set()
            case 4 if not flags:
                for at in range(0, len(payload), 6):
                    name = int.from_bytes(payload[at : at + 2], "big")
                    self.settings[name] = int.from_bytes(payload[at + 2 : at + 6], "big")
                self.write(frame_bytes(SETTINGS, 1, 0))
            case 7:
                self.goaway = int.from_bytes(payload[4:8], "big")
                self.goaway_says = payload[8:].decode()
            case 8 if not stream:
                self.granted += int.from_bytes(payload, "big")
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            answer.done.set()


@asynccontextmanager
async def h2_client(port: int, settings: bytes = b"") -> AsyncIterator[H2Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    client = H2Client(reader, writer)
    client.write(PREFACE + frame_bytes(SETTINGS, 0, 0, settings))
    listening = asyncio.create_task(client.listen())
    try:
        yield client
    finally:
        writer.transport.abort()
        await asyncio.gather(listening, return_exceptions=True)
