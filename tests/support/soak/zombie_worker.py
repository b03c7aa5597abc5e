"""A worker gone wrong: it renews nothing, works on whatever it once was given, and reports late."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from contextlib import suppress
from random import Random

from maar.adapters.rpc import MetastoreClient
from maar.app.processes import logs
from maar.model.errors import MaarError
from maar.model.ids import WorkerId
from maar.model.plan import LeasedPlan, PlanResult, PlanState
from maar.ports.operator.operator import GetPlan
from maar.ports.plans.board import PollReply, PollRequest, Renewal, Report
from maar.services.compact.rules import COMPACT
from support.soak.orders import Child, Done, Task, Zombie

log = logging.getLogger("maar.zombie")

ASK_AGAIN_S = 0.1
LOOK_AGAIN_S = 0.05
PATIENCE_NAPS = 6
CALL_S = 2.0


def run(order: Zombie) -> None:
    logs.configure(role=f"{order.name}-{os.getpid()}", form="text", level="info")
    asyncio.run(_live(order))


async def _live(order: Zombie) -> None:
    await _ZombieWorker(order).run()


class _ZombieWorker:
    def __init__(self, order: Zombie) -> None:
        self._order = order
        self._random = Random(order.seed)
        self._name = WorkerId(f"{order.name}-{os.getpid()}")
        self._metastore = MetastoreClient(order.around.metastore, deadline_s=CALL_S)
        self._awake = asyncio.Event()

    async def run(self) -> None:
        """Until SIGTERM; what is in hand then is still carried out, and reported late."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._awake.set)
        while not self._awake.is_set():
            reply = await self._poll(PollRequest(self._name, capacity=1, kinds=(COMPACT,)))
            await asyncio.gather(*(self._carry_out(plan) for plan in reply.granted))
            await asyncio.sleep(ASK_AGAIN_S)

    async def _carry_out(self, plan: LeasedPlan) -> None:
        """Say that it began, and nothing more until it does most harm; then say it twice."""
        granted_ns = time.monotonic_ns()
        started = Renewal(plan.id, plan.token, started=True)
        await self._poll(PollRequest(self._name, capacity=0, renewals=(started,)))
        await self._nap()
        result = await asyncio.to_thread(self._result, plan, granted_ns)
        if result is not None:
            await self._worst_moment(plan)
            report = Report(plan.id, plan.token, result=result)
            for _ in range(2):
                reply = await self._poll(PollRequest(self._name, capacity=0, reports=(report,)))
                log.info("told late outcome=%s", reply.outcomes)

    def _result(self, plan: LeasedPlan, granted_ns: int) -> PlanResult | None:
        until_ns = granted_ns + int(self._order.around.write_s * 1e9)
        try:
            child = Child(
                self._order.around.fork_server,
                Task(self._order.around, plan, pause_s=self._order.nap_s, write_until_ns=until_ns),
            )
            answer = child.answer()
        except (OSError, EOFError):
            return None
        child.close()
        return answer.result if isinstance(answer, Done) else None

    async def _worst_moment(self, plan: LeasedPlan) -> None:
        """When somebody else is at work on the plan, or has completed it; or nobody, for long."""
        deadline = time.monotonic() + PATIENCE_NAPS * self._order.nap_s
        while time.monotonic() < deadline:
            with suppress(MaarError):
                found = (await self._metastore.call(GetPlan(plan.id))).plan
                taken = found.lease is not None and found.lease.token != plan.token
                if taken or found.state is PlanState.COMPLETED:
                    return
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _nap(self) -> None:
        await asyncio.sleep(self._random.uniform(0, self._order.nap_s))

    async def _poll(self, request: PollRequest) -> PollReply:
        while True:
            try:
                return await self._metastore.call(request)
            except MaarError:
                await asyncio.sleep(ASK_AGAIN_S)
