"""A rollback deletes what is confirmed, within a second of the confirmation, and sees it gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from maar.model import keys
from maar.model.errors import Corrupt, LeaseLost, Unavailable
from maar.model.ids import FencingToken, Incarnation, PlanId
from maar.model.plan import Rollback
from maar.model.time import SECOND_NS
from maar.services.deletion import AT_ONCE_MAX, TRIES_MAX
from maar.services.rollback.run import Tools, roll_back
from support.clock.fake_clock import FakeClock
from support.metastore.fold import output, segment
from support.stores.memory_store import MemoryStore

PLAN, LIFE = PlanId(7, 0), Incarnation("0badcafe")
OLD, NEW = FencingToken(LIFE, 8), FencingToken(LIFE, 9)
ROLLBACK = Rollback(PlanId(10, 0), FencingToken(LIFE, 10), PLAN, (OLD,))


class Leader:
    """Confirms everything, after a while, until somebody else holds the rollback."""

    def __init__(self, clock: FakeClock, *, takes_ns: int = 0) -> None:
        self.clock = clock
        self.takes_ns = takes_ns
        self.asked: list[tuple[str, ...]] = []
        self.listed: set[str] = set()
        self.lost = False

    def confirm(self, wanted: Sequence[str]) -> Sequence[str]:
        self.asked.append(tuple(wanted))
        self.clock.advance(self.takes_ns)
        if self.lost:
            raise LeaseLost("somebody else has it")
        return [key for key in wanted if key not in self.listed]


class SlowStore(MemoryStore):
    """Whoever deletes is stopped for a while after some deletes: SIGSTOP, a long pause."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.stopped_clock = clock
        self.deleted: list[str] = []
        self.stops_after = 10**9
        self.keeps = ""  # an object that does not go away
        self.on_stop: Callable[[], object] = int

    def delete(self, key: str) -> None:
        if key != self.keeps:
            super().delete(key)
        self.deleted.append(key)
        if len(self.deleted) == self.stops_after:
            self.stopped_clock.advance(3600 * SECOND_NS)
            self.on_stop()


def attempt(store: MemoryStore, token: FencingToken, task: str = "0-1-aa") -> list[str]:
    """What a task attempt writes: its intent, then the objects that it names."""
    inputs = (segment(1), segment(2))
    meta = output(PLAN, token, inputs, profiles=20, attempt=task)
    named = [file.locations[0].key for file in meta.files]
    intent = keys.intent(plan=PLAN, token=token, attempt=task, ordinal=0)
    store.create(intent, "\n".join(named).encode())
    for key in named:
        store.create(key, b"x")
    return named


def left(store: MemoryStore) -> set[str]:
    return {info.key for info in store.list("") if not info.key.startswith("attempts/")}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> SlowStore:
    return SlowStore(clock)


def tools(store: MemoryStore, leader: Leader) -> Tools:
    return Tools(store, leader.confirm, leader.clock.monotonic_ns)


def test_what_the_attempt_wrote_goes_and_its_intents_stay(
    clock: FakeClock, store: SlowStore
) -> None:
    first, second = attempt(store, OLD), attempt(store, OLD, "0-2-bb")
    later = attempt(store, NEW)
    result = roll_back(ROLLBACK, tools(store, Leader(clock)))
    assert result.removed == len(first) + len(second)
    assert left(store) == set(later), "another token is another rollback's"
    assert len(list(store.list(keys.attempt_prefix(plan=PLAN, token=OLD)))) == 2


def test_again_it_finds_nothing_and_asks_nothing(clock: FakeClock, store: SlowStore) -> None:
    attempt(store, OLD)
    leader = Leader(clock)
    roll_back(ROLLBACK, tools(store, leader))
    asked = len(leader.asked)
    assert roll_back(ROLLBACK, tools(store, leader)).removed == 0
    assert len(leader.asked) == asked


def test_what_the_index_lists_stays(clock: FakeClock, store: SlowStore) -> None:
    named = attempt(store, OLD)
    leader = Leader(clock)
    leader.listed = set(named[:2])
    assert roll_back(ROLLBACK, tools(store, leader)).removed == len(named) - 2
    assert left(store) == set(named[:2])


def test_stopped_across_a_restore_it_deletes_nothing_more(
    clock: FakeClock, store: SlowStore
) -> None:
    """The confirmation is an hour old when the process goes on: it asks again, and has lost."""
    named = attempt(store, OLD)
    leader = Leader(clock)
    store.stops_after = 2

    def restored() -> None:
        leader.lost = True

    store.on_stop = restored
    with pytest.raises(LeaseLost):
        roll_back(ROLLBACK, tools(store, leader))
    assert len(store.deleted) == 2
    assert len(left(store)) == len(named) - 2
    assert len(leader.asked) == 2


def test_a_confirmation_counts_from_before_it_was_asked_for(
    clock: FakeClock, store: SlowStore
) -> None:
    """Its answer may have been on the way while the process was stopped."""
    named = attempt(store, OLD)
    leader = Leader(clock, takes_ns=SECOND_NS)
    with pytest.raises(Unavailable, match="over a second"):
        roll_back(ROLLBACK, tools(store, leader))
    assert store.deleted == []
    assert left(store) == set(named)
    assert len(leader.asked) == TRIES_MAX, "it does not ask for ever"
    leader.takes_ns = SECOND_NS - 1
    assert roll_back(ROLLBACK, tools(store, leader)).removed == len(named)


def test_a_short_stop_costs_one_more_question(clock: FakeClock, store: SlowStore) -> None:
    named = attempt(store, OLD)
    leader = Leader(clock)
    store.stops_after = 2
    assert roll_back(ROLLBACK, tools(store, leader)).removed == len(named)
    assert [len(asked) for asked in leader.asked] == [len(named), len(named) - 2]


def test_an_object_that_does_not_go_away_is_no_success(clock: FakeClock, store: SlowStore) -> None:
    store.keeps = attempt(store, OLD)[0]
    with pytest.raises(Unavailable, match="still there"):
        roll_back(ROLLBACK, tools(store, Leader(clock)))


def test_an_intent_that_cannot_be_followed_fails_it_after_the_rest_is_gone(
    clock: FakeClock, store: SlowStore
) -> None:
    attempt(store, OLD)
    strange = f"{keys.attempt_prefix(plan=PLAN, token=OLD)}a-0"
    store.create(strange, b"lake/v1/everything.parquet")
    store.create("lake/v1/everything.parquet", b"x")
    with pytest.raises(Corrupt, match="cannot have written"):
        roll_back(ROLLBACK, tools(store, Leader(clock)))
    assert left(store) == {"lake/v1/everything.parquet"}
    assert strange in {info.key for info in store.list("attempts/")}


def test_many_objects_are_confirmed_in_batches(clock: FakeClock, store: SlowStore) -> None:
    for number in range(60):
        attempt(store, OLD, f"0-{number}-aa")
    leader = Leader(clock)
    roll_back(ROLLBACK, tools(store, leader))
    assert left(store) == set()
    assert max(map(len, leader.asked)) == AT_ONCE_MAX
