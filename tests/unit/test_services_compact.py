"""Compaction keeps its account, its keys and its scratch in order, and names what is broken."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from random import Random

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from xxhash import xxh3_128_digest

from maar.block.format.segment import read_datasets
from maar.model import keys
from maar.model.block import SEGMENT_TABLE, TABLES, BlockMeta, Kind
from maar.model.errors import AlreadyExists, Corrupt, StoreFull
from maar.model.ids import MAIN_STORE, TenantId, block_time_ns
from maar.model.plan import Account, PlanResult
from maar.model.predicate import EVER_NS, Mask
from maar.model.profile import RawProfile
from maar.model.stores import keys_at
from maar.model.time import DAY_NS, utc_day
from maar.pprof.gzip import gunzip
from maar.pprof.plain import PlainLabel, PlainProfile, PlainSample
from maar.services.compact.rules import COMPACT
from maar.services.compact.run import CompactSizes
from maar.services.compact.run import run as compact
from support.lake.block_plans import NOON_NS, TENANT, WALL_NS, Bench, raw_profile
from support.lake.segments import read_causes
from support.load.pprof_scramble import random_profile
from support.oracles.pprof_reader import canonical
from support.stores.memory_store import MemoryStore


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(MemoryStore(), tmp_path)


def some(count: int, seed: int = 1, **more: object) -> list[RawProfile]:
    random = Random(seed)
    return [
        raw_profile(random_profile(random, size=3), client_id=f"{seed}/{place}", **more)  # type: ignore[arg-type]
        for place in range(count)
    ]


def broken(profile: RawProfile) -> RawProfile:
    return msgspec.structs.replace(profile, payload=b"\x0a\xff")


def test_level_0_is_split_by_tenant_and_day(bench: Bench) -> None:
    profiles = [
        *some(3, 1),
        *some(2, 2, time_ns=NOON_NS + DAY_NS),
        *some(4, 3, tenant=TenantId("other")),
    ]
    result = bench.compact([bench.segment(profiles)])
    found = [(block.tenant, block.day, block.profiles) for block in result.outputs]
    day = utc_day(NOON_NS)
    assert found == [(TENANT, day, 3), (TENANT, day + 1, 2), ("other", day, 4)]
    assert result.account == Account(9, 0, 0)
    assert {block.level for block in result.outputs} == {1}


def test_an_output_is_as_old_as_its_oldest_input_and_lists_exactly_what_it_wrote(
    bench: Bench,
) -> None:
    segments = [bench.segment(some(2, seed)) for seed in (1, 2)]
    plan = bench.plan(segments)
    store = bench.store
    result = compact(plan, store=store, attempt="a7", scratch=bench.scratch, wall_ns=WALL_NS)
    (block,) = result.outputs
    assert block_time_ns(block.id) == block_time_ns(segments[0].id)
    written = [file.locations[0].key for file in block.files]
    stem = keys.stem(block=block.id, plan=plan.id, token=plan.token, attempt="a7")
    manifest = keys.manifest(tenant=TENANT, day=block.day, stem=stem)
    assert all(stem in key for key in written)
    intent = store.read(keys.intent(plan=plan.id, token=plan.token, attempt="a7", ordinal=0))
    assert intent.decode().split("\n") == [*written, manifest]
    assert msgspec.msgpack.decode(store.read(manifest), type=BlockMeta) == block
    assert [file.table for file in block.files] == list(TABLES)
    assert block.size == sum(store.size(key) for key in written)
    lake = {item.key for item in store.list("lake/")}
    assert lake == {*written, manifest}


def test_the_same_attempt_twice_meets_its_own_keys(bench: Bench) -> None:
    plan = bench.plan([bench.segment(some(1))])
    compact(plan, store=bench.store, attempt="a", scratch=bench.scratch, wall_ns=0)
    with pytest.raises(AlreadyExists):
        compact(plan, store=bench.store, attempt="a", scratch=bench.scratch, wall_ns=0)
    again = compact(plan, store=bench.store, attempt="b", scratch=bench.scratch, wall_ns=0)
    assert again.account.kept == 1


def test_a_segment_that_is_deleted_takes_no_copy_along_that_came_after(bench: Bench) -> None:
    """The first two were pushed, deleted, and one of them was pushed again; twice."""
    first, second, other = some(2, 1, time_ns=NOON_NS) + some(1, 2, time_ns=NOON_NS + DAY_NS)
    segments = [bench.segment(each) for each in ([first, second], [first, other], [first, other])]
    until = NOON_NS + DAY_NS
    hidden = Mask(tenant=TENANT, service="", from_ns=0, until_ns=until)
    others = Mask(tenant=TenantId("other"), service="", from_ns=0, until_ns=EVER_NS)
    plan = msgspec.structs.replace(bench.plan(segments), masks=((hidden,), (others,), ()))
    result = compact(plan, store=bench.store, attempt="a", scratch=bench.scratch, wall_ns=WALL_NS)
    assert result.account == Account(kept=2, duplicates=2, quarantined=0, deleted=2)
    blocks = list(result.outputs)
    assert all(bench.get(blocks, each.id) for each in (first, other))
    assert bench.get(blocks, second.id) == []


def test_what_cannot_be_decoded_goes_to_quarantine_and_is_still_readable(bench: Bench) -> None:
    good = some(3)
    bad = [broken(profile) for profile in some(2, 9)]
    result = bench.compact([bench.segment([*good, *bad])])
    assert result.account == Account(3, 0, 2)
    held = next(block for block in result.outputs if block.kind is Kind.QUARANTINE)
    assert (held.tenant, held.profiles) == (TENANT, 2)
    body = bench.store.read(held.file(SEGMENT_TABLE).locations[0].key)
    for profile, cause in read_causes(pa.BufferReader(body)):
        assert profile in bad
        assert cause
    assert bench.get([held], bad[0].id) == [bad[0].payload]


def test_a_segment_of_nothing_good_makes_a_quarantine_alone(bench: Bench) -> None:
    result = bench.compact([bench.segment([broken(profile) for profile in some(2)])])
    assert [block.kind for block in result.outputs] == [Kind.QUARANTINE]
    assert result.account == Account(0, 0, 2)


def test_duplicates_are_counted_within_and_across_inputs(bench: Bench) -> None:
    profiles = some(4)
    ones = [
        bench.compact([bench.segment(part), bench.segment(part[:1])])
        for part in (profiles[:3], profiles[1:])
    ]
    assert [result.account for result in ones] == [Account(3, 1, 0), Account(3, 1, 0)]
    merged = bench.compact([block for result in ones for block in result.outputs])
    assert merged.account == Account(4, 2, 0)


def test_more_runs_than_are_merged_at_once_may_all_be_duplicates(bench: Bench) -> None:
    ones, others = (
        [bench.compact([bench.segment([profile])]).outputs[0] for profile in some(10)]
        for _ in range(2)
    )
    assert bench.compact([*ones, *others]).account == Account(10, 10, 0)


def test_a_profile_that_swells_beyond_all_bounds_fails_no_neighbour(bench: Bench) -> None:
    labels = (PlainLabel("k", "v" * 100_000),)  # one string, said ten thousand times
    samples = [PlainSample((), (1,), labels) for _ in range(10_000)]
    bomb = raw_profile(PlainProfile(sample_types=[("cpu", "ns")], samples=samples))
    assert len(bomb.payload) < 10_000
    result = bench.compact([bench.segment([bomb, *some(2, tenant=TenantId("neighbour"))])])
    assert result.account == Account(2, 0, 1)
    held = next(block for block in result.outputs if block.kind is Kind.QUARANTINE)
    assert bench.get([held], bomb.id) == [bomb.payload]


def test_a_segment_of_another_format_is_named(bench: Bench) -> None:
    segment = bench.segment(some(1))
    (key,) = keys_at(segment, MAIN_STORE)
    body = bench.store.read(key)
    assert body.count(b"segment/1") == 1
    bench.store.delete(key)
    other = body.replace(b"segment/1", b"segment/2")
    bench.store.create(key, other)
    file = msgspec.structs.replace(segment.files[0], checksum=xxh3_128_digest(other))
    segment = msgspec.structs.replace(segment, files=(file,))
    with pytest.raises(Corrupt, match=f"{segment.id}.*segment/2"):
        bench.compact([segment])


def test_a_small_budget_spills_and_gives_the_same(bench: Bench) -> None:
    segments = [
        bench.segment(
            [
                *some(4, seed, service=f"service-{seed % 2}"),
                *some(1, seed, time_ns=NOON_NS + DAY_NS),
                *some(2, seed % 3, tenant=TenantId("other")),  # those of 0 and 1 come twice
                broken(some(1, 100 + seed)[0]),
            ]
        )
        for seed in range(5)
    ]
    tight_sizes = CompactSizes(gathered_bytes=1, fan_in=3)
    plenty, tight = bench.compact(segments), bench.compact(segments, sizes=tight_sizes)
    assert plenty.account == tight.account == Account(31, 4, 5)
    assert tables_of(bench, plenty) == tables_of(bench, tight)
    split = bench.compact(segments, target=1, sizes=tight_sizes)
    assert len(split.outputs) > len(plenty.outputs)
    # Where outputs are cut follows their size, which is estimated.
    assert rows_of(bench, split) == rows_of(bench, bench.compact(segments, target=1))
    pushed = [some(4, seed, service=f"service-{seed % 2}") for seed in range(5)]
    for profile in (profile for some_of_them in pushed for profile in some_of_them):
        (body,) = bench.get(list(tight.outputs), profile.id)
        pushed_body = gunzip(profile.payload, limit=1 << 30)
        assert canonical(gunzip(body, limit=1 << 30)) == canonical(pushed_body)


def tables_of(bench: Bench, result: PlanResult) -> list[tuple[str, int, str, pa.Table]]:
    """Whose each table is, and all of its rows in their order."""
    return [
        (block.tenant, block.day, file.table, pq.read_table(pa.BufferReader(body)))
        for block in result.outputs
        for file in block.files
        for body in [bench.store.read(file.locations[0].key)]
    ]


def rows_of(bench: Bench, result: PlanResult) -> set[str]:
    return {repr(row) for *_, table in tables_of(bench, result) for row in table.to_pylist()}


def test_memory_stays_at_the_bound_however_much_is_spilled(bench: Bench) -> None:
    """Without a collection of garbage, which nobody can rely on to come in time."""

    def peak(segments: list[BlockMeta]) -> int:
        gc.collect()
        tracemalloc.start()
        gc.disable()
        try:
            bench.compact(segments, sizes=CompactSizes(gathered_bytes=1, fan_in=3))
            return tracemalloc.get_traced_memory()[1]
        finally:
            gc.enable()
            tracemalloc.stop()

    segments = [bench.segment(some(1, seed)) for seed in range(32)]
    peak(segments[:2])  # what is made once
    assert peak(segments) < 1.2 * peak(segments[:4])


def test_what_was_read_of_a_segment_is_not_kept(bench: Bench) -> None:
    profile = PlainProfile(sample_types=[("cpu", "ns")], doc_url=Random(1).randbytes(500_000).hex())
    copy = raw_profile(profile)
    segments = [bench.segment([copy]) for _ in range(8)]
    before, held = pa.total_allocated_bytes(), []
    plan = bench.plan(segments)
    result = compact(
        plan,
        store=bench.store,
        attempt="a1",
        scratch=bench.scratch,
        wall_ns=WALL_NS,
        guard=lambda: held.append(pa.total_allocated_bytes() - before),
    )
    assert result.account == Account(1, 7, 0)
    assert max(held) < sum(segment.size for segment in segments) / 2


def test_a_service_with_a_very_long_name_is_found_again(bench: Bench) -> None:
    name = "\N{LEAF FLUTTERING IN WIND}" * 2_048  # too long for Parquet's statistics
    profiles = [*some(2, 1, service=name), *some(2, 2)]
    segment = bench.segment(profiles)
    body = pa.BufferReader(bench.store.read(segment.file(SEGMENT_TABLE).locations[0].key))
    datasets = [dataset for dataset in segment.datasets if dataset.service == name]
    assert len(list(read_datasets(body, datasets))) == 2
    outputs = list(bench.compact([segment], target=1).outputs)
    outputs = list(bench.compact(outputs, target=1).outputs)
    assert sum(block.profiles for block in outputs) == 4
    assert all(len(bench.get(outputs, profile.id)) == 1 for profile in profiles)


def test_days_are_merged_apart(bench: Bench) -> None:
    first = bench.compact([bench.segment([*some(2, 1), *some(2, 2, time_ns=NOON_NS + DAY_NS)])])
    second = bench.compact([bench.segment(some(3, 3))])
    merged = bench.compact([*first.outputs, *second.outputs])
    assert [(block.day - utc_day(NOON_NS), block.profiles) for block in merged.outputs] == [
        (0, 5),
        (1, 2),
    ]
    assert {block.level for block in merged.outputs} == {2}


@pytest.mark.parametrize("table", TABLES)
def test_a_broken_input_is_named(bench: Bench, table: str) -> None:
    ones = [bench.compact([bench.segment(some(2, seed))]).outputs[0] for seed in (1, 2)]
    key = ones[1].file(table).locations[0].key
    body = bytearray(bench.store.read(key))
    body[len(body) // 2] ^= 0x40
    bench.store.delete(key)
    bench.store.create(key, bytes(body))
    with pytest.raises(Corrupt, match=ones[1].id):
        bench.compact(ones)
    bench.store.delete(key)
    with pytest.raises(Corrupt, match=f"{ones[1].id}.*missing"):
        bench.compact(ones)
    assert list(bench.scratch.iterdir()) == []


def test_an_index_that_counts_wrongly_is_found(bench: Bench) -> None:
    segment = bench.segment(some(2))
    wrong = msgspec.structs.replace(segment, profiles=3)
    with pytest.raises(Corrupt, match=segment.id):
        bench.compact([wrong])
    (block,) = bench.compact([segment]).outputs
    (other,) = bench.compact([bench.segment(some(2, 2))]).outputs
    with pytest.raises(Corrupt, match=block.id):
        bench.compact([msgspec.structs.replace(block, profiles=1), other])


def test_a_lone_block_is_adopted_and_nothing_is_written(bench: Bench) -> None:
    (block,) = bench.compact([bench.segment(some(3))]).outputs
    before = list(bench.store.list(""))
    result = bench.compact([block])
    assert result == PlanResult(COMPACT, (), Account(3, 0, 0), adopted=True)
    assert list(bench.store.list("")) == before


class FullStore(MemoryStore):
    """Has room for three objects of the lake."""

    def create(self, key: str, body: bytes) -> None:
        if key.startswith("lake/") and len(list(self.list("lake/"))) >= 3:
            raise StoreFull("the store has no room left")
        super().create(key, body)


def test_a_full_store_fails_the_attempt_and_leaves_no_scratch(tmp_path: Path) -> None:
    bench = Bench(FullStore(), tmp_path)
    with pytest.raises(StoreFull):
        bench.compact([bench.segment(some(2))])
    assert list(tmp_path.iterdir()) == []
