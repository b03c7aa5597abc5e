"""The log: an ordered, durable, fenced sequence of entries. Its limits are the port's (S12)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

from maar.model.errors import Corrupt, TooLarge

ENTRY_BYTES_MAX = 512 << 10
BATCH_BYTES_MAX = 1 << 20
GENESIS_HASH = b"\0" * 32

Term = NewType("Term", int)


@dataclass(frozen=True, slots=True)
class Head:
    """The last entry: its index (0 when the log is empty) and its hash."""

    index: int
    hash: bytes


EMPTY = Head(0, GENESIS_HASH)


@dataclass(frozen=True, slots=True)
class Record:
    """An entry as it is stored."""

    index: int
    term: Term
    body: bytes
    hash: bytes


def chained(previous: bytes, *, index: int, term: Term, body: bytes) -> bytes:
    """The hash of an entry, which vouches for all entries before it."""
    digest = hashlib.sha256(previous)
    digest.update(index.to_bytes(8, "big") + term.to_bytes(8, "big"))
    digest.update(body)
    return digest.digest()


def check_limits(bodies: Sequence[bytes]) -> None:
    """Every adapter refuses the same entries and batches."""
    for body in bodies:
        if len(body) > ENTRY_BYTES_MAX:
            raise TooLarge(
                f"an entry of {len(body)} bytes is over the {ENTRY_BYTES_MAX} that the log takes; "
                "keep its bytes as an object and its key and hash in the entry"
            )
    total = sum(map(len, bodies))
    if total > BATCH_BYTES_MAX:
        raise TooLarge(
            f"a batch of {total} bytes is over the {BATCH_BYTES_MAX} that the log takes at once; "
            "append it in parts"
        )


def follow(head: Head, bodies: Sequence[bytes], term: Term) -> list[Record]:
    """The records that an append after `head` makes."""
    records: list[Record] = []
    for body in bodies:
        index = head.index + 1
        head = Head(index, chained(head.hash, index=index, term=term, body=body))
        records.append(Record(index, term, body, head.hash))
    return records


def verify(head: Head, records: Sequence[Record]) -> Head:
    """The head after these records, or Corrupt when one does not follow from the one before."""
    for record in records:
        expected = chained(head.hash, index=record.index, term=record.term, body=record.body)
        if record.index != head.index + 1:
            raise Corrupt(f"entry {record.index} of the log follows {head.index}: entries are lost")
        if record.hash != expected:
            raise Corrupt(
                f"entry {record.index} of the log is not what was written: its hash does not "
                f"follow from entry {head.index}"
            )
        head = Head(record.index, record.hash)
    return head


class Log(Protocol):
    """Errors: HeadMoved, TermLost, TooLarge, StoreFull, Unavailable, OutcomeUnknown, Corrupt."""

    async def campaign(self, candidate: str) -> Term:
        """Wait for leadership; the returned term is greater than all before."""
        ...

    async def append(self, bodies: Sequence[bytes], *, term: Term, head: Head) -> Head:
        """Add entries in one atomic, durable step, if `head` is the head and `term` leads."""
        ...

    async def read(self, *, after: int, limit_bytes: int = BATCH_BYTES_MAX) -> list[Record]:
        """The entries behind an index, contiguous, as many as fit (but at least one).

        The hash chain has been checked. NotFound when the next one was truncated.
        """
        ...

    async def head(self) -> Head:
        """The head now; linearizable."""
        ...

    async def first(self) -> int:
        """The index of the oldest entry that is still there (0 when empty)."""
        ...

    async def truncate(self, *, before: int, term: Term) -> None:
        """Forget the entries below an index, if `term` still leads."""
        ...

    async def close(self) -> None: ...
