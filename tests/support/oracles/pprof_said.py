"""What a pprof says, in bytes: read from the wire by hand, so that no reader of ours judges itself.

Two profiles are equal when these are: ids, the order of samples and entries that nothing refers to
do not count. Text is compared as bytes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, NamedTuple

from support.load.pprof_scramble import fields, varints

WORD = 1 << 64
SIGN = 1 << 63
NAMELESS = (b"", b"", b"", 0)


class Said(NamedTuple):
    samples: Counter[Any]
    header: tuple[Any, ...]


class Message:
    """Fields by number; of a scalar the last counts, and absent is 0."""

    def __init__(self, raw: bytes) -> None:
        self._found: dict[int, list[Any]] = defaultdict(list)
        for number, _, value in fields(raw):
            self._found[number].append(value)

    def many(self, number: int) -> list[Any]:
        return self._found[number]

    def one(self, number: int) -> int:
        return int(self._found[number][-1]) if self._found[number] else 0

    def int_at(self, number: int) -> int:
        return _to_signed(self.one(number))

    def messages(self, number: int) -> list[Message]:
        return [Message(raw) for raw in self._found[number]]

    def numbers(self, number: int) -> list[int]:
        """A repeated number, packed or not."""
        found: list[int] = []
        for value in self._found[number]:
            found += varints(value) if isinstance(value, bytes) else [value]
        return found


def parse(raw: bytes) -> Said:
    """An uncompressed pprof as protobuf writes it."""
    profile = Message(raw)
    text: list[bytes] = profile.many(6)
    functions = {
        each.one(1): (text[each.one(2)], text[each.one(3)], text[each.one(4)], each.int_at(5))
        for each in profile.messages(5)
    }
    mappings = {each.one(1): each for each in profile.messages(3)}
    frames = {each.one(1): _frame(each, functions, mappings, text) for each in profile.messages(4)}
    samples = Counter(
        (
            tuple(frames[location] for location in sample.numbers(1)),
            tuple(map(_to_signed, sample.numbers(2))),
            tuple(sorted(_label(label, text) for label in sample.messages(3))),
        )
        for sample in profile.messages(2)
    )
    header = (
        [_pair(kind, text) for kind in profile.messages(1)],
        [_pair(kind, text) for kind in profile.messages(11)] or [(b"", b"")],
        [text[index] for index in profile.numbers(13)],
        *(text[profile.one(number)] for number in (7, 8, 14, 15)),
        *(profile.int_at(number) for number in (9, 10, 12)),
    )
    return Said(samples, header)


def _frame(
    location: Message,
    functions: dict[int, tuple[Any, ...]],
    mappings: dict[int, Message],
    text: list[bytes],
) -> tuple[Any, ...]:
    """A frame with a symbol and without mapping has no address that means anything elsewhere."""
    lines = tuple(
        (functions.get(line.one(1), NAMELESS), line.int_at(2), line.int_at(3))
        for line in location.messages(4)
    )
    folded = bool(location.one(5))
    if location.one(2):
        mapping = mappings[location.one(2)]
        within = (location.one(3) - mapping.one(2) + mapping.one(4)) % WORD
        return lines, (text[mapping.one(5)], text[mapping.one(6)]), within, folded
    named = any(function != NAMELESS for function, _, _ in lines)
    return lines, None, None if named else location.one(3), folded


def _label(label: Message, text: list[bytes]) -> tuple[bytes, bytes, int, bytes]:
    return text[label.one(1)], text[label.one(2)], label.int_at(3), text[label.one(4)]


def _pair(kind: Message, text: list[bytes]) -> tuple[bytes, bytes]:
    return text[kind.one(1)], text[kind.one(2)]


def _to_signed(value: int) -> int:
    return value - WORD if value >= SIGN else value
