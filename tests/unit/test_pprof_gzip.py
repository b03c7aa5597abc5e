"""Gzip: bounded, whole or refused."""

from __future__ import annotations

import gzip as standard
import tracemalloc
import zlib

import pytest

from maar.model.errors import MalformedProfile, TooLarge
from maar.pprof.gzip import MEMBERS_MAX, compress, gunzip, gunzip_counted, promised_size

TEXT = bytes(range(256)) * 700  # compresses to more than one window of nothing special
NOISE = b"".join(zlib.crc32(bytes([i % 256, i // 256])).to_bytes(4, "big") for i in range(60_000))


@pytest.mark.parametrize("body", [b"", b"x", TEXT, NOISE])
def test_what_was_compressed_comes_back(body: bytes) -> None:
    assert gunzip(compress(body), limit=len(body)) == body
    assert standard.decompress(compress(body)) == body
    assert gunzip(standard.compress(body), limit=len(body)) == body


def test_bytes_that_are_not_gzip_pass_through() -> None:
    assert gunzip(TEXT, limit=len(TEXT)) is TEXT


@pytest.mark.parametrize("data", [TEXT, compress(TEXT), standard.compress(TEXT) * 2])
def test_one_byte_over_the_limit_is_too_large(data: bytes) -> None:
    with pytest.raises(TooLarge, match="limit of"):
        gunzip(data, limit=len(TEXT) - 1)


def test_members_may_follow_each_other() -> None:
    data = standard.compress(NOISE) + standard.compress(b"") + standard.compress(TEXT)
    assert gunzip(data, limit=len(NOISE) + len(TEXT)) == NOISE + TEXT


@pytest.mark.parametrize("tail", [b"junk", b"\0", b"\x1f", TEXT])
def test_anything_else_after_the_last_member_is_refused(tail: bytes) -> None:
    with pytest.raises(MalformedProfile, match="something else follow"):
        gunzip(compress(NOISE) + tail, limit=1 << 20)


@pytest.mark.parametrize("kept", [2, 5, 10, 200, -9, -8, -4, -1])
def test_truncated_gzip_is_refused(kept: int) -> None:
    with pytest.raises(MalformedProfile, match="cut off"):
        gunzip(compress(TEXT)[:kept], limit=1 << 20)


def test_a_second_member_cut_short_is_refused() -> None:
    with pytest.raises(MalformedProfile, match="cut off"):
        gunzip(compress(TEXT) + compress(TEXT)[:40], limit=1 << 20)


@pytest.mark.parametrize("at", [2, 100, -8, -4])
def test_damaged_gzip_is_refused(at: int) -> None:
    data = bytearray(compress(NOISE))
    data[at] ^= 0x55
    with pytest.raises(MalformedProfile, match="damaged"):
        gunzip(bytes(data), limit=1 << 20)


def test_a_gzip_bomb_costs_no_more_than_the_limit() -> None:
    bomb = standard.compress(bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            gunzip(bomb, limit=1 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_a_body_of_empty_members_is_refused() -> None:
    with pytest.raises(MalformedProfile, match="members"):
        gunzip(compress(b"") * (MEMBERS_MAX + 1), limit=1 << 20)


def test_the_size_that_a_gzip_promises_is_read_from_its_end_and_bounded() -> None:
    raw = b"x" * 5000
    assert promised_size(raw, limit=1 << 20) == 5000
    assert promised_size(standard.compress(raw), limit=1 << 20) == 5000
    lie = standard.compress(raw)[:-4] + b"\xff" * 4
    assert promised_size(lie, limit=1 << 20) == 1 << 20
    assert promised_size(b"\x1f\x8b", limit=1 << 20) >= 2


LIMIT = 1 << 30  # so large that even the noise is short for it
PACKED = compress(TEXT)


@pytest.mark.parametrize(
    "data",
    [
        TEXT,
        PACKED,
        compress(NOISE),
        PACKED + PACKED,  # both end with the size of the first
        PACKED[:-1],
        PACKED[:-5] + bytes([PACKED[-5] ^ 1]) + PACKED[-4:],
        PACKED[:40] + b"\xff" + PACKED[41:],
        PACKED + b"junk",
        b"\x1f\x8b",
        b"",
    ],
)
@pytest.mark.parametrize("size", [0, 1, len(TEXT), len(NOISE), 2 * len(TEXT), 1 << 40])
@pytest.mark.parametrize("limit", [1000, len(TEXT), LIMIT])
def test_who_knows_the_size_gets_what_others_get(data: bytes, size: int, limit: int) -> None:
    if data == PACKED + PACKED and size == len(TEXT):
        size += 1  # what was counted is the size of all members
    try:
        wanted: bytes | str = gunzip(data, limit=limit)
    except (MalformedProfile, TooLarge) as error:
        wanted = str(error)
    try:
        found: bytes | str = gunzip_counted(data, size=size, limit=limit)
    except (MalformedProfile, TooLarge) as error:
        found = str(error)
    assert found == wanted


def test_a_size_that_lies_costs_no_more_memory_than_the_limit() -> None:
    bomb = bytearray(compress(bytes(64 << 20)))
    bomb[-4:] = (10).to_bytes(4, "little")
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            gunzip_counted(bytes(bomb), size=10, limit=1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
