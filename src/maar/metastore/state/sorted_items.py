"""The list of sortedcontainers, which stays sorted, with the types that the package lacks."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Protocol, TypeVar

from sortedcontainers import SortedList

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


class SortedItems(Protocol[Item]):
    """Smallest first. Every change and search costs about a logarithm."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Item]: ...

    def __getitem__(self, at: int) -> Item: ...

    def add(self, item: Item) -> None: ...

    def discard(self, item: Item) -> None: ...


def add_to(lists: dict[Key, SortedItems[Item]], key: Key, item: Item) -> None:
    """Add an item, which must not be there yet, to the list of a key."""
    items = lists.get(key)
    if items is None:
        items = lists[key] = SortedList()
    items.add(item)


def discard_from(lists: dict[Key, SortedItems[Item]], key: Key, item: Item) -> None:
    """Remove an item, if it is there; a list that becomes empty goes with it."""
    items = lists.get(key)
    if items is not None:
        items.discard(item)
        if not items:
            del lists[key]
