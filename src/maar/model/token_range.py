"""A part of the token ring, on which repairs order the blocks of a tenant."""

from __future__ import annotations

import msgspec

RING = 1 << 64  # tokens: unsigned numbers of 64 bits


class TokenRange(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """The tokens after `start` up to and including `end`; equal ends mean the whole ring."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"({self.start},{self.end}]"

    @property
    def tokens(self) -> int:
        """How many there are in it."""
        return (self.end - self.start) % RING or RING

    def __contains__(self, token: int) -> bool:
        """The leader asks it of thousands of blocks between two requests."""
        if self.start < self.end:
            return self.start < token <= self.end
        return token > self.start or token <= self.end

    def covers(self, other: TokenRange) -> bool:
        """Whether all of the other one lies within this one; to intersect it is not enough."""
        if self.tokens == RING:  # wherever it begins, there is no end to reach beyond
            return True
        return (other.start - self.start) % RING + other.tokens <= self.tokens

    def part(self, first: int, end: int) -> TokenRange:
        """The part between two distances from its start."""
        assert 0 <= first < end <= self.tokens
        return TokenRange((self.start + first) % RING, (self.start + end) % RING)
