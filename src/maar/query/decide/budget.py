"""What one query may hold in memory outside of DuckDB, which has a limit of its own."""

from __future__ import annotations

from maar.model.errors import TooLarge

# Of one frame, at the widest place of the computation: eight numbers of 64 bits.
FRAME_BYTES = 64
# Values that become Python objects take about this many times their bytes in Arrow.
OBJECT_FACTOR = 10

ROWS = "its result has too many rows"
STACKS = "its stacks have too many frames"
LEVEL_0 = "too many profiles in its time range are not compacted yet"


class AnswerBudget:
    """What was counted may be held until the answer is complete, unless somebody gave it back."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.taken = 0

    def back_to(self, taken: int) -> None:
        """What was counted since is not held any more: the answer is looked for in another way."""
        self.taken = min(self.taken, taken)

    def take(self, size: int, why: str) -> None:
        """Count bytes before, or as soon as, they are there; `why` says what is too much."""
        self.taken += size
        if self.taken > self._bytes_max:
            raise TooLarge(
                f"the query needs more than the {self._bytes_max} bytes of memory that "
                f"query.answer_bytes_max allows: {why}; ask for one service, for fewer series by "
                "another label, or for a shorter time range"
            )
