"""Placement is arithmetic, the same everywhere and for ever: the published vectors, one by one."""

from __future__ import annotations

import pytest

from maar.model.ids import HOME, NodeId, TenantId
from maar.model.ring import Ring, Writer, WriterState
from maar.placement.locate import Place, Placement, Spot, jump, shard_at, spot_of
from maar.placement.permutation import step
from maar.placement.rules import Rules, Share, TenantLimits
from maar.placement.table import new_table
from support.oracles.permutation import permutation

KEY = 14_046_587_775_414_411_003
ACME = TenantId("acme")
OWNERS = (2, 1, 0, 1, 1, 2, 2, 0, 1, 0, 0, 2)


@pytest.mark.parametrize(("buckets", "bucket"), [(1, 0), (2, 0), (4, 0), (8, 6), (12, 8), (16, 8)])
def test_jump_hash_agrees_with_the_published_vectors(buckets: int, bucket: int) -> None:
    assert jump(KEY, buckets) == bucket


def test_jump_hash_of_small_keys_agrees_with_the_published_vectors() -> None:
    assert [jump(key, 10) for key in range(10)] == [0, 6, 6, 8, 1, 4, 9, 0, 4, 7]


def test_one_more_bucket_moves_keys_only_into_it() -> None:
    for key in range(500):
        assert jump(key * KEY, 5) in (jump(key * KEY, 4), 4)


@pytest.mark.parametrize(
    "expected",
    [(), (0,), (3, 1, 0, 2), (3, 6, 0, 5, 7, 4, 1, 2), (11, 6, 0, 5, 7, 8, 9, 2, 4, 1, 3, 10)],
)
def test_permutations_agree_with_the_published_vectors(expected: tuple[int, ...]) -> None:
    assert permutation(len(expected)) == expected


def test_permutations_beyond_the_published_steps_stay_what_they_are() -> None:
    """Tables of running rings come from them; another order would move every shard."""
    assert [step(index) for index in range(32, 44)] == [
        11,
        15,
        28,
        11,
        23,
        26,
        13,
        24,
        9,
        29,
        28,
        13,
    ]
    for size in (33, 64, 1000):
        assert sorted(permutation(size)) == list(range(size))


def no_draw(_: int) -> int:
    raise AssertionError("nothing is left to chance here")


def ring_of_three() -> Ring:
    nodes = [NodeId(name) for name in "abc"]
    owners = new_table(dict.fromkeys(nodes, 4))
    writers = tuple(Writer(node, "", "", 4, WriterState.ACTIVE) for node in nodes)
    return Ring(HOME, 1, writers, tuple(nodes.index(owner) for owner in owners))


def test_three_nodes_of_four_shards_begin_with_the_published_owners() -> None:
    assert ring_of_three().owners == OWNERS


def test_the_subrings_of_the_published_keys() -> None:
    spot = spot_of(KEY, KEY, Share(8, 4), 12)
    assert spot == Spot(8, 8, 6, 4)
    assert [shard_at(spot, offset, 12) for offset in range(4)] == [3, 4, 9, 10]


@pytest.mark.parametrize(
    ("pick", "nodes"), [(0, "abbaa"), (1, "bbaaa"), (2, "baabaccbbcca"), (3, "aabba")]
)
def test_the_published_order_of_nodes_for_each_pick(pick: int, nodes: str) -> None:
    ring = ring_of_three()
    placement = Placement(ring, Rules(), lambda _: TenantLimits(), no_draw)
    spot = Spot(8, 8, 6, 4)
    order = list(placement.order(Place(shard_at(spot, pick, 12), spot, pick)))
    assert sorted(order) == list(range(1, 13))
    assert "".join(ring.nodes()[shard - 1] for shard in order).startswith(nodes)


def test_one_shard_each_gives_every_node_once_whatever_its_state_and_the_limits() -> None:
    states = dict(a=WriterState.ACTIVE, b=WriterState.ACTIVE, c=WriterState.LEAVING)
    writers = tuple(Writer(NodeId(node), "", "", 1, state) for node, state in states.items())
    ring = Ring(HOME, 1, writers, (2, 0, 1))
    for tenant_shards in range(5):
        for dataset_shards in range(1, 5):
            limits = TenantLimits(tenant_shards=tenant_shards, dataset_shards=dataset_shards)
            placement = Placement(ring, Rules(), {ACME: limits}.__getitem__, no_draw)
            for mark in range(4):
                place = placement.place(ACME, "shop", mark)
                assert sorted(placement.order(place)) == [1, 2, 3]
                assert sorted(writer.node for writer in placement.writers(place)) == [*"abc"]
