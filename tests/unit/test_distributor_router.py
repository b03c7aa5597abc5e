"""Profiles reach the writer of their shard, or the next one, or the client hears why not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from maar.distributor.batches import ShardBatch
from maar.distributor.breaker import OPEN_NS
from maar.distributor.router import RETRY_AFTER_S, RouterSettings, refused, try_ns
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
from maar.model.ids import HOME, NodeId, Shard, Zone
from maar.model.ring import WriterState
from maar.model.time import SECOND_NS
from maar.placement.locate import Place, Spot
from maar.placement.rules import Balancing, Rules, Share
from support.clock.virtual_time import run_virtually
from support.http.front import SetClock
from support.segment.writers_as_told import ACME, Fleet, profile

SERVICES = [f"service-{n}" for n in range(24)]


def told(fleet: Fleet, story: Callable[[Fleet], Coroutine[Any, Any, None]]) -> Fleet:
    """Tell a story, then close the router; nothing may be left of it."""

    async def whole() -> None:
        try:
            await story(fleet)
        finally:
            await fleet.router.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left

    run_virtually(whole())
    return fleet


def pushed(fleet: Fleet, *services: str, times: int = 1) -> Fleet:
    async def story(fleet: Fleet) -> None:
        for _ in range(times):
            await fleet.push(*services)

    return told(fleet, story)


# ------------------------------------------------------------------ placement


def test_every_shard_goes_to_its_writer_with_its_id() -> None:
    fleet = pushed(Fleet("a", "b", "c"), *SERVICES)
    for service in SERVICES:
        shard, (owner, *_) = fleet.owner_of(service)
        assert (shard, profile(service)) in fleet.writers[owner].stored
    assert sum(map(len, fleet.stored().values())) == len(SERVICES)
    assert fleet.counted("tries_total", outcome="stored") == len(
        {fleet.owner_of(service)[0] for service in SERVICES}
    )


def test_a_push_of_several_shards_asks_their_writers_at_the_same_time() -> None:
    fleet = Fleet("a", "b", "c")

    async def story(fleet: Fleet) -> None:
        gate = asyncio.Event()
        for node in ("a", "b", "c"):
            fleet.writer(node).gate = gate
        push = asyncio.create_task(fleet.push(*SERVICES))
        while not all(fleet.writer(node).tries for node in ("a", "b", "c")):
            await asyncio.sleep(0)
        gate.set()
        await push

    told(fleet, story)


def test_new_rules_count_from_the_next_push() -> None:
    fleet = Fleet("a", "b", "c")

    async def story(fleet: Fleet) -> None:
        await fleet.router.push([profile(number=n) for n in range(40)])
        assert len({shard for one in fleet.writers.values() for shard, _ in one.stored}) == 1
        share = Share(0, 8, Balancing.FINGERPRINT)
        fleet.rules = Rules(1, {(ACME, "shop"): share})
        await fleet.router.push([profile(number=n) for n in range(200)])
        assert len({shard for one in fleet.writers.values() for shard, _ in one.stored}) == 8

    told(fleet, story)


def test_the_writer_of_this_process_is_called_directly() -> None:
    fleet = pushed(Fleet("a", local="a"), *SERVICES)
    assert fleet.connected == []
    assert len(fleet.stored()["a"]) == len(SERVICES)


def test_we_know_better_than_the_metastore_that_our_own_writer_lives() -> None:
    fleet = Fleet(local="a")
    fleet.ring("a", dead=["a"])
    pushed(fleet)
    assert fleet.stored() == {"a": ["shop"]}


def test_a_ring_that_grows_takes_effect_at_once() -> None:
    fleet = Fleet("a")

    async def story(fleet: Fleet) -> None:
        await fleet.push(*SERVICES)
        fleet.ring("a", "b", "c")
        await fleet.push(*SERVICES)

    told(fleet, story)
    assert set(fleet.stored()) == {"a", "b", "c"}


# ------------------------------------------------------------------ failover


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
    pushed(fleet)
    assert fleet.writers[second].stored == [(shard, profile())]
    assert fleet.counted("failovers_total") == 1


@pytest.mark.parametrize("state", [WriterState.JOINING, WriterState.LEAVING])
def test_a_writer_that_is_not_active_is_not_even_asked(state: WriterState) -> None:
    fleet = Fleet("a", "b", "c")
    shard, (first, second, _) = fleet.owner_of("shop")
    fleet.ring("a", "b", "c", states={first: state})
    pushed(fleet)
    assert fleet.stored() == {second: ["shop"]}
    assert fleet.writers[second].stored[0][0] == shard
    assert first not in fleet.connected
    assert fleet.counted("failovers_total") == 0


def test_a_dead_writer_keeps_its_shards_and_the_next_one_takes_them() -> None:
    fleet = Fleet("a", "b", "c")
    shard, (first, second, _) = fleet.owner_of("shop")
    fleet.ring("a", "b", "c", dead=[first])
    pushed(fleet)
    assert fleet.writers[second].stored == [(shard, profile())]
    assert fleet.counted("writers") == 2


@pytest.mark.parametrize("failure", [InvalidInput("bad"), TooLarge("big"), Corrupt("what")])
def test_what_can_never_succeed_is_not_tried_again(failure: MaarError) -> None:
    fleet = Fleet("a", "b", "c")
    _, (first, *_) = fleet.owner_of("shop")
    fleet.writer(first).failure = failure
    with pytest.raises(type(failure)):
        pushed(fleet)
    assert sum(one.tries for one in fleet.writers.values()) == 1


def test_a_full_store_is_full_for_every_writer() -> None:
    fleet = Fleet("a", "b", "c")
    for node in ("a", "b", "c"):
        fleet.writer(node).failure = StoreFull("no room")
    with pytest.raises(StoreFull):
        pushed(fleet)
    assert sum(one.tries for one in fleet.writers.values()) == 1


def test_each_writer_is_asked_once_and_not_more_than_allowed() -> None:
    nodes = [f"w{n}" for n in range(9)]
    fleet = Fleet(*nodes, settings=RouterSettings(attempts_max=4))
    for node in nodes:
        fleet.writer(node).failure = Unreachable("gone")
    with pytest.raises(Unavailable):
        pushed(fleet)
    assert sorted(one.tries for one in fleet.writers.values()) == [0] * 5 + [1] * 4


def test_writers_that_are_all_full_mean_429_and_when() -> None:
    fleet = Fleet("a", "b", "c")
    for node, wait_s in (("a", 7.0), ("b", 3.0), ("c", None)):
        fleet.writer(node).failure = Overloaded("full", retry_after_s=wait_s)
    with pytest.raises(Overloaded, match="zone home have no room") as caught:
        pushed(fleet)
    assert caught.value.retry_after_s == RETRY_AFTER_S
    assert fleet.counted("tries_total", outcome="overloaded") == 3


def test_the_only_writers_within_reach_being_full_means_429_too() -> None:
    fleet = Fleet("a", "b")
    fleet.writer("a").failure, fleet.writer("b").failure = Overloaded("full"), Unreachable("gone")
    with pytest.raises(Overloaded):
        pushed(fleet)


def test_nobody_within_reach_means_503_and_when() -> None:
    fleet = Fleet("a", "b")
    for node in ("a", "b"):
        fleet.writer(node).failure = Unreachable("gone")
    with pytest.raises(Unavailable, match=r"no segment writer of zone home .*gone") as caught:
        pushed(fleet)
    assert caught.value.retry_after_s == RETRY_AFTER_S


def test_a_bug_in_a_writer_is_not_hidden() -> None:
    class Bug(Exception):
        pass

    fleet = Fleet("a", "b")
    for node in ("a", "b"):
        fleet.writer(node).failure = Bug()  # type: ignore[assignment]
    with pytest.raises(Bug):
        pushed(fleet)
    with pytest.raises(Bug):
        pushed(fleet, *SERVICES)


def test_one_shard_that_fails_fails_the_push_and_the_others_are_stored() -> None:
    fleet = Fleet("a", "b", settings=RouterSettings(attempts_max=1))
    fleet.writer("a").failure = Overloaded("full")
    with pytest.raises(Overloaded):
        pushed(fleet, *SERVICES)
    owned = [service for service in SERVICES if fleet.owner_of(service)[1][0] == "b"]
    assert sorted(fleet.stored()["b"]) == sorted(owned)


def test_what_can_never_succeed_is_said_before_what_may() -> None:
    fleet = Fleet("a", "b", settings=RouterSettings(attempts_max=1))
    for bad, full in (("a", "b"), ("b", "a")):
        fleet.writer(full).failure = Overloaded("full")
        fleet.writer(bad).failure = InvalidInput("bad")
        with pytest.raises(InvalidInput):
            pushed(fleet, *SERVICES)


# ------------------------------------------------------------------ time


def test_a_hung_writer_leaves_time_for_the_next() -> None:
    fleet = Fleet("a", "b", "c", settings=RouterSettings(deadline_ms=400))
    _, (first, second, _) = fleet.owner_of("shop")
    fleet.writer(first).hangs = True
    pushed(fleet)
    assert fleet.stored() == {second: ["shop"]}
    assert fleet.writers[first].cancelled == 1
    assert fleet.counted("tries_total", outcome="given_up") == 1
    assert fleet.counted("failovers_total") == 1


def test_a_writer_that_is_only_slow_may_still_answer_while_others_are_asked() -> None:
    """As when the metastore is away for a while: all wait, and the first to go on is heard."""
    fleet = Fleet("a", "b", "c", settings=RouterSettings(deadline_ms=800))
    _, (first, second, third) = fleet.owner_of("shop")

    async def story(fleet: Fleet) -> None:
        for node in "abc":
            fleet.writer(node).gate = asyncio.Event()
        push = asyncio.create_task(fleet.push())
        while not fleet.writer(third).tries:
            await asyncio.sleep(0.005)
        fleet.writers[first].gate.set()  # type: ignore[union-attr]
        await push

    told(fleet, story)
    assert fleet.stored() == {first: ["shop"]}
    assert [fleet.writers[node].cancelled for node in (first, second, third)] == [0, 1, 1]


def test_a_writer_that_was_late_three_times_is_left_alone() -> None:
    fleet = Fleet("a", "b", settings=RouterSettings(deadline_ms=100))
    _, (first, second) = fleet.owner_of("shop")
    fleet.writer(first).hangs = True
    pushed(fleet, times=6)
    assert fleet.writers[first].tries == 3
    assert len(fleet.writers[second].stored) == 6


def test_a_late_failure_does_not_hurry_the_one_that_was_asked_meanwhile() -> None:
    fleet = Fleet("a", "b", "c", settings=RouterSettings(deadline_ms=800))
    _, (first, second, third) = fleet.owner_of("shop")

    async def story(fleet: Fleet) -> None:
        for node in "abc":
            fleet.writer(node).gate = asyncio.Event()
        fleet.writer(first).failure = Unavailable("its store is away")
        push = asyncio.create_task(fleet.push())
        while not fleet.writer(second).tries:
            await asyncio.sleep(0.005)
        fleet.writers[first].gate.set()  # type: ignore[union-attr]
        for _ in range(10):
            await asyncio.sleep(0)
        fleet.writers[second].gate.set()  # type: ignore[union-attr]
        await push

    told(fleet, story)
    assert fleet.stored() == {second: ["shop"]}
    assert fleet.writers[third].tries == 0


def test_a_late_answer_that_is_a_refusal_ends_the_push() -> None:
    fleet = Fleet("a", "b", settings=RouterSettings(deadline_ms=800))
    _, (first, second) = fleet.owner_of("shop")

    async def story(fleet: Fleet) -> None:
        for node in "ab":
            fleet.writer(node).gate = asyncio.Event()
        fleet.writer(first).failure = InvalidInput("bad")
        push = asyncio.create_task(fleet.push())
        while not fleet.writer(second).tries:
            await asyncio.sleep(0.005)
        fleet.writers[first].gate.set()  # type: ignore[union-attr]
        with pytest.raises(InvalidInput):
            await push

    told(fleet, story)
    assert fleet.writers[second].cancelled == 1


def test_when_all_writers_are_slow_new_pushes_wait_with_them() -> None:
    """Breakers choose the better writer; when there is none, the slow ones are asked."""
    clock = SetClock()
    fleet = Fleet("a", "b", settings=RouterSettings(deadline_ms=120), clock=clock)

    async def story(fleet: Fleet) -> None:
        for node in "ab":
            fleet.writer(node).hangs = True
        for _ in range(3):
            with pytest.raises(Unavailable):
                await fleet.push()
        assert fleet.counted("breakers", state="open") == 2
        assert fleet.router.ready() == ""
        for node in "ab":
            fleet.writer(node).hangs = False
        await fleet.push()

    told(fleet, story)
    assert sum(map(len, fleet.stored().values())) == 1


def test_a_client_that_hangs_up_ends_the_tries_of_its_lone_batch() -> None:
    fleet = Fleet("a", "b", settings=RouterSettings(deadline_ms=400))
    _, (first, second) = fleet.owner_of("shop")

    async def story(fleet: Fleet) -> None:
        for node in "ab":
            fleet.writer(node).hangs = True
        push = asyncio.create_task(fleet.push())
        while not fleet.writer(second).tries:
            await asyncio.sleep(0.005)
        push.cancel()
        await asyncio.gather(push, return_exceptions=True)

    told(fleet, story)
    assert [fleet.writers[node].cancelled for node in (first, second)] == [1, 1]


def test_the_deadline_of_the_whole_push_holds_when_all_hang() -> None:
    fleet = Fleet("a", "b", "c", settings=RouterSettings(deadline_ms=200))
    for node in ("a", "b", "c"):
        fleet.writer(node).hangs = True

    async def story(fleet: Fleet) -> None:
        began = asyncio.get_running_loop().time()
        with pytest.raises(Unavailable, match="did not answer within"):
            await fleet.push()
        assert asyncio.get_running_loop().time() - began >= 0.19

    told(fleet, story)
    assert sum(one.cancelled for one in fleet.writers.values()) == 3


def test_half_of_what_is_left_for_each_and_all_of_it_for_the_last() -> None:
    assert [try_ns(12 * SECOND_NS, others=True), try_ns(12 * SECOND_NS, others=False)] == [
        6 * SECOND_NS,
        12 * SECOND_NS,
    ]


def test_a_lone_writer_gets_all_the_time() -> None:
    fleet = Fleet("a", settings=RouterSettings(deadline_ms=60_000))

    async def story(fleet: Fleet) -> None:
        fleet.writer("a").gate = asyncio.Event()
        push = asyncio.create_task(fleet.push())
        while not fleet.writer("a").tries:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        fleet.writers["a"].gate.set()  # type: ignore[union-attr]
        await push

    told(fleet, story)


# ------------------------------------------------------------------ breakers and budget


def test_a_silent_writer_is_left_alone_then_probed_by_one_push_and_taken_back() -> None:
    clock = SetClock()
    fleet = Fleet("a", "b", clock=clock)
    _, (first, second) = fleet.owner_of("shop")
    fleet.writer(first).failure = Unreachable("gone")

    async def story(fleet: Fleet) -> None:
        for _ in range(10):
            await fleet.push()
        assert fleet.writers[first].tries == 3
        assert fleet.counted("breakers", state="open") == 1
        clock.now_ns += OPEN_NS
        assert fleet.counted("breakers", state="half-open") == 1
        for _ in range(5):
            await fleet.push()
        assert fleet.writers[first].tries == 4
        fleet.writers[first].failure = None
        clock.now_ns += OPEN_NS
        for _ in range(5):
            await fleet.push()

    told(fleet, story)
    assert len(fleet.writers[first].stored) == 5
    assert len(fleet.writers[second].stored) == 15
    assert fleet.counted("breakers", state="closed") == 0  # the links are closed by now


def test_while_a_probe_is_on_its_way_others_go_elsewhere() -> None:
    clock = SetClock()
    fleet = Fleet("a", "b", clock=clock)
    _, (first, _) = fleet.owner_of("shop")
    fleet.writer(first).failure = Unreachable("gone")

    async def story(fleet: Fleet) -> None:
        for _ in range(3):
            await fleet.push()
        clock.now_ns += OPEN_NS
        writer = fleet.writers[first]
        writer.failure, writer.gate = None, asyncio.Event()
        probe = asyncio.create_task(fleet.push())
        while writer.tries < 4:
            await asyncio.sleep(0)
        await fleet.push()
        assert writer.tries == 4
        probe.cancel()  # its client hung up: another one may probe
        await asyncio.gather(probe, return_exceptions=True)
        writer.gate = None
        await fleet.push()
        assert len(writer.stored) == 1

    told(fleet, story)


def test_pushes_that_come_at_the_same_time_send_one_probe() -> None:
    clock = SetClock()
    fleet = Fleet("a", "b", clock=clock)
    _, (first, second) = fleet.owner_of("shop")
    fleet.writer(first).failure = Unreachable("gone")

    async def story(fleet: Fleet) -> None:
        for _ in range(3):
            await fleet.push()
        clock.now_ns += OPEN_NS
        await asyncio.gather(*(fleet.push() for _ in range(20)))

    told(fleet, story)
    assert fleet.writers[first].tries == 4
    assert len(fleet.writers[second].stored) == 23


@pytest.mark.parametrize("failure", [Overloaded("full"), Unavailable("slow"), InvalidInput("bad")])
def test_a_writer_that_answers_is_alive_whatever_it_says(failure: MaarError) -> None:
    fleet = Fleet("a")
    fleet.writer("a").failure = failure

    async def story(fleet: Fleet) -> None:
        for _ in range(10):
            with pytest.raises(type(failure)):
                await fleet.push()

    told(fleet, story)
    assert fleet.writers["a"].tries == 10


def test_when_all_breakers_are_open_the_client_hears_at_once() -> None:
    clock = SetClock()
    fleet = Fleet("a", clock=clock)
    fleet.writer("a").failure = Unreachable("gone")

    async def story(fleet: Fleet) -> None:
        for _ in range(3):
            with pytest.raises(Unavailable):
                await fleet.push()
        assert "rest for a moment" in fleet.router.ready()
        with pytest.raises(Unavailable, match="rest for a moment") as caught:
            await fleet.push()
        assert caught.value.retry_after_s == 1.0
        assert fleet.writers["a"].tries == 3
        clock.now_ns += OPEN_NS
        assert fleet.router.ready() == ""

    told(fleet, story)


def test_a_draining_writer_rests_at_once_and_costs_no_retries() -> None:
    settings = RouterSettings(retry_share=0, retries_per_s=0, retries_saved_max=1)
    fleet = Fleet("a", "b", clock=SetClock(), settings=settings)
    _, (first, second) = fleet.owner_of("shop")

    async def story(fleet: Fleet) -> None:
        fleet.writer(first).failure = Overloaded("full")
        await fleet.push()
        with pytest.raises(Overloaded):
            await fleet.push()  # the only retry is spent
        fleet.writer(first).failure = Draining("bye")
        for _ in range(20):
            await fleet.push()

    told(fleet, story)
    assert fleet.writers[first].tries == 3
    assert len(fleet.writers[second].stored) == 21
    assert fleet.counted("budget_exhausted_total") == 1


def test_a_writer_that_was_started_again_has_a_clean_slate() -> None:
    fleet = Fleet("a", "b", clock=SetClock())
    _, (first, _) = fleet.owner_of("shop")
    fleet.writer(first).failure = Unreachable("gone")

    async def story(fleet: Fleet) -> None:
        for _ in range(4):
            await fleet.push()
        fleet.writers[first].failure = None
        fleet.ring("a", "b", sessions={first: "s2"})
        await fleet.push()

    told(fleet, story)
    assert fleet.stored()[first] == ["shop"]


def test_a_sick_fleet_is_not_hit_with_many_times_the_load() -> None:
    settings = RouterSettings(retry_share=0.1, retries_per_s=0, retries_saved_max=10)
    fleet = Fleet(*"abcdef", settings=settings, clock=SetClock())
    for node in "abcdef":
        fleet.writer(node).failure = Overloaded("full")

    async def story(fleet: Fleet) -> None:
        for _ in range(200):
            with pytest.raises(Overloaded):
                await fleet.push()

    told(fleet, story)
    tries = sum(one.tries for one in fleet.writers.values())
    assert 200 + 10 + 15 < tries <= 200 + 10 + 20
    assert fleet.counted("budget_exhausted_total") > 150


# ------------------------------------------------------------------ zones

EAST, WEST = Zone("east"), Zone("west")
CROSSING = RouterSettings(cross_zone="when-home-is-down", deadline_ms=400)


def two_zones(settings: RouterSettings, clock: SetClock | None = None) -> Fleet:
    fleet = Fleet("a", "b", settings=settings, clock=clock or SetClock())
    fleet.ring("w", zone=WEST)
    fleet.ring("e", zone=EAST)
    return fleet


@pytest.mark.parametrize("settings", [RouterSettings(), CROSSING])
def test_while_home_takes_pushes_nothing_leaves_it(settings: RouterSettings) -> None:
    fleet = two_zones(settings)
    fleet.writer("a").failure = Unreachable("gone")
    pushed(fleet, *SERVICES)
    assert set(fleet.stored()) == {"b"}
    assert set(fleet.connected) <= {"a", "b"}


def test_by_default_a_zone_that_is_down_means_503() -> None:
    fleet = two_zones(RouterSettings())
    fleet.ring("a", "b", dead=["a", "b"])
    assert "none of the 2 segment writers of zone home" in fleet.router.ready()
    with pytest.raises(Unavailable, match="none of the 2") as caught:
        pushed(fleet)
    assert caught.value.retry_after_s
    assert fleet.connected == []


def test_where_it_is_allowed_the_next_zone_by_name_takes_over_and_it_is_counted() -> None:
    fleet = two_zones(CROSSING)
    fleet.ring("a", "b", dead=["a", "b"])
    assert fleet.router.ready() == ""
    pushed(fleet, *SERVICES)
    assert set(fleet.stored()) == {"e"}
    assert {shard for shard, _ in fleet.writers["e"].stored} == {1, 2, 3, 4}
    assert fleet.counted("crossed_profiles_total", zone="east") == len(SERVICES)
    assert fleet.counted("crossed_bytes_total", zone="east") == len(SERVICES)


def test_a_home_that_falls_silent_during_a_push_is_left_in_the_same_push() -> None:
    clock = SetClock()
    fleet = two_zones(CROSSING, clock)
    for node in ("a", "b"):
        fleet.writer(node).failure = Unreachable("gone")

    async def story(fleet: Fleet) -> None:
        for _ in range(2):
            with pytest.raises(Unavailable):
                await fleet.push()
        await fleet.push(*SERVICES)
        clock.now_ns += OPEN_NS  # probes of home fail, and their profiles cross all the same
        await fleet.push(*SERVICES)

    told(fleet, story)
    assert fleet.counted("crossed_profiles_total", zone="east") == 2 * len(SERVICES)


def test_a_home_that_is_full_is_not_down() -> None:
    fleet = two_zones(CROSSING)
    for node in ("a", "b"):
        fleet.writer(node).failure = Overloaded("full")
    with pytest.raises(Overloaded):
        pushed(fleet)
    assert set(fleet.connected) <= {"a", "b"}


def test_home_takes_over_again_when_it_is_back() -> None:
    fleet = two_zones(CROSSING)
    fleet.ring("a", "b", dead=["a", "b"])

    async def story(fleet: Fleet) -> None:
        await fleet.push()
        fleet.ring("a", "b")
        await fleet.push()

    told(fleet, story)
    assert fleet.counted("crossed_profiles_total", zone="east") == 1


def test_a_home_that_is_about_to_be_known_is_not_called_down() -> None:
    fleet = Fleet(settings=CROSSING)
    fleet.ring("e", zone=EAST)
    fleet.ring("a", complete=False)
    with pytest.raises(Unavailable, match="not known yet"):
        pushed(fleet)


def test_equal_names_in_two_zones_are_two_writers() -> None:
    fleet = Fleet("a", settings=CROSSING, local="a")
    fleet.ring("a", zone=EAST)
    fleet.ring("a", states={"a": WriterState.LEAVING})
    pushed(fleet)
    assert fleet.connected == ["a"]


# ------------------------------------------------------------------ no ring, ready


def test_without_a_ring_nothing_can_be_stored_and_it_says_so() -> None:
    fleet = Fleet()
    assert "ring of zone home is not known yet" in fleet.router.ready()
    with pytest.raises(Unavailable, match="not known yet") as caught:
        pushed(fleet)
    assert caught.value.retry_after_s
    fleet.ring("a")
    assert fleet.router.ready() == ""


def test_an_empty_ring_has_nobody_to_push_to() -> None:
    fleet = Fleet()
    fleet.ring()
    assert "none of the 0" in fleet.router.ready()
    with pytest.raises(Unavailable, match="none of the 0"):
        pushed(fleet)


def test_the_answer_names_the_cause() -> None:
    assert "it burns" in str(refused([Unavailable("it burns")], zone=HOME, waits_ns=0))
    waiting = refused([], zone=HOME, waits_ns=3 * SECOND_NS)
    assert waiting.retry_after_s == 3


# ------------------------------------------------------------------ connections and hanging up


def test_connections_are_made_once_and_closed_at_the_end() -> None:
    fleet = pushed(Fleet("a", "b", "c"), *SERVICES, times=5)
    assert sorted(fleet.connected) == ["a", "b", "c"]
    assert [one.closed for one in fleet.writers.values()] == [1, 1, 1]


def test_a_writer_that_left_is_hung_up_on_when_it_owes_no_answer() -> None:
    fleet = Fleet("a", "b", clock=SetClock())
    _, (first, other) = fleet.owner_of("shop")

    async def story(fleet: Fleet) -> None:
        leaver = fleet.writer(first)
        leaver.gate = asyncio.Event()
        push = asyncio.create_task(fleet.push())
        while not leaver.tries:
            await asyncio.sleep(0)
        fleet.ring(other)
        await fleet.push()
        await asyncio.sleep(0)
        assert leaver.closed == 0
        leaver.gate.set()
        await push
        for _ in range(3):
            await asyncio.sleep(0)
        assert leaver.closed == 1
        assert fleet.writers[other].closed == 0

    told(fleet, story)
    assert fleet.writers[first].stored


def test_a_hundred_restarts_leave_no_connections_behind() -> None:
    fleet = Fleet("a", "b", clock=SetClock())

    async def story(fleet: Fleet) -> None:
        for number in range(100):
            fleet.ring("a", "b", sessions={"a": f"s{number}"})
            await fleet.push(*SERVICES[:8])
        await asyncio.sleep(0)
        assert len(fleet.router._links) == 2
        assert fleet.writers["a"].closed == 99

    told(fleet, story)


def test_a_client_that_hangs_up_takes_no_shard_along() -> None:
    fleet = Fleet("a", "b", "c")

    async def story(fleet: Fleet) -> None:
        gate = asyncio.Event()
        for node in ("a", "b", "c"):
            fleet.writer(node).gate = gate
        push = asyncio.create_task(fleet.push(*SERVICES))
        while not all(fleet.writer(node).tries for node in ("a", "b", "c")):
            await asyncio.sleep(0)
        push.cancel()
        await asyncio.gather(push, return_exceptions=True)
        gate.set()

    told(fleet, story)
    assert sum(map(len, fleet.stored().values())) == len(SERVICES)
    assert not any(one.cancelled for one in fleet.writers.values())


def test_a_failure_after_the_client_hung_up_disturbs_nobody() -> None:
    fleet = Fleet("a", "b")
    problems: list[dict[str, Any]] = []

    async def story(fleet: Fleet) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: problems.append(what))
        gate = asyncio.Event()
        for node in ("a", "b"):
            fleet.writer(node).gate = gate
            fleet.writer(node).failure = InvalidInput("bad")
        push = asyncio.create_task(fleet.push(*SERVICES))
        while not fleet.writer("a").tries:
            await asyncio.sleep(0)
        push.cancel()
        await asyncio.gather(push, return_exceptions=True)
        gate.set()

    told(fleet, story)
    assert problems == []


def test_a_try_that_is_called_off_before_it_has_begun_leaves_nothing() -> None:
    clock = SetClock()
    fleet = Fleet("a", clock=clock)
    fleet.writer("a").failure = Unreachable("gone")

    async def story(fleet: Fleet) -> None:
        for _ in range(3):
            with pytest.raises(Unavailable):
                await fleet.push()
        clock.now_ns += OPEN_NS
        link = fleet.router._links.made(HOME, NodeId("a"))
        assert link is not None
        batch = ShardBatch(Place(Shard(1), Spot(0, 4, 0, 1), 0), (profile(),))
        probe = fleet.router._beside(link, batch, SECOND_NS)
        assert not link.allows(now_ns=clock.now_ns)
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        await asyncio.sleep(0)
        assert (link.under_way, fleet.writers["a"].tries) == (0, 3)
        assert link.allows(now_ns=clock.now_ns)

    told(fleet, story)


def test_what_nobody_waits_for_does_not_keep_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maar.distributor.router.CLOSE_S", 0.05)
    fleet = Fleet("a", "b")

    async def story(fleet: Fleet) -> None:
        for node in ("a", "b"):
            fleet.writer(node).hangs = True
        push = asyncio.create_task(fleet.push(*SERVICES))
        while not fleet.writer("a").tries:
            await asyncio.sleep(0)
        push.cancel()
        await asyncio.gather(push, return_exceptions=True)

    told(fleet, story)


def test_a_large_push_goes_in_messages_that_fit() -> None:
    payload = b"x" * (10 << 20)
    fleet = Fleet("a")

    async def story(fleet: Fleet) -> None:
        profiles = [profile(number=n, payload=payload) for n in range(8)]
        await fleet.router.push(profiles)

    told(fleet, story)
    assert len(fleet.writers["a"].stored) == 8
    assert fleet.writers["a"].tries == 4
