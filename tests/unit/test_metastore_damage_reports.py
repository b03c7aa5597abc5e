"""Copies that readers could not read: what the leader remembers of them, and for how long."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from maar.app.health.troubles import Troubles
from maar.metastore.leader.damage_reports import DamageReports
from maar.metastore.replica.store_metrics import StoreMetrics
from maar.metastore.views.stores import statuses
from maar.model.block import BlockMeta
from maar.model.errors import Unavailable
from maar.model.ids import BlockId, StoreName, Zone
from maar.model.stores import StoreSet, StoreSpec, keys_at
from maar.model.trouble import Trouble, Why
from maar.ports.calls import LocalPort
from support.clock.virtual_time import run_virtually, until
from support.lake.fold_and_store import Lake
from support.metastore.copies import EU, MAIN, US, Repairing, want
from support.metastore.fold import TENANT


def copied(lake: Lake) -> BlockMeta:
    """A block in two stores."""
    block = lake.merge(lake.add(1, 2, 3))
    want(lake.fold, EU)
    Repairing(lake.fold).copy(block.id, EU)
    return lake.state.blocks.get(block.id)


def bad(meta: BlockMeta, store: StoreName, why: Why = "damaged", file: int = 0) -> Trouble:
    return Trouble(meta.id, store, keys_at(meta, store)[file], why, "it was not read", True)


def heard(reports: DamageReports, lake: Lake) -> list[tuple[BlockId, StoreName]]:
    return [(each.block, each.store) for each in reports.bad(lake.state)]


def test_a_bad_copy_is_remembered_once_whichever_of_its_files_was_met() -> None:
    lake, reports = Lake(), DamageReports()
    meta = copied(lake)
    for file in (0, 1, 1):
        reports.hear(lake.state, [bad(meta, EU, file=file)])
    reports.hear(lake.state, [bad(meta, MAIN, "missing")])
    assert heard(reports, lake) == [(meta.id, EU), (meta.id, MAIN)]


def test_a_store_that_is_away_has_lost_nothing() -> None:
    lake, reports = Lake(), DamageReports()
    reports.hear(lake.state, [bad(copied(lake), EU, "away")])
    assert heard(reports, lake) == []


def test_what_is_missing_because_its_block_was_replaced_is_no_damage() -> None:
    lake, reports = Lake(), DamageReports()
    meta = copied(lake)
    lake.merge([meta])
    reports.hear(lake.state, [bad(meta, EU, "missing")])
    assert heard(reports, lake) == []


def test_nor_is_a_copy_that_the_index_does_not_list() -> None:
    lake, reports = Lake(), DamageReports()
    meta = copied(lake)
    reports.hear(lake.state, [Trouble(meta.id, EU, "another/key", "missing", "", True)])
    reports.hear(lake.state, [Trouble(meta.id, US, keys_at(meta, EU)[0], "missing", "", True)])
    assert heard(reports, lake) == []


def test_it_is_forgotten_when_the_copy_was_healed() -> None:
    lake, reports = Lake(), DamageReports()
    meta = copied(lake)
    reports.hear(lake.state, [bad(meta, EU)])
    Repairing(lake.fold).find_bad(meta.id, EU)
    assert heard(reports, lake) == []


def test_a_repair_is_asked_once_for_each_time_that_a_reader_complains() -> None:
    lake, reports = Lake(), DamageReports()
    meta = copied(lake)
    reports.hear(lake.state, [bad(meta, EU)])
    for _ in range(2):
        assert reports.waiting(lake.state) == [(TENANT, meta.id)]
    reports.forget([meta.id])
    assert reports.waiting(lake.state) == []
    assert heard(reports, lake) == [(meta.id, EU)], "it is shown as damaged until it is healed"
    reports.hear(lake.state, [bad(meta, EU)])
    assert reports.waiting(lake.state) == [(TENANT, meta.id)]


def test_what_a_repair_has_looked_at_is_settled_and_what_was_healed_waits_for_none() -> None:
    lake, reports = Lake(), DamageReports()
    meta = copied(lake)
    reports.hear(lake.state, [bad(meta, EU), bad(meta, MAIN)])
    Repairing(lake.fold).find_bad(meta.id, EU)
    assert reports.waiting(lake.state) == [(TENANT, meta.id)]
    reports.settle([meta.id])
    assert heard(reports, lake) == []
    assert reports.waiting(lake.state) == []


def test_the_leaders_loop_counts_them_by_store_and_notices_what_was_healed() -> None:
    lake, reports = Lake(), DamageReports()
    meta = copied(lake)
    reports.hear(lake.state, [bad(meta, EU), bad(meta, MAIN)])
    assert reports.counts(lake.state) == {EU: 1, MAIN: 1}
    Repairing(lake.fold).find_bad(meta.id, EU)
    assert reports.counts(lake.state) == {MAIN: 1}


def test_only_so_many_are_remembered_and_healed_ones_make_room() -> None:
    lake, reports = Lake(), DamageReports(reports_max=1)
    meta = copied(lake)
    reports.hear(lake.state, [bad(meta, EU), bad(meta, MAIN)])
    assert heard(reports, lake) == [(meta.id, EU)]
    Repairing(lake.fold).find_bad(meta.id, EU)
    reports.hear(lake.state, [bad(meta, MAIN)])
    assert heard(reports, lake) == [(meta.id, MAIN)]


def test_stores_are_shown_with_what_they_hold_lack_and_have_damaged() -> None:
    lake = Lake()
    meta = copied(lake)
    want(lake.fold, EU, US)
    found = {
        each.name: (each.blocks, each.bytes, each.missing, each.damaged, each.known)
        for each in statuses(lake.state, [(EU, TENANT)], here=("main", "eu"))
    }
    assert found == {
        "main": (1, meta.size, 0, 0, True),
        "eu": (1, meta.size, 0, 1, True),
        "us": (0, 0, 1, 0, False),
    }
    given = StoreSet((StoreSpec(MAIN), StoreSpec(StoreName("new"), "asia", (Zone("a"),))))
    here = ("main", "eu", "new")
    new = statuses(lake.state, [], here=here, given=given)[-1]
    assert (new.name, new.region, new.zones) == ("new", "asia", ("a",)), "not in the log yet"
    other = statuses(lake.state, [(EU, TENANT)], here=("main",), tenant="somebody-else")
    assert {(each.blocks, each.missing, each.damaged) for each in other} == {(0, 0, 0)}


class Listener(LocalPort):
    """A metastore that does not answer at once."""

    def __init__(self) -> None:
        self.tries = 0
        self.heard: list[Trouble] = []

    async def report_damage(self, copies: tuple[Trouble, ...]) -> None:
        self.tries += 1
        if self.tries == 1:
            raise Unavailable("nobody leads")
        self.heard += copies

    async def stores(self, *, tenant: str = "") -> tuple[()]:
        raise NotImplementedError(tenant)


def test_troubles_are_logged_once_and_told_until_somebody_hears(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener, troubles = Listener(), Troubles()
    damaged, away = (
        Trouble(BlockId("b"), EU, "k", why, "words", True) for why in ("damaged", "away")
    )
    alone = Trouble(BlockId("b"), MAIN, "k", "missing", "words", False)
    for each in (damaged, damaged, away, alone):
        troubles.note(each)

    async def story() -> None:
        telling = asyncio.create_task(troubles.tell(listener))
        await until(lambda: bool(listener.heard))
        telling.cancel()

    run_virtually(story())
    assert listener.heard == [damaged, damaged, away, alone]
    assert caplog.text.count("copy not read") == 2


def test_fallovers_are_counted_of_stores_that_there_are() -> None:
    registry = CollectorRegistry()
    metrics = StoreMetrics(registry)
    met: list[tuple[StoreName, Why, bool]] = [
        (EU, "damaged", True),
        (EU, "damaged", True),
        (EU, "away", True),
        (MAIN, "missing", False),
        (StoreName("made-up"), "away", True),
    ]
    metrics.hear([Trouble(BlockId("b"), s, "k", why, "", other) for s, why, other in met], (EU,))
    count = "maar_store_fallovers_total"
    assert registry.get_sample_value(count, {"store": "eu", "why": "damaged"}) == 2
    assert registry.get_sample_value(count, {"store": "eu", "why": "away"}) == 1
    assert registry.get_sample_value(count, {"store": "main", "why": "missing"}) is None
    assert registry.get_sample_value(count, {"store": "made-up", "why": "away"}) is None
