"""The metastore of other processes: whoever leads answers, and a change of leader is waited out."""

from __future__ import annotations

import asyncio
import time
from typing import Any, TypeVar

from maar.adapters.rpc.channel import Channel
from maar.adapters.rpc.failover import Replicas, Search, passes, share_s
from maar.adapters.rpc.methods import (
    ADD_BLOCKS,
    BEAT,
    BLOCK,
    BLOCKS,
    EXCLUDE,
    EXPIRING,
    EXPLAIN,
    HOLD_RETENTION,
    LETTER,
    LETTERS,
    LOSE,
    LOSS,
    NOW,
    PLAN,
    PLANS,
    POLL,
    RAISE_LIMIT,
    READS,
    RELEASE_RETENTION,
    REMOVE_WRITER,
    REQUEUE,
    RETENTION,
    RETRY_LETTER,
    RINGS,
    SET_RETENTION,
    STATUS,
    UNDO_RETENTION,
    VIEW,
    Method,
)
from maar.model.block import BlockMeta
from maar.model.errors import Retryable, Unreachable
from maar.model.ids import BlockId, NodeId, PlanId, TenantId, Zone
from maar.model.plan import Plan
from maar.model.ring import Ring
from maar.model.time import LeaseTime
from maar.ports.dead_letters import Letter, LetterRetried, LettersPage
from maar.ports.index_reader import IndexView, ViewRequest
from maar.ports.log_time import Now
from maar.ports.membership import Beat, BeatReply, RingView
from maar.ports.operator import Explanation, Loss, PlanDetail, PlanFilter, Status
from maar.ports.plan_board import PollReply, PollRequest
from maar.ports.registrar import AddReply
from maar.ports.retention import Expiring, RetentionStatus, Undone

METASTORE_DEADLINE_S = 10.0  # longer than it takes until another one leads

R = TypeVar("R")


class MetastoreClient:
    """Whatever is asked goes to the replica that can answer it, until the deadline.

    All calls may be repeated, since they name what they mean. With a single address that leads,
    there is one try, as long as the deadline allows.
    """

    def __init__(self, addresses: str, *, deadline_s: float = METASTORE_DEADLINE_S) -> None:
        """One address, or several with commas between: the nearest first, since it is read from."""
        self._replicas = Replicas(addresses)
        self._deadline_s = deadline_s
        self._lines: dict[str, Channel] = {}
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        lines = list(self._lines.values())
        self._lines.clear()
        for line in lines:
            await line.close()

    async def _call(self, method: Method[R], *arguments: Any) -> R:
        search = Search(self._replicas, leads=method.path not in READS)
        until = time.monotonic() + self._deadline_s
        while True:
            now = time.monotonic()
            address = search.next(now)
            await self._hang_up()
            within_s = share_s(until - now, alone=self._replicas.alone)
            try:
                reply = await self._line(address).call(method, arguments, within_s=within_s)
            except Retryable as error:
                pause_s = search.refused(address, error, time.monotonic())
                if not passes(error, alone=self._replicas.alone) or self._closed:
                    raise
                if time.monotonic() + pause_s >= until:
                    raise
            else:
                search.answered(address)
                return reply
            await asyncio.sleep(pause_s)

    async def _hang_up(self) -> None:
        """Leaders that were named long ago need no line any more."""
        old = [self._lines.pop(each) for each in self._lines.keys() - self._replicas.known()]
        for line in old:
            await line.close()

    def _line(self, address: str) -> Channel:
        if self._closed:
            raise Unreachable(f"the channel to {address} is closed")
        line = self._lines.get(address)
        if line is None:
            watched = not self._replicas.alone
            line = self._lines[address] = Channel(
                address, deadline_s=self._deadline_s, watched=watched
            )
        return line

    async def now(self) -> Now:
        return await self._call(NOW)

    async def add_blocks(self, blocks: tuple[BlockMeta, ...]) -> AddReply:
        return await self._call(ADD_BLOCKS, blocks)

    async def poll(self, request: PollRequest) -> PollReply:
        return await self._call(POLL, request)

    async def view(self, request: ViewRequest) -> IndexView:
        return await self._call(VIEW, request)

    async def blocks(
        self, *, level: int = -1, tenant: str = "", limit: int = 1000
    ) -> tuple[BlockMeta, ...]:
        return await self._call(BLOCKS, level, tenant, limit)

    async def block(self, block: BlockId) -> BlockMeta:
        return await self._call(BLOCK, block)

    async def plans(self, wanted: PlanFilter) -> tuple[Plan, ...]:
        return await self._call(PLANS, wanted)

    async def plan(self, plan: PlanId) -> PlanDetail:
        return await self._call(PLAN, plan)

    async def requeue(self, plan: PlanId) -> Plan:
        return await self._call(REQUEUE, plan)

    async def exclude(self, plan: PlanId, *, note: str) -> Plan:
        return await self._call(EXCLUDE, plan, note)

    async def raise_limit(self, failure_limit: int, *, for_ns: int) -> LeaseTime:
        return LeaseTime(await self._call(RAISE_LIMIT, failure_limit, for_ns))

    async def explain(self, block: BlockId) -> Explanation:
        return await self._call(EXPLAIN, block)

    async def loss(self, block: BlockId) -> Loss:
        return await self._call(LOSS, block)

    async def lose(self, block: BlockId, *, note: str, force: bool = False) -> Loss:
        return await self._call(LOSE, block, note, force)

    async def retention(self) -> RetentionStatus:
        return await self._call(RETENTION)

    async def set_retention(self, tenant: TenantId, *, period_ns: int | None) -> RetentionStatus:
        return await self._call(SET_RETENTION, tenant, period_ns)

    async def hold_retention(self, *, why: str) -> RetentionStatus:
        return await self._call(HOLD_RETENTION, why)

    async def release_retention(self) -> RetentionStatus:
        return await self._call(RELEASE_RETENTION)

    async def undo_retention(self, *, tenant: str = "", why: str = "") -> Undone:
        return await self._call(UNDO_RETENTION, tenant, why)

    async def expiring(self, *, tenant: str = "", limit: int = 1000) -> tuple[Expiring, ...]:
        return await self._call(EXPIRING, tenant, limit)

    async def beat(self, beat: Beat) -> BeatReply:
        return await self._call(BEAT, beat)

    async def rings(self) -> tuple[RingView, ...]:
        return await self._call(RINGS)

    async def remove_writer(self, zone: Zone, node: NodeId) -> Ring:
        return await self._call(REMOVE_WRITER, zone, node)

    async def letters(self, *, limit: int = 100) -> LettersPage:
        return await self._call(LETTERS, limit)

    async def letter(self, name: str) -> Letter:
        return await self._call(LETTER, name)

    async def retry_letter(self, name: str) -> LetterRetried:
        return await self._call(RETRY_LETTER, name)

    async def status(self) -> Status:
        return await self._call(STATUS)
