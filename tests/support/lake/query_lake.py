"""A small lake for query tests: known profiles in real files, an index over them, and the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from maar.block.decode.to_tables import decode_profiles
from maar.block.format import checksum
from maar.block.format.segment import segment_meta, write_segment
from maar.block.format.tables import LAYOUTS
from maar.model import keys
from maar.model.block import FORMAT_VERSION, TABLES, BlockMeta, Dataset, File, Kind, Location
from maar.model.ids import MAIN_STORE, BlockId, Incarnation, Shard, TenantId
from maar.model.labels import Labels, labels_of
from maar.model.profile import RawProfile, profile_id, profile_type
from maar.model.time import LeaseTime, TimeRange, utc_day
from maar.ports.calls import LocalPort
from maar.ports.metastore.log_time import Now
from maar.ports.reader.index import IndexView, ViewRequest
from maar.ports.stores.object_store import ObjectStore
from maar.pprof.encode import encode
from maar.pprof.gzip import compress
from maar.pprof.plain import (
    PlainFunction,
    PlainLabel,
    PlainLine,
    PlainLocation,
    PlainProfile,
    PlainSample,
)

TENANT = TenantId("acme")
VALUE_TYPES = (("samples", "count"), ("cpu", "nanoseconds"))
CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
COUNT = "process_cpu:samples:count:cpu:nanoseconds"

Stack = tuple[str, ...]  # root first


@dataclass(frozen=True)
class Known:
    """A profile and what is in it: (stack, labels of the sample, value per type)."""

    raw: RawProfile
    samples: list[tuple[Stack, dict[str, str], tuple[int, int]]]


def known_profile(
    samples: Sequence[tuple[Stack, dict[str, str], tuple[int, int]]],
    *,
    time_ns: int,
    service: str = "checkout",
    tenant: TenantId = TENANT,
    client_id: str = "",
    **labels: str,
) -> Known:
    names = sorted({name for stack, _, _ in samples for name in stack})
    row = {name: index for index, name in enumerate(names)}
    plain = PlainProfile(
        sample_types=VALUE_TYPES,
        samples=[
            PlainSample(
                locations=[row[name] for name in reversed(stack)],
                values=values,
                labels=[PlainLabel(key, text) for key, text in sorted(own.items())],
            )
            for stack, own, values in samples
        ],
        functions=[PlainFunction(name=name, file=f"{name}.py") for name in names],
        locations=[PlainLocation(lines=(PlainLine(index, 7),)) for index in range(len(names))],
        period_type=("cpu", "nanoseconds"),
        period=10_000_000,
        time_ns=time_ns,
    )
    pairs = labels_of([("service_name", service), ("__name__", "process_cpu"), *labels.items()])
    body = encode(plain)
    raw = RawProfile(
        id=profile_id(tenant=tenant, labels=pairs, time_ns=time_ns, client_id=client_id, body=body),
        tenant=tenant,
        service=service,
        labels=pairs,
        types=(COUNT, CPU),
        time_ns=time_ns,
        duration_ns=10**10,
        samples=len(samples),
        payload=compress(body),
        raw_size=len(body),
    )
    return Known(raw, list(samples))


def random_profile(random: Random, *, time_ns: int, **labels: Any) -> Known:
    samples = []
    for _ in range(random.randrange(1, 12)):
        depth = random.randrange(0, 7)
        stack = tuple(f"f{random.randrange(0, 4)}" for _ in range(depth))
        own = {"thread": random.choice("ab")} if random.random() < 0.3 else {}
        samples.append((stack, own, (random.randrange(0, 3), random.randrange(0, 1000))))
    return known_profile(samples, time_ns=time_ns, client_id=str(random.random()), **labels)


@dataclass
class Lake(LocalPort):
    """Writes parts to a store and is the index of what it wrote."""

    store: ObjectStore
    blocks: list[BlockMeta] = field(default_factory=list)
    asked: list[ViewRequest] = field(default_factory=list)
    _numbers: Any = field(default_factory=lambda: count(1))

    async def now(self) -> Now:
        return Now(Incarnation("00000000"), LeaseTime(0), len(self.asked))

    async def view(self, request: ViewRequest) -> IndexView:
        self.asked.append(request)
        return IndexView(len(self.asked), tuple(self.blocks))

    def add_segment(self, profiles: Iterable[Known]) -> BlockMeta:
        block = BlockId(f"{next(self._numbers):032x}")
        written = write_segment([known.raw for known in profiles])
        key = keys.segment(shard=Shard(1), block=block, incarnation=Incarnation("00000000"))
        self.store.create(key, written.body)
        meta = segment_meta(
            written,
            block=block,
            key=key,
            shard=Shard(1),
            store=MAIN_STORE,
            created_by="test",
            created_at_ns=0,
        )
        self.blocks.append(meta)
        return meta

    def add_quarantine(self, profiles: Sequence[RawProfile]) -> BlockMeta:
        block = BlockId(f"{next(self._numbers):032x}")
        written = write_segment(profiles, causes=["broken"] * len(profiles))
        key = keys.quarantine(tenant=profiles[0].tenant, stem=block)
        self.store.create(key, written.body)
        meta = segment_meta(
            written,
            block=block,
            key=key,
            shard=Shard(1),
            store=MAIN_STORE,
            created_by="test",
            created_at_ns=0,
            kind=Kind.QUARANTINE,
            tenant=profiles[0].tenant,
            level=1,
        )
        self.blocks.append(meta)
        return meta

    def add_block(self, profiles: Iterable[Known], *, level: int = 1) -> BlockMeta:
        """Profiles of one tenant as the five tables, written plainly."""
        raws = [known.raw for known in profiles]
        block = BlockId(f"{next(self._numbers):032x}")
        tables = decode_profiles(raws).tables
        files = tuple(self._file(block, raws[0], name, tables[name]) for name in TABLES)
        times = [raw.time_ns for raw in raws]
        meta = BlockMeta(
            version=FORMAT_VERSION,
            id=block,
            kind=Kind.BLOCK,
            level=level,
            tenant=raws[0].tenant,
            shard=Shard(1),
            store=MAIN_STORE,
            day=utc_day(times[0]),
            min_time_ns=min(times),
            max_time_ns=max(times),
            profiles=len(raws),
            samples=sum(raw.samples for raw in raws),
            size=sum(file.size for file in files),
            files=files,
            datasets=_datasets(raws),
            created_by="test",
            created_at_ns=0,
        )
        self.blocks.append(meta)
        return meta

    def _file(self, block: BlockId, raw: RawProfile, name: str, table: pa.Table) -> File:
        sink = pa.BufferOutputStream()
        pq.write_table(table.cast(LAYOUTS[name].schema), sink, store_schema=False)
        body = sink.getvalue().to_pybytes()
        key = keys.table(name=name, tenant=raw.tenant, day=utc_day(raw.time_ns), stem=block)
        self.store.create(key, body)
        return File(
            table=name,
            size=len(body),
            checksum=checksum.of_bytes(body),
            footer_size=0,
            rows=table.num_rows,
            locations=(Location(MAIN_STORE, key),),
        )


def _datasets(raws: list[RawProfile]) -> tuple[Dataset, ...]:
    return tuple(
        Dataset(
            tenant=raws[0].tenant,
            service=service,
            types=(CPU, COUNT),
            min_time_ns=min(raw.time_ns for raw in raws if raw.service == service),
            max_time_ns=max(raw.time_ns for raw in raws if raw.service == service),
            profiles=sum(raw.service == service for raw in raws),
            size=0,
            row_group_first=0,
            row_group_count=1,
        )
        for service in sorted({raw.service for raw in raws})
    )


# The truth, computed the slow way


Row = tuple[Stack, dict[str, str], int, RawProfile]


def rows(profiles: Iterable[Known], *, time: TimeRange, profile_type: str = CPU) -> list[Row]:
    """Every sample of every profile in range, each profile once: its labels and its value."""
    column = (COUNT, CPU).index(profile_type)
    found: list[Row] = []
    for each in {known.raw.id: known for known in profiles}.values():
        if time.overlaps(each.raw.time_ns, each.raw.time_ns):
            for stack, own, values in each.samples:
                labels = {**dict(each.raw.labels), **own}
                found.append((stack, labels, values[column], each.raw))
    return found


def by_stack(found: Iterable[Row]) -> Counter[Stack]:
    totals: Counter[Stack] = Counter()
    for stack, _, value, _ in found:
        totals[stack] += value
    return +totals


def type_of(sample_type: str, unit: str) -> str:
    return profile_type(
        name="process_cpu",
        sample_type=sample_type,
        sample_unit=unit,
        period_type="cpu",
        period_unit="nanoseconds",
    )


def plain_labels(labels: Labels) -> dict[str, str]:
    return dict(labels)
