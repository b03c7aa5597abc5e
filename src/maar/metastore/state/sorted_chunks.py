"""A sorted sequence in short chunks: every change and search costs about a logarithm."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

Item = TypeVar("Item", bound=Any)  # anything that sorts

CHUNK_MAX = 256


def _first(chunk: list[Item]) -> Item:
    return chunk[0]


class SortedChunks(Generic[Item]):
    """Unique items, smallest first. Not for sharing: the fold changes it in place."""

    __slots__ = ("_chunks", "_size")

    def __init__(self) -> None:
        self._chunks: list[list[Item]] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Item]:
        for chunk in self._chunks:
            yield from chunk

    def __contains__(self, item: Item) -> bool:
        at = self._chunk_of(item)
        if at < 0:
            return False
        chunk = self._chunks[at]
        place = bisect_left(chunk, item)
        return place < len(chunk) and bool(chunk[place] == item)

    def first(self) -> Item | None:
        return self._chunks[0][0] if self._chunks else None

    def add(self, item: Item) -> None:
        if item in self:
            return
        self._size += 1
        if not self._chunks:
            self._chunks.append([item])
            return
        at = max(0, self._chunk_of(item))
        chunk = self._chunks[at]
        insort(chunk, item)
        if len(chunk) > CHUNK_MAX:
            half = len(chunk) // 2
            self._chunks[at : at + 1] = [chunk[:half], chunk[half:]]

    def discard(self, item: Item) -> None:
        at = self._chunk_of(item)
        if at < 0:
            return
        chunk = self._chunks[at]
        place = bisect_left(chunk, item)
        if place == len(chunk) or chunk[place] != item:
            return
        self._size -= 1
        del chunk[place]
        if not chunk:
            del self._chunks[at]

    def drop_below(self, item: Item) -> int:
        """Remove everything smaller than an item; how many there were."""
        dropped = 0
        while self._chunks and self._chunks[0][-1] < item:
            dropped += len(self._chunks.pop(0))
        if self._chunks:
            cut = bisect_left(self._chunks[0], item)
            del self._chunks[0][:cut]
            dropped += cut
        self._size -= dropped
        return dropped

    def _chunk_of(self, item: Item) -> int:
        """The only chunk that can hold the item; -1 when it sorts before all."""
        return bisect_right(self._chunks, item, key=_first) - 1
