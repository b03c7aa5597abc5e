"""Labels of samples are split some profiles at a time: the same result, in bounded memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from maar.block.decode.batch import Batch, batch_of
from maar.block.decode.sample_labels import SERIES_PER_PROFILE_MAX, Labelled, split_labels
from maar.block.decode.to_tables import decode_one
from maar.block.format.hashing import ALL_BITS
from maar.pprof.columns import NONE
from maar.pprof.plain import (
    PlainFunction,
    PlainLabel,
    PlainLine,
    PlainLocation,
    PlainProfile,
    PlainSample,
)
from support.lake.block_plans import raw_profile

MIB = 1 << 20

Labels = tuple[PlainLabel, ...]  # of a sample


def batch(labels: Sequence[Sequence[Labels]]) -> Batch:
    """A profile for each list, with a sample for each of its items."""
    profiles = [
        raw_profile(
            PlainProfile(
                sample_types=[("cpu", "ns")],
                functions=[PlainFunction("f")],
                locations=[PlainLocation(NONE, 0, (PlainLine(0, 1),))],
                samples=[PlainSample([0], [1], each) for each in of_samples],
            ),
            labels=(("pod", str(place % 3)),),
            client_id=str(place),
        )
        for place, of_samples in enumerate(labels)
    ]
    return batch_of(profiles, [decode_one(profile)[0] for profile in profiles])


def rows(found: Labelled) -> list[object]:
    everything = slice(None)
    kept = (found.sample_labels, found.span_id)
    return [
        found.series.to_pylist(),
        found.profile_series.tolist(),
        found.sample_series[everything].tolist(),
        *(None if each is None else each.to_pylist() for each in kept),
    ]


@pytest.mark.parametrize("at_once", [1, 7, 40])
def test_the_result_is_the_same_however_many_samples_are_split_at_once(at_once: int) -> None:
    random = Random(15)
    kinds: list[Labels] = [
        (),
        (PlainLabel("path", "/a"),),
        (PlainLabel("path", "/b"), PlainLabel("span_id", "s1")),
        (PlainLabel("pod", "a name of the profile's own"),),
        (PlainLabel("bytes", "", 12, "bytes"),),
    ]
    some = [[random.choice(kinds) for _ in range(random.randrange(9))] for _ in range(30)]
    many: list[Labels] = [(PlainLabel("path", f"/{n}"),) for n in range(SERIES_PER_PROFILE_MAX)]
    labels: list[list[Labels]] = [*some, [], many, [(), *many]]  # the last one has a set too many
    whole = split_labels(batch(labels), mask=ALL_BITS, at_once=1 << 30)
    assert rows(split_labels(batch(labels), mask=ALL_BITS, at_once=at_once)) == rows(whole)
    assert whole.sample_labels is not None
    assert whole.sample_labels.null_count < len(whole.sample_labels)
    assert whole.sample_labels[-1].as_py(), "labels of a profile with too many sets stay"


def test_the_memory_of_splitting_does_not_follow_the_number_of_samples() -> None:
    profiles, samples = 60, 20_000
    one: list[list[Labels]] = [[(PlainLabel("path", f"/{place % 5}"),) for place in range(samples)]]
    small = batch(one)
    columns = small.columns * profiles
    large = batch_of(small.profiles * profiles, columns)
    np.testing.assert_array_equal(np.diff(large.sample_base), samples)
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    try:
        found = split_labels(large, mask=ALL_BITS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.sample_series[slice(None)]) == profiles * samples
    assert peak + pa.total_allocated_bytes() - before < 60 * MIB, "all at once takes 150 MiB"
