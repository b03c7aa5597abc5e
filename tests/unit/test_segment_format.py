"""The segment: sorted, a run of row groups per dataset, told from anything else by its reader."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from maar.block.format import segment
from maar.block.format.segment import read_datasets, write_segment
from maar.block.read.fetch import fetch
from maar.model.block import SEGMENT_TABLE, BlockMeta
from maar.model.errors import Corrupt
from maar.model.ids import TenantId
from maar.model.profile import RawProfile
from support.lake.block_plans import NOON_NS, Bench, raw_profile
from support.lake.segments import read_causes, read_segment
from support.load.pprof_scramble import random_profile
from support.stores.memory_store import MemoryStore


def some(count: int = 12) -> list[RawProfile]:
    random = Random(5)
    return [
        raw_profile(
            random_profile(random, size=2),
            service=f"service-{place % 3}",
            tenant=TenantId(f"tenant-{place % 2}"),
            time_ns=NOON_NS - place,
            client_id=str(place),
            labels=(("zone", "ü"),),
        )
        for place in range(count)
    ]


def test_what_is_written_is_read_back_in_order() -> None:
    profiles = some()
    written = write_segment(profiles)
    back = read_segment(pa.BufferReader(written.body))
    assert back == sorted(profiles, key=lambda p: (p.tenant, p.service, p.time_ns, p.id))
    assert written.profiles == len(profiles)
    assert written.samples == sum(profile.samples for profile in profiles)
    times = [profile.time_ns for profile in profiles]
    assert (written.min_time_ns, written.max_time_ns) == (min(times), max(times))


def test_a_segment_knows_the_newest_time_that_a_client_gave() -> None:
    first, second = some(2)
    assert first.time_ns > second.time_ns
    here = msgspec.structs.replace(first, dated=False)
    assert write_segment([first, second]).dated_ns == first.time_ns
    assert write_segment([here, second]).dated_ns == second.time_ns
    assert write_segment([here]).dated_ns == 0


def test_a_dataset_is_a_run_of_row_groups() -> None:
    profiles = some()
    written = write_segment(profiles, row_group_bytes=1)  # each in a row group of its own
    parquet = pq.ParquetFile(pa.BufferReader(written.body))
    assert parquet.num_row_groups == len(profiles)
    for dataset in written.datasets:
        groups = range(dataset.row_group_first, dataset.row_group_first + dataset.row_group_count)
        held = list(segment.read_groups(parquet, groups))
        assert {(profile.tenant, profile.service) for profile in held} == {
            (dataset.tenant, dataset.service)
        }
        assert len(held) == dataset.profiles == 2
        assert dataset.types == tuple(sorted({kind for each in held for kind in each.types}))


def test_a_reader_gets_one_tenant_or_one_service_alone() -> None:
    written = write_segment(some())
    body = pa.BufferReader(written.body)
    tenants = [dataset for dataset in written.datasets if dataset.tenant == "tenant-1"]
    assert {profile.tenant for profile in read_datasets(body, tenants)} == {"tenant-1"}
    services = [dataset for dataset in tenants if dataset.service == "service-2"]
    found = {(profile.tenant, profile.service) for profile in read_datasets(body, services)}
    assert found == {("tenant-1", "service-2")}
    assert list(read_datasets(body, [])) == []


def test_the_footer_is_as_long_as_the_index_says() -> None:
    written = write_segment(some(3))
    footer = written.body[-written.footer_size :]
    assert footer.endswith(b"PAR1")
    assert pq.read_metadata(pa.BufferReader(b"PAR1" + footer)).num_rows == 3


def test_a_quarantine_is_no_witness_of_a_clock() -> None:
    """Whether client or server dated a profile is not known any more when it gets there."""
    profiles = some(1)
    assert write_segment(profiles).dated_ns == profiles[0].time_ns
    assert write_segment(profiles, causes=["broken"]).dated_ns == 0


def test_a_quarantine_keeps_the_cause_of_each_profile() -> None:
    profiles = some(3)
    written = write_segment(profiles, causes=["one", "two", "three"])
    held = {profile.id: cause for profile, cause in read_causes(pa.BufferReader(written.body))}
    assert held == dict(zip((p.id for p in profiles), ("one", "two", "three"), strict=True))
    assert len(read_segment(pa.BufferReader(written.body))) == 3


def test_a_segment_of_nothing_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="at least one"):
        write_segment([])


def test_other_bytes_and_other_versions_are_corrupt() -> None:
    with pytest.raises(Corrupt, match="cannot be opened as Parquet"):
        read_segment(pa.BufferReader(b"not a segment"))
    other = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1]}), other)
    with pytest.raises(Corrupt, match="newer maar"):
        read_segment(pa.BufferReader(other.getvalue()))


def test_a_changed_bit_is_found_by_the_checksum(tmp_path: Path) -> None:
    store = MemoryStore()
    meta = Bench(store, tmp_path).segment(some(2))
    file = meta.file(SEGMENT_TABLE)
    key = file.locations[0].key
    assert len(read_segment(fetch(store, meta, file, tmp_path))) == 2
    body = bytearray(store.read(key))
    body[len(body) // 2] ^= 1
    store.delete(key)
    store.create(key, bytes(body))
    with pytest.raises(Corrupt, match=meta.id):
        fetch(store, meta, file, tmp_path)
    store.delete(key)
    with pytest.raises(Corrupt, match="missing"):
        fetch(store, meta, file, tmp_path)


def test_the_index_entry_survives_its_encoding(tmp_path: Path) -> None:
    meta = Bench(MemoryStore(), tmp_path).segment(some(2))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(meta), type=BlockMeta) == meta
