"""What a repair is to look at, and what came of it: verify, copy what is not whole, verify."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from maar.model.ids import BlockId, StoreName
from maar.model.stores import CopyBad, CopyMade
from maar.model.token_range import TokenRange


class RepairType(StrEnum):
    """All copies are read again, range by range; or only what is not yet at all its stores."""

    VNODE = "vnode"
    INCREMENTAL = "incremental"


class RepairOrder(msgspec.Struct, frozen=True, array_like=True):
    """What one session of a repair is about, as it was when the session was made."""

    type: RepairType
    stores: tuple[StoreName, ...] = ()  # whose ranges these are, sorted; of vnode repairs
    ranges: tuple[TokenRange, ...] = ()  # in the order in which they are repaired
    suspects: tuple[BlockId, ...] = ()  # to be looked at first: readers found a copy to be bad
    down: tuple[StoreName, ...] = ()  # nothing is copied there; of incremental repairs


class RepairPart(msgspec.Struct, frozen=True, array_like=True):
    """One task of a session: some of the blocks that came with the lease."""

    tokens: TokenRange | None  # None: of no range
    first: int  # of its blocks among the inputs
    end: int
    empty: tuple[TokenRange, ...] = ()  # more ranges, without blocks: they are done with it


class LeasedRepair(msgspec.Struct, frozen=True, array_like=True):
    """What a worker gets with the lease of a session; all of it is as of the grant."""

    type: RepairType
    stores: tuple[StoreName, ...]
    parts: tuple[RepairPart, ...]
    wanted: tuple[tuple[StoreName, ...], ...]  # the stores that should hold each of the inputs
    suspects: tuple[BlockId, ...] = ()  # a reader found a copy of these damaged or missing
    session_ns: int = 0  # no task begins later than this; 0: all are carried out


class LostBlock(msgspec.Struct, frozen=True, array_like=True):
    """A block of which no copy is whole."""

    block: BlockId
    what: str  # is wrong with each copy, in a sentence


class RangeResult(msgspec.Struct, frozen=True, array_like=True):
    """What came of one task, or of all tasks of a session together."""

    tokens: TokenRange | None = None
    copies: tuple[CopyMade, ...] = ()
    ended: tuple[CopyBad, ...] = ()
    lost: tuple[LostBlock, ...] = ()
    checked: int = 0  # copies that were read
    bytes: int = 0  # that were read for it
    away: tuple[StoreName, ...] = ()  # not reached: then the range is not repaired
    work_ns: int = 0
    ranges: int = 0  # that were repaired, of a session

    @property
    def whole(self) -> bool:
        """Whether every copy was looked at."""
        return not self.away


def add(one: RangeResult, other: RangeResult) -> RangeResult:
    """A session's account with one more task in it; the copies are in the log already."""
    return RangeResult(
        checked=one.checked + other.checked,
        bytes=one.bytes + other.bytes,
        lost=one.lost + other.lost,
        away=tuple(sorted({*one.away, *other.away})),
        work_ns=one.work_ns + other.work_ns,
        ranges=one.ranges + (other.whole and other.tokens is not None),
    )
