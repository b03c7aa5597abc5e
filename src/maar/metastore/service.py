"""The metastore's shell: one serial loop answers from what the fold did, chores run beside it."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from maar.metastore import inbox, prepare, reads, schedule, snapshot
from maar.metastore.chores import Prepare, Snapshots, clean_forever
from maar.metastore.effects import Effect
from maar.metastore.entries import Entry
from maar.metastore.inbox import Add, Chore, Inbox, Pin, Poll, Request
from maar.metastore.leader import Leader
from maar.metastore.metrics import Metrics
from maar.metastore.policy import Policy, checked
from maar.metastore.state import MetaState
from maar.model.block import BlockMeta
from maar.model.errors import HeadMoved, InvalidInput, Overloaded, Retryable, TermLost, Unavailable
from maar.model.ids import BlockId, PlanId
from maar.model.plan import Plan
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.clock import Clock
from maar.ports.log import Log
from maar.ports.metastore import (
    AddReply,
    IndexView,
    Now,
    PollReply,
    PollRequest,
    Status,
    ViewRequest,
)
from maar.ports.object_store import ObjectStore

log_ = logging.getLogger("maar.metastore")

T = TypeVar("T")

WAKE_S = 0.5  # lease time is read, and what it brings is done, at least this often
PATIENCE_S = 10.0  # an apply loop that makes no progress for this long is not ready
BACKOFF_S = 1.0
CHUNKS_INLINE_MAX = 8  # more are searched in a thread


class MetastoreService:
    """Implements ports.metastore.Metastore for the leader of a log."""

    def __init__(
        self,
        log: Log,
        store: ObjectStore,
        clock: Clock,
        policy: Policy,
        *,
        entropy: Callable[[int], bytes],
        candidate: str,
        take_snapshot: Callable[[], Awaitable[int]],
        registry: CollectorRegistry,
    ) -> None:
        self._log = log
        self._store = store
        self._clock = clock
        self._policy = checked(policy)
        self._entropy = entropy
        self._candidate = candidate
        self._metrics = Metrics(registry)
        self._inbox = Inbox()
        self._leader: Leader | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._progress_ns = clock.monotonic_ns()
        self._fault = ""
        self._housekept_ns = 0
        self._snapshots = Snapshots(log, store, take_snapshot, self._append, self._metrics)

    async def start(self) -> None:
        """Return when this process leads and has folded everything."""
        replica = await snapshot.restore(self._log, self._store)
        self._snapshots.restored_from(replica.head.index)
        behind = await replica.catch_up(self._log)
        leader = Leader(self._log, self._store, self._clock, replica)
        leader.appended_bytes = behind
        await leader.take_office(self._candidate, self._policy, self._entropy)
        gc.collect()
        gc.freeze()  # what was loaded stays: the collector need not walk it again (S15)
        self._leader = leader
        self._metrics.observe(leader.state, leader.now())
        log_.info(
            "metastore leads term=%d index=%d blocks=%d incarnation=%s",
            leader.term,
            leader.state.index,
            len(leader.state.blocks),
            leader.state.incarnation,
        )
        for work in (
            lambda: self._serve(leader),
            lambda: clean_forever(leader, self._store, self._append, self._metrics),
            lambda: self._snapshots.take_forever(leader),
        ):
            self._tasks.append(asyncio.create_task(self._supervised(work)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._inbox.refuse(Unavailable("the metastore is stopping; ask again"))
        await self._log.close()

    async def ended(self) -> None:
        """Wait until something stops the metastore, and raise it: its process has to go too."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    def ready(self) -> str:
        """'' when requests are being answered, else why not."""
        if self._fault:
            return self._fault
        if self._leader is None:
            return "the metastore is reading its snapshot and log"
        if self._leader.settling:
            return "the log has not said whether it stored the last change"
        stuck_s = (self._clock.monotonic_ns() - self._progress_ns) / SECOND_NS
        if stuck_s > PATIENCE_S:
            return f"the metastore's apply loop has made no progress for {stuck_s:.0f} s"
        return ""

    # ── what others ask ────────────────────────────────────────────────────────────────────────

    async def now(self) -> Now:
        leader = self._led()
        return Now(leader.state.incarnation, leader.now(), leader.state.index)

    async def add_blocks(self, blocks: tuple[BlockMeta, ...]) -> AddReply:
        return await self._ask(Add(blocks))

    async def poll(self, request: PollRequest) -> PollReply:
        return await self._ask(Poll(request))

    async def view(self, request: ViewRequest) -> IndexView:
        if request.reader:
            await self._ask(Pin(request.reader))
        state = await self._current()
        index, chunks = state.index, reads.chunks_for(state.blocks, request)
        if len(chunks) <= CHUNKS_INLINE_MAX:
            return IndexView(index, reads.select(chunks, request))
        return IndexView(index, await asyncio.to_thread(reads.select, chunks, request))

    async def blocks(
        self, *, level: int = -1, tenant: str = "", limit: int = 1000
    ) -> tuple[BlockMeta, ...]:
        chunks = reads.all_chunks((await self._current()).blocks, tenant)
        return await asyncio.to_thread(reads.newest, chunks, level=level, limit=limit)

    async def block(self, block: BlockId) -> BlockMeta:
        return reads.block(await self._current(), block)

    async def plans(self, *, state: str = "", limit: int = 1000) -> tuple[Plan, ...]:
        return reads.plans(await self._current(), named=state, limit=limit)

    async def plan(self, plan: PlanId) -> Plan:
        return reads.plan(await self._current(), plan)

    async def status(self) -> Status:
        state = await self._current()
        first = await self._log.first()
        return reads.status(
            state,
            now=self._led().now(),
            snapshot_index=self._snapshots.newest,
            log_first=first,
        )

    async def snapshot(self) -> int:
        """Have one made now, whatever has been written since the last; its index."""
        return await self._snapshots.take(self._led())

    def _led(self) -> Leader:
        if self._leader is None or self._fault:
            raise Unavailable(self.ready())
        return self._leader

    async def _current(self) -> MetaState:
        """The state with everything that was acknowledged before this call (linearizable)."""
        leader = self._led()
        head = await self._log.head()
        try:
            await asyncio.wait_for(leader.reached(head.index), PATIENCE_S)
        except TimeoutError:
            raise Unavailable("the metastore is behind its log; ask again") from None
        return leader.state

    async def _ask(self, request: Request[T]) -> T:
        self._led()
        if not self._inbox.put(request):
            raise Overloaded("the metastore has too many requests waiting; ask again later")
        return await request.answer

    async def _append(self, entries: Prepare) -> int:
        return await self._ask(Chore(entries))

    # ── the one loop that appends ──────────────────────────────────────────────────────────────

    async def _serve(self, leader: Leader) -> None:
        while True:
            requests = [r for r in await self._inbox.take(WAKE_S) if not r.answer.done()]
            self._progress_ns = self._clock.monotonic_ns()
            leader.now()
            try:
                if requests:
                    with self._metrics.cycle.time():
                        await self._cycle(leader, requests)
                if self._progress_ns - self._housekept_ns >= WAKE_S * SECOND_NS:
                    self._housekept_ns = self._progress_ns
                    await self._housekeep(leader)
            except (HeadMoved, TermLost) as error:
                inbox.fail(requests, Unavailable(f"the metastore lost its office: {error}"))
                await self._return_to_office(leader)
            except (Retryable, InvalidInput) as error:
                log_.warning("append failed cause=%s", error)
                inbox.fail(requests, error)
            except BaseException:
                inbox.fail(requests, Unavailable("the metastore has stopped; ask again"))
                raise

    async def _cycle(self, leader: Leader, requests: list[Request[Any]]) -> None:
        """Registrations and reports first; then, from the state they left, what to hand out."""
        adds = [request for request in requests if isinstance(request, Add)]
        polls = [request.poll for request in requests if isinstance(request, Poll)]
        readers = [request.reader for request in requests if isinstance(request, Pin)]
        now = leader.now()
        entries: list[Entry] = [
            *prepare.registrations(meta for add in adds for meta in add.blocks),
            *prepare.polled(leader.state, polls, now=now),
            *prepare.pins(leader.state, readers, now=now),
        ]
        effects = await self._commit(leader, entries, now)
        if polls:
            now = leader.now()
            await self._commit(leader, schedule.set_aside(leader.state, now), now)
            entries = prepare.assignments(leader.state, polls, now=now)
            effects += await self._commit(leader, entries, now)
        inbox.answer(requests, effects, leader.state)
        for request in requests:
            if isinstance(request, Chore):
                now = leader.now()
                await self._commit(leader, request.prepare(leader.state, now), now)
                request.settle(leader.state.index)

    async def _housekeep(self, leader: Leader) -> None:
        now = leader.now()
        await self._commit(leader, prepare.housekeeping(leader.state, now=now), now)
        self._metrics.observe(leader.state, now)

    async def _commit(self, leader: Leader, entries: list[Entry], now: LeaseTime) -> list[Effect]:
        effects = await leader.commit(entries, now=now) if entries else []
        self._metrics.count(effects)
        for effect in effects:
            log_.debug("folded index=%d effect=%s", leader.state.index, effect)
        return effects

    async def _return_to_office(self, leader: Leader) -> None:
        while True:
            try:
                await leader.take_office(self._candidate, self._policy, self._entropy)
                return
            except (Retryable, HeadMoved, TermLost) as error:
                log_.warning("office not taken cause=%s", error)
                await asyncio.sleep(BACKOFF_S)

    async def _supervised(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fault = f"the metastore has stopped: {error}"
            log_.exception("metastore stopped")
            self._inbox.refuse(Unavailable(self._fault))
            raise
