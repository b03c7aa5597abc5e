"""What the leader's background tasks share: the leader that they serve."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from maar.metastore.leader.inbox import Prepare
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.errors import InvalidInput, NotLeading, Unavailable
from maar.model.ids import StoreName
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.clock import Clock
from maar.ports.stores.object_store import ObjectStore, exists
from maar.ports.stores.stores import Stores
from maar.services.deletion import BatchDeleter

AWAY_NS = 10 * SECOND_NS  # a store that did not answer is not waited for again for so long

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


def deleter(
    leader: Deleting, store: ObjectStore, clock: Clock, *, one_of_several: bool = False
) -> BatchDeleter:
    """Deletes what a leader may delete, as long as it leads (S1, S5).

    With several stores, the store itself is asked too whether the log was restored: the restored
    one may not use the store in which this leader looks.
    """

    def confirm(going: Sequence[str]) -> Sequence[str]:
        leader.confirm_deletes()
        incarnation = leader.state.incarnation
        if one_of_several and exists(store, keys.successor(incarnation)):
            raise NotLeading(
                f"the log {incarnation} was restored as another one, which uses this store"
            )
        return going

    return BatchDeleter(store, confirm, clock.monotonic_ns)


class LedStores:
    """The stores of a lake, with what deletes in each of them."""

    def __init__(self, leader: Deleting, stores: Stores, clock: Clock) -> None:
        self._leader = leader
        self._stores = stores
        self._clock = clock
        self._away: dict[StoreName, int] = {}  # until when, by the monotonic clock

    @property
    def first(self) -> ObjectStore:
        """The one that holds what is not of a single store: snapshots, commits, deletions."""
        return self._stores.open(self._stores.names()[0])

    def names(self, state: MetaState) -> tuple[StoreName, ...]:
        """All that are known: by the log, or, before it has been told any, by the settings."""
        return state.stores.names() or self._stores.names()

    def open(self, store: StoreName) -> ObjectStore:
        """Unavailable when it cannot be opened now; InvalidInput when it is another one."""
        found = self._stores.open(store)
        if found.settings().name != store:
            raise InvalidInput(
                f"it is in the store {store!r}, and this is {found.settings().name!r}",
                reason="settings",
            )
        return found

    def rest(self, stores: Iterable[StoreName]) -> None:
        """They did not answer: for a while nobody waits for them again."""
        until_ns = self._clock.monotonic_ns() + AWAY_NS
        self._away.update(dict.fromkeys(stores, until_ns))

    def deleter(self, store: StoreName) -> BatchDeleter:
        """Unavailable also when the store did not answer a short time ago."""
        if self._clock.monotonic_ns() < self._away.get(store, 0):
            raise Unavailable(f"store {store} did not answer a short time ago")
        several = len(self._stores.names()) > 1
        return deleter(self._leader, self.open(store), self._clock, one_of_several=several)
