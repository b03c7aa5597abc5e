"""Whoever executes plans and cleans, step by step: over a real metastore, with the real tasks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from maar.metastore.service import MetastoreService
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.ids import FencingToken, PlanId, WorkerId
from maar.model.plan import LeasedPlan, Plan, PlanKind, PlanResult, Rollback
from maar.ports.clock import Clock
from maar.ports.operator.operator import ListPlans
from maar.ports.plans.board import (
    Execution,
    Outcome,
    PollRequest,
    Renewal,
    Report,
    RollBackPlan,
    RollbackReply,
    SchedulePlan,
)
from maar.ports.stores.object_store import ObjectStore
from maar.services import runs
from maar.services.clean.rules import CLEAN
from maar.services.clean.run import Cleaned, clean
from maar.services.publish import always
from maar.worker.store_runner import Undoing
from support.spark.plans import segment as real_segment

SLOTS = 8  # more than a plan of any kind takes


async def add(service: MetastoreService, store: ObjectStore, *numbers: int) -> list[BlockMeta]:
    """Segments of one profile each, in the store and in the index."""
    at = (await service.now()).lease_time
    metas = [real_segment(store, number, at=at) for number in numbers]
    reply = await service.add_blocks(tuple(metas))
    assert set(reply.refusals) == {""}
    return metas


async def schedule(service: MetastoreService, kind: str, **scope: int | str) -> PlanId:
    request = SchedulePlan(PlanKind(kind), **scope)  # type: ignore[arg-type]
    told = await service.schedule_plan(request)
    assert told.plan is not None, told.why
    return told.plan


async def plan_of(service: MetastoreService, plan: PlanId) -> Plan:
    return (await service.plan(plan)).plan


async def rollbacks_of(service: MetastoreService, target: PlanId) -> list[Plan]:
    found = await service.plans(ListPlans(limit=1000))
    return [plan for plan in found if plan.rolls_back == target]


def objects_written(store: ObjectStore, plan: PlanId, token: FencingToken) -> set[str]:
    """What an attempt has left in the store, its intents apart."""
    infos = store.list("")
    return {i.key for i in infos if keys.attempt_block(i.key, plan=plan, token=token) is not None}


class Place(Protocol):
    """Where plans are executed."""

    @property
    def store(self) -> ObjectStore: ...

    @property
    def clock(self) -> Clock: ...


class Executor:
    """One who executes plans. It stops wherever its caller does, and may go on much later."""

    def __init__(self, service: MetastoreService, world: Place, scratch: Path, name: str) -> None:
        self._service = service
        self._store = world.store
        self._scratch = scratch
        self.worker = WorkerId(name)
        self._undoing = Undoing(
            service, lambda: world.store, world.clock, asyncio.get_running_loop()
        )
        self.held: LeasedPlan | None = None
        self.made: PlanResult | None = None
        self.undone: list[Rollback] = []

    @property
    def plan(self) -> LeasedPlan:
        assert self.held is not None
        return self.held

    async def ask(self, plan: PlanId) -> Execution:
        """The answer to `execute`; what was granted is held."""
        reply = await self._service.poll(PollRequest(self.worker, SLOTS, execute=plan))
        assert reply.execution is not None
        self.held = reply.granted[0] if reply.granted else None
        return reply.execution

    async def undo(self) -> None:
        """Finish the rollbacks that came with the plan."""
        for rollback in self.plan.rollbacks:
            result = await asyncio.to_thread(self._undoing.roll_back, rollback)
            outcome = await self.report(Report(rollback.plan, rollback.token, result))
            assert outcome.accepted, outcome.refusal
            self.undone.append(rollback)

    async def start(self) -> bool:
        renewal = Renewal(self.plan.id, self.plan.token, started=True)
        return bool((await self._service.poll(PollRequest(self.worker, 0, (renewal,)))).kept)

    async def write(self) -> PlanResult:
        """What the task of the plan's kind writes, under keys of its own."""
        self.made = await asyncio.to_thread(self._carry_out, self.plan)
        return self.made

    def _carry_out(self, plan: LeasedPlan) -> PlanResult:
        parts = [
            runs.carry_out(
                part,
                store=self._store,
                attempt=f"{number}-1-{self.worker}",
                scratch=self._scratch,
                wall_ns=1,
                guard=always,
            )
            for number, part in enumerate(runs.cut(plan))
        ]
        return runs.join(plan, parts)

    async def complete(self) -> Outcome:
        assert self.made is not None
        return await self.report(Report(self.plan.id, self.plan.token, self.made))

    async def fail(self) -> Outcome:
        return await self.report(Report(self.plan.id, self.plan.token, None, "it broke"))

    async def report(self, report: Report) -> Outcome:
        reply = await self._service.poll(PollRequest(self.worker, 0, reports=(report,)))
        return reply.outcomes[0]

    async def begin(self, plan: PlanId) -> str:
        """All up to the report; what came of the wish."""
        execution = await self.ask(plan)
        if self.held is not None:
            await self.undo()
            if not await self.start():
                return "lost"
            await self.write()
        return execution.answer.value

    async def execute(self, plan: PlanId) -> str:
        """From the wish to the end, in the words of `maar plans execute`."""
        answer = await self.begin(plan)
        if self.held is None or answer == "lost":
            return answer
        return "completed" if (await self.complete()).accepted else "lost"

    async def clean(self) -> Cleaned:
        """A cleaning, by hand, to its end."""
        plan = await schedule(self._service, CLEAN)
        assert (await self.ask(plan)).answer == "granted"
        cleaned = await asyncio.to_thread(
            clean,
            self.plan,
            ask=self._undoing.ask,
            worker=self.worker,
            tools=self._undoing.tools,
        )
        outcome = await self.report(Report(self.plan.id, self.plan.token, cleaned.result))
        assert outcome.accepted, outcome.refusal
        return cleaned

    async def roll_back(self, plan: PlanId) -> RollbackReply:
        return await self._service.call(RollBackPlan(plan))
