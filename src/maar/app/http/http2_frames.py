"""HTTP/2 on the wire (RFC 9113): frames, settings, and header lists as requests. No I/O, no state.

Headers that we send are written without a dynamic table (RFC 7541, 6.2.2): nothing to keep, and
short answers need no more.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
FRAME_BYTES_MIN = 1 << 14  # what everybody must take
WINDOW_MAX = (1 << 31) - 1
WINDOW_DEFAULT = (1 << 16) - 1


class FrameKind(IntEnum):
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag(IntEnum):
    ACK = 0x1
    END_STREAM = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    PRIORITY = 0x20


class Code(IntEnum):
    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Setting(IntEnum):
    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ConnectionFault(Exception):
    """What ends the connection."""

    def __init__(self, code: Code, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class StreamFault(Exception):
    """What ends one stream."""

    def __init__(self, stream: int, code: Code, sentence: str) -> None:
        super().__init__(sentence)
        self.stream = stream
        self.code = code


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


class Heading(NamedTuple):
    """A request's header list, taken apart."""

    method: str
    scheme: str
    target: bytes  # :path
    headers: list[tuple[bytes, bytes]]  # with `host` from :authority
    length: int  # content-length, or -1


# ------------------------------------------------------------------ frames


def split(buffer: bytes, *, bytes_max: int) -> tuple[list[Frame], bytes]:
    """The whole frames of some bytes, and what is left of them."""
    frames = []
    at, end = 0, len(buffer)
    while end - at >= HEAD_BYTES:
        length = int.from_bytes(buffer[at : at + 3])
        if length > bytes_max:
            raise ConnectionFault(
                Code.FRAME_SIZE_ERROR, f"a frame of {length} bytes is over {bytes_max}"
            )
        upto = at + HEAD_BYTES + length
        if upto > end:
            break
        stream = int.from_bytes(buffer[at + 5 : at + 9]) & WINDOW_MAX
        frames.append(Frame(buffer[at + 3], buffer[at + 4], stream, buffer[at + HEAD_BYTES : upto]))
        at = upto
    return frames, buffer[at:] if at else buffer


def frame(kind: FrameKind, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def settings_frame(values: dict[Setting, int]) -> bytes:
    payload = b"".join(struct.pack(">HI", name, value) for name, value in values.items())
    return frame(FrameKind.SETTINGS, 0, 0, payload)


def settings_of(payload: bytes) -> Iterator[tuple[int, int]]:
    """Names and values, each checked by itself."""
    if len(payload) % 6:
        raise ConnectionFault(Code.FRAME_SIZE_ERROR, "SETTINGS is no multiple of six bytes")
    for name, value in struct.iter_unpack(">HI", payload):
        if name == Setting.ENABLE_PUSH and value > 1:
            raise ConnectionFault(Code.PROTOCOL_ERROR, f"ENABLE_PUSH = {value}")
        if name == Setting.INITIAL_WINDOW_SIZE and value > WINDOW_MAX:
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE = {value}")
        if name == Setting.MAX_FRAME_SIZE and not FRAME_BYTES_MIN <= value < 1 << 24:
            raise ConnectionFault(Code.PROTOCOL_ERROR, f"MAX_FRAME_SIZE = {value}")
        yield name, value


def strip_padding(one: Frame) -> bytes:
    if not one.flags & Flag.PADDED:
        return one.payload
    if not one.payload or one.payload[0] >= len(one.payload):
        raise ConnectionFault(Code.PROTOCOL_ERROR, "padding is longer than its frame")
    return one.payload[1 : len(one.payload) - one.payload[0]]


def block_of(one: Frame) -> bytes:
    """The part of a header block that a HEADERS frame carries."""
    block = strip_padding(one)
    if not one.flags & Flag.PRIORITY:
        return block
    try:
        check_priority(one.stream, block[:5])
    except StreamFault as fault:  # of the whole connection: what is not decoded is missed later
        raise ConnectionFault(fault.code, str(fault)) from fault
    return block[5:]


def check_priority(stream: int, payload: bytes) -> None:
    """Priorities are ignored, as RFC 9113 advises; malformed ones are refused."""
    if len(payload) != 5:
        raise StreamFault(stream, Code.FRAME_SIZE_ERROR, "a priority is five bytes")
    if int.from_bytes(payload[:4]) & WINDOW_MAX == stream:
        raise StreamFault(stream, Code.PROTOCOL_ERROR, "a stream cannot depend on itself")


# ------------------------------------------------------------------ header lists

_CONNECTION_HEADERS = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
_STATUSES = {200: 8, 204: 9, 206: 10, 304: 11, 400: 12, 404: 13, 500: 14}  # in the static table
_NO_NAME = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9a-z]").search
_NO_VALUE = re.compile(rb"[\x00\r\n]").search
_NO_PATH = re.compile(rb"[^\x21-\x7e]").search


def heading(stream: int, pairs: Iterable[tuple[bytes, bytes]]) -> Heading:
    """A request's head, or StreamFault when it is malformed (RFC 9113, 8.1.1)."""
    pseudo: dict[bytes, bytes] = {}
    headers: list[tuple[bytes, bytes]] = []
    for name, value in pairs:
        if name[:1] == b":":
            if headers or name in pseudo or name not in _PSEUDO:
                raise _protocol_fault(stream, f"{name[:40]!r} is twice, late or unknown")
            pseudo[name] = value
        else:
            check_header(stream, name, value)
            headers.append((name, value))
    method, scheme, target = (pseudo.get(name, b"") for name in (b":method", b":scheme", b":path"))
    if not method.isalpha() or not scheme or target[:1] not in (b"/", b"*"):
        raise _protocol_fault(stream, "the request has no :method, :scheme or :path")
    if _NO_PATH(target):
        raise _protocol_fault(stream, ":path has characters that no path has")
    authority = pseudo.get(b":authority")
    if authority is not None:
        headers = [pair for pair in headers if pair != (b"host", authority)]
        headers.insert(0, (b"host", authority))
    return Heading(
        method.decode(), scheme.decode(errors="replace"), target, headers, _length(stream, headers)
    )


def check_header(stream: int, name: bytes, value: bytes) -> None:
    if not name or _NO_NAME(name) or name in _CONNECTION_HEADERS:
        raise _protocol_fault(stream, f"{name[:40]!r} is no header of HTTP/2")
    if name == b"te" and value.strip().lower() != b"trailers":
        raise _protocol_fault(stream, "te may only be trailers")
    if _NO_VALUE(value):
        raise _protocol_fault(stream, f"{name[:40]!r} has control characters")


def check_trailers(stream: int, pairs: Iterable[tuple[bytes, bytes]]) -> None:
    for name, value in pairs:
        if name[:1] == b":":
            raise _protocol_fault(stream, "a trailer has a pseudo header")
        check_header(stream, name, value)


def header_block(pairs: Iterable[tuple[bytes, bytes]], status: int = 0) -> bytes:
    """A header list as literals, the status from the static table; names are lower case."""
    parts = []
    if status in _STATUSES:
        parts.append(bytes((0x80 | _STATUSES[status],)))
    elif status:
        parts.append(b"\x08\x03%d" % status)
    for name, value in pairs:
        parts += (b"\x00", _integer(len(name)), name, _integer(len(value)), value)
    return b"".join(parts)


def header_frames(stream: int, block: bytes, *, end: bool, bytes_max: int) -> bytes:
    """HEADERS, and CONTINUATION for what does not fit."""
    flags = Flag.END_STREAM if end else 0
    if len(block) <= bytes_max:
        return frame(FrameKind.HEADERS, flags | Flag.END_HEADERS, stream, block)
    pieces = [block[at : at + bytes_max] for at in range(0, len(block), bytes_max)]
    first, *more, last = pieces
    return b"".join(
        (
            frame(FrameKind.HEADERS, flags, stream, first),
            *(frame(FrameKind.CONTINUATION, 0, stream, piece) for piece in more),
            frame(FrameKind.CONTINUATION, Flag.END_HEADERS, stream, last),
        )
    )


def _integer(value: int) -> bytes:
    """With a prefix of seven bits, no Huffman code (RFC 7541, 5.1)."""
    if value < 127:
        return bytes((value,))
    written = bytearray((127,))
    value -= 127
    while value >= 128:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


def _length(stream: int, headers: list[tuple[bytes, bytes]]) -> int:
    given = {value for name, value in headers if name == b"content-length"}
    if not given:
        return -1
    if len(given) > 1 or not (text := given.pop()).isdigit() or len(text) > 18:
        raise _protocol_fault(stream, "content-length is no number")
    return int(text)


def _protocol_fault(stream: int, sentence: str) -> StreamFault:
    return StreamFault(stream, Code.PROTOCOL_ERROR, sentence)
