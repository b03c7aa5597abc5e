"""Which part of a mapped file holds an address."""

from __future__ import annotations

import time
from random import Random

import pytest

from maar.block.read.mapped import MappedFiles
from maar.pprof.plain import PlainMapping

FILE = ("lib.so", "b")


def first_that_holds(mappings: list[PlainMapping], address: int) -> int | None:
    rows = [row for row, each in enumerate(mappings) if (each.file, each.build_id) == FILE]
    inside = (
        row
        for row in rows
        if 0 <= address - mappings[row].offset < mappings[row].limit - mappings[row].start
    )
    return next(inside, rows[0] if rows else None)


@pytest.mark.parametrize("seed", range(30))
def test_the_first_part_that_holds_an_address_or_the_first_of_all(seed: int) -> None:
    random = Random(seed)

    def part() -> PlainMapping:
        start = random.randrange(20)
        limit, offset = start + random.randrange(-3, 15), random.randrange(20)
        return PlainMapping(start, limit, offset, random.choice(("lib.so", "other.so")), "b")

    mappings = [part() for _ in range(random.randrange(12))]
    mapped = MappedFiles(mappings)
    for address in (*range(45), (1 << 64) - 1):
        assert mapped.row(FILE, address) == first_that_holds(mappings, address)


def test_as_many_mappings_as_there_can_be_cost_a_little_more() -> None:
    """All of one file, or each of its own: 65,536 of them, for every location of a profile."""
    for name in ("lib.so", "{}.so"):
        mappings = [PlainMapping(n, n + 1, n, name.format(n), "b") for n in range(65_536)]
        began = time.process_time()
        mapped = MappedFiles(mappings)
        rows = [mapped.row((name.format(n), "b"), n) for n in range(0, 65_536, 16)]
        assert rows == list(range(0, 65_536, 16))
        assert time.process_time() - began < 5  # one by one: a quarter of a minute
