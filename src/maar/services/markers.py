"""Whether a store is the one of this log, by the marker that the leader wrote into it (S14).

A disk that is not mounted leaves an empty directory in its place, and settings may name a wrong
bucket. Both look like a store that lost everything, and both take whatever is written to them. So
no plan writes to one of several stores, and no repair believes what one lacks, without the marker
of its log: the store is away. A plan that has one store only reads its inputs there, and could not.
"""

from __future__ import annotations

from maar.model import keys
from maar.model.errors import NotFound, Unavailable
from maar.model.ids import Incarnation, StoreName
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores


class MarkedStores:
    """The stores that one task uses."""

    def __init__(self, stores: Stores, incarnation: Incarnation) -> None:
        self._stores = stores
        self._incarnation = incarnation
        self._used: dict[StoreName, ObjectStore] = {}

    def open(self, name: StoreName) -> ObjectStore:
        """Unavailable when it cannot be opened, or is not marked; it is looked at once."""
        if name not in self._used:
            self._used[name] = self.look(name)
        return self._used[name]

    def look(self, name: StoreName) -> ObjectStore:
        """The same, and now: what was seen in it before may not have been its own."""
        store = self._stores.open(name)
        try:
            owner = store.read(keys.marker(self._incarnation)).decode(errors="replace")
        except NotFound:
            raise Unavailable(
                f"{store.settings().url} lacks the marker of log {self._incarnation}: it is not "
                f"the store {name}, a disk that is not mounted, or the leader has not marked it yet"
            ) from None
        first = self._stores.names()[0]
        if store.settings().name != (owner or first):  # markers of single stores used to be empty
            raise Unavailable(
                f"{store.settings().url} is the store {owner or first} by the marker in it, and "
                f"not {name}"
            )
        return store

    def target(self, name: StoreName) -> ObjectStore:
        """Where a plan puts what it made of its inputs, which may have been read elsewhere."""
        return self.open(name) if len(self._stores.names()) > 1 else self._stores.open(name)

    def stores_used(self) -> tuple[StoreName, ...]:
        return tuple(self._used)
