"""Profiles for a load: made once, then dated anew for every push at the cost of a few bytes."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from random import Random

from google.protobuf.message import DecodeError

from maar.model.errors import MalformedProfile
from maar.pprof.encode import encode
from maar.pprof.gzip import gunzip
from maar.pprof.plain import PlainFunction, PlainLine, PlainLocation, PlainProfile, PlainSample
from maar.pprof.schema import Profile

RAW_BYTES_MAX = 64 << 20
PERIOD_NS = 10_000_000
DEPTH = 24
FUNCTIONS_PER_SAMPLE = 3

_GZIP_HEAD = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
_TIME_FIELD = b"\x48"  # time_nanos, number 9, a varint
_LAST_STORED = b"\x01"  # deflate's last block, its bytes as they are
_PARTS = ("han", "dle", "par", "se", "in", "dex", "que", "ry", "ca", "che", "mer", "ge", "lo", "ck")


@dataclass(frozen=True, slots=True)
class Template:
    """An undated profile, compressed but for its end, where the time goes."""

    deflated: bytes
    checksum: int  # CRC-32 of the undated profile
    raw_size: int
    total: int  # of the values of the first type

    def with_time(self, time_ns: int) -> bytes:
        """The gzip of the profile with this time: one member, as an agent would send it."""
        field = _TIME_FIELD + _varint(time_ns)
        size = len(field).to_bytes(2, "little")
        inverse = (len(field) ^ 0xFFFF).to_bytes(2, "little")
        checksum = zlib.crc32(field, self.checksum).to_bytes(4, "little")
        raw_size = (self.raw_size + len(field)).to_bytes(4, "little")
        return b"".join(
            (_GZIP_HEAD, self.deflated, _LAST_STORED, size, inverse, field, checksum, raw_size)
        )


def template_of(pprof: bytes) -> Template:
    """From a profile, gzip or not; whatever date it has is dropped."""
    raw = gunzip(pprof, limit=RAW_BYTES_MAX)
    try:
        message = Profile.FromString(raw)
    except DecodeError:
        raise MalformedProfile("its bytes are not those of a pprof") from None
    message.ClearField("time_nanos")
    undated = bytes(message.SerializeToString(deterministic=True))
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    deflated = packer.compress(undated) + packer.flush(zlib.Z_SYNC_FLUSH)
    total = sum(sample.value[0] for sample in message.sample)
    return Template(deflated, zlib.crc32(undated), len(undated), total)


def synthetic(seed: int, *, samples: int) -> Template:
    """A CPU profile with the proportions of a real one; another seed is another program."""
    chance = Random(seed)
    rows = range(max(DEPTH, samples * FUNCTIONS_PER_SAMPLE))
    spine = chance.sample(rows, DEPTH - DEPTH // 3)
    return template_of(
        encode(
            PlainProfile(
                sample_types=[("cpu", "nanoseconds")],
                samples=[
                    PlainSample(
                        chance.choices(rows, k=DEPTH // 3) + spine,
                        (PERIOD_NS * chance.randrange(1, 60),),
                    )
                    for _ in range(samples)
                ],
                locations=[
                    PlainLocation(lines=(PlainLine(row, chance.randrange(1, 3000)),))
                    for row in rows
                ],
                functions=[
                    PlainFunction(
                        f"{''.join(chance.choices(_PARTS, k=5))}_{seed}_{row}",
                        file=f"/srv/app/{chance.choice(_PARTS)}_{row % 97}.py",
                        start_line=chance.randrange(2000),
                    )
                    for row in rows
                ],
                period_type=("cpu", "nanoseconds"),
                period=PERIOD_NS,
                duration_ns=10 * 1_000_000_000,
            )
        )
    )


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
