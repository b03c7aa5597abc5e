"""What the leader's background tasks share: the leader that they serve."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from maar.metastore.leader.inbox import Prepare
from maar.metastore.state.state import MetaState
from maar.model.time import LeaseTime

Append = Callable[[Prepare], Awaitable[int]]  # through the leader's loop; returns the new index


class Led(Protocol):
    """What a background task needs of a leader."""

    @property
    def state(self) -> MetaState: ...

    def now(self) -> LeaseTime: ...

    def confirm(self) -> None:
        """Raise NotLeading unless it certainly leads; called before the store is changed."""
        ...
