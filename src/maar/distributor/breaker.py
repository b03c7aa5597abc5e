"""A circuit breaker per writer: after failures it is skipped, then probed by one push."""

from __future__ import annotations

from enum import StrEnum

import msgspec

FAILURES_MAX = 3  # in a row, before it is skipped
OPEN_NS = 1_000_000_000  # how long; then one push may see whether it is back


class BreakerState(StrEnum):
    CLOSED = "closed"  # all pushes go through
    OPEN = "open"  # none do
    HALF_OPEN = "half-open"  # one does, as a probe


class Breaker(msgspec.Struct, frozen=True):
    """Only missing answers count as failures: a writer that answers with an error is alive."""

    failures: int = 0  # in a row
    opened_ns: int = 0  # when it was last found silent; means something at FAILURES_MAX failures
    probing: bool = False


def state_of(breaker: Breaker, *, now_ns: int) -> BreakerState:
    if breaker.failures < FAILURES_MAX:
        return BreakerState.CLOSED
    if now_ns - breaker.opened_ns < OPEN_NS:
        return BreakerState.OPEN
    return BreakerState.HALF_OPEN


def allows(breaker: Breaker, *, now_ns: int) -> bool:
    match state_of(breaker, now_ns=now_ns):
        case BreakerState.CLOSED:
            return True
        case BreakerState.OPEN:
            return False
        case BreakerState.HALF_OPEN:
            return not breaker.probing


def on_begin(breaker: Breaker) -> Breaker:
    """A push that was allowed is sent; if the breaker is half-open, it is the probe."""
    if breaker.failures < FAILURES_MAX:
        return breaker
    return msgspec.structs.replace(breaker, probing=True)


def silent(breaker: Breaker, *, now_ns: int) -> Breaker:
    return Breaker(min(breaker.failures + 1, FAILURES_MAX), now_ns)


def on_cancel(breaker: Breaker) -> Breaker:
    """The push was cancelled before its outcome was known; another one may probe."""
    return msgspec.structs.replace(breaker, probing=False) if breaker.probing else breaker


def opens_in_ns(breaker: Breaker, *, now_ns: int) -> int:
    """How long until a push is let through; 0 when one is now, or its probe is on its way."""
    if state_of(breaker, now_ns=now_ns) is not BreakerState.OPEN:
        return 0
    return breaker.opened_ns + OPEN_NS - now_ns


CLOSED = Breaker()  # of a writer that has answered
