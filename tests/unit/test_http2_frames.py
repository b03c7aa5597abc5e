"""HTTP/2 on the wire, by the RFC's own rules; headers are read back by the hpack library."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maar.app.http.http2_frames import (
    Code,
    ConnectionFault,
    Frame,
    FrameKind,
    Setting,
    StreamFault,
    block_of,
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

FRAMES = st.builds(
    Frame,
    kind=st.integers(0, 255),
    flags=st.integers(0, 255),
    stream=st.integers(0, (1 << 31) - 1),
    payload=st.binary(max_size=200),
)
REQUEST = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a.B/C?d=e")]


def written(one: Frame) -> bytes:
    """As the RFC draws it: 24 bits of length, type, flags, 31 bits of stream."""
    head = f"{len(one.payload):06x}{one.kind:02x}{one.flags:02x}{one.stream:08x}"
    return bytes.fromhex(head) + one.payload


@given(st.lists(FRAMES, max_size=6), st.lists(st.integers(0, 1500), max_size=6))
def test_frames_are_the_same_however_they_are_cut(frames: list[Frame], cuts: list[int]) -> None:
    whole = b"".join(map(written, frames))
    found, rest, before = [], b"", 0
    for cut in [*sorted(cuts), len(whole)]:
        more, rest = split(rest + whole[before:cut], bytes_max=200)
        found += more
        before = max(before, min(cut, len(whole)))
    assert (found, rest) == (frames, b"")


def test_a_frame_over_the_limit_is_refused_before_it_is_here() -> None:
    with pytest.raises(ConnectionFault) as caught:
        split(b"\x00\x00\xc9\x00\x00\x00\x00\x00\x01", bytes_max=200)
    assert caught.value.code is Code.FRAME_SIZE_ERROR


def test_our_frames_are_written_as_the_rfc_draws_them() -> None:
    assert frame(FrameKind.PING, 1, 0, b"12345678") == written(Frame(6, 1, 0, b"12345678"))
    assert settings_frame({Setting.MAX_CONCURRENT_STREAMS: 128}) == bytes.fromhex(
        "000006040000000000" + "000300000080"
    )


HEADER = st.tuples(
    st.binary(min_size=1, max_size=300).map(lambda raw: raw.hex().encode()), st.binary(max_size=400)
)


@given(st.lists(HEADER, max_size=8), st.sampled_from([0, 200, 204, 404, 418, 429, 503]))
def test_headers_that_we_write_are_read_by_others(
    pairs: list[tuple[bytes, bytes]], status: int
) -> None:
    block = header_block(pairs, status)
    joined = b""
    for one in split(header_frames(7, block, end=True, bytes_max=100), bytes_max=100)[0]:
        joined += one.payload
        assert one.stream == 7
    assert joined == block
    read = [tuple(pair) for pair in hpack.Decoder().decode(block, raw=True)]
    first = [(b":status", str(status).encode())] if status else []
    assert read == [*first, *pairs]


def test_only_the_first_frame_of_a_block_ends_the_stream_and_only_the_last_the_block() -> None:
    frames, _ = split(header_frames(1, bytes(250), end=True, bytes_max=100), bytes_max=100)
    assert [(one.kind, one.flags) for one in frames] == [(1, 1), (9, 0), (9, 4)]


def test_a_request_is_taken_apart() -> None:
    head = heading(1, [*REQUEST, (b":authority", b"localhost"), (b"content-length", b"12")])
    assert (head.method, head.target, head.length) == ("POST", b"/a.B/C?d=e", 12)
    assert head.headers == [(b"host", b"localhost"), (b"content-length", b"12")]


def test_one_name_of_the_host_is_one_header_and_two_stay_two() -> None:
    both = [*REQUEST, (b":authority", b"a"), (b"host", b"a")]
    assert heading(1, both).headers == [(b"host", b"a")]
    differ = [*REQUEST, (b":authority", b"a"), (b"host", b"b")]
    assert heading(1, differ).headers == [(b"host", b"a"), (b"host", b"b")]


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        REQUEST[:2],
        [*REQUEST, (b":method", b"GET")],
        [*REQUEST, (b":status", b"200")],
        [(b"x", b"y"), *REQUEST],
        [*REQUEST, (b"Upper", b"x")],
        [*REQUEST, (b"", b"x")],
        [*REQUEST, (b"a b", b"x")],
        [*REQUEST, (b"x", b"a\r\nb: c")],
        [*REQUEST, (b"x", b"\0")],
        [*REQUEST, (b"connection", b"close")],
        [*REQUEST, (b"transfer-encoding", b"chunked")],
        [*REQUEST, (b"te", b"gzip")],
        [*REQUEST, (b"content-length", b"-1")],
        [*REQUEST, (b"content-length", b"1"), (b"content-length", b"2")],
        [*REQUEST[:2], (b":path", b"no-slash")],
        [*REQUEST[:2], (b":path", b"/with space")],
        [*REQUEST[:2], (b":path", b"/\r\nx")],
    ],
)
def test_a_malformed_request_is_refused(pairs: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(StreamFault) as caught:
        heading(3, pairs)
    assert (caught.value.stream, caught.value.code) == (3, Code.PROTOCOL_ERROR)


def test_trailers_have_no_pseudo_headers() -> None:
    check_trailers(1, [(b"grpc-status", b"0")])
    with pytest.raises(StreamFault):
        check_trailers(1, [(b":path", b"/")])


def test_padding_and_priority_are_taken_off() -> None:
    assert strip_padding(Frame(0, 0x8, 1, b"\x03body\0\0\0")) == b"body"
    assert block_of(Frame(1, 0x28, 1, b"\x01\0\0\0\0\x10block\0")) == b"block"
    for payload in (b"", b"\x05body"):
        with pytest.raises(ConnectionFault):
            strip_padding(Frame(0, 0x8, 1, payload))
    with pytest.raises(ConnectionFault):
        block_of(Frame(1, 0x20, 1, b"\0\0\0\x01\x10block"))  # it depends on itself


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ("000200000002", Code.PROTOCOL_ERROR),
        ("000480000000", Code.FLOW_CONTROL_ERROR),
        ("000500003fff", Code.PROTOCOL_ERROR),
        ("000501000000", Code.PROTOCOL_ERROR),
        ("0005", Code.FRAME_SIZE_ERROR),
    ],
)
def test_settings_out_of_bounds_are_refused(payload: str, code: Code) -> None:
    with pytest.raises(ConnectionFault) as caught:
        list(settings_of(bytes.fromhex(payload)))
    assert caught.value.code is code


def test_settings_that_nobody_knows_are_passed_on() -> None:
    assert list(settings_of(bytes.fromhex("00040000100000ff00000001"))) == [(4, 4096), (255, 1)]
