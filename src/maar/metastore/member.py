"""One replica from start to stop: reads its state, follows the log, and leads when elected.

It leads for one term at a time, in a `LeaderTerm`. A replica that cannot trust its state or its log
stops serving: it answers only questions about its own health until it is rebuilt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import msgspec
from prometheus_client import CollectorRegistry

from maar.background import run_until_first_ends
from maar.metastore.decide.membership import DEAD_AFTER_MS
from maar.metastore.leader.campaign import Campaign, resign
from maar.metastore.leader.peers import Peers
from maar.metastore.leader.placement_manager import PlacementManager
from maar.metastore.leader.term import LeaderDeps, LeaderTerm
from maar.metastore.records.former_formats import FormerFormat
from maar.metastore.replica import snapshot
from maar.metastore.replica.follower import Follower, LeftBehind
from maar.metastore.replica.integrity import ReplicaHealth, StateVotes
from maar.metastore.replica.log_fold import NEWEST, Edition, LogFold
from maar.metastore.replica.metrics import OBSERVE_S, MetastoreMetrics
from maar.metastore.replica.timing import TIMING, Timing
from maar.model.errors import (
    Corrupt,
    HeadMoved,
    MaarError,
    Retryable,
    TermLost,
    Unavailable,
)
from maar.model.ids import TenantId
from maar.model.policy import Policy, check_policy
from maar.model.stores import StoreSet
from maar.model.time import SECOND_NS
from maar.placement.rules import PlacementSettings, TenantLimits
from maar.ports.calls import Caller
from maar.ports.clock import Clock
from maar.ports.metastore.log import Candidate, Log, Term
from maar.ports.metastore.replica import MetastoreReplica, ReplicaStatus
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores, stores_of

log_ = logging.getLogger("maar.metastore")

BACKOFF_S = 1.0
REBUILD_S = 5.0  # the operator's request waits this long for the outcome
LAST_S = 5.0  # for a last snapshot at shutdown, which must not take long


class Replica:
    """Switches between following and leading: `_follower` has the state, `_leader_term` leads."""

    def __init__(
        self,
        log: Log,
        store: ObjectStore,
        clock: Clock,
        policy: Policy,
        *,
        entropy: Callable[[int], bytes],
        candidate: Candidate,
        take_snapshot: Callable[[], Awaitable[int]],
        registry: CollectorRegistry,
        dead_after_ms: int = DEAD_AFTER_MS,
        placement: PlacementSettings | None = None,
        limits: Callable[[TenantId], TenantLimits] | None = None,  # of placement; None: for all
        others: Sequence[str] = (),  # addresses of the other replicas
        # The others are asked often, so their channels are kept open.
        connect: Callable[[str], Caller[MetastoreReplica]] | None = None,
        edition: Edition = NEWEST,
        log_url: str = "",  # shown to operators
        begin_anew: bool = False,  # start an empty log even if the store holds another log's data
        timing: Timing = TIMING,
        stores: Stores | None = None,  # all of them; None: there is only one
        given_stores: Callable[[], StoreSet] | None = None,  # of the settings, as they are now
        # Around each loading of the state, which then stays in memory for long.
        loading: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`store` is the first one: what is not of a single store is there."""
        self._log = log
        self._store = store
        self._stores = stores or stores_of(store)
        self._clock = clock
        self._candidate = candidate
        self._replicas = 1 + len(others)
        self._connect = connect or _no_way
        self._edition = edition
        self._log_url = log_url
        self._timing = timing
        self._loading = loading
        self._metrics = MetastoreMetrics(registry)
        self._peers = Peers(
            others,
            self._connect,
            clock,
            own=self.standing,
            state_votes=self._state_votes,
            timing=timing,
        )
        self._deps = LeaderDeps(
            log=log,
            store=store,
            stores=self._stores,
            given_stores=given_stores,
            clock=clock,
            policy=check_policy(policy),
            entropy=entropy,
            candidate=candidate,
            take_snapshot=take_snapshot,
            metrics=self._metrics,
            placement=PlacementManager(
                placement or PlacementSettings(), limits, store, clock, registry
            ),
            peers=self._peers,
            dead_after_ms=dead_after_ms,
            begin_anew=begin_anew,
            log_url=log_url,
            timing=timing,
        )
        self._follower: Follower | None = None  # None while a snapshot is read
        self._leader_term: LeaderTerm | None = None
        self._fault: MaarError | None = None  # why it has stopped; an operator has to act
        self._life: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._defect: asyncio.Event = asyncio.Event()
        self._turned = asyncio.Event()  # replaced whenever something may have changed
        self._rebuilding = asyncio.Lock()
        self._observed_ns = 0
        self._metrics.behind_s.set_function(lambda: self.standing().behind_s)

    async def start(self) -> None:
        """Return when this replica answers requests; raise the cause if it has stopped serving.

        A stopped replica keeps running, so that it can be asked why it stopped.
        """
        self._life = asyncio.create_task(self._live())
        self._asking = asyncio.create_task(self._peers.forever())
        await self._wait_ready()
        if self._fault is not None:
            raise self._fault

    async def stop(self) -> None:
        """Resign, so that the next leader need not wait for the lease to expire; close the log."""
        async with self._rebuilding:
            await self._leave_snapshot()
            for task in (self._asking, self._life):
                if task is not None:
                    task.cancel()
                    await asyncio.wait([task])
        await self._log.close()

    async def _leave_snapshot(self) -> None:
        """On a clean shutdown before the first snapshot was due, make one now (S5)."""
        leader_term = self._current_term()
        if leader_term is None or leader_term.snapshots.newest:
            return
        try:
            async with asyncio.timeout(LAST_S):
                await snapshot.make(self._log, self._store)
        except TimeoutError:
            log_.warning("no snapshot at shutdown cause=it took over %d s", LAST_S)
        except (MaarError, OSError) as error:
            log_.warning("no snapshot at shutdown cause=%s", error)

    async def wait_defect(self) -> None:
        """Wait until a bug ends this replica, and raise it: its process has to exit too.

        A replica that stopped because it cannot trust its state or log does not exit: it would only
        stop again after a restart, and nobody could ask it why.
        """
        await self._defect.wait()
        assert self._fault is not None
        raise self._fault

    # ── following and leading ──────────────────────────────────────────────────────────────────

    async def _live(self) -> None:
        try:
            while self._fault is None:
                await self._live_once()
        except Exception as error:  # the boundary of the replica: callers get the cause
            log_.exception("replica failed because of a bug in maar")
            self._halt(Unavailable(f"a bug in maar ({type(error).__name__}: {error})"))
            self._defect.set()

    async def _live_once(self) -> None:
        """Load a snapshot and follow the log, until the state has to be loaded again."""
        try:
            follower = await self._load()
            while True:
                term = await self._follow_until_elected(follower)
                await self._lead(follower, term)
        except LeftBehind as error:
            log_.warning("state is loaded again from a snapshot cause=%s", error)
        except Retryable as error:
            log_.warning("snapshot or log cannot be read, retrying cause=%s", error)
            await asyncio.sleep(BACKOFF_S)
        except FormerFormat as error:  # add the command that moves this log's data over
            url = self._store.settings().url
            self._halt(FormerFormat(error.what, log=self._log_url or "URL", store=url))
        except MaarError as error:
            self._halt(error)

    async def _load(self) -> Follower:
        """Load the state and catch up with the log once."""
        self._follower = None
        with self._loading():
            replica = await self._restore()
            self._follower = Follower(self._log, self._clock, replica, self._candidate)
            while not self._follower.caught_up:
                await self._follower.look()
        self._metrics.loads.inc()
        return self._follower

    async def _restore(self) -> LogFold:
        state_votes = StateVotes(self._candidate.name, replicas=self._replicas)
        first = await self._log.first()
        try:
            return await snapshot.restore(
                self._log, self._store, state_votes=state_votes, edition=self._edition
            )
        except Corrupt as error:
            if first != await self._log.first():
                raise LeftBehind("the log was truncated while a snapshot was looked for") from error
            raise

    async def _follow_until_elected(self, follower: Follower) -> Term:
        """Follow the log, and campaign while the state is up to date and not in doubt."""
        campaign = Campaign(self._log, self._candidate)
        try:
            while True:
                await follower.look()
                self._observe(follower)
                if follower.replica.state_votes.standing is ReplicaHealth.SOUND:
                    campaign.stand()
                else:
                    await campaign.withdraw()
                await run_until_first_ends(follower.news, campaign.wait_end)
                if term := campaign.won():
                    return term
        finally:
            await campaign.withdraw()

    async def _lead(self, follower: Follower, term: Term) -> None:
        """Lead for one term, from its first entry to its end."""
        follower.leader = None  # the previous leader's term has ended
        try:
            leader_term = await LeaderTerm.begin(self._deps, follower, term)
            self._take(leader_term)
            await leader_term.run()
        except (HeadMoved, TermLost, Retryable) as error:
            log_.warning("leadership lost term=%d cause=%s", term, error)
        finally:
            begun, self._leader_term = self._leader_term, None
            follower.stop_leading()
            self._metrics.stop_leading()
            if begun:
                begun.close("this replica of the metastore has resigned")
            await resign(self._log, term)
        if begun:
            self._metrics.lost.inc()
        else:  # another replica may be able to lead, or this one can later
            await asyncio.sleep(BACKOFF_S)

    def _take(self, leader_term: LeaderTerm) -> None:
        self._leader_term = leader_term
        self._metrics.terms.inc()
        self._metrics.leads.set(1)
        self._metrics.behind.set(0)
        self._turn()
        state = leader_term.leader.state
        log_.info(
            "metastore leads term=%d index=%d blocks=%d incarnation=%s",
            *(leader_term.leader.term, state.index, len(state.blocks), state.incarnation),
        )

    def _halt(self, error: MaarError) -> None:
        log_.error("metastore stopped cause=%s", error)
        self._fault = error
        self._metrics.stopped.set(1)
        self._turn()

    def _turn(self) -> None:
        self._turned.set()
        self._turned = asyncio.Event()

    def _observe(self, follower: Follower) -> None:
        self._turn()
        self._metrics.behind.set(max(0, follower.head - follower.state.index))
        self._metrics.doubts.set(follower.replica.state_votes.standing is ReplicaHealth.DOUBT)
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._observed_ns >= OBSERVE_S * SECOND_NS:
            self._observed_ns = now_ns
            self._metrics.observe(follower.state, follower.now(), self._deps.wall())

    # ── health ─────────────────────────────────────────────────────────────────────────────────

    @property
    def follower(self) -> Follower | None:
        """It has the state; None while a snapshot is read."""
        return self._follower

    @property
    def leader_term(self) -> LeaderTerm | None:
        """The term that this replica leads for, until all that belongs to it has ended."""
        return self._leader_term

    @property
    def peers(self) -> Peers:
        return self._peers

    @property
    def placement(self) -> PlacementManager:
        return self._deps.placement

    def ready(self) -> str:
        """'' when requests are answered, else why they are not."""
        if why := self._unfit():
            return why
        assert self._follower is not None
        leader_term = self._current_term()
        return leader_term.ready() if leader_term else self._follower.ready()

    def _current_term(self) -> LeaderTerm | None:
        return None if self._leader_term is None or self._leader_term.over else self._leader_term

    def _unfit(self) -> str:
        """Why this replica cannot or must not answer; '' when it may."""
        if self._fault is not None:
            return f"the metastore has stopped: {self._fault}"
        if self._follower is None or not self._follower.caught_up:
            return "the metastore is reading its snapshot and log"
        return self._follower.replica.state_votes.trouble

    async def _wait_ready(self) -> None:
        """Wait until it answers or has stopped."""
        while self.ready() and self._fault is None:
            await self._turned.wait()

    async def replica(self) -> ReplicaStatus:
        return self.standing()

    def standing(self) -> ReplicaStatus:
        """This replica as it sees itself."""
        candidate, follower = self._candidate, self._follower
        own = ReplicaStatus(
            candidate.name,
            candidate.address,
            "starting",
            knows=self._edition.version,
            wall_ns=self._clock.wall_ns(),
            log=self._log_url,
        )
        if follower is not None:
            state, state_votes = follower.state, follower.replica.state_votes
            leads = self._current_term() is not None
            leader = self._candidate if leads else follower.leader
            own = msgspec.structs.replace(
                own,
                standing=self._standing_of(follower),
                term=state.term,
                index=state.index,
                head=max(follower.head, state.index),
                behind_s=0.0 if leads else follower.behind_s(),
                leader=leader.address if leader else "",
                version=state.version,
                incarnation=state.incarnation,
                hashed_at=state_votes.hashed_at,
                digest=state_votes.digest,
                fault=state_votes.trouble,
                snapshot_index=follower.began_at,
            )
        if self._fault is not None:
            own = msgspec.structs.replace(own, standing="stopped", fault=str(self._fault))
        return own

    def _standing_of(self, follower: Follower) -> str:
        if not follower.caught_up:
            return "starting"
        if follower.replica.state_votes.standing is not ReplicaHealth.SOUND:
            return "in doubt"
        return "leader" if self._current_term() else "follower"

    def _state_votes(self) -> StateVotes:
        return self._follower.replica.state_votes if self._follower else StateVotes()

    async def rebuild(self) -> ReplicaStatus:
        # The caller may give up waiting, but a rebuild must not stop half-way: the replica would
        # never answer again.
        await asyncio.shield(asyncio.create_task(self._live_anew()))
        try:
            async with asyncio.timeout(REBUILD_S):
                await self._wait_ready()
        except TimeoutError:
            pass  # the rebuild continues; the caller can ask again
        return self.standing()

    async def _live_anew(self) -> None:
        async with self._rebuilding:
            log_.warning("metastore rebuilds its state index=%d", self.standing().index)
            if self._life is not None:
                self._life.cancel()
                await asyncio.wait([self._life])
            self._fault, self._follower = None, None
            self._metrics.stopped.set(0)
            self._life = asyncio.create_task(self._live())


def _no_way(address: str) -> Caller[MetastoreReplica]:
    raise Unavailable(f"this replica cannot connect to {address}")
