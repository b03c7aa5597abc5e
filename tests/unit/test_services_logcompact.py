"""A plan of logcompact, carried out: one segment of many, with keys of its own, then compacted."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from random import Random

import msgspec
import pyarrow.parquet as pq
import pytest

from maar.model import keys
from maar.model.block import BlockMeta, Kind
from maar.model.errors import AlreadyExists, Corrupt, LeaseLost
from maar.model.ids import TenantId, block_time_ns, is_joined_segment
from maar.model.plan import Account, LeasedPlan, PlanResult
from maar.model.profile import RawProfile
from maar.pprof.gzip import gunzip
from maar.services.logcompact.rules import LOGCOMPACT
from maar.services.logcompact.run import run as logcompact
from support.lake.block_plans import TENANT, WALL_NS, Bench, raw_profile
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


def plan_of(bench: Bench, inputs: list[BlockMeta]) -> LeasedPlan:
    return msgspec.structs.replace(bench.plan(inputs), kind=LOGCOMPACT)


def carry_out(bench: Bench, inputs: list[BlockMeta], attempt: str = "a1") -> PlanResult:
    return logcompact(
        plan_of(bench, inputs),
        store=bench.store,
        attempt=attempt,
        scratch=bench.scratch,
        wall_ns=WALL_NS,
    )


def ids_in(bench: Bench, meta: BlockMeta) -> list[bytes]:
    body = bench.store.read(meta.files[0].locations[0].key)
    return [row["profile_id"] for row in pq.read_table(io.BytesIO(body)).to_pylist()]


def profile_in(payload: bytes) -> object:
    return canonical(gunzip(payload, limit=1 << 20))


def mixed(bench: Bench) -> tuple[list[RawProfile], list[BlockMeta]]:
    """Twelve segments, of two tenants and several services, with profiles that came twice."""
    profiles = [
        *some(9, 1, service="checkout"),
        *some(7, 2, service="search"),
        *some(5, 3, tenant=TenantId("other")),
    ]
    Random(5).shuffle(profiles)
    cuts = [profiles[n : n + 2] for n in range(0, len(profiles), 2)]
    return profiles, [bench.segment(each) for each in (*cuts, profiles[:3])]


def test_many_segments_become_one_with_all_their_rows(bench: Bench) -> None:
    profiles, segments = mixed(bench)
    result = carry_out(bench, segments)
    (made,) = result.outputs
    came = Counter(id_ for meta in segments for id_ in ids_in(bench, meta))
    assert Counter(ids_in(bench, made)) == came
    assert came.total() == len(profiles) + 3
    assert result.account == Account(came.total(), 0, 0), "copies are kept: compaction removes them"
    assert (result.kind, made.kind, made.level, made.tenant) == (LOGCOMPACT, Kind.SEGMENT, 0, "")
    assert made.samples == sum(meta.samples for meta in segments)
    assert made.min_time_ns == min(meta.min_time_ns for meta in segments)
    assert made.max_time_ns == max(meta.max_time_ns for meta in segments)


def test_its_object_has_a_key_of_the_attempt_and_was_announced(bench: Bench) -> None:
    _, segments = mixed(bench)
    plan = plan_of(bench, segments)
    logcompact(plan, store=bench.store, attempt="a7", scratch=bench.scratch, wall_ns=WALL_NS)
    intent = keys.intent(plan=plan.id, token=plan.token, attempt="a7", ordinal=0)
    key = bench.store.read(intent).decode()
    name = keys.output_name(key)
    assert name is not None
    assert (name.plan, name.token) == (plan.id, plan.token)
    assert keys.attempt_block(key, plan=plan.id, token=plan.token) == name.block
    assert keys.segment_name(key) is None, "never taken for a segment that a writer left"
    assert keys.joined_shard(key) == 1
    new = {info.key for info in bench.store.list("")} - {
        m.files[0].locations[0].key for m in segments
    }
    assert new == {intent, key}


def test_it_is_as_old_as_its_oldest_input_and_its_id_says_what_it_is(bench: Bench) -> None:
    _, segments = mixed(bench)
    (made,) = carry_out(bench, segments[::-1]).outputs
    assert block_time_ns(made.id) == min(block_time_ns(meta.id) for meta in segments)
    assert is_joined_segment(made.id)
    assert not any(is_joined_segment(meta.id) for meta in segments)


def test_two_attempts_write_two_objects_of_one_block(bench: Bench) -> None:
    _, segments = mixed(bench)
    plan = plan_of(bench, segments)
    ones = [
        logcompact(plan, store=bench.store, attempt=a, scratch=bench.scratch, wall_ns=WALL_NS)
        for a in ("a", "b")
    ]
    (first,), (second,) = (result.outputs for result in ones)
    assert first.id == second.id
    assert first.files[0].locations != second.files[0].locations
    with pytest.raises(AlreadyExists):
        logcompact(plan, store=bench.store, attempt="a", scratch=bench.scratch, wall_ns=WALL_NS)


def test_what_was_joined_is_compacted_like_any_segments(bench: Bench) -> None:
    """With others of its lane, and to the very profiles that were pushed."""
    profiles, segments = mixed(bench)
    (made,) = carry_out(bench, segments[2:]).outputs
    result = bench.compact([segments[0], made, segments[1]])
    assert result.account == Account(len(profiles), 3, 0)
    for profile in profiles:
        (found,) = bench.get(result.outputs, profile.id, tenant=profile.tenant)
        assert profile_in(found) == profile_in(profile.payload)
    alone = bench.compact(segments)
    assert [(b.tenant, b.profiles, b.samples) for b in result.outputs] == [
        (b.tenant, b.profiles, b.samples) for b in alone.outputs
    ]


def test_a_profile_of_it_is_found_by_its_id(bench: Bench) -> None:
    profiles, segments = mixed(bench)
    made = carry_out(bench, segments).outputs
    for profile in profiles:
        assert bench.get(made, profile.id, tenant=profile.tenant) == [profile.payload]


@pytest.mark.parametrize("damage", ["gone", "other bytes"])
def test_an_input_that_cannot_be_read_is_named_and_nothing_is_written(
    bench: Bench, damage: str
) -> None:
    _, segments = mixed(bench)
    key = segments[4].files[0].locations[0].key
    bench.store.delete(key)
    if damage == "other bytes":
        bench.store.create(key, b"x" * segments[4].size)
    with pytest.raises(Corrupt, match=segments[4].id):
        carry_out(bench, segments)
    assert not list(bench.store.list("attempts/"))
    assert not list(bench.scratch.iterdir())


def test_the_guard_is_asked_before_anything_is_written(bench: Bench) -> None:
    _, segments = mixed(bench)
    before = {info.key for info in bench.store.list("")}

    def lost() -> None:
        raise LeaseLost("too late")

    with pytest.raises(LeaseLost):
        logcompact(
            plan_of(bench, segments),
            store=bench.store,
            attempt="a",
            scratch=bench.scratch,
            wall_ns=0,
            guard=lost,
        )
    assert {info.key for info in bench.store.list("")} == before


def test_many_tenants_and_services_stay_apart(bench: Bench) -> None:
    random = Random(3)
    segments = [
        bench.segment(
            [
                raw_profile(
                    random_profile(random, size=2),
                    client_id=f"{number}/{place}",
                    tenant=TenantId(f"tenant{random.randrange(5)}"),
                    service=f"service{random.randrange(6)}",
                )
                for place in range(8)
            ]
        )
        for number in range(25)
    ]
    (made,) = carry_out(bench, segments).outputs
    names = [(each.tenant, each.service) for each in made.datasets]
    assert names == sorted(set(names))
    came: Counter[tuple[str, str]] = Counter()
    for meta in segments:
        for each in meta.datasets:
            came[each.tenant, each.service] += each.profiles
    assert {(e.tenant, e.service): e.profiles for e in made.datasets} == dict(came)
    assert TENANT not in {each.tenant for each in made.datasets}
