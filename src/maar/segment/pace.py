"""How long a shard collects profiles where its owner chose fewer PUTs over sooner answers."""

from __future__ import annotations

from maar.segment.settings import SegmentSettings

TRUST = 4  # segments that more would have joined, before the next one waits for it
TRUST_MAX = 8
DISTRUST = 2  # what a segment that nothing more would have joined takes off
DISTRUST_MAX = 64


def interval_ns(settings: SegmentSettings, *, held: int, pays: bool) -> int:
    """From a segment's first profile to its cut.

    A lone push is not kept waiting, since nothing would join it; nor is a busy shard, whose
    segments are large enough. Between them several pushes share a segment.
    """
    worth_more = pays and held < settings.flush_bytes
    return settings.flush_interval_max_ns if worth_more else settings.flush_interval_ns


class Arrivals:
    """Whether waiting pays for a shard: does more come while a segment could still wait?

    Clients that send the next push when the last one is answered seem to promise more, and send
    nothing while they wait: so each wait in vain makes the next one rarer.
    """

    def __init__(self, settings: SegmentSettings) -> None:
        self._min_ns = settings.flush_interval_ns
        self._max_ns = settings.flush_interval_max_ns
        self._opened_ns: int | None = None
        self._more = False
        self._waited = False
        self._trust = 0
        self._distrust = DISTRUST
        self._last_ns = 0

    def push(self, now_ns: int) -> None:
        """One more push, of however many profiles. Told before the segment that it may open."""
        if self._opened_ns is not None:
            age_ns = now_ns - self._opened_ns
            self._more |= self._min_ns < age_ns <= self._max_ns
            if self.silent(now_ns):
                self._learn()
                self._trust = min(self._trust, 0)  # what was learnt is of another time
        self._last_ns = now_ns

    def on_open(self, now_ns: int) -> bool:
        """A segment has its first profile; whether it should wait longer than it must."""
        self._learn()
        self._waited = self._trust >= TRUST
        self._opened_ns = now_ns
        return self._waited

    def silent(self, now_ns: int) -> bool:
        """Nothing came for longer than any segment waits."""
        return now_ns - self._last_ns > self._max_ns

    def _learn(self) -> None:
        """From what came while the last segment waited, or could have."""
        if self._opened_ns is None:
            return
        if self._more:
            self._trust = min(TRUST_MAX, self._trust + 1)
            self._distrust = DISTRUST if self._waited else self._distrust
        elif self._waited:
            self._trust -= self._distrust
            self._distrust = min(DISTRUST_MAX, 2 * self._distrust)
        else:
            self._trust = max(min(self._trust, 0), self._trust - DISTRUST)
        self._opened_ns, self._more, self._waited = None, False, False
