"""What tests of several replicas do again and again: add, view, compare, find a follower."""

from __future__ import annotations

import pytest

from maar.metastore.leader.term import LeaderTerm
from maar.metastore.replica.follower import Follower
from maar.metastore.service import MetastoreService
from maar.metastore.state.digest import digest
from maar.model.block import BlockMeta
from maar.model.ids import BlockId, WorkerId
from maar.model.time import SECOND_NS, TimeRange
from maar.ports.reader.index import ViewRequest
from support.metastore.fold import DAY_START_NS, TENANT, segment
from support.metastore.replicas_world import ReplicatedWorld, WorldReplica

RANGE = TimeRange(DAY_START_NS, DAY_START_NS + 10**6 * SECOND_NS)
W1 = WorkerId("w1")


@pytest.fixture
def world() -> ReplicatedWorld:
    return ReplicatedWorld()


async def add(service: MetastoreService, *numbers: int) -> list[BlockMeta]:
    now = await service.now()
    metas = [segment(n, at=now.lease_time) for n in numbers]
    reply = await service.add_blocks(tuple(metas))
    assert set(reply.refusals) == {""}
    return metas


async def view(service: MetastoreService, reader: str = "") -> set[BlockId]:
    found = await service.view(ViewRequest(TENANT, RANGE, "checkout", reader))
    return {meta.id for meta in found.blocks}


def same_states(world: ReplicatedWorld) -> None:
    assert len({digest(follower_of(member).state) for member in world.members}) == 1


def follower_of(member: WorldReplica) -> Follower:
    assert member.service.follower is not None
    return member.service.follower


def term_of(member: WorldReplica) -> LeaderTerm:
    assert member.service.leader_term is not None
    return member.service.leader_term
