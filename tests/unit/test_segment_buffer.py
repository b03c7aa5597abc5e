"""When a segment is cut, and how much may wait."""

from __future__ import annotations

import pytest

from maar.model.errors import Overloaded
from maar.model.ids import ProfileId, TenantId
from maar.model.profile import RawProfile
from maar.segment.buffer import Bounds, Buffer, Memory, held_bytes
from support.front import CPU, NOW_NS

BOUNDS = Bounds(flush_interval_ns=500, segment_bytes_max=10_000, index_bytes_max=1_000)


def profile(size: int = 100, *, service: str = "shop", kind: str = CPU) -> RawProfile:
    return RawProfile(
        id=ProfileId(b"0" * 16),
        tenant=TenantId("acme"),
        service=service,
        labels=(("service_name", service),),
        types=(kind,),
        time_ns=NOW_NS,
        duration_ns=0,
        samples=1,
        payload=b"x" * size,
        raw_size=size,
    )


def test_the_first_profile_starts_the_clock() -> None:
    buffer = Buffer(BOUNDS)
    buffer.add(profile(), now_ns=1_000)
    buffer.add(profile(), now_ns=1_400)
    assert buffer.due_ns == 1_500


def test_after_a_cut_the_clock_starts_anew() -> None:
    buffer = Buffer(BOUNDS)
    buffer.add(profile(), now_ns=1_000)
    buffer.cut()
    buffer.add(profile(), now_ns=9_000)
    assert buffer.due_ns == 9_500


def test_bytes_fill_it() -> None:
    buffer = Buffer(BOUNDS)
    buffer.add(profile(5_000), now_ns=0)
    assert not buffer.full()
    buffer.add(profile(5_000), now_ns=0)
    assert buffer.full()


def test_many_services_fill_it_before_their_list_outgrows_a_log_entry() -> None:
    buffer = Buffer(BOUNDS)
    for number in range(50):
        if buffer.full():
            break
        buffer.add(profile(1, service=f"service-{number}"), now_ns=0)
    assert 3 < len(buffer) < 10


def test_one_service_is_listed_once() -> None:
    buffer = Buffer(Bounds(flush_interval_ns=1, segment_bytes_max=1 << 30, index_bytes_max=1_000))
    for _ in range(1_000):
        buffer.add(profile(1), now_ns=0)
    assert not buffer.full()


def test_a_cut_takes_everything_and_leaves_nothing() -> None:
    buffer = Buffer(BOUNDS)
    buffer.add(profile(9_000), now_ns=0)
    buffer.add(profile(1_000), now_ns=0)
    assert [len(one.payload) for one in buffer.cut()] == [9_000, 1_000]
    assert len(buffer) == 0
    assert not buffer.full()


def test_memory_refuses_beyond_its_bound_and_counts_nothing_then() -> None:
    memory = Memory(1_000)
    memory.take(900)
    with pytest.raises(Overloaded, match="900 bytes"):
        memory.take(101)
    memory.take(100)
    memory.give_back(1_000)
    assert memory.held == 0


def test_labels_count_as_memory() -> None:
    assert held_bytes(profile(service="s" * 500)) > held_bytes(profile()) + 400
