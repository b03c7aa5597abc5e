"""The fold reads no more of a registration than it needs, and comes to the same state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import msgspec
import pytest

from maar.metastore.fold.apply import Indexed, apply
from maar.metastore.records import packs
from maar.metastore.records.effects import Completed
from maar.metastore.records.entries import (
    BlocksAdded,
    BlocksOutlined,
    Genesis,
    Grant,
    PlanCompleted,
    PlansLeased,
    PlansScheduled,
    Tick,
    decode,
    decode_to_fold,
    encode,
    encode_entry,
    open_envelope,
)
from maar.metastore.records.packs import Pack, alone, outline, pack, unpack
from maar.metastore.state import index as indexes
from maar.metastore.state.digest import digest
from maar.metastore.state.index import Index, blocks_in
from maar.metastore.state.rows import Rows
from maar.metastore.state.state import MetaState
from maar.model.block import BlockMeta, BlockOutline, Dataset
from maar.model.errors import Corrupt
from maar.model.ids import BlockId, PlanId, WorkerId, Zone
from maar.model.plan import PlanSpec
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime
from maar.services.compact.rules import COMPACT
from support.metastore.every_entry import every_kind_of_entry
from support.metastore.fold import Fold, result, segment


def bodies_of(fold: Fold) -> list[bytes]:
    return [
        encode(e.version, e.lease_time, e.wall_time, encode_entry(e.entry))  # type: ignore[arg-type]
        for e in (item.envelope for item in fold.log)
    ]


def test_what_is_outlined_gives_the_same_state_and_the_same_blocks() -> None:
    fold = every_kind_of_entry()
    fold.put(BlocksAdded(tuple(segment(1000 + n, at=n, shard=n % 3 + 1) for n in range(300))))
    whole, outlined = MetaState(), MetaState()
    for index, body in enumerate(bodies_of(fold), start=1):
        told = apply(whole, Indexed(index, decode(body, index=index)))
        assert apply(outlined, Indexed(index, open_envelope(body, index=index))) == told
    assert digest(outlined) == digest(whole) == digest(fold.state)
    for state in (whole, outlined):
        blocks = [m for p in state.blocks.partitions() for m in blocks_in(p.chunks)]
        assert blocks == [m for p in fold.state.blocks.partitions() for m in blocks_in(p.chunks)]


def test_only_registrations_are_outlined() -> None:
    added = encode_entry(BlocksAdded((segment(1), segment(2))))
    found = decode_to_fold(added, index=1)
    assert isinstance(found, BlocksOutlined)
    assert [unpack(packed) for _, packed in found.blocks] == [segment(1), segment(2)]
    assert [meta.id for meta, _ in found.blocks] == [segment(1).id, segment(2).id]
    assert decode_to_fold(encode_entry(Tick()), index=1) == Tick()
    assert decode_to_fold(encode_entry(BlocksAdded(())), index=1) == BlocksOutlined(())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: [raw[0], [[*block[:8], "late", *block[9:]] for block in raw[1]]],
        lambda raw: [raw[0], [block[:5] for block in raw[1]]],
        lambda raw: [raw[0], "blocks"],
        lambda raw: [raw[0], [7]],
    ],
)
def test_a_registration_that_is_none_stops_the_fold(
    spoil: Callable[[list[object]], object],
) -> None:
    raw = msgspec.msgpack.decode(encode_entry(BlocksAdded((segment(1),))))
    with pytest.raises(Corrupt, match="entry 5 of the log is not one"):
        decode_to_fold(msgspec.msgpack.encode(spoil(raw)), index=5)


def test_an_outline_is_a_block_whose_datasets_are_unread() -> None:
    meta = msgspec.structs.replace(segment(3), zone=Zone("east"), plan=PlanId(7, 0))
    names = BlockOutline.__struct_fields__
    assert BlockMeta.__struct_fields__ == names
    seen = outline(pack(meta))
    read = [name for name in names if name != "datasets"]
    assert [getattr(seen, name) for name in read] == [getattr(meta, name) for name in read]
    assert msgspec.msgpack.decode(seen.datasets, type=tuple[Dataset, ...]) == meta.datasets
    assert indexes.partition_of(seen) == indexes.partition_of(meta)


# ── how often a block is packed ────────────────────────────────────────────────────────────────


def test_behind_many_chunks_a_block_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: Counter[int] = Counter()
    index, metas = Index(), [segment(n, at=n) for n in range(2_400)]

    def sealed(rows: tuple[bytes, ...]) -> Pack:
        packed.update(int(outline(row).id, 16) for row in rows)
        return packs.seal(rows)

    monkeypatch.setattr(indexes, "seal", sealed)
    for meta in metas:
        index.add(meta)
    late = [packed[int(meta.id, 16)] for meta in metas[1_000:2_300]]
    assert set(late) == {1}
    assert max(packed.values()) <= 4


@pytest.mark.parametrize("count", [1, 9, 64, 65, 130, 300, 700, 2_000])
def test_few_blocks_of_a_partition_are_loose(count: int) -> None:
    """Loose ones take several times the room."""
    index = Index()
    for n in range(count):
        index.add(segment(n, at=n))
        chunks = [chunk for p in index.partitions() for chunk in p.chunks]
        loose = sum(sum(map(bool, chunk.loose)) for chunk in chunks)
        assert loose == sum(chunk.spread for chunk in chunks)
        assert loose <= max(indexes.PACKED_MAX, n // 8 + 2 * indexes.LOOSE_MIN)
        if n > 1_000:
            assert loose < n / 10


# ── blocks that leave together ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(5))
def test_blocks_taken_together_are_those_taken_one_by_one(seed: int) -> None:
    draw = Random(seed)
    metas = [segment(n, at=n, shard=n % 3 + 1) for n in range(500)]
    together, apart = Index(), Index()
    for meta in metas:
        together.add(meta)
        apart.add(meta)
    left = {meta.id: meta for meta in metas}
    while left:
        some = draw.sample(sorted(left), min(len(left), draw.randrange(1, 60)))
        live = together.find_live([*some, BlockId("f" * 32)])
        together.drop(live)
        assert {block: unpack(each.packed) for block, each in live.items()} == {
            block: left.pop(block) for block in some
        }
        for block in some:
            apart.remove(block)
        for index in (together, apart):
            found = [m for p in index.partitions() for m in blocks_in(p.chunks)]
            assert sorted(m.id for m in found) == sorted(left)
            assert all(index.get(m.id) == left[m.id] == m for m in found[:5])
        assert (together.hash, together.totals) == (apart.hash, apart.totals)
    assert (together.hash, together.totals, together.tenants) == (0, {}, {})


def test_replaced_blocks_are_kept_in_the_order_of_their_plan() -> None:
    """Whatever days they are of: a hash of the first version goes by this order."""
    fold = Fold()
    metas = tuple(
        msgspec.structs.replace(meta, min_time_ns=meta.min_time_ns - n % 2 * DAY_NS)
        for n, meta in enumerate(segment(n) for n in range(6))
    )
    assert len({indexes.partition_of(meta) for meta in metas}) == 2
    fold.put(BlocksAdded(metas))
    ids = tuple(meta.id for meta in metas)
    key = fold.state.queue.places[ids[0]].key
    fold.put(PlansScheduled((PlanSpec(COMPACT, False, key, ids, 2),)))
    plan = PlanId(fold.state.index, 0)
    until = LeaseTime(fold.now + 15 * SECOND_NS)
    fold.put(PlansLeased((Grant(plan, WorkerId("w"), until),)))
    token = fold.state.token()
    (done,) = fold.put(PlanCompleted(plan, token, result(plan, token, metas)))
    assert isinstance(done, Completed), done
    assert tuple(fold.state.retired) == ids
    assert [unpack(kept.packed) for kept in fold.state.retired.values()] == list(metas)


def test_a_taken_block_stays_readable_whatever_becomes_of_its_pack() -> None:
    index, metas = Index(), [segment(n, at=n) for n in range(200)]
    for meta in metas:
        index.add(meta)
    live = index.find_live([meta.id for meta in metas[:40]])
    index.drop(live)
    kept = {block: each.packed for block, each in live.items()}
    for meta in metas[40:]:
        index.remove(meta.id)
    assert [unpack(packed) for packed in kept.values()] == metas[:40]
    assert [alone(packed) for packed in kept.values()] == [pack(meta) for meta in metas[:40]]


def test_a_key_that_lies_across_two_rows_is_no_row() -> None:
    rows = Rows(key=4, width=6)
    first, last = b"\0\0\0\1\0\0", b"\0\2\0\0cd"
    assert rows.add(first, replace=True)
    assert rows.add(last, replace=True)
    across = b"\0\0\0\2"
    assert across in first + last
    assert rows.find(across) is None
    assert rows.pop(across) is None
    assert rows.find(b"") is None
    assert rows.add(across + b"xy", replace=True)
    assert rows.pop(across) == across + b"xy"
    assert list(rows) == [first, last]


def test_a_log_without_genesis_takes_no_outline() -> None:
    state = MetaState()
    body = encode_entry(BlocksAdded((segment(1),)))
    envelope = open_envelope(encode(1, 0, 0, body), index=1)  # type: ignore[arg-type]
    (refused,) = apply(state, Indexed(1, envelope))
    assert len(state.blocks) == 0
    assert "genesis" in str(refused)
    assert isinstance(decode_to_fold(encode_entry(Genesis("x")), index=1), Genesis)  # type: ignore[arg-type]


def test_a_row_is_added_once_and_put_as_often_as_one_likes() -> None:
    rows = Rows(key=1, width=2)
    assert rows.add(b"ka")
    assert not rows.add(b"kb")
    assert rows.find(b"k") == b"ka"
    assert not rows.add(b"kb", replace=True)
    assert rows.find(b"k") == b"kb"
    assert len(rows) == 1
