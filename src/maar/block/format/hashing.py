# mypy: disallow-untyped-decorators=False
"""Content to 64-bit ids (XXH64, for ever), and equal content to equal numbers, exactly.

Ids persist in blocks, so the hash may never change. Interning compares content and not hashes:
whatever the hash does, different content never gets the same number.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from maar.pprof.kernel import allocating_kernel, inline

Int = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

ALL_BITS = 0xFFFF_FFFF_FFFF_FFFF

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)


@inline
def _rotate(word: Any, bits: int) -> Any:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@inline
def _round(state: Any, word: Any) -> Any:
    return _rotate(state + word * _P2, 31) * _P1


@inline
def _merge(state: Any, lane: Any) -> Any:
    return (state ^ _round(np.uint64(0), lane)) * _P1 + _P4


@inline
def _avalanche(state: Any) -> Any:
    state ^= state >> np.uint64(33)
    state *= _P2
    state ^= state >> np.uint64(29)
    state *= _P3
    return state ^ (state >> np.uint64(32))


@inline
def _word(data: Any, at: int) -> Any:
    word = np.uint64(0)
    for byte in range(8):
        word |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
    return word


@allocating_kernel
def xxh64_span(data: Any, start: int, length: int) -> Any:
    """XXH64 (seed 0) of some bytes."""
    at, end = start, start + length
    if length >= 32:
        one, two, three, four = _P1 + _P2, _P2, np.uint64(0), np.uint64(0) - _P1
        while at + 32 <= end:
            one = _round(one, _word(data, at))
            two = _round(two, _word(data, at + 8))
            three = _round(three, _word(data, at + 16))
            four = _round(four, _word(data, at + 24))
            at += 32
        state = _rotate(one, 1) + _rotate(two, 7) + _rotate(three, 12) + _rotate(four, 18)
        state = _merge(_merge(_merge(_merge(state, one), two), three), four)
    else:
        state = _P5
    state += np.uint64(length)
    while at + 8 <= end:
        state = _rotate(state ^ _round(np.uint64(0), _word(data, at)), 27) * _P1 + _P4
        at += 8
    if at + 4 <= end:
        half = np.uint64(0)
        for byte in range(4):
            half |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
        state = _rotate(state ^ (half * _P1), 23) * _P2 + _P3
        at += 4
    while at < end:
        state = _rotate(state ^ (np.uint64(data[at]) * _P5), 11) * _P1
        at += 1
    return _avalanche(state)


@allocating_kernel
def xxh64_words(words: Any, start: int, count: int) -> Any:
    """XXH64 (seed 0) of 64-bit words as little-endian bytes."""
    at, end = start, start + count
    if count >= 4:
        one, two, three, four = _P1 + _P2, _P2, np.uint64(0), np.uint64(0) - _P1
        while at + 4 <= end:
            one = _round(one, np.uint64(words[at]))
            two = _round(two, np.uint64(words[at + 1]))
            three = _round(three, np.uint64(words[at + 2]))
            four = _round(four, np.uint64(words[at + 3]))
            at += 4
        state = _rotate(one, 1) + _rotate(two, 7) + _rotate(three, 12) + _rotate(four, 18)
        state = _merge(_merge(_merge(_merge(state, one), two), three), four)
    else:
        state = _P5
    state += np.uint64(count * 8)
    while at < end:
        state = _rotate(state ^ _round(np.uint64(0), np.uint64(words[at])), 27) * _P1 + _P4
        at += 1
    return _avalanche(state)


@allocating_kernel
def hash_spans(data: Any, start: Any, length: Any) -> Any:
    """One hash per span of bytes."""
    found = np.empty(start.size, np.uint64)
    for row in range(start.size):
        found[row] = xxh64_span(data, start[row], length[row])
    return found


@allocating_kernel
def hash_lists(words: Any, offset: Any) -> Any:
    """One hash per list of words; `offset` has one element more than there are lists."""
    found = np.empty(offset.size - 1, np.uint64)
    for row in range(offset.size - 1):
        found[row] = xxh64_words(words, offset[row], offset[row + 1] - offset[row])
    return found


@inline
def _slots(count: int) -> int:
    size = 16
    while size < 2 * count:
        size *= 2
    return size


@allocating_kernel
def intern_spans(data: Any, start: Any, length: Any, hashes: Any) -> Any:
    """Equal spans get equal numbers, from 0 in order of appearance; also the first row of each."""
    size = _slots(start.size)
    table = np.full(size, -1, np.int64)
    mask = np.uint64(size - 1)
    number = np.empty(start.size, np.int64)
    first = np.empty(start.size, np.int64)
    found = 0
    for row in range(start.size):
        slot = hashes[row] & mask
        while True:
            known = table[slot]
            if known < 0:
                table[slot] = found
                first[found] = row
                number[row] = found
                found += 1
                break
            other = first[known]
            if hashes[other] == hashes[row] and length[other] == length[row]:
                same = True
                for byte in range(length[row]):
                    if data[start[other] + byte] != data[start[row] + byte]:
                        same = False
                        break
                if same:
                    number[row] = known
                    break
            slot = (slot + np.uint64(1)) & mask
    return number, first[:found].copy()


@allocating_kernel
def hexadecimal(numbers: Any) -> Any:
    """Lower-case digits without leading zeros: their bytes and offsets."""
    offset = np.zeros(numbers.size + 1, np.int64)
    data = np.empty(numbers.size * 16, np.uint8)
    at = 0
    for row in range(numbers.size):
        digits = 1
        while digits < 16 and numbers[row] >> np.uint64(4 * digits):
            digits += 1
        for place in range(digits - 1, -1, -1):
            digit = (numbers[row] >> np.uint64(4 * place)) & np.uint64(15)
            data[at] = digit + (np.uint64(48) if digit < np.uint64(10) else np.uint64(87))
            at += 1
        offset[row + 1] = at
    return data[:at].copy(), offset


@allocating_kernel
def take_lists(values: Any, offset: Any, rows: Any) -> Any:
    """Some of the lists, in the order of `rows`: their values and offsets."""
    taken_offset = np.zeros(rows.size + 1, np.int64)
    for place in range(rows.size):
        row = rows[place]
        taken_offset[place + 1] = taken_offset[place] + offset[row + 1] - offset[row]
    taken = np.empty(taken_offset[-1], values.dtype)
    for place in range(rows.size):
        row = rows[place]
        at = taken_offset[place]
        for item in range(offset[row], offset[row + 1]):
            taken[at] = values[item]
            at += 1
    return taken, taken_offset


def hash_rows(columns: list[Words]) -> Words:
    """One hash per row: XXH64 over its columns as little-endian words."""
    count = columns[0].size
    words = np.empty((count, len(columns)), np.uint64)
    for place, column in enumerate(columns):
        words[:, place] = column
    offset = np.arange(count + 1, dtype=np.int64) * len(columns)
    hashes: Words = hash_lists(words.reshape(-1), offset)
    return hashes


def distinct_ids(hashes: Words, *, mask: int = ALL_BITS) -> tuple[Int, int]:
    """Signed ids of different contents, no two equal, and how many had to be re-keyed (S17).

    The later of two equal hashes is hashed again with a salt. `mask` weakens the hash, so that
    tests can meet a collision.
    """
    ids = (hashes & np.uint64(mask)).view(np.int64).copy()
    _, first = np.unique(ids, return_index=True)
    if first.size == ids.size:
        return ids, 0
    free = FreeIds(set(ids[first].tolist()))
    later = np.setdiff1d(np.arange(ids.size), first)
    for row in later.tolist():
        ids[row] = free.take(int(ids[row]))
    return ids, int(later.size)


class FreeIds:
    """Other ids for contents whose id is taken: each the first free one of a salted series.

    Whoever knows the hash can make very many contents of one id, so the series of an id is gone
    through once for all of them: what was taken stays so.
    """

    def __init__(self, taken: set[int]) -> None:
        self._taken = taken
        self._salts: Counter[int] = Counter()

    def take(self, identity: int) -> int:
        start = (identity & ALL_BITS).to_bytes(8, "little")
        while True:
            self._salts[identity] += 1
            words = start + self._salts[identity].to_bytes(8, "little")
            candidate = to_signed(xxhash.xxh64_intdigest(words))
            if candidate not in self._taken:
                self._taken.add(candidate)
                return candidate


def to_signed(word: int) -> int:
    """64 bits read as a signed number."""
    word &= ALL_BITS
    return word - (1 << 64) if word >> 63 else word
