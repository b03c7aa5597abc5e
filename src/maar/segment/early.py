"""Which segments are cut before their interval is over, within a budget of PUT requests.

Waiting for the whole interval takes the fewest PUTs, and half of the pushes of a quiet shard wait
for nearly all of it. A segment that is cut when its oldest push has waited for half of the interval
answers all of its pushes soon, but may cost one PUT more. So the PUTs that a fixed flush would make
of the same pushes are counted, a few percent more may be spent, and they are spent where the most
pushes gain: where many wait already, or little of the interval is left to lose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from maar.segment.settings import SegmentSettings

# Shares of the flush interval. With both, an upload may take 7 % of the interval until a push that
# was answered soon has waited for 0.55 of it, or the last one for 1.1 of it.
SOON = 0.48
LATEST = 1.03

BALANCE_MAX = 16.0  # PUTs: what quiet hours save is no reason for thousands of segments
PRICE = 16.0  # pushes that a whole interval must gain while the balance is 0
BALANCE_PER_HALVING = 4.0  # PUTs: with so many more in hand half the gain is enough

SEGMENTS_REMEMBERED = 8  # of a shard, about: did more pushes join the first?
ALONE = 1 / 16  # a first push that is joined less often than this does not wait at all


class PutBudget:
    """PUTs that a fixed flush would have made, a share more, and those that were made.

    One for all shards of a writer: an early cut goes to the shard where it gains the most.
    """

    def __init__(self, settings: SegmentSettings) -> None:
        self._earned = 1 + settings.flush_early_percent / 100
        self.balance = 1.0

    def earn(self) -> None:
        """A fixed flush would have opened a segment."""
        self.balance = min(BALANCE_MAX, self.balance + self._earned)

    def spend(self) -> None:
        self.balance -= 1

    @property
    def affords_one(self) -> bool:
        return self.balance >= 1

    @property
    def price(self) -> float:
        """How many pushes must gain by it if a whole interval is given up."""
        return PRICE * math.exp2(-self.balance / BALANCE_PER_HALVING)


class ShardSpending:
    """One shard's part in the budget: its pushes through a fixed flush, and its own segments."""

    def __init__(self, settings: SegmentSettings, budget: PutBudget) -> None:
        self._interval_ns = settings.flush_interval_ns
        self._budget = budget
        self._fixed_until_ns: int | None = None
        self._joined = False  # the segment of the fixed flush has more than one push
        self._is_paid = False
        self.joins = 1.0  # share of such segments lately: what an early cut costs, in PUTs

    def push(self, now_ns: int) -> bool:
        """One more push; whether a fixed flush would have opened a segment with it."""
        opens = self._fixed_until_ns is None or now_ns >= self._fixed_until_ns
        if opens:
            if self._fixed_until_ns is not None:
                self.joins += (self._joined - self.joins) / SEGMENTS_REMEMBERED
            self._fixed_until_ns = now_ns + self._interval_ns
            self._budget.earn()
        self._joined = not opens
        return opens

    @property
    def is_alone(self) -> bool:
        """Hardly anything joins the push that opens a segment, and a PUT more is in hand."""
        return self.joins < ALONE and self._budget.affords_one

    @property
    def price(self) -> float:
        """How many pushes must gain by an early cut that gives up a whole interval."""
        return self._budget.price * self.joins

    @property
    def affords_one(self) -> bool:
        return self._budget.affords_one

    def on_open(self, now_ns: int) -> bool:
        """A segment has its first profile; whether a fixed flush would have opened one now too.

        The push was told before, so that is only after a segment that was full.
        """
        # The segment after an early cut was paid with that.
        if not self._is_paid:
            self._budget.spend()
        self._is_paid = False
        return self._fixed_until_ns is None and self.push(now_ns)

    def on_cut(self, *, early: bool, full: bool) -> None:
        if early:
            # At once, since until the next push comes others may want to spend the same PUT.
            self._budget.spend()
            self._is_paid = True
        if full:  # a fixed flush would have had to cut it as well
            self._fixed_until_ns = None


class Looks:
    """When an open segment is looked at, whether to cut it now, and when it ends at the latest."""

    def __init__(self, settings: SegmentSettings, opened_ns: int) -> None:
        self._interval_ns = settings.flush_interval_ns
        self._soon_ns = int(SOON * self._interval_ns)
        self._waiting_ns: list[int] = []  # when pushes came that the end would answer late
        self.end_ns = opened_ns + int(LATEST * self._interval_ns)
        self.next_ns = opened_ns + self._soon_ns

    def push(self, now_ns: int) -> None:
        if now_ns + self._soon_ns < self.end_ns:
            self._waiting_ns.append(now_ns)

    def look(self, spending: ShardSpending) -> bool:
        """Whether to cut at `next_ns`. If not, that says from now on when to look again."""
        now_ns = self.next_ns
        self._waiting_ns = [came for came in self._waiting_ns if came + self._soon_ns >= now_ns]
        left = [self.end_ns - self._soon_ns - came for came in self._waiting_ns]
        best = best_cut(left, price=spending.price / self._interval_ns)
        if best is None:
            self.next_ns = self.end_ns
            return False
        self.next_ns = self._waiting_ns[best] + self._soon_ns
        if self.next_ns > now_ns:
            return False
        if not spending.affords_one:
            self.next_ns = self.end_ns
        return spending.affords_one


def best_cut(left_ns: Sequence[int], *, price: float) -> int | None:
    """Which push's last moment to be answered soon is the best one to cut the segment at.

    `left_ns` has, for each push that waits, what would be left of the interval at that moment, the
    oldest push first. A cut for it answers also those after it soon, and gives up what is left, at
    `price` pushes a nanosecond. None: to wait for the end is better.
    """
    gains = [len(left_ns) - index - price * left for index, left in enumerate(left_ns)]
    best = max(gains, default=0.0)
    return gains.index(best) if best > 0 else None
