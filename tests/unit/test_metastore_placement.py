"""The placement manager: what it counts, what it stores, and what failures do not change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from maar.adapters.stores.open import open_store
from maar.metastore.leader.placement_manager import (
    HEARD_MAX,
    PlacementManager,
    next_time,
    surroundings,
)
from maar.metastore.records.effects import Registered
from maar.metastore.records.entries import RingChanged
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import MaarError, NotLeading, StoreFull, Unavailable
from maar.model.ids import BlockId, Incarnation, NodeId, TenantId, Zone
from maar.model.ring import Writer, WriterState
from maar.model.time import SECOND_NS, LeaseTime
from maar.placement import stored, wire
from maar.placement.rules import Balancing, PlacementSettings, Rules, Share, TenantLimits
from maar.placement.stored import StoredNames
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from support.clock.fake_clock import FakeClock
from support.clock.virtual_time import run_virtually, until
from support.metastore.fold import INCARNATION, TENANT, Fold, segment

UNIT = 128 << 10
CHECKOUT = (TENANT, "checkout")


class Leader:
    """Leads nothing; its time goes when it is told."""

    def __init__(self) -> None:
        self.fold = Fold()
        self.fold.state.incarnation = INCARNATION
        self.time = 1_000_000 * SECOND_NS
        self.deposed = False

    @property
    def state(self) -> MetaState:
        return self.fold.state

    def now(self) -> LeaseTime:
        return LeaseTime(self.time)

    def confirm(self) -> None:
        if self.deposed:
            raise NotLeading("somebody else leads")


class World:
    """A directory outlives the managers that use it, as terms come and go."""

    def __init__(self, directory: Path) -> None:
        self.store: ObjectStore = open_store(StoreSettings("main", directory.as_uri()))
        self.leader = Leader()
        self.clock = FakeClock()
        self.settings = PlacementSettings()
        self.limits: dict[TenantId, TenantLimits] = {}
        self.elect()

    def elect(self, heard_max: int = HEARD_MAX) -> None:
        """Another process leads from now on."""
        self.registry = CollectorRegistry()
        self.manager = PlacementManager(
            *(self.settings, self.limit, self.store, self.clock, self.registry),
            heard_max=heard_max,
        )
        self.manager.start_leading()

    def limit(self, tenant: TenantId) -> TenantLimits:
        return self.limits.get(tenant, self.settings.tenant)

    def pass_s(self, seconds: float) -> None:
        self.leader.time += round(seconds * SECOND_NS)
        self.clock.advance(round(seconds * SECOND_NS))

    def register(self, *metas: BlockMeta, refusal: str = "", profiles: int = 10) -> None:
        effects = [Registered(meta.id, refusal, profiles) for meta in metas]
        self.manager.hear(metas, effects, self.leader.now())

    def write(self, seconds: int, rate: int, shards: Sequence[int] = (1,)) -> None:
        """A second is a segment of each shard."""
        for second in range(seconds):
            self.register(
                *(
                    segment(
                        100 * second + shard,
                        at=self.leader.time,
                        shard=shard,
                        size=rate // len(shards),
                    )
                    for shard in shards
                )
            )
            self.pass_s(1)

    def rule(self) -> bool:
        return run_virtually(self.manager.ruling(self.leader).turn())

    def shelf(self) -> StoredNames:
        return stored.list_names(self.store, INCARNATION)

    def rules(self) -> Rules:
        return stored.newest_rules(self.store, self.shelf().rules).value or Rules()

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"maar_placement_{name}", labels) or 0


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# ── what counts ────────────────────────────────────────────────────────────────────────────────


def test_what_is_registered_becomes_rules_and_statistics_in_the_store(world: World) -> None:
    world.write(1800, 3 * UNIT + 1000, shards=(1, 2))
    assert world.rule()
    assert world.rules() == Rules(world.leader.time, {CHECKOUT: Share(0, 4)})
    stats = stored.newest_stats(world.store, world.shelf().stats).value
    assert stats is not None
    (dataset,) = stats.datasets
    assert dataset.usage == pytest.approx(3 * UNIT, rel=0.02)
    assert [(use.shard, use.owner) for use in dataset.shards] == [(1, "writer-1"), (2, "writer-1")]
    assert world.metric("datasets") == 1
    assert world.metric("rates") == 2
    assert world.metric("rules") == 1


def test_repeated_and_refused_registrations_do_not_count(world: World) -> None:
    meta = segment(1, at=world.leader.time, size=1 << 30)
    world.register(meta, profiles=0)  # it was known before
    world.register(meta, refusal="too old", profiles=0)
    world.pass_s(15)
    assert world.rule()
    assert world.metric("datasets") == 0
    world.manager.hear((meta, meta), [Registered(meta.id, "", 10)] * 2, world.leader.now())
    world.pass_s(180)
    assert world.rule()
    stats = stored.newest_stats(world.store, world.shelf().stats).value
    assert stats is not None
    assert stats.datasets[0].usage == pytest.approx((1 << 30) / 180 / 2)  # after one half-life


def test_what_comes_within_a_second_counts_together(world: World) -> None:
    for number in range(3):
        world.register(segment(number, at=world.leader.time, size=1 << 30))
    world.pass_s(180)
    assert world.rule()
    stats = stored.newest_stats(world.store, world.shelf().stats).value
    assert stats is not None
    assert stats.datasets[0].usage == pytest.approx(3 * (1 << 30) / 180 / 2)


def test_a_size_that_cannot_be_does_no_harm(world: World) -> None:
    meta = segment(1, at=world.leader.time, size=1000)
    wrong = [msgspec.structs.replace(meta.datasets[0], size=size) for size in (-5, 2**62)]
    for number, dataset in enumerate(wrong):
        block = BlockId(f"{world.leader.time:016x}{number:016x}")
        world.register(msgspec.structs.replace(meta, id=block, datasets=(dataset,)))
        world.pass_s(1)
    assert world.rule()
    assert world.rules().datasets[CHECKOUT].dataset_shards == 1


def test_more_than_can_wait_is_lost_and_counted(world: World) -> None:
    world.elect(heard_max=5)
    world.write(8, 1000)
    assert world.metric("dropped_samples_total") == 3
    assert world.rule()
    assert world.metric("datasets") == 1


def test_statistics_are_bounded_and_what_is_forgotten_is_counted(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.settings = PlacementSettings(datasets_max=10)
    world.elect()
    for number in range(50):
        world.register(segment(number, at=world.leader.time, service=f"s{number}"))
        world.pass_s(1)
    assert world.rule()
    assert world.metric("datasets") <= 10
    assert world.metric("evictions_total") == 50 - world.metric("datasets")
    assert len(world.rules().datasets) <= 10


def test_a_tenant_s_own_limits_are_asked_at_every_build(world: World) -> None:
    world.write(60, 100)
    world.rule()
    world.limits[TENANT] = TenantLimits(
        tenant_shards=8, dataset_shards_min=3, balancing="round-robin"
    )
    world.pass_s(15)
    world.rule()
    assert world.rules().datasets == {CHECKOUT: Share(8, 3, Balancing.ROUND_ROBIN)}
    assert world.metric("switches_total", to="round-robin") == 1
    assert world.metric("round_robin_datasets") == 1


def test_writers_are_known_by_zone_and_rings_by_size() -> None:
    leader = Leader()
    writers = tuple(
        Writer(NodeId(node), "a:1", "s", 2, WriterState.ACTIVE) for node in ("w1", "w2")
    )
    leader.fold.put(RingChanged(Zone("west"), 0, writers, (0, 1, 0, 1)))
    around = surroundings(leader.state, lambda _: TenantLimits())
    assert around.zones == {"w1": "west", "w2": "west"}
    assert around.shards == {"west": 4}


# ── the store ──────────────────────────────────────────────────────────────────────────────────


def test_a_lake_without_traffic_writes_nothing(world: World) -> None:
    for _ in range(10):
        world.pass_s(15)
        assert world.rule()
    assert world.shelf() == StoredNames()


def test_rules_are_written_when_they_change_and_three_are_kept(world: World) -> None:
    for round_ in range(1, 8):
        world.write(60, round_ * 10 * UNIT)
        assert world.rule()
    assert len(world.shelf().rules) == 3
    assert len(world.shelf().stats) == 3
    times = [keys.placement_time(key, kind="rules") for key in world.shelf().rules]
    assert times[0] == world.leader.time
    before = world.shelf()
    world.pass_s(0)
    assert world.rule()
    assert world.shelf() == before  # nothing has changed since


class Faulty:
    """A store some of whose calls fail while they are named."""

    def __init__(self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing: dict[str, MaarError] = {}
        for name in ("create", "read", "list", "delete"):
            monkeypatch.setattr(store, name, self._wrapped(name, getattr(store, name)))

    def _wrapped(self, name: str, call: object) -> object:
        def guarded(*arguments: object) -> object:
            if name in self.failing:
                raise self.failing[name]
            assert callable(call)
            return call(*arguments)

        return guarded


def test_a_store_that_is_full_changes_nothing_and_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = Faulty(world.store, monkeypatch)
    world.write(60, 5 * UNIT)
    assert world.rule()
    before = world.rules()
    faulty.failing = {"create": StoreFull("no room")}
    world.write(600, 50 * UNIT)
    for _ in range(5):
        assert not world.rule()
        world.pass_s(5)
    assert world.rules() == before
    assert world.metric("failures_total", what="store") == 5
    assert world.metric("rules_age_seconds") == 625
    faulty.failing = {}
    assert world.rule()
    assert world.rules().datasets[CHECKOUT].dataset_shards > 40
    assert world.metric("rules_age_seconds") == 0


def test_a_defect_of_our_own_is_counted_and_costs_the_log_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def limits(_tenant: TenantId) -> TenantLimits:
        raise ZeroDivisionError

    world.manager = PlacementManager(
        world.settings, limits, world.store, world.clock, CollectorRegistry()
    )
    world.write(60, 100)
    assert not world.rule()
    assert "ZeroDivisionError" in caplog.text


def test_whoever_was_deposed_writes_no_rules(world: World) -> None:
    world.write(60, 100 * UNIT)
    world.leader.deposed = True
    assert not world.rule()
    assert world.shelf() == StoredNames()
    world.leader.deposed = False
    assert world.rule()
    assert world.shelf() != StoredNames()


def test_what_cannot_be_deleted_is_deleted_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = Faulty(world.store, monkeypatch)
    faulty.failing = {"delete": Unavailable("not now")}
    for round_ in range(1, 8):
        world.write(60, round_ * 10 * UNIT)
        assert world.rule()
    assert len(world.shelf().stats) == 7
    assert world.metric("failures_total", what="delete") > 0
    faulty.failing = {}
    assert world.rule()
    assert (len(world.shelf().rules), len(world.shelf().stats)) == (3, 3)


# ── a new term ─────────────────────────────────────────────────────────────────────────────────


def test_a_new_leader_shrinks_nothing_for_a_decay_window(world: World) -> None:
    world.write(1800, 20 * UNIT)
    assert world.rule()
    had = world.rules().datasets[CHECKOUT].dataset_shards
    assert had == 20
    world.pass_s(7200)  # nobody led, and the rules are old
    world.elect()
    for _ in range(int(TenantLimits().decay_window_s) // 60):
        world.write(60, UNIT // 2)
        assert world.rule()
        assert world.rules().datasets[CHECKOUT].dataset_shards == had
    for _ in range(45):
        world.write(60, UNIT // 2)
        assert world.rule()
    assert world.rules().datasets[CHECKOUT].dataset_shards == 1


def test_a_new_leader_keeps_the_rules_of_silent_datasets_however_old_they_are(
    world: World,
) -> None:
    world.write(1800, 20 * UNIT)
    world.rule()
    world.pass_s(100_000)
    world.elect()
    for _ in range(14):
        world.rule()
        world.pass_s(60)
    assert world.rules().datasets[CHECKOUT].dataset_shards == 20
    world.pass_s(60)
    world.rule()
    assert world.rules().datasets == {}


def test_a_new_leader_that_cannot_read_the_rules_makes_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = Faulty(world.store, monkeypatch)
    world.write(1800, 20 * UNIT)
    world.rule()
    before = world.shelf()
    world.elect()
    faulty.failing = {"read": Unavailable("not now")}
    world.write(60, 100)
    assert not world.rule()
    assert world.shelf() == before
    assert world.metric("failures_total", what="load") == 1
    faulty.failing = {}
    assert world.rule()
    assert world.rules().datasets[CHECKOUT].dataset_shards == 20


def test_damaged_rules_are_passed_by_reported_and_outlived(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.write(1800, 20 * UNIT)
    world.rule()
    ahead = world.leader.time + 10**15
    damaged = keys.placement_rules(incarnation=INCARNATION, created_at=ahead)
    world.store.create(damaged, b"\xff\xff")
    world.elect()
    with caplog.at_level(logging.ERROR):
        world.write(60, 100)
        world.rule()
    assert damaged in caplog.text
    assert world.metric("failures_total", what="damaged") == 1
    world.write(60, 500 * UNIT)
    assert world.rule()
    assert world.rules().created_at > ahead  # else every agent would stop at the damaged one
    assert world.rules().datasets[CHECKOUT].dataset_shards > 20


def test_a_leader_whose_time_is_behind_that_of_the_one_before_is_still_heard(world: World) -> None:
    """Lease time goes on from the last entry; rules may have been made after that."""
    world.write(60, 20 * UNIT)
    world.rule()
    ahead = world.rules().created_at
    world.leader.time -= 50 * SECOND_NS
    world.elect()
    world.write(30, 200 * UNIT)
    assert world.rule()
    assert world.rules().created_at == ahead + 1


def test_a_leader_that_returns_reads_what_another_decided_meanwhile(world: World) -> None:
    world.write(60, 100)
    world.rule()
    rules = Rules(world.leader.time + 1, {CHECKOUT: Share(0, 30, Balancing.ROUND_ROBIN)})
    key = keys.placement_rules(incarnation=INCARNATION, created_at=rules.created_at)
    world.store.create(key, wire.encode_rules(rules))
    world.manager.start_leading()
    world.write(60, 9 * UNIT)
    world.rule()
    assert world.rules().datasets == rules.datasets


def test_rules_of_another_log_are_not_read(world: World) -> None:
    other = Incarnation("00000000")
    key = keys.placement_rules(incarnation=other, created_at=1)
    world.store.create(key, wire.encode_rules(Rules(1, {CHECKOUT: Share(0, 30)})))
    world.write(60, 100)
    world.rule()
    assert world.rules().datasets == {CHECKOUT: Share(0, 1)}


def test_the_next_time_is_later_than_every_name() -> None:
    def name(created_at: int) -> str:
        return keys.placement_rules(incarnation=INCARNATION, created_at=created_at)

    assert next_time(StoredNames(), LeaseTime(7)) == 7
    assert next_time(StoredNames((name(3),)), LeaseTime(7)) == 7
    assert next_time(StoredNames((name(7), name(3))), LeaseTime(7)) == 8


# ── for ever ───────────────────────────────────────────────────────────────────────────────────


def test_it_runs_beside_the_leader_through_failures_and_stops_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.settings = PlacementSettings(interval_s=0.1)
    world.elect()
    faulty = Faulty(world.store, monkeypatch)
    faulty.failing = {"list": Unavailable("not now")}

    async def story() -> None:
        running = asyncio.create_task(world.manager.forever(world.leader))
        await until(lambda: world.metric("failures_total", what="load") >= 2)
        faulty.failing = {}
        world.write(30, 20 * UNIT)
        await until(lambda: CHECKOUT in world.rules().datasets)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled()

    run_virtually(story())
