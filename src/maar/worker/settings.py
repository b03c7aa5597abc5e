"""How a worker paces itself."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Milliseconds = Annotated[int, Meta(ge=1, le=3_600_000)]


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """How a worker paces itself."""

    poll_interval_ms: Milliseconds = 1000  # while there is a free slot
    call_timeout_ms: Milliseconds = 5000  # a poll without an answer by then counts as failed
    retry_least_ms: Milliseconds = 100  # after a failed poll, doubling
    retry_most_ms: Milliseconds = 2000
    fault_least_ms: Milliseconds = (
        1000  # ask for nothing after a fault of engine or store, doubling
    )
    fault_most_ms: Milliseconds = 60_000
    plan_most_ms: Milliseconds = 1_800_000  # a plan that runs longer hangs, and is given up
    drain_ms: Milliseconds = 20_000  # how long running plans may take to finish after stop()
    cancel_ms: Milliseconds = 6000  # how long cancelled plans may take to end after that
