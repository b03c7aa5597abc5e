"""The metastore's shell: one serial loop answers from what the fold did, chores run beside it."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from maar.metastore import (
    explain,
    inbox,
    orders,
    prepare,
    reads,
    retention,
    schedule,
    snapshot,
)
from maar.metastore.chores import Snapshots
from maar.metastore.cleaner import Cleaner
from maar.metastore.dead_letters import DeadLetters
from maar.metastore.effects import Effect
from maar.metastore.entries import Entry
from maar.metastore.inbox import Add, Command, Inbox, Pin, Poll, Prepare, Reply, Request
from maar.metastore.leader import Leader
from maar.metastore.membership import DEAD_AFTER_MS
from maar.metastore.metrics import Metrics
from maar.metastore.placement_manager import PlacementManager
from maar.metastore.policy import Policy, checked
from maar.metastore.rings import Rings
from maar.metastore.state import NO_FLOOR, MetaState
from maar.metastore.workers import Crew
from maar.model.block import BlockMeta
from maar.model.errors import (
    HeadMoved,
    InvalidInput,
    MaarError,
    Overloaded,
    Retryable,
    TermLost,
    Unavailable,
)
from maar.model.ids import BlockId, NodeId, PlanId, TenantId, Zone
from maar.model.plan import Plan
from maar.model.ring import Ring
from maar.model.time import SECOND_NS, LeaseTime, WallTime
from maar.placement.rules import PlacementSettings, TenantLimits
from maar.ports.clock import Clock
from maar.ports.log import Log
from maar.ports.metastore import (
    AddReply,
    Beat,
    BeatReply,
    Expiring,
    Explanation,
    IndexView,
    Letter,
    LetterRetried,
    Letters,
    LettersStatus,
    Now,
    PlanDetail,
    PlanFilter,
    PollReply,
    PollRequest,
    RetentionStatus,
    RingView,
    Status,
    ViewRequest,
)
from maar.ports.object_store import ObjectStore

log_ = logging.getLogger("maar.metastore")

T = TypeVar("T")

WAKE_S = 0.5  # lease time is read, and what it brings is done, at least this often
WAKE_LEAST_S = 0.01
PATIENCE_S = 10.0  # an apply loop that makes no progress for this long is not ready
BACKOFF_S = 1.0
CHUNKS_INLINE_MAX = 8  # more are searched in a thread


def patience_s(pause_ns: int) -> float:
    """How long the loop waits for requests: waiting is no pause, however short leases are."""
    return max(WAKE_LEAST_S, min(WAKE_S, pause_ns / SECOND_NS / 2))


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
        dead_after_ms: int = DEAD_AFTER_MS,
        placement: PlacementSettings | None = None,
        limits: Callable[[TenantId], TenantLimits] | None = None,  # of placement; None: for all
    ) -> None:
        self._log = log
        self._store = store
        self._clock = clock
        self._policy = checked(policy)
        self._entropy = entropy
        self._candidate = candidate
        self._metrics = Metrics(registry)
        self._inbox = Inbox()
        self._crew = Crew()
        self._placement = PlacementManager(
            placement or PlacementSettings(), limits, store, clock, registry
        )
        self._leader: Leader | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._progress_ns = clock.monotonic_ns()
        self._fault = ""
        self._housekept_ns = 0
        self._cleaner: Cleaner | None = None
        self._letters: DeadLetters | None = None
        self._rings = Rings(self._led, self._command, self._metrics, dead_after_ms=dead_after_ms)
        self._snapshots = Snapshots(log, store, take_snapshot, self._append, self._metrics)

    async def start(self) -> None:
        """Return when this process leads and has folded everything."""
        replica = await snapshot.restore(self._log, self._store)
        self._snapshots.restored_from(replica.head.index)
        behind = await replica.catch_up(self._log)
        leader = Leader(self._log, self._store, self._clock, replica)
        leader.appended_bytes = behind
        await self._take_office(leader)
        gc.collect()
        gc.freeze()  # what was loaded stays: the collector need not walk it again (S15)
        self._leader = leader
        self._metrics.observe(leader.state, leader.now(), self._wall())
        log_.info(
            "metastore leads term=%d index=%d blocks=%d incarnation=%s",
            leader.term,
            leader.state.index,
            len(leader.state.blocks),
            leader.state.incarnation,
        )
        cleaner = Cleaner(leader, self._store, self._clock, self._append, self._metrics)
        self._cleaner = cleaner
        letters = DeadLetters(leader, self._store, self._append, self._metrics, self._entropy)
        self._letters = letters
        for work in (
            lambda: self._serve(leader),
            cleaner.forever,
            lambda: self._placement.forever(leader),
            letters.forever,
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
        letters = reads.undelivered(state, request.letters)
        if len(chunks) <= CHUNKS_INLINE_MAX:
            return IndexView(index, reads.select(chunks, request), letters)
        return IndexView(index, await asyncio.to_thread(reads.select, chunks, request), letters)

    async def blocks(
        self, *, level: int = -1, tenant: str = "", limit: int = 1000
    ) -> tuple[BlockMeta, ...]:
        chunks = reads.all_chunks((await self._current()).blocks, tenant)
        return await asyncio.to_thread(reads.newest, chunks, level=level, limit=limit)

    async def block(self, block: BlockId) -> BlockMeta:
        return reads.block(await self._current(), block)

    async def plans(self, wanted: PlanFilter) -> tuple[Plan, ...]:
        return reads.plans(await self._current(), wanted)

    async def plan(self, plan: PlanId) -> PlanDetail:
        return reads.plan(await self._current(), plan, now=self._led().now())

    async def explain(self, block: BlockId) -> Explanation:
        return explain.explain(await self._current(), block, now=self._led().now())

    async def retention(self) -> RetentionStatus:
        return retention.status(await self._current(), now=self._led().now(), wall=self._wall())

    async def expiring(self, *, tenant: str = "", limit: int = 1000) -> tuple[Expiring, ...]:
        state, now, wall = await self._current(), self._led().now(), self._wall()
        return tuple(
            await asyncio.to_thread(
                retention.expiring, state, now=now, wall=wall, tenant=tenant, limit=limit
            )
        )

    # ── what segment writers and distributors ask ──────────────────────────────────────────────

    async def beat(self, beat: Beat) -> BeatReply:
        return await self._rings.beat(beat)

    async def rings(self) -> tuple[RingView, ...]:
        return self._rings.views()

    # ── what an operator orders ────────────────────────────────────────────────────────────────

    async def requeue(self, plan: PlanId) -> Plan:
        return await self._command(
            lambda state, _: orders.requeue(state, plan),
            lambda effects, state: orders.ordered(effects, state, plan),
        )

    async def exclude(self, plan: PlanId, *, note: str) -> Plan:
        return await self._command(
            lambda state, _: orders.exclude(state, plan, note=note),
            lambda effects, state: orders.ordered(effects, state, plan),
        )

    async def raise_limit(self, failure_limit: int, *, for_ns: int) -> LeaseTime:
        return await self._command(
            lambda state, now: orders.raise_limit(state, failure_limit, for_ns=for_ns, now=now),
            lambda _, state: state.raised.until,
        )

    async def set_retention(self, tenant: TenantId, *, period_ns: int | None) -> RetentionStatus:
        await self._append(lambda state, _: retention.order(state, tenant, period_ns=period_ns))
        return await self.retention()

    async def remove_writer(self, zone: Zone, node: NodeId) -> Ring:
        return await self._rings.remove(zone, node)

    async def letters(self, *, limit: int = 100) -> Letters:
        return await self._dead_letters().listed(limit=limit)

    async def letter(self, name: str) -> Letter:
        return await self._dead_letters().one(name)

    async def retry_letter(self, name: str) -> LetterRetried:
        return await self._dead_letters().retry(name)

    def _dead_letters(self) -> DeadLetters:
        self._led()
        assert self._letters is not None
        return self._letters

    async def status(self) -> Status:
        state = await self._current()
        first = await self._log.first()
        return reads.status(
            state,
            now=self._led().now(),
            wall=self._wall(),
            blocked=self._cleaner.blocked if self._cleaner else (),
            snapshot_index=self._snapshots.newest,
            log_first=first,
            zones=self._rings.zones(),
            letters=self._letters.status() if self._letters else LettersStatus(),
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
            async with asyncio.timeout(PATIENCE_S):
                await leader.reached(head.index)
        except TimeoutError:
            raise Unavailable("the metastore is behind its log; ask again") from None
        return leader.state

    async def _ask(self, request: Request[T]) -> T:
        self._led()
        if not self._inbox.put(request):
            raise Overloaded("the metastore has too many requests waiting; ask again later")
        return await request.answer

    async def _command(self, prepare: Prepare, reply: Reply[T]) -> T:
        return await self._ask(Command(prepare, reply))

    async def _append(self, entries: Prepare) -> int:
        return await self._command(entries, lambda _, state: state.index)

    def _wall(self) -> WallTime:
        return WallTime(self._clock.wall_ns())

    # ── the one loop that appends ──────────────────────────────────────────────────────────────

    async def _serve(self, leader: Leader) -> None:
        while True:
            pause_ns = leader.state.policy.stall_ns
            taken = await self._inbox.take(patience_s(pause_ns))
            requests = [request for request in taken if not request.answer.done()]
            self._progress_ns = self._clock.monotonic_ns()
            self._crew.listen(leader.now(), pause_ns=pause_ns)
            self._rings.listen(leader)
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
        self._placement.hear((meta for add in adds for meta in add.blocks), effects, now)
        if polls:
            now = leader.now()
            since = self._crew.hearing_since
            aside = schedule.set_aside(leader.state, now, hearing_since=since)
            await self._commit(leader, aside, now)
            entries = prepare.assignments(leader.state, polls, now=now, crew=self._crew)
            effects += await self._commit(leader, entries, now)
        inbox.answer(requests, effects, leader.state)
        for request in requests:
            if isinstance(request, Command):
                await self._carry_out(leader, request)

    async def _carry_out(self, leader: Leader, command: Command[Any]) -> None:
        now = leader.now()
        try:
            entries = command.prepare(leader.state, now)
        except MaarError as error:  # nothing was written: only this caller asked for the impossible
            command.fail(error)
            return
        effects = await self._commit(leader, entries, now)
        try:
            command.settle(command.reply(effects, leader.state))
        except MaarError as error:
            command.fail(error)

    async def _housekeep(self, leader: Leader) -> None:
        now = leader.now()
        since = self._crew.hearing_since
        floor_max = self._letters.floor_max if self._letters else NO_FLOOR
        entries = prepare.housekeeping(
            leader.state, now=now, hearing_since=since, floor_max=floor_max
        )
        await self._commit(leader, entries, now)
        self._metrics.observe(leader.state, now, self._wall())
        self._metrics.observe_zones(self._rings.zones())

    async def _commit(self, leader: Leader, entries: list[Entry], now: LeaseTime) -> list[Effect]:
        effects = await leader.commit(entries, now=now) if entries else []
        self._rings.follow(effects)
        self._metrics.count(effects, leader.state)
        for effect in effects:
            log_.debug("folded index=%d effect=%s", leader.state.index, effect)
        return effects

    async def _take_office(self, leader: Leader) -> None:
        await leader.take_office(self._candidate, self._policy, self._entropy)
        self._crew = Crew(hearing_since=leader.state.lease_time)
        self._placement.take_office()
        if self._letters:
            self._letters.take_office()
        self._rings.begin(leader)

    async def _return_to_office(self, leader: Leader) -> None:
        while True:
            try:
                await self._take_office(leader)
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
