"""Today's code reads the first version of segments, quarantines and blocks.

The files in golden/ were written once and are never regenerated: a change that cannot read them
needs a new version and a reader for this one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from maar.block.format import checksum
from maar.block.read.restore import profile_from_block
from maar.model.block import SEGMENT_TABLE, BlockMeta
from maar.model.ids import ProfileId
from maar.pprof.gzip import gunzip
from support.lake.block_plans import Bench
from support.lake.segments import read_causes, read_segment, segment_of
from support.oracles.pprof_reader import canonical
from support.stores.memory_store import MemoryStore

GOLDEN = Path(__file__).parent / "golden"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected-v1.json").read_text())


def meta_of(path: Path) -> BlockMeta:
    return msgspec.msgpack.decode(path.read_bytes(), type=BlockMeta)


@pytest.fixture
def store() -> MemoryStore:
    """The golden objects under the keys that their index entries name."""
    store = MemoryStore()
    for name in ("segment-v1", "quarantine-v1"):
        meta = meta_of(GOLDEN / f"{name}.msgpack")
        key = meta.file(SEGMENT_TABLE).locations[0].key
        store.create(key, (GOLDEN / f"{name}.parquet").read_bytes())
    for file in meta_of(GOLDEN / "block-v1" / "manifest.msgpack").files:
        path = GOLDEN / "block-v1" / f"{file.table}.parquet"
        store.create(file.locations[0].key, path.read_bytes())
    return store


def pushed_bodies(store: MemoryStore) -> dict[str, bytes]:
    segment = segment_of(store, meta_of(GOLDEN / "segment-v1.msgpack"))
    return {profile.id.hex(): profile.payload for profile in read_segment(segment)}


def test_the_segment_reads_as_it_was_written(store: MemoryStore) -> None:
    meta = meta_of(GOLDEN / "segment-v1.msgpack")
    found = {profile.id.hex(): profile for profile in read_segment(segment_of(store, meta))}
    assert len(found) == meta.profiles == 4
    for expected in EXPECTED["profiles"]:
        profile = found[expected["id"]]
        assert profile.service == expected["service"]
        assert [list(pair) for pair in profile.labels] == expected["labels"]
        assert profile.time_ns == expected["time_ns"]
        assert profile.samples == 2


def test_the_quarantine_still_says_why(store: MemoryStore) -> None:
    meta = meta_of(GOLDEN / "quarantine-v1.msgpack")
    ((profile, cause),) = read_causes(segment_of(store, meta))
    assert profile.id.hex() == EXPECTED["quarantined"]
    assert profile.payload == b"\x0a\xff"
    assert cause


def test_the_block_gives_back_what_was_pushed(store: MemoryStore) -> None:
    meta = meta_of(GOLDEN / "block-v1" / "manifest.msgpack")
    bodies = pushed_bodies(store)
    for expected in EXPECTED["profiles"]:
        body = profile_from_block(store, meta, ProfileId(bytes.fromhex(expected["id"])))
        assert body is not None
        pushed = canonical(gunzip(bodies[expected["id"]], limit=1 << 20))
        assert canonical(gunzip(body, limit=1 << 20)) == pushed


def test_the_block_tells_the_same_stacks_and_values(store: MemoryStore) -> None:
    files = {path.stem: pq.read_table(path) for path in (GOLDEN / "block-v1").glob("*.parquet")}
    stacks = {row["stack_id"]: row["functions"] for row in files["stacks"].to_pylist()}
    found: dict[str, list[Any]] = {}
    for row in files["samples"].to_pylist():
        kind = row["profile_type"].split(":")[1]
        sample = [stacks[row["stack_id"]], kind, row["value"]]
        found.setdefault(row["profile_id"].hex(), []).append(sample)
    assert {name: sorted(samples) for name, samples in found.items()} == EXPECTED["samples"]


def test_the_manifest_describes_the_files(store: MemoryStore) -> None:
    meta = meta_of(GOLDEN / "block-v1" / "manifest.msgpack")
    for file in meta.files:
        body = store.read(file.locations[0].key)
        assert (file.size, file.checksum) == (len(body), checksum.of_bytes(body))
        assert file.footer_size == checksum.footer_size(body)
        assert file.rows == pq.read_metadata(pa.BufferReader(body)).num_rows


def test_old_blocks_merge_with_new_ones(store: MemoryStore, tmp_path: Path) -> None:
    bench = Bench(store, tmp_path, first=100)
    old = meta_of(GOLDEN / "block-v1" / "manifest.msgpack")
    raws = read_segment(segment_of(store, meta_of(GOLDEN / "segment-v1.msgpack")))
    new = bench.compact([bench.segment(raws[:3])]).outputs
    merged = bench.compact([old, *(block for block in new if block.files[0].table == "samples")])
    assert merged.collisions == 0
    assert merged.account.kept == 3
    (block,) = merged.outputs
    # The same content got the same ids then and now: nothing had to be kept twice.
    assert block.file("stacks").rows == old.file("stacks").rows
    assert block.file("locations").rows == old.file("locations").rows
