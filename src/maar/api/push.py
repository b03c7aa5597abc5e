"""push.v1.PusherService/Push: how today's agents send profiles."""

from __future__ import annotations

from typing import Any

from maar.api.connect import Reply
from maar.api.wire import PushResponse
from maar.distributor.admit import PushedProfile
from maar.distributor.service import Distributor
from maar.model.ids import ProfileId, TenantId

IDS_HEADER = "Maar-Profile-Ids"
IDS_MAX = 200  # longer headers are refused by some clients; such pushes are answered without ids


class Pusher:
    def __init__(self, distributor: Distributor) -> None:
        self._distributor = distributor

    async def push(self, tenant: TenantId, request: Any) -> Reply:
        ids = await self._distributor.push(tenant, pushed_profiles(request))
        return PushResponse(), ids_header(ids)


def pushed_profiles(request: Any) -> list[PushedProfile]:
    """Each sample of each series is a profile with the labels of the series."""
    pushed: list[PushedProfile] = []
    for series in request.series:
        labels = tuple((pair.name, pair.value) for pair in series.labels)
        for sample in series.samples:
            pushed.append(PushedProfile(labels, sample.raw_profile, sample.ID))
    return pushed


def ids_header(ids: list[ProfileId]) -> dict[str, str] | None:
    return {IDS_HEADER: ",".join(map(bytes.hex, ids))} if len(ids) <= IDS_MAX else None
