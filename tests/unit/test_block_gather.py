"""Profiles that are gathered for a plan become the tables that a batch of them becomes.

The oracle is the batch decoder, which interns nothing across calls and sorts whole tables.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from maar.block.decode import interning
from maar.block.decode.gather import Gather
from maar.block.decode.to_tables import decode_profiles, read_one
from maar.model.profile import RawProfile
from maar.pprof.columns import NONE
from maar.pprof.plain import (
    PlainFunction,
    PlainLabel,
    PlainLine,
    PlainLocation,
    PlainMapping,
    PlainProfile,
    PlainSample,
)
from maar.pprof.tables import TableRoom
from support.lake.block_plans import NOON_NS, raw_profile
from support.load.pprof_scramble import random_profile

TABLES = ("profiles", "stacks", "locations", "series")


def gathered(
    profiles: list[RawProfile], *, seed: str = "", mask: int = (1 << 64) - 1
) -> dict[str, Any]:
    gather, room = Gather(seed=seed, mask=mask), TableRoom()
    for profile in profiles:
        gather.add(profile, *read_one(profile, room))
    assert len(gather) == len(profiles)
    tables = gather.tables()
    found = {name: tables.tables[name].to_pylist() for name in TABLES}
    return {**found, "samples": [row for part in tables.samples() for row in part.to_pylist()]}


def assert_as_a_batch(profiles: list[RawProfile]) -> None:
    wanted = decode_profiles(profiles).tables
    for name, rows in gathered(profiles).items():
        assert rows == wanted[name].to_pylist(), name


def test_random_profiles_of_several_services_and_times() -> None:
    random = Random(15)
    for size in (1, 3, 12):
        profiles = [
            raw_profile(
                random_profile(random, size=size),
                service=random.choice(("cart", "search", "checkout")),
                time_ns=NOON_NS + 1_000 * random.randrange(3),
                labels=(("pod", str(random.randrange(3))),),
                client_id=str(place),
            )
            for place in range(25)
        ]
        assert_as_a_batch(profiles)


def test_small_services_beside_one_of_many_stacks() -> None:
    random = Random(16)
    services = [("large", 60)] * 5 + [(f"small-{place}", 4) for place in range(10)]
    profiles = [
        raw_profile(random_profile(random, size=size), service=service, client_id=str(place))
        for place, (service, size) in enumerate(services)
    ]
    rows = gathered(profiles)
    counts = Counter(row["service"] for row in rows["samples"])
    assert any(1 < count < len(rows["stacks"]) / 5 for count in counts.values())
    assert_as_a_batch(profiles)


def test_what_says_the_same_in_another_way_is_one_stack() -> None:
    """A function without a word is none, and an address counts only where nothing else does."""
    functions = [PlainFunction("", "", "", 0), PlainFunction("work", "work", "w.go", 1)]
    mappings = [PlainMapping(0x1000, 0x9000, 0x10, "/lib/a.so", "b")]
    moved = [PlainMapping(0x5000, 0xF000, 0x10, "/lib/a.so", "b")]
    ways = [
        (mappings, PlainLocation(NONE, 0x1, (PlainLine(1, 7),))),
        (mappings, PlainLocation(NONE, 0x2, (PlainLine(1, 7),))),  # the same: it has a name
        (mappings, PlainLocation(NONE, 0x1, (PlainLine(0, 7),))),
        (mappings, PlainLocation(NONE, 0x1, (PlainLine(NONE, 7),))),  # the same: no name either
        (mappings, PlainLocation(NONE, 0x2, (PlainLine(NONE, 7),))),
        (mappings, PlainLocation(0, 0x1100)),
        (moved, PlainLocation(0, 0x5100)),  # the same: loaded elsewhere
    ]
    profiles = [
        raw_profile(
            PlainProfile(
                sample_types=[("cpu", "ns")],
                functions=functions,
                mappings=maps,
                locations=[location],
                samples=[PlainSample([0], [1])],
            ),
            client_id=str(place),
        )
        for place, (maps, location) in enumerate(ways)
    ]
    assert len(gathered(profiles)["stacks"]) == 4
    assert_as_a_batch(profiles)


def test_labels_of_samples_and_types_that_repeat() -> None:
    labels = [
        (),
        (PlainLabel("path", "/a"),),
        (PlainLabel("path", "/b"), PlainLabel("span_id", "s1")),
        (PlainLabel("bytes", "", 12, "bytes"),),
    ]
    profiles = [
        raw_profile(
            PlainProfile(
                sample_types=[("cpu", "ns"), ("cpu", "ns"), ("n", "count")],
                functions=[PlainFunction("f"), PlainFunction("g")],
                locations=[PlainLocation(NONE, 0, (PlainLine(row, 1),)) for row in range(2)],
                samples=[
                    PlainSample([place % 2], [place + shift, 0, place % 3], labels[place % 4])
                    for place in range(9)
                ],
            ),
            service=service,
            client_id=str(shift),
        )
        for shift in range(3)
        for service in ("a", "b")
    ]
    plain = raw_profile(PlainProfile(sample_types=[("cpu", "ns")], samples=[PlainSample([], [5])]))
    assert_as_a_batch([*profiles, plain])


def test_more_symbols_than_there_was_room_for_at_first() -> None:
    """Changing builds: every profile brings symbols that no other has."""
    profiles = [
        raw_profile(
            PlainProfile(
                sample_types=[("cpu", "ns")],
                functions=[PlainFunction(f"build{build}.f{n}") for n in range(700)],
                locations=[PlainLocation(NONE, 0, (PlainLine(n, n),)) for n in range(700)],
                samples=[PlainSample([n, (n + 1) % 700], [n + 1]) for n in range(700)],
            ),
            client_id=str(build),
        )
        for build in (1, 2, 3, 4, 2)
    ]
    assert len(gathered(profiles)["stacks"]) == 4 * 700
    assert_as_a_batch(profiles)


def test_ids_that_collide_are_given_anew() -> None:
    random = Random(7)
    profiles = [
        raw_profile(random_profile(random, size=6), client_id=str(n), service=f"s{n % 2}")
        for n in range(8)
    ]
    wanted = decode_profiles(profiles).tables
    found = gathered(profiles, mask=0x3)
    for name, unique in (("stacks", "stack_id"), ("locations", "location_id")):
        ids = [row[unique] for row in found[name]]
        assert len(set(ids)) == len(ids) == wanted[name].num_rows
    functions = {row["stack_id"]: row["functions"] for row in found["stacks"]}
    known = dict(
        zip(*(wanted["stacks"][c].to_pylist() for c in ("stack_id", "functions")), strict=True)
    )
    assert sorted((functions[row["stack_id"]], row["value"]) for row in found["samples"]) == sorted(
        (known[row["stack_id"]], row["value"]) for row in wanted["samples"].to_pylist()
    )


def test_the_rows_are_the_same_whatever_the_seed_is() -> None:
    chance = Random(5)
    profiles = [raw_profile(random_profile(chance, size=6), client_id=str(n)) for n in range(20)]
    assert gathered(profiles, seed="one") == gathered(profiles, seed="another")


def test_texts_that_meet_in_one_table_are_apart_in_that_of_another_attempt() -> None:
    """Else whoever knows how texts are hashed could push such that every search is long."""
    texts = [f"function {number} of a package".encode() for number in range(20_000)]
    first = places_of(texts, seed="the attempt that somebody knew")
    crafted = [text for text, place in zip(texts, first, strict=True) if place == first[0]]
    assert len(crafted) > 40
    met = places_of(crafted, seed="another attempt")
    assert len(set(met)) > len(crafted) / 2


def test_texts_made_to_meet_whatever_the_seed_is_do_not() -> None:
    """A flip of the highest bit passes through a product unchanged, and a later flip undoes it."""
    one = bytes(16)
    other = (1 << 63).to_bytes(8, "little") + (1 << 63 | 1 << 31).to_bytes(8, "little")
    met = [len({*places_of([one, other], seed=str(n), bits=64)}) for n in range(50)]
    assert met == [2] * 50


def test_texts_that_differ_in_one_byte_are_different() -> None:
    texts = [
        bytes(at) + last + bytes(size - at - 1)
        for size in range(1, 26)
        for at in range(size)
        for last in (b"a", b"b")
    ]
    assert len(places_of(texts, seed="any")) == len(texts)


def test_texts_that_come_again_in_nearly_the_same_order_keep_their_numbers() -> None:
    """The one that followed the last time is looked at first: it may be another of its length."""
    random = Random(4)
    texts = [bytes(random.choices(b"ab", k=random.randrange(12))) for _ in range(40)]
    pool = interning.Pool(np.uint8, interning.hash_keys("any"))
    numbers: dict[bytes, int] = {}
    for _ in range(200):
        at, size = random.randrange(40), random.randrange(3)
        texts[at : at + size] = [bytes(random.choices(b"ab", k=random.randrange(12)))] * size
        if random.random() < 0.2:
            random.shuffle(texts)
        assert number_of(pool, texts) == [numbers.setdefault(one, len(numbers)) for one in texts]
    assert pool.count == len(numbers) > 100


def test_profiles_that_repeat_most_of_the_one_before() -> None:
    random = Random(6)
    one = random_profile(random, size=12)
    profiles = []
    for number in range(12):
        samples = list(one.samples)
        random.shuffle(samples)
        kept = samples if number % 3 == 0 else [s for s in one.samples if random.random() < 0.7]
        frames = [*one.locations]
        if number % 4 == 1:  # the same frames with other lines of code
            frames = [
                replace(frame, lines=tuple(replace(at, line=at.line ^ 1) for at in frame.lines))
                if random.random() < 0.3
                else frame
                for frame in frames
            ]
        again = replace(one, samples=kept, locations=frames)
        profiles.append(raw_profile(again, time_ns=NOON_NS + number))
    assert_as_a_batch(profiles)


LONG = "x" * 1_000


def swelling(**parts: Any) -> PlainProfile:
    return PlainProfile(sample_types=[("cpu", "ns"), ("n", "count")], **parts)


@pytest.mark.parametrize(
    ("profile", "swells_to"),
    [
        (swelling(samples=[PlainSample((), (1, 1), [PlainLabel("k", LONG)])] * 500), 1_000_000),
        (
            swelling(
                functions=[PlainFunction("f", file=LONG)],
                locations=[PlainLocation(NONE, 0, (PlainLine(0, n),)) for n in range(500)],
            ),
            500_000,
        ),
        (
            swelling(
                mappings=[PlainMapping(file=LONG)],
                locations=[PlainLocation(0, n) for n in range(500)],
            ),
            500_000,
        ),
        (swelling(mappings=[PlainMapping(build_id=LONG)] * 500), 500_000),
        (swelling(comments=[LONG] * 500), 500_000),
        (
            swelling(
                locations=[PlainLocation(NONE, 0, tuple(PlainLine(NONE, n) for n in range(1_000)))],
                samples=[PlainSample([0] * n, (1, 1)) for n in range(50)],
            ),
            1_225_000 * 12,
        ),
    ],
)
def test_what_few_bytes_swell_to_counts_as_held(profile: PlainProfile, swells_to: int) -> None:
    """Else a plan would gather a thousand such profiles before it writes any."""
    raw = raw_profile(profile)
    gather = Gather(seed="")
    gather.add(raw, *read_one(raw))
    assert swells_to < gather.held_bytes < 1.3 * swells_to + 200_000
    if profile.locations:
        before = gather.held_bytes
        gather.add(raw, *read_one(raw))
        assert gather.held_bytes - before < 10_000, "what is known already is written once"


def places_of(texts: list[bytes], *, seed: str, bits: int = 8) -> list[int]:
    """Where each text is looked for in a table of 2 ** bits places."""
    pool = interning.Pool(np.uint8, interning.hash_keys(seed))
    number_of(pool, texts)
    assert pool.count == len(set(texts))
    return [int(hashed) & ((1 << bits) - 1) for hashed in pool.arrays.hashes[: pool.count]]


def number_of(pool: interning.Pool, texts: list[bytes]) -> list[int]:
    """The number of each text in a pool, which is brought up to date."""
    length = np.array([len(text) for text in texts], np.int64)
    arrays = pool.reserve(len(texts), int(length.sum()))
    raw = np.frombuffer(b"".join(texts) or b" ", np.uint8)
    strings = np.stack([np.cumsum(length) - length, length])
    number = np.empty(len(texts), np.int64)
    pool.count = int(interning.number_strings(arrays, pool.count, raw, strings, number))
    pool.size = int(pool.arrays.offset[pool.count])
    return [int(one) for one in number]
