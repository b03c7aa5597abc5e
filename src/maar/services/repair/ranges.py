"""The token ring of repairs: which blocks a repair looks at together.

A token is an unsigned 64-bit number, and a block's is the hash of its id. The ring is cut into 256
ranges for good, whatever the number of shards or stores, so that what is known of a range stays
true when the lake is scaled out. A range is written (start, end]: its start is not part of it. The
last one wraps around, and ends with token 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NewType

import xxhash

from maar.model.ids import BlockId
from maar.model.token_range import RING, TokenRange

VNODES = 256  # fixed ranges; changing this would make all that is known of ranges useless
VNODE_TOKENS = RING // VNODES

Token = NewType("Token", int)


def token_of(block: BlockId) -> Token:
    """Where a block is on the ring, for as long as it lives."""
    return Token(xxhash.xxh3_64_intdigest(block.encode()))


def token_of_raw(raw: bytes) -> Token:
    """The same, of the bytes of which the id is the hex digits."""
    return xxhash.xxh3_64_intdigest(raw.hex().encode())  # type: ignore[return-value]  # NewType is a call


_FIXED = tuple(
    TokenRange(number * VNODE_TOKENS, (number + 1) * VNODE_TOKENS % RING)
    for number in range(VNODES)
)


def vnode(number: int) -> TokenRange:
    """One of the fixed ranges, by its place on the ring."""
    return _FIXED[number]


def vnodes() -> Iterator[TokenRange]:
    return iter(_FIXED)


def vnode_number(token: int) -> int:
    """The number of the fixed range that a token is in."""
    return (token - 1) % RING // VNODE_TOKENS


def vnode_around(found: TokenRange) -> int | None:
    """The number of the fixed range that covers a range; None when it reaches beyond one."""
    number = found.start // VNODE_TOKENS
    return number if vnode(number).covers(found) else None
