"""What tests of the metastore's service do again and again: add, poll, report, view."""

from __future__ import annotations

from pathlib import Path

import pytest

from maar.metastore.service import MetastoreService
from maar.model.block import BlockMeta
from maar.model.ids import BlockId, WorkerId
from maar.model.plan import LeasedPlan
from maar.model.time import SECOND_NS, TimeRange
from maar.ports.plans.board import PollReply, PollRequest, Renewal, Report
from maar.ports.reader.index import ViewRequest
from maar.services.compact.rules import COMPACT
from support.metastore.fold import DAY_START_NS, TENANT, result, segment
from support.metastore.world import World

W1 = WorkerId("w1")
W2 = WorkerId("w2")
RANGE = TimeRange(DAY_START_NS, DAY_START_NS + 10**6 * SECOND_NS)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "log")


async def add(service: MetastoreService, *numbers: int, shard: int = 1) -> list[BlockMeta]:
    now = await service.now()
    metas = [segment(n, at=now.lease_time, shard=shard) for n in numbers]
    reply = await service.add_blocks(tuple(metas))
    assert set(reply.refusals) == {""}
    return metas


async def poll(
    service: MetastoreService,
    capacity: int = 1,
    worker: WorkerId = W1,
    reports: tuple[Report, ...] = (),
    renewals: tuple[Renewal, ...] = (),
) -> PollReply:
    return await service.poll(PollRequest(worker, capacity, renewals, reports, kinds=(COMPACT,)))


def report_of(plan: LeasedPlan) -> Report:
    return Report(plan.id, plan.token, result(plan.id, plan.token, plan.inputs))


async def view(service: MetastoreService, reader: str = "") -> set[BlockId]:
    found = await service.view(ViewRequest(TENANT, RANGE, "checkout", reader))
    return {meta.id for meta in found.blocks}
