"""Gzip in and out: never more memory than the limit, whatever the compressed bytes promise."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from isal import isal_zlib

from maar.model.errors import MalformedProfile, TooLarge

MAGIC = b"\x1f\x8b"
MEMBERS_MAX = 1024  # a body of empty members costs time and yields nothing

_IsalError: Any = isal_zlib.error  # its stub declares an instance
_GZIP = 31  # wbits: gzip container, largest window
_LEVEL = 1  # about half of zlib's time at level 1, for slightly larger output
_RATIO_MAX = 1032  # a byte of deflate becomes no more than that
_WINDOW = 64 << 10  # input is fed in windows, since what follows a member is copied


def gunzip(data: bytes, *, limit: int) -> bytes:
    """The decompressed bytes; what does not begin like gzip is passed through as it is.

    Members may follow each other, as gzip allows. Nothing else may follow the last one.
    """
    if data[:2] != MAGIC:
        if len(data) > limit:
            raise TooLarge(f"the profile has {len(data)} bytes, over the limit of {limit}")
        return data
    chunks: list[bytes] = []
    room = limit + 1  # one byte more tells "at the limit" from "over it"
    position = 0
    for _ in range(MEMBERS_MAX):
        position, room = _member(data, position, room, limit, chunks)
        if position == len(data):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if data[position : position + 2] != MAGIC:
            raise MalformedProfile(
                f"the gzip data ends at byte {position}, but {len(data) - position} bytes of "
                "something else follow; send the gzip data alone",
                reason="gzip",
            )
    raise MalformedProfile(
        f"the gzip data has more than {MEMBERS_MAX} members; compress the profile in one",
        reason="gzip",
    )


def gunzip_counted(data: bytes, *, size: int, limit: int) -> bytes:
    """The same for bytes whose size was counted when they came, mostly in one call.

    So short a gzip that it cannot become more than the limit needs no bound on the way. Whatever
    is not as it was counted is for `gunzip` to judge.
    """
    ends_as_counted = size <= limit and int.from_bytes(data[-4:], "little") == size
    if data[:2] == MAGIC and ends_as_counted and len(data) * _RATIO_MAX <= limit:
        with suppress(_IsalError):  # it is told below, with its place
            raw: bytes = isal_zlib.decompress(data, _GZIP, size + 1)
            if len(raw) == size:
                return raw
    return gunzip(data, limit=limit)


def promised_size(data: bytes, *, limit: int) -> int:
    """How much it will be when decompressed, as its last bytes say, without a look at the rest.

    They may lie, or speak of the last of several members only; who needs to know, counts later.
    """
    if data[:2] != MAGIC:
        return len(data)
    return max(len(data), min(int.from_bytes(data[-4:], "little"), limit))


def compress(raw: bytes) -> bytes:
    """One gzip member, made fast; equal input gives equal output."""
    return bytes(isal_zlib.compress(raw, _LEVEL, wbits=_GZIP))


def _member(
    data: bytes, position: int, room: int, limit: int, chunks: list[bytes]
) -> tuple[int, int]:
    """Decompress the member that begins at a position; returns its end and the room left."""
    inflater: Any = isal_zlib.decompressobj(wbits=_GZIP)
    view = memoryview(data)
    while not inflater.eof:
        window = view[position : position + _WINDOW]
        if not window:
            raise MalformedProfile(
                f"the gzip data is cut off: it ends after {len(data)} bytes, within a member; "
                "send it whole",
                reason="gzip",
            )
        try:
            chunk = inflater.decompress(window, room)
        except _IsalError as error:
            raise MalformedProfile(
                f"the gzip data is damaged between bytes {position} and "
                f"{position + len(window)} ({error}); send it again",
                reason="gzip",
            ) from error
        if chunk:
            chunks.append(chunk)
        room -= len(chunk)
        if room <= 0:
            raise TooLarge(f"the profile is larger than the limit of {limit} bytes, decompressed")
        position += len(window) - len(inflater.unused_data)
    return position, room
