"""How long a push that was refused waits before it is tried again. Pure."""

from __future__ import annotations

from random import Random

PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 5.0


def pause_s(tries: int, *, told_s: float, chance: Random) -> float:
    """How long to wait after so many failed tries.

    Doubling and bounded, never less than the server's Retry-After. Jitter is added on top, so that
    clients that were refused together do not come back together.
    """
    longest = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** min(tries, 10))
    return told_s + chance.uniform(longest / 2, longest)
