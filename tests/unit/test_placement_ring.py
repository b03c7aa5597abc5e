"""Placement is arithmetic: the same everywhere, for ever."""

from __future__ import annotations

import pytest

from maar.model.ids import TenantId
from maar.placement.jump import jump
from maar.placement.ring import StaticRing

KEY = 14_046_587_775_414_411_003


@pytest.mark.parametrize(("buckets", "bucket"), [(1, 0), (2, 0), (4, 0), (8, 6), (12, 8), (16, 8)])
def test_jump_hash_agrees_with_the_published_vectors(buckets: int, bucket: int) -> None:
    assert jump(KEY, buckets) == bucket


def test_jump_hash_of_small_keys_agrees_with_the_published_vectors() -> None:
    assert [jump(key, 10) for key in range(10)] == [0, 6, 6, 8, 1, 4, 9, 0, 4, 7]


def test_one_more_bucket_moves_keys_only_into_it() -> None:
    for key in range(500):
        assert jump(key * KEY, 5) in (jump(key * KEY, 4), 4)


def test_a_service_keeps_to_one_shard_by_default() -> None:
    ring = StaticRing("here")
    assert len({ring.place(TenantId("acme"), "shop", mark) for mark in range(50)}) == 1


def test_services_spread_over_all_shards_which_count_from_one() -> None:
    ring = StaticRing("here")
    shards = {ring.place(TenantId("acme"), f"service-{n}", n) for n in range(100)}
    assert shards == {1, 2, 3, 4}


def test_a_wider_dataset_uses_its_shards_by_fingerprint() -> None:
    ring = StaticRing("here", shards=4, dataset_shards=2)
    placed = [ring.place(TenantId("acme"), "shop", mark) for mark in range(4)]
    assert placed[0] == placed[2] != placed[1] == placed[3]


def test_every_shard_is_assigned_to_the_one_node() -> None:
    assert [(one.shard, one.node) for one in StaticRing("here", shards=2).assignments()] == [
        (1, "here"),
        (2, "here"),
    ]
