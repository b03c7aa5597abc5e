"""/api/v1/placement: how many shards each dataset has, and the rates which that follows from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from maar.api.admin.admin import limit_of
from maar.model.ids import Incarnation, TenantId
from maar.model.time import SECOND_NS
from maar.placement import stored
from maar.placement.adaptive.statistics import DatasetStats, Stats
from maar.placement.rules import Rules, Share
from maar.ports.calls import Caller
from maar.ports.metastore.log_time import GetNow, LogTime
from maar.ports.stores.object_store import ObjectStore


class Placed(NamedTuple):
    """The newest of each in the store, and sentences about newer ones that are damaged."""

    rules: Rules = Rules()
    stats: Stats = Stats()
    unreadable: tuple[str, ...] = ()


ReadPlaced = Callable[[Incarnation], Awaitable[Placed]]


def placement_reader(store: ObjectStore) -> ReadPlaced:
    async def read(incarnation: Incarnation) -> Placed:
        return await asyncio.to_thread(_read, store, incarnation)

    return read


async def nothing_placed(_incarnation: Incarnation) -> Placed:
    """For a front that has no store to look into."""
    return Placed()


def _read(store: ObjectStore, incarnation: Incarnation) -> Placed:
    shelf = stored.list_names(store, incarnation)
    rules = stored.newest_rules(store, shelf.rules)
    stats = stored.newest_stats(store, shelf.stats)
    return Placed(
        rules.value or Rules(), stats.value or Stats(), (*rules.unreadable, *stats.unreadable)
    )


class PlacementView:
    def __init__(self, metastore: Caller[LogTime], read: ReadPlaced) -> None:
        self._metastore = metastore
        self._read = read

    async def placement(self, _tenant: TenantId, request: Request) -> Response:
        query = request.query_params
        limit = limit_of(query)
        now = await self._metastore.call(GetNow())
        placed = await self._read(now.incarnation)
        found = [
            one
            for one in _datasets(placed)
            if query.get("tenant", "") in ("", one["tenant"])
            and query.get("service", "") in ("", one["service"])
        ]
        return JSONResponse(
            {
                "rules_age_s": _age_s(placed.rules.created_at, now.lease_time),
                "stats_age_s": _age_s(placed.stats.created_at, now.lease_time),
                "datasets": found[:limit],
                "more": len(found) > limit,
                "unreadable": list(placed.unreadable),
            }
        )


def _age_s(created_at: int, now: int) -> float | None:
    """By lease time; None when nothing was ever made."""
    return max(0, now - created_at) / SECOND_NS if created_at else None


def _datasets(placed: Placed) -> list[dict[str, Any]]:
    """All that have a rule, or data and no rule yet; by tenant and name."""
    seen = {(one.tenant, one.service): one for one in placed.stats.datasets}
    return [
        {"tenant": tenant, "service": service}
        | _rule(placed.rules.datasets.get((tenant, service)))
        | _usage(seen.get((tenant, service)))
        for tenant, service in sorted(placed.rules.datasets.keys() | seen.keys())
    ]


def _rule(share: Share | None) -> dict[str, Any]:
    return {
        "tenant_shards": share.tenant_shards if share else None,
        "dataset_shards": share.dataset_shards if share else None,
        "balancing": share.balancing.spoken if share else None,
    }


def _usage(stats: DatasetStats | None) -> dict[str, Any]:
    """Bytes a second; a dataset that has a rule and no data has none."""
    return {
        "usage": stats.usage if stats else 0,
        "std_dev": stats.std_dev if stats else 0,
        "shards": [
            {"shard": use.shard, "owner": use.owner, "zone": use.zone, "usage": use.usage}
            for use in (stats.shards if stats else ())
        ],
    }
