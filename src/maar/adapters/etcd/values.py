"""The keys of a log in etcd and their values: msgpack with a checksum.

etcd does not detect a flipped bit. Entries have the hash chain; the few small values outside of it
(head, base, leader) have a checksum each.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import msgspec
from msgspec import Struct

from maar.model.errors import Corrupt
from maar.ports.metastore.log import Candidate, Head, Leadership, Record, Term, chain_hash

FORMAT = 1
_CHECKSUM_BYTES = 4

V = TypeVar("V")


class Mark(Struct, frozen=True, array_like=True):
    """The head, or the last entry that was truncated."""

    index: int
    hash: bytes

    @property
    def head(self) -> Head:
        return Head(self.index, self.hash)

    @classmethod
    def of(cls, head: Head) -> Mark:
        return cls(head.index, head.hash)


class Leading(Struct, frozen=True, array_like=True):
    """Who leads; etcd deletes the key when the lease expires."""

    term: int
    name: str
    address: str

    @property
    def leadership(self) -> Leadership:
        return Leadership(Term(self.term), Candidate(self.name, self.address))


class EntryBatch(Struct, frozen=True, array_like=True):
    """What one append wrote; its key names the first entry."""

    term: int
    before: bytes  # the hash of the entry before the first
    hash: bytes  # the hash of the last
    bodies: list[bytes]

    def records(self, first: int) -> list[Record]:
        """Its entries, each of which follows from the one before; Corrupt when one does not."""
        made: list[Record] = []
        term, digest = Term(self.term), self.before
        for index, body in enumerate(self.bodies, start=first):
            digest = chain_hash(digest, index=index, term=term, body=body)
            made.append(Record(index, term, body, digest))
        if not made or digest != self.hash:
            raise Corrupt(
                f"the entries from {first} on are not what was written: their hash does not "
                f"follow from entry {first - 1}"
            )
        return made


@dataclass(frozen=True, slots=True)
class Keys:
    """Every key of one log; several logs may share a cluster."""

    prefix: str

    @property
    def leader(self) -> bytes:
        return self._key("leader")

    @property
    def term(self) -> bytes:
        return self._key("term")

    @property
    def head(self) -> bytes:
        return self._key("head")

    @property
    def base(self) -> bytes:
        return self._key("base")

    @property
    def sealed(self) -> bytes:
        return self._key("sealed")

    @property
    def copying(self) -> bytes:
        return self._key("copying")

    @property
    def format(self) -> bytes:
        return self._key("format")

    @property
    def stirred(self) -> bytes:
        return self._key("stirred")

    def batch(self, first: int) -> bytes:
        return self._key(f"log/{max(first, 0):020d}")

    @staticmethod
    def first_of(key: bytes) -> int:
        """The index that a batch's key names."""
        try:
            return int(key.rpartition(b"/")[2])
        except ValueError as error:
            raise Corrupt(f"{key!r} is not a key of a log's entries") from error

    def _key(self, name: str) -> bytes:
        return f"{self.prefix.rstrip('/')}/{name}".encode()


def pack(value: object) -> bytes:
    body = msgspec.msgpack.encode(value)
    return zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") + body


def unpack(value: bytes, kind: type[V], *, key: bytes) -> V:
    body = value[_CHECKSUM_BYTES:]
    if zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") != value[:_CHECKSUM_BYTES]:
        raise Corrupt(f"the value of {key.decode(errors='replace')} is not what was written")
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise Corrupt(
            f"the value of {key.decode(errors='replace')} cannot be read: {error}"
        ) from error


def batches(before: Head, records: Sequence[Record]) -> Iterator[tuple[int, EntryBatch]]:
    """Records as they are stored, with the index of each batch's first: one term a batch."""
    digest = before.hash
    for term, run in groupby(records, key=lambda record: record.term):
        some = list(run)
        yield (
            some[0].index,
            EntryBatch(term, digest, some[-1].hash, [record.body for record in some]),
        )
        digest = some[-1].hash
