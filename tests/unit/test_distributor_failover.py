"""What one writer does not take, the next one takes; what nobody can take is said."""

from __future__ import annotations

import pytest

from maar.distributor.routes import RETRY_AFTER_S
from maar.distributor.settings import RouterSettings
from maar.model.errors import (
    Corrupt,
    Draining,
    InvalidInput,
    MaarError,
    Overloaded,
    Retryable,
    StoreFull,
    TooLarge,
    Unavailable,
    Unreachable,
)
from maar.model.ring import WriterState
from support.segment.pushes import SERVICES, push_all
from support.segment.writers_as_told import Fleet, profile


@pytest.mark.parametrize(
    "failure",
    [Unreachable("gone"), Overloaded("full"), Unavailable("its store is away"), Draining("bye")],
)
def test_what_one_writer_does_not_take_the_next_one_takes_under_the_same_shard(
    failure: Retryable,
) -> None:
    fleet = Fleet("a", "b", "c")
    shard, (first, second, _) = fleet.owner_of("shop")
    fleet.writer(first).failure = failure
    push_all(fleet)
    assert fleet.writers[second].stored == [(shard, profile())]
    assert fleet.metric_value("failovers_total") == 1


@pytest.mark.parametrize("state", [WriterState.JOINING, WriterState.LEAVING])
def test_a_writer_that_is_not_active_is_not_even_asked(state: WriterState) -> None:
    fleet = Fleet("a", "b", "c")
    shard, (first, second, _) = fleet.owner_of("shop")
    fleet.ring("a", "b", "c", states={first: state})
    push_all(fleet)
    assert fleet.stored_services() == {second: ["shop"]}
    assert fleet.writers[second].stored[0][0] == shard
    assert first not in fleet.connected
    assert fleet.metric_value("failovers_total") == 0


def test_a_dead_writer_keeps_its_shards_and_the_next_one_takes_them() -> None:
    fleet = Fleet("a", "b", "c")
    shard, (first, second, _) = fleet.owner_of("shop")
    fleet.ring("a", "b", "c", dead=[first])
    push_all(fleet)
    assert fleet.writers[second].stored == [(shard, profile())]
    assert fleet.metric_value("writers") == 2


@pytest.mark.parametrize("failure", [InvalidInput("bad"), TooLarge("big"), Corrupt("what")])
def test_what_can_never_succeed_is_not_tried_again(failure: MaarError) -> None:
    fleet = Fleet("a", "b", "c")
    _, (first, *_) = fleet.owner_of("shop")
    fleet.writer(first).failure = failure
    with pytest.raises(type(failure)):
        push_all(fleet)
    assert sum(one.tries for one in fleet.writers.values()) == 1


def test_a_full_store_is_full_for_every_writer() -> None:
    fleet = Fleet("a", "b", "c")
    for node in ("a", "b", "c"):
        fleet.writer(node).failure = StoreFull("no room")
    with pytest.raises(StoreFull):
        push_all(fleet)
    assert sum(one.tries for one in fleet.writers.values()) == 1


def test_each_writer_is_asked_once_and_not_more_than_allowed() -> None:
    nodes = [f"w{n}" for n in range(9)]
    fleet = Fleet(*nodes, settings=RouterSettings(attempts_max=4))
    for node in nodes:
        fleet.writer(node).failure = Unreachable("gone")
    with pytest.raises(Unavailable):
        push_all(fleet)
    assert sorted(one.tries for one in fleet.writers.values()) == [0] * 5 + [1] * 4


def test_writers_that_are_all_full_mean_429_and_when() -> None:
    fleet = Fleet("a", "b", "c")
    for node, wait_s in (("a", 7.0), ("b", 3.0), ("c", None)):
        fleet.writer(node).failure = Overloaded("full", retry_after_s=wait_s)
    with pytest.raises(Overloaded, match="zone home have no room") as caught:
        push_all(fleet)
    assert caught.value.retry_after_s == RETRY_AFTER_S
    assert fleet.metric_value("tries_total", outcome="overloaded") == 3


def test_the_only_writers_within_reach_being_full_means_429_too() -> None:
    fleet = Fleet("a", "b")
    fleet.writer("a").failure, fleet.writer("b").failure = Overloaded("full"), Unreachable("gone")
    with pytest.raises(Overloaded):
        push_all(fleet)


def test_nobody_within_reach_means_503_and_when() -> None:
    fleet = Fleet("a", "b")
    for node in ("a", "b"):
        fleet.writer(node).failure = Unreachable("gone")
    with pytest.raises(Unavailable, match=r"no segment writer of zone home .*gone") as caught:
        push_all(fleet)
    assert caught.value.retry_after_s == RETRY_AFTER_S


def test_a_bug_in_a_writer_is_not_hidden() -> None:
    class Bug(Exception):
        pass

    fleet = Fleet("a", "b")
    for node in ("a", "b"):
        fleet.writer(node).failure = Bug()  # type: ignore[assignment]
    with pytest.raises(Bug):
        push_all(fleet)
    with pytest.raises(Bug):
        push_all(fleet, *SERVICES)


def test_one_shard_that_fails_fails_the_push_and_the_others_are_stored() -> None:
    fleet = Fleet("a", "b", settings=RouterSettings(attempts_max=1))
    fleet.writer("a").failure = Overloaded("full")
    with pytest.raises(Overloaded):
        push_all(fleet, *SERVICES)
    owned = [service for service in SERVICES if fleet.owner_of(service)[1][0] == "b"]
    assert sorted(fleet.stored_services()["b"]) == sorted(owned)


def test_what_can_never_succeed_is_said_before_what_may() -> None:
    fleet = Fleet("a", "b", settings=RouterSettings(attempts_max=1))
    for bad, full in (("a", "b"), ("b", "a")):
        fleet.writer(full).failure = Overloaded("full")
        fleet.writer(bad).failure = InvalidInput("bad")
        with pytest.raises(InvalidInput):
            push_all(fleet, *SERVICES)
