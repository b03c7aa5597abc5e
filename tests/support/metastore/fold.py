"""Blocks, results and a small fold for tests of the metastore."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from maar.metastore.fold.apply import Indexed, apply
from maar.metastore.records.effects import Effects
from maar.metastore.records.entries import (
    BlocksOutlined,
    Entry,
    Envelope,
    Genesis,
    PolicySet,
    TermStarted,
    encode,
    encode_entry,
)
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.block import NO_DAY, TABLES, BlockMeta, Dataset, File, Kind, Location
from maar.model.ids import (
    MAIN_STORE,
    NO_TENANT,
    BlockId,
    FencingToken,
    Incarnation,
    PlanId,
    Shard,
    TenantId,
    output_id,
    segment_id,
)
from maar.model.plan import Account, PlanResult
from maar.model.policy import Level, Policy
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime, WallTime, utc_day
from maar.services.compact.rules import COMPACT

TENANT = TenantId("acme")
INCARNATION = Incarnation("0badcafe")
DAY = 20_000
DAY_START_NS = DAY * 86_400 * SECOND_NS

SMALL = Policy(
    levels=(
        Level(count=3, bytes=1 << 20, age_ns=10 * SECOND_NS),
        Level(count=2, bytes=1 << 20, age_ns=20 * SECOND_NS),
        Level(count=2, bytes=1 << 20, age_ns=40 * SECOND_NS),
    ),
    target_block_bytes=100_000,
    span_ns=3600 * SECOND_NS,
    lease_ns=15 * SECOND_NS,
    failure_limit=2,
    backlog_count=0,  # a plan is a batch, whoever is behind
)


def entropy(chance: random.Random) -> Callable[[int], bytes]:
    """For a service: the log that it begins is INCARNATION, whose segments are made below."""
    life = bytes.fromhex(INCARNATION)
    return lambda size: life if size == len(life) else chance.randbytes(size)


def segment(
    number: int,
    *,
    at: int = 0,
    shard: int = 1,
    profiles: int = 10,
    size: int = 1000,
    tenant: TenantId = TENANT,
    service: str = "checkout",
    life: Incarnation = INCARNATION,
) -> BlockMeta:
    """The nth segment, named by lease time `at`."""
    block = segment_id(lease_time_ns=at, entropy=number)
    key = keys.segment(shard=Shard(shard), block=block, incarnation=life)
    start = DAY_START_NS + number
    return BlockMeta(
        version=1,
        id=block,
        kind=Kind.SEGMENT,
        level=0,
        tenant=NO_TENANT,
        shard=Shard(shard),
        store=MAIN_STORE,
        day=NO_DAY,
        min_time_ns=start,
        max_time_ns=start + SECOND_NS,
        profiles=profiles,
        samples=profiles * 100,
        size=size,
        files=(_file("segment", key, size, profiles),),
        datasets=(_dataset(tenant, service, start, profiles, size),),
        created_by="writer-1",
        created_at_ns=start,
        dated_ns=start + SECOND_NS,
    )


def output(
    plan: PlanId,
    token: FencingToken,
    inputs: tuple[BlockMeta, ...],
    *,
    profiles: int,
    level: int = 1,
    ordinal: int = 0,
    size: int = 1000,
    kind: Kind = Kind.BLOCK,
    attempt: str = "a1",
    tenant: TenantId = TENANT,
    day: int | None = None,
) -> BlockMeta:
    """What a worker would have made of the inputs: of the last day that there is, or of `day`."""
    block = output_id(plan=plan, oldest_input=min(m.id for m in inputs), ordinal=ordinal)
    stem = keys.stem(block=block, plan=plan, token=token, attempt=attempt)
    start, end = min(m.min_time_ns for m in inputs), max(m.max_time_ns for m in inputs)
    if kind is Kind.BLOCK:
        day = utc_day(end) if day is None else day
        start, end = max(start, day * DAY_NS), min(end, (day + 1) * DAY_NS - 1)
    else:
        day = NO_DAY
    return BlockMeta(
        version=1,
        id=block,
        kind=kind,
        level=level,
        tenant=tenant,
        shard=inputs[0].shard,
        store=MAIN_STORE,
        day=day,
        min_time_ns=start,
        max_time_ns=end,
        profiles=profiles,
        samples=profiles * 100,
        size=size,
        files=_files(kind, tenant, day, stem, size, profiles),
        datasets=(_dataset(tenant, "checkout", start, profiles, size),),
        created_by=str(plan),
        created_at_ns=start,
        plan=plan,
    )


def result(
    plan: PlanId,
    token: FencingToken,
    inputs: tuple[BlockMeta, ...],
    *,
    duplicates: int = 0,
    size: int = 1000,
) -> PlanResult:
    """One output that keeps everything but some duplicates."""
    came = sum(meta.profiles for meta in inputs)
    level = inputs[0].level + 1
    made = output(plan, token, inputs, profiles=came - duplicates, level=level, size=size)
    return PlanResult(COMPACT, (made,), Account(came - duplicates, duplicates, 0))


def _files(
    kind: Kind, tenant: TenantId, day: int, stem: str, size: int, profiles: int
) -> tuple[File, ...]:
    if kind is Kind.QUARANTINE:
        key = keys.quarantine(tenant=tenant, stem=stem)
        return (_file("segment", key, size, profiles),)
    tables = {name: keys.table(name=name, tenant=tenant, day=day, stem=stem) for name in TABLES}
    return tuple(_file(name, key, size, profiles) for name, key in tables.items())


def _file(table: str, key: str, size: int, rows: int) -> File:
    return File(table, size, key.encode()[-16:], 100, rows, (Location(MAIN_STORE, key),))


def _dataset(tenant: TenantId, service: str, start: int, profiles: int, size: int) -> Dataset:
    types = ("process_cpu:cpu:nanoseconds:cpu:nanoseconds",)
    return Dataset(tenant, service, types, start, start + SECOND_NS, profiles, size, 0, 1)


def encode_envelope(envelope: Envelope) -> bytes:
    """As a record of the log."""
    assert not isinstance(envelope.entry, BlocksOutlined)
    entry = encode_entry(envelope.entry)
    return encode(envelope.version, envelope.lease_time, envelope.wall_time, entry)


@dataclass
class Fold:
    """A state with a log of its own, and lease time under the test's control."""

    policy: Policy = SMALL
    state: MetaState = field(default_factory=MetaState)
    log: list[Indexed] = field(default_factory=list)
    now: int = 0
    incarnation: Incarnation = INCARNATION

    def __post_init__(self) -> None:
        self.put(Genesis(self.incarnation))
        self.put(TermStarted(1, "one"))
        self.put(PolicySet(self.policy))

    def put(self, entry: Entry) -> Effects:
        return self.put_at(self.state.index + 1, entry)

    def put_at(self, index: int, entry: Entry) -> Effects:
        wall = WallTime(DAY_START_NS + self.now)
        item = Indexed(index, Envelope(self.state.version, LeaseTime(self.now), wall, entry))
        self.log.append(item)
        return apply(self.state, item)

    def live(self) -> set[BlockId]:
        return set(self.state.blocks.where)

    def metas(self, blocks: tuple[BlockId, ...]) -> tuple[BlockMeta, ...]:
        return tuple(self.state.blocks.get(block) for block in blocks)
