"""Places of blocks in the lanes in which they wait to be merged, oldest first."""

from __future__ import annotations

from typing import NamedTuple

from maar.model.ids import BlockId
from maar.model.plan import QueueKey
from maar.model.time import LeaseTime


class Item(NamedTuple):
    """A block in its lane; sorts by place, which is unique."""

    entry: int  # the index of the one that brought it
    ordinal: int
    added_at: LeaseTime
    block: BlockId
    size: int
    key: QueueKey


class Front(NamedTuple):
    """The oldest item of a lane; sorts by age."""

    added_at: LeaseTime
    entry: int
    ordinal: int
    key: QueueKey
