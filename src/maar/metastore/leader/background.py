"""What the leader's background tasks share: the leader that they serve."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from maar.metastore.leader.inbox import Prepare
from maar.metastore.state.state import MetaState
from maar.model.time import LeaseTime
from maar.ports.clock import Clock
from maar.ports.object_store import ObjectStore
from maar.services.deletion import Deleter

Append = Callable[[Prepare], Awaitable[int]]  # through the leader's loop; returns the new index


class Led(Protocol):
    """What a background task needs of a leader."""

    @property
    def state(self) -> MetaState: ...

    def now(self) -> LeaseTime: ...

    def confirm(self) -> None:
        """Raise NotLeading unless it certainly leads; called before the store is changed."""
        ...


class Deleting(Led, Protocol):
    """What a background task needs that deletes objects."""

    def confirm_deletes(self) -> None:
        """As `confirm`, by the log's own word, and NotLeading when the log was restored as another
        incarnation; for threads, which wait for the answer.
        """
        ...


def deleter(leader: Deleting, store: ObjectStore, clock: Clock) -> Deleter:
    """Deletes what a leader may delete, as long as it leads (S1, S5)."""

    def confirm(keys: Sequence[str]) -> Sequence[str]:
        leader.confirm_deletes()
        return keys

    return Deleter(store, confirm, clock.monotonic_ns)
