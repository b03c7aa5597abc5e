"""Rules and statistics as bytes and as objects: what comes back, and what damage does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maar.model import keys
from maar.model.errors import Corrupt
from maar.model.ids import HOME, Incarnation, Shard, TenantId, Zone
from maar.placement import stored, wire
from maar.placement.adaptive.statistics import DatasetStats, ShardUse, Stats
from maar.placement.rules import Balancing, Rules, Share
from support.stores.memory_store import MemoryStore

LOG = Incarnation("0badcafe")
ACME, OTHER = TenantId("acme"), TenantId("other")
RULES = Rules(
    7,
    {
        (ACME, "checkout"): Share(0, 3, Balancing.FINGERPRINT),
        (ACME, "search"): Share(8, 5, Balancing.ROUND_ROBIN),
        (OTHER, "checkout"): Share(0, 1, Balancing.FINGERPRINT),
    },
)
STATS = Stats(
    7,
    (
        DatasetStats(ACME, "checkout", (ShardUse(Shard(3), "w1", 100, HOME),), 0),
        DatasetStats(
            OTHER,
            "checkout",
            (ShardUse(Shard(3), "w1", 7, HOME), ShardUse(Shard(3), "w9", 5, Zone("west"))),
            2,
        ),
    ),
)


def test_rules_have_the_field_numbers_that_others_use() -> None:
    """Spelled out by hand: tenants 1, datasets 2, created_at 3; in a dataset tenant 1 (an index),
    name 2, tenant_shard_limit 3, dataset_shard_limit 4, load_balancing 5.
    """
    rules = Rules(
        9,
        {
            (ACME, "a"): Share(8, 3, Balancing.FINGERPRINT),
            (OTHER, "b"): Share(0, 4, Balancing.ROUND_ROBIN),
        },
    )
    assert wire.encode_rules(rules) == (
        b"\x0a\x06\x0a\x04acme"
        b"\x0a\x07\x0a\x05other"
        b"\x12\x09\x12\x01a\x18\x08\x20\x03\x28\x01"
        b"\x12\x09\x08\x01\x12\x01b\x20\x04\x28\x02"
        b"\x18\x09"
    )


def test_statistics_have_the_field_numbers_that_others_use() -> None:
    """Tenants 1, datasets 2, shards 3, created_at 4; in a dataset tenant 1, name 2, shards 3
    (indexes), usage 4, std_dev 5; in a shard id 1 and owner 2.
    """
    used = (ShardUse(Shard(3), "w1", 100, Zone("")), ShardUse(Shard(4), "w1", 7, Zone("")))
    stats = Stats(9, (DatasetStats(ACME, "a", used, 5),))
    assert wire.encode_stats(stats) == (
        b"\x0a\x06\x0a\x04acme"
        b"\x12\x0d\x12\x01a\x1a\x02\x00\x01\x22\x02\x64\x07\x28\x05"
        b"\x1a\x06\x08\x03\x12\x02w1"
        b"\x1a\x06\x08\x04\x12\x02w1"
        b"\x20\x09"
    )


NAMES = st.text(min_size=1, max_size=8)
SHARES = st.builds(
    Share,
    st.integers(0, 99),
    st.integers(1, 1024),
    st.sampled_from([Balancing.FINGERPRINT, Balancing.ROUND_ROBIN]),
)


@given(st.integers(1, 2**62), st.dictionaries(st.tuples(NAMES.map(TenantId), NAMES), SHARES))
def test_rules_come_back_as_they_went(
    created_at: int, datasets: dict[tuple[TenantId, str], Share]
) -> None:
    rules = Rules(created_at, datasets)
    assert wire.decode_rules(wire.encode_rules(rules)) == rules


def test_statistics_come_back_as_they_went() -> None:
    assert wire.decode_stats(wire.encode_stats(STATS)) == STATS


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xff\xff",
        b"\x12\x05\x08\x07\x12\x01a",  # of the eighth tenant of none
        b"\x0a\x06\x0a\x04acme\x12\x03\x12\x01a",  # no shards at all
    ],
)
def test_bytes_that_are_no_rules_are_refused(body: bytes) -> None:
    with pytest.raises(Corrupt):
        wire.decode_rules(body)


@pytest.mark.parametrize(
    "body",
    [b"\x12", b"\x12\x05\x08\x07\x12\x01a", b"\x0a\x00\x12\x02\x1a\x00\x12\x03\x22\x01\x05"],
)
def test_bytes_that_are_no_statistics_are_refused(body: bytes) -> None:
    with pytest.raises(Corrupt):
        wire.decode_stats(body)


def test_a_balancing_that_only_later_versions_know_is_fingerprint() -> None:
    body = b"\x0a\x06\x0a\x04acme\x12\x07\x12\x01a\x20\x03\x28\x09\x18\x01"
    assert wire.decode_rules(body).datasets == {(ACME, "a"): Share(0, 3, Balancing.FINGERPRINT)}


# ── objects ────────────────────────────────────────────────────────────────────────────────────


def put(store: MemoryStore, created_at: int, body: bytes | None = None) -> str:
    key = keys.placement_rules(incarnation=LOG, created_at=created_at)
    rules = Rules(created_at, RULES.datasets)
    store.create(key, wire.encode_rules(rules) if body is None else body)
    return key


def newest(store: MemoryStore, newer_than: int = 0) -> stored.Newest[Rules]:
    names = stored.list_names(store, LOG).rules
    return stored.newest_rules(store, names, newer_than=newer_than)


def test_names_are_sorted_by_kind_and_age_and_others_are_no_matter() -> None:
    store = MemoryStore()
    old, new = put(store, 999), put(store, 1000)
    stats = keys.placement_stats(incarnation=LOG, created_at=5)
    for key in (stats, f"{keys.placement_prefix(LOG)}readme.txt"):
        store.create(key, b"")
    put_elsewhere = keys.placement_rules(incarnation=Incarnation("00000000"), created_at=9999)
    store.create(put_elsewhere, b"")
    assert stored.list_names(store, LOG) == stored.StoredNames((new, old), (stats,))


def test_the_newest_is_found_and_what_is_not_newer_is_not_even_read() -> None:
    store = MemoryStore()
    put(store, 5, b"damaged")
    put(store, 6)
    assert newest(store).value == Rules(6, RULES.datasets)
    assert newest(store, newer_than=6) == stored.Newest(None)


@pytest.mark.parametrize("body", [b"", b"\xff", wire.encode_rules(RULES)[:-2]])
def test_damaged_rules_are_passed_by_and_told_of(body: bytes) -> None:
    """Also those that were cut off where protobuf does not notice."""
    store = MemoryStore()
    put(store, 6)
    damaged = put(store, 7, body)
    found = newest(store)
    assert found.value == Rules(6, RULES.datasets)
    (sentence,) = found.unreadable
    assert sentence.startswith(f"{damaged} is damaged")


def test_rules_that_vanish_after_the_listing_are_no_damage() -> None:
    store = MemoryStore()
    put(store, 6)
    gone = put(store, 7)
    names = stored.list_names(store, LOG).rules
    store.delete(gone)
    assert stored.newest_rules(store, names) == stored.Newest(Rules(6, RULES.datasets))
