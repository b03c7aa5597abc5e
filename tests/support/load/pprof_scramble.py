"""Random profiles, and other spellings of the same profile that protobuf must read alike."""

from __future__ import annotations

from random import Random

from maar.pprof.columns import NONE
from maar.pprof.plain import (
    PlainFunction,
    PlainLabel,
    PlainLine,
    PlainLocation,
    PlainMapping,
    PlainProfile,
    PlainSample,
)
from maar.pprof.schema import Profile

INT64_MAX = (1 << 63) - 1
UINT64 = (1 << 64) - 1

Field = tuple[int, int, int | bytes]  # number, wire type, value

_PACKED = {"Profile": {13}, "Sample": {1, 2}}
_NESTED = {
    "Profile": {1: "ValueType", 2: "Sample", 3: "Mapping", 4: "Location", 5: "Function"}
    | {11: "ValueType"},
    "Sample": {3: "Label"},
    "Location": {4: "Line"},
}
_REPEATED = {"Profile": {1, 2, 3, 4, 5, 6, 13}, "Sample": {1, 2, 3}, "Location": {4}}
_KNOWN = {"Profile": 15, "Sample": 3, "Location": 5}


def random_profile(random: Random, *, size: int = 6) -> PlainProfile:
    """A valid profile, with extreme numbers and odd strings in it."""

    def text() -> str:
        return random.choice(("", "a", "main", "naïve", "\x00", "日本", f"f{random.randrange(50)}"))

    def random_int() -> int:
        return random.choice(
            (0, 1, -1, 127, 128, INT64_MAX, -INT64_MAX - 1, random.getrandbits(40))
        )

    def some(limit: int) -> range:
        return range(random.randrange(limit))

    def row(count: int) -> int:
        return random.randrange(-1, count) if count else NONE

    types = [(text(), text()) for _ in range(random.randrange(1, 4))]
    mappings = [
        PlainMapping(
            random.getrandbits(64),
            random.getrandbits(64),
            random.getrandbits(20),
            text(),
            text(),
            *(random.random() < 0.5 for _ in range(4)),
        )
        for _ in some(3)
    ]
    functions = [PlainFunction(text(), text(), text(), random_int()) for _ in some(size)]
    locations = [
        PlainLocation(
            row(len(mappings)),
            random.choice((0, 1, UINT64, random.getrandbits(48))),
            tuple(PlainLine(row(len(functions)), random_int(), random_int()) for _ in some(4)),
            random.random() < 0.2,
        )
        for _ in some(size)
    ]
    return PlainProfile(
        sample_types=types,
        samples=[
            PlainSample(
                tuple(random.choices(range(len(locations)), k=len(some(8))) if locations else ()),
                tuple(random_int() for _ in types),
                tuple(PlainLabel(text(), text(), random_int(), text()) for _ in some(3)),
            )
            for _ in some(size)
        ],
        mappings=mappings,
        locations=locations,
        functions=functions,
        drop_frames=text(),
        keep_frames=text(),
        time_ns=random.getrandbits(60),
        duration_ns=random.getrandbits(40),
        period_type=(text(), text()),
        period=random_int(),
        comments=[text() for _ in some(4)],
        default_sample_type=text(),
        doc_url=text(),
    )


def renumber(raw: bytes, random: Random) -> bytes:
    """The same profile with ids far apart, in no order."""
    message = Profile.FromString(raw)
    locations, functions, mappings = (
        {entry.id: new for entry, new in zip(table, _ids(random, len(table)), strict=True)}
        for table in (message.location, message.function, message.mapping)
    )
    for sample in message.sample:
        sample.location_id[:] = [locations[ref] for ref in sample.location_id]
    for location in message.location:
        location.id = locations[location.id]
        location.mapping_id = mappings.get(location.mapping_id, 0)
        for line in location.line:
            line.function_id = functions.get(line.function_id, 0)
    for function in message.function:
        function.id = functions[function.id]
    for mapping in message.mapping:
        mapping.id = mappings[mapping.id]
    return bytes(message.SerializeToString())


def _ids(random: Random, count: int) -> list[int]:
    bits = random.choice((8, 20, 64))
    found: dict[int, None] = {}
    while len(found) < count:
        found[random.getrandbits(bits) or 1] = None
    return list(found)


def scramble(raw: bytes, random: Random, message: str = "Profile") -> bytes:
    """The same message in another spelling.

    Unpacked or split repeated fields, other orders of fields, overlong varints, unknown fields,
    scalars given twice, the period type in two parts.
    """
    by_number: dict[int, list[Field]] = {}
    for number, wire, value in fields(raw):
        for field in _respell(random, message, number, wire, value):
            by_number.setdefault(number, []).append(field)
    out = bytearray()
    while by_number:  # any order between fields, the given order within one
        number = random.choice(tuple(by_number))
        _emit(out, random, by_number[number].pop(0))
        if not by_number[number]:
            del by_number[number]
        if random.random() < 0.02:
            _emit(out, random, _unknown(random, message))
    return bytes(out)


def _respell(
    random: Random, message: str, number: int, wire: int, value: int | bytes
) -> list[Field]:
    nested = _NESTED.get(message, {}).get(number)
    if isinstance(value, bytes) and nested is not None:
        if number == 11 and random.random() < 0.5:
            return [(11, 2, _one(random, field)) for field in fields(value)] or [(11, 2, b"")]
        return [(number, 2, scramble(value, random, nested))]
    if isinstance(value, bytes) and number in _PACKED.get(message, ()):
        numbers = varints(value)
        if random.random() < 0.4:
            return [(number, 0, each) for each in numbers]
        cut = random.randrange(len(numbers) + 1)
        return [
            (number, 2, b"".join(_varint(each, random, 10) for each in part))
            for part in (numbers[:cut], numbers[cut:])
        ]
    if number not in _REPEATED.get(message, ()) and random.random() < 0.05:
        return [(number, wire, 0), (number, wire, value)]
    return [(number, wire, value)]


def _one(random: Random, field: Field) -> bytes:
    out = bytearray()
    _emit(out, random, field)
    return bytes(out)


def _unknown(random: Random, message: str) -> Field:
    number = random.choice((_KNOWN.get(message, 10) + 1, 100, (1 << 29) - 1))
    wire = random.choice((0, 1, 2, 5))
    if wire == 0:
        return number, 0, random.getrandbits(64)
    return number, wire, random.randbytes({1: 8, 2: random.randrange(9), 5: 4}[wire])


def _emit(out: bytearray, random: Random, field: Field) -> None:
    number, wire, value = field
    out += _varint(number << 3 | wire, random, 5)
    if isinstance(value, int):
        out += _varint(value, random, 10)
    else:
        if wire == 2:
            out += _varint(len(value), random, 5)
        out += value


def _varint(value: int, random: Random, longest: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    if random.random() < 0.02:  # longer than needed, as protobuf allows
        while len(out) < random.randrange(1, longest + 1):
            out[-1] |= 0x80
            out.append(0)
    return bytes(out)


def fields(raw: bytes) -> list[Field]:
    """The fields of a message that protobuf wrote: varints and length-delimited ones only."""
    found: list[Field] = []
    pos = 0
    while pos < len(raw):
        key, pos = _read(raw, pos)
        value, pos = _read(raw, pos)
        if key & 7 == 2:
            found.append((key >> 3, 2, raw[pos : pos + value]))
            pos += value
        else:
            found.append((key >> 3, 0, value))
    return found


def varints(raw: bytes) -> list[int]:
    found, pos = [], 0
    while pos < len(raw):
        value, pos = _read(raw, pos)
        found.append(value)
    return found


def _read(raw: bytes, pos: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, pos


def mutate(raw: bytes, random: Random) -> bytes:
    """Damage a few bytes: flips, cuts, copies and extreme numbers."""
    out = bytearray(raw)
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        at = random.randrange(len(out) + 1)
        match random.randrange(6):
            case 0 if at < len(out):
                out[at] ^= 1 << random.randrange(8)
            case 1 if at < len(out):
                out[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
            case 2:
                del out[at : at + random.choice((1, 1, 2, 40))]
            case 3:
                out[at:at] = random.choice((b"\xff" * 9 + b"\x01", b"\x80" * 11, b"\x00", b"\x7f"))
            case 4:
                start = random.randrange(len(out) + 1)
                out[at:at] = out[start : start + random.randrange(40)]
            case _:
                del out[at:]
    return bytes(out)
