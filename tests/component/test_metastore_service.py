"""The metastore as others see it: plans, leases, operators and deletion over a real log."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from prometheus_client import generate_latest

from maar.model.block import BlockMeta
from maar.model.errors import (
    InvalidInput,
    NotFound,
    Rejected,
)
from maar.model.ids import PlanId, WorkerId
from maar.model.plan import PlanState
from maar.model.predicate import Mask
from maar.model.time import SECOND_NS
from maar.ports.plans.board import Renewal
from maar.ports.reader.index import ViewRequest
from support.clock.fake_clock import FakeClock
from support.metastore.fold import SMALL, TENANT, segment
from support.metastore.service_steps import RANGE, W2, add, poll, report_of, view, world
from support.metastore.world import PATIENT, World

__all__ = ["world"]

pytestmark = pytest.mark.component


def test_from_registration_to_merge_in_polls(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            assert service.ready() == ""
            metas = await add(service, 1, 2, 3)
            assert await view(service) == {meta.id for meta in metas}
            (plan,) = (await poll(service)).granted
            assert plan.inputs == tuple(metas)
            assert plan.lease_ns == SMALL.lease_ns
            renewal = Renewal(plan.id, plan.token, started=True)
            (kept,) = (await poll(service, 0, renewals=(renewal,))).kept
            assert (kept.plan, kept.token) == (plan.id, plan.token)
            (outcome,) = (await poll(service, 0, reports=(report_of(plan),))).outcomes
            assert outcome.accepted
            (again,) = (await poll(service, 0, reports=(report_of(plan),))).outcomes
            assert again.accepted
            made = report_of(plan).result
            assert made is not None
            assert await view(service) == {made.outputs[0].id}
            status = await service.status()
            assert (status.completed, status.retired, status.plans) == (1, 3, {"completed": 1})
            assert (await service.plan(plan.id)).plan.attempts[0].started_at is not None
            assert (await service.block(made.outputs[0].id)).level == 1
            with pytest.raises(NotFound):
                await service.block(metas[0].id)
            with pytest.raises(NotFound):
                await service.plan(PlanId(1, 1))

    asyncio.run(test())


def test_a_view_that_is_still_right_comes_back_without_its_blocks(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            await add(service, 1, 2, 3)
            asked = ViewRequest(TENANT, RANGE, "checkout", "me")
            whole = await service.view(asked)
            known = msgspec.structs.replace(asked, known=whole.stamp)
            same = await service.view(known)
            assert (len(whole.blocks), same.blocks, same.stamp) == (3, (), whole.stamp)
            await add(service, 4)
            more = await service.view(known)
            assert len(more.blocks) == 4
            assert more.stamp != whole.stamp
            (plan,) = (await poll(service)).granted
            await poll(service, 0, reports=(report_of(plan),))
            merged = await service.view(msgspec.structs.replace(asked, known=more.stamp))
            assert len(merged.blocks) == 2
            assert merged.stamp not in (whole.stamp, more.stamp)

    asyncio.run(test())


def test_after_a_deletion_every_view_is_whole_and_has_its_masks(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            await add(service, 1, 2, 3)
            asked = ViewRequest(TENANT, RANGE, "checkout", "me")
            stamp = (await service.view(asked)).stamp
            everything = Mask(TENANT, "checkout", 0, RANGE.end_ns)
            await service.delete_profiles(everything, dry_run=False)
            for known in (stamp, b""):
                view = await service.view(msgspec.structs.replace(asked, known=known))
                assert view.masks.keys() == {meta.id for meta in view.blocks} != set()
                assert view.stamp == b""

    asyncio.run(test())


def test_a_pin_that_lasts_needs_no_turn_of_the_loop_and_is_renewed_in_time(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            await view(service, "me")
            first = (await service.now()).index
            await view(service, "me")
            assert (await service.now()).index == first
            world.clock.advance(SMALL.pin_ns * 2 // 3)
            await view(service, "me")
            assert (await service.now()).index > first
            await view(service, "you")
            state = service.follower.state if service.follower else None
            assert state is not None
            assert {"me", "you"} <= state.pins.keys()

    asyncio.run(test())


def test_a_lost_lease_is_told_by_silence_and_its_report_is_refused(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            await add(service, 1, 2, 3)
            (old,) = (await poll(service)).granted
            world.clock.advance(16 * SECOND_NS)
            (new,) = (await poll(service, worker=W2)).granted
            assert new.id == old.id
            assert new.token > old.token
            renewal = Renewal(old.id, old.token)
            reply = await poll(service, 0, reports=(report_of(old),), renewals=(renewal,))
            assert reply.kept == ()
            assert not reply.outcomes[0].accepted
            assert "token" in reply.outcomes[0].refusal
            (outcome,) = (await poll(service, 0, W2, reports=(report_of(new),))).outcomes
            assert outcome.accepted

    asyncio.run(test())


def test_many_callers_at_once_share_appends(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            before = (await service.now()).index
            await asyncio.gather(*(add(service, n) for n in range(200)))
            after = (await service.now()).index
            assert after - before < 50
            assert len(await service.blocks(limit=500)) == 200
            polls = await asyncio.gather(*(poll(service, 2, WorkerId(f"w{n}")) for n in range(20)))
            ids = [plan.id for reply in polls for plan in reply.granted]
            assert len(ids) == len(set(ids)) == 40

    asyncio.run(test())


def test_two_polls_of_one_worker_in_one_cycle_share_its_grants(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            await add(service, *range(12))
            one, two = await asyncio.gather(poll(service, 1), poll(service, 2))
            assert (len(one.granted), len(two.granted)) == (1, 2)

    asyncio.run(test())


def test_an_operator_sets_plans_aside_and_calls_them_back(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            await add(service, 1, 2, 3)
            (plan,) = (await poll(service)).granted
            excluded = await service.exclude(plan.id, note="it eats the disk")
            assert (excluded.state, excluded.note) == (PlanState.EXCLUDED, "it eats the disk")
            renewal = Renewal(plan.id, plan.token)
            reply = await poll(service, 1, renewals=(renewal,), reports=(report_of(plan),))
            assert (reply.kept, reply.granted) == ((), ())
            assert not reply.outcomes[0].accepted
            assert (await service.requeue(plan.id)).state is PlanState.REQUESTED
            with pytest.raises(Rejected, match="requested"):
                await service.requeue(plan.id)
            with pytest.raises(NotFound):
                await service.exclude(PlanId(1, 1), note="")
            (again,) = (await poll(service)).granted
            assert again.id == plan.id
            assert service.ready() == ""

    asyncio.run(test())


def test_an_operator_raises_the_limit_for_a_while(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            until = await service.raise_limit(9, for_ns=60 * SECOND_NS)
            assert until - (await service.now()).lease_time <= 60 * SECOND_NS
            assert (await service.status()).failure_limit == 9
            world.clock.advance(61 * SECOND_NS)
            assert (await service.status()).failure_limit == SMALL.failure_limit
            with pytest.raises(InvalidInput):
                await service.raise_limit(1, for_ns=1)

    asyncio.run(test())


def test_idle_lanes_are_merged_when_they_are_old(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            await add(service, 1)
            assert (await poll(service)).granted == ()
            world.clock.advance(11 * SECOND_NS)
            assert len((await poll(service)).granted) == 1

    asyncio.run(test())


def test_time_that_passes_while_something_waits_is_recorded(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            await add(service, 1)
            before = (await service.now()).index
            world.clock.advance(11 * SECOND_NS)
            async with asyncio.timeout(100):
                while (await service.now()).index == before:
                    await asyncio.sleep(0.05)
        world.clock = FakeClock()
        async with world.running() as service:
            assert (await service.now()).lease_time >= 11 * SECOND_NS

    asyncio.run(test())


def test_objects_of_merged_segments_are_deleted_after_the_delay_but_not_under_a_pin(
    world: World,
) -> None:
    policy = msgspec.structs.replace(
        PATIENT, retire_delay_ns=60 * SECOND_NS, pin_ns=100 * SECOND_NS
    )

    def put(*metas: BlockMeta) -> None:
        for meta in metas:
            for file in meta.files:
                world.store.create(file.locations[0].key, b"x" * file.size)

    async def test() -> None:
        async with world.running(policy) as service:
            assert service.leader_term is not None
            cleaner = service.leader_term.cleaner
            metas = await add(service, 1, 2, 3)
            put(*metas)
            await view(service, reader="slow")
            (plan,) = (await poll(service)).granted
            report = report_of(plan)
            assert report.result is not None
            put(*report.result.outputs)
            await poll(service, 0, reports=(report,))

            async def clean() -> int:
                await cleaner.remove()
                return len(list(world.store.list("segments/")))

            assert await clean() == 3
            world.clock.advance(61 * SECOND_NS)
            assert await clean() == 3
            world.clock.advance(100 * SECOND_NS)
            assert await clean() == 0
            assert (await service.status()).retired == 0
            reply = await service.add_blocks((metas[0],))
            assert reply.refusals == ("",)
            assert len(await view(service)) == 1

    asyncio.run(test())


def test_a_value_that_cannot_be_written_is_refused_and_the_next_is_taken(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            odd = msgspec.structs.replace(segment(1), created_by="\ud800")
            with pytest.raises(InvalidInput):
                await service.add_blocks((odd,))
            await add(service, 2)
            assert service.ready() == ""

    asyncio.run(test())


def test_metrics_tell_levels_queues_and_bounds(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            await add(service, 1, 2)
            async with asyncio.timeout(100):
                while 'maar_metastore_blocks{kind="segment",level="0"} 2.0' not in (
                    generate_latest(world.registry).decode()
                ):
                    world.clock.advance(SECOND_NS)
                    await asyncio.sleep(0.05)
            text = generate_latest(world.registry).decode()
            for name in ("queued_blocks", "state_items", "head_index", "effects_total"):
                assert f"maar_metastore_{name}" in text

    asyncio.run(test())
