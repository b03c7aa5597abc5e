"""Small real stand-ins for what is behind the front, and an HTTP client to its front door."""

# ruff: noqa: ARG002 - a stand-in takes what its port is given, and needs little of it

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
from prometheus_client import CollectorRegistry

from maar.api.admin.placement import ReadPlaced, nothing_placed
from maar.api.admin.quarantine import Causes
from maar.api.app import QueryDeps, build_app
from maar.api.guard import INLINE_BYTES_MAX, RequestGuard
from maar.api.hosts import Hosts
from maar.api.settings import ApiSettings
from maar.distributor.service import Distributor
from maar.distributor.settings import Limits
from maar.metastore.decide import membership
from maar.metastore.fold.ring import ring_of
from maar.metastore.records.effects import RingReplaced
from maar.metastore.records.entries import RingChanged
from maar.model.block import BlockMeta, Damage, Kind
from maar.model.errors import AlreadyExists, InvalidInput, MaarError, NotFound, Rejected
from maar.model.ids import (
    BlockId,
    Incarnation,
    NodeId,
    PlanId,
    Shard,
    TenantId,
    Zone,
)
from maar.model.labels import Labels
from maar.model.plan import Plan, PlanState
from maar.model.profile import RawProfile
from maar.model.ring import Ring
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime
from maar.ports.calls import LocalPort
from maar.ports.dead_letters import Letter, LetterRetried, LettersPage, LettersStatus
from maar.ports.index_reader import IndexView, ViewRequest
from maar.ports.log_time import Now
from maar.ports.membership import Beat, BeatReply, RingView
from maar.ports.object_store import ObjectInfo, StoreSettings
from maar.ports.operator import Explanation, ListPlans, Loss, PlanDetail, Status, ZoneStatus
from maar.ports.plan_board import PollReply, PollRequest
from maar.ports.query import (
    DrawFlameGraph,
    FlameGraph,
    GetProfile,
    ListLabelNames,
    ListLabelValues,
    ListProfileTypes,
    ListSeries,
    Point,
    RankFunctions,
    Scope,
    SelectSeries,
    SeriesPoints,
    Top,
    TopRow,
)
from maar.ports.registrar import AddReply
from maar.ports.retention import Expiring, RetentionStatus, Undone
from maar.pprof.encode import encode
from maar.pprof.plain import (
    PlainFunction,
    PlainLine,
    PlainLocation,
    PlainProfile,
    PlainSample,
)
from support.clock.virtual_time import run_virtually
from support.metastore.fold import Fold

NOW_NS = 1_794_000_000 * SECOND_NS
CALLED = Hosts(frozenset(("maar", "x")))  # how tests call it, beside its loopback address
CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"

T = TypeVar("T")


def run(task: Coroutine[Any, Any, T]) -> T:
    return run_virtually(task)


class SetClock:
    """Time that stands still until it is told otherwise."""

    def __init__(self, wall_ns: int = NOW_NS) -> None:
        self.now_ns = wall_ns

    def wall_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns


def pprof(
    *,
    time_ns: int = NOW_NS,
    types: Sequence[tuple[str, str]] = (("cpu", "nanoseconds"),),
    period_type: tuple[str, str] = ("cpu", "nanoseconds"),
    functions: Sequence[str] = ("main", "work"),
    value: int = 10_000_000,
) -> bytes:
    """One sample whose stack is `functions`, root first."""
    return encode(
        PlainProfile(
            sample_types=types,
            samples=[
                PlainSample(tuple(range(len(functions)))[::-1], tuple(value for _ in types)),
            ],
            locations=[PlainLocation(lines=(PlainLine(row),)) for row in range(len(functions))],
            functions=[PlainFunction(name) for name in functions],
            period_type=period_type,
            period=10_000_000,
            time_ns=time_ns,
            duration_ns=SECOND_NS,
        )
    )


class MemoryWriter:
    """A segment writer whose segments are a list. `failure` is raised instead of storing."""

    def __init__(self) -> None:
        self.stored: list[tuple[Shard, RawProfile]] = []
        self.failure: MaarError | None = None

    async def push(self, shard: Shard, profiles: tuple[RawProfile, ...]) -> None:
        if self.failure is not None:
            raise self.failure
        self.stored += [(shard, profile) for profile in profiles]

    def profiles(self) -> list[RawProfile]:
        return [profile for _, profile in self.stored]


class OneShard:
    """A router to one writer, which has one shard."""

    def __init__(self, writer: MemoryWriter) -> None:
        self._writer = writer

    async def push(self, profiles: Sequence[RawProfile]) -> None:
        await self._writer.push(Shard(1), tuple(profiles))


class MemoryStore:
    """Objects in a dict. `failures` are raised by the next creates, one each."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.failures: list[MaarError] = []

    def create(self, key: str, body: bytes) -> None:
        if self.failures:
            raise self.failures.pop(0)
        if key in self.objects:
            raise AlreadyExists(key)
        self.objects[key] = body

    def create_from_file(self, key: str, path: Path) -> None:
        self.create(key, path.read_bytes())

    def read(self, key: str) -> bytes:
        if key not in self.objects:
            raise NotFound(key)
        return self.objects[key]

    def read_range(self, key: str, *, start: int, length: int) -> bytes:
        return self.read(key)[start : start + length]

    def size(self, key: str) -> int:
        return len(self.read(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for key in sorted(self.objects):
            if key.startswith(prefix):
                yield ObjectInfo(key, len(self.objects[key]))

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def local_path(self, key: str) -> Path | None:
        return None

    def open(self, key: str) -> Any:
        raise NotImplementedError

    def clock_ns(self) -> int | None:
        return None

    def settings(self) -> StoreSettings:
        return StoreSettings("main", "memory://")


class MemoryMetastore(LocalPort):
    """An index that is a dict of blocks. `failures` are raised by the next calls, one each."""

    def __init__(self) -> None:
        self.index: dict[BlockId, BlockMeta] = {}
        self.failures: list[MaarError] = []
        self.refusal = ""
        self.lease_time = LeaseTime(5_000)
        self.known: dict[PlanId, Plan] = {}
        self.wanted = ListPlans()  # what was asked for last
        self.raised = 0
        self.periods: dict[str, int] = {}
        self.trouble = ""
        self.undone: list[str] = []
        self.damages: tuple[Damage, ...] = ()
        self.lost: list[tuple[BlockId, str]] = []
        self.zones = Fold()  # rings, by the real decisions
        self.heartbeats = membership.Heartbeats()
        self.dead: set[NodeId] = set()
        self.complete = True
        self.zone_status: tuple[ZoneStatus, ...] = ()
        self.posted: dict[str, Letter] = {}  # dead letters
        self.letters_status = LettersStatus()

    async def now(self) -> Now:
        self._fail()
        return Now(Incarnation("1234abcd"), self.lease_time, len(self.index))

    async def add_blocks(self, blocks: tuple[BlockMeta, ...]) -> AddReply:
        self._fail()
        if not self.refusal:
            self.index |= {block.id: block for block in blocks}
        return AddReply(tuple(self.refusal for _ in blocks), self.lease_time)

    async def poll(self, request: PollRequest) -> PollReply:
        return PollReply((), (), ())

    async def view(self, request: ViewRequest) -> IndexView:
        return IndexView(len(self.index), tuple(self.index.values()))

    async def blocks(
        self, *, level: int = -1, tenant: str = "", limit: int = 1000
    ) -> tuple[BlockMeta, ...]:
        found = [block for block in self.index.values() if level in (-1, block.level)]
        return tuple(found[:limit])

    async def block(self, block: BlockId) -> BlockMeta:
        if block not in self.index:
            raise NotFound(f"there is no block {block}")
        return self.index[block]

    async def plans(self, wanted: ListPlans) -> tuple[Plan, ...]:
        self._fail()
        self.wanted = wanted
        found = [p for p in self.known.values() if wanted.state in ("", p.state.name.lower())]
        return tuple(found[: wanted.limit])

    async def plan(self, plan: PlanId) -> PlanDetail:
        found = self._plan(plan)
        inputs = tuple(self.index[block] for block in found.inputs if block in self.index)
        return PlanDetail(found, self.lease_time, found.failure_limit, inputs)

    async def requeue(self, plan: PlanId) -> Plan:
        self._fail()
        found = self._plan(plan)
        if found.state not in (PlanState.EXCLUDED, PlanState.PARKED):
            raise Rejected(f"plan {plan} is {found.state.name.lower()}, and needs no requeueing")
        return self._put(found, state=PlanState.REQUESTED, failures=0, note="")

    async def exclude(self, plan: PlanId, *, note: str) -> Plan:
        return self._put(self._plan(plan), state=PlanState.EXCLUDED, lease=None, note=note)

    async def raise_limit(self, failure_limit: int, *, for_ns: int) -> LeaseTime:
        if for_ns and failure_limit < 1:
            raise InvalidInput(f"{failure_limit} is not a limit")
        self.raised = failure_limit if for_ns else 0
        return LeaseTime(self.lease_time + for_ns)

    async def explain(self, block: BlockId) -> Explanation:
        meta = await self.block(block)
        standing = "quarantined" if meta.kind is Kind.QUARANTINE else "queued"
        return Explanation(block, standing, ("It waits.",), meta)

    async def retention(self) -> RetentionStatus:
        return RetentionStatus(90 * DAY_NS, dict(self.periods), NOW_NS, NOW_NS, self.trouble)

    async def set_retention(self, tenant: TenantId, *, period_ns: int | None) -> RetentionStatus:
        self.periods.pop(tenant, None)
        if period_ns is not None:
            self.periods[tenant] = period_ns
        return await self.retention()

    async def hold_retention(self, *, why: str) -> RetentionStatus:
        self.trouble = f"retention paused: {why}"
        return await self.retention()

    async def release_retention(self) -> RetentionStatus:
        self.trouble = ""
        return await self.retention()

    async def loss(self, block: BlockId) -> Loss:
        return Loss(await self.block(block), self.damages)

    async def lose(self, block: BlockId, *, note: str, force: bool = False) -> Loss:
        loss = await self.loss(block)
        if not loss.damages and not force:
            raise Rejected(f"block {block} is whole")
        self.lost.append((block, note))
        return loss

    async def undo_retention(self, *, tenant: str = "", why: str = "") -> Undone:
        await self.hold_retention(why=why)
        self.undone.append(tenant)
        return Undone(3, 30)

    async def expiring(self, *, tenant: str = "", limit: int = 1000) -> tuple[Expiring, ...]:
        owners = {block: plan.id for plan in self.known.values() for block in plan.inputs}
        found = [
            Expiring(meta, NOW_NS, owners.get(meta.id))
            for meta in self.index.values()
            if tenant in ("", meta.tenant)
        ]
        return tuple(found[:limit])

    async def beat(self, beat: Beat) -> BeatReply:
        self._fail()
        found = membership.decide(self.zones.state, beat, self.heartbeats)
        if isinstance(found, RingChanged):
            for effect in self.zones.put(found):
                assert isinstance(effect, RingReplaced)
                self.heartbeats.follow(effect)
            found = None
        ring = ring_of(self.zones.state, beat.zone)
        if found is not None:
            return BeatReply(ring.changed_at, found.refusal)
        self.heartbeats.hear(ring, beat, self.lease_time)
        return BeatReply(ring.changed_at)

    async def rings(self) -> tuple[RingView, ...]:
        self._fail()
        return tuple(
            RingView(
                ring,
                tuple(w.node for w in ring.writers if w.node in self.dead),
                self.complete,
                tuple(0 for _ in ring.writers),
            )
            for _, ring in sorted(self.zones.state.rings.items())
        )

    async def remove_writer(self, zone: Zone, node: NodeId) -> Ring:
        """Unlike the real one it takes the dead only."""
        self._fail()
        self.heartbeats.dead_after_ns = -1 if node in self.dead else 1 << 62
        entries = membership.removal(self.zones.state, zone, node, self.heartbeats, self.lease_time)
        effects = [effect for entry in entries for effect in self.zones.put(entry)]
        return membership.ring_after_removal(effects, self.zones.state, zone)

    def _plan(self, plan: PlanId) -> Plan:
        if plan not in self.known:
            raise NotFound(f"there is no plan {plan}")
        return self.known[plan]

    def _put(self, plan: Plan, **changes: Any) -> Plan:
        self.known[plan.id] = msgspec.structs.replace(plan, **changes)
        return self.known[plan.id]

    async def letters(self, *, limit: int = 100) -> LettersPage:
        self._fail()
        found = tuple(self.posted.values())
        return LettersPage(self.letters_status, found[:limit], len(found) > limit)

    async def letter(self, name: str) -> Letter:
        if name not in self.posted:
            raise NotFound(f"there is no dead letter {name!r}")
        return self.posted[name]

    async def retry_letter(self, name: str) -> LetterRetried:
        self._fail()
        found = await self.letter(name)
        if found.meta is None:
            raise Rejected(f"{name} cannot be delivered: {found.cause}")
        del self.posted[name]
        return LetterRetried(name, found.meta.id, "floor" in found.cause)

    async def status(self) -> Status:
        return Status(
            incarnation=Incarnation("1234abcd"),
            term=1,
            index=len(self.index),
            lease_time=self.lease_time,
            wall_time_ns=NOW_NS,
            levels=(),
            plans={},
            running=0,
            leased=(),
            failed=(),
            completed=0,
            retired=0,
            profiles_added=0,
            duplicates_removed=0,
            profiles_quarantined=0,
            profiles_expired=0,
            parked=0,
            leftovers=0,
            failure_limit=3,
            limit_raised_s=0.0,
            retention=await self.retention(),
            blocked=(),
            snapshot_index=0,
            log_first=1,
            state_items={},
            zones=self.zone_status,
            letters=self.letters_status,
        )

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


class PlainEngine(LocalPort):
    """Answers from the profiles of a MemoryWriter, by equality of labels only."""

    def __init__(self, writer: MemoryWriter) -> None:
        self._writer = writer

    def _matching(self, scope: Scope) -> list[RawProfile]:
        return [
            profile
            for profile in self._writer.profiles()
            if profile.tenant == scope.tenant
            and scope.range.contains(profile.time_ns)
            and all(dict(profile.labels).get(m.name, "") == m.value for m in scope.matchers)
        ]

    async def profile_types(self, request: ListProfileTypes) -> tuple[str, ...]:
        return tuple({kind for profile in self._matching(request.scope) for kind in profile.types})

    async def label_names(self, request: ListLabelNames) -> tuple[str, ...]:
        return tuple(
            {name for profile in self._matching(request.scope) for name, _ in profile.labels}
        )

    async def label_values(self, request: ListLabelValues) -> tuple[str, ...]:
        found = {
            dict(profile.labels).get(request.name, "") for profile in self._matching(request.scope)
        }
        return tuple(found - {""})

    async def series(self, request: ListSeries) -> tuple[Labels, ...]:
        label_names = request.label_names
        return tuple(
            {
                tuple(pair for pair in profile.labels if not label_names or pair[0] in label_names)
                for profile in self._matching(request.scope)
            }
        )

    async def flamegraph(self, request: DrawFlameGraph) -> FlameGraph:
        count = len(self._matching(request.scope))
        return FlameGraph(
            names=("total", f"of {request.max_nodes} nodes"),
            levels=((0, count, 0, 0), (0, count, count, 1)),
            total=count,
            max_self=count,
        )

    async def top(self, request: RankFunctions) -> Top:
        count = len(self._matching(request.scope))
        return Top((TopRow("work", count, count),), count)

    async def select_series(self, request: SelectSeries) -> tuple[SeriesPoints, ...]:
        count = len(self._matching(request.scope))
        return (SeriesPoints((("service_name", "shop"),), (Point(request.step_ns, float(count)),)),)

    async def profile(self, request: GetProfile) -> bytes:
        tenant, profile, hint = request.tenant, request.profile, request.hint
        for one in self._writer.profiles():
            if one.id == profile and one.tenant == tenant and hint.contains(one.time_ns):
                return one.payload
        raise NotFound(f"there is no profile {profile.hex()}")


async def no_causes(_meta: BlockMeta) -> tuple[str, ...]:
    return ()


class Front:
    """The whole front in this process, over a writer in memory."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        api: ApiSettings | None = None,
        causes: Causes = no_causes,
        placed: ReadPlaced = nothing_placed,
        hosts: Hosts = CALLED,
        inline_bytes_max: int = INLINE_BYTES_MAX,
    ) -> None:
        self.registry = CollectorRegistry()
        self.writer = MemoryWriter()
        self.metastore = MemoryMetastore()
        self.clock = SetClock()
        self.not_ready = ""
        self.failing = "push"  # the duty that it is not ready for
        self.processes: list[dict[str, Any]] = []
        self.disks: list[dict[str, Any]] = []
        self.limits = limits or Limits()
        self.distributor = Distributor(
            self.limits, OneShard(self.writer), self.clock, self.registry
        )
        self.door = RequestGuard(
            api or ApiSettings(), self.registry, inline_bytes_max=inline_bytes_max
        )
        self.app = build_app(
            self.door.settings,
            [self.registry],
            self._ready,
            self._extra_metrics,
            distributor=self.distributor,
            asked=QueryDeps(
                PlainEngine(self.writer),
                self.metastore,
                causes,
                self.clock,
                self.limits.future_ns,
                placed,
                lambda: self.processes,
                lambda: self.disks,
            ),
            guard=self.door,
            hosts=hosts,
        )

    def request(self, method: str, url: str, **how: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with self.client() as client:
                return await client.request(method, url, **how)

        return run(ask())

    def post(self, url: str, **how: Any) -> httpx.Response:
        return self.request("POST", url, **how)

    def get(self, url: str, **how: Any) -> httpx.Response:
        return self.request("GET", url, **how)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://maar") as client:
            yield client

    def counted(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    async def _ready(self, duty: str) -> str:
        return self.not_ready if duty in ("", self.failing) else ""

    async def _extra_metrics(self) -> list[str]:
        return ["maar_other_up 1.0\n"]


def gz(raw: bytes) -> bytes:
    return gzip.compress(raw, 6, mtime=0)
