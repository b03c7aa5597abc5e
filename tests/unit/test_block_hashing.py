"""Ids are XXH64 for ever; interning is exact whatever the hash does."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import xxhash

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
    number, first = hashing.intern_lists(words, offset)
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


def test_ids_that_do_not_collide_are_the_hashes_read_as_signed() -> None:
    ids, collisions = hashing.distinct_ids(np.array([1, 2**64 - 1], np.uint64))
    assert (ids.tolist(), collisions) == ([1, -1], 0)


def test_a_new_id_is_never_one_that_is_taken() -> None:
    first = hashing.free_id(5, set())
    assert hashing.free_id(5, {first}) not in (first, 5)


def test_numbers_are_written_in_hexadecimal() -> None:
    numbers = np.array([0, 1, 0xABC, 2**64 - 1], np.uint64)
    text: pa.Array = _text(*hashing.hexadecimal(numbers))
    assert text.to_pylist() == ["0", "1", "abc", "f" * 16]
