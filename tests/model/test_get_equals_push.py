"""What was pushed comes back equal, from the segment and from every level of compaction."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from maar.block.format.hashing import ALL_BITS
from maar.model.block import BlockMeta
from maar.model.ids import TenantId
from maar.model.labels import Labels
from maar.model.profile import RawProfile
from maar.pprof.encode import encode
from maar.pprof.plain import (
    PlainFunction,
    PlainLine,
    PlainLocation,
    PlainProfile,
    PlainSample,
)
from support.lake.block_plans import NOON_NS, TENANT, Bench, raw_profile
from support.load.pprof_scramble import random_profile
from support.oracles.pprof_said import parse
from support.stores.memory_store import MemoryStore

OTHER = TenantId("other")
WEAK = 0x7  # ids of three bits: nearly every one collides
DAY_NS = 86_400_000_000_000


def random_push(random: Random) -> RawProfile:
    """Any service, tenant, day and size; labels that samples may repeat or contradict."""
    return raw_profile(
        random_profile(random, size=random.choice((1, 3, 6))),
        service=random.choice(("cart", "checkout", "checkout-2")),
        tenant=random.choice((TENANT, TENANT, TENANT, OTHER)),
        time_ns=NOON_NS + random.choice((0, 1_000, 1_500, 10**9, DAY_NS)),
        client_id=str(random.random()),
        labels=random.choice(((), (("region", "eu"),), (("a", "b"), ("main", "x")))),
    )


def assert_equal(bench: Bench, blocks: list[BlockMeta], profiles: list[RawProfile]) -> None:
    for profile in profiles:
        (body,) = bench.get(blocks, profile.id, tenant=profile.tenant)
        assert parse(gzip.decompress(body)) == parse(gzip.decompress(profile.payload))


def next_level(
    bench: Bench, blocks: list[BlockMeta], *, target: int, id_mask: int = ALL_BITS
) -> tuple[list[BlockMeta], int]:
    """Compact blocks of each key together, as the planner would."""
    outputs: list[BlockMeta] = []
    collisions = 0
    for tenant in sorted({block.tenant for block in blocks}):
        inputs = [block for block in blocks if block.tenant == tenant]
        result = bench.compact(inputs, target=target, id_mask=id_mask)
        assert result.account.kept == sum(block.profiles for block in inputs)
        adopted = [msgspec.structs.replace(block, level=block.level + 1) for block in inputs]
        outputs += adopted if result.adopted else result.outputs
        collisions += result.collisions
    return outputs, collisions


@settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    seed=st.integers(0, 1 << 32),
    target=st.sampled_from((1, 20_000, 1 << 30)),
    id_mask=st.sampled_from((ALL_BITS, ALL_BITS, WEAK)),
)
@example(seed=222, target=20_000, id_mask=WEAK)
@example(seed=112, target=1 << 30, id_mask=WEAK)
@example(seed=0, target=20_000, id_mask=WEAK)
def test_a_profile_is_the_same_at_every_level(seed: int, target: int, id_mask: int) -> None:
    random = Random(seed)
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(MemoryStore(), Path(scratch))
        batches = [[random_push(random) for _ in range(random.randint(1, 4))] for _ in range(4)]
        profiles = [profile for batch in batches for profile in batch]
        segments = [bench.segment(batch) for batch in batches]
        assert_equal(bench, segments, profiles)

        ones = [
            block
            for half in (segments[:2], segments[2:])
            for block in bench.compact(half, target=target, id_mask=id_mask).outputs
        ]
        assert_equal(bench, ones, profiles)

        twos, _ = next_level(bench, ones, target=target)
        assert_equal(bench, twos, profiles)

        threes, _ = next_level(bench, twos, target=target)
        assert_equal(bench, threes, profiles)
        assert sum(block.profiles for block in threes) == len(profiles)
        assert list(Path(scratch).iterdir()) == []


def test_ids_of_three_bits_collide_and_are_counted(tmp_path: Path) -> None:
    bench = Bench(MemoryStore(), tmp_path)
    random = Random(7)
    profiles = [random_push(random) for _ in range(12)]
    halves = [bench.segment(profiles[:6]), bench.segment(profiles[6:])]
    ones = [bench.compact([half], id_mask=WEAK) for half in halves]
    assert all(result.collisions > 0 for result in ones)
    blocks = [block for result in ones for block in result.outputs]
    twos, collisions = next_level(bench, blocks, target=1 << 30)
    assert collisions > 0
    assert_equal(bench, twos, profiles)


@pytest.mark.parametrize("seed", range(3))
def test_a_profile_that_is_pushed_twice_comes_back_once(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    bench = Bench(MemoryStore(), tmp_path)
    profiles = [raw_profile(random_profile(random), client_id=str(place)) for place in range(6)]
    first = bench.compact([bench.segment(profiles[:4]), bench.segment(profiles[2:])])
    assert (first.account.kept, first.account.duplicates) == (6, 2)
    again = bench.compact([bench.segment(profiles[3:])])
    merged = bench.compact([*first.outputs, *again.outputs])
    assert (merged.account.kept, merged.account.duplicates) == (6, 3)
    assert_equal(bench, list(merged.outputs), profiles)
    assert merged.outputs[0].samples == first.outputs[0].samples


@pytest.mark.parametrize(
    ("kinds", "stored"),
    [
        (("alloc-samples", "alloc-size"), ("alloc_samples", "alloc_size")),
        (("alloc-samples", "alloc-size"), ("alloc-samples", "alloc-size")),  # of older versions
        (("a-b", "a_b"), ("a-b", "a_b")),
        (("a-b", "a-b"), ("a_b", "a_b")),
    ],
)
def test_values_find_back_to_their_column_however_its_type_is_spelled(
    tmp_path: Path, kinds: tuple[str, str], stored: tuple[str, str]
) -> None:
    plain = PlainProfile(
        sample_types=[(kind, "count") for kind in kinds],
        functions=[PlainFunction("main")],
        locations=[PlainLocation(lines=(PlainLine(0),))],
        samples=[PlainSample([0], [7, 11]), PlainSample([0], [0, 13])],
    )
    types = tuple(f"memory:{kind}:count::" for kind in stored)
    profile = msgspec.structs.replace(raw_profile(plain), types=types)
    profile = msgspec.structs.replace(profile, labels=renamed(profile.labels, "memory"))
    bench = Bench(MemoryStore(), tmp_path)
    blocks = list(bench.compact([bench.segment([profile])]).outputs)
    assert_equal(bench, blocks, [profile])


def renamed(labels: Labels, name: str) -> Labels:
    return tuple((key, name if key == "__name__" else value) for key, value in labels)


def test_the_judge_sees_a_single_byte_of_text() -> None:
    raw = encode(one_function("caffe"))
    other = raw.replace(b"caffe", b"caff\xe9")
    assert parse(raw) == parse(raw)
    assert parse(raw) != parse(other)
    assert parse(other) != parse(raw.replace(b"caffe", b"caff\xff"))


def test_text_that_is_not_utf8_comes_back_byte_for_byte_from_quarantine(tmp_path: Path) -> None:
    """The door refuses it; what was stored before it did is kept as it came."""
    good = raw_profile(one_function("main"))
    body = encode(one_function("caffe")).replace(b"caffe", b"caff\xe9")
    bad = msgspec.structs.replace(
        raw_profile(one_function("caffe"), client_id="bad"), payload=gzip.compress(body)
    )
    bench = Bench(MemoryStore(), tmp_path)
    result = bench.compact([bench.segment([good, bad])])
    assert (result.account.kept, result.account.quarantined) == (1, 1)
    assert_equal(bench, list(result.outputs), [good])
    (kept,) = bench.get(list(result.outputs), bad.id)
    assert kept == bad.payload
    assert gzip.decompress(kept) == body


def one_function(name: str) -> PlainProfile:
    return PlainProfile(
        sample_types=[("cpu", "nanoseconds")],
        functions=[PlainFunction(name)],
        locations=[PlainLocation(lines=(PlainLine(0),))],
        samples=[PlainSample([0], [7])],
    )
