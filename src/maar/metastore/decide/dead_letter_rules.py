"""What to do with a dead letter, and how far the registration floor may advance; read-only (S4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

import msgspec

from maar.metastore.fold import registration
from maar.metastore.state.state import NO_FLOOR, MetaState
from maar.model.block import BlockMeta
from maar.model.ids import BlockId, block_time_ns
from maar.model.time import LeaseTime
from maar.ports.stores.object_store import ObjectInfo


class FoundLetter(NamedTuple):
    """A letter as it was read: its metadata, or why it has none that can be trusted."""

    info: ObjectInfo
    name: str
    meta: BlockMeta | None
    trouble: str = ""
    absent: str = ""  # what is wrong with its segment


class Fate(Enum):
    DELIVER = "deliver"  # its block can be added
    DELIVERED = "delivered"  # the index knows its block: the letter may go
    WAITS = "waits"  # its block cannot be added yet
    HELD = "held"  # its block can never be added as it is: an operator must look


class LetterVerdict(NamedTuple):
    fate: Fate
    cause: str = ""


def verdict(state: MetaState, letter: FoundLetter, *, now: LeaseTime) -> LetterVerdict:
    """Decide what to do with a letter.

    Whether the index knows the block is checked first: a block that was merged and deleted since
    needs nothing more.
    """
    if letter.meta is None:
        return LetterVerdict(Fate.HELD, letter.trouble)
    if registration.is_known(state, letter.meta.id):
        return LetterVerdict(Fate.DELIVERED)
    if cause := registration.never(state, letter.meta) or letter.absent:
        return LetterVerdict(Fate.HELD, cause)
    if cause := registration.not_now(state, letter.meta, now=now):
        return LetterVerdict(Fate.WAITS, cause)
    return LetterVerdict(Fate.DELIVER)


def deliverable(
    state: MetaState, letters: Iterable[FoundLetter], *, now: LeaseTime
) -> list[BlockMeta]:
    return [
        letter.meta
        for letter in letters
        if letter.meta is not None and verdict(state, letter, now=now).fate is Fate.DELIVER
    ]


def second_chance(state: MetaState, letter: FoundLetter, *, now: LeaseTime) -> bool:
    """Whether a letter is held only because its block is below the floor: then its profiles may
    come back as another block.
    """
    meta = letter.meta
    return (
        meta is not None
        and not registration.is_known(state, meta.id)
        and not registration.why_malformed(meta)
        and not registration.foreign(state, meta)
        and not letter.absent
        and registration.below_floor(state, meta.id)
        and not registration.not_now(state, meta, now=now)
    )


def has_deletions_since(state: MetaState, meta: BlockMeta) -> bool:
    """Whether some of its profiles were deleted after it was written: as another block, which is
    named anew, they would come back (S8).
    """
    return any(
        any(map(each.mask.touches, meta.datasets)) and each.is_after(meta, entry=None)
        for each in state.predicates.values()
    )


def reach(*, began: LeaseTime, margin_ns: int, left: Iterable[BlockId]) -> LeaseTime:
    """How far the registration floor may advance after a complete scan for letters (S4).

    A letter that was acknowledged is in the store soon after the time in its segment's name, at the
    latest when the writer's deadline ends. So a scan that began much later has seen all letters
    named before that, and the ones it left in place are younger than the floor.
    """
    oldest = min((block_time_ns(block) for block in left), default=None)
    limit = began - margin_ns
    return LeaseTime(max(NO_FLOOR, limit if oldest is None else min(limit, oldest - 1)))


def in_steps(letters: Iterable[FoundLetter], *, bytes_max: int) -> Iterator[list[FoundLetter]]:
    """Group letters so that each group is applied in milliseconds."""
    step: list[FoundLetter] = []
    size = 0
    for letter in letters:
        if step and size + letter.info.size > bytes_max:
            yield step
            step, size = [], 0
        step.append(letter)
        size += letter.info.size
    if step:
        yield step


def rewritten(meta: BlockMeta, *, block: BlockId, key: str) -> BlockMeta:
    """The same segment as another block, whose object has another key."""
    (file,) = meta.files
    (at,) = file.locations
    copy = msgspec.structs.replace(at, key=key)
    file = msgspec.structs.replace(file, locations=(copy,))
    return msgspec.structs.replace(meta, id=block, files=(file,))
