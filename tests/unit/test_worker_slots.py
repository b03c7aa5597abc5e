"""A plan that takes several slots leaves fewer of them for others."""

from __future__ import annotations

import msgspec

from maar.model.ids import MAIN_STORE, FencingToken, Incarnation, PlanId, Shard, TenantId, WorkerId
from maar.model.plan import Account, LeasedPlan, PlanResult, QueueKey
from maar.model.time import SECOND_NS
from maar.ports.plans.board import PollReply
from maar.services.cluster.rules import CLUSTER
from maar.worker.keeper import Keeper

WORKER = WorkerId("w1")


def leased(slots: int) -> LeasedPlan:
    return LeasedPlan(
        id=PlanId(slots, 0),
        kind=CLUSTER,
        token=FencingToken(Incarnation("0badcafe"), slots),
        key=QueueKey(MAIN_STORE, TenantId("acme"), Shard(0), 0, day=20_000),
        inputs=(),
        target_block_bytes=1,
        lease_ns=15 * SECOND_NS,
        slots=slots,
    )


def capacity(keeper: Keeper, *, slots: int) -> int:
    return keeper.request(WORKER, slots=slots, now_ns=0).capacity


def grant(keeper: Keeper, plan: LeasedPlan) -> None:
    request = keeper.request(WORKER, slots=9, now_ns=0)
    keeper.on_reply(request, PollReply((plan,), (), ()), sent_ns=0, now_ns=0)


def test_a_plan_takes_as_many_slots_as_it_says_until_it_ends() -> None:
    keeper = Keeper(poll_ns=SECOND_NS, kinds=(CLUSTER,))
    assert capacity(keeper, slots=4) == 4
    three, one = leased(3), msgspec.structs.replace(leased(1), slots=1)
    grant(keeper, three)
    assert (keeper.busy(), capacity(keeper, slots=4)) == (1, 1)
    grant(keeper, one)
    assert (keeper.busy(), capacity(keeper, slots=4)) == (2, 0)
    keeper.on_end(three, PlanResult(CLUSTER, (), Account(0, 0, 0)), now_ns=0)
    assert (keeper.busy(), capacity(keeper, slots=4)) == (1, 3)


def test_a_plan_that_takes_more_slots_than_there_are_leaves_none() -> None:
    keeper = Keeper(poll_ns=SECOND_NS, kinds=(CLUSTER,))
    grant(keeper, leased(8))
    assert capacity(keeper, slots=2) == 0
    assert keeper.next_poll_ns(slots=2, last_poll_ns=0) == 5 * SECOND_NS, "only to renew"
