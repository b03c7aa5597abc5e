"""Dead letters for operators: segments that the index has not taken yet."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

import msgspec

from maar.model.block import BlockMeta
from maar.model.ids import BlockId
from maar.ports.calls import Call
from maar.ports.metastore.call import MetastoreCall


class LettersStatus(msgspec.Struct, frozen=True):
    """Dead letters in numbers, as the leader saw them last (S20)."""

    waiting: int = 0  # to be delivered
    oldest_s: float = 0.0  # the age of the oldest of them
    held: int = 0  # cannot be delivered: an operator must look
    foreign: int = 0  # of other incarnations of the log: left alone
    delivered: int = 0  # by this leader
    drained_s: float = -1.0  # since the last complete scan began; -1: there was none yet
    trouble: str = ""  # why the scan fails


class Letter(msgspec.Struct, frozen=True):
    """A dead letter, for people."""

    name: str  # the block's id; or the object's name, when it is not a letter's
    key: str
    standing: str  # waiting, held, foreign
    cause: str  # why it is held, or waits; '' when it is about to be delivered
    size: int
    meta: BlockMeta | None = None  # None: it cannot be read, or is of another log


class LettersPage(msgspec.Struct, frozen=True):
    """Held ones first, then those that wait, then those of other logs."""

    status: LettersStatus
    letters: tuple[Letter, ...]
    more: bool  # than are listed


class LetterRetried(msgspec.Struct, frozen=True):
    """A held letter was delivered after all."""

    name: str
    block: BlockId  # in the index by now
    rewritten: bool  # below the floor: its segment was written again, and is another block


class LetterOperator(Protocol):
    """Answered by the leader, which delivers them."""

    async def letters(self, *, limit: int = 100) -> LettersPage:
        """Dead letters, held ones first."""
        ...

    async def letter(self, name: str) -> Letter:
        """One dead letter of this log, or NotFound."""
        ...

    async def retry_letter(self, name: str) -> LetterRetried:
        """Deliver a held letter after all; else Rejected with the cause, and it stays."""
        ...


class ListLetters(MetastoreCall[LetterOperator, LettersPage], frozen=True):
    """Held ones first."""

    limit: int = 100

    def answer(self, port: LetterOperator) -> Awaitable[LettersPage]:
        return port.letters(limit=self.limit)


class GetLetter(MetastoreCall[LetterOperator, Letter], frozen=True):
    """One of this log."""

    name: str

    def answer(self, port: LetterOperator) -> Awaitable[Letter]:
        return port.letter(self.name)


class RetryLetter(MetastoreCall[LetterOperator, LetterRetried], frozen=True):
    """Deliver a held one after all."""

    name: str

    def answer(self, port: LetterOperator) -> Awaitable[LetterRetried]:
        return port.retry_letter(self.name)


CALLS: tuple[type[Call[LetterOperator, Any]], ...] = (
    ListLetters,
    GetLetter,
    RetryLetter,
)
