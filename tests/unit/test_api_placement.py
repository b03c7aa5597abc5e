"""/api/v1/placement and `maar placement`: rules and rates side by side, as the store has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from maar.adapters.stores.open import open_store
from maar.api.admin.placement import placement_reader
from maar.model import keys
from maar.model.ids import HOME, Incarnation, Shard, TenantId, Zone
from maar.model.time import SECOND_NS, LeaseTime
from maar.placement import wire
from maar.placement.adaptive.statistics import DatasetStats, ShardUse, Stats
from maar.placement.rules import Balancing, Rules, Share
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from support.http.command_line import Say, speaker
from support.http.front import Front

LOG = Incarnation("1234abcd")
ACME, OTHER = TenantId("acme"), TenantId("other")
AT = 60 * SECOND_NS


class World:
    def __init__(self, directory: Path) -> None:
        self.store: ObjectStore = open_store(StoreSettings("main", directory.as_uri()))
        self.front = Front(placed=placement_reader(self.store))
        self.front.metastore.lease_time = LeaseTime(90 * SECOND_NS)

    def put_rules(self) -> None:
        rules = Rules(
            AT,
            {
                (ACME, "checkout"): Share(8, 5, Balancing.ROUND_ROBIN),
                (ACME, "idle"): Share(0, 2),
                (OTHER, "checkout"): Share(0, 1),
            },
        )
        key = keys.placement_rules(incarnation=LOG, created_at=AT)
        self.store.create(key, wire.encode_rules(rules))

    def put_stats(self) -> None:
        used = (
            ShardUse(Shard(1), "w1", 3 << 10, HOME),
            ShardUse(Shard(1), "w2", 1 << 10, HOME),
            ShardUse(Shard(2), "w3", 5 << 10, Zone("west")),
        )
        new = DatasetStats(OTHER, "new", (ShardUse(Shard(4), "w1", 7, HOME),))
        stats = Stats(AT, (DatasetStats(ACME, "checkout", used, 2 << 10), new))
        key = keys.placement_stats(incarnation=LOG, created_at=AT)
        self.store.create(key, wire.encode_stats(stats))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_before_anything_was_made_there_is_nothing_to_show(world: World) -> None:
    assert world.front.get("/api/v1/placement").json() == {
        "rules_age_s": None,
        "stats_age_s": None,
        "datasets": [],
        "more": False,
        "unreadable": [],
    }


def test_rules_and_rates_are_joined_by_dataset(world: World) -> None:
    world.put_rules()
    world.put_stats()
    reply = world.front.get("/api/v1/placement").json()
    assert (reply["rules_age_s"], reply["stats_age_s"]) == (30.0, 30.0)
    names = [(one["tenant"], one["service"]) for one in reply["datasets"]]
    assert names == [
        ("acme", "checkout"),
        ("acme", "idle"),
        ("other", "checkout"),
        ("other", "new"),
    ]
    checkout, idle, _, new = reply["datasets"]
    assert checkout == {
        "tenant": "acme",
        "service": "checkout",
        "tenant_shards": 8,
        "dataset_shards": 5,
        "balancing": "round-robin",
        "usage": 9 << 10,
        "std_dev": 2 << 10,
        "shards": [
            {"shard": 1, "owner": "w1", "zone": "home", "usage": 3 << 10},
            {"shard": 1, "owner": "w2", "zone": "home", "usage": 1 << 10},
            {"shard": 2, "owner": "w3", "zone": "west", "usage": 5 << 10},
        ],
    }
    assert (idle["dataset_shards"], idle["usage"], idle["shards"]) == (2, 0, [])
    assert (new["dataset_shards"], new["balancing"], new["usage"]) == (None, None, 7)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("tenant=acme", ["acme/checkout", "acme/idle"]),
        ("service=checkout", ["acme/checkout", "other/checkout"]),
        ("tenant=other&service=checkout", ["other/checkout"]),
        ("tenant=nobody", []),
    ],
)
def test_the_filters(world: World, query: str, found: list[str]) -> None:
    world.put_rules()
    reply = world.front.get(f"/api/v1/placement?{query}").json()
    assert [f"{one['tenant']}/{one['service']}" for one in reply["datasets"]] == found


def test_the_limit_says_that_there_is_more(world: World) -> None:
    world.put_rules()
    reply = world.front.get("/api/v1/placement?limit=2").json()
    assert (len(reply["datasets"]), reply["more"]) == (2, True)
    assert world.front.get("/api/v1/placement?limit=0").status_code == 400


def test_damaged_rules_are_passed_by_and_told_of(world: World) -> None:
    world.put_rules()
    damaged = keys.placement_rules(incarnation=LOG, created_at=AT + 1)
    world.store.create(damaged, b"\xff")
    reply = world.front.get("/api/v1/placement").json()
    assert len(reply["datasets"]) == 3
    assert damaged in reply["unreadable"][0]


# ── the command ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def say(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    return speaker(world.front, monkeypatch, capsys)


def test_the_command_shows_rules_and_rates(world: World, say: Say) -> None:
    world.put_rules()
    world.put_stats()
    code, out, _ = say("placement", "--tenant", "acme")
    assert code == 0
    checkout, idle, summary = out.splitlines()[1:]
    assert checkout.split() == (
        ["acme", "checkout", "5", "8", "round-robin", "9.0", "KiB/s", "2.0", "KiB/s", "2"]
    )
    assert idle.split()[:5] == ["acme", "idle", "2", "all", "fingerprint"]
    assert summary == "2 datasets; the rules last changed 30.00 s ago"


def test_the_command_shows_shards(world: World, say: Say) -> None:
    world.put_rules()
    world.put_stats()
    _, out, _ = say("placement", "--shards", "--service", "checkout")
    rows = [line.split()[2:5] for line in out.splitlines()[1:4]]
    assert rows == [["home", "1", "w1"], ["home", "1", "w2"], ["west", "2", "w3"]]


def test_the_command_for_scripts_and_before_there_are_rules(world: World, say: Say) -> None:
    _, out, _ = say("placement")
    assert "no placement rules were made yet" in out
    world.put_rules()
    damaged = keys.placement_rules(incarnation=LOG, created_at=AT + 1)
    world.store.create(damaged, b"\xff")
    _, out, _ = say("placement", "--json", "--limit", "1")
    assert json.loads(out)["more"] is True
    _, _, err = say("placement")
    assert damaged in err
