"""An hour of segments, merges and questions under a virtual clock, by our rules or the peer's.

Ours is the real metastore: its log entries, fold, planner and scheduler, behind the port that
workers use. Only time, the log's disk and the workers are simulated; how long a merge takes and how
small its output is comes from real merges.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol

from prometheus_client import CollectorRegistry

import synthetic_peer
from maar.metastore.replica import snapshot
from maar.metastore.service import MetastoreService
from maar.model import keys
from maar.model.block import NO_DAY, TABLES, BlockMeta, Dataset, File, Kind, Location
from maar.model.errors import HeadMoved, TermLost
from maar.model.ids import (
    MAIN_STORE,
    NO_TENANT,
    BlockId,
    Incarnation,
    Shard,
    TenantId,
    WorkerId,
    output_id,
    segment_id,
)
from maar.model.plan import Account, LeasedPlan, PlanResult
from maar.model.policy import Policy
from maar.model.time import DAY_NS, SECOND_NS, TimeRange, utc_day
from maar.ports.metastore.log import (
    EMPTY,
    Candidate,
    Head,
    Leadership,
    Record,
    Term,
    check_limits,
    follow,
)
from maar.ports.plans.board import PollRequest, Renewal, Report
from maar.ports.reader.index import ViewRequest
from maar.ports.stores.object_store import ObjectStore
from maar.query.read.level0 import COLUMNS
from maar.services.compact.rules import COMPACT
from maar.worker.settings import WorkerSettings

NOON_NS = 20_700 * DAY_NS + DAY_NS // 2  # no run here crosses midnight
FLUSH_NS = SECOND_NS // 2
INCARNATION = Incarnation("be9cbe9c")
FILES_OF_BLOCK = len(COLUMNS)  # the tables that a flame graph reads; a segment is one file

# ── what arrives ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Flush:
    """A segment: how many profiles of which tenant."""

    at_ns: int
    shard: int
    profiles: dict[str, int]
    late: tuple[int, ...] = ()  # of those of each tenant: how many days late


@dataclass(frozen=True, slots=True)
class Load:
    """What is written, and when somebody asks for the last hour of which tenants."""

    name: str
    flushes: list[Flush]
    looks_ns: list[int]
    tenants: list[str]
    late_days: int = 0  # at the end somebody asks for each of so many days before


SHARDS = 4
LOOKS = 60
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS


def steady(minutes: int, *, profiles: int) -> Load:
    """One tenant, two segments a second on every shard."""
    warm, end = _times(minutes)
    flushes = [Flush(at, shard, {"acme": profiles}) for at, shard in _every_flush(end)]
    return Load("steady", flushes, _looks(warm, end), ["acme"])


def late(minutes: int, *, profiles: int, one_in: int = 20, days: int = 14) -> Load:
    """As steady, and one profile in so many comes late, by up to so many days."""
    warm, end = _times(minutes)
    chance = Random(3)
    flushes = []
    for at, shard in _every_flush(end):
        came_late = sum(chance.randrange(one_in) == 0 for _ in range(profiles))
        by = tuple(chance.randrange(1, days + 1) for _ in range(came_late))
        flushes.append(Flush(at, shard, {"acme": profiles}, by))
    return Load("late", flushes, _looks(warm, end), ["acme"], days)


def tenants(minutes: int, *, profiles: int, count: int = 200) -> Load:
    """Many tenants, each with a service that pushes every 30 s to a shard of its own."""
    warm, end = _times(minutes)
    first = Random(1)
    turns = [(number, first.randrange(60)) for number in range(count)]
    flushes = []
    for at, shard in _every_flush(end):
        turn = at // FLUSH_NS % 60
        found = {
            f"tenant-{number:03}": profiles
            for number, due in turns
            if due == turn and number % SHARDS + 1 == shard
        }
        if found:
            flushes.append(Flush(at, shard, found))
    asked = [f"tenant-{number:03}" for number in range(0, count, count // 8)]
    return Load("tenants", flushes, _looks(warm, end), asked)


def bursts(minutes: int, *, profiles: int) -> Load:
    """Eight seconds of traffic in every minute: each burst leaves an open batch."""
    warm, end = _times(minutes)
    flushes = [
        Flush(at, shard, {"acme": profiles})
        for at, shard in _every_flush(end)
        if at % MINUTE_NS < 8 * SECOND_NS
    ]
    return Load("bursts", flushes, _looks(warm, end), ["acme"])


def tail(minutes: int, *, profiles: int) -> Load:
    """Steady traffic that stops with half a batch open; somebody looks 15 minutes later."""
    stops = minutes * MINUTE_NS * 2 // 3 - 10 * FLUSH_NS
    flushes = [Flush(at, shard, {"acme": profiles}) for at, shard in _every_flush(stops)]
    return Load("tail", flushes, [stops + 15 * MINUTE_NS], ["acme"])


def _times(minutes: int) -> tuple[int, int]:
    """When the questions begin and when they end."""
    warm = minutes * MINUTE_NS
    return warm, warm + max(warm // 6, MINUTE_NS)


def _looks(from_ns: int, until_ns: int) -> list[int]:
    """At random, lest they keep step with the batches."""
    chance = Random(2)
    return sorted(chance.randrange(from_ns, until_ns) for _ in range(LOOKS))


def _every_flush(until_ns: int) -> Iterator[tuple[int, int]]:
    """When each shard writes a segment; shards begin one after the other, out of step."""
    for number in range(until_ns // FLUSH_NS):
        for shard in range(1, SHARDS + 1):
            yield number * FLUSH_NS + shard * 5 * FLUSH_NS // SHARDS, shard


# ── what a merge costs ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a merge, and how many bytes come out for one that goes in."""

    fixed_s: float
    byte_s: float
    further_s: float  # for each block that comes out beside the first
    shrink: float

    def seconds(self, size: int, outputs: int) -> float:
        return self.fixed_s + self.byte_s * size + self.further_s * (outputs - 1)


@dataclass(frozen=True, slots=True)
class Costs:
    profile_bytes: int  # in a segment
    decode: Cost  # level 0 to 1
    merge: Cost  # above

    def of(self, level: int) -> Cost:
        return self.decode if level == 0 else self.merge


# ── the two systems ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Work:
    """A granted job, as the simulated worker sees it."""

    job: LeasedPlan | synthetic_peer.Job
    seconds: float


@dataclass(frozen=True, slots=True)
class Pace:
    """How a worker polls: with a free slot, with none, and whether a finished job makes it."""

    free_ns: int
    full_ns: int
    at_once: bool


@dataclass(frozen=True, slots=True)
class Opened:
    """What a question has to open."""

    segments: int
    blocks: int  # segments included
    files: int


class System(Protocol):
    pace: Pace

    async def flush(self, flush: Flush) -> None: ...

    async def poll(
        self, worker: str, capacity: int, running: Sequence[Work], done: Sequence[Work], now_ns: int
    ) -> list[Work]: ...

    async def open_hour(self, tenant: str, now_ns: int) -> Opened: ...


class VirtualClock:
    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return NOON_NS + self.now_ns


class MemoryLog:
    """A log that lasts as long as the run."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._term = Term(0)
        self._leader = Candidate("")

    async def campaign(self, candidate: Candidate) -> Term:
        self._term, self._leader = Term(self._term + 1), candidate
        return self._term

    def hold(self, term: Term) -> None:
        """There is only one who could lead."""

    async def resign(self, term: Term) -> None: ...

    async def leadership(self) -> Leadership:
        return Leadership(self._term, self._leader)

    async def wait_change(self, *, after: int) -> None:  # noqa: ARG002 - only its leader adds to it
        await asyncio.Event().wait()

    async def seal(self, note: str) -> None: ...

    async def seal_note(self) -> str:
        return ""

    async def append(
        self,
        bodies: Sequence[bytes],
        *,
        term: Term,
        head: Head,
        reserve: bool = False,  # noqa: ARG002
    ) -> Head:
        check_limits(bodies)
        if term != self._term:
            raise TermLost(f"term {term} does not lead any more")
        if await self.head() != head:
            raise HeadMoved("the head is not where the caller presumed")
        self._records += follow(head, bodies, term)
        return await self.head()

    async def read(self, *, after: int, limit_bytes: int = 0) -> list[Record]:  # noqa: ARG002
        return self._records[after:]

    async def head(self) -> Head:
        last = self._records[-1] if self._records else None
        return Head(last.index, last.hash) if last else EMPTY

    async def first(self) -> int:
        return 1 if self._records else 0

    async def truncate(self, *, before: int, term: Term) -> None:
        """Nothing is forgotten."""

    async def close(self) -> None: ...


class Ours:
    """The real metastore, asked by simulated writers and workers."""

    def __init__(self, clock: VirtualClock, costs: Costs, store: ObjectStore) -> None:
        policy = Policy(  # what was merged is not cleaned: there are no objects to clean
            retire_delay_ns=DAY_NS, snapshot_entries=10**9, snapshot_bytes=10**15
        )
        settings = WorkerSettings()
        self.pace = Pace(settings.poll_interval_ms * 1_000_000, policy.lease_ns // 3, at_once=True)
        self._clock = clock
        self._costs = costs
        self._numbers = itertools.count(1)
        self._log, self._store = MemoryLog(), store
        self.service = MetastoreService(
            self._log,
            store,
            clock,
            policy,
            entropy=entropy,
            candidate=Candidate("bench"),
            take_snapshot=self._take_snapshot,
            registry=CollectorRegistry(),
        )

    async def flush(self, flush: Flush) -> None:
        now = await self.service.now()
        meta = segment(
            next(self._numbers),
            flush,
            lease_time_ns=now.lease_time,
            wall_ns=self._clock.wall_ns(),
            profile_bytes=self._costs.profile_bytes,
        )
        reply = await self.service.add_blocks((meta,))
        assert reply.refusals == ("",), reply.refusals

    async def poll(
        self,
        worker: str,
        capacity: int,
        running: Sequence[Work],
        done: Sequence[Work],
        now_ns: int,  # noqa: ARG002 - the clock says it
    ) -> list[Work]:
        reports = tuple(
            Report(work.job.id, work.job.token, self._result(work.job))
            for work in done
            if isinstance(work.job, LeasedPlan)
        )
        renewals = tuple(
            Renewal(work.job.id, work.job.token, started=True)
            for work in running
            if isinstance(work.job, LeasedPlan)
        )
        reply = await self.service.poll(
            PollRequest(WorkerId(worker), capacity, renewals, reports, kinds=(COMPACT,))
        )
        assert len(reply.kept) == len(renewals), "a lease was lost"
        assert all(outcome.accepted for outcome in reply.outcomes), reply.outcomes
        return [self._work(plan) for plan in reply.granted]

    async def open_hour(self, tenant: str, now_ns: int) -> Opened:
        return await self.open_range(
            tenant, TimeRange(NOON_NS + now_ns - HOUR_NS, NOON_NS + now_ns)
        )

    async def open_range(self, tenant: str, time: TimeRange) -> Opened:
        view = await self.service.view(ViewRequest(TenantId(tenant), time))
        segments = sum(meta.kind is Kind.SEGMENT for meta in view.blocks)
        files = segments + (len(view.blocks) - segments) * FILES_OF_BLOCK
        return Opened(segments, len(view.blocks), files)

    def _work(self, plan: LeasedPlan) -> Work:
        size = sum(meta.size for meta in plan.inputs)
        outputs = len({_whose(one) for meta in plan.inputs for one in meta.datasets})
        return Work(plan, self._costs.of(plan.key.level).seconds(size, outputs))

    def _result(self, plan: LeasedPlan) -> PlanResult:
        return result_of(plan, shrink=self._costs.of(plan.key.level).shrink)

    async def _take_snapshot(self) -> int:
        """One is taken soon after the log began; no other is due in an hour."""
        return await snapshot.make(self._log, self._store)


def entropy(size: int) -> bytes:
    """The log that a service begins with it is the one whose segments are made here."""
    life = bytes.fromhex(INCARNATION)
    return life if size == len(life) else Random(1).randbytes(size)


def segment(
    number: int, flush: Flush, *, lease_time_ns: int, wall_ns: int, profile_bytes: int
) -> BlockMeta:
    """What the index is told of a segment; there is no object."""
    block = segment_id(lease_time_ns=lease_time_ns, entropy=number)
    datasets = tuple(
        _dataset(tenant, end_ns - FLUSH_NS, end_ns, count, count * profile_bytes)
        for tenant, profiles in flush.profiles.items()
        for end_ns, count in _by_day(flush, profiles, wall_ns)
    )
    key = keys.segment(shard=Shard(flush.shard), block=block, incarnation=INCARNATION)
    return _meta(block, Kind.SEGMENT, 0, NO_TENANT, flush.shard, datasets, {"segment": key})


def _by_day(flush: Flush, profiles: int, wall_ns: int) -> list[tuple[int, int]]:
    """The newest time, and the number, of a tenant's profiles of each day."""
    days = Counter({0: profiles - len(flush.late)})
    days.update(flush.late)
    return [(wall_ns - day * DAY_NS, count) for day, count in sorted(days.items()) if count]


def _whose(one: Dataset) -> tuple[TenantId, int]:
    """A block is of one tenant and day."""
    return one.tenant, utc_day(one.min_time_ns)


def result_of(plan: LeasedPlan, *, shrink: float) -> PlanResult:
    """A block per tenant and day, as the compaction service makes them below the target size."""
    oldest = min(meta.id for meta in plan.inputs)
    found: dict[tuple[TenantId, int], list[Dataset]] = {}
    for meta in plan.inputs:
        for one in meta.datasets:
            found.setdefault(_whose(one), []).append(one)
    outputs = []
    for ordinal, ((tenant, day), datasets) in enumerate(sorted(found.items())):
        merged = _dataset(
            tenant,
            min(one.min_time_ns for one in datasets),
            min((day + 1) * DAY_NS - 1, max(one.max_time_ns for one in datasets)),
            sum(one.profiles for one in datasets),
            int(sum(one.size for one in datasets) * shrink),
        )
        assert merged.size < plan.target_block_bytes, "too much load: blocks would be split"
        block = output_id(plan=plan.id, oldest_input=oldest, ordinal=ordinal)
        stem = keys.stem(block=block, plan=plan.id, token=plan.token, attempt="a1")
        files = {
            table: keys.table(name=table, tenant=tenant, day=day, stem=stem) for table in TABLES
        }
        level, shard = plan.key.level + 1, plan.key.shard
        outputs.append(_meta(block, Kind.BLOCK, level, tenant, shard, (merged,), files))
    return PlanResult(COMPACT, tuple(outputs), Account(sum(m.profiles for m in plan.inputs), 0, 0))


def _dataset(tenant: str, start: int, end: int, profiles: int, size: int) -> Dataset:
    types = ("process_cpu:cpu:nanoseconds:cpu:nanoseconds",)
    return Dataset(TenantId(tenant), "checkout", types, start, end, profiles, size, 0, 1)


def _meta(
    block: BlockId,
    kind: Kind,
    level: int,
    tenant: TenantId,
    shard: int,
    datasets: tuple[Dataset, ...],
    files: dict[str, str],
) -> BlockMeta:
    size = sum(one.size for one in datasets)
    return BlockMeta(
        version=1,
        id=block,
        kind=kind,
        level=level,
        tenant=tenant,
        shard=Shard(shard),
        store=MAIN_STORE,
        day=NO_DAY if kind is Kind.SEGMENT else utc_day(datasets[0].min_time_ns),
        min_time_ns=min(one.min_time_ns for one in datasets),
        max_time_ns=max(one.max_time_ns for one in datasets),
        profiles=sum(one.profiles for one in datasets),
        samples=sum(one.profiles for one in datasets) * 100,
        size=size,
        files=tuple(
            File(table, size // len(files), b"c" * 16, 100, 1, (Location(MAIN_STORE, key),))
            for table, key in files.items()
        ),
        datasets=datasets,
        created_by="bench",
        created_at_ns=datasets[0].min_time_ns,
    )


class Theirs:
    """The peer's rules, on the same segments with the same costs."""

    def __init__(self, costs: Costs) -> None:
        self.pace = Pace(synthetic_peer.POLL_NS, synthetic_peer.POLL_NS, at_once=False)
        self._costs = costs
        self._peer = synthetic_peer.Peer()

    async def flush(self, flush: Flush) -> None:
        size = sum(flush.profiles.values()) * self._costs.profile_bytes
        span = (flush.at_ns - FLUSH_NS, flush.at_ns)
        spans = dict.fromkeys(flush.profiles, span)
        self._peer.add(synthetic_peer.Block(0, flush.shard, size, spans), flush.at_ns)

    async def poll(
        self,
        worker: str,  # noqa: ARG002 - it treats all alike
        capacity: int,
        running: Sequence[Work],  # noqa: ARG002 - its leases never run out here
        done: Sequence[Work],
        now_ns: int,
    ) -> list[Work]:
        finished = [
            (work.job, self._outputs(work.job))
            for work in done
            if isinstance(work.job, synthetic_peer.Job)
        ]
        return [self._work(job) for job in self._peer.poll(capacity, finished, now_ns)]

    async def open_hour(self, tenant: str, now_ns: int) -> Opened:
        time = TimeRange(now_ns - HOUR_NS, now_ns)
        found = [
            block
            for block in self._peer.live.values()
            if tenant in block.spans and time.overlaps(*block.spans[tenant])
        ]
        segments = sum(block.level == 0 for block in found)
        return Opened(segments, len(found), len(found))  # each is one object

    def _work(self, job: synthetic_peer.Job) -> Work:
        size = sum(block.size for block in job.blocks)
        outputs = len({tenant for block in job.blocks for tenant in block.spans})
        return Work(job, self._costs.of(job.level).seconds(size, outputs))

    def _outputs(self, job: synthetic_peer.Job) -> list[synthetic_peer.Block]:
        shrink = self._costs.of(job.level).shrink
        found: dict[str, list[tuple[int, int, float]]] = {}
        for block in job.blocks:
            for tenant, (start, end) in block.spans.items():
                share = block.size / len(block.spans)
                found.setdefault(tenant, []).append((start, end, share))
        return [
            synthetic_peer.Block(
                job.level + 1,
                job.blocks[0].shard,
                int(sum(share for _, _, share in parts) * shrink),
                {tenant: (min(s for s, _, _ in parts), max(e for _, e, _ in parts))},
            )
            for tenant, parts in found.items()
        ]


# ── the run ────────────────────────────────────────────────────────────────────────────────────


@dataclass(eq=False)
class Worker:
    name: str
    slots: int
    running: list[Work] = field(default_factory=list)
    done: list[Work] = field(default_factory=list)
    poll: int = 0  # the one that is due; earlier ones were put off


@dataclass
class Seen:
    """What the run showed."""

    opened: list[Opened] = field(default_factory=list)
    opened_days: list[Opened] = field(default_factory=list)  # of each day with late profiles
    jobs: int = 0
    busy_s: float = 0.0


class Hour:
    """Plays a load; events of one moment happen in the order in which they were planned."""

    def __init__(self, system: System, load: Load, clock: VirtualClock) -> None:
        self._system = system
        self._load = load
        self._clock = clock
        self._order = itertools.count()
        self._events: list[tuple[int, int, Callable[[], Awaitable[None]]]] = []
        self._seen = Seen()

    async def run(self, *, workers: int, slots: int) -> Seen:
        for flush in self._load.flushes:
            self._at(flush.at_ns, partial(self._system.flush, flush))
        for look_ns in self._load.looks_ns:
            self._at(look_ns, self._look)
        for number in range(workers):
            worker = Worker(f"worker-{number}", slots)
            first_ns = number * self._system.pace.free_ns // workers
            self._at(first_ns, partial(self._poll, worker, 0))
        last_ns = max(self._load.looks_ns)
        while self._events[0][0] <= last_ns:
            self._clock.now_ns, _, event = heapq.heappop(self._events)
            await event()
        return self._seen

    def _at(self, when_ns: int, event: Callable[[], Awaitable[None]]) -> None:
        heapq.heappush(self._events, (when_ns, next(self._order), event))

    async def _look(self) -> None:
        for tenant in self._load.tenants:
            opened = await self._system.open_hour(tenant, self._clock.now_ns)
            self._seen.opened.append(opened)

    async def _poll(self, worker: Worker, number: int) -> None:
        if number != worker.poll:
            return
        free = worker.slots - len(worker.running)
        done, worker.done = worker.done, []
        now_ns = self._clock.now_ns
        granted = await self._system.poll(worker.name, free, worker.running, done, now_ns)
        for work in granted:
            worker.running.append(work)
            self._seen.jobs += 1
            self._seen.busy_s += work.seconds
            self._at(now_ns + int(work.seconds * SECOND_NS), partial(self._end, worker, work))
        full = len(worker.running) == worker.slots
        pace = self._system.pace
        self._poll_later(worker, pace.full_ns if full else pace.free_ns)

    async def _end(self, worker: Worker, work: Work) -> None:
        worker.running.remove(work)
        worker.done.append(work)
        if self._system.pace.at_once:
            self._poll_later(worker, 0)

    def _poll_later(self, worker: Worker, wait_ns: int) -> None:
        worker.poll += 1
        self._at(self._clock.now_ns + wait_ns, partial(self._poll, worker, worker.poll))
