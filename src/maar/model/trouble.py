"""What a reader meets when it cannot read a copy of a block (S14)."""

from __future__ import annotations

from typing import Literal

import msgspec

from maar.model.ids import BlockId, StoreName

Why = Literal["away", "missing", "damaged"]


class Trouble(msgspec.Struct, frozen=True, array_like=True):
    """A copy that somebody wanted to read and could not."""

    block: BlockId
    store: StoreName
    key: str
    why: Why
    what: str  # a sentence
    another: bool = False  # whether there was another copy to fall over to
