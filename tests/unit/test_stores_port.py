"""The nearest whole copy is read; what is wrong with others is told once they were tried."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from maar.adapters.stores.open import open_store
from maar.model.block import Location
from maar.model.errors import Corrupt, NotFound, Unavailable
from maar.model.ids import BlockId, StoreName, Zone
from maar.model.trouble import Trouble
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.ports.stores.stores import AVOIDED_S, AWAY_S, StorePlace, StorePlaces, Stores, stores_of
from support.stores.memory_store import MemoryStore

BLOCK = BlockId("0" * 32)
FAR, NEAR, HOME = (StoreName(name) for name in ("far", "near", "home"))
PLACES = StorePlaces(
    (
        StorePlace(StoreSettings("far", "file:///far"), "asia", ("tok",)),
        StorePlace(StoreSettings("near", "file:///near"), "europe"),
        StorePlace(StoreSettings("home", "file:///home"), "europe", ("fra",)),
    ),
    Zone("fra"),
)
COPIES = tuple(Location(store, f"{store}/x") for store in (FAR, NEAR, HOME))


class World:
    """Three stores in memory, one of which may be away."""

    def __init__(self, places: StorePlaces = PLACES) -> None:
        self.now_s = 0.0
        self.told: list[Trouble] = []
        self.objects = {str(name): MemoryStore(name) for name in (FAR, NEAR, HOME)}
        self.away: set[str] = set()
        self.opened: list[str] = []
        for at in COPIES:
            self.objects[at.store].create(at.key, at.store.encode())
        self.stores = Stores(places, self.open, told=self.told.append, now_s=lambda: self.now_s)

    def open(self, settings: StoreSettings, *, make: bool = True) -> ObjectStore:
        assert not make
        self.opened.append(settings.name)
        if settings.name in self.away:
            raise Unavailable(f"{settings.name} does not answer")
        return self.objects[settings.name]

    def read(self) -> bytes:
        return self.stores.read(BLOCK, COPIES, lambda store, key: store.read(key))


def raising(error: Exception, of: StoreName) -> Callable[[ObjectStore, str], bytes]:
    def read(store: ObjectStore, key: str) -> bytes:
        if key.startswith(of):
            raise error
        return store.read(key)

    return read


def test_home_is_nearest_then_its_region_then_the_rest() -> None:
    assert PLACES.by_distance() == ("home", "near", "far")
    assert PLACES._replace(zone=Zone("tok")).by_distance() == ("far", "near", "home")
    assert pickle.loads(pickle.dumps(PLACES)) == PLACES


def test_a_store_without_a_region_is_near_to_no_other() -> None:
    plain = StorePlaces(tuple(StorePlace(StoreSettings(name, "")) for name in "abc"), Zone("z"))
    other = plain._replace(places=(*plain.places[:1], *PLACES.places[1:2], *plain.places[1:]))
    assert plain.by_distance() == ("a", "b", "c")
    assert other.by_distance() == ("a", "near", "b", "c")


def test_only_what_is_read_is_opened_and_only_once() -> None:
    world = World()
    assert world.read() == world.read() == b"home"
    assert world.opened == ["home"]


def test_the_next_copy_is_read_when_one_is_missing_damaged_or_away() -> None:
    world = World()
    world.objects["home"].delete("home/x")
    assert world.read() == b"near"
    assert [(each.store, each.why, each.another) for each in world.told] == [
        ("home", "missing", True)
    ]
    world = World()
    damaged = raising(Corrupt("other bytes"), HOME)
    assert world.stores.read(BLOCK, COPIES, damaged) == b"near"
    assert world.told[0].why == "damaged"
    world = World()
    world.away = {"home", "near"}
    assert world.read() == b"far"
    assert [each.why for each in world.told] == ["away", "away"]


def test_a_bad_copy_is_not_tried_again_for_a_while_and_then_it_is() -> None:
    world = World()
    world.objects["home"].delete("home/x")
    assert world.read() == world.read() == b"near"
    assert len(world.told) == 1
    world.objects["home"].create("home/x", b"home")
    world.now_s = AVOIDED_S + 1
    assert world.read() == b"home"


def test_a_store_that_is_away_is_asked_last_until_a_moment_later() -> None:
    world = World()
    world.away = {"home"}
    assert world.read() == world.read() == b"near"
    assert world.opened == ["home", "near"]
    other = (Location(HOME, "other"), Location(FAR, "far/x"))
    assert world.stores.nearest(other)[0].store == FAR, "of any object, not of this one only"
    world.away.clear()
    world.now_s = AWAY_S + 1
    assert world.read() == b"home"


def test_when_no_copy_is_whole_it_fails_and_says_what_is_wrong_with_each() -> None:
    world = World()
    for at in COPIES:
        world.objects[at.store].delete(at.key)
    with pytest.raises(NotFound, match=r"no copy is there: in store home: .*in store near: .*far"):
        world.read()
    world.objects["near"].create("near/x", b"other bytes")
    damaged = raising(Corrupt("other bytes"), NEAR)
    with pytest.raises(Corrupt, match="No copy is whole"):
        world.stores.read(BLOCK, COPIES, damaged)
    world.objects["near"].delete("near/x")
    fresh = World()
    fresh.objects = world.objects
    fresh.away = {"far"}
    with pytest.raises(Unavailable, match="no copy can be read now"):
        fresh.read()


def test_a_single_copy_fails_as_it_always_did() -> None:
    world = World()
    with pytest.raises(NotFound, match="there is no object y"):
        world.stores.read(BLOCK, (Location(HOME, "y"),), lambda store, key: store.read(key))
    assert [each.another for each in world.told] == [False]


def test_a_store_that_the_settings_do_not_know_is_away() -> None:
    world = World()
    with pytest.raises(Unavailable, match=r"'moon' is not among the stores .*far, near, home"):
        world.stores.open(StoreName("moon"))


def test_one_store_stands_for_any_name() -> None:
    store = MemoryStore()
    store.create("x", b"1")
    assert stores_of(store).open(StoreName("any")) is store
    assert stores_of(store).home is store
    several = World().stores
    assert stores_of(several) is several


def test_a_directory_that_is_not_there_is_away_and_is_not_made(tmp_path: Path) -> None:
    places = StorePlaces(
        tuple(StorePlace(StoreSettings(n, (tmp_path / n).as_uri())) for n in ("home", "near"))
    )
    stores = Stores(places, open_store)
    with pytest.raises(Unavailable, match="mount it, or make it if the store is new"):
        stores.open(NEAR)
    assert not (tmp_path / "near").exists()
    (tmp_path / "near").mkdir()
    stores.open(NEAR).create("x", b"1")
    (tmp_path / "near").rename(tmp_path / "gone")
    for ask in (lambda s: s.read("x"), lambda s: s.size("x"), lambda s: list(s.list(""))):
        with pytest.raises(Unavailable, match="is not there"):
            ask(stores.open(NEAR))
    (tmp_path / "gone").rename(tmp_path / "near")
    assert stores.open(NEAR).read("x") == b"1"
    with pytest.raises(NotFound):
        stores.open(NEAR).read("y")
