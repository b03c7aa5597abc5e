"""The cleaner beside the metastore's leader: what it does needs neither Spark nor traffic.

It is a worker like any other, under leases like any other, so that a cleaning by hand and this one
cannot disturb each other. Where its replica does not lead, it has nothing to do.
"""

from __future__ import annotations

import asyncio
import secrets
from random import Random
from typing import TypeVar

from prometheus_client import CollectorRegistry

from maar.adapters.system_clock import SystemClock
from maar.app.roles.wiring import node_name
from maar.metastore.service import MetastoreService
from maar.model.errors import NotLeading
from maar.model.ids import WorkerId
from maar.ports.calls import Call
from maar.ports.plans.board import PlanBoard, PollReply, PollRequest
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores
from maar.worker.service import Worker
from maar.worker.settings import WorkerSettings
from maar.worker.store_runner import StoreRunner, Undoing

R = TypeVar("R")


class OwnBoard:
    """The plan board of the replica in this process; when another one leads, nothing is on it."""

    def __init__(self, service: MetastoreService) -> None:
        self._service = service

    async def call(self, request: Call[PlanBoard, R], /) -> R:
        idle = isinstance(request, PollRequest) and not (request.renewals or request.reports)
        try:
            return await self._service.call(request)
        except NotLeading:
            if not idle:
                raise
            nothing: R = PollReply((), (), ())  # type: ignore[assignment]
            return nothing


def cleaner(service: MetastoreService, store: ObjectStore | Stores) -> Worker:
    board, worker = OwnBoard(service), WorkerId(f"cleaner-{node_name()}-{secrets.token_hex(4)}")
    undoing = Undoing(board, lambda: store, SystemClock(), asyncio.get_running_loop())
    return Worker(
        WorkerSettings(),
        board,
        StoreRunner(undoing, worker),
        SystemClock(),
        CollectorRegistry(),  # what it does is counted by the metastore
        worker,
        random=Random(secrets.randbits(64)),
    )
