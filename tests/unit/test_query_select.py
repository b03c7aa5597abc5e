"""Which parts a question touches."""

import msgspec
import pytest

from maar.model.block import BlockMeta, Dataset, Kind
from maar.model.errors import InvalidInput
from maar.model.ids import MAIN_STORE, NO_TENANT, BlockId, Shard, TenantId
from maar.model.predicate import Mask
from maar.model.time import TimeRange
from maar.ports.reader.query import Matcher
from maar.query.decide.select import (
    check_matchers,
    dataset_labels,
    parts_of,
    profile_type_of,
    service_of,
)
from maar.query.read import sql
from maar.query.read.level0 import TOGETHER_MAX, is_cheaper_together

ACME = TenantId("acme")
CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"


def part(number: int, kind: Kind, level: int, *datasets: tuple[str, str, int, int]) -> BlockMeta:
    return BlockMeta(
        version=1,
        id=BlockId(f"{number:032x}"),
        kind=kind,
        level=level,
        tenant=NO_TENANT,
        shard=Shard(1),
        store=MAIN_STORE,
        day=0,
        min_time_ns=min(low for _, _, low, _ in datasets),
        max_time_ns=max(high for _, _, _, high in datasets),
        profiles=0,
        samples=0,
        size=0,
        files=(),
        datasets=tuple(
            Dataset(TenantId(tenant), service, (CPU,), low, high, 1, 1, 0, 1)
            for tenant, service, low, high in datasets
        ),
        created_by="",
        created_at_ns=0,
    )


PARTS = (
    part(5, Kind.SEGMENT, 0, ("acme", "api", 10, 19), ("acme", "web", 0, 5), ("x", "api", 10, 19)),
    part(4, Kind.BLOCK, 1, ("acme", "api", 0, 9)),
    part(3, Kind.BLOCK, 2, ("acme", "web", 0, 9)),
    part(2, Kind.BLOCK, 1, ("acme", "api", 10, 19)),
    part(1, Kind.QUARANTINE, 1, ("acme", "api", 0, 19)),
)


@pytest.mark.parametrize(
    ("masks", "left"),
    [
        ([("api", 10, 15), ("", 15, 20)], False),
        ([("", 15, 20), ("api", 0, 15)], False),
        ([("api", 0, 18), ("api", 12, 14), ("api", 18, 40)], False),
        ([("api", 10, 15), ("api", 16, 20)], True),
        ([("api", 10, 19)], True),
        ([("api", 10, 15), ("web", 15, 20)], True),
        ([], True),
    ],
)
def test_a_service_that_was_deleted_in_several_steps_is_gone(
    masks: list[tuple[str, int, int]], left: bool
) -> None:
    (meta,) = (each for each in PARTS if each.id.endswith("2"))
    hiding = tuple(Mask(ACME, service, first, until) for service, first, until in masks)
    parts = parts_of([meta], tenant=ACME, time=TimeRange(0, 99), masks={meta.id: hiding})
    assert [each.service for each in parts.datasets] == ["api"] * left


def test_parts_are_chosen_by_tenant_service_and_time() -> None:
    parts = parts_of(PARTS, tenant=ACME, time=TimeRange(10, 20), service="api")
    assert [meta.id[-1] for meta in parts.blocks] == ["2"]
    ((segment, (dataset,)),) = parts.raw
    assert (segment.id[-1], dataset.service) == ("5", "api")
    assert [meta.id[-1] for meta in parts.quarantined] == ["1"]
    assert {dataset.service for dataset in parts.datasets} == {"api"}
    assert parts.count == 2


def test_samples_are_guessed_by_the_share_of_profiles_that_are_asked_for() -> None:
    block, segment, quarantine = [
        msgspec.structs.replace(meta, profiles=4, samples=100)
        for meta in (PARTS[3], PARTS[0], PARTS[4])
    ]
    every = TimeRange(0, 20)
    parts = parts_of([block, segment, quarantine], tenant=ACME, time=every)
    assert parts.samples == 100 // 4 + 2 * 100 // 4
    assert parts_of([], tenant=ACME, time=every).samples == 0


def test_the_end_of_a_range_is_not_in_it() -> None:
    parts = parts_of(PARTS, tenant=ACME, time=TimeRange(9, 10), service="api")
    assert [meta.id[-1] for meta in parts.blocks] == ["4"]
    assert parts.raw == ()


def test_the_order_of_parts_does_not_depend_on_the_index() -> None:
    everything = TimeRange(0, 100)
    forward = parts_of(PARTS, tenant=ACME, time=everything)
    assert parts_of(reversed(PARTS), tenant=ACME, time=everything) == forward
    assert [meta.id[-1] for meta in forward.blocks] == ["3", "2", "4"]


def test_only_an_equality_names_the_service() -> None:
    assert service_of([Matcher("region", "=", "eu"), Matcher("service_name", "=", "api")]) == "api"
    assert service_of([Matcher("service_name", "=~", "api")]) == ""
    assert service_of([Matcher("service_name", "=", "")]) == ""


def test_profile_types_have_five_parts_or_end_in_delta() -> None:
    assert profile_type_of(CPU) == CPU
    assert profile_type_of(f"{CPU}:delta") == CPU
    assert profile_type_of("memory:inuse_space:bytes::") == "memory:inuse_space:bytes::"
    for text in ("", "cpu", "a:b:c:d"):
        with pytest.raises(InvalidInput):
            profile_type_of(text)


@pytest.mark.parametrize("text", ["a:b:::", "a:b:c:count:cpu:seconds", "a:b:c:d:delta"])
def test_every_type_that_was_admitted_can_be_asked_for(text: str) -> None:
    assert profile_type_of(text) == text


def test_a_profile_type_gives_its_labels() -> None:
    assert dataset_labels("api", CPU) == {
        "service_name": "api",
        "__service_name__": "api",
        "__profile_type__": CPU,
        "__name__": "process_cpu",
        "__type__": "cpu",
        "__unit__": "nanoseconds",
        "__period_type__": "cpu",
        "__period_unit__": "nanoseconds",
    }


def test_an_unknown_operator_is_refused() -> None:
    with pytest.raises(InvalidInput):
        check_matchers([Matcher("a", "~=", "b")])


def test_times_are_widened_to_whole_microseconds_that_a_timestamp_can_say() -> None:
    assert sql.micros(TimeRange(1_999, 2_001)) == (1, 3)
    assert sql.micros(TimeRange(1_000, 2_000)) == (1, 2)
    assert sql.is_aligned(TimeRange(1_000, 2_000))
    assert not sql.is_aligned(TimeRange(1_000, 2_001))
    low, high = sql.micros(TimeRange(-5, 2**70))
    assert low == 0
    statement = sql.Statement()
    assert "time" in statement.during(TimeRange(0, high * 10**6))


@pytest.mark.parametrize(
    ("wanted", "sizes", "together"),
    [
        (1, [10], False),  # one alone needs no company
        (1, [10] * 9, False),
        (4, [10] * 9, False),
        (5, [10] * 9, True),
        (9, [10] * 9, True),
        (2, [TOGETHER_MAX, 1], False),  # too much at once
        (2, [TOGETHER_MAX - 1, 1], True),
    ],
)
def test_most_of_a_segment_is_decoded_at_once(
    wanted: int, sizes: list[int], together: bool
) -> None:
    every = [Dataset(ACME, f"s{n}", (), 0, 0, 1, size, n, 1) for n, size in enumerate(sizes)]
    assert is_cheaper_together(every[:wanted], every) == together
