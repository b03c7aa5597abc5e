# mypy: disallow-untyped-decorators=False
"""The `stacks` table of a batch: the different stacks of each service, root first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from maar.block.decode.batch import Batch
from maar.block.decode.frames import Frames, coded_text
from maar.block.decode.interning import intern_lists
from maar.block.format import hashing
from maar.block.format.hashing import Int
from maar.block.format.tables import LAYOUTS, ColumnMakers
from maar.pprof.kernel import allocating_kernel


def stacks_of(batch: Batch, frames: Frames, *, mask: int) -> tuple[ColumnMakers, Int, int]:
    """The different stacks, the stack id of each sample, and collisions."""
    services, service = batch.services()
    return stacks_of_samples(batch, frames, services, service[batch.profile_of_sample], mask=mask)


def stacks_of_samples(
    batch: Batch, frames: Frames, services: list[str], service: Int, *, mask: int
) -> tuple[ColumnMakers, Int, int]:
    """The same, where `service` is the place of each sample's service among `services`.

    A stack belongs to one service: its id is XXH64 over (service, frames from the root).
    """
    words, offset = _root_first(
        batch.sample_location_offset,
        batch.sample_location,
        frames.offset,
        frames.number,
        service,
    )
    number, first = intern_lists(words, offset)
    words, offset = hashing.take_lists(words, offset, first)
    head = offset[:-1]
    owner = words[head]
    inner = np.ones(words.size, np.bool_)
    inner[head] = False
    frame = words[inner]
    name_hashes = hashing.hash_spans(*_spans(services))
    content = np.empty(words.size, np.uint64)
    content[head] = name_hashes[owner]
    content[inner] = frames.ids[frame].view(np.uint64)
    ids, collisions = hashing.distinct_ids(hashing.hash_lists(content, offset), mask=mask)
    lists = pa.array((offset - np.arange(offset.size)).astype(np.int32))
    return (
        _columns(frames, pa.array(services, pa.string()), owner, ids, frame, lists),
        ids[number],
        collisions,
    )


def _columns(
    frames: Frames, services: pa.Array, owner: Int, ids: Int, frame: Int, lists: pa.Array
) -> ColumnMakers:
    schema = LAYOUTS["stacks"].working
    code = frames.name[frame].astype(np.int32)

    def leaves() -> pa.Array:
        if not frames.names:
            return pa.nulls(ids.size, schema.field("leaf").type)
        ends = lists.to_numpy()[1:]
        empty = np.diff(lists.to_numpy()) == 0
        leaf = np.where(empty, 0, code[np.maximum(ends - 1, 0)]) if code.size else 0 * ids
        return coded_text(frames.names, leaf.astype(np.int64), ~empty)

    def to_lists(items: pa.Array, name: str) -> pa.Array:
        return pa.ListArray.from_arrays(lists, items, type=schema.field(name).type)

    functions = pa.DictionaryArray.from_arrays(pa.array(code), frames.names)
    return {
        "service": lambda: coded_text(services, owner),
        "stack_id": lambda: pa.array(ids),
        "leaf": leaves,
        "functions": lambda: to_lists(functions, "functions"),
        "location_ids": lambda: to_lists(pa.array(frames.ids[frame]), "location_ids"),
    }


def _spans(texts: list[str]) -> tuple[Any, Int, Int]:
    encoded = [text.encode() for text in texts]
    length = np.array([len(text) for text in encoded], np.int64)
    start = np.concatenate([np.zeros(1, np.int64), np.cumsum(length)])[:-1]
    return np.frombuffer(b"".join(encoded) + b"\0", np.uint8), start, length


@allocating_kernel
def _root_first(
    location_offset: Any, location: Any, frame_offset: Any, frame_number: Any, service: Any
) -> Any:
    """Per sample (service, frames from the root): the outermost line of a location comes first."""
    samples = location_offset.size - 1
    offset = np.zeros(samples + 1, np.int64)
    for sample in range(samples):
        size = 1
        for at in range(location_offset[sample], location_offset[sample + 1]):
            size += frame_offset[location[at] + 1] - frame_offset[location[at]]
        offset[sample + 1] = offset[sample] + size
    words = np.empty(offset[samples], np.int64)
    for sample in range(samples):
        out = offset[sample]
        words[out] = service[sample]
        for at in range(location_offset[sample + 1] - 1, location_offset[sample] - 1, -1):
            row = location[at]
            for frame in range(frame_offset[row + 1] - 1, frame_offset[row] - 1, -1):
                out += 1
                words[out] = frame_number[frame]
    return words, offset
