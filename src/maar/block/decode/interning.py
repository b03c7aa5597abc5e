# mypy: disallow-untyped-decorators=False
"""Equal content of many profiles gets equal numbers, profile by profile, so that it is kept once.

Content is compared and not only hashed: different content never gets the same number. Where it is
looked for depends on keys that nobody can know beforehand, so that no text can be made for which
the search takes long. A pool has room for all that a profile may add before compiled code is
called, which so allocates nothing and counts no references.

All compiled functions are in this file, because the compile cache notices a change in the file of
the function that is called, and not in the files of those that it calls.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from maar.block.format.hashing import Int
from maar.pprof.columns import NONE

_MULTIPLIER = np.uint64(0x9E3779B185EBCA87)
_OPTIONS = {"nogil": True, "_nrt": False}
_SLOTS = 1 << 10
_KEYS = 32  # words that are hashed before the state is mixed
_HALF = np.uint64(0xFFFF_FFFF)


def _compile(function: Any) -> Any:
    try:
        return njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # no directory for the cache can be written: compile for this process
        return njit(**_OPTIONS)(function)


_inlined: Any = njit(forceinline=True, **_OPTIONS)


class PoolArrays(NamedTuple):
    """Different lists, one after the other, and a hash table that finds them."""

    words: Any
    offset: Any  # of each list in `words`, and one element more
    hashes: Any
    table: Any  # numbers of lists, or -1
    keys: Any  # of the hash


def hash_keys(seed: str) -> Any:
    """The keys of a hash table; who does not know the seed knows nothing of them."""
    return np.frombuffer(hashlib.shake_256(seed.encode()).digest(8 * _KEYS), np.uint64).copy()


class Pool:
    """Lists that are numbered from 0 in the order in which they came."""

    def __init__(self, dtype: Any, keys: Any) -> None:
        self.count = 0
        self.arrays = PoolArrays(
            words=np.empty(_SLOTS, dtype),
            offset=np.zeros(_SLOTS + 1, np.int64),
            hashes=np.empty(_SLOTS, np.uint64),
            table=np.full(2 * _SLOTS, -1, np.int32),
            keys=keys,
        )

    @property
    def nbytes(self) -> int:
        """Of the lists themselves and of what finds them."""
        return int(self.size * self.arrays.words.itemsize + 24 * self.count)

    @property
    def size(self) -> int:
        return int(self.arrays.offset[self.count])

    @property
    def words(self) -> Any:
        return self.arrays.words[: self.size]

    @property
    def offset(self) -> Int:
        offset: Int = self.arrays.offset[: self.count + 1]
        return offset

    def reserve(self, lists: int, words: int) -> PoolArrays:
        """Have room for so many more."""
        arrays = self.arrays
        lists, words = self.count + lists, self.size + words
        if words > arrays.words.size:
            arrays = arrays._replace(words=_grow(arrays.words, words))
        if lists > arrays.hashes.size:
            offset = _grow(arrays.offset, lists + 1)
            hashes = _grow(arrays.hashes, offset.size - 1)
            slots = 1 << (2 * hashes.size - 1).bit_length()
            table = np.full(slots, -1, np.int32)
            _refill(table, hashes, self.count)
            arrays = PoolArrays(arrays.words, offset, hashes, table, arrays.keys)
        self.arrays = arrays
        return arrays


def _grow(array: Any, size: int) -> Any:
    """At least so large; doubled, so that all copying together costs one copy."""
    larger = np.empty(max(size, 2 * array.size), array.dtype)
    larger[: array.size] = array
    return larger


@_compile
def _refill(table: Any, hashes: Any, count: Any) -> None:
    mask = np.uint64(table.size - 1)
    for number in range(count):
        slot = hashes[number] & mask
        while table[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = number


@_inlined
def _mix(state: Any) -> Any:
    state = (state ^ (state >> np.uint64(32))) * _MULTIPLIER
    return state ^ (state >> np.uint64(32))


@_inlined
def _add_word(state: Any, word: Any, key: Any) -> Any:
    """A step of NH: of two different lists few keys make equal sums, whatever the lists are."""
    low = (word + key) & _HALF
    high = ((word >> np.uint64(32)) + (key >> np.uint64(32))) & _HALF
    return state + low * high


@_inlined
def _eight(data: Any, at: Any) -> Any:
    """Eight bytes as a word. Unsigned places: a signed one costs a test for < 0 each, and then
    this is not one load.
    """
    place = np.uint64(at)
    word = np.uint64(data[place])
    word |= np.uint64(data[place + np.uint64(1)]) << np.uint64(8)
    word |= np.uint64(data[place + np.uint64(2)]) << np.uint64(16)
    word |= np.uint64(data[place + np.uint64(3)]) << np.uint64(24)
    word |= np.uint64(data[place + np.uint64(4)]) << np.uint64(32)
    word |= np.uint64(data[place + np.uint64(5)]) << np.uint64(40)
    word |= np.uint64(data[place + np.uint64(6)]) << np.uint64(48)
    word |= np.uint64(data[place + np.uint64(7)]) << np.uint64(56)
    return word


@_inlined
def _hash_bytes(keys: Any, data: Any, start: Any, size: Any) -> Any:
    state = np.uint64(size) * keys[np.uint64(0)]
    at, end, key = start, start + size, np.uint64(1)
    while at + 8 <= end:
        state = _add_word(state, _eight(data, at), keys[key])
        at += 8
        key += np.uint64(1)
        if key == np.uint64(_KEYS):
            state = _mix(state) * keys[np.uint64(0)]
            key = np.uint64(1)
    if at < end:
        word, shift = np.uint64(0), np.uint64(0)
        while at < end:
            word |= np.uint64(data[np.uint64(at)]) << shift
            shift += np.uint64(8)
            at += 1
        state = _add_word(state, word, keys[key])
    return _mix(state)


@_inlined
def _hash_words(keys: Any, data: Any, size: Any) -> Any:
    state = np.uint64(size) * keys[np.uint64(0)]
    key = np.uint64(1)
    for item in range(size):
        state = _add_word(state, np.uint64(data[np.uint64(item)]), keys[key])
        key += np.uint64(1)
        if key == np.uint64(_KEYS):
            state = _mix(state) * keys[np.uint64(0)]
            key = np.uint64(1)
    return _mix(state)


@_inlined
def _same_bytes(one: Any, at: Any, other: Any, start: Any, size: Any) -> Any:
    item = 0
    while item + 8 <= size:
        if _eight(one, at + item) != _eight(other, start + item):
            return False
        item += 8
    while item < size:
        if one[np.uint64(at + item)] != other[np.uint64(start + item)]:
            return False
        item += 1
    return True


@_inlined
def _same_words(one: Any, at: Any, other: Any, start: Any, size: Any) -> Any:
    item = 0
    while item < size and one[np.uint64(at + item)] == other[np.uint64(start + item)]:
        item += 1
    return item == size


def _numbering(same: Any) -> Any:
    """How lists are numbered of which `same` tells whether two are equal."""

    @_inlined
    def number(pool: Any, count: Any, data: Any, start: Any, size: Any, hashed: Any) -> Any:
        """The number of a list; `count` when it is new, and then it is kept."""
        words, offset, hashes, table, _ = pool
        mask = np.uint64(table.shape[0] - 1)
        slot = hashed & mask
        while True:
            known = np.int64(table[slot])
            if known < 0:
                table[slot] = count
                hashes[count] = hashed
                at = offset[count]
                for item in range(size):
                    words[np.uint64(at + item)] = data[np.uint64(start + item)]
                offset[count + 1] = at + size
                return np.int64(count)
            at = offset[np.uint64(known)]
            if (
                hashes[np.uint64(known)] == hashed
                and offset[np.uint64(known + 1)] - at == size
                and same(words, at, data, start, size)
            ):
                return known
            slot = (slot + np.uint64(1)) & mask

    return number


_number_bytes = _numbering(_same_bytes)
_number_words = _numbering(_same_words)


@_compile
def number_strings(pool: Any, count: Any, raw: Any, start: Any, length: Any, number: Any) -> Any:
    """The number of each string; how many are known afterwards, here as below."""
    for row in range(start.shape[0]):
        hashed = _hash_bytes(pool[4], raw, start[row], length[row])
        found = _number_bytes(pool, count, raw, start[row], length[row], hashed)
        number[row] = found
        if found == count:
            count += 1
    return count


@_compile
def number_rows(
    pool: Any,
    count: Any,
    string: Any,
    one: Any,
    two: Any,
    three: Any,
    word: Any,
    row_words: Any,
    number: Any,
) -> Any:
    """The number of each row of three strings, given by their places in `string`, and a word."""
    for row in range(one.shape[0]):
        row_words[0] = string[one[row]]
        row_words[1] = string[two[row]]
        row_words[2] = string[three[row]]
        row_words[3] = word[row]
        found = _number_words(pool, count, row_words, 0, 4, _hash_words(pool[4], row_words, 4))
        number[row] = found
        if found == count:
            count += 1
    return count


HEAD = 3  # words of a location before those of its lines
LINE = 3


@_compile
def number_locations(
    pool: Any,
    count: Any,
    address: Any,
    mapping: Any,
    folded: Any,
    line_offset: Any,
    line_function: Any,
    line_number: Any,
    line_column: Any,
    mapping_start: Any,
    mapping_offset: Any,
    mapping_known: Any,
    functions: Any,
    function_known: Any,
    row_words: Any,
    number: Any,
) -> Any:
    """The number of each location: (mapping, folded, address, then each line's function, line and
    column). The address is that in the mapped file; without a mapping it counts only where no line
    names a function. A function that says nothing is none. So equal frames are equal locations.
    """
    words, offset = functions[0], functions[1]
    for row in range(address.shape[0]):
        symbol = False
        at = HEAD
        for line in range(line_offset[row], line_offset[row + 1]):
            function = np.int64(NONE)
            if line_function[line] != NONE:
                function = function_known[line_function[line]]
                place = offset[function]
                if (
                    words[place] == 0
                    and words[place + 1] == 0
                    and words[place + 2] == 0
                    and words[place + 3] == 0
                ):
                    function = np.int64(NONE)
                else:
                    symbol = True
            row_words[at] = function
            row_words[at + 1] = line_number[line]
            row_words[at + 2] = line_column[line]
            at += LINE
        owner = mapping[row]
        row_words[0] = NONE
        row_words[1] = folded[row]
        row_words[2] = 0
        if owner != NONE:
            row_words[0] = mapping_known[owner]
            row_words[2] = np.int64(address[row] - mapping_start[owner] + mapping_offset[owner])
        elif not symbol:
            row_words[2] = np.int64(address[row])
        found = _number_words(pool, count, row_words, 0, at, _hash_words(pool[4], row_words, at))
        number[row] = found
        if found == count:
            count += 1
    return count


@_compile
def number_stacks(
    pool: Any,
    count: Any,
    service: Any,
    location_offset: Any,
    location: Any,
    location_known: Any,
    row_words: Any,
    number: Any,
) -> Any:
    """The number of each sample's stack: (service, locations from the leaf)."""
    row_words[0] = service
    for sample in range(number.shape[0]):
        size = 1
        for at in range(location_offset[sample], location_offset[sample + 1]):
            place = np.uint64(location[np.uint64(at)])
            row_words[np.uint64(size)] = location_known[place]
            size += 1
        found = _number_words(
            pool, count, row_words, 0, size, _hash_words(pool[4], row_words, size)
        )
        number[sample] = found
        if found == count:
            count += 1
    return count


@_compile
def order_by_counting(key: Any, before: Any, starts: Any, order: Any) -> None:
    """Rows by their key, which is below `starts.size`; those that are equal stay as `before` has
    them. `starts` comes as zeros.
    """
    for row in range(key.shape[0]):
        if key[row] + 1 < starts.shape[0]:
            starts[key[row] + 1] += 1
    for at in range(1, starts.shape[0]):
        starts[at] += starts[at - 1]
    for at in range(before.shape[0]):
        row = before[at]
        order[starts[key[row]]] = row
        starts[key[row]] += 1
