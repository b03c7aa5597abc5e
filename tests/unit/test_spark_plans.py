"""Plans from a Python program: the same objects that commands print."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

import maar.spark
from maar.adapters.http_board import HttpBoard
from maar.adapters.stores.open import open_store
from maar.app.execution import with_own_secrets
from maar.metastore.leader.stores.claim import mark
from maar.model.errors import InvalidInput
from maar.model.ids import Incarnation
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.ports.stores.stores import StorePlace, StorePlaces, one_place
from maar.spark import plans
from support.http.front import Front
from support.metastore.asked_plans import LEASE_S, add_segments, compact_plan, lease, leave_object
from support.metastore.board import FoldBoard

URL = "http://maar"


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    store = open_store(StoreSettings("main", (tmp_path / "store").as_uri()))
    mark(store, Incarnation("1234abcd"))
    return store


@pytest.fixture
def board(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> FoldBoard:
    front = Front(store=store.settings())

    class Here(HttpBoard):
        def __init__(self, url: str) -> None:
            super().__init__(url, transport=httpx.ASGITransport(front.app))

    monkeypatch.setattr(plans, "HttpBoard", Here)
    return front.metastore.board


def test_a_plan_is_scheduled_once(board: FoldBoard) -> None:
    add_segments(board, 1, 2)
    found = maar.spark.schedule("compact", url=URL, shard=1, request_id="dag")
    assert (found["kind"], found["state"], found["created"]) == ("compact", "requested", True)
    again = maar.spark.schedule("compact", url=URL, shard=1, request_id="dag")
    assert again == {**found, "created": False}
    nothing = maar.spark.schedule("compact", url=URL, shard=2)
    assert (nothing["plan"], "message" in nothing) == (None, False)
    assert "no block waits" in nothing["why"]
    with pytest.raises(InvalidInput, match="is not a kind of plan"):
        maar.spark.schedule("brew", url=URL)


def test_profiles_are_deleted_from_a_program(board: FoldBoard) -> None:
    dry = maar.spark.delete(url=URL, service="cart", tenant="acme", dry_run=True)
    assert dry == {"predicate": None, "profiles": 3, "blocks": 2, "at_most": False}
    made = maar.spark.delete(url=URL, service="cart", tenant="acme", from_ms=5, request_id="gdpr")
    assert made == {"predicate": "7", "profiles": 3, "blocks": 2, "at_most": True}
    with pytest.raises(InvalidInput, match="name a service, or say all_services"):
        maar.spark.delete(url=URL)


def test_what_a_dead_attempt_left_is_rolled_back(board: FoldBoard, store: ObjectStore) -> None:
    plan = compact_plan(board)
    written = leave_object(store, plan, lease(board, plan, started=True))
    found = maar.spark.rollback(str(plan), url=URL)
    assert found == {"rollback": None, "target": str(plan), "outcome": "lease_live"}
    board.pass_time(LEASE_S + 1)
    assert maar.spark.rollback(str(plan), url=URL)["outcome"] == "completed"
    assert not list(store.list(written))
    assert maar.spark.rollback(str(plan), url=URL)["outcome"] == "nothing_to_do"
    assert maar.spark.rollback("9.9", url=URL)["outcome"] == "not_found"


def test_a_cleaning_takes_both_steps(board: FoldBoard, store: ObjectStore) -> None:
    plan = compact_plan(board, removable=True)
    written = leave_object(store, plan, lease(board, plan, started=True))
    board.pass_time(600)
    dry = maar.spark.clean(url=URL, dry_run=True)
    assert dry["scheduled"] == [{"rollback": None, "target": str(plan)}]
    assert list(store.list(written))
    found = maar.spark.clean(url=URL)
    assert [each["target"] for each in found["executed"]] == [str(plan)]
    assert set(found) == {"scheduled", "executed", "skipped", "orphans"}
    assert not list(store.list(written))


def test_the_store_is_the_servers_and_the_credentials_are_our_own() -> None:
    told = StoreSettings("main", "s3://theirs/maar", (("endpoint", "http://s3"), ("region", "eu")))
    ours = (("access_key_id", "AK"), ("region", "us"), ("secret_access_key", "shh"))
    own = one_place(StoreSettings("main", "s3://ours", ours))
    assert with_own_secrets(one_place(told), own).home.settings == StoreSettings(
        "main",
        "s3://theirs/maar",
        (
            ("access_key_id", "AK"),
            ("endpoint", "http://s3"),
            ("region", "eu"),
            ("secret_access_key", "shh"),
        ),
    )
    directory = one_place(StoreSettings("main", "file:///data"))
    assert with_own_secrets(directory, one_place(StoreSettings("main", "", ours))) == directory


def test_each_of_several_stores_is_opened_with_the_credentials_of_its_name() -> None:
    eu, us = (StoreSettings(name, f"s3://{name}") for name in ("eu", "us"))
    told = StorePlaces((StorePlace(eu), StorePlace(us)))
    keys = {name: (("access_key_id", name), ("secret_access_key", "x")) for name in ("us", "eu")}
    ours = StorePlaces(
        tuple(StorePlace(StoreSettings(name, "", options)) for name, options in keys.items())
    )
    opened = with_own_secrets(told, ours)
    assert [place.settings.options for place in opened.places] == [keys["eu"], keys["us"]]
    alone = with_own_secrets(told, one_place(StoreSettings("main", "", keys["us"])))
    assert {place.settings.options for place in alone.places} == {keys["us"]}
