"""Registers, merges and views blocks through the metastore's client, and records who saw what."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from maar.adapters.rpc import MetastoreClient
from maar.model.errors import Retryable
from maar.model.ids import FencingToken, PlanId, TenantId, WorkerId
from maar.model.plan import Account, LeasedPlan, PlanResult
from maar.model.time import TimeRange
from maar.ports.metastore.log_time import GetNow, Now
from maar.ports.plans.board import PollReply, PollRequest, Report
from maar.ports.reader.index import ViewRequest
from maar.ports.writer.registrar import AddBlocks
from maar.services.compact.rules import COMPACT
from support.metastore.fold import output, segment
from support.oracles.block_groups import Added, Call, Merged, Shown, Viewed, step
from support.oracles.linearizable import Operation, running_backwards, violations

GROUPS = 3
WRITERS = 2  # of each group
WORKERS = 2
PAUSE_S = 0.08
SLOTS = 4
ABANDONED = 0.05  # plans that a worker takes and forgets
PATIENCE_S = 90.0
EVER = TimeRange(0, 1 << 62)

_numbers = itertools.count(1)  # no two segments or groups of a test process are the same


@dataclass(frozen=True, slots=True)
class Granted:
    plan: PlanId
    token: FencingToken
    worker: str
    called_ns: int
    returned_ns: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A registration that is in the index, and the time of its call and answer."""

    block: str
    called_ns: int
    returned_ns: int


@dataclass
class Record:
    """All that was asked and answered; its checks say what cannot be."""

    history: list[Operation[Call]] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    granted: list[Granted] = field(default_factory=list)
    indexes: list[tuple[int, int, int]] = field(default_factory=list)  # of views
    errors: list[str] = field(default_factory=list)  # that reached a writer, reader or worker
    refused: int = 0  # reads by a single replica, which may say that it cannot answer

    def faults(self) -> list[str]:
        found = [str(one) for one in violations(self.history, Shown(), step)]
        found += [f"index {fault}" for fault in running_backwards(self.indexes)]
        return found + self._bad_tokens()

    def _bad_tokens(self) -> list[str]:
        stamps = [(one.called_ns, one.returned_ns, one.token.index) for one in self.granted]
        found = [f"token {fault}" for fault in running_backwards(stamps)]
        held: dict[tuple[PlanId, FencingToken], str] = {}
        for one in self.granted:
            holder = held.setdefault((one.plan, one.token), one.worker)
            if holder != one.worker:
                found.append(f"plan {one.plan} has token {one.token} twice")
        return found

    def first_after(self, moment_ns: int) -> int | None:
        """When the first registration that began after a moment was acknowledged."""
        ends = [one.returned_ns for one in self.acknowledged if one.called_ns > moment_ns]
        return min(ends, default=None)


class Load:
    """Groups of its own, and clients that each have channels of their own."""

    def __init__(self, replicas: str, *, seed: int, pause_s: float = PAUSE_S) -> None:
        self.record = Record()
        self._replicas = replicas
        self._random = Random(seed)
        self._pause_s = pause_s
        number = next(_numbers)
        self.groups = [(TenantId(f"load{number}-{n}"), 10 * number + n) for n in range(GROUPS)]
        self._over = asyncio.Event()
        self._quiet = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        """Under load inside; at the end all that was begun is finished, by healthy replicas."""
        async with asyncio.TaskGroup() as tasks:
            writers = [
                tasks.create_task(self._with_client(self._replicas, self._write, tenant, shard))
                for tenant, shard in self.groups
                for _ in range(WRITERS)
            ]
            for number in range(WORKERS):
                tasks.create_task(self._with_client(self._replicas, self._work, f"w{number}"))
            for tenant, _ in self.groups:
                tasks.create_task(self._with_client(self._replicas, self._read, tenant, True))
                for one in self._replicas.split(","):
                    tasks.create_task(self._with_client(one, self._read, tenant, False))
            try:
                yield self
            finally:
                self._over.set()
                await asyncio.wait(writers)
                self._quiet.set()

    async def goes_on(self, more: int = 20, patience_s: float = PATIENCE_S) -> None:
        """Wait until so many registrations were begun from now on and acknowledged."""
        began = time.monotonic_ns()
        deadline = time.monotonic() + patience_s
        while sum(one.called_ns > began for one in self.record.acknowledged) < more:
            assert time.monotonic() < deadline, f"no {more} registrations within {patience_s} s"
            await asyncio.sleep(0.02)

    async def gap_s(self, moment_ns: int) -> float:
        """From a moment until the next registration that began after it was acknowledged."""
        deadline = time.monotonic() + PATIENCE_S
        while (end := self.record.first_after(moment_ns)) is None:
            assert time.monotonic() < deadline, f"no registration within {PATIENCE_S} s"
            await asyncio.sleep(0.01)
        return (end - moment_ns) / 1e9

    async def _with_client(
        self,
        replicas: str,
        work: Callable[..., Coroutine[Any, Any, None]],
        *arguments: object,
    ) -> None:
        client = MetastoreClient(replicas)
        try:
            await work(client, *arguments)
        finally:
            await client.close()

    async def _pause(self) -> None:
        await asyncio.sleep(self._random.uniform(0, 2 * self._pause_s))

    # writers

    async def _write(self, client: MetastoreClient, tenant: TenantId, shard: int) -> None:
        now: Now | None = None
        while not self._over.is_set():
            try:
                now = await client.call(GetNow()) if now is None else now
            except Retryable as error:
                self.record.errors.append(f"now: {error}")
                continue
            await self._register(client, tenant, shard, now)
            await self._pause()

    async def _register(
        self, client: MetastoreClient, tenant: TenantId, shard: int, now: Now
    ) -> None:
        """The same again until it is answered, as a segment writer does."""
        at, life = now.lease_time, now.incarnation
        meta = segment(next(_numbers), at=at, shard=shard, tenant=tenant, life=life)
        called = time.monotonic_ns()
        while True:
            try:
                reply = await client.call(AddBlocks((meta,)))
            except Retryable as error:
                self.record.errors.append(f"add: {error}")
                await asyncio.sleep(self._pause_s)
                continue
            returned = time.monotonic_ns()
            assert reply.refusals == ("",), reply
            self.record.acknowledged.append(Acknowledged(meta.id, called, returned))
            self._note(tenant, Added(meta.id), True, called, returned)
            return

    # readers

    async def _read(self, client: MetastoreClient, tenant: TenantId, must: bool) -> None:
        reader = f"reader-{next(_numbers)}" if must else ""  # a pin is asked of the leader
        while not self._quiet.is_set():
            called = time.monotonic_ns()
            try:
                view = await client.call(ViewRequest(tenant, EVER, reader=reader))
            except Retryable as error:
                self.record.refused += not must
                if must:
                    self.record.errors.append(f"view: {error}")
            else:
                returned = time.monotonic_ns()
                shown = frozenset(meta.id for meta in view.blocks)
                self._note(tenant, Viewed(), shown, called, returned)
                self.record.indexes.append((called, returned, view.index))
            await self._pause()

    # workers

    async def _work(self, client: MetastoreClient, name: str) -> None:
        worker = WorkerId(f"{name}-{next(_numbers)}")
        done: dict[PlanId, tuple[LeasedPlan, PlanResult, int]] = {}
        while not (self._quiet.is_set() and not done):
            reports = tuple(
                Report(plan.id, plan.token, result) for plan, result, _ in done.values()
            )
            capacity = 0 if self._quiet.is_set() else SLOTS
            called = time.monotonic_ns()
            done = {
                plan.id: (plan, result, since or called) for plan, result, since in done.values()
            }
            try:
                reply = await client.call(
                    PollRequest(worker, capacity, (), reports, kinds=(COMPACT,))
                )
            except Retryable as error:
                self.record.errors.append(f"poll: {error}")
            else:
                self._take(reply, done, worker, called)
            await self._pause()

    def _take(
        self,
        reply: PollReply,
        done: dict[PlanId, tuple[LeasedPlan, PlanResult, int]],
        worker: WorkerId,
        called: int,
    ) -> None:
        returned = time.monotonic_ns()
        for outcome in reply.outcomes:
            plan, result, since = done.pop(outcome.plan)
            self._note_merge(plan, result, outcome.accepted, since, returned)
        for plan in reply.granted:
            self.record.granted.append(Granted(plan.id, plan.token, worker, called, returned))
            if self._random.random() >= ABANDONED:
                done[plan.id] = (plan, merge_result(plan), 0)

    def _note_merge(
        self, plan: LeasedPlan, result: PlanResult, answer: object, called: int, returned: int
    ) -> None:
        inputs = tuple(meta.id for meta in plan.inputs)
        outputs = tuple(meta.id for meta in result.outputs)
        tenant = plan.inputs[0].datasets[0].tenant
        if tenant not in dict(self.groups):
            return  # left over from another load, which does not look any more
        self._note(tenant, Merged(inputs, outputs), answer, called, returned)

    def _note(
        self, tenant: TenantId, call: Call, answer: object, called: int, returned: int
    ) -> None:
        self.record.history.append(Operation(tenant, call, answer, called, returned))


def merge_result(plan: LeasedPlan) -> PlanResult:
    """What a worker would have made of it: one block that keeps everything."""
    came = sum(meta.profiles for meta in plan.inputs)
    made = output(
        plan.id,
        plan.token,
        plan.inputs,
        profiles=came,
        level=plan.key.level + 1,
        tenant=plan.inputs[0].datasets[0].tenant,
    )
    return PlanResult(COMPACT, (made,), Account(came, 0, 0))
