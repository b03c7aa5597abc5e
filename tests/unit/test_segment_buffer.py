"""When a segment is cut."""

from __future__ import annotations

import msgspec

from maar.model.ids import ProfileId, TenantId
from maar.model.profile import RawProfile
from maar.segment.buffer import Buffer
from maar.segment.settings import SegmentSettings
from support.http.pushed import CPU, NOW_NS

MS = 1_000_000
SETTINGS = SegmentSettings(
    flush_interval_ms=500,
    flush_interval_max_ms=2_000,
    flush_bytes=5_000,
    segment_bytes_max=10_000,
    index_bytes_max=1_000,
)


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


def opened(*, pays: bool = False, settings: SegmentSettings = SETTINGS) -> Buffer:
    return Buffer(settings, opened_ns=1_000 * MS, pays=pays)


def test_the_opening_starts_the_clock() -> None:
    buffer = opened()
    buffer.add(profile())
    buffer.add(profile())
    assert buffer.due_ns == 1_500 * MS


def test_where_waiting_pays_it_waits_until_it_is_worth_its_put() -> None:
    buffer = opened(pays=True)
    buffer.add(profile())
    assert buffer.due_ns == 3_000 * MS
    buffer.add(profile(4_000))
    assert buffer.due_ns == 1_500 * MS


def test_bytes_fill_it() -> None:
    buffer = opened()
    buffer.add(profile(5_000))
    assert not buffer.full()
    buffer.add(profile(5_000))
    assert buffer.full()


def test_many_services_fill_it_before_their_list_outgrows_a_log_entry() -> None:
    buffer = opened()
    for number in range(50):
        if buffer.full():
            break
        buffer.add(profile(1, service=f"service-{number}"))
    assert 3 < len(buffer.profiles) < 10


def test_one_service_is_listed_once() -> None:
    buffer = opened(settings=msgspec.structs.replace(SETTINGS, segment_bytes_max=1 << 30))
    for _ in range(1_000):
        buffer.add(profile(1))
    assert not buffer.full()


def test_a_name_that_is_not_utf_8_is_counted_too() -> None:
    buffer = opened()
    buffer.add(profile(service="\ud800"))
    assert len(buffer.profiles) == 1
