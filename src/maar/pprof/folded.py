"""Folded stacks, as text, to a pprof: root first and frames between semicolons.

    main;work;hash 12        groups: a stack and its count, split at the last space
    main;work;hash           lines: a stack, counted as often as it stands there

Text formats do not say what they count; the suffix of the application's name does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from maar.model.errors import InvalidInput, TooLarge

STACKS_MAX = 1_000_000
DEPTH_MAX = 4_096
SYMBOL_LENGTH_MAX = 65_535

_COUNT = re.compile(rb"[0-9]{1,19}")
_VALUE_MAX = (1 << 63) - 1
_UNSIGNED = (1 << 64) - 1
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class FoldedType:
    """What a count in the text means. A timed one counts ticks and is stored as nanoseconds."""

    name: str  # becomes __name__
    sample_type: str
    sample_unit: str
    period_type: str
    period_unit: str
    timed: bool = False

    def period(self, sample_rate: int) -> int:
        """Nanoseconds of a tick, or 0 when the counts are not of ticks."""
        return _SECOND_NS // sample_rate if self.timed else 0


def _memory(sample_type: str, unit: str) -> FoldedType:
    return FoldedType("memory", sample_type, unit, "space", "bytes")


def _contention(name: str, sample_type: str, unit: str) -> FoldedType:
    return FoldedType(name, sample_type, unit, "contentions", "count")


CPU = FoldedType("process_cpu", "cpu", "nanoseconds", "cpu", "nanoseconds", timed=True)

TYPES: dict[str, FoldedType] = {
    "cpu": CPU,
    "itimer": CPU,
    "wall": FoldedType("wall", "wall", "nanoseconds", "wall", "nanoseconds", timed=True),
    "inuse_objects": _memory("inuse_objects", "count"),
    "inuse_space": _memory("inuse_space", "bytes"),
    "alloc_objects": _memory("alloc_objects", "count"),
    "alloc_space": _memory("alloc_space", "bytes"),
    "alloc_in_new_tlab_objects": _memory("alloc_in_new_tlab_objects", "count"),
    "alloc_in_new_tlab_bytes": _memory("alloc_in_new_tlab_bytes", "bytes"),
    "alloc_outside_tlab_objects": _memory("alloc_outside_tlab_objects", "count"),
    "alloc_outside_tlab_bytes": _memory("alloc_outside_tlab_bytes", "bytes"),
    "live": _memory("live", "count"),
    "goroutines": FoldedType("goroutine", "goroutine", "count", "goroutine", "count"),
    "mutex_count": _contention("mutex", "contentions", "count"),
    "mutex_duration": _contention("mutex", "delay", "nanoseconds"),
    "block_count": _contention("block", "contentions", "count"),
    "block_duration": _contention("block", "delay", "nanoseconds"),
    "lock_count": _contention("block", "contentions", "count"),
    "lock_duration": _contention("block", "delay", "nanoseconds"),
    "exceptions": FoldedType("exceptions", "exceptions", "count", "exceptions", "count"),
}


def type_of_suffix(app_name: str) -> tuple[str, FoldedType]:
    """The application without its suffix, and what the suffix says: `shop.wall`, `shop.cpu`.

    A name without a dot has no suffix and counts cpu ticks.
    """
    app, dot, suffix = app_name.rpartition(".")
    if not dot:
        return app_name, CPU
    if suffix not in TYPES or not app:
        raise InvalidInput(
            f"the application name {app_name[:100]!r} must end in what the text counts: "
            f"one of .{', .'.join(sorted(TYPES))}",
            reason="suffix",
        )
    return app, TYPES[suffix]


def parse_groups(
    text: bytes,
    *,
    kind: FoldedType,
    sample_rate: int = 100,
    time_ns: int = 0,
    duration_ns: int = 0,
    stacks_max: int = STACKS_MAX,
) -> bytes:
    """Lines of `a;b;c 12`; equal stacks are added up. Returns an uncompressed pprof."""
    counts: Counter[bytes] = Counter()
    for number, line in _lines(text):
        stack, _, count = line.rpartition(b" ")
        if not _COUNT.fullmatch(count):
            raise InvalidInput(
                f"line {number} of the folded stacks must end in a space and a whole number, "
                f"but ends in {_excerpt(count)}",
                reason="folded",
            )
        _add(counts, stack.strip(), int(count), number, stacks_max)
    return _pprof(counts, kind, sample_rate, time_ns, duration_ns)


def parse_lines(
    text: bytes,
    *,
    kind: FoldedType,
    sample_rate: int = 100,
    time_ns: int = 0,
    duration_ns: int = 0,
    stacks_max: int = STACKS_MAX,
) -> bytes:
    """Lines of `a;b;c`, each seen once; equal stacks are counted. Returns an uncompressed pprof."""
    counts: Counter[bytes] = Counter()
    for number, line in _lines(text):
        _add(counts, line, 1, number, stacks_max)
    return _pprof(counts, kind, sample_rate, time_ns, duration_ns)


def _lines(text: bytes) -> Iterator[tuple[int, bytes]]:
    """Numbered from 1, without blank ones; found one by one, so that no second copy is held."""
    number, start = 0, 0
    while start < len(text):
        end = text.find(b"\n", start)
        end = len(text) if end < 0 else end
        number += 1
        line = text[start:end].strip()
        if line:
            if not line.isascii():
                _check_utf8(line, number)
            yield number, line
        start = end + 1


def _add(counts: Counter[bytes], stack: bytes, count: int, number: int, stacks_max: int) -> None:
    if not stack:
        raise InvalidInput(f"line {number} of the folded stacks has no stack", reason="folded")
    if stack.count(b";") >= DEPTH_MAX:
        raise TooLarge(f"line {number} of the folded stacks has over {DEPTH_MAX} frames")
    counts[stack] += count
    if len(counts) > stacks_max:
        raise TooLarge(f"the folded stacks have over {stacks_max} different stacks")


def _pprof(
    counts: Counter[bytes], kind: FoldedType, sample_rate: int, time_ns: int, duration_ns: int
) -> bytes:
    """Written as it is on the wire: an object for each stack and each frame would take many times
    the memory of the text.
    """
    if sample_rate <= 0 or sample_rate > _SECOND_NS:
        raise InvalidInput(
            f"a sample rate of {sample_rate} is not allowed: use 1 to {_SECOND_NS} per second",
            reason="sample_rate",
        )
    period = kind.period(sample_rate)
    strings: dict[bytes, int] = {b"": 0}  # in the order of their first use

    def pair(one: str, other: str) -> bytes:
        first, second = (strings.setdefault(each.encode(), len(strings)) for each in (one, other))
        return b"\x08" + _varint(first) + b"\x10" + _varint(second)

    written = bytearray(_field(1, pair(kind.sample_type, kind.sample_unit)))
    ids: dict[bytes, bytes] = {}  # of frames, as they are written
    for stack, count in counts.items():
        written += _field(2, _sample(stack, count * (period or 1), ids))
    for number in ids.values():
        written += _field(4, b"\x08" + number + _field(4, b"\x08" + number))
    for frame, number in ids.items():
        _check_length(frame)
        name = strings.setdefault(frame, len(strings))
        written += _field(5, b"\x08" + number + _number(2, name))
    period_type = pair(kind.period_type, kind.period_unit)
    for text in strings:
        written += _field(6, text)
    written += _number(9, time_ns) + _number(10, duration_ns)
    written += _field(11, period_type) + _number(12, period)
    return bytes(written)


def _sample(stack: bytes, value: int, ids: dict[bytes, bytes]) -> bytes:
    """Leaf first. A location has the number of its function, and frames are both."""
    if value > _VALUE_MAX:
        raise InvalidInput(
            f"the count of stack {_excerpt(stack)} is too large for 64 bits", reason="folded"
        )
    frames = stack.split(b";")
    for frame in frames:
        if frame not in ids:
            ids[frame] = _varint(len(ids) + 1)
    return _field(1, b"".join([ids[frame] for frame in reversed(frames)])) + _field(
        2, _varint(value)
    )


def _field(number: int, content: bytes) -> bytes:
    """A field with a length, as protobuf writes it."""
    return bytes((number << 3 | 2,)) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    """A field with a number; 0 is not written."""
    return bytes((number << 3,)) + _varint(value & _UNSIGNED) if value else b""


def _varint(value: int) -> bytes:
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def _check_length(frame: bytes) -> None:
    if len(frame) > SYMBOL_LENGTH_MAX:
        raise TooLarge(f"a frame of {len(frame)} bytes is over the limit of {SYMBOL_LENGTH_MAX}")


def _check_utf8(line: bytes, number: int) -> None:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"line {number} of the folded stacks is not UTF-8: {ascii(line[:60])[1:]}",
            reason="utf8",
        ) from error


def _excerpt(text: bytes) -> str:
    return ascii(text[:60])[1:]
