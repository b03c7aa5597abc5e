"""Objects are deleted within a second of the confirmation that they may go, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from maar.model.errors import LeaseLost, Unavailable
from maar.model.time import SECOND_NS
from maar.services.deletion import AT_ONCE_MAX, TRIES_MAX, BatchDeleter
from support.clock.fake_clock import FakeClock
from support.stores.memory_store import MemoryStore


class Slow(MemoryStore):
    """Every deletion takes its time."""

    def __init__(self, clock: FakeClock, keys: Sequence[str], *, takes_ns: int = 0) -> None:
        super().__init__()
        self._clock = clock
        self._takes_ns = takes_ns
        for key in keys:
            self.create(key, b"x")

    def delete(self, key: str) -> None:
        super().delete(key)
        self._clock.advance(self._takes_ns)

    def left(self) -> list[str]:
        return [info.key for info in self.list("")]


class Authority:
    """Says what may go; each answer takes as long as it is told."""

    def __init__(self, clock: FakeClock, *takes_ns: int) -> None:
        self._clock = clock
        self._takes_ns = list(takes_ns)
        self.asked: list[list[str]] = []
        self.refuses_from = 1 << 30  # questions
        self.spared: set[str] = set()

    def confirm(self, keys: Sequence[str]) -> Sequence[str]:
        self.asked.append(list(keys))
        if len(self.asked) > self.refuses_from:
            raise LeaseLost("somebody else has it")
        self._clock.advance(self._takes_ns.pop(0) if self._takes_ns else 0)
        return [key for key in keys if key not in self.spared]


def names(count: int) -> list[str]:
    return [f"lake/{number:04}" for number in range(count)]


def test_each_batch_is_confirmed_and_only_what_was_confirmed_goes() -> None:
    clock = FakeClock()
    store, authority = Slow(clock, names(AT_ONCE_MAX + 2)), Authority(clock)
    authority.spared = {names(4)[3]}
    deleter = BatchDeleter(store, authority.confirm, clock.monotonic_ns)
    assert deleter.delete(names(AT_ONCE_MAX + 2)) == AT_ONCE_MAX + 1
    assert store.left() == [names(4)[3]]
    assert [len(asked) for asked in authority.asked] == [AT_ONCE_MAX, 2]
    assert BatchDeleter(store, authority.confirm, clock.monotonic_ns).delete([]) == 0
    assert len(authority.asked) == 2, "nobody is asked about nothing"


@pytest.mark.parametrize(("takes_ns", "questions"), [(SECOND_NS // 2 - 1, 1), (SECOND_NS, 3)])
def test_a_confirmation_counts_for_less_than_a_second(takes_ns: int, questions: int) -> None:
    clock = FakeClock()
    store, authority = Slow(clock, names(3), takes_ns=takes_ns), Authority(clock)
    assert BatchDeleter(store, authority.confirm, clock.monotonic_ns).delete(names(3)) == 3
    assert len(authority.asked) == questions
    assert authority.asked[-1] == names(3)[questions - 1 :], "only about what is left"


def test_the_second_begins_before_the_question_and_ends_with_it() -> None:
    """An answer that was on its way for a second says nothing about now."""
    clock = FakeClock()
    store = Slow(clock, names(1))
    late = Authority(clock, SECOND_NS)
    late.refuses_from = 1
    with pytest.raises(LeaseLost):
        BatchDeleter(store, late.confirm, clock.monotonic_ns).delete(names(1))
    assert store.left() == names(1)
    timely = Authority(clock, SECOND_NS - 1)
    timely.refuses_from = 1
    assert BatchDeleter(store, timely.confirm, clock.monotonic_ns).delete(names(1)) == 1


def test_whoever_is_always_answered_too_late_gives_up_for_now() -> None:
    clock = FakeClock()
    store, authority = Slow(clock, names(2)), Authority(clock, *[SECOND_NS] * 9)
    with pytest.raises(Unavailable, match="over a second"):
        BatchDeleter(store, authority.confirm, clock.monotonic_ns).delete(names(2))
    assert store.left() == names(2)
    assert len(authority.asked) == TRIES_MAX


def test_whoever_was_stopped_between_two_deletes_asks_again_and_is_refused() -> None:
    clock = FakeClock()
    store, authority = Slow(clock, names(3), takes_ns=3600 * SECOND_NS), Authority(clock)
    authority.refuses_from = 1
    gone: list[str] = []
    with pytest.raises(LeaseLost):
        gone.extend(BatchDeleter(store, authority.confirm, clock.monotonic_ns).deleting(names(3)))
    assert store.left() == names(3)[1:]
