"""How a range is cut so that each piece has about as many bytes as one task should read.

A piece never spans two ranges. With so many bytes, n = ceil(bytes / target) pieces of ceil(tokens /
n) tokens: rounding down instead would allow pieces of almost twice the target.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from maar.model.token_range import TokenRange

SizeOf = Callable[[TokenRange], int]  # bytes of the blocks whose tokens are in a range
PIECES_MAX = 4096  # of one range: a task for each


def subranges(whole: TokenRange, *, target: int, size_of: SizeOf) -> Iterator[TokenRange]:
    """The pieces of a range, in order; without a target (0) the range itself."""
    size = size_of(whole) if target else 0
    if size <= target:
        yield whole
        return
    wanted = min(_ceil(size, target), whole.tokens, PIECES_MAX)
    step = _ceil(whole.tokens, wanted)
    for first in range(0, whole.tokens, step):
        yield whole.part(first, min(first + step, whole.tokens))


def uniform(total: int, *, tokens: int) -> SizeOf:
    """As if so many bytes lay evenly over so many tokens."""
    return lambda part: _ceil(total * part.tokens, tokens)


class ExactSizes:
    """What the index says: the sum of the blocks whose tokens are in a range."""

    def __init__(self, blocks: Iterable[tuple[int, int]]) -> None:
        """Of pairs (token, bytes), in any order."""
        ordered = sorted(blocks)
        self._tokens = [token for token, _ in ordered]
        self._sums = [0, *accumulate(size for _, size in ordered)]

    def __call__(self, part: TokenRange) -> int:
        first, end = self._places(part)
        inside = self._sums[end] - self._sums[first]
        return inside if part.start < part.end else self._sums[-1] + inside

    @property
    def total_blocks(self) -> int:
        return len(self._tokens)

    @property
    def total_bytes(self) -> int:
        return self._sums[-1]

    def blocks(self, part: TokenRange) -> int:
        """How many blocks have their token in a range."""
        first, end = self._places(part)
        return end - first if part.start < part.end else len(self._tokens) + end - first

    def _places(self, part: TokenRange) -> tuple[int, int]:
        """How many blocks are not after its start, and not after its end."""
        return bisect_right(self._tokens, part.start), bisect_right(self._tokens, part.end)


def _ceil(number: int, by: int) -> int:
    return -(-number // by)
