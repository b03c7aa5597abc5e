"""Segments that are joined keep every row as it was, and lie as queries and merges expect."""

from __future__ import annotations

import io
from random import Random

import msgspec
import pyarrow.parquet as pq
import pytest

from maar.block.format.segment import ROW_GROUP_BYTES, segment_meta, write_segment
from maar.block.merge.join import join
from maar.block.read.reread import reread
from maar.model.block import BlockMeta
from maar.model.errors import Corrupt
from maar.model.ids import MAIN_STORE, Shard, TenantId, Zone, segment_id
from maar.model.profile import RawProfile
from support.segment.writer_in_memory import raw_profile

EU = Zone("eu-west-1a")
Row = dict[str, object]


def stored(
    number: int, profiles: list[RawProfile], row_group_bytes: int = ROW_GROUP_BYTES
) -> tuple[BlockMeta, bytes]:
    written = write_segment(profiles, zone=EU, row_group_bytes=row_group_bytes)
    meta = segment_meta(
        written,
        block=segment_id(lease_time_ns=number, entropy=number),
        key=f"key-{number}",
        shard=Shard(1),
        store=MAIN_STORE,
        created_by="test",
        created_at_ns=0,
    )
    return meta, written.body


def random_segments(random: Random, count: int) -> list[tuple[BlockMeta, bytes]]:
    numbers = iter(range(10_000))
    return [
        stored(
            place,
            [
                raw_profile(
                    next(numbers),
                    tenant=random.choice("abc"),
                    service=random.choice(("x", "y", "z")),
                    size=random.randrange(1, 80),
                )
                for _ in range(random.randrange(1, 12))
            ],
            row_group_bytes=100,
        )
        for place in range(count)
    ]


def rows_of(body: bytes) -> list[Row]:
    """By Parquet alone, in the order of the file."""
    found: list[Row] = pq.read_table(io.BytesIO(body)).to_pylist()
    return found


def names(rows: list[Row]) -> list[tuple[object, object]]:
    return [(row["tenant"], row["service"]) for row in rows]


@pytest.mark.parametrize("seed", range(20))
def test_all_rows_are_kept_by_tenant_and_service_and_else_in_their_order(seed: int) -> None:
    segments = random_segments(Random(seed), 1 + seed)
    joined = join(segments, zone=EU, row_group_bytes=150)
    came = [row for _, body in segments for row in rows_of(body)]
    assert rows_of(joined.body) == sorted(came, key=lambda row: (row["tenant"], row["service"]))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_told_of_the_joined_segment_is_what_it_holds(seed: int) -> None:
    """Read back from its bytes, as after a lost log."""
    segments = random_segments(Random(seed), 1 + seed)
    joined = join(segments, zone=EU, row_group_bytes=150)
    assert reread(joined.body) == joined
    assert joined.samples == sum(meta.samples for meta, _ in segments)


def test_the_file_is_laid_out_as_a_writer_would() -> None:
    """A dataset is one run of row groups, and the columns are the same to the last detail."""
    segments = random_segments(Random(7), 9)
    parquet = pq.ParquetFile(io.BytesIO(join(segments, zone=EU).body))
    by_writer = pq.ParquetFile(io.BytesIO(segments[0][1]))
    assert parquet.schema.equals(by_writer.schema)
    runs = []
    for group in range(parquet.num_row_groups):
        (name,) = set(names(parquet.read_row_group(group).to_pylist()))
        runs.append(name)
    assert runs == sorted(set(runs)), "one row group each: they are small"
    column = parquet.metadata.row_group(0).column(0)
    assert (column.compression, column.has_dictionary_page) == ("UNCOMPRESSED", False)
    assert column.statistics.has_min_max


def test_row_groups_stay_within_their_bound() -> None:
    segments = [stored(n, [raw_profile(n, tenant="a", service="x", size=60)]) for n in range(9)]
    payload = len(raw_profile(size=60).payload)
    joined = join(segments, zone=EU, row_group_bytes=2 * payload + 1)
    parquet = pq.ParquetFile(io.BytesIO(joined.body))
    lengths = [parquet.metadata.row_group(n).num_rows for n in range(parquet.num_row_groups)]
    assert lengths == [2, 2, 2, 2, 1]
    (dataset,) = joined.datasets
    assert (dataset.row_group_first, dataset.row_group_count) == (0, 5)


def test_a_profile_that_came_twice_stays_twice() -> None:
    twice = raw_profile(1, tenant="a", service="x")
    joined = join([stored(1, [twice]), stored(2, [twice])], zone=EU)
    assert [row["profile_id"] for row in rows_of(joined.body)] == [twice.id, twice.id]


def test_the_newest_time_that_a_client_gave_is_kept() -> None:
    dated = [raw_profile(n, tenant="a", service="x") for n in (1, 2)]
    own = [msgspec.structs.replace(each, dated=True) for each in dated]
    expected = max(each.time_ns for each in own)
    assert join([stored(2, own[1:]), stored(1, own[:1])], zone=EU).dated_ns == expected
    server = [msgspec.structs.replace(each, dated=False) for each in dated]
    assert join([stored(1, server)], zone=EU).dated_ns == 0


def test_bytes_that_are_not_what_the_index_says_are_named() -> None:
    meta, body = stored(1, [raw_profile(n, tenant="a", service="x") for n in (1, 2)])
    other = stored(2, [raw_profile(3, tenant="a", service="x")])[1]
    with pytest.raises(Corrupt, match=f"Block {meta.id}"):
        join([(meta, other)], zone=EU)
    with pytest.raises(Corrupt, match=f"Block {meta.id}"):
        join([(meta, body[:-1])], zone=EU)
    less = msgspec.structs.replace(meta, datasets=(), profiles=0)
    with pytest.raises(Corrupt, match="it has 2 profiles, and the index says 0"):
        join([(less, body)], zone=EU)


def test_labels_and_types_of_any_length_are_kept() -> None:
    """Lists and maps are where columns of other files are most easily mixed up."""
    plain = raw_profile(1, tenant="a", service="x")
    many = msgspec.structs.replace(
        raw_profile(2, tenant="a", service="x"),
        labels=tuple((f"label{n}", "é" * n) for n in range(9)),
        types=tuple(f"type{n}" for n in range(7)),
    )
    none = msgspec.structs.replace(raw_profile(3, tenant="a", service="x"), labels=(), types=())
    segments = [stored(1, [plain]), stored(2, [many]), stored(3, [none])]
    rows = rows_of(join(segments, zone=EU).body)
    assert [row["labels"] for row in rows] == [list(each.labels) for each in (plain, many, none)]
    assert [row["types"] for row in rows] == [list(each.types) for each in (plain, many, none)]


def test_a_tenant_is_not_mixed_up_with_another_of_the_same_service() -> None:
    segments = [
        stored(1, [raw_profile(1, tenant=TenantId("b"), service="x")]),
        stored(2, [raw_profile(2, tenant=TenantId("a"), service="x")]),
    ]
    joined = join(segments, zone=EU)
    assert [each.tenant for each in joined.datasets] == ["a", "b"]
    assert names(rows_of(joined.body)) == [("a", "x"), ("b", "x")]
