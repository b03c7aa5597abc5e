"""The cache of what was read of blocks: bounded, made once, and never of an error."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from maar.query.read.part_cache import PartCache


@dataclass(frozen=True)
class Thing:
    name: str
    size: int = 40


def test_the_least_recently_used_goes_when_the_bound_is_reached() -> None:
    cache = PartCache(100)
    for name in ("a", "b", "a", "c"):
        cache.get(name, lambda name=name: Thing(name))  # type: ignore[misc]
    assert [cache.peek(name) is not None for name in "abc"] == [True, False, True]
    assert cache.bytes == 80


def test_what_is_larger_than_the_bound_is_given_and_not_kept() -> None:
    cache = PartCache(100)
    cache.get("small", lambda: Thing("small"))
    assert cache.get("large", lambda: Thing("large", 101)).name == "large"
    assert cache.peek("large") is None
    assert cache.peek("small") is not None
    assert PartCache(0).get("any", lambda: Thing("any")).name == "any"


def test_an_error_is_told_once_and_the_next_one_tries_again() -> None:
    def fail() -> Thing:
        raise OSError("broken")

    cache = PartCache(100)
    with pytest.raises(OSError, match="broken"):
        cache.get("a", fail)
    assert cache.get("a", lambda: Thing("made")).name == "made"


def test_many_who_ask_at_once_have_it_made_once() -> None:
    made: list[int] = []
    go = threading.Barrier(4)

    def make() -> Thing:
        made.append(1)
        return Thing("a")

    def ask() -> str:
        go.wait(30)
        return cache.get("a", make).name

    counted: list[str] = []
    cache = PartCache(100, count=counted.append)
    with ThreadPoolExecutor(4) as threads:
        assert [each.result(30) for each in [threads.submit(ask) for _ in range(4)]] == ["a"] * 4
    assert len(made) == 1
    assert sorted(counted) == ["hit", "hit", "hit", "miss"]


def test_what_was_made_of_a_damaged_copy_is_forgotten_also_while_it_is_made() -> None:
    cache = PartCache(1000)
    for key in (
        ("totals", "block"),
        ("names", (("block", ""), ("other", ""))),
        ("totals", "other"),
    ):
        cache.get(key, lambda: Thing("old"))

    def make() -> Thing:
        cache.forget({"block"})
        return Thing("of the damaged copy")

    assert cache.get(("stacks", "block"), make).name == "of the damaged copy"
    assert cache.peek(("totals", "other")) is not None
    assert cache.bytes == Thing("old").size
    assert cache.get(("stacks", "block"), lambda: Thing("new")).name == "new"
    assert cache.peek(("stacks", "block")).name == "new"
