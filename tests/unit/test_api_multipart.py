"""Forms are read exactly or refused; hostile ones cost no more than their bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maar.api.push.multipart import parse_form
from maar.model.errors import InvalidInput

TYPE = "multipart/form-data; boundary=xyz"


def form(*parts: tuple[str, bytes], boundary: bytes = b"xyz") -> bytes:
    body = b"".join(
        b'--%b\r\nContent-Disposition: form-data; name="%b"; filename="f"\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n%b\r\n" % (boundary, name.encode(), content)
        for name, content in parts
    )
    return body + b"--%b--\r\n" % boundary


def test_fields_come_out_as_they_went_in() -> None:
    content = bytes(range(256)) + b"\r\n--xy\r\n\r\n"
    assert parse_form(TYPE, form(("profile", content), ("b", b""))) == {
        "profile": content,
        "b": b"",
    }


def test_a_boundary_may_be_quoted_and_a_preamble_is_skipped() -> None:
    body = b"hello\r\n" + form(("a", b"1"), boundary=b"x y")
    assert parse_form('multipart/form-data; Boundary="x y"', body) == {"a": b"1"}


@pytest.mark.parametrize(
    ("content_type", "body", "words"),
    [
        ("multipart/form-data", form(("a", b"")), "no boundary"),
        (TYPE, b"nothing", "does not occur"),
        (TYPE, form(("a", b"1"))[:-9], "cut off"),
        (TYPE, form(("a", b"1"), ("a", b"2")), "twice"),
        (TYPE, form(*((f"f{n}", b"") for n in range(20))), "more than 16 parts"),
        (TYPE, b"--xyz\r\nContent-Disposition: form-data\r\n\r\n1\r\n--xyz--", "no name"),
        (TYPE, b"--xyz\r\nX: " + b"y" * 9000 + b"\r\n\r\n1\r\n--xyz--", "no header"),
        (TYPE, b"--xyz junk\r\n\r\n1\r\n--xyz--", "something else"),
    ],
)
def test_what_is_not_a_form_is_refused(content_type: str, body: bytes, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        parse_form(content_type, body)


@given(st.binary(max_size=200), st.binary(max_size=50))
def test_any_content_without_the_boundary_survives(content: bytes, other: bytes) -> None:
    if b"--xyz" in content or b"--xyz" in other:
        return
    assert parse_form(TYPE, form(("a", content), ("b", other))) == {"a": content, "b": other}


@given(st.binary(max_size=300))
def test_no_bytes_do_anything_but_parse_or_be_refused(body: bytes) -> None:
    try:
        parse_form(TYPE, b"--xyz\r\n" + body)
    except InvalidInput:
        pass
