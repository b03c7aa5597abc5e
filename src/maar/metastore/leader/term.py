"""One term as leader: a serial loop answers requests, background tasks run beside it.

Everything here begins with the term and has ended before the replica follows again: what a leader
heard and counted in memory may be outdated in its next term.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from maar.background import run_until_first_ends
from maar.metastore.decide import prepare, repairs, rollbacks, schedule
from maar.metastore.decide.jobs import JobBook, Moment
from maar.metastore.decide.workers import WorkerRegistry
from maar.metastore.leader import inbox
from maar.metastore.leader.damage_reports import DamageReports
from maar.metastore.leader.deleting.cleaner import Cleaner
from maar.metastore.leader.deleting.eraser import Eraser
from maar.metastore.leader.deleting.orphans_of_stores import OrphansOfStores
from maar.metastore.leader.inbox import (
    Add,
    Command,
    Inbox,
    PinRequest,
    Poll,
    Prepare,
    Reply,
    Request,
)
from maar.metastore.leader.leader import Leader
from maar.metastore.leader.letters.dead_letters import DeadLetters
from maar.metastore.leader.letters.letters_of_stores import LettersOfStores
from maar.metastore.leader.peers import Peers
from maar.metastore.leader.placement_manager import PlacementManager
from maar.metastore.leader.rings import LeaderRings
from maar.metastore.leader.snapshots import Snapshots
from maar.metastore.leader.stores.adoption import Adoption
from maar.metastore.leader.stores.store_keeper import StoreKeeper
from maar.metastore.leader.time_zones import offset_of
from maar.metastore.records.effects import AlarmCeased, AlarmRaised, CopiesLost, Effect
from maar.metastore.records.entries import Entry
from maar.metastore.replica.follower import Follower
from maar.metastore.replica.integrity import ReplicaHealth
from maar.metastore.replica.metrics import OBSERVE_S, MetastoreMetrics
from maar.metastore.replica.timing import Timing
from maar.metastore.state.state import MetaState
from maar.metastore.views import reads
from maar.model.errors import (
    InvalidInput,
    MaarError,
    NotLeading,
    Overloaded,
    Retryable,
    StoreFull,
    TermLost,
)
from maar.model.ids import PlanId
from maar.model.policy import Policy
from maar.model.schedule import AlarmLevel
from maar.model.stores import StoreSet
from maar.model.time import SECOND_NS, LeaseTime, WallTime
from maar.model.trouble import Trouble
from maar.ports.clock import Clock
from maar.ports.metastore.log import Candidate, Log, Term
from maar.ports.operator.operator import Status
from maar.ports.plans.board import PollRequest
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores

log_ = logging.getLogger("maar.metastore")

T = TypeVar("T")

WAKE_S = 0.5  # lease time is read, and what it brings is done, at least this often
WAKE_MIN_S = 0.01
PATIENCE_S = 10.0  # an apply loop that makes no progress for this long is not ready


def patience_s(pause_ns: int) -> float:
    """How long the loop waits for requests: short enough not to look like a pause."""
    return max(WAKE_MIN_S, min(WAKE_S, pause_ns / SECOND_NS / 2))


@dataclass(frozen=True)
class LeaderDeps:
    """What every leader term of a replica works with."""

    log: Log
    store: ObjectStore  # the first one: what is not of a single store is there
    stores: Stores
    given_stores: Callable[[], StoreSet] | None  # of the settings, as they are now
    clock: Clock
    policy: Policy
    entropy: Callable[[int], bytes]
    candidate: Candidate
    take_snapshot: Callable[[], Awaitable[int]]
    metrics: MetastoreMetrics
    placement: PlacementManager
    peers: Peers
    dead_after_ms: int
    begin_anew: bool
    log_url: str
    timing: Timing

    def wall(self) -> WallTime:
        return WallTime(self.clock.wall_ns())


def _tell_alarms(effects: list[Effect]) -> None:
    """From what the fold did: an alarm that another leader raised is not told again."""
    for effect in effects:
        match effect:
            case AlarmRaised(alarm=alarm):
                level = logging.ERROR if alarm.level is AlarmLevel.ERROR else logging.WARNING
                log_.log(level, "alarm level=%s %s", alarm.level.name.lower(), alarm.note)
            case AlarmCeased(alarm=alarm):
                log_.info("alarm over level=%s %s", alarm.level.name.lower(), alarm.id)
            case _:
                pass


class LeaderTerm:
    """Made by `begin`. What it tracks in memory starts empty in each term (S16)."""

    def __init__(self, deps: LeaderDeps, follower: Follower, leader: Leader) -> None:
        store, clock, metrics, timing = deps.store, deps.clock, deps.metrics, deps.timing
        self._deps = deps
        self._metrics = metrics
        self._state_votes = follower.replica.state_votes
        self._inbox = Inbox()
        self._over = ""  # why it has ended
        self._progress_ns = clock.monotonic_ns()
        self._housekept_ns = 0
        self._observed_ns = 0
        self._worker_registry = WorkerRegistry(hearing_since=leader.state.lease_time)
        self._book = JobBook()
        self._adoption = Adoption(
            leader, deps.stores, clock, self.append, metrics, deps.given_stores
        )
        self.eraser = Eraser(leader, store, clock, self.append, timing=timing)
        self.orphans = OrphansOfStores(leader, deps.stores, clock, metrics)
        self.leader = leader
        self.damage = DamageReports()
        self.rings = LeaderRings(leader, self.command, metrics, dead_after_ms=deps.dead_after_ms)
        self.letters = LettersOfStores(
            deps.stores,
            lambda home, shown: DeadLetters(
                leader, home, self.append, metrics, deps.entropy, timing=timing, shown=shown
            ),
        )
        self.snapshots = Snapshots(
            deps.log, store, deps.take_snapshot, self.append, metrics, timing=timing
        )
        clocks = deps.peers.clocks
        self.cleaner = Cleaner(
            *(leader, deps.stores, clock, self.append, metrics),
            clocks=clocks,
            hear_damage=self.hear_damage,
            timing=timing,
        )
        self.store_keeper = StoreKeeper(
            leader,
            deps.stores,
            self.append,
            deps.given_stores,
            first_was_wiped=self._put_back,
            timing=timing,
        )
        deps.placement.start_leading()

    @classmethod
    async def begin(cls, deps: LeaderDeps, follower: Follower, term: Term) -> LeaderTerm:
        """Apply the log to its end and append the start of the term; TermLost if that fails."""
        leader = Leader(deps.log, deps.store, deps.clock, follower, term, timing=deps.timing)
        await leader.begin(
            deps.candidate.name,
            deps.policy,
            deps.entropy,
            deps.peers.activation,
            begin_anew=deps.begin_anew,
            log_url=deps.log_url,
        )
        leader_term = cls(deps, follower, leader)
        leader_term._check_judgement()
        leader_term._observe(leader.now())
        return leader_term

    async def run(self) -> None:
        """Run until the term ends, then raise the cause; by then nothing of this term is active."""
        leader = self.leader
        await run_until_first_ends(
            self._serve,
            self._adoption.forever,
            self.cleaner.forever,
            self.orphans.forever,
            self.eraser.forever,
            self.store_keeper.forever,
            lambda: self._deps.placement.forever(leader),
            self.letters.forever,
            lambda: self.snapshots.take_forever(leader),
        )

    async def _put_back(self) -> None:
        """What was in the first store only, after that was wiped."""
        await self.snapshots.replace_lost(self.leader)
        self.eraser.keep_again()

    @property
    def over(self) -> bool:
        """Whether it has ended, though some background tasks may still be stopping."""
        return bool(self._over)

    def close(self, why: str) -> None:
        """End the term and fail all waiting requests."""
        self._over = self._over or why
        self._inbox.refuse(NotLeading(self._over))

    @property
    def state(self) -> MetaState:
        return self.leader.state

    def confirm(self) -> None:
        """Called before answering outside the loop: NotLeading unless the term certainly lasts."""
        try:
            self.leader.confirm()
        except NotLeading as error:
            if isinstance(error.__cause__, TermLost):
                self.close(str(error))  # the loop finds out a little later
            raise

    def ready(self) -> str:
        """'' when requests are answered, else why they are not."""
        if self.leader.settling:
            return "the log has not said whether it stored the last change"
        stuck_s = (self._deps.clock.monotonic_ns() - self._progress_ns) / SECOND_NS
        if stuck_s > PATIENCE_S:
            return f"the metastore's apply loop has made no progress for {stuck_s:.0f} s"
        return ""

    def given_stores(self) -> StoreSet:
        """Those of the settings, as they are now."""
        given = self._deps.given_stores
        return given() if given is not None else StoreSet()

    # ── what goes through the loop ─────────────────────────────────────────────────────────────

    async def ask(self, request: Request[T]) -> T:
        if self._over:
            raise NotLeading(self._over)
        if not self._inbox.put(request):
            raise Overloaded("the metastore has too many requests waiting; ask again later")
        return await request.answer

    def is_pinned(self, reader: str) -> bool:
        """Whether a reader's pin lasts, as the loop would say without an entry; NotLeading unless
        the term does.
        """
        self.confirm()
        return not prepare.pins(self.leader.state, [reader], now=self.leader.now())

    async def command(self, prepare: Prepare, reply: Reply[T]) -> T:
        return await self.ask(Command(prepare, reply))

    async def append(self, entries: Prepare) -> int:
        return await self.command(entries, lambda _, state: state.index)

    def why_stop(self, session: PlanId) -> str:
        """Why a session should go no further, by the schedule; '' when it may."""
        plan = self.leader.state.plans.get(session)
        return self.book.stop(self.leader.state, plan, self.moment()) if plan else ""

    def interval_ns(self, session: PlanId) -> int:
        """How often the job of a session is due; 0 when it is of none."""
        state = self.leader.state
        plan = state.plans.get(session)
        job = plan.job if plan is not None else None
        return self.book.schedule_of(state, job.id).interval_ns if job is not None else 0

    def status(self, state: MetaState, *, log_first: int) -> Status:
        deps = self._deps
        return reads.status(
            state,
            now=self.leader.now(),
            wall=deps.wall(),
            blocked=(
                *self._adoption.blocked,
                *self.store_keeper.blocked,
                *self.cleaner.blocked,
                *self.orphans.blocked,
            ),
            snapshot_index=self.snapshots.newest,
            log_first=log_first,
            zones=self.rings.zones(),
            letters=self.letters.status(),
            leader=deps.candidate.address or deps.candidate.name,
            replicas=deps.peers.replicas(),
            clocks=deps.peers.clocks(),
        )

    # ── the one loop that appends ──────────────────────────────────────────────────────────────

    @property
    def hearing_since(self) -> LeaseTime:
        """Since when workers could be heard: who fell silent before that is not to blame (S11)."""
        return self._worker_registry.hearing_since

    def able(self, plan: PlanId) -> int:
        """How many workers were heard of lately that can carry the plan out."""
        found = self.leader.state.plans.get(plan)
        return self._worker_registry.able(found.kind, self.leader.now()) if found else 0

    async def _serve(self) -> None:
        try:
            while True:
                await self._round()
        except Exception as error:  # raised again: whatever ends the loop, nobody may wait for it
            self.close(f"the metastore lost leadership: {error}")
            raise

    async def _round(self) -> None:
        """Take what has arrived and answer it; without requests, do what is due by time."""
        pause_ns = self.leader.state.policy.stall_ns
        taken = await self._inbox.take(patience_s(pause_ns))
        requests = [request for request in taken if not request.answer.done()]
        self._progress_ns = self._deps.clock.monotonic_ns()
        try:
            self._worker_registry.listen(self.leader.now(), pause_ns=pause_ns)
            self.rings.listen()
            self.leader.hold()  # first: requests that need no entry are answered without the log
            await self._turn(requests)
        except (Retryable, InvalidInput) as error:
            log_.warning("append failed cause=%s", error)
            inbox.fail(requests, error)
            if isinstance(error, StoreFull):
                self.snapshots.hurry()
        except BaseException as error:  # raised again: callers must not wait for a lost answer
            inbox.fail(requests, NotLeading(f"the metastore lost leadership: {error}"))
            raise

    async def _turn(self, requests: list[Request[Any]]) -> None:
        if requests:
            with self._metrics.cycle.time():
                await self._cycle(requests)
        if self._progress_ns - self._housekept_ns >= WAKE_S * SECOND_NS:
            self._housekept_ns = self._progress_ns
            await self._housekeep()

    @property
    def book(self) -> JobBook:
        """The jobs of the schedule by urgency."""
        return self._book

    def moment(self) -> Moment:
        """Both clocks of this host, and the stores that are down, for decisions of the schedule."""
        return Moment(self.leader.now(), self._deps.wall(), offset_of, self.store_keeper.down)

    async def _cycle(self, requests: list[Request[Any]]) -> None:
        """Apply registrations and reports first, then hand out plans from the new state."""
        leader = self.leader
        adds = [request for request in requests if isinstance(request, Add)]
        polls = [request.poll for request in requests if isinstance(request, Poll)]
        await self._pin([request for request in requests if isinstance(request, PinRequest)])
        now = leader.now()
        entries: list[Entry] = [
            *prepare.registrations(meta for add in adds for meta in add.blocks),
            *prepare.poll_entries(leader.state, polls, now=now),
        ]
        effects = await self._commit(entries, now)
        registered = (meta for add in adds for meta in add.blocks)
        self._deps.placement.hear(registered, effects, now)
        if polls:
            now = leader.now()
            since = self._worker_registry.hearing_since
            aside = schedule.set_aside(leader.state, now, hearing_since=since)
            await self._commit([*aside, *self._overheld(polls, now)], now)
            at = self.moment()._replace(now=now)
            named = prepare.executions(leader.state, polls, now=now, hearing_since=since, at=at)
            effects += await self._commit(named, now)
            self.book.turn(leader.state, at)
            entries = prepare.assignments(
                leader.state,
                polls,
                now=now,
                worker_registry=self._worker_registry,
                book=self.book,
                at=at,
            )
            effects += await self._commit(entries, now)
        at = self.moment()._replace(now=now)
        inbox.answer(requests, effects, leader.state, book=self.book, at=at)
        for request in requests:
            if isinstance(request, Command):
                await self._carry_out(request)

    def _overheld(self, polls: list[PollRequest], now: LeaseTime) -> list[Entry]:
        """Only when somebody asks for work of that kind: else nobody would be held up."""
        state = self.leader.state
        wanted = any(
            poll.capacity > 0 and poll.execute is None and state.kinds.queue.kind in poll.kinds
            for poll in polls
        )
        return rollbacks.held_too_long(state, now=now) if wanted else []

    async def _pin(self, pins: list[PinRequest]) -> None:
        """Few pins need an entry; a log without room for registrations still takes these."""
        now = self.leader.now()
        readers = [pin.reader for pin in pins]
        effects = await self._commit(prepare.pins(self.leader.state, readers, now=now), now)
        at = self.moment()._replace(now=now)
        inbox.answer(pins, effects, self.leader.state, book=self.book, at=at)

    async def _carry_out(self, command: Command[Any]) -> None:
        leader = self.leader
        now = leader.now()
        try:
            entries = command.prepare(leader.state, now)
        except MaarError as error:  # nothing was written: only this request fails
            command.fail(error)
            return
        effects = await self._commit(entries, now)
        try:
            command.settle(command.reply(effects, leader.state))
        except MaarError as error:
            command.fail(error)

    async def _housekeep(self) -> None:
        leader = self.leader
        now = leader.now()
        state = leader.state
        opinions = self._state_votes.entries(state, monotonic_ns=self._deps.clock.monotonic_ns())
        activation = self._deps.peers.activation(state.version)
        await self._commit([*opinions, *activation], now)
        self._check_judgement()
        since = self._worker_registry.hearing_since
        entries = prepare.housekeeping(
            state, now=now, hearing_since=since, floor_max=self.letters.floor_max
        )
        await self._commit(entries, now)
        at = self.moment()._replace(now=now)
        self.book.turn(state, at)
        await self._commit(self.book.entries(state, at), now)
        await self._heal(now)
        if self._progress_ns - self._observed_ns >= OBSERVE_S * SECOND_NS:
            self._observed_ns = self._progress_ns
            self._observe(now)

    async def _heal(self, now: LeaseTime) -> None:
        """Have repair look at what readers complained of: it ends a copy only by its own look, and
        beside another one that is whole.
        """
        state = self.leader.state
        healing = repairs.healing(state, self.damage.waiting(state))
        if not healing:
            return
        await self._commit([*healing], now)
        self.damage.forget(
            block
            for entry in healing
            for made in entry.plans
            if made.repair is not None
            for block in made.repair.suspects
        )

    async def _commit(self, entries: list[Entry], now: LeaseTime) -> list[Effect]:
        effects = await self.leader.commit(entries, now=now) if entries else []
        self.rings.follow(effects)
        self.book.follow(self.leader.state, effects)
        _tell_alarms(effects)
        self._metrics.count(effects, self.leader.state)
        for effect in effects:
            if isinstance(effect, CopiesLost):
                log_.error("blocks without a whole copy blocks=%s", ",".join(effect.blocks))
            log_.debug("entry applied index=%d effect=%s", self.leader.state.index, effect)
        return effects

    def _check_judgement(self) -> None:
        """A replica whose state is in doubt must not lead: the others elect one of themselves."""
        if self._state_votes.standing is not ReplicaHealth.SOUND:
            raise TermLost(self._state_votes.trouble)

    def _observe(self, now: LeaseTime) -> None:
        deps = self._deps
        self._metrics.observe(self.leader.state, now, deps.wall(), deps.peers.clocks())
        self._metrics.observe_zones(self.rings.zones())
        state = self.leader.state
        if state.stores.stores:
            copies = state.blocks.copies.of_stores()
            self._metrics.stores.observe(copies, self.damage.counts(state))

    def hear_damage(self, copies: Sequence[Trouble]) -> None:
        self._metrics.stores.hear(copies, self._deps.stores.names())
        self.damage.hear(self.leader.state, copies)
