"""Every block lies in two stores: queries and tasks go on from the other copy, and lose nothing.

The stores are two directories, and two servers of the S3 protocol.
"""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from prometheus_client import CollectorRegistry

from maar.adapters.stores.open import open_store
from maar.model import keys
from maar.model.block import BlockMeta, Location
from maar.model.errors import Corrupt, Damaged, MaarError, Unavailable
from maar.model.ids import MAIN_STORE, StoreName, Zone
from maar.model.trouble import Trouble
from maar.ports.reader.query import DrawFlameGraph, GetProfile, ListLabelNames, Scope
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.ports.stores.stores import StorePlace, StorePlaces, Stores
from maar.pprof.gzip import gunzip
from maar.query.decide.select import parts_of
from maar.query.read.damaged import Tried, find_bad_copies
from maar.query.read.reading import Reading
from maar.query.service import DuckEngine, QuerySettings
from maar.services.compact.run import run as compact
from support.lake.asking import ALWAYS, START, some_profiles, stacks_of
from support.lake.block_plans import Bench
from support.lake.query_lake import CPU, TENANT, Known, Lake, Stack, by_stack, rows
from support.network.cut import lines
from support.oracles.pprof_reader import canonical
from support.stores import s3_server

pytestmark = pytest.mark.component

EU = StoreName("eu")


@dataclass
class TwoStores:
    """The home store, and another one; each can be cut off."""

    places: StorePlaces
    cut: Callable[[], object]
    restore: Callable[[], object]
    cut_other: Callable[[], object]
    restore_other: Callable[[], object]
    told: list[Trouble] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.main, self.eu = (open_store(place.settings) for place in self.places.places)

    def opened(self) -> Stores:
        return Stores(self.places, open_store, told=self.told.append)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[s3_server.S3Server, s3_server.S3Server]]:
    with s3_server.apart() as one, s3_server.apart() as other:
        yield one, other


@pytest.fixture(params=["directories", "servers"])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TwoStores]:
    stack = ExitStack()
    switches: list[tuple[Callable[[], object], Callable[[], object]]]
    if request.param == "directories":
        settings = [StoreSettings(n, (tmp_path / n).as_uri()) for n in ("main", "eu")]
        switches = [
            (partial(here.rename, gone), partial(gone.rename, here))
            for here, gone in ((tmp_path / n, tmp_path / f"{n}-gone") for n in ("main", "eu"))
        ]
    else:
        opened, settings, switches = stack.enter_context(lines()), [], []
        for name, server in zip(("main", "eu"), request.getfixturevalue("servers"), strict=True):
            line, bucket = (
                opened.open(server.endpoint.removeprefix("http://")),
                server.bucket(name=name),
            )
            by_line = {"endpoint": f"http://{line.address}", "timeout_s": "2"}
            options = tuple((dict(bucket.options) | by_line).items())
            settings.append(bucket._replace(options=options))
            switches.append((line.cut, line.heal))
    places = tuple(StorePlace(each) for each in settings)
    with stack:
        yield TwoStores(StorePlaces(places, Zone("home")), *switches[0], *switches[1])


@dataclass
class Filled:
    two: TwoStores
    lake: Lake
    profiles: list[Known]
    bench: Bench

    @contextmanager
    def engine(self, **settings: Any) -> Iterator[DuckEngine]:
        engine = DuckEngine(
            QuerySettings(threads=1, **settings), self.lake, self.two.opened(), CollectorRegistry()
        )
        try:
            yield engine
        finally:
            engine.close()

    def check(self, engine: DuckEngine) -> None:
        """Everything is there, in a flame graph and one by one."""
        scope = Scope(TENANT, ALWAYS)
        graph = asyncio.run(
            engine.call(DrawFlameGraph(scope, profile_type=CPU, max_nodes=1_000_000))
        )
        assert stacks_of(graph) == self.truth()
        for known in self.profiles:
            body = asyncio.run(engine.call(GetProfile(TENANT, known.raw.id, ALWAYS)))
            assert plain(body) == plain(known.raw.payload)

    def truth(self) -> Counter[Stack]:
        return by_stack(rows(self.profiles, time=ALWAYS))


@pytest.fixture
def filled(two: TwoStores, tmp_path: Path) -> Filled:
    """Blocks at home, each with a copy in the other store under a key of its own."""
    lake, bench = Lake(two.main), Bench(two.main, tmp_path / "scratch")
    random = Random(14)
    profiles = []
    for _ in range(4):
        some = some_profiles(random, 3)
        (made,) = bench.compact([bench.segment([each.raw for each in some])]).outputs
        lake.blocks.append(copied(made, two))
        profiles += some
    return Filled(two, lake, profiles, bench)


def copied(meta: BlockMeta, two: TwoStores) -> BlockMeta:
    files = []
    for file in meta.files:
        key = f"{file.locations[0].key}-copy"
        two.eu.create(key, two.main.read(file.locations[0].key))
        locations = (*file.locations, Location(EU, key))
        files.append(msgspec.structs.replace(file, locations=locations))
    return msgspec.structs.replace(meta, files=tuple(files))


def plain(body: bytes) -> object:
    return canonical(gunzip(body, limit=1 << 30))


def damage(store: ObjectStore, key: str) -> None:
    """Flip all bits of the middle, which Parquet can no longer read."""
    body = bytearray(store.read(key))
    third = len(body) // 3
    body[third:-1] = bytes(255 - byte for byte in body[third:-1])
    store.delete(key)
    store.create(key, bytes(body))


def spoil(store: ObjectStore, key: str, column: str) -> None:
    """Other bytes, which Parquet reads without complaint."""
    table = pq.read_table(io.BytesIO(store.read(key)))
    place = table.schema.get_field_index(column)
    wrong = pc.bit_wise_xor(table[column], 1 << 40)
    sink = io.BytesIO()
    pq.write_table(table.set_column(place, table.schema.field(place), wrong), sink)
    store.delete(key)
    store.create(key, sink.getvalue())


def at_home(meta: BlockMeta) -> list[str]:
    return [at.key for file in meta.files for at in file.locations if at.store == MAIN_STORE]


def test_the_other_store_is_not_needed_while_home_is_whole(filled: Filled) -> None:
    for info in filled.two.eu.list(""):
        filled.two.eu.delete(info.key)
    with filled.engine() as engine:
        filled.check(engine)
    assert filled.two.told == []


def test_queries_go_on_from_the_other_copy_of_what_is_missing_or_damaged(filled: Filled) -> None:
    missing, damaged, *_ = filled.lake.blocks
    for key in at_home(missing):
        filled.two.main.delete(key)
    for key in at_home(damaged):
        damage(filled.two.main, key)
    with filled.engine() as engine:
        filled.check(engine)
        told = len(filled.two.told)
        filled.check(engine)
        assert len(filled.two.told) == told, "what is known to be bad is not tried again"
    assert {(each.block, each.why) for each in filled.two.told} == {
        (missing.id, "missing"),
        (damaged.id, "damaged"),
    }
    assert {each.store for each in filled.two.told} == {"main"}


@pytest.mark.parametrize(
    ("table", "column"), [("stacks", "stack_id"), ("samples", "stack_id"), ("series", "series_id")]
)
def test_nothing_that_was_read_of_a_damaged_copy_is_kept(
    filled: Filled, table: str, column: str
) -> None:
    meta, *_ = filled.lake.blocks
    spoil(filled.two.main, meta.file(table).locations[0].key, column)
    whole = Scope(TENANT, ALWAYS)
    with filled.engine() as engine:
        names = asyncio.run(engine.call(ListLabelNames(whole)))
        assert "service_name" in names
        filled.check(engine)
        assert asyncio.run(engine.call(ListLabelNames(whole))) == names
    assert {(each.block, each.why) for each in filled.two.told} == {(meta.id, "damaged")}


def test_an_object_that_was_put_right_is_read_anew(filled: Filled) -> None:
    """Of a single copy, too, as an operator does it."""
    meta = filled.lake.blocks[0]
    files = [msgspec.structs.replace(f, locations=f.locations[:1]) for f in meta.files]
    filled.lake.blocks[0] = msgspec.structs.replace(meta, files=tuple(files))
    key = meta.file("stacks").locations[0].key
    body = filled.two.main.read(key)
    spoil(filled.two.main, key, "stack_id")
    with filled.engine() as engine:
        with pytest.raises(Damaged, match=key):
            filled.check(engine)
        filled.two.main.delete(key)
        filled.two.main.create(key, body)
        filled.check(engine)


def test_a_profile_that_is_damaged_in_its_segment_comes_from_the_other_copy(
    filled: Filled,
) -> None:
    """Parquet does not see a byte that changed within a payload, and gzip does."""
    profiles = some_profiles(Random(15), 3)
    segment = copied(filled.bench.segment([each.raw for each in profiles]), filled.two)
    filled.lake.blocks.append(segment)
    filled.profiles += profiles
    key = segment.files[0].locations[0].key
    body = bytearray(filled.two.main.read(key))
    body[body.index(profiles[1].raw.payload) + len(profiles[1].raw.payload) // 2] ^= 1
    filled.two.main.delete(key)
    filled.two.main.create(key, bytes(body))
    with filled.engine() as engine:
        filled.check(engine)
    with filled.engine() as engine:
        got = asyncio.run(engine.call(GetProfile(TENANT, profiles[1].raw.id, ALWAYS)))
        assert got == profiles[1].raw.payload
    for at, store in zip(segment.files[0].locations, (filled.two.main, filled.two.eu), strict=True):
        store.delete(at.key)
        store.create(at.key, bytes(body))
    drawn = DrawFlameGraph(Scope(TENANT, ALWAYS), profile_type=CPU, max_nodes=99)
    with filled.engine() as engine:
        for question in (drawn, GetProfile(TENANT, profiles[1].raw.id, ALWAYS)):
            with pytest.raises(Damaged, match=key):
                asyncio.run(engine.call(question))
        assert asyncio.run(engine.call(GetProfile(TENANT, profiles[0].raw.id, ALWAYS)))


def test_a_copy_that_another_query_found_bad_meanwhile_is_no_reason_to_fail(filled: Filled) -> None:
    """Both had read it; once the first has looked, it is asked last, and the second sees none."""
    meta, *_ = filled.lake.blocks
    stores, error = filled.two.opened(), Corrupt("a block could not be read")
    parts = parts_of([meta], tenant=TENANT, time=ALWAYS)
    key = at_home(meta)[0]
    damage(filled.two.main, key)
    first, second = Tried(), Tried()
    for tried in (first, second):
        assert find_bad_copies(stores, parts, error, tried)
        assert list(tried.blocks) == [meta.id]
        assert not find_bad_copies(stores, parts, error, tried)


def test_an_answer_that_is_begun_anew_is_not_counted_twice(filled: Filled) -> None:
    damage(filled.two.main, at_home(filled.lake.blocks[0])[0])
    begun: list[int] = []

    def work(reading: Reading) -> int:
        reading.budget.take(600, "its result has too many rows")
        begun.append(reading.budget.taken)
        if len(begun) == 1:
            raise Corrupt("a block could not be read")
        return len(begun)

    with filled.engine(answer_bytes_max=1000) as engine:
        assert asyncio.run(engine.ask(Scope(TENANT, ALWAYS), work)) == 2
    assert begun == [600, 600]


def test_queries_go_on_while_home_is_cut_off_and_come_back_to_it(filled: Filled) -> None:
    with filled.engine() as engine:
        filled.check(engine)
        filled.two.cut()
        filled.check(engine)
        assert {each.why for each in filled.two.told} == {"away"}
        filled.two.restore()
        filled.check(engine)
    with filled.engine() as engine:  # a process that starts meanwhile
        filled.two.cut()
        filled.check(engine)


def test_a_store_that_is_back_is_read_though_all_of_them_were_away_a_moment_ago(
    filled: Filled,
) -> None:
    with filled.engine() as engine:
        filled.two.cut()
        filled.check(engine)
        filled.two.cut_other()
        with pytest.raises(Unavailable):
            filled.check(engine)
        filled.two.restore_other()
        filled.check(engine)


def test_a_query_fails_rather_than_skip_a_block_of_which_no_copy_is_whole(filled: Filled) -> None:
    one, *_ = filled.lake.blocks
    for file in one.files:
        for at, store in zip(file.locations, (filled.two.main, filled.two.eu), strict=True):
            store.delete(at.key)
    with filled.engine() as engine:
        with pytest.raises(Damaged, match="is missing") as failed:
            filled.check(engine)
        assert [each[0] for each in failed.value.blocks] == [one.id]
        filled.two.cut()
        with pytest.raises(MaarError):
            filled.check(engine)


def test_what_only_a_store_that_is_away_has_can_be_asked_for_later(filled: Filled) -> None:
    for file in filled.lake.blocks[0].files:
        filled.two.eu.delete(file.locations[1].key)
    filled.two.cut()
    with filled.engine() as engine:
        with pytest.raises(Unavailable):
            filled.check(engine)
        filled.two.restore()
        filled.check(engine)


def test_tasks_read_the_other_copy_and_write_to_the_store_of_their_plan(
    filled: Filled, tmp_path: Path
) -> None:
    missing, damaged, *_ = filled.lake.blocks
    filled.two.main.delete(at_home(missing)[2])
    damage(filled.two.main, at_home(damaged)[0])
    plan = filled.bench.plan(filled.lake.blocks)
    filled.two.main.create(keys.marker(plan.token.incarnation), b"main")
    result = compact(
        plan, store=filled.two.opened(), attempt="a", scratch=tmp_path / "work", wall_ns=START
    )
    assert result.account.kept == len(filled.profiles)
    assert [(each.block, each.why) for each in filled.two.told] == [
        (missing.id, "missing"),
        (damaged.id, "damaged"),
    ]
    assert {at.store for meta in result.outputs for f in meta.files for at in f.locations} == {
        MAIN_STORE
    }
    filled.lake.blocks[:] = result.outputs
    with filled.engine() as engine:
        filled.check(engine)
