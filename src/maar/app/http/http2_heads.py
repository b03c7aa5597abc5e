"""Header blocks of HTTP/2, put together from their frames and decoded, within bounds. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from hpack import Decoder, HPACKError, OversizedHeaderListError

from maar.app.http.http2_frames import Code, ConnectionFault, Flag, Frame, block_of

DECODED_MAX = 4  # times the limit: so far a list is decoded, to answer 431 and keep the connection


class HeadTooLarge(ConnectionFault):
    """A header block that is so large that its connection ends."""

    def __init__(self, bytes_max: int) -> None:
        sentence = f"the request's headers are over the limit of {bytes_max} bytes"
        super().__init__(Code.ENHANCE_YOUR_CALM, sentence)


class HeaderBlock(NamedTuple):
    stream: int
    end: bool  # of the stream
    pairs: list[tuple[bytes, bytes]]

    @property
    def size(self) -> int:
        """As RFC 9113 counts it."""
        return sum(len(name) + len(value) + 32 for name, value in self.pairs)


class Heads:
    """Every block must be decoded, also one that is refused: they share a compression table."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._decoder = Decoder(max_header_list_size=DECODED_MAX * bytes_max)
        self._first: Frame | None = None
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def open(self) -> bool:
        """Whether a block is incomplete."""
        return self._first is not None

    def begin(self, one: Frame) -> HeaderBlock | None:
        """With a HEADERS frame; None while there is more to come."""
        self._first, self._parts, self._size = one, [], 0
        return self._add(one, block_of(one))

    def go_on(self, one: Frame) -> HeaderBlock | None:
        """With a CONTINUATION frame."""
        if self._first is None or self._first.stream != one.stream:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "CONTINUATION of nothing")
        return self._add(one, one.payload)

    def _add(self, one: Frame, part: bytes) -> HeaderBlock | None:
        self._parts.append(part)
        self._size += len(part)
        if self._size > self._bytes_max:
            raise HeadTooLarge(self._bytes_max)
        if not one.flags & Flag.END_HEADERS:
            return None
        assert self._first is not None
        first, self._first = self._first, None
        pairs = self._decode(b"".join(self._parts))
        return HeaderBlock(first.stream, bool(first.flags & Flag.END_STREAM), pairs)

    def _decode(self, block: bytes) -> list[tuple[bytes, bytes]]:
        try:
            return list(self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as error:
            raise HeadTooLarge(self._bytes_max) from error
        except HPACKError as error:
            raise ConnectionFault(Code.COMPRESSION_ERROR, str(error)) from error
