"""Profiles reach the writer of their shard, or the client hears why not."""

from __future__ import annotations

import asyncio

import pytest

from maar.distributor.service import undelivered_error
from maar.model.errors import (
    Unavailable,
)
from maar.model.ids import HOME
from maar.model.time import SECOND_NS
from maar.placement.rules import Balancing, Rules, Share
from support.segment.pushes import SERVICES, push_all, run_story
from support.segment.writers_as_told import ACME, Fleet, profile

# ------------------------------------------------------------------ placement


def test_every_shard_goes_to_its_writer_with_its_id() -> None:
    fleet = push_all(Fleet("a", "b", "c"), *SERVICES)
    for service in SERVICES:
        shard, (owner, *_) = fleet.owner_of(service)
        assert (shard, profile(service)) in fleet.writers[owner].stored
    assert sum(map(len, fleet.stored_services().values())) == len(SERVICES)
    assert fleet.metric_value("tries_total", outcome="stored") == len(
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

    run_story(fleet, story)


def test_new_rules_count_from_the_next_push() -> None:
    fleet = Fleet("a", "b", "c")

    async def story(fleet: Fleet) -> None:
        await fleet.router.push([profile(number=n) for n in range(40)])
        assert len({shard for one in fleet.writers.values() for shard, _ in one.stored}) == 1
        share = Share(0, 8, Balancing.FINGERPRINT)
        fleet.rules = Rules(1, {(ACME, "shop"): share})
        await fleet.router.push([profile(number=n) for n in range(200)])
        assert len({shard for one in fleet.writers.values() for shard, _ in one.stored}) == 8

    run_story(fleet, story)


def test_the_writer_of_this_process_is_called_directly() -> None:
    fleet = push_all(Fleet("a", local="a"), *SERVICES)
    assert fleet.connected == []
    assert len(fleet.stored_services()["a"]) == len(SERVICES)


def test_we_know_better_than_the_metastore_that_our_own_writer_lives() -> None:
    fleet = Fleet(local="a")
    fleet.ring("a", dead=["a"])
    push_all(fleet)
    assert fleet.stored_services() == {"a": ["shop"]}


def test_a_ring_that_grows_takes_effect_at_once() -> None:
    fleet = Fleet("a")

    async def story(fleet: Fleet) -> None:
        await fleet.push(*SERVICES)
        fleet.ring("a", "b", "c")
        await fleet.push(*SERVICES)

    run_story(fleet, story)
    assert set(fleet.stored_services()) == {"a", "b", "c"}


# ------------------------------------------------------------------ no ring, ready


def test_without_a_ring_nothing_can_be_stored_and_it_says_so() -> None:
    fleet = Fleet()
    assert "ring of zone home is not known yet" in fleet.router.ready()
    with pytest.raises(Unavailable, match="not known yet") as caught:
        push_all(fleet)
    assert caught.value.retry_after_s
    fleet.ring("a")
    assert fleet.router.ready() == ""


def test_an_empty_ring_has_nobody_to_push_to() -> None:
    fleet = Fleet()
    fleet.ring()
    assert "none of the 0" in fleet.router.ready()
    with pytest.raises(Unavailable, match="none of the 0"):
        push_all(fleet)


def test_the_answer_names_the_cause() -> None:
    assert "it burns" in str(undelivered_error([Unavailable("it burns")], zone=HOME, waits_ns=0))
    waiting = undelivered_error([], zone=HOME, waits_ns=3 * SECOND_NS)
    assert waiting.retry_after_s == 3


def test_a_large_push_goes_in_messages_that_fit() -> None:
    payload = b"x" * (10 << 20)
    fleet = Fleet("a")

    async def story(fleet: Fleet) -> None:
        profiles = [profile(number=n, payload=payload) for n in range(8)]
        await fleet.router.push(profiles)

    run_story(fleet, story)
    assert len(fleet.writers["a"].stored) == 8
    assert fleet.writers["a"].tries == 4
