"""Sorted rows of fixed length in short byte strings, with little memory overhead per row.

What is kept for every block is kept like this: no object, no hash table, nothing for the garbage
collector to walk, and no pause in which a large table grows. All numbers are big-endian, so that
rows sort as their values do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Generic, TypeVar

from maar.model.ids import BlockId

CHUNK_MAX = 64  # rows
ID_BYTES = 16

T = TypeVar("T", bound=Hashable)


@lru_cache(maxsize=128)  # callers ask for the same id several times in a row
def raw_id(block: BlockId) -> bytes:
    """A block id as 16 bytes; no bytes when the text cannot be a block id."""
    try:
        raw = bytes.fromhex(block)
    except ValueError:
        return b""
    return raw if len(raw) == ID_BYTES and raw.hex() == block else b""


def block_id(raw: bytes) -> BlockId:
    return BlockId(raw.hex())


class Rows:
    """Unique by their first bytes, the key. Not for sharing: the fold changes them in place."""

    __slots__ = ("_chunks", "_firsts", "_key", "_size", "_width")

    def __init__(self, *, key: int, width: int) -> None:
        self._key = key
        self._width = width
        self._chunks: list[bytearray] = []
        self._firsts: list[bytes] = []  # for every chunk, a key that none of its own precedes
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            for at in range(0, len(chunk), self._width):
                yield bytes(chunk[at : at + self._width])

    def raw(self) -> Iterator[bytes]:
        """All rows, many at a time."""
        return map(bytes, self._chunks)

    def __contains__(self, key: bytes) -> bool:
        return self.find(key) is not None

    def find(self, key: bytes) -> bytes | None:
        """The row of a key."""
        number = self._number(key)
        if number < 0:
            return None
        chunk = self._chunks[number]
        at = self._at(chunk, key)
        return bytes(chunk[at : at + self._width]) if at >= 0 else None

    def first(self) -> bytes | None:
        return bytes(self._chunks[0][: self._width]) if self._chunks else None

    def before(self, key: bytes) -> int:
        """How many rows have smaller keys."""
        number = self._number(key)
        if number < 0:
            return 0
        smaller = sum(map(len, self._chunks[:number])) + self._place(self._chunks[number], key)
        return smaller // self._width

    def add(self, row: bytes, *, replace: bool = False) -> bool:
        """Add a row, unless there is one with its key, which stays or is replaced; whether it is a
        new one.
        """
        key = row[: self._key]
        number = self._number(key)
        if number < 0:
            if not self._chunks:
                self._insert_chunk(0, bytearray(row))
                self._size += 1
                return True
            number = 0
        chunk = self._chunks[number]
        at = self._place(chunk, key)
        if chunk[at : at + self._key] == key:
            if replace:
                chunk[at : at + self._width] = row
            return False
        self._size += 1
        if at == len(chunk) and len(chunk) >= CHUNK_MAX * self._width:
            self._insert_chunk(number + 1, bytearray(row))  # rows that come in order fill chunks
            return True
        chunk[at:at] = row
        if not at:
            self._firsts[number] = key
        if len(chunk) > CHUNK_MAX * self._width:
            half = CHUNK_MAX // 2 * self._width
            self._insert_chunk(number + 1, chunk[half:])
            del chunk[half:]
        return True

    def remove(self, key: bytes) -> bool:
        return self.pop(key) is not None

    def pop(self, key: bytes) -> bytes | None:
        """The row of a key, which is gone now."""
        number = self._number(key)
        if number < 0:
            return None
        chunk = self._chunks[number]
        at = self._at(chunk, key)
        if at < 0:
            return None
        row = bytes(chunk[at : at + self._width])
        del chunk[at : at + self._width]
        self._size -= 1
        self._tidy(number)
        return row

    def drop_below(self, key: bytes) -> int:
        """Remove the rows with smaller keys; how many there were."""
        dropped = self.before(key)
        number = self._number(key)
        if number >= 0:
            del self._chunks[:number], self._firsts[:number]
            del self._chunks[0][: self._place(self._chunks[0], key)]
            self._tidy(0)
            self._size -= dropped
        return dropped

    def load(self, rows: Iterable[bytes]) -> bool:
        """All at once, in whatever order, instead of what was there; whether keys are unique."""
        self._chunks, self._firsts = [], []
        ordered = sorted(rows)
        for at in range(0, len(ordered), CHUNK_MAX):
            some = ordered[at : at + CHUNK_MAX]
            self._insert_chunk(len(self._chunks), bytearray(b"".join(some)))
        self._size = len(ordered)
        key = self._key
        return all(one[:key] != two[:key] for one, two in pairwise(ordered))

    def _number(self, key: bytes) -> int:
        """Of the only chunk that can hold a key; -1 when it sorts before all."""
        firsts = self._firsts
        if firsts and firsts[-1] <= key:
            return len(firsts) - 1  # new rows usually belong at the end
        return bisect_right(firsts, key) - 1

    def _at(self, chunk: bytearray, key: bytes) -> int:
        """Where the row of a key begins; -1 when there is none."""
        last = len(chunk) - self._width
        if len(key) != self._key or chunk[last : last + self._key] < key:
            return -1
        at = chunk.find(key)  # in C, and so faster than a binary search in Python
        while at >= 0 and at % self._width:
            at = chunk.find(key, at + 1)
        return at

    def _place(self, chunk: bytearray, key: bytes) -> int:
        """Where the first row begins that is not smaller."""
        width, length = self._width, self._key
        last = len(chunk) - width
        if chunk[last : last + length] < key:
            return last + width  # most rows come in order
        low, high = 0, len(chunk) // width
        while low < high:
            middle = (low + high) // 2
            at = middle * width
            if chunk[at : at + length] < key:
                low = middle + 1
            else:
                high = middle
        return low * width

    def _insert_chunk(self, number: int, chunk: bytearray) -> None:
        self._chunks.insert(number, chunk)
        self._firsts.insert(number, bytes(chunk[: self._key]))

    def _tidy(self, number: int) -> None:
        """After rows have gone: no chunk is empty, and small neighbours become one."""
        chunk = self._chunks[number]
        small = CHUNK_MAX // 2 * self._width
        if len(chunk) >= small:
            return
        if not chunk:
            del self._chunks[number], self._firsts[number]
            return
        for left in (number, number - 1):
            pair = self._chunks[left : left + 2] if left >= 0 else []
            if len(pair) == 2 and sum(map(len, pair)) <= small:
                pair[0].extend(pair[1])
                del self._chunks[left + 1], self._firsts[left + 1]
                return


class Ids:
    """Sorted ids of blocks."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows = Rows(key=ID_BYTES, width=ID_BYTES)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[BlockId]:
        return map(block_id, self._rows)

    def __contains__(self, block: BlockId) -> bool:
        return raw_id(block) in self._rows

    def add(self, block: BlockId) -> None:
        self._rows.add(raw_id(block))

    def discard(self, block: BlockId) -> None:
        self._rows.remove(raw_id(block))

    def load(self, raw: bytes) -> bool:
        """Ids as `raw` gives them, instead of what was there; whether they are unique."""
        return self._rows.load(raw[at : at + ID_BYTES] for at in range(0, len(raw), ID_BYTES))

    def drop_below(self, start: str) -> int:
        """Remove the ids that sort before some hex digits; how many there were."""
        return self._rows.drop_below(bytes.fromhex(start))

    def raw(self) -> Iterator[bytes]:
        """All of them, many at a time."""
        return self._rows.raw()


class Numbers(Generic[T]):
    """Gives each value that rows refer to a small number, for as long as some row refers to it."""

    __slots__ = ("_free", "_numbers", "_things", "_uses")

    def __init__(self) -> None:
        self._numbers: dict[T, int] = {}
        self._things: list[T | None] = []
        self._uses: list[int] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def thing(self, number: int) -> T:
        found = self._things[number]
        assert found is not None
        return found

    def take(self, thing: T) -> int:
        """Its number, for one more row."""
        number = self._numbers.get(thing)
        if number is None:
            if self._free:
                number = self._free.pop()
                self._things[number] = thing
            else:
                number = len(self._things)
                self._things.append(thing)
                self._uses.append(0)
            self._numbers[thing] = number
        self._uses[number] += 1
        return number

    def give_back(self, number: int) -> None:
        """One row fewer refers to it."""
        self._uses[number] -= 1
        if not self._uses[number]:
            del self._numbers[self.thing(number)]
            self._things[number] = None
            self._free.append(number)
