"""A token bucket: so many at once, and so many a second. Time is an argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from maar.model.time import SECOND_NS


class Refill(NamedTuple):
    per_s: float  # tokens that a second brings
    most: float  # tokens that the bucket holds


@dataclass(slots=True)
class TokenBucket:
    """What was taken and is not yet given back; a new one is full.

    The refill is an argument of each call, since that of a tenant may change at any time.
    """

    at_ns: int = 0  # until when time has given back
    owed: float = 0  # tokens, times the ns of a second: whole numbers stay exact

    def left(self, refill: Refill) -> float:
        return refill.most - self.owed / SECOND_NS

    def settle(self, refill: Refill, *, now_ns: int) -> None:
        """Give back what time has brought. A clock that steps back takes nothing away."""
        if now_ns > self.at_ns:
            self.owed = max(0, self.owed - (now_ns - self.at_ns) * refill.per_s)
            self.at_ns = now_ns

    def wait_ns(self, tokens: float, refill: Refill, *, now_ns: int) -> int | None:
        """How long until so many could be taken: 0 when now, None when never."""
        self.settle(refill, now_ns=now_ns)
        over = self.owed + (tokens - refill.most) * SECOND_NS
        if over <= 0:
            return 0
        never = tokens > refill.most or not refill.per_s
        return None if never else int(-(-over // refill.per_s))

    def take(self, tokens: float, refill: Refill, *, now_ns: int) -> bool:
        """Take so many, or none of them."""
        if self.wait_ns(tokens, refill, now_ns=now_ns) != 0:
            return False
        self.charge(tokens)
        return True

    def charge(self, tokens: float) -> None:
        """Take so many, whether they are there or not."""
        self.owed += tokens * SECOND_NS

    def give(self, tokens: float) -> None:
        """Give back earlier than time does; never beyond full."""
        self.owed = max(0, self.owed - tokens * SECOND_NS)

    def full_at_ns(self, refill: Refill) -> int:
        """When all will be given back, at a refill that is not 0."""
        return self.at_ns + int(-(-self.owed // refill.per_s))
