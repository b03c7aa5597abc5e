"""Hashes of sets that cost the same for every change, whatever the size of the set."""

from __future__ import annotations

import hashlib

import msgspec

_MODULUS = 1 << 128
_encode = msgspec.msgpack.Encoder().encode


def mark(parts: object) -> int:
    """128 bits that stand for one member."""
    return int.from_bytes(hashlib.sha256(_encode(parts)).digest()[:16], "big")


def with_mark(total: int, parts: object) -> int:
    """The sum of a set after a member came; the order of coming does not matter."""
    return (total + mark(parts)) % _MODULUS


def without_mark(total: int, parts: object) -> int:
    return (total - mark(parts)) % _MODULUS
