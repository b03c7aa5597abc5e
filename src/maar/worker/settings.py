"""How often a worker polls, and how long plans may take."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Milliseconds = Annotated[int, Meta(ge=1, le=3_600_000)]


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """How often a worker polls, and how long plans may take."""

    poll_interval_ms: Milliseconds = 1000
    """How often a worker with a free slot asks for plans."""
    call_timeout_ms: Milliseconds = 5000
    """A poll without an answer by then has failed."""
    retry_min_ms: Milliseconds = 100
    """Wait after a failed poll; doubles."""
    retry_max_ms: Milliseconds = 2000
    """The longest such wait."""
    fault_min_ms: Milliseconds = 1000
    """Pause after a failure of Spark or the store; doubles."""
    fault_max_ms: Milliseconds = 60_000
    """The longest such pause."""
    drain_ms: Milliseconds = 20_000
    """How long running plans may take to finish on stopping; `server.drain_s` bounds it."""
    cancel_ms: Milliseconds = 6000
    """How long cancelled plans may then take to end."""
