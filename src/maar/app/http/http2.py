"""HTTP/2 without TLS (h2c, prior knowledge): every stream a request to the same application.

It limits concurrent streams, header lists, data sent ahead of its reader (windows), useless frames
(floods), and through the gate everything that has not arrived completely.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import unquote

from uvicorn.protocols.utils import get_local_addr, get_remote_addr

from maar.app.http.gate import LINGER_S, Gate, caller_of
from maar.app.http.http2_frames import (
    FRAME_BYTES_MIN,
    HEAD_BYTES,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    Code,
    ConnectionFault,
    Flag,
    Frame,
    FrameKind,
    Heading,
    Setting,
    StreamFault,
    check_priority,
    check_trailers,
    frame,
    header_block,
    header_frames,
    heading,
    settings_frame,
    settings_of,
    split,
    strip_padding,
)
from maar.app.http.http2_heads import HeaderBlock, Heads, HeadTooLarge
from maar.app.http.http2_stream import STREAM_WINDOW, Stream
from maar.app.http.patience import Patience
from maar.app.http.unfinished import Why

FRAME_BYTES_MAX = 1 << 16
CONNECTION_WINDOW = 1 << 21  # of all its streams
IDLE_S = 300.0  # of a connection without a request
UNSENT_BYTES_MAX = 1 << 20  # replies to pings and the like that a client does not read
EMPTY, CHEAP, DEAR = 1.0, 0.5, 5.0  # what useless frames cost of the flood budget
RESET_REMEMBERED = 256
_GRPC = re.compile(rb"application/grpc(?!-web)").match  # whose errors are no HTTP statuses


class Http2(asyncio.Protocol):
    def __init__(self, gate: Gate, app: Any, server_state: Any) -> None:
        self._gate = gate
        self._app = app
        self._state = server_state
        self._streams: dict[int, Stream] = {}
        # Streams that we reset lately: frames for them are ignored.
        self._reset: dict[int, None] = {}
        self._new: list[Stream] = []
        self._last = 0
        self._left_over = b""
        self._begun = False  # a frame or header block is incomplete, and the gate knows
        self._idle = True
        self._heads = Heads(gate.settings.head_bytes_max)
        self._settled = False  # SETTINGS came, as the first frame
        self._window_in = CONNECTION_WINDOW
        self._returned = 0
        self.window_out = WINDOW_DEFAULT
        self._initial_window_out = WINDOW_DEFAULT
        self.frame_bytes_out = FRAME_BYTES_MIN
        self.sent = 0  # bytes of answers
        self.write_paused = False
        self.waiting: set[Stream] = set()
        self._going = False  # no new streams
        self._failed = False

    @property
    def stall_s(self) -> float:
        return self._gate.bounds.stall_s

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        headers: list[tuple[bytes, bytes]] = self._state.default_headers
        return headers

    # ------------------------------------------------------------------ the connection

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport
        self._loop = asyncio.get_running_loop()
        self._patience = Patience(self._loop.time())
        self._address = caller_of(transport)
        self._server, self._client = get_local_addr(transport), get_remote_addr(transport)
        self._state.connections.add(self)
        self._too_idle = self._loop.call_later(IDLE_S, self.shutdown)
        self._gate.on_open(self, self._address)
        if self._failed:  # there is no room
            return
        settings = {
            Setting.MAX_CONCURRENT_STREAMS: self._gate.bounds.streams_max,
            Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            Setting.MAX_FRAME_SIZE: FRAME_BYTES_MAX,
            Setting.MAX_HEADER_LIST_SIZE: self._gate.settings.head_bytes_max,
        }
        more = (CONNECTION_WINDOW - WINDOW_DEFAULT).to_bytes(4)
        transport.write(settings_frame(settings) + frame(FrameKind.WINDOW_UPDATE, 0, 0, more))

    def connection_lost(self, _error: Exception | None) -> None:
        self._failed = True
        self._gate.waiting.on_close(self)
        self._too_idle.cancel()
        self._state.connections.discard(self)
        for stream in list(self._streams.values()):
            self._end_stream(stream)
            stream.leave()

    def data_received(self, data: bytes) -> None:
        if self._failed:
            return
        buffer = self._left_over + data if self._left_over else data
        frames: list[Frame] = []
        try:
            frames, self._left_over = split(buffer, bytes_max=FRAME_BYTES_MAX)
            for one in frames:
                try:
                    self._frame(one)
                except StreamFault as fault:
                    self._stream_failed(fault)
        except ConnectionFault as fault:
            if isinstance(fault, HeadTooLarge):
                self._gate.count(Why.HEAD_LARGE)
            self._fail(fault.code, str(fault))
            return
        self._tell_gate(progress=bool(frames) and not self._heads.open)

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        self._wake()

    def shutdown(self) -> None:
        """Accept no new requests; close when the current ones are answered."""
        if not self._going and not self._failed:
            self._going = True
            self._goaway(Code.NO_ERROR, b"")
        self._close_if_done()

    def refuse(self, why: Why) -> None:
        """Called by the gate: it is the oldest idle connection, or half a frame is late."""
        self._begun = False
        if self._failed:
            self._transport.abort()
        elif why is Why.CONNECTIONS:
            self._fail(Code.NO_ERROR, self._gate.refusal(why).sentence)
            self._transport.close()  # at once: its descriptor is what is wanted
        else:
            self._fail(Code.ENHANCE_YOUR_CALM, self._gate.refusal(why).sentence)

    def _tell_gate(self, *, progress: bool) -> None:
        """Called after each piece: which requests are incomplete, and whether a frame is."""
        for stream in self._new:
            if not stream.ended and not stream.gone and not stream.answered:
                stream.held = True
                self._gate.on_begin(stream, self._address)
                self._gate.head_whole(stream)
        self._new.clear()
        partial = self._heads.open or bool(self._left_over and not self._in_body())
        if self._begun and (progress or not partial):
            self._begun = False
            self._gate.waiting.whole(self)
        if partial and not self._begun:
            self._begun = True
            self._gate.on_begin(self, self._address)
        self._settle_idle()

    def _in_body(self) -> bool:
        """Whether the incomplete frame is part of a body, which has its own time limit."""
        rest = self._left_over
        return (
            len(rest) >= HEAD_BYTES
            and rest[3] == FrameKind.DATA
            and int.from_bytes(rest[5:9]) & WINDOW_MAX in self._streams
        )

    def _settle_idle(self) -> None:
        idle = not self._streams and not self._begun
        if idle == self._idle or self._failed:
            return
        self._idle = idle
        self._too_idle.cancel()
        if idle:
            self._gate.waiting.idle(self)
            self._too_idle = self._loop.call_later(IDLE_S, self.shutdown)
        else:
            self._gate.waiting.busy(self)

    def _goaway(self, code: Code, sentence: bytes) -> None:
        payload = self._last.to_bytes(4) + int(code).to_bytes(4) + sentence
        self._transport.write(frame(FrameKind.GOAWAY, 0, 0, payload))

    def _close_if_done(self) -> None:
        if self._going and not self._streams and not self._failed:
            self._failed = True
            self._transport.close()
            self._loop.call_later(LINGER_S, self._transport.abort)

    def _fail(self, code: Code, sentence: str) -> None:
        if self._failed:
            return
        self._failed = True
        self._gate.waiting.idle(self)  # first to go when there is no room
        self._goaway(code, sentence.encode()[:200])
        for stream in list(self._streams.values()):
            self._end_stream(stream)
            stream.leave()
        if self._transport.can_write_eof():  # read on, so that our reason is read, not reset
            self._transport.write_eof()
        self._loop.call_later(LINGER_S, self._transport.abort)

    # ------------------------------------------------------------------ frames that come

    def _frame(self, one: Frame) -> None:
        if self._failed:
            return
        kind = one.kind
        if self._heads.open and kind != FrameKind.CONTINUATION:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a header block was interrupted")
        if not self._settled and kind != FrameKind.SETTINGS:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "the first frame must be SETTINGS")
        if kind == FrameKind.DATA:
            self._data(one)
        elif kind == FrameKind.HEADERS:
            self._headers(one)
        elif kind == FrameKind.WINDOW_UPDATE:
            self._window_update(one)
        elif kind == FrameKind.SETTINGS:
            self._settings(one)
        elif kind == FrameKind.CONTINUATION:
            self._continuation(one)
        elif kind == FrameKind.RST_STREAM:
            self._rst_stream(one)
        elif kind == FrameKind.PING:
            self._ping(one)
        elif kind == FrameKind.GOAWAY:
            _check_length(one, least=8)
            _check_stream(one, none=True)
            self._going = True
            self._close_if_done()
        elif kind == FrameKind.PRIORITY:
            self._spend_patience(EMPTY)
            _check_stream(one, none=False)
            check_priority(one.stream, one.payload)
        elif kind == FrameKind.PUSH_PROMISE:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "clients do not push")
        else:
            self._spend_patience(EMPTY)  # unknown kinds are passed over

    def _data(self, one: Frame) -> None:
        _check_stream(one, none=False)
        size = len(one.payload)
        self._window_in -= size
        if self._window_in < 0:
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "more was sent than the window allows")
        body = strip_padding(one)
        stream = self._streams.get(one.stream)
        if stream is None:
            self._check_closed(one.stream)
            self._give_back(size)
            self._spend_patience(EMPTY)
            return
        if stream.ended:
            self._give_back(size)
            raise StreamFault(one.stream, Code.STREAM_CLOSED, "the request had ended")
        stream.window_in -= size
        if stream.window_in < 0:
            raise StreamFault(one.stream, Code.FLOW_CONTROL_ERROR, "more than its window allows")
        stream.received += len(body)
        if body:
            stream.chunks.append(body)
        elif not one.flags & Flag.END_STREAM:
            self._spend_patience(EMPTY)
        if size > len(body):
            self.on_read(stream, size - len(body))
        if one.flags & Flag.END_STREAM:
            self._whole(stream)
        stream.news.set()

    def _headers(self, one: Frame) -> None:
        _check_stream(one, none=False)
        self._head(self._heads.begin(one))

    def _continuation(self, one: Frame) -> None:
        if not one.payload:
            self._spend_patience(EMPTY)
        self._head(self._heads.go_on(one))

    def _head(self, head: HeaderBlock | None) -> None:
        if head is None:
            return
        stream = self._streams.get(head.stream)
        if stream is not None:
            self._trailers(stream, head)
            return
        if head.stream % 2 == 0:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "clients use odd streams")
        if head.stream <= self._last:
            self._check_closed(head.stream)
            self._spend_patience(EMPTY)
            return
        self._last = head.stream
        if self._going or len(self._streams) >= self._gate.bounds.streams_max:
            raise StreamFault(head.stream, Code.REFUSED_STREAM, "too many at once, or ending")
        self._request(head, heading(head.stream, head.pairs))

    def _trailers(self, stream: Stream, head: HeaderBlock) -> None:
        if stream.ended:
            raise StreamFault(stream.number, Code.STREAM_CLOSED, "the request had ended")
        if not head.end:
            raise StreamFault(stream.number, Code.PROTOCOL_ERROR, "trailers end a stream")
        check_trailers(stream.number, head.pairs)
        self._whole(stream)
        stream.news.set()

    def _request(self, head: HeaderBlock, asked: Heading) -> None:
        stream = self._streams[head.stream] = Stream(self, head.stream, self._initial_window_out)
        stream.expected = asked.length
        stream.bodyless = asked.method == "HEAD"
        stream.grpc = any(
            name == b"content-type" and _GRPC(value.lower()) for name, value in asked.headers
        )
        if head.size > self._gate.settings.head_bytes_max:
            self._gate.count(Why.HEAD_LARGE)
            self.refuse_stream(stream, Why.HEAD_LARGE)
            return
        if head.end:
            self._whole(stream)
        else:
            self._new.append(stream)
        task = self._loop.create_task(stream.run(self._app, self._scope(asked)))
        stream.task = task
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def _scope(self, head: Heading) -> dict[str, Any]:
        raw, _, query = head.target.partition(b"?")
        path = raw.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "2",
            "method": head.method,
            "scheme": "http",
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw,
            "query_string": query,
            "root_path": "",
            "headers": head.headers,
            "server": self._server,
            "client": self._client,
            "extensions": {"http.response.trailers": {}},
            "state": {},
        }

    def _whole(self, stream: Stream) -> None:
        if stream.expected not in (-1, stream.received):
            raise StreamFault(stream.number, Code.PROTOCOL_ERROR, "content-length is wrong")
        stream.ended = True
        if stream.held:
            stream.held = False
            self._gate.waiting.whole(stream)

    def _rst_stream(self, one: Frame) -> None:
        _check_length(one, exactly=4)
        _check_stream(one, none=False)
        if one.stream > self._last:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "RST_STREAM for an idle stream")
        self._spend_patience(DEAR)
        stream = self._streams.get(one.stream)
        if stream is not None:
            self._end_stream(stream)
            stream.leave()
            self._settle_idle()
            self._close_if_done()

    def _settings(self, one: Frame) -> None:
        _check_stream(one, none=True)
        self._spend_patience(DEAR)
        if one.flags & Flag.ACK:
            _check_length(one, exactly=0)
            return
        self._settled = True
        for name, value in settings_of(one.payload):
            if name == Setting.INITIAL_WINDOW_SIZE:
                self._resize(value)
            elif name == Setting.MAX_FRAME_SIZE:
                self.frame_bytes_out = min(value, FRAME_BYTES_MAX)
        self._reply(frame(FrameKind.SETTINGS, Flag.ACK, 0))

    def _resize(self, window: int) -> None:
        more, self._initial_window_out = window - self._initial_window_out, window
        for stream in self._streams.values():
            stream.window_out += more
            if stream.window_out > WINDOW_MAX:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "a window is too large")
        self._wake()

    def _ping(self, one: Frame) -> None:
        _check_length(one, exactly=8)
        _check_stream(one, none=True)
        self._spend_patience(EMPTY)
        if not one.flags & Flag.ACK:
            self._reply(frame(FrameKind.PING, Flag.ACK, 0, one.payload))

    def _window_update(self, one: Frame) -> None:
        _check_length(one, exactly=4)
        self._spend_patience(CHEAP)
        more = int.from_bytes(one.payload) & WINDOW_MAX
        if one.stream == 0:
            if not more:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "a window cannot grow by nothing")
            self.window_out += more
            if self.window_out > WINDOW_MAX:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "the window is too large")
        else:
            if one.stream > self._last:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "WINDOW_UPDATE for an idle stream")
            if not more:
                raise StreamFault(one.stream, Code.PROTOCOL_ERROR, "no window grows by nothing")
            stream = self._streams.get(one.stream)
            if stream is None:
                return
            stream.window_out += more
            if stream.window_out > WINDOW_MAX:
                raise StreamFault(one.stream, Code.FLOW_CONTROL_ERROR, "its window is too large")
        self._wake()

    def _check_closed(self, number: int) -> None:
        """Frames for a stream that we reset were in flight; for any other it is an error."""
        if number > self._last:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a frame for an idle stream")
        if number not in self._reset:
            raise ConnectionFault(Code.STREAM_CLOSED, "a frame for a closed stream")

    def _spend_patience(self, cost: float) -> None:
        if not self._patience.spend(cost, self._loop.time):
            self._gate.count(Why.FLOOD)
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many useless frames")

    def _reply(self, reply: bytes) -> None:
        if self._transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self._gate.count(Why.FLOOD)
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "replies are not read")
        self._transport.write(reply)

    # ------------------------------------------------------------------ what goes out

    def on_read(self, stream: Stream, size: int) -> None:
        """Part of a body was read: let the client send as much more."""
        self._give_back(size)
        stream.returned += size
        if stream.returned >= STREAM_WINDOW // 2 and not stream.ended and not stream.gone:
            stream.window_in += stream.returned
            more = stream.returned.to_bytes(4)
            stream.returned = 0
            if not self._failed:
                self._transport.write(frame(FrameKind.WINDOW_UPDATE, 0, stream.number, more))

    def _give_back(self, size: int) -> None:
        self._returned += size
        if self._returned >= CONNECTION_WINDOW // 2:
            self._window_in += self._returned
            more, self._returned = self._returned.to_bytes(4), 0
            if not self._failed:
                self._transport.write(frame(FrameKind.WINDOW_UPDATE, 0, 0, more))

    def write_headers(self, stream: Stream, block: bytes, *, end: bool) -> None:
        self._transport.write(
            header_frames(stream.number, block, end=end, bytes_max=self.frame_bytes_out)
        )
        if end:
            self._end_answer(stream)

    def write_data(self, stream: Stream, body: bytes, *, end: bool) -> None:
        flags = Flag.END_STREAM if end else 0
        self._transport.write(frame(FrameKind.DATA, flags, stream.number, body))
        self.sent += len(body)
        self._patience.restore(4 * CHEAP)  # which clients acknowledge, for stream and connection
        if end:
            self._end_answer(stream)

    def refuse_stream(self, stream: Stream, why: Why) -> None:
        if stream.gone or stream.answered or self._failed:
            return
        refusal = self._gate.refusal(why)
        if stream.answering:
            self.reset(stream, Code.CANCEL)
            return
        headers, body = refusal.in_grpc() if stream.grpc else refusal.in_json()
        status = 200 if stream.grpc else refusal.status
        block = header_block([*self.default_headers, *headers], status)
        frames = header_frames(stream.number, block, end=not body, bytes_max=self.frame_bytes_out)
        size = min(self.window_out, stream.window_out)
        if body and len(body) <= size:
            self.window_out -= len(body)
            frames += frame(FrameKind.DATA, Flag.END_STREAM, stream.number, body)
        self._transport.write(frames)
        self._end_answer(stream)
        stream.leave()

    def on_stall(self, stream: Stream) -> None:
        """The client does not read the answer."""
        self._gate.count(Why.ANSWER_STALLED)
        self.reset(stream, Code.CANCEL)

    def reset(self, stream: Stream, code: Code) -> None:
        if stream.answered or stream.gone:
            return
        self._transport.write(frame(FrameKind.RST_STREAM, 0, stream.number, int(code).to_bytes(4)))
        self._forget(stream)
        stream.leave()
        self._settle_idle()
        self._close_if_done()

    def _end_answer(self, stream: Stream) -> None:
        """The answer is sent; the rest of the request is not needed any more."""
        stream.answered = True
        stream.news.set()
        self._patience.restore(DEAR)
        if stream.ended:
            self._end_stream(stream)
        else:
            no_error = int(Code.NO_ERROR).to_bytes(4)
            self._transport.write(frame(FrameKind.RST_STREAM, 0, stream.number, no_error))
            self._forget(stream)
        self._settle_idle()
        self._close_if_done()

    def _forget(self, stream: Stream) -> None:
        self._remember(stream.number)
        self._end_stream(stream)

    def _remember(self, number: int) -> None:
        self._reset[number] = None
        if len(self._reset) > RESET_REMEMBERED:
            del self._reset[next(iter(self._reset))]

    def _end_stream(self, stream: Stream) -> None:
        self._streams.pop(stream.number, None)
        unread = sum(map(len, stream.chunks))
        stream.chunks.clear()
        if unread and not self._failed:
            self._give_back(unread)
        if stream.held:
            stream.held = False
            self._gate.waiting.whole(stream)

    def _stream_failed(self, fault: StreamFault) -> None:
        self._spend_patience(DEAR)
        stream = self._streams.get(fault.stream)
        if stream is not None:
            self.reset(stream, fault.code)
            return
        self._transport.write(
            frame(FrameKind.RST_STREAM, 0, fault.stream, int(fault.code).to_bytes(4))
        )
        self._remember(fault.stream)

    def _wake(self) -> None:
        for stream in self.waiting:
            stream.room.set()


def _check_length(one: Frame, *, exactly: int = -1, least: int = 0) -> None:
    size = len(one.payload)
    if size < least or exactly not in (-1, size):
        raise ConnectionFault(
            Code.FRAME_SIZE_ERROR, f"a frame of kind {one.kind} with {size} bytes"
        )


def _check_stream(one: Frame, *, none: bool) -> None:
    if (one.stream == 0) != none:
        raise ConnectionFault(Code.PROTOCOL_ERROR, f"kind {one.kind} on stream {one.stream}")
