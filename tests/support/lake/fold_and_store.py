"""A fold and a store together: plans that write what real ones would, and a cleaner over both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from prometheus_client import CollectorRegistry

from maar.metastore.fold.apply import Indexed, apply
from maar.metastore.leader.deleting.cleaner import BOUNDS, Cleaner, CleanerBounds
from maar.metastore.leader.inbox import Prepare
from maar.metastore.records.effects import Completed, Effects, Leased
from maar.metastore.records.entries import (
    BlocksAdded,
    Entry,
    Envelope,
    Grant,
    PlanCompleted,
    PlansLeased,
    PlansScheduled,
)
from maar.metastore.records.packs import unpack
from maar.metastore.replica.metrics import MetastoreMetrics
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.block import BlockMeta, Kind
from maar.model.errors import NotLeading
from maar.model.ids import FencingToken, PlanId, TenantId, WorkerId
from maar.model.plan import Account, PlanResult, PlanSpec
from maar.model.policy import Policy
from maar.model.time import LeaseTime, WallTime
from maar.ports.stores.object_store import ObjectStore
from maar.services.compact.rules import COMPACT, COMPACTION
from maar.services.deletion import BatchDeleter
from support.clock.fake_clock import FakeClock
from support.metastore.fold import DAY_START_NS, SMALL, Fold, output, segment
from support.stores.memory_store import MemoryStore


@dataclass
class WatchedFold(Fold):
    """Its entries carry the wall time of a clock that a test may set wrong."""

    clock: FakeClock = field(default_factory=lambda: FakeClock(wall_ns=DAY_START_NS))

    def put_at(self, index: int, entry: Entry) -> Effects:
        wall = WallTime(self.clock.wall)
        item = Indexed(index, Envelope(self.state.version, LeaseTime(self.now), wall, entry))
        self.log.append(item)
        return apply(self.state, item)


class Lake:
    """Time passes only when told, on all clocks alike; `fold.now` is the log's."""

    def __init__(
        self,
        policy: Policy = SMALL,
        store: ObjectStore | None = None,
        *,
        bounds: CleanerBounds = BOUNDS,
    ) -> None:
        self.fold = WatchedFold(policy=policy)
        self.store: ObjectStore = store or MemoryStore()
        self.clock = self.fold.clock
        self.registry = CollectorRegistry()
        self.metrics = MetastoreMetrics(self.registry)
        self.cleaner = Cleaner(
            *(self, self.store, self.clock, self.append, self.metrics), bounds=bounds
        )
        self.appends = 0
        self.deposed = False
        self.confirmations = 0  # of deletes

    # what a cleaner asks of a leader

    @property
    def state(self) -> MetaState:
        return self.fold.state

    def now(self) -> LeaseTime:
        return LeaseTime(self.fold.now)

    def confirm(self) -> None:
        """It leads, unless a test says otherwise."""
        if self.deposed:
            raise NotLeading("somebody else leads")

    def confirm_deletes(self) -> None:
        self.confirmations += 1
        self.confirm()

    async def append(self, prepare: Prepare) -> int:
        entries = prepare(self.state, self.now())
        self.appends += 1
        for entry in entries:
            self.fold.put(entry)
        return self.state.index

    # what happens to a lake

    def pass_time(self, ns: int) -> None:
        self.fold.now += ns
        self.clock.advance(ns)

    def add(self, *numbers: int, **how: object) -> tuple[BlockMeta, ...]:
        metas = tuple(segment(n, at=self.fold.now, **how) for n in numbers)  # type: ignore[arg-type]
        self.register(*metas)
        return metas

    def register(self, *metas: BlockMeta) -> None:
        for meta in metas:
            put(self.store, meta)
        self.fold.put(BlocksAdded(metas))

    def schedule(self, metas: Sequence[BlockMeta]) -> PlanId:
        inputs = tuple(meta.id for meta in metas)
        spec = PlanSpec(COMPACT, False, COMPACTION.lane(metas[0]), inputs, 3)
        self.fold.put(PlansScheduled((spec,)))
        return PlanId(self.state.index, 0)

    def lease(self, plan: PlanId, replaces: FencingToken | None = None) -> FencingToken:
        until = LeaseTime(self.fold.now + self.state.policy.lease_ns)
        effects = self.fold.put(PlansLeased((Grant(plan, WorkerId("w"), until, replaces),)))
        (leased,) = (effect for effect in effects if isinstance(effect, Leased))
        return leased.token

    def write(self, plan: PlanId, token: FencingToken, attempt: str = "a1") -> BlockMeta:
        """What one task attempt makes of a plan: it says so, then writes."""
        made = self.make_output(plan, token, attempt)
        announce(self.store, made, plan, token, attempt)
        put(self.store, made)
        return made

    def make_output(self, plan: PlanId, token: FencingToken, attempt: str = "a1") -> BlockMeta:
        inputs = self.fold.metas(self.state.plans[plan].inputs)
        profiles = sum(meta.profiles for meta in inputs)
        made = output(
            plan, token, inputs, profiles=profiles, level=inputs[0].level + 1, attempt=attempt
        )
        return msgspec.structs.replace(made, zone=self.state.plans[plan].key.zone)

    def complete(self, plan: PlanId, token: FencingToken, made: BlockMeta) -> Effects:
        account = Account(made.profiles, 0, 0)
        return self.fold.put(PlanCompleted(plan, token, PlanResult(COMPACT, (made,), account)))

    def merge(self, metas: Sequence[BlockMeta], attempt: str = "a1") -> BlockMeta:
        """From blocks to a block, without trouble."""
        plan = self.schedule(metas)
        token = self.lease(plan)
        made = self.write(plan, token, attempt)
        (effect,) = self.complete(plan, token, made)
        assert isinstance(effect, Completed), effect
        return made

    # what is there

    def objects(self, prefix: str = "") -> set[str]:
        return {info.key for info in self.store.list(prefix)}

    def listed_keys(self) -> set[str]:
        """Every object that the index, live or retired, speaks for."""
        live = map(self.state.blocks.get, self.state.blocks.where)
        retired = (unpack(retired.packed) for retired in self.state.retired.values())
        return {key for meta in (*live, *retired) for key in objects_of(meta)}


def bare_deleter(store: ObjectStore) -> BatchDeleter:
    """Deletes without asking anybody."""
    return BatchDeleter(store, lambda keys: keys, lambda: 0)


def objects_of(meta: BlockMeta) -> list[str]:
    files = [location.key for file in meta.files for location in file.locations]
    return [*files, keys.manifest_of(files[0])] if meta.kind is Kind.BLOCK else files


def put(store: ObjectStore, meta: BlockMeta) -> None:
    for key in objects_of(meta):
        store.create(key, b"x" * meta.files[0].size)


def announce(
    store: ObjectStore, made: BlockMeta, plan: PlanId, token: FencingToken, attempt: str
) -> str:
    key = keys.intent(plan=plan, token=token, attempt=attempt, ordinal=0)
    store.create(key, "\n".join(objects_of(made)).encode())
    return key


def with_time(meta: BlockMeta, time_ns: int) -> BlockMeta:
    """The same block with profiles of one moment only."""
    datasets = tuple(
        msgspec.structs.replace(each, min_time_ns=time_ns, max_time_ns=time_ns)
        for each in meta.datasets
    )
    return msgspec.structs.replace(
        meta, min_time_ns=time_ns, max_time_ns=time_ns, datasets=datasets, dated_ns=time_ns
    )


def with_server_time(meta: BlockMeta, time_ns: int) -> BlockMeta:
    """The same, of profiles that carried no time and were dated by the server."""
    return msgspec.structs.replace(with_time(meta, time_ns), dated_ns=0)


def with_tenants(meta: BlockMeta, *tenants: TenantId) -> BlockMeta:
    """The same segment with profiles of several tenants."""
    (one,) = meta.datasets
    datasets = tuple(msgspec.structs.replace(one, tenant=tenant) for tenant in tenants)
    return msgspec.structs.replace(meta, datasets=datasets)
