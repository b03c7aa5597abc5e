"""The distributor's view of the rules: newer ones only, none at first, and none are lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from maar.adapters.stores.open import open_store
from maar.distributor.agent import PlacementAgent
from maar.model import keys
from maar.model.errors import Unavailable
from maar.model.ids import Incarnation, TenantId
from maar.placement import wire
from maar.placement.rules import Rules, Share
from maar.ports.metastore.log_time import Now
from maar.ports.stores.object_store import ObjectInfo, ObjectStore, StoreSettings
from support.clock.virtual_time import run_virtually, until
from support.http.memory_metastore import MemoryMetastore

LOG = Incarnation("1234abcd")  # of the metastore in memory


def share(shards: int) -> dict[tuple[TenantId, str], Share]:
    return {(TenantId("acme"), "checkout"): Share(0, shards)}


class World:
    def __init__(self, directory: Path) -> None:
        self.store: ObjectStore = open_store(StoreSettings("main", directory.as_uri()))
        self.metastore = MemoryMetastore()
        self.registry = CollectorRegistry()
        self.agent = PlacementAgent(self.store, self.metastore, self.registry)

    def put(self, created_at: int, shards: int, log: Incarnation = LOG) -> str:
        key = keys.placement_rules(incarnation=log, created_at=created_at)
        self.store.create(key, wire.encode_rules(Rules(created_at, share(shards))))
        return key

    def look(self) -> Rules:
        run_virtually(self.agent.following(every_s=1.0).turn())
        return self.agent.rules

    def failed(self, what: str) -> float:
        name = "maar_distributor_rules_failures_total"
        return self.registry.get_sample_value(name, {"what": what}) or 0


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_it_starts_without_any_rules(world: World) -> None:
    assert world.agent.rules == Rules()
    assert world.look() == Rules()
    assert world.failed("store") == 0


def test_newer_rules_replace_older_ones_whole(world: World) -> None:
    world.put(10, 3)
    assert world.look() == Rules(10, share(3))
    world.put(11, 1)
    assert world.look() == Rules(11, share(1))
    assert world.registry.get_sample_value("maar_distributor_rules") == 1


def test_older_rules_are_ignored_also_when_they_come_later(world: World) -> None:
    newest = world.put(10, 3)
    world.look()
    world.store.delete(newest)
    world.put(9, 7)
    assert world.look() == Rules(10, share(3))


def test_damaged_rules_are_passed_by_and_told_of_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.put(10, 3)
    world.store.create(keys.placement_rules(incarnation=LOG, created_at=11), b"\xff\xff")
    with caplog.at_level(logging.ERROR):
        assert world.look() == Rules(10, share(3))
        assert world.look() == Rules(10, share(3))
    assert world.failed("damaged") == 1
    assert len(caplog.records) == 1
    world.put(12, 4)
    assert world.look() == Rules(12, share(4))


def test_a_store_that_does_not_answer_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put(10, 3)
    world.look()

    def broken(_prefix: str) -> Iterator[ObjectInfo]:
        raise Unavailable("the store is away")

    with monkeypatch.context() as away:
        away.setattr(world.store, "list", broken)
        assert world.look() == Rules(10, share(3))
    assert world.failed("store") == 1
    world.put(11, 4)
    assert world.look() == Rules(11, share(4))


def test_without_the_metastore_it_goes_on_with_the_log_that_it_knows(world: World) -> None:
    world.metastore.failures = [Unavailable("away")]
    world.put(10, 3)
    assert world.look() == Rules()  # it has never heard of any log
    assert world.look() == Rules(10, share(3))
    world.metastore.failures = [Unavailable("away")]
    world.put(11, 4)
    assert world.look() == Rules(11, share(4))


def test_a_restored_log_counts_from_its_own_beginning_and_nothing_is_lost_until_it_rules(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put(1000, 3)
    world.look()
    other = Incarnation("0badcafe")

    async def now() -> Now:
        return Now(other, world.metastore.lease_time, 1)

    monkeypatch.setattr(world.metastore, "now", now)
    assert world.look() == Rules(1000, share(3))
    world.put(5, 2, other)
    assert world.look() == Rules(5, share(2))


def test_it_follows_for_ever_through_failures(world: World) -> None:
    async def story() -> None:
        following = asyncio.create_task(world.agent.follow(every_s=0.01))
        world.metastore.failures = [Unavailable("away")] * 3
        world.put(10, 3)
        await until(lambda: world.agent.rules.created_at == 10)
        world.put(11, 4)
        await until(lambda: world.agent.rules.created_at == 11)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    run_virtually(story())
