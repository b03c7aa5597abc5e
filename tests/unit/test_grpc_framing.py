"""gRPC's framing: one message with its length before it, a time limit, a status behind it."""

from __future__ import annotations

import base64
from itertools import pairwise

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maar.api.errors import Unimplemented
from maar.api.protocol.grpc import (
    CODES,
    PIECES_MAX,
    Framing,
    framing_of,
    message_in,
    timeout_s_of,
    trailers_of,
)
from maar.model.errors import InvalidInput, NotFound, Overloaded

GRPC = Framing("application/grpc", web=False, text=False, json=False)
TEXT = Framing("application/grpc-web-text", web=True, text=True, json=False)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("application/grpc", (False, False, False)),
        ("application/grpc+proto", (False, False, False)),
        ("application/grpc+json", (False, False, True)),
        ("application/grpc-web", (True, False, False)),
        ("application/grpc-web-text+proto", (True, True, False)),
        ("application/grpc+thrift", None),
        ("application/grpcx", None),
        ("application/proto", None),
    ],
)
def test_the_content_type_says_how_a_client_speaks(
    kind: str, said: tuple[bool, bool, bool] | None
) -> None:
    framing = framing_of(kind)
    assert (None if framing is None else (framing.web, framing.text, framing.json)) == said


@given(st.binary(max_size=100), st.lists(st.integers(0, 105), max_size=4))
def test_a_message_comes_out_as_it_went_in_however_its_base64_is_cut(
    payload: bytes, cuts: list[int]
) -> None:
    body = b"\0" + len(payload).to_bytes(4, "big") + payload
    assert message_in(GRPC, body, encoding="") == payload
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    pieces = [body[at:upto] for at, upto in pairwise(edges)]
    assert message_in(TEXT, b"".join(map(base64.b64encode, pieces)), encoding="") == payload


@pytest.mark.parametrize("body", [b"", b"\0\0\0\0", b"\0\0\0\0\2x", b"\0\0\0\0\1xy"])
def test_anything_but_one_whole_message_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        message_in(GRPC, body, encoding="")


def test_only_gzip_is_unpacked() -> None:
    packed = b"\1\0\0\0\1x"
    assert message_in(GRPC, packed, encoding="gzip") == b"x"
    for encoding in ("", "identity", "snappy"):
        with pytest.raises(Unimplemented, match="use gzip"):
            message_in(GRPC, packed, encoding=encoding)


def test_base64_in_crumbs_is_refused_before_it_is_taken_apart() -> None:
    """A body of 64 MiB would be twenty million pieces, a gigabyte of them."""
    crumbs = b"AA==" * (PIECES_MAX + 1) + b"\xff"  # which would be refused for itself
    with pytest.raises(InvalidInput, match=f"more than {PIECES_MAX} pieces"):
        message_in(TEXT, crumbs, encoding="")


def test_what_is_not_base64_is_refused() -> None:
    with pytest.raises(InvalidInput, match="base64"):
        message_in(TEXT, b"\xff\xff\xff\xff", encoding="")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", None), ("1H", 3600), ("2M", 120), ("3S", 3), ("250m", 0.25), ("5u", 5e-6), ("7n", 7e-9)],
)
def test_a_timeout_has_a_unit(text: str, seconds: float | None) -> None:
    assert timeout_s_of(text) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("text", ["1", "H", "-1S", "1.5S", "1x", "123456789S", "\u0661S"])
def test_a_timeout_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="grpc-timeout"):
        timeout_s_of(text)


def test_a_status_is_printable_and_says_when_to_come_again() -> None:
    trailers = dict(trailers_of(Overloaded("50 % full\nschön", retry_after_s=2.5)))
    assert trailers[b"grpc-status"] == b"8"
    assert trailers[b"grpc-message"] == b"50 %25 full%0Asch%C3%B6n"
    assert trailers[b"retry-after"] == b"2.500"
    assert b"=" not in trailers[b"grpc-status-details-bin"]
    assert dict(trailers_of(NotFound("gone"))) == {b"grpc-status": b"5", b"grpc-message": b"gone"}


def test_the_codes_are_those_of_the_protocol() -> None:

    numbers = {
        code.name.lower().replace("cancelled", "canceled"): code.value[0]
        for code in grpc.StatusCode
    }
    assert numbers == {"ok": 0, **CODES}
