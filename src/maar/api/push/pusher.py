"""push.v1.PusherService/Push: how today's agents send profiles, by Connect and gRPC."""

from __future__ import annotations

from typing import Any

from maar.api.guard import RequestGuard
from maar.api.protocol.connect import CallService, Reply, RequestLimits, Unary
from maar.api.protocol.fields import check_fields
from maar.api.protocol.wire import PushRequest, PushResponse
from maar.distributor.admit import PushedProfile
from maar.distributor.service import Distributor
from maar.model.ids import ProfileId, TenantId

PUSHER = "push.v1.PusherService"
PUSH = f"/{PUSHER}/Push"
JSON_BYTES_MAX = 16 << 20
FIELDS_MAX = 100_000  # labels and profiles of one push, all series together
IDS_HEADER = "Maar-Profile-Ids"
IDS_MAX = 200  # longer headers are refused by some clients; such pushes are answered without ids


def pusher_service(guard: RequestGuard, distributor: Distributor) -> CallService:
    """Handles a push, whichever protocol it came by."""

    async def push(tenant: TenantId, request: Any) -> Reply:
        ids = distributor.push(tenant, pushed_profiles(request))
        del request  # its bytes are those of the profiles again
        return PushResponse(), ids_header(await ids)

    settings = guard.settings
    call = Unary(
        guard,
        PUSH,
        PushRequest,
        push,
        limits=RequestLimits(
            body=settings.body_bytes_max,
            proto=settings.request_bytes_max,
            json=min(JSON_BYTES_MAX, settings.request_bytes_max),
        ),
        check=lambda raw: check_fields(raw, depth=2, fields_max=FIELDS_MAX),
        finishes=True,  # it may be stored already, and a retry finds it
    )
    return CallService(PUSHER, {"Push": call})


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
