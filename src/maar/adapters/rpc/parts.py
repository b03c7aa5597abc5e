"""Splits large replies: rows travel in separate messages, each far below the size limit.

The first message is the reply with its first rows, which most often are all; the others are arrays
of rows. Neither side encodes or decodes more than one part at once, so that its event loop stays
responsive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Generic, TypeVar, get_type_hints

import msgspec

from maar.ports.calls import Call

PART_BYTES = 256 << 10  # a part ends with the row that exceeds this

R = TypeVar("R")

_encode = msgspec.msgpack.Encoder().encode


def split(reply: Any, rows: str) -> Iterator[bytes]:
    """The messages of a reply; `rows` names the field that holds them ('': it is nothing else)."""
    parts = _parts(getattr(reply, rows) if rows else reply)
    first = next(parts, [])
    yield _encode(msgspec.structs.replace(reply, **{rows: first}) if rows else first)
    for part in parts:
        yield _encode(part)


def _parts(rows: Iterable[Any]) -> Iterator[list[msgspec.Raw]]:
    part: list[msgspec.Raw] = []
    size = 0
    for row in rows:
        body = _encode(row)
        part.append(msgspec.Raw(body))
        size += len(body)
        if size >= PART_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


class Joined(Generic[R]):
    """A reply that arrives in parts."""

    def __init__(self, asked: type[Call[Any, R]]) -> None:
        self._field, self._decode_head, self._decode_rows = _decoders(asked)
        self._head: R | None = None
        self._rows: list[Any] = []

    def take(self, message: bytes) -> None:
        if self._head is None:
            self._head = self._decode_head(message)
        else:
            self._rows += self._decode_rows(message)

    def reply(self) -> R | None:
        """The reply; None when nothing arrived."""
        head: Any = self._head
        if head is None or not self._rows:
            return self._head
        if not self._field:
            return (*head, *self._rows)  # type: ignore[return-value]
        rows = (*getattr(head, self._field), *self._rows)
        return msgspec.structs.replace(head, **{self._field: rows})  # type: ignore[no-any-return]


@cache
def _decoders(asked: type[Call[Any, Any]]) -> tuple[str, Callable[..., Any], Callable[..., Any]]:
    """The field that holds the rows, and what decodes the first message and the others."""
    assert asked.rows is not None
    whole = asked.reply_type()
    rows = get_type_hints(whole)[asked.rows] if asked.rows else whole
    return asked.rows, msgspec.msgpack.Decoder(whole).decode, msgspec.msgpack.Decoder(rows).decode
