"""Ids are XXH64 for ever; interning is exact whatever the hash does."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from maar.block.decode import interning
from maar.block.decode.frames import _text
from maar.block.format import hashing


def test_spans_hash_like_the_reference() -> None:
    data = Random(1).randbytes(4_096)
    array = np.frombuffer(data, np.uint8)
    lengths = [*range(80), 255, 1_024]
    start = np.arange(len(lengths), dtype=np.int64)
    found = hashing.hash_spans(array, start, np.array(lengths, np.int64))
    expected = [xxhash.xxh64_intdigest(data[at : at + n]) for at, n in enumerate(lengths)]
    assert found.tolist() == expected


def test_lists_of_words_hash_like_their_bytes() -> None:
    words = np.frombuffer(Random(2).randbytes(8 * 200), np.uint64)
    offset = np.cumsum(np.arange(20)).astype(np.int64)
    found = hashing.hash_lists(words, offset)
    expected = [
        xxhash.xxh64_intdigest(words[offset[row] : offset[row + 1]].tobytes()) for row in range(19)
    ]
    assert found.tolist() == expected


def test_equal_bytes_get_equal_numbers_even_when_all_hashes_are_equal() -> None:
    texts = [b"a", b"b", b"a", b"", b"ab", b"b", b""]
    start = np.cumsum([0, *(len(text) for text in texts)])[:-1]
    length = np.array([len(text) for text in texts])
    data = np.frombuffer(b"".join(texts), np.uint8)
    for hashes in (hashing.hash_spans(data, start, length), np.zeros(len(texts), np.uint64)):
        number, first = hashing.intern_spans(data, start, length, hashes)
        assert number.tolist() == [0, 1, 0, 2, 3, 1, 2]
        assert first.tolist() == [0, 1, 3, 4]


def test_equal_lists_get_equal_numbers() -> None:
    words = np.array([1, 2, 1, 2, 3, 1, 2], np.int64)
    offset = np.array([0, 2, 4, 5, 5, 7, 7], np.int64)
    number, first = interning.intern_lists(words, offset)
    assert number.tolist() == [0, 0, 1, 2, 0, 2]
    assert first.tolist() == [0, 2, 3]
    taken, offsets = hashing.take_lists(words, offset, first)
    assert (taken.tolist(), offsets.tolist()) == ([1, 2, 3], [0, 2, 3, 3])


def test_ids_that_collide_are_given_others_and_counted() -> None:
    hashes = np.array([16, 32, 7, 7 + 16], np.uint64)
    ids, collisions = hashing.distinct_ids(hashes, mask=0xF)
    assert collisions == 2
    assert len(set(ids.tolist())) == 4
    assert ids[[0, 2]].tolist() == [0, 7]  # the first of each keeps its own
    again, _ = hashing.distinct_ids(hashes, mask=0xF)
    assert again.tolist() == ids.tolist()


def test_very_many_contents_of_one_id_cost_no_more_than_others() -> None:
    """Whoever knows the hash can make them; to begin with the first salt for each takes hours."""
    ids, collisions = hashing.distinct_ids(np.full(30_000, 7, np.uint64))
    assert collisions == 29_999
    assert len(set(ids.tolist())) == 30_000
    free = hashing.FreeIds({7})
    assert ids.tolist() == [7, *(free.take(7) for _ in range(29_999))]


def test_rows_made_to_have_one_hash_are_not_looked_for_in_one_place() -> None:
    rows = rows_of_one_hash(2_000)
    assert len(set(hashing.hash_rows([*rows.T]).tolist())) == 1
    number, first = interning.intern_rows([*rows.view(np.int64).T])
    assert number.tolist() == first.tolist() == list(range(2_000))
    offset = np.arange(2_001) * 6
    places = interning.hash_lists(interning.KEYS, rows.reshape(-1).view(np.int64), offset)
    assert len(set((places & np.uint64(0xFFF)).tolist())) > 1_000


WORD = (1 << 64) - 1
P1, P2, P4 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x85EBCA77C2B2AE63  # of XXH64


def rows_of_one_hash(count: int) -> Any:
    """Frames without symbol and mapping that XXH64 tells nothing apart of: (function, line, column,
    flags, mapping, address), where the address undoes what the line has done.
    """
    frames = [[WORD, line, 0, 36, WORD] for line in range(1, count + 1)]
    wanted = before_the_last(frames[0])
    for frame in frames:
        undone = turn((before_the_last(frame) ^ wanted) * pow(P1, -1, 1 << 64) & WORD, 33)
        frame.append(undone * pow(P2, -1, 1 << 64) & WORD)
    return np.array(frames, np.uint64)


def before_the_last(words: list[int]) -> int:
    """What XXH64 has made of six words when it comes to the last."""
    starts = ((P1 + P2) & WORD, P2, 0, -P1 & WORD)
    lanes = [step(lane, word) for lane, word in zip(starts, words, strict=False)]
    state = sum(turn(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & WORD
    for lane in lanes:
        state = ((state ^ step(0, lane)) * P1 + P4) & WORD
    state = (state + 48) & WORD
    return (turn(state ^ step(0, words[4]), 27) * P1 + P4) & WORD


def step(lane: int, word: int) -> int:
    return turn((lane + word * P2) & WORD, 31) * P1 & WORD


def turn(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & WORD


def test_ids_that_do_not_collide_are_the_hashes_read_as_signed() -> None:
    ids, collisions = hashing.distinct_ids(np.array([1, 2**64 - 1], np.uint64))
    assert (ids.tolist(), collisions) == ([1, -1], 0)


def test_a_new_id_is_never_one_that_is_taken() -> None:
    first = hashing.FreeIds(set()).take(5)
    free = hashing.FreeIds({first})
    assert len({5, first, free.take(5), free.take(5)}) == 4


def test_numbers_are_written_in_hexadecimal() -> None:
    numbers = np.array([0, 1, 0xABC, 2**64 - 1], np.uint64)
    text: pa.Array = _text(*hashing.hexadecimal(numbers))
    assert text.to_pylist() == ["0", "1", "abc", "f" * 16]
