"""The log: an ordered, durable, fenced sequence of entries. Its limits are the port's (S12)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

import msgspec

from maar.model.errors import Corrupt, TooLarge

ENTRY_BYTES_MAX = 512 << 10
BATCH_BYTES_MAX = 1 << 20
BATCH_ENTRIES_MAX = 4_096
GENESIS_HASH = b"\0" * 32

Term = NewType("Term", int)


class Head(msgspec.Struct, frozen=True, gc=False):
    """The last entry: its index (0 when the log is empty) and its hash."""

    index: int
    hash: bytes


EMPTY = Head(0, GENESIS_HASH)


class Record(msgspec.Struct, frozen=True, gc=False):
    """An entry as it is stored."""

    index: int
    term: Term
    body: bytes
    hash: bytes


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate for leadership: its name, and where others reach it ('' when none has to)."""

    name: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who leads, and since which term."""

    term: Term
    holder: Candidate


def chain_hash(previous: bytes, *, index: int, term: Term, body: bytes) -> bytes:
    """The hash of an entry, which covers all entries before it."""
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
    if len(bodies) > BATCH_ENTRIES_MAX:
        raise TooLarge(
            f"a batch of {len(bodies)} entries is over the {BATCH_ENTRIES_MAX} that the log takes "
            "at once; append it in parts"
        )
    total = sum(map(len, bodies))
    if total > BATCH_BYTES_MAX:
        raise TooLarge(
            f"a batch of {total} bytes is over the {BATCH_BYTES_MAX} that the log takes at once; "
            "append it in parts"
        )


def in_batches(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    """As many as a log takes at once."""
    batch: list[bytes] = []
    size = 0
    for body in bodies:
        if batch and (size + len(body) > BATCH_BYTES_MAX or len(batch) >= BATCH_ENTRIES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += len(body)
    if batch:
        yield batch


def follow(head: Head, bodies: Sequence[bytes], term: Term) -> list[Record]:
    """The records that an append after `head` makes."""
    records: list[Record] = []
    for body in bodies:
        index = head.index + 1
        head = Head(index, chain_hash(head.hash, index=index, term=term, body=body))
        records.append(Record(index, term, body, head.hash))
    return records


def verify(head: Head, records: Sequence[Record]) -> Head:
    """The head after these records, or Corrupt when one does not follow from the one before."""
    index, hash_ = head.index, head.hash
    for record in records:
        if record.index != index + 1:
            raise Corrupt(f"entry {record.index} of the log follows {index}: entries are lost")
        hash_ = chain_hash(hash_, index=record.index, term=record.term, body=record.body)
        if record.hash != hash_:
            raise Corrupt(
                f"entry {record.index} of the log is not what was written: its hash does not "
                f"follow from entry {index}"
            )
        index = record.index
    return Head(index, hash_)


class Log(Protocol):
    """Errors: HeadMoved, TermLost, TooLarge, StoreFull, Unavailable, OutcomeUnknown, Corrupt.

    Rejected when the log was sealed, is being copied into, or was opened for reading only.
    """

    async def campaign(self, candidate: Candidate) -> Term:
        """Wait for leadership, however long; the returned term is greater than all before."""
        ...

    def hold(self, term: Term) -> None:
        """Report that the apply loop makes progress: only then is leadership renewed (S15).

        Call it at least every second. TermLost once leadership may have been lost, by a clock that
        runs on while the process is stopped: another replica may lead by then.
        """
        ...

    async def resign(self, term: Term) -> None:
        """Resign, so that the next leader need not wait; does nothing when the term is over."""
        ...

    async def leadership(self) -> Leadership | None:
        """Who leads now; None while nobody does. Linearizable."""
        ...

    async def append(
        self, bodies: Sequence[bytes], *, term: Term, head: Head, reserve: bool = False
    ) -> Head:
        """Add entries in one atomic, durable step, if `head` is the head and `term` leads.

        StoreFull well before there is no room at all: `reserve` may use what is left then. It is
        for the few small entries without which no snapshot would let old ones go.
        """
        ...

    async def read(self, *, after: int, limit_bytes: int = BATCH_BYTES_MAX) -> list[Record]:
        """The entries behind an index, contiguous, as many as fit (but at least one).

        The hash chain has been checked. NotFound when the next one was truncated.
        """
        ...

    async def wait_change(self, *, after: int) -> None:
        """Return when there may be entries behind an index, or after a while; only a hint."""
        ...

    async def head(self) -> Head:
        """The head now; linearizable."""
        ...

    async def first(self) -> int:
        """The index of the oldest entry that is still there (0 when empty)."""
        ...

    async def truncate(self, *, before: int, term: Term) -> None:
        """Delete the entries below an index, if `term` still leads."""
        ...

    async def seal(self, note: str) -> None:
        """Let nobody ever campaign or append again; `note` says where the log lives now (S5).

        Rejected while somebody leads. Sealing it again has no effect.
        """
        ...

    async def seal_note(self) -> str:
        """Where the log lives now, as it was sealed with; '' when it was not."""
        ...

    async def close(self) -> None: ...


class LogCopy(Protocol):
    """Filling an empty log with what another one held. Until `finish`, nobody can lead in it."""

    async def begin(self, base: Head, *, term: Term) -> Head:
        """Start behind `base`, with terms above `term`; the head so far.

        A copy that was interrupted goes on if it began with the same base. Rejected when the log
        holds anything else, or somebody leads in it; that somebody did, and wrote nothing, is no
        harm: whoever is refused by the store that it was to use has led, too.
        """
        ...

    async def add(self, records: Sequence[Record]) -> Head:
        """Records as they were, with their terms and hashes; they must follow the head."""
        ...

    async def finish(self) -> None: ...
