# mypy: disallow-untyped-decorators=False
"""Equal content of many profiles gets equal numbers, profile by profile, so that it is kept once.

Content is compared and not only hashed: different content never gets the same number. Where it is
looked for depends on keys that nobody can know beforehand, so that no text can be made for which
the search takes long. A pool has room for all that a profile may add before compiled code is
called, which so allocates nothing and counts no references.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any, NamedTuple

import numpy as np

from maar.block.format import hashing
from maar.block.format.hashing import Int
from maar.pprof.columns import NONE
from maar.pprof.kernel import allocating_kernel, inline, kernel
from maar.pprof.wire import DEFAULT_TYPE, DOC_URL, DROP_FRAMES, KEEP_FRAMES

_MULTIPLIER = np.uint64(0x9E3779B185EBCA87)
SLOTS = 1 << 10  # of a pool that has nothing yet
_KEYS = 32  # words that are hashed before the state is mixed
_HALF = np.uint64(0xFFFF_FFFF)


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


KEYS = hash_keys(secrets.token_hex())  # of this process


class Pool:
    """Lists that are numbered from 0 in the order in which they came."""

    def __init__(self, dtype: Any, keys: Any) -> None:
        self.count = 0
        self.size = 0  # words of all lists together
        self._word_bytes: int = np.dtype(dtype).itemsize
        self.arrays = PoolArrays(
            words=np.empty(SLOTS, dtype),
            offset=np.zeros(SLOTS + 1, np.int64),
            hashes=np.empty(SLOTS, np.uint64),
            table=np.full(2 * SLOTS, -1, np.int32),
            keys=keys,
        )

    @property
    def nbytes(self) -> int:
        """Of the lists themselves and of what finds them."""
        return self.size * self._word_bytes + 24 * self.count

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
            arrays = arrays._replace(words=_grow(arrays.words, self.size, words))
        if lists > arrays.hashes.size:
            offset = _grow(arrays.offset, self.count + 1, lists + 1)
            hashes = _grow(arrays.hashes, self.count, offset.size - 1)
            slots = 1 << (2 * hashes.size - 1).bit_length()
            table = np.full(slots, -1, np.int32)
            _refill(table, hashes, self.count)
            arrays = PoolArrays(arrays.words, offset, hashes, table, arrays.keys)
        self.arrays = arrays
        return arrays


def _grow(array: Any, used: int, size: int) -> Any:
    """At least so large; doubled, so that all copying together costs one copy. What is not used
    is not touched, so that it takes no memory.
    """
    larger = np.empty(max(size, 2 * array.size), array.dtype)
    larger[:used] = array[:used]
    return larger


@kernel
def _refill(table: Any, hashes: Any, count: Any) -> None:
    mask = np.uint64(table.size - 1)
    for number in range(count):
        slot = hashes[number] & mask
        while table[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = number


@inline
def _mix(state: Any) -> Any:
    state = (state ^ (state >> np.uint64(32))) * _MULTIPLIER
    return state ^ (state >> np.uint64(32))


@inline
def _add_word(state: Any, word: Any, key: Any) -> Any:
    """A step of NH: of two different lists few keys make equal sums, whatever the lists are."""
    low = (word + key) & _HALF
    high = ((word >> np.uint64(32)) + (key >> np.uint64(32))) & _HALF
    return state + low * high


@inline
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


@inline
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
        word = np.uint64(0)
        if size >= 8:  # the last eight, some of them again
            word = _eight(data, end - 8)
        else:
            shift = np.uint64(0)
            while at < end:
                word |= np.uint64(data[np.uint64(at)]) << shift
                shift += np.uint64(8)
                at += 1
        state = _add_word(state, word, keys[key])
    return _mix(state)


@inline
def _hash_words(keys: Any, data: Any, start: Any, size: Any) -> Any:
    state = np.uint64(size) * keys[np.uint64(0)]
    at, end = start, start + size
    while True:
        some = min(end - at, _KEYS - 1)
        for item in range(some):
            word = np.uint64(data[np.uint64(at + item)])
            state = _add_word(state, word, keys[np.uint64(1 + item)])
        at += some
        if at == end:
            return _mix(state)
        state = _mix(state) * keys[np.uint64(0)]


@inline
def _same_bytes(one: Any, at: Any, other: Any, start: Any, size: Any) -> Any:
    item = 0
    while item + 8 <= size:
        if _eight(one, at + item) != _eight(other, start + item):
            return False
        item += 8
    if item < size and size >= 8:  # the last eight, some of them again
        return _eight(one, at + size - 8) == _eight(other, start + size - 8)
    while item < size:
        if one[np.uint64(at + item)] != other[np.uint64(start + item)]:
            return False
        item += 1
    return True


@inline
def _same_words(one: Any, at: Any, other: Any, start: Any, size: Any) -> Any:
    """No early end, since lists of equal hash are equal: so it runs many words at a time."""
    different = False
    for item in range(size):
        different |= one[np.uint64(at + item)] != other[np.uint64(start + item)]
    return not different


def _comparing(same: Any) -> Any:
    """How a list is compared with a known one; `same` tells whether words are equal."""

    @inline
    def is_known_as(pool: Any, known: Any, data: Any, start: Any, size: Any) -> Any:
        at = pool.offset[np.uint64(known)]
        if pool.offset[np.uint64(known + 1)] - at != size:
            return False
        return same(pool.words, at, data, start, size)

    return is_known_as


_are_known_bytes = _comparing(_same_bytes)
_are_known_words = _comparing(_same_words)


def _numbering(is_known_as: Any) -> Any:
    """How lists are numbered that are compared so."""

    @inline
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
            if hashes[np.uint64(known)] == hashed and is_known_as(pool, known, data, start, size):
                return known
            slot = (slot + np.uint64(1)) & mask

    return number


_number_bytes = _numbering(_are_known_bytes)
_number_words = _numbering(_are_known_words)


def _numbering_in_turn(is_known_as: Any, hash_of: Any, number: Any) -> Any:
    """How lists are numbered that come one after the other.

    What followed a list in one profile mostly follows it in the next: then it need not be hashed
    and looked for, which are steps into memory that nobody can foresee.
    """

    @inline
    def number_after(pool: Any, last: Any, count: Any, data: Any, start: Any, size: Any) -> Any:
        """The number of the list that comes after that of number `last`; -1: of the first."""
        if last + 1 < count and is_known_as(pool, last + 1, data, start, size):
            return last + 1
        return number(pool, count, data, start, size, hash_of(pool.keys, data, start, size))

    return number_after


_number_bytes_after = _numbering_in_turn(_are_known_bytes, _hash_bytes, _number_bytes)
_number_words_after = _numbering_in_turn(_are_known_words, _hash_words, _number_words)


class Pools(NamedTuple):
    """What is known of all profiles."""

    strings: PoolArrays
    functions: PoolArrays  # the strings of name, system name and file, and the first line
    mappings: PoolArrays  # the strings of file and build id
    locations: PoolArrays  # HEAD words, and LINE words for each line
    stacks: PoolArrays  # service, and locations from the leaf


class ProfileNumbers(NamedTuple):
    """Of one profile; the next one takes the memory over."""

    string: Int
    function: Int
    mapping: Int
    location: Int
    words: Int  # of one list
    short_words: Any  # the same memory as int32


@allocating_kernel
def hash_lists(keys: Any, words: Any, offset: Any) -> Any:
    hashes = np.empty(offset.size - 1, np.uint64)
    for row in range(hashes.size):
        hashes[row] = _hash_words(keys, words, offset[row], offset[row + 1] - offset[row])
    return hashes


def intern_lists(words: Any, offset: Any) -> tuple[Int, Int]:
    """Equal lists of words get equal numbers, from 0 in order of appearance; also the first row."""
    hashes = hash_lists(KEYS, words, offset)
    number, first = hashing.intern_spans(words, offset[:-1], np.diff(offset), hashes)
    return number, first


def intern_rows(columns: list[Int]) -> tuple[Int, Int]:
    """The same for rows of several columns."""
    count = columns[0].size
    words = np.empty((count, len(columns)), np.int64)
    for place, column in enumerate(columns):
        words[:, place] = column
    return intern_lists(words.reshape(-1), np.arange(count + 1, dtype=np.int64) * len(columns))


class SeenIds:
    """Ids of 16 bytes that were met."""

    def __init__(self, *, seed: str) -> None:
        self._pool = Pool(np.int64, hash_keys(seed))

    def add(self, ids: Any) -> Any:
        """Which of some ids, given as pairs of words, were never met before."""
        words = np.array(ids, np.uint64).reshape(-1).view(np.int64)
        fresh = np.empty(words.size // ID_WORDS, np.bool_)
        pool = self._pool
        arrays = pool.reserve(fresh.size, words.size)
        pool.count = mark_fresh(arrays, pool.count, words, fresh)
        pool.size = ID_WORDS * pool.count
        return fresh


ID_WORDS = 2
FUNCTION = 4
MAPPING = 2
HEAD = 3  # words of a location before those of its lines
LINE = 3
NUMBER_BYTES = 12  # of a location in a stack, with what is made of it


@kernel
def mark_fresh(pool: Any, count: Any, ids: Any, fresh: Any) -> Any:
    """Which ids are new; how many are known afterwards."""
    for row in range(fresh.shape[0]):
        first = ID_WORDS * row
        hashed = _hash_words(pool[4], ids, first, ID_WORDS)
        fresh[row] = _number_words(pool, count, ids, first, ID_WORDS, hashed) == count
        count += fresh[row]
    return count


@kernel
def number_profile(
    pools: Any, known: Any, service: Any, raw: Any, tables: Any, numbers: Any, stack: Any
) -> None:
    """Number all that a profile has, and its stacks; its tables then have numbers for strings.

    `known` has how many lists each pool has, then how many words, and last about how many bytes all
    of it swells to as tables, beyond what the pools take; it is brought up to date.
    """
    locations, stacks = known[3], known[4]
    known[0] = number_strings(pools.strings, known[0], raw, tables.strings, numbers.string)
    _use_numbers(numbers.string, tables)
    known[1] = _number_columns(
        pools.functions, known[1], tables.functions, 1, FUNCTION, numbers.words, numbers.function
    )
    known[2] = _number_columns(
        pools.mappings, known[2], tables.mappings, 4, MAPPING, numbers.words, numbers.mapping
    )
    known[3] = _number_locations(pools.locations, known[3], tables, pools.functions, numbers)
    known[4] = _number_stacks(pools.stacks, known[4], service, tables, numbers, stack)
    known[5] = pools.strings.offset[known[0]]
    known[6] = pools.functions.offset[known[1]]
    known[7] = pools.mappings.offset[known[2]]
    known[8] = pools.locations.offset[known[3]]
    known[9] = pools.stacks.offset[known[4]]
    known[10] += _own_text(pools.strings.offset, tables)
    known[10] += _text_of_locations(pools, locations, known[3])
    known[10] += _inlined_frames(pools, stacks, known[4])


@kernel
def number_strings(pool: Any, count: Any, raw: Any, strings: Any, number: Any) -> Any:
    """The number of each string; how many are known afterwards, here as below."""
    found = np.int64(-1)
    for row in range(strings.shape[1]):
        start, size = strings[0, row], strings[1, row]
        found = _number_bytes_after(pool, found, count, raw, start, size)
        number[row] = found
        if found == count:
            count += 1
    return count


@inline
def _use_numbers(string: Any, tables: Any) -> None:
    """Numbers of strings in place of a profile's own, and the flags of a mapping as one word."""
    for field in range(2):
        tables.period_type[field, 0] = string[tables.period_type[field, 0]]
        for row in range(tables.types.shape[1]):
            tables.types[field, row] = string[tables.types[field, row]]
    for row in range(tables.comments.shape[0]):
        tables.comments[row] = string[tables.comments[row]]
    for row in range(tables.labels.shape[1]):
        tables.labels[0, row] = string[tables.labels[0, row]]
        tables.labels[1, row] = string[tables.labels[1, row]]
        tables.labels[3, row] = string[tables.labels[3, row]]
    for field in range(1, 4):
        for row in range(tables.functions.shape[1]):
            tables.functions[field, row] = string[tables.functions[field, row]]
    for row in range(tables.mappings.shape[1]):
        tables.mappings[4, row] = string[tables.mappings[4, row]]
        tables.mappings[5, row] = string[tables.mappings[5, row]]
        flags = np.int64(0)
        for flag in range(4):
            flags |= np.int64(tables.mappings[6 + flag, row] != 0) << flag
        tables.mappings[6, row] = flags
    for place in (DROP_FRAMES, KEEP_FRAMES, DEFAULT_TYPE, DOC_URL):
        tables.scalars[place] = string[tables.scalars[place]]


@inline
def _number_columns(
    pool: Any, count: Any, table: Any, first: Any, size: Any, words: Any, number: Any
) -> Any:
    """The number of what each column has in `size` rows from the row `first` on."""
    found = np.int64(-1)
    for column in range(table.shape[1]):
        for word in range(size):
            words[word] = table[first + word, column]
        found = _number_words_after(pool, found, count, words, 0, size)
        number[column] = found
        if found == count:
            count += 1
    return count


@inline
def _number_locations(pool: Any, count: Any, tables: Any, functions: Any, numbers: Any) -> Any:
    """The number of each location: (mapping, folded, address, then each line's function, line and
    column). The address is that in the mapped file; without a mapping it counts only where no line
    names a function. A function that says nothing is none. So equal frames are equal locations.
    """
    locations, lines, mappings, words = (
        tables.locations,
        tables.lines,
        tables.mappings,
        numbers.words,
    )
    said, offset = functions.words, functions.offset
    found = np.int64(-1)
    for row in range(locations.shape[1] - 1):
        symbol = False
        at = HEAD
        for line in range(locations[3, row], locations[3, row + 1]):
            function = np.int64(NONE)
            if lines[0, line] != NONE:
                function = numbers.function[lines[0, line]]
                place = offset[function]
                if (
                    said[place] == 0
                    and said[place + 1] == 0
                    and said[place + 2] == 0
                    and said[place + 3] == 0
                ):
                    function = np.int64(NONE)
                else:
                    symbol = True
            words[at] = function
            words[at + 1] = lines[1, line]
            words[at + 2] = lines[2, line]
            at += LINE
        owner, address = locations[1, row], locations[2, row]
        words[0] = NONE
        words[1] = locations[4, row] != 0
        words[2] = 0
        if owner != NONE:
            words[0] = numbers.mapping[owner]
            words[2] = address - mappings[1, owner] + mappings[3, owner]
        elif not symbol:
            words[2] = address
        found = _number_words_after(pool, found, count, words, 0, at)
        numbers.location[row] = found
        if found == count:
            count += 1
    return count


@inline
def _number_stacks(
    pool: Any, count: Any, service: Any, tables: Any, numbers: Any, stack: Any
) -> Any:
    """The number of each sample's stack: (service, locations from the leaf)."""
    samples, refs, known, words = tables.samples, tables.refs, numbers.location, numbers.short_words
    words[0] = service
    found = np.int64(-1)
    for sample in range(stack.shape[0]):
        first = samples[0, sample]
        depth = samples[0, sample + 1] - first
        for at in range(depth):
            words[np.uint64(1 + at)] = known[np.uint64(refs[np.uint64(first + at)])]
        size = 1 + depth
        found += 1  # as above, but that pairs are hashed
        if found >= count or not _are_known_words(pool, found, words, 0, size):
            words[np.uint64(size)] = 0  # the last may have nobody to be a pair with
            hashed = _hash_words(pool[4], numbers.words, 0, (size + 1) // 2)
            found = _number_words(pool, count, words, 0, size, hashed)
        stack[sample] = found
        if found == count:
            count += 1
    return count


@inline
def _length(strings: Any, number: Any) -> Any:
    return strings[number + 1] - strings[number]


@inline
def _length_of_all(strings: Any, numbers: Any) -> Any:
    size = np.int64(0)
    for number in numbers:
        size += _length(strings, number)
    return size


@inline
def _own_text(strings: Any, tables: Any) -> Any:
    """What a numbered profile says for itself, also where others say the same."""
    labels = _length_of_all(strings, tables.labels[0]) + _length_of_all(strings, tables.labels[1])
    labels += _length_of_all(strings, tables.labels[3])
    size = max(tables.types.shape[1], 1) * labels  # they are repeated for each value
    size += _length_of_all(strings, tables.mappings[4])
    size += _length_of_all(strings, tables.mappings[5])
    size += _length_of_all(strings, tables.types[0]) + _length_of_all(strings, tables.types[1])
    size += _length_of_all(strings, tables.comments)
    size += _length_of_all(strings, tables.period_type[:, 0])
    for place in (DROP_FRAMES, KEEP_FRAMES, DEFAULT_TYPE, DOC_URL):
        size += _length(strings, tables.scalars[place])
    return size


@inline
def _text_of_locations(pools: Any, first: Any, end: Any) -> Any:
    """Every line is a row with the text of its function; one without a name is called by its
    mapping's file.
    """
    strings, said, function = pools.strings.offset, pools.functions.words, pools.functions.offset
    words, offset = pools.locations.words, pools.locations.offset
    size = np.int64(0)
    for location in range(first, end):
        head, place = offset[location], np.int64(0)
        if words[head] != NONE:
            place = _length(strings, pools.mappings.words[pools.mappings.offset[words[head]]])
        if head + HEAD == offset[location + 1]:
            size += place
        for at in range(head + HEAD, offset[location + 1], LINE):
            if words[at] == NONE:
                size += place
            else:
                row = function[words[at]]
                name = _length(strings, said[row]) + _length(strings, said[row + 1])
                size += (name if name > 0 else place) + _length(strings, said[row + 2])
    return size


@inline
def _inlined_frames(pools: Any, first: Any, end: Any) -> Any:
    """As much for each as a pool counts for the location itself."""
    words, offset, lines = pools.stacks.words, pools.stacks.offset, pools.locations.offset
    frames = np.int64(0)
    for stack in range(first, end):
        for at in range(offset[stack] + 1, offset[stack + 1]):
            location = words[at]
            frames += max((lines[location + 1] - lines[location] - HEAD) // LINE - 1, 0)
    return NUMBER_BYTES * frames
