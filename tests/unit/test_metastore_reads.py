"""What operators read: plans by filters, a plan with its inputs, levels at no cost."""

from __future__ import annotations

from itertools import islice
from typing import Any

import msgspec
import pytest

from maar.metastore.records.effects import Completed
from maar.metastore.records.entries import (
    BlocksAdded,
    BlocksForgotten,
    LimitRaised,
    PlanCompleted,
    PlanExcluded,
    PlansParked,
    PlansStarted,
    Start,
)
from maar.metastore.state.index import Index
from maar.metastore.state.state import MetaState
from maar.metastore.views import reads
from maar.model.block import Kind
from maar.model.errors import InvalidInput, NotFound
from maar.model.ids import PlanId, TenantId
from maar.model.plan import Account, PlanResult, PlanState
from maar.model.time import SECOND_NS, LeaseTime, TimeRange, WallTime
from maar.ports.operator.operator import ListPlans, Status
from maar.ports.reader.index import ViewRequest
from maar.services.compact.rules import COMPACT
from support.lake.fold_and_store import Lake
from support.metastore.fold import DAY_START_NS, SMALL, Fold, output, result, segment
from support.metastore.plans import add_plan, complete_plan, fail_plan, lease_plan

LATER = LeaseTime(3600 * SECOND_NS)


def status(fold: Fold) -> Status:
    return reads.status(
        fold.state,
        now=LeaseTime(fold.now),
        wall=WallTime(DAY_START_NS + fold.now),
        blocked=("a sentence",),
        snapshot_index=3,
        log_first=1,
    )


def every_state(fold: Fold) -> dict[str, PlanId]:
    """A plan in each state that compaction brings about, in the order of their ids."""
    done = add_plan(fold, segment(1, shard=1), segment(2, shard=1), segment(3, shard=1))
    complete_plan(fold, done)
    names = {"completed": done}
    for number, name in enumerate(("requested", "inflight", "excluded", "parked"), start=10):
        names[name] = add_plan(fold, segment(number, shard=number))
    fold.put(PlansStarted((Start(names["inflight"], lease_plan(fold, names["inflight"])),)))
    fail_plan(fold, names["excluded"])
    fold.put(PlanExcluded(names["excluded"], None, LATER))
    fail_plan(fold, names["parked"])
    fold.put(PlansParked((names["parked"],)))
    return names


def fold_of_all() -> tuple[Fold, dict[str, PlanId]]:
    fold = Fold(policy=msgspec.structs.replace(SMALL, plans_max=4))
    return fold, every_state(fold)


def found(fold: Fold, **wanted: Any) -> list[PlanId]:
    return [plan.id for plan in reads.plans(fold.state, ListPlans(**wanted))]


@pytest.mark.parametrize("state", ["completed", "requested", "inflight", "excluded", "parked"])
def test_plans_are_found_by_state_also_parked_and_finished_ones(state: str) -> None:
    fold, names = fold_of_all()
    assert found(fold, state=state) == [names[state]]


def test_plans_are_found_by_level_tenant_shard_service_and_whether_they_fail() -> None:
    fold, names = fold_of_all()
    newest_first = sorted(names.values(), reverse=True)
    assert found(fold) == newest_first
    assert found(fold, limit=2) == newest_first[:2]
    assert found(fold, level=0) == newest_first
    assert found(fold, level=1) == []
    assert found(fold, shard=11) == [names["inflight"]]
    assert found(fold, service="compact") == newest_first
    assert found(fold, tenant="acme") == [], "level 0 belongs to all tenants"
    assert found(fold, failing=True) == [names["parked"], names["excluded"]]
    assert found(fold, failing=True, state="requested") == []
    (made,) = (block for block in fold.live() if fold.state.blocks.get(block).level == 1)
    second = add_plan(fold, fold.state.blocks.get(made))
    assert found(fold, tenant="acme") == found(fold, level=1) == [second]


def test_a_plan_that_failed_and_completed_in_the_end_does_not_fail_any_more() -> None:
    fold = Fold()
    plan = add_plan(fold, segment(1), segment(2), segment(3))
    fail_plan(fold, plan)
    assert found(fold, failing=True) == [plan]
    complete_plan(fold, plan)
    assert fold.state.finished[plan].failures == 1
    assert found(fold, failing=True) == []


@pytest.mark.parametrize(
    ("wanted", "says"),
    [(ListPlans(state="lost"), "parked"), (ListPlans(service="brew"), "there are compact")],
)
def test_what_is_no_state_or_service_is_said_with_those_there_are(
    wanted: ListPlans, says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        reads.plans(MetaState(), wanted)


def test_a_plan_comes_with_its_inputs_live_or_replaced_until_they_are_deleted() -> None:
    fold = Fold()
    plan = add_plan(fold, segment(1), segment(2), segment(3))
    inputs = fold.metas(fold.state.plans[plan].inputs)
    complete_plan(fold, plan)
    detail = reads.plan(fold.state, plan, now=LeaseTime(7))
    assert (detail.plan.state, detail.now) == (PlanState.COMPLETED, 7)
    assert detail.inputs == inputs
    fold.put(BlocksForgotten((inputs[0].id,)))
    assert reads.plan(fold.state, plan, now=LeaseTime(7)).inputs == inputs[1:]
    with pytest.raises(NotFound, match="archived"):
        reads.plan(fold.state, PlanId(99, 0), now=LeaseTime(7))


def test_the_limit_that_is_shown_is_the_one_in_force() -> None:
    fold = Fold()
    plan = add_plan(fold, segment(1))
    assert (status(fold).failure_limit, status(fold).limit_raised_s) == (2, 0)
    fold.put(LimitRaised(9, LeaseTime(60 * SECOND_NS)))
    assert reads.plan(fold.state, plan, now=LeaseTime(0)).failure_limit == 9
    fold.now = 20 * SECOND_NS
    assert (status(fold).failure_limit, status(fold).limit_raised_s) == (9, 40)
    fold.now = 61 * SECOND_NS
    assert (status(fold).failure_limit, status(fold).limit_raised_s) == (2, 0)
    assert reads.plan(fold.state, plan, now=LeaseTime(fold.now)).failure_limit == 2


def test_the_status_counts_every_state_and_lists_what_is_set_aside() -> None:
    fold, names = fold_of_all()
    seen = status(fold)
    assert seen.plans == dict.fromkeys(names, 1)
    assert {plan.id for plan in seen.failed} == {names["excluded"], names["parked"]}
    assert (seen.running, [plan.id for plan in seen.leased]) == (1, [names["inflight"]])
    assert seen.parked == 1
    assert seen.leftovers == len(fold.state.leftovers) == 3
    assert seen.blocked == ("a sentence",)
    level0 = seen.levels[0]
    assert (level0.blocks, level0.queued, level0.held) == (4, 0, 2)


def test_of_very_many_running_plans_a_status_lists_some_and_counts_all() -> None:
    fold = Fold()
    for number in range(reads.LISTED_MAX + 5):
        lease_plan(fold, add_plan(fold, segment(number, shard=number + 1)))
    seen = status(fold)
    assert seen.running == reads.LISTED_MAX + 5
    assert len(seen.leased) == reads.LISTED_MAX


def test_the_backlog_is_counted_in_blocks_and_bytes_as_they_come_and_go() -> None:
    fold = Fold()
    fold.put(BlocksAdded((segment(1, size=100), segment(2, size=200), segment(3, shard=2, size=7))))
    fold.now = 8 * SECOND_NS
    (level,) = status(fold).levels
    assert (level.queued, level.queued_bytes, level.oldest_queued_s) == (3, 307, 8.0)
    plan = add_plan(fold, segment(1, size=100))
    (level,) = status(fold).levels
    assert (level.blocks, level.queued, level.queued_bytes) == (3, 2, 207)
    (made,) = complete_plan(fold, plan).result.outputs
    zero, one = status(fold).levels
    assert (zero.queued, zero.queued_bytes) == (2, 207)
    assert (one.queued, one.queued_bytes) == (1, made.size)


def test_quarantine_is_no_backlog() -> None:
    fold = Fold()
    metas = (segment(1), segment(2))
    plan = add_plan(fold, *metas)
    token = lease_plan(fold, plan)
    made = result(plan, token, metas)
    bad = output(plan, token, metas, profiles=1, kind=Kind.QUARANTINE, ordinal=1)
    good = msgspec.structs.replace(made.outputs[0], profiles=19)
    account = msgspec.structs.replace(made.account, kept=19, quarantined=1)
    fold.put(
        PlanCompleted(
            plan, token, msgspec.structs.replace(made, outputs=(good, bad), account=account)
        )
    )
    levels = {(level.level, level.kind): level for level in status(fold).levels}
    assert levels[1, "block"].queued == 1
    assert levels[1, "quarantine"].queued == levels[1, "quarantine"].queued_bytes == 0


def test_asking_for_levels_looks_at_no_lane_and_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be a hundred thousand lanes, and a million blocks; it is asked twice a second."""
    fold = Fold()
    fold.put(BlocksAdded(tuple(segment(n, shard=n + 1) for n in range(50))))

    def never(*_: object) -> Any:
        raise AssertionError("this costs as much as there are blocks")

    monkeypatch.setattr(Index, "partitions", never)
    monkeypatch.setattr(Index, "get", never)
    monkeypatch.setattr(Index, "chunks", never)
    lanes = fold.state.queue.lanes
    fold.state.queue.lanes = _Unseen(lanes)
    (level,) = reads.levels(fold.state, LeaseTime(0), {})
    assert (level.blocks, level.queued) == (50, 50)
    assert list(islice(lanes, 1)), "the lanes are there"


class _Unseen(dict[Any, Any]):
    """Lanes that can be found by their key, and not walked through."""

    def __iter__(self) -> Any:
        raise AssertionError("this costs as much as there are lanes")

    items = values = keys = __iter__


def test_a_view_of_any_tenant_holds_nothing_of_another() -> None:
    """At level 0 a block may be of several: then it is in the views of those, and of no others."""
    tenants = [TenantId(name) for name in ("acme", "globex", "initech", "nobody")]
    world = Lake()
    shared = segment(50)
    datasets = tuple(
        msgspec.structs.replace(shared.datasets[0], tenant=tenant, profiles=5)
        for tenant in tenants[:2]
    )
    world.register(msgspec.structs.replace(shared, datasets=datasets))
    for number, tenant in enumerate(tenants[:3]):
        world.register(segment(number, tenant=tenant))
        merged = segment(10 + number, tenant=tenant)
        world.register(merged)
        plan = world.schedule([merged])
        token = world.lease(plan)
        good = output(plan, token, (merged,), profiles=9, tenant=tenant)
        bad = output(
            plan, token, (merged,), profiles=1, ordinal=1, tenant=tenant, kind=Kind.QUARANTINE
        )
        both = PlanResult(COMPACT, (good, bad), Account(9, 0, 1))
        (effect,) = world.fold.put(PlanCompleted(plan, token, both))
        assert isinstance(effect, Completed), effect
    ever = TimeRange(0, 1 << 62)
    for tenant in tenants:
        request = ViewRequest(tenant, ever)
        seen = reads.select(reads.chunks_for(world.state.blocks, request), request)
        for meta in seen:
            assert tenant in {dataset.tenant for dataset in meta.datasets}, meta
            assert meta.tenant in ("", tenant)
        kinds = sorted(meta.kind for meta in seen)
        wanted = [Kind.SEGMENT, Kind.BLOCK, Kind.QUARANTINE]
        if tenant in tenants[:2]:
            wanted = [Kind.SEGMENT, *wanted]
        assert kinds == (wanted if tenant != "nobody" else [])
