"""Clustering keeps every profile once, in blocks of one order, whatever it was cut into."""

from __future__ import annotations

import errno
import gzip
import os
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import duckdb
import msgspec
import pytest

from maar.model import keys
from maar.model.block import CLUSTERED, TABLES, BlockMeta
from maar.model.errors import Corrupt, LeaseLost
from maar.model.ids import FencingToken, PlanId, Shard, StoreName
from maar.model.plan import Account, LeasedPlan, PlanPart, PlanResult, ProfilePlace, QueueKey
from maar.model.profile import RawProfile
from maar.model.time import SECOND_NS, utc_day
from maar.services.cluster import parts
from maar.services.cluster.rules import CLUSTER
from maar.services.cluster.run import run as cluster
from maar.services.kinds import KINDS
from support.lake.block_plans import INCARNATION, NOON_NS, TENANT, WALL_NS, Bench, raw_profile
from support.load.pprof_scramble import random_profile
from support.oracles.pprof_reader import canonical
from support.stores.memory_store import MemoryStore

SERVICES = ("cart", "checkout", "mail", "search")
DAY = utc_day(NOON_NS)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(MemoryStore(), tmp_path)


def profiles_of(seed: int, count: int = 8) -> list[RawProfile]:
    random = Random(seed)
    return [
        raw_profile(
            random_profile(random, size=3),
            service=random.choice(SERVICES),
            time_ns=NOON_NS + random.randrange(3600) * SECOND_NS,
            client_id=f"{seed}/{place}",
        )
        for place in range(count)
    ]


def block(bench: Bench, profiles: Sequence[RawProfile], *, shard: int) -> BlockMeta:
    (made,) = bench.compact([bench.segment(profiles)]).outputs
    return msgspec.structs.replace(made, shard=Shard(shard))


def shards(bench: Bench, count: int = 4) -> tuple[list[BlockMeta], list[RawProfile]]:
    """Blocks of so many shards; a profile in four lies in two of them, some in three."""
    blocks: list[BlockMeta] = []
    pushed: list[RawProfile] = []
    for shard in range(1, count + 1):
        own = profiles_of(shard)
        blocks.append(block(bench, [*own, *pushed[-6:-3], *pushed[:1]], shard=shard))
        pushed += own
    return blocks, pushed


def plan(
    inputs: Sequence[BlockMeta], *, target: int = 1 << 30, slots: int = 1, memory_bytes: int = 0
) -> LeasedPlan:
    first = inputs[0]
    return LeasedPlan(
        id=PlanId(900, 0),
        kind=CLUSTER,
        token=FencingToken(INCARNATION, 901),
        key=QueueKey(first.store, first.tenant, Shard(0), 0, day=first.day),
        inputs=tuple(inputs),
        target_block_bytes=target,
        lease_ns=15 * SECOND_NS,
        slots=slots,
        memory_bytes=memory_bytes,
    )


def carry_out(bench: Bench, leased: LeasedPlan, **more: object) -> PlanResult:
    """As a runner does, one task after the other."""
    rules = KINDS[leased.kind]
    results = [
        cluster(
            part,
            store=bench.store,
            attempt=f"a{number}",
            scratch=bench.scratch,
            wall_ns=WALL_NS,
            **more,  # type: ignore[arg-type]
        )
        for number, part in enumerate(rules.cut(leased))
    ]
    return rules.join(leased, results)


def files(bench: Bench, blocks: Sequence[BlockMeta], table: str, tmp: Path) -> list[str]:
    found = []
    for meta in blocks:
        path = tmp / f"{meta.id}-{table}.parquet"
        if not path.exists():
            path.write_bytes(bench.store.read(meta.file(table).locations[0].key))
        found.append(str(path))
    return found


def rows(bench: Bench, blocks: Sequence[BlockMeta], tmp: Path) -> Counter[tuple[object, ...]]:
    """Every sample with its stack and labels, by plain SQL over the files."""
    paths = {table: files(bench, blocks, table, tmp) for table in TABLES}
    text = """
        WITH own AS (SELECT *, parse_filename(filename, true)[:32] AS block FROM
                     read_parquet($samples, filename = true)),
        stacks AS (SELECT stack_id, functions, parse_filename(filename, true)[:32] AS block FROM
                   read_parquet($stacks, filename = true)),
        series AS (SELECT series_id, labels, parse_filename(filename, true)[:32] AS block FROM
                   read_parquet($series, filename = true))
        SELECT profile_id, own.service, profile_type, time::VARCHAR, value, sample,
               functions::VARCHAR, series.labels::VARCHAR
        FROM own JOIN stacks USING (block, stack_id) JOIN series USING (block, series_id)
    """
    found = duckdb.execute(text, {t: paths[t] for t in ("samples", "stacks", "series")})
    return Counter(found.fetchall())


# ── what comes of it ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("slots", "target"), [(1, 1 << 30), (3, 20_000), (16, 1_000)])
def test_every_profile_is_kept_once_however_it_is_cut(
    bench: Bench, tmp_path: Path, slots: int, target: int
) -> None:
    blocks, pushed = shards(bench)
    came = sum(meta.profiles for meta in blocks)
    leased = plan(blocks, target=target, slots=slots)
    result = carry_out(bench, leased)
    assert result.account == Account(len(pushed), came - len(pushed), 0)
    assert came > len(pushed), "or nothing was there to be removed"
    before, after = rows(bench, blocks, tmp_path), rows(bench, result.outputs, tmp_path)
    assert max(before.values()) > 1
    assert after == Counter(set(before))
    for profile in pushed:
        (body,) = bench.get(result.outputs, profile.id)
        assert canonical(gzip.decompress(body)) == canonical(gzip.decompress(profile.payload))
    assert len({meta.id for meta in result.outputs}) == len(result.outputs)
    if slots > 1:
        assert len(KINDS[CLUSTER].cut(leased)) > 1
        assert len(result.outputs) > 1


def test_its_blocks_are_sorted_and_follow_each_other(bench: Bench, tmp_path: Path) -> None:
    blocks, _ = shards(bench)
    result = carry_out(bench, plan(blocks, target=20_000, slots=3))
    order = "service, profile_type, series_id, epoch_us(time)"
    for meta in result.outputs:
        (path,) = files(bench, [meta], "samples", tmp_path)
        found = duckdb.execute(f"SELECT {order} FROM read_parquet('{path}')").fetchall()
        assert found == sorted(found)
        (stacks,) = files(bench, [meta], "stacks", tmp_path)
        ids = duckdb.execute(f"SELECT stack_id FROM read_parquet('{stacks}')").fetchall()
        assert len(set(ids)) == len(ids), "symbols are shared"
    spans = []
    for meta in result.outputs:
        (path,) = files(bench, [meta], "profiles", tmp_path)
        text = f"SELECT service, epoch_us(time) FROM read_parquet('{path}') ORDER BY ALL"
        own = duckdb.execute(text).fetchall()
        spans.append((own[0], own[-1]))
    assert all(left[1] < right[0] for left, right in pairwise(sorted(spans)))


def test_the_outputs_are_of_the_window(bench: Bench) -> None:
    blocks, _ = shards(bench, 3)
    leased = plan(blocks, target=20_000, slots=2)
    result = carry_out(bench, leased)
    for meta in result.outputs:
        assert (meta.level, meta.shard, meta.store) == (CLUSTERED, 0, blocks[0].store)
        assert (meta.tenant, meta.day) == (TENANT, DAY)
    written = {item.key for item in bench.store.list(f"attempts/v1/{leased.id}/")}
    assert len(written) == len(result.outputs), "each was announced"
    taken = msgspec.structs.replace(leased.key, store=StoreName("main"))
    assert taken.store == leased.key.store


def test_what_is_clustered_can_be_clustered_again_with_what_came_late(
    bench: Bench, tmp_path: Path
) -> None:
    blocks, pushed = shards(bench)
    first = carry_out(bench, plan(blocks, target=20_000, slots=2))
    own = profiles_of(77)
    late = block(bench, [*own, *pushed[:5]], shard=9)
    leased = msgspec.structs.replace(plan([*first.outputs, late], slots=2), id=PlanId(950, 0))
    again = carry_out(bench, leased)
    assert again.account == Account(len(pushed) + len(own), 5, 0)
    assert rows(bench, again.outputs, tmp_path) == Counter(
        set(rows(bench, [*blocks, late], tmp_path))
    )


def test_little_memory_cuts_a_day_into_more_tasks_with_the_same_result(
    bench: Bench, tmp_path: Path
) -> None:
    blocks, pushed = shards(bench)
    size = sum(meta.size for meta in blocks)
    leased = plan(blocks, slots=1, memory_bytes=size // 10)
    assert len(KINDS[CLUSTER].cut(leased)) in (5, 6)
    result = carry_out(bench, leased)
    assert result.account.kept == len(pushed)
    assert rows(bench, result.outputs, tmp_path) == Counter(set(rows(bench, blocks, tmp_path)))


def test_more_blocks_than_are_merged_at_once_go_through_scratch(
    bench: Bench, tmp_path: Path
) -> None:
    blocks, pushed = shards(bench)
    result = carry_out(bench, plan(blocks, target=20_000, slots=2), fan_in=2)
    assert result.account.kept == len(pushed)
    assert rows(bench, result.outputs, tmp_path) == Counter(set(rows(bench, blocks, tmp_path)))
    assert [path for path in bench.scratch.iterdir() if path.is_dir()] == []


# ── how it fails ───────────────────────────────────────────────────────────────────────────────


def test_a_disk_that_fills_up_in_the_middle_fails_the_task_and_loses_nothing(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, pushed = shards(bench)
    before = rows(bench, blocks, tmp_path)
    leased = plan(blocks, target=5_000)
    create = bench.store.create_from_file
    written: list[str] = []

    def until_full(key: str, path: Path) -> None:
        if len(written) == 7:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        written.append(key)
        create(key, path)

    monkeypatch.setattr(bench.store, "create_from_file", until_full)
    with pytest.raises(OSError, match="No space left"):
        carry_out(bench, leased)
    assert len(written) == 7
    assert [path for path in bench.scratch.iterdir() if path.is_dir()] == []
    assert rows(bench, blocks, tmp_path) == before
    announced = b"\n".join(
        bench.store.read(item.key) for item in bench.store.list(f"attempts/v1/{leased.id}/")
    )
    assert all(key.encode() in announced for key in written), "a rollback finds all of it"
    monkeypatch.undo()
    newer = msgspec.structs.replace(leased, token=FencingToken(INCARNATION, 999))
    assert carry_out(bench, newer).account.kept == len(pushed)


def test_nothing_is_written_once_the_guard_says_no(bench: Bench) -> None:
    blocks, _ = shards(bench, 2)

    def gone() -> None:
        raise LeaseLost("the run is over")

    had = {item.key for item in bench.store.list("")}
    with pytest.raises(LeaseLost):
        carry_out(bench, plan(blocks), guard=gone)
    assert {item.key for item in bench.store.list("")} == had


def test_parts_that_do_not_add_up_are_refused(bench: Bench) -> None:
    blocks, _ = shards(bench, 2)
    leased = plan(blocks)
    result = carry_out(bench, leased)
    short = msgspec.structs.replace(result, account=Account(result.account.kept - 1, 0, 0))
    with pytest.raises(Corrupt, match="this is a bug"):
        KINDS[CLUSTER].join(leased, [short])


def test_a_damaged_input_is_named(bench: Bench) -> None:
    blocks, _ = shards(bench, 2)
    key = blocks[1].file("samples").locations[0].key
    body = bench.store.read(key)
    bench.store.smuggle(key, body[:-1] + b"x")  # type: ignore[attr-defined]
    with pytest.raises(Corrupt, match=blocks[1].id):
        carry_out(bench, plan(blocks))


# ── how it is cut ──────────────────────────────────────────────────────────────────────────────


def test_parts_cover_the_whole_order_without_overlap(bench: Bench) -> None:
    blocks, _ = shards(bench)
    leased = plan(blocks, target=1_000, slots=6)
    found = [part.part for part in parts.cut(leased)]
    assert all(part is not None for part in found)
    made = [part for part in found if part is not None]
    assert [part.number for part in made] == list(range(len(made)))
    assert (made[0].first, made[-1].end) == (None, None)
    assert all(left.end == right.first for left, right in pairwise(made))
    assert len(made) == 6


def test_parts_are_about_equally_large(bench: Bench) -> None:
    profiles = [one for seed in range(4) for one in profiles_of(seed, 50)]
    blocks = [block(bench, profiles[shard::4], shard=shard + 1) for shard in range(4)]
    leased = plan(blocks, target=sum(meta.size for meta in blocks) // 4, slots=4)
    results = [
        cluster(part, store=bench.store, attempt=f"b{n}", scratch=bench.scratch, wall_ns=0)
        for n, part in enumerate(parts.cut(leased))
    ]
    kept = [result.account.kept for result in results]
    assert len(kept) == 4
    assert sum(kept) == 200
    assert max(kept) < 2 * min(kept), kept


def test_a_part_does_not_open_blocks_of_other_services(bench: Bench) -> None:
    apart = [
        block(
            bench,
            [
                raw_profile(random_profile(Random(n), size=3), service=name, client_id=str(n))
                for n in range(4)
            ],
            shard=number,
        )
        for number, name in enumerate(SERVICES, start=1)
    ]
    part = PlanPart(0, ProfilePlace("checkout", 0), ProfilePlace("mail", 0), 1)
    assert [parts.touches(meta, part) for meta in apart] == [False, True, False, False]
    edge = PlanPart(
        0,
        ProfilePlace("checkout", NOON_NS // 1000),
        ProfilePlace("checkout", NOON_NS // 1000 + 1),
        1,
    )
    assert [parts.touches(meta, edge) for meta in apart] == [False, True, False, False]
    after = PlanPart(0, ProfilePlace("checkout", NOON_NS // 1000 + 1), None, 1)
    assert [parts.touches(meta, after) for meta in apart] == [False, False, True, True]
    assert keys.date_text(DAY) == keys.date_text(apart[0].day)
