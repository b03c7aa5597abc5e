"""Header blocks from their frames; the hpack library writes them, and is not asked to read them."""

from __future__ import annotations

from itertools import pairwise

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maar.app.http.http2_frames import Code, ConnectionFault, Frame
from maar.app.http.http2_heads import HeaderBlock, Heads, HeadTooLarge

HEADERS, CONTINUATION = 1, 9
END_STREAM, END_HEADERS = 1, 4
NAMES = st.text("abcdefgh-", min_size=1, max_size=10)
PAIRS = st.lists(st.tuples(NAMES, st.text("xyz 0123456789", max_size=30)), max_size=6)


def cut(block: bytes, cuts: list[int], stream: int, flags: int) -> list[Frame]:
    edges = [0, *sorted(min(at, len(block)) for at in cuts), len(block)]
    parts = [block[at:upto] for at, upto in pairwise(edges)]
    frames = [Frame(CONTINUATION, 0, stream, part) for part in parts]
    frames[0] = Frame(HEADERS, flags, stream, parts[0])
    last = frames[-1]
    frames[-1] = last._replace(flags=last.flags | END_HEADERS)
    return frames


def read(heads: Heads, frames: list[Frame]) -> HeaderBlock | None:
    found = heads.begin(frames[0])
    for one in frames[1:]:
        assert found is None
        assert heads.open
        found = heads.go_on(one)
    return found


@given(st.lists(st.tuples(PAIRS, st.lists(st.integers(0, 60), max_size=3)), max_size=5))
def test_blocks_are_read_however_they_are_cut_and_share_a_table(
    requests: list[tuple[list[tuple[str, str]], list[int]]],
) -> None:
    encoder, heads = hpack.Encoder(), Heads(65_536)
    for number, (pairs, cuts) in enumerate(requests):
        frames = cut(encoder.encode(pairs), cuts, 2 * number + 1, END_STREAM)
        head = read(heads, frames)
        assert head is not None
        assert not heads.open
        assert (head.stream, head.end) == (2 * number + 1, True)
        assert head.pairs == [(name.encode(), value.encode()) for name, value in pairs]
        assert head.size == sum(len(name) + len(value) + 32 for name, value in pairs)


def test_a_block_without_end_is_refused_at_its_limit() -> None:
    heads = Heads(1000)
    heads.begin(Frame(HEADERS, 0, 1, bytes(600)))
    with pytest.raises(HeadTooLarge) as caught:
        heads.go_on(Frame(CONTINUATION, 0, 1, bytes(600)))
    assert caught.value.code is Code.ENHANCE_YOUR_CALM


def test_a_small_block_that_swells_is_refused() -> None:
    encoder, heads = hpack.Encoder(), Heads(1000)
    read(heads, cut(encoder.encode([("x-a", "a" * 900)]), [], 1, 0))
    block = encoder.encode([("x-a", "a" * 900)] * 5)
    assert len(block) < 20
    with pytest.raises(HeadTooLarge):
        read(heads, cut(block, [], 3, 0))


@pytest.mark.parametrize("block", [b"\x80", b"\xff\xff\xff\xff\xff\x0f", b"\x40\x05ab"])
def test_a_block_that_is_none_ends_the_connection(block: bytes) -> None:
    with pytest.raises(ConnectionFault) as caught:
        Heads(1000).begin(Frame(HEADERS, END_HEADERS, 1, block))
    assert caught.value.code is Code.COMPRESSION_ERROR


def test_a_continuation_must_follow_its_own_headers() -> None:
    heads = Heads(1000)
    with pytest.raises(ConnectionFault, match="of nothing"):
        heads.go_on(Frame(CONTINUATION, END_HEADERS, 1, b""))
    heads.begin(Frame(HEADERS, 0, 1, b"\x82"))
    with pytest.raises(ConnectionFault, match="of nothing"):
        heads.go_on(Frame(CONTINUATION, END_HEADERS, 3, b""))
