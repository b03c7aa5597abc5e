"""The index and the rows under it hold exactly what a plain dict would, and cost little."""

from __future__ import annotations

import random
import threading
import tracemalloc
from collections.abc import Callable, Iterator

import msgspec
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from maar.metastore.records.packs import alone, pack, unpack
from maar.metastore.state import index as indexes
from maar.metastore.state import rows as row_store
from maar.metastore.state.index import Index, blocks_in, partition_of
from maar.metastore.state.queue import Queue
from maar.metastore.state.retired import LOOSE_MAX, Cause, Retired, RetiredBlocks
from maar.metastore.state.rows import Ids, Numbers, Rows, block_id, raw_id
from maar.model.block import NO_DAY, BlockMeta, Dataset, File, Kind, Location
from maar.model.ids import MAIN_STORE, NO_TENANT, BlockId, Shard, TenantId, segment_id
from maar.model.lane import Item
from maar.model.policy import Policy
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime, TimeRange
from maar.services.compact.rules import COMPACTION
from support.metastore.fold import DAY_START_NS, TENANT, segment

BYTES_PER_BLOCK = 600
SERVICES = 20  # of a segment in which memory is measured

# ── rows ───────────────────────────────────────────────────────────────────────────────────────


class RowsAgainstADict(RuleBasedStateMachine):
    """Whatever is put and removed, in whatever order."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = Rows(key=2, width=5)
        self.model: dict[bytes, bytes] = {}

    @rule(
        start=st.integers(0, 60_000),
        count=st.integers(1, 300),
        value=st.binary(min_size=3, max_size=3),
    )
    def put(self, start: int, count: int, value: bytes) -> None:
        for number in range(start, start + count):
            key = number.to_bytes(2, "big")
            assert self.rows.add(key + value, replace=True) == (key not in self.model)
            self.model[key] = key + value

    @rule(start=st.integers(0, 60_000), count=st.integers(1, 300), step=st.integers(1, 4))
    def remove(self, start: int, count: int, step: int) -> None:
        for number in range(start, start + count * step, step):
            key = (number & 0xFFFF).to_bytes(2, "big")
            assert self.rows.remove(key) == (self.model.pop(key, None) is not None)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove_known(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.model)))
        assert self.rows.remove(key)
        del self.model[key]

    @rule(start=st.integers(0, 0xFFFF))
    def drop_below(self, start: int) -> None:
        key = start.to_bytes(2, "big")
        below = [known for known in self.model if known < key]
        assert self.rows.drop_below(key) == len(below)
        for known in below:
            del self.model[known]

    @rule()
    def load(self) -> None:
        assert self.rows.load(reversed(list(self.model.values())))

    @rule(key=st.binary(max_size=3))
    def look(self, key: bytes) -> None:
        assert self.rows.find(key) == self.model.get(key)
        if len(key) == 2:
            assert self.rows.before(key) == sum(known < key for known in self.model)

    @invariant()
    def same(self) -> None:
        expected = [self.model[key] for key in sorted(self.model)]
        assert list(self.rows) == expected
        assert b"".join(self.rows.raw()) == b"".join(expected)
        assert len(self.rows) == len(expected)
        assert self.rows.first() == (expected[0] if expected else None)


RowsAgainstADict.TestCase.settings = settings(
    max_examples=40, stateful_step_count=15, deadline=None
)
TestRows = RowsAgainstADict.TestCase


def test_rows_with_one_key_are_told() -> None:
    rows = Rows(key=1, width=2)
    assert rows.load([b"b1", b"a1"])
    assert not rows.load([b"a1", b"b1", b"a2"])


def test_rows_that_come_in_order_fill_their_chunks_and_few_that_stay_share_one() -> None:
    rows = Rows(key=4, width=4)
    keys = [n.to_bytes(4, "big") for n in range(10 * row_store.CHUNK_MAX)]
    for key in keys:
        rows.add(key)
    assert len(list(rows.raw())) == 10
    for at, key in enumerate(keys):
        if at % 100:
            rows.remove(key)
    assert len(list(rows.raw())) <= 2


def test_a_number_is_used_again_only_when_no_row_refers_to_it() -> None:
    numbers: Numbers[str] = Numbers()
    assert (numbers.take("a"), numbers.take("b"), numbers.take("a")) == (0, 1, 0)
    numbers.give_back(0)
    assert numbers.thing(0) == "a"
    numbers.give_back(0)
    assert numbers.take("c") == 0
    assert (numbers.thing(0), numbers.thing(1), len(numbers)) == ("c", "b", 2)


@pytest.mark.parametrize(
    "text", ["", "xyz", "A" * 32, "a" * 31, "a" * 34, " " + "a" * 32, "é" * 32]
)
def test_a_text_that_is_no_id_is_no_block(text: str) -> None:
    known = msgspec.structs.replace(segment(0), id=BlockId("a" * 32))
    index, queue, ids = Index(), Queue(), Ids()
    index.add(known)
    queue.enter(Item(1, 0, LeaseTime(0), known.id, known.size, COMPACTION.lane(known)), Policy())
    ids.add(known.id)
    for holder in (index, index.where, queue, queue.places, ids):
        assert known.id in holder
        assert BlockId(text) not in holder
    assert block_id(raw_id(known.id)) == known.id


def test_ids_are_dropped_below_a_time() -> None:
    ids = Ids()
    for n in range(500):
        ids.add(segment(n, at=n // 2).id)
    assert ids.drop_below(f"{100:016x}") == 200
    assert next(iter(ids)) == segment(200, at=100).id
    assert len(ids) == 300


# ── the index ──────────────────────────────────────────────────────────────────────────────────


def block(number: int, *, at: int, level: int, shard: int, day: int, tenant: str) -> BlockMeta:
    """Any kind of block that the index may hold."""
    made = segment(number, at=at, shard=shard, size=1000 + number, profiles=number % 7)
    if not level:
        start = day * DAY_NS + number
        return msgspec.structs.replace(made, min_time_ns=start, max_time_ns=start + SECOND_NS)
    return msgspec.structs.replace(
        made,
        kind=Kind.BLOCK,
        level=level,
        tenant=TenantId(tenant),
        day=day,
        min_time_ns=day * DAY_NS + number,
        max_time_ns=day * DAY_NS + number + SECOND_NS,
    )


BLOCKS = st.builds(
    block,
    st.integers(0, 10**6),
    at=st.integers(0, 50),
    level=st.integers(0, 3),
    shard=st.integers(1, 2),
    day=st.integers(20_000, 20_001),
    tenant=st.sampled_from(["acme", "globex"]),
)


class IndexAgainstADict(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = Index()
        self.model: dict[BlockId, BlockMeta] = {}
        self.taken: list[tuple[list[indexes.Partition], list[BlockMeta]]] = []

    def add(self, meta: BlockMeta) -> None:
        if meta.id not in self.model:
            self.index.add(meta)
            self.model[meta.id] = meta

    @rule(meta=BLOCKS)
    def add_one(self, meta: BlockMeta) -> None:
        self.add(meta)

    @rule(first=BLOCKS, count=st.integers(1, 150), backwards=st.booleans())
    def add_many(self, first: BlockMeta, count: int, backwards: bool) -> None:
        """Of one partition, as ids come: nearly in order, or not at all."""
        numbers = range(count) if not backwards else range(count, 0, -1)
        for n in numbers:
            block_ = segment_id(lease_time_ns=1000 + n * 3 // 2, entropy=n * 7919 % 1000)
            self.add(msgspec.structs.replace(first, id=block_, size=n))

    @precondition(lambda self: self.model)
    @rule(data=st.data(), count=st.integers(1, 100))
    def remove_some(self, data: st.DataObject, count: int) -> None:
        known = sorted(self.model)
        at = data.draw(st.integers(0, len(known) - 1))
        for block_ in known[at : at + count]:
            assert self.index.remove(block_) == self.model.pop(block_)

    @rule()
    def take(self) -> None:
        """A reader holds what is there now."""
        metas = sorted(self.model.values(), key=lambda m: m.id)
        self.taken.append((self.index.partitions(), metas))

    @rule(
        range_=st.integers(20_000 * DAY_NS, 20_002 * DAY_NS), tenant=st.sampled_from(["", "acme"])
    )
    def search(self, range_: int, tenant: str) -> None:
        wanted = TimeRange(range_, range_ + DAY_NS // 4)
        chunks = self.index.chunks(TenantId(tenant), wanted)
        found = {m.id for m in blocks_in(chunks)}
        assert found >= {
            m.id
            for m in self.model.values()
            if m.tenant == tenant and wanted.overlaps(m.min_time_ns, m.max_time_ns)
        }

    @rule()
    def reload(self) -> None:
        """As a restart does."""
        chunks = [(p.key, c.whole()) for p in self.index.partitions() for c in p.chunks]
        again = Index(totals=self.index.totals, hash=self.index.hash)
        assert again.load(chunks)
        self.index = again

    @invariant()
    def same(self) -> None:
        index, model = self.index, self.model
        assert len(index) == len(model)
        assert list(index.where) == sorted(model)
        partitions = index.partitions()
        assert [p.key for p in partitions] == sorted({partition_of(m) for m in model.values()})
        found = [m for p in partitions for m in blocks_in(p.chunks)]
        assert found == sorted(model.values(), key=lambda m: (partition_of(m), m.id))
        assert sum(t.blocks for t in index.totals.values()) == len(model)
        assert sum(t.bytes for t in index.totals.values()) == sum(m.size for m in model.values())
        for partition in partitions:
            for chunk in partition.chunks:
                self.sound(chunk)

    def sound(self, chunk: indexes.Chunk) -> None:
        metas = list(blocks_in([chunk]))
        assert chunk.ids == tuple(m.id for m in metas)
        assert list(chunk.levels) == [m.level for m in metas]
        assert all(chunk.meta(at) == meta for at, meta in enumerate(metas))
        assert 0 < len(chunk) <= 2 * indexes.PACKED_MAX
        loose = sum(map(bool, chunk.loose))
        rows = chunk.pack.rows if chunk.pack else 0
        assert loose <= max(indexes.LOOSE_SEGMENTS, rows)
        assert 2 * (len(chunk) - loose) >= rows
        assert chunk.bounds.min_time_ns <= min(m.min_time_ns for m in metas)
        assert chunk.bounds.max_time_ns >= max(m.max_time_ns for m in metas)
        assert chunk.bounds.largest >= max(m.size for m in metas)

    def teardown(self) -> None:
        for partitions, metas in self.taken:
            found = [meta for partition in partitions for meta in blocks_in(partition.chunks)]
            assert sorted(found, key=lambda m: m.id) == metas
        total = 0
        for meta in self.model.values():
            total += xxhash.xxh3_128_intdigest(pack(meta))
        assert self.index.hash == total % (1 << 128)
        for block_ in list(self.model):
            assert self.index.get(block_) == self.model[block_]
            assert block_ in self.index
            self.index.remove(block_)
        assert (self.index.hash, self.index.totals, self.index.tenants) == (0, {}, {})


IndexAgainstADict.TestCase.settings = settings(
    max_examples=30, stateful_step_count=12, deadline=None
)
TestIndex = IndexAgainstADict.TestCase


def test_chunks_out_of_order_are_not_loaded() -> None:
    index = Index()
    for n in range(300):
        index.add(segment(n, shard=n % 2 + 1))
    chunks = [(p.key, c) for p in index.partitions() for c in p.chunks]
    assert Index().load(chunks)
    assert not Index().load(chunks[::-1])
    assert not Index().load([*chunks, chunks[-1]])


@pytest.mark.parametrize("between", [1, 5, 60, 78])
def test_chunks_stay_short_however_often_they_come_from_a_snapshot(between: int) -> None:
    index, count = Index(), 10 * indexes.PACKED_MAX
    for n in range(count):
        index.add(segment(n, at=n))
        if n % between == 0:
            whole = [(p.key, chunk.whole()) for p in index.partitions() for chunk in p.chunks]
            index = Index()
            assert index.load(whole)
    lengths = [len(chunk) for p in index.partitions() for chunk in p.chunks]
    assert sum(lengths) == count
    assert max(lengths) <= 2 * indexes.PACKED_MAX


def test_a_reader_in_a_thread_sees_what_it_took_while_the_fold_goes_on() -> None:
    index = Index()
    metas = [segment(n) for n in range(400)]
    for meta in metas:
        index.add(meta)
    chunks = [c for p in index.partitions() for c in p.chunks]
    wrong: list[int] = []

    def read() -> None:
        for _ in range(30):
            found = list(blocks_in(chunks))
            if found != metas:
                wrong.append(len(found))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for meta in metas:
        index.remove(meta.id)
        index.add(segment(1000 + int(meta.id, 16)))
        index.get(segment(1000 + int(meta.id, 16)).id)
    for reader in readers:
        reader.join()
    assert wrong == []


def test_bounds_follow_the_blocks_of_a_partition_through_the_day() -> None:
    """Or every query of the evening would have to look at the morning."""
    index = Index()
    for n in range(1000):
        start = DAY_START_NS + n * SECOND_NS
        index.add(msgspec.structs.replace(segment(n), min_time_ns=start, max_time_ns=start))
    late = TimeRange(DAY_START_NS + 900 * SECOND_NS, DAY_START_NS + 901 * SECOND_NS)
    assert len(index.chunks(NO_TENANT, late)) == 1
    early = TimeRange(DAY_START_NS + 100 * SECOND_NS, DAY_START_NS + 101 * SECOND_NS)
    assert len(index.chunks(NO_TENANT, early)) == 1


# ── retired blocks ─────────────────────────────────────────────────────────────────────────────


def test_retired_blocks_share_packs_and_know_their_hash() -> None:
    retired = RetiredBlocks()
    metas = [segment(n) for n in range(3 * LOOSE_MAX)]
    for n, meta in enumerate(metas):
        retired[meta.id] = Retired(n, LeaseTime(n), (BlockId("x"),), pack(meta), Cause.REPLACED)
    assert list(retired) == [meta.id for meta in metas]
    assert [unpack(kept.packed) for kept in retired.values()] == metas
    assert [alone(kept.packed) for kept in retired.values()] == [pack(meta) for meta in metas]
    assert sum(isinstance(kept.packed, bytes) for kept in retired.values()) <= LOOSE_MAX
    again = RetiredBlocks()
    for n, meta in reversed(list(enumerate(metas))):
        again[meta.id] = Retired(n, LeaseTime(n), (BlockId("x"),), pack(meta), Cause.REPLACED)
    assert retired.hash == again.hash
    assert retired.pop(BlockId("unknown"), None) is None
    for meta in metas[::2]:
        assert retired.pop(meta.id).outputs == (BlockId("x"),)
    assert retired.hash != again.hash
    for meta in metas[1::2]:
        del retired[meta.id]
    assert retired.hash == 0


def test_what_would_miss_the_hash_is_refused() -> None:
    retired = RetiredBlocks()
    changes: list[Callable[[], object]] = [
        retired.clear,
        retired.popitem,
        lambda: retired.update({}),
        lambda: retired.setdefault(BlockId("x"), Retired(0, LeaseTime(0), (), b"", Cause.LOST)),
    ]
    for change in changes:
        with pytest.raises(NotImplementedError, match="hash has to follow"):
            change()


# ── memory ─────────────────────────────────────────────────────────────────────────────────────


def segments(count: int) -> Iterator[BlockMeta]:
    """As writers of four shards make them: the same services again, other times and sizes."""
    draw = random.Random(7)
    types = ("process_cpu:cpu:nanoseconds:cpu:nanoseconds",)
    for number in range(count):
        shard, at = number % 4 + 1, number * SECOND_NS // 8
        start = DAY_START_NS + at
        name = segment_id(lease_time_ns=at, entropy=draw.getrandbits(64))
        sets = tuple(
            Dataset(
                *(TENANT, f"service-{shard}-{n}", types),
                *(start - draw.randrange(10**10), start - draw.randrange(10**9)),
                *(draw.randrange(1, 9), draw.randrange(2_000, 60_000), n, 1),
            )
            for n in range(SERVICES)
        )
        size = sum(one.size for one in sets)
        where = Location(MAIN_STORE, f"segments/v1/shard={shard}/{name}-0badcafe.parquet")
        yield BlockMeta(
            *(1, name, Kind.SEGMENT, 0, NO_TENANT, Shard(shard), MAIN_STORE, NO_DAY),
            min(one.min_time_ns for one in sets),
            max(one.max_time_ns for one in sets),
            *(sum(one.profiles for one in sets), draw.randrange(10**5), size),
            (File("segment", size, draw.randbytes(16), draw.randrange(9_000), 20, (where,)),),
            *(sets, "front-1", start),
        )


def test_a_queued_block_costs_at_most_600_bytes() -> None:
    count = 10_000
    index, queue, policy = Index(), Queue(), Policy()
    metas = list(segments(count))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number, meta in enumerate(metas):
        index.add(meta)
        place = Item(number + 1, 0, LeaseTime(number), meta.id, meta.size, COMPACTION.lane(meta))
        queue.enter(place, policy)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(index), queue.queued) == (count, count)
    assert (after - before) / count <= BYTES_PER_BLOCK


@given(st.lists(st.integers(0, 500), max_size=60))
def test_ids_hold_what_a_set_holds(numbers: list[int]) -> None:
    ids = Ids()
    for n in numbers:
        ids.add(segment(n).id)
    assert list(ids) == sorted({segment(n).id for n in numbers})
    assert all(segment(n).id in ids for n in numbers)
