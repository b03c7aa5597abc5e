"""What one question reads, counted in objects and bytes: it follows the rows that are needed."""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client import CollectorRegistry

from maar.model.block import File
from maar.model.time import TimeRange
from maar.ports.reader.query import Matcher, RankFunctions, Scope
from maar.query.read.database import FOOTER_FACTOR
from maar.query.read.level0 import COLUMNS
from maar.query.service import DuckEngine, QuerySettings
from support.lake.block_plans import NOON_NS, Bench
from support.lake.query_lake import CPU, TENANT, Known, Lake, known_profile
from support.stores.memory_store import MemoryStore

pytestmark = pytest.mark.component

SECOND = 10**9
HOUR = TimeRange(NOON_NS, NOON_NS + 3600 * SECOND)
BLOCKS, SERVICES = 2, 100
PROFILES, STACKS, DEPTH = 2, 19, 12  # of each service in each block and segment
SMALL = "a small one"
TAIL = 64 << 10  # read at the end of an object, before the length of its footer is known
AHEAD = 1_000_000  # DuckDB's least read of a column that no condition is about


class Counted(io.BytesIO):
    """An object that tells how many of its bytes were read."""

    def __init__(self, body: bytes, tell: Any) -> None:
        super().__init__(body)
        self._tell = tell

    def read(self, size: int | None = -1) -> bytes:
        body = super().read(size)
        self._tell(len(body))
        return body


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.bytes_read: Counter[str] = Counter()

    def open(self, key: str) -> io.BytesIO:
        def tell(size: int) -> None:
            self.bytes_read[key] += size

        return Counted(self.read(key), tell)


def profiles_of(service: str, *, time_ns: int) -> list[Known]:
    random = Random(service)  # names that do not compress: objects are large then
    names = [f"{random.getrandbits(512):x}" for _ in range(STACKS * DEPTH)]
    stacks = [tuple(names[first::STACKS]) for first in range(STACKS)]
    return [
        known_profile(
            [(stack, {}, (1, 1)) for stack in stacks], time_ns=time_ns + number, service=service
        )
        for number in range(PROFILES)
    ]


def filled(store: CountingStore, directory: Path) -> Lake:
    """Blocks of many services, and segments of level 0 of the same ones."""
    lake, bench = Lake(store), Bench(store, directory)
    names = [SMALL, *(f"service-{n}" for n in range(1, SERVICES))]
    for place in range(BLOCKS):
        first, second = [
            [each for name in names for each in profiles_of(name, time_ns=NOON_NS + at * SECOND)]
            for at in (2 * place, 2 * place + 1)
        ]
        lake.blocks += bench.compact([bench.segment([each.raw for each in first])]).outputs
        lake.add_segment(second)
    return lake


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return filled(CountingStore(), tmp_path_factory.mktemp("lake"))


@pytest.fixture
def store(lake: Lake) -> CountingStore:
    """Nothing of it was read yet."""
    assert isinstance(lake.store, CountingStore)
    lake.store.bytes_read.clear()
    return lake.store


@contextmanager
def opened(lake: Lake, **settings: Any) -> Iterator[DuckEngine]:
    engine = DuckEngine(QuerySettings(threads=1, **settings), lake, lake.store, CollectorRegistry())
    try:
        yield engine
    finally:
        engine.close()


def top_of_small(engine: DuckEngine, time: TimeRange = HOUR) -> int:
    scope = Scope(TENANT, time, (Matcher("service_name", "=", SMALL),))
    return asyncio.run(engine.call(RankFunctions(scope, profile_type=CPU, limit=100))).total


def bytes_of_small(store: CountingStore, file: File) -> int:
    """What the row groups of the service hold."""
    metadata = pq.read_metadata(pa.BufferReader(store.read(file.locations[0].key)))
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    service = metadata.schema.to_arrow_schema().get_field_index("service")
    return sum(
        group.column(column).total_compressed_size
        for group in groups
        if group.column(service).statistics.min == SMALL
        for column in range(group.num_columns)
    )


def test_a_small_service_costs_the_footers_of_two_tables_and_its_own_rows(
    store: CountingStore, lake: Lake
) -> None:
    with opened(lake) as engine:
        assert top_of_small(engine) == 2 * BLOCKS * PROFILES * STACKS
    for meta in lake.blocks:
        for file in meta.files:
            read = store.bytes_read[file.locations[0].key]
            if file.table in ("profiles", "locations", "series"):
                assert read == 0, f"nothing of {file.table} is needed"
                continue
            most = file.footer_size + TAIL + bytes_of_small(store, file)
            if file.table == "stacks":
                most += AHEAD
                assert most < file.size
            assert 0 < read <= most


@pytest.mark.parametrize("room", [0.0, 1.2, 2.0])
def test_footers_are_kept_as_long_as_there_is_room(
    store: CountingStore, lake: Lake, room: float
) -> None:
    """For none, for those of one block, or for all; a full cache makes room when nobody asks."""
    merged = Lake(store)
    merged.blocks = [meta for meta in lake.blocks if meta.level]
    one, other = [TimeRange(meta.min_time_ns, meta.max_time_ns + 1000) for meta in merged.blocks]
    kept = sum(file.footer_size for file in merged.blocks[0].files if file.table in COLUMNS)

    def footers_read(engine: DuckEngine, time: TimeRange) -> bool:
        store.bytes_read.clear()
        assert top_of_small(engine, time) == PROFILES * STACKS
        samples = [meta.file("samples") for meta in merged.blocks]
        return any(store.bytes_read[f.locations[0].key] >= f.footer_size for f in samples)

    with opened(merged, footer_cache_bytes_max=int(room * kept * FOOTER_FACTOR)) as engine:
        seen = [footers_read(engine, time) for time in (one, one, other, other, one)]
    assert seen == [True, room < 1, True, room < 1, room < 2]
