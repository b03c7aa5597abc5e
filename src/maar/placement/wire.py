"""Placement rules and statistics as bytes: protobuf, with the field numbers that others use too.

A tenant's name is written once, and datasets name it by its place; a shard and its owner likewise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from maar.model.errors import Corrupt
from maar.model.ids import HOME, Shard, TenantId, Zone
from maar.model.messages import messages
from maar.placement.adaptive.statistics import DatasetStats, ShardUse, Stats
from maar.placement.rules import Balancing, Rules, Share

_PACKAGE = "placement.v1"
_message = messages(
    {
        _PACKAGE: {
            "TenantPlacement": ("1 tenant_id string",),
            "DatasetPlacement": (
                "1 tenant int64",
                "2 name string",
                "3 tenant_shard_limit int64",
                "4 dataset_shard_limit int64",
                "5 load_balancing int32",
            ),
            "PlacementRules": (
                "1 tenants .placement.v1.TenantPlacement[]",
                "2 datasets .placement.v1.DatasetPlacement[]",
                "3 created_at int64",
            ),
            "TenantStats": ("1 tenant_id string",),
            "DatasetStats": (
                "1 tenant int64",
                "2 name string",
                "3 shards int64[]",
                "4 usage int64[]",
                "5 std_dev int64",
            ),
            "ShardStats": ("1 id int64", "2 owner string", "100 zone string"),
            "DistributionStats": (
                "1 tenants .placement.v1.TenantStats[]",
                "2 datasets .placement.v1.DatasetStats[]",
                "3 shards .placement.v1.ShardStats[]",
                "4 created_at int64",
            ),
        }
    }
)
PlacementRules = _message(f"{_PACKAGE}.PlacementRules")
DistributionStats = _message(f"{_PACKAGE}.DistributionStats")

T = TypeVar("T")


def encode_rules(rules: Rules) -> bytes:
    message = PlacementRules(created_at=rules.created_at)
    tenants: dict[TenantId, int] = {}
    for (tenant, service), share in rules.datasets.items():
        message.datasets.add(
            tenant=tenants.setdefault(tenant, len(tenants)),
            name=service,
            tenant_shard_limit=share.tenant_shards,
            dataset_shard_limit=share.dataset_shards,
            load_balancing=share.balancing,
        )
    for tenant in tenants:
        message.tenants.add(tenant_id=tenant)
    return _bytes(message)


def decode_rules(body: bytes) -> Rules:
    message = _parse(PlacementRules, body)
    tenants = [TenantId(one.tenant_id) for one in message.tenants]
    datasets = {
        (_at(tenants, one.tenant), one.name): Share(
            one.tenant_shard_limit, one.dataset_shard_limit, _balancing(one.load_balancing)
        )
        for one in message.datasets
    }
    if any(share.tenant_shards < 0 or share.dataset_shards < 1 for share in datasets.values()):
        raise Corrupt("the placement rules give a dataset no shards")
    return Rules(message.created_at, datasets)


def encode_stats(stats: Stats) -> bytes:
    message = DistributionStats(created_at=stats.created_at)
    tenants: dict[TenantId, int] = {}
    shards: dict[tuple[Shard, str, Zone], int] = {}
    for dataset in stats.datasets:
        sources = [(use.shard, use.owner, use.zone) for use in dataset.shards]
        message.datasets.add(
            tenant=tenants.setdefault(dataset.tenant, len(tenants)),
            name=dataset.service,
            shards=[shards.setdefault(source, len(shards)) for source in sources],
            usage=[use.usage for use in dataset.shards],
            std_dev=dataset.std_dev,
        )
    for tenant in tenants:
        message.tenants.add(tenant_id=tenant)
    for shard, owner, zone in shards:
        message.shards.add(id=shard, owner=owner, zone=zone)
    return _bytes(message)


def decode_stats(body: bytes) -> Stats:
    message = _parse(DistributionStats, body)
    tenants = [TenantId(one.tenant_id) for one in message.tenants]
    sources = [(Shard(one.id), one.owner, Zone(one.zone or HOME)) for one in message.shards]
    datasets = tuple(
        DatasetStats(_at(tenants, one.tenant), one.name, _uses(sources, one), one.std_dev)
        for one in message.datasets
    )
    return Stats(message.created_at, datasets)


def _uses(sources: list[tuple[Shard, str, Zone]], message: Any) -> tuple[ShardUse, ...]:
    if len(message.shards) != len(message.usage):
        raise Corrupt("the placement statistics have shards without usage, or usage of no shard")
    found = [_at(sources, place) for place in message.shards]
    return tuple(
        ShardUse(shard, owner, usage, zone)
        for (shard, owner, zone), usage in zip(found, message.usage, strict=True)
    )


def _bytes(message: Any) -> bytes:
    body: bytes = message.SerializeToString(deterministic=True)
    return body


def _parse(kind: Any, body: bytes) -> Any:
    message = kind()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise Corrupt(f"these bytes are no {kind.DESCRIPTOR.name}: {error}") from error
    return message


def _at(values: Sequence[T], place: int) -> T:
    if not 0 <= place < len(values):
        raise Corrupt(f"the message names entry {place} of a list of {len(values)}")
    return values[place]


def _balancing(number: int) -> Balancing:
    """What later versions may know, this one does by fingerprint."""
    return Balancing.ROUND_ROBIN if number == Balancing.ROUND_ROBIN else Balancing.FINGERPRINT
