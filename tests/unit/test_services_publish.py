"""An attempt writes only while its guard lets it."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from maar.block.read.reread import reread
from maar.model import keys
from maar.model.errors import LeaseLost, Unavailable
from maar.model.ids import MAIN_STORE, StoreName, TenantId
from maar.ports.stores.object_store import StoreSettings
from maar.ports.stores.stores import StorePlace, StorePlaces, Stores
from maar.services.compact.run import run as compact
from maar.services.publish import Publisher
from support.segment.writer_in_memory import raw_profile
from support.spark.plans import TIME_NS, leased_plan, segment
from support.stores.memory_store import MemoryStore

INTENT_TABLES_AND_MANIFEST = 1 + 5 + 1


@pytest.mark.parametrize("allowed", range(INTENT_TABLES_AND_MANIFEST))
def test_not_one_object_is_written_after_the_guard_refused(allowed: int, tmp_path: Path) -> None:
    store = MemoryStore()
    plan = leased_plan(segment(store, 1), segment(store, 2))
    before = {info.key for info in store.list("")}
    asked = count()

    def guard() -> None:
        if next(asked) >= allowed:
            raise LeaseLost("no more")

    with pytest.raises(LeaseLost):
        compact(plan, store=store, attempt="a", scratch=tmp_path, wall_ns=TIME_NS, guard=guard)
    assert len({info.key for info in store.list("")} - before) == allowed
    assert list(tmp_path.iterdir()) == []


class Failing(MemoryStore):
    """Takes so many objects, and then no more."""

    def __init__(self, takes: int) -> None:
        super().__init__()
        self.takes = takes
        self.counts = False

    def create(self, key: str, body: bytes) -> None:
        if self.counts and self.takes == 0:
            raise Unavailable("the store is away")
        super().create(key, body)
        self.takes -= self.counts


@pytest.mark.parametrize("takes", range(INTENT_TABLES_AND_MANIFEST))
def test_a_manifest_is_written_only_when_all_its_tables_are_there(
    takes: int, tmp_path: Path
) -> None:
    """Whoever finds a manifest takes its block for whole: adoption, and people (S5)."""
    store = Failing(takes)
    plan = leased_plan(segment(store, 1), segment(store, 2))
    store.counts = True
    with pytest.raises(Unavailable):
        compact(plan, store=store, attempt="a", scratch=tmp_path, wall_ns=TIME_NS)
    assert list(store.list(keys.MANIFESTS)) == []
    tables = [info.key for info in store.list(keys.LAKE)]
    intents = [info.key for info in store.list("attempts/")]
    assert len(tables) == max(0, takes - 1)
    assert not tables or intents, "what nobody announced is never cleaned"


def test_a_whole_block_has_its_manifest_last(tmp_path: Path) -> None:
    store = Failing(INTENT_TABLES_AND_MANIFEST)
    plan = leased_plan(segment(store, 1), segment(store, 2))
    store.counts = True
    done = compact(plan, store=store, attempt="a", scratch=tmp_path, wall_ns=TIME_NS)
    assert store.takes == 0
    (manifest,) = store.list(keys.MANIFESTS)
    (meta,) = done.outputs
    assert manifest.key == keys.manifest_of(meta.files[0].locations[0].key)


def test_what_goes_into_quarantine_is_announced_first() -> None:
    """Else an attempt that dies in between leaves an object that no sweep would ever find (S1)."""
    store = Failing(1)
    plan = leased_plan(segment(store, 1))
    publisher = Publisher(plan, level=1, store=store, attempt="a", wall_ns=TIME_NS)
    store.counts = True
    with pytest.raises(Unavailable):
        publisher.quarantine([(raw_profile(1), "it cannot be decoded")], tenant=TenantId("acme"))
    assert len(list(store.list("attempts/"))) == 1
    assert list(store.list(keys.QUARANTINES)) == []


def test_a_file_in_quarantine_says_itself_what_its_key_says_now() -> None:
    """A copy of it has another key, and is as old."""
    store = MemoryStore()
    plan = leased_plan(segment(store, 1))
    publisher = Publisher(plan, level=1, store=store, attempt="a", wall_ns=TIME_NS)
    held = publisher.quarantine([(raw_profile(1), "broken")], tenant=TenantId("acme"))
    (info,) = store.list(keys.QUARANTINES)
    assert reread(store.read(info.key)).since == held.since == plan.token.index


def test_of_several_stores_only_one_with_the_marker_of_the_log_is_written_to() -> None:
    """Inputs may be read from another store, while the directory of the home store is empty."""
    named = {StoreName(name): MemoryStore(name) for name in ("main", "eu")}
    places = StorePlaces(tuple(StorePlace(StoreSettings(name, "memory://")) for name in named))
    several = Stores(places, lambda settings, make=True: named[StoreName(settings.name)])  # noqa: ARG005
    plan = leased_plan(segment(named[MAIN_STORE], 1))
    with pytest.raises(Unavailable, match="not mounted"):
        Publisher(plan, level=1, store=several, attempt="a", wall_ns=TIME_NS)
    named[MAIN_STORE].create(keys.marker(plan.token.incarnation), b"main")
    publisher = Publisher(plan, level=1, store=several, attempt="a", wall_ns=TIME_NS)
    publisher.quarantine([(raw_profile(1), "it cannot be decoded")], tenant=TenantId("acme"))
    assert len(list(named[MAIN_STORE].list(keys.QUARANTINES))) == 1
