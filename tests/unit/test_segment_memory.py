"""What may wait in memory, and who is refused first."""

from __future__ import annotations

from random import Random

from maar.model.errors import Overloaded, TooLarge
from maar.model.ids import TenantId
from maar.segment.memory import LATELY_NS, Memory, MemoryUse, held_bytes, load_of
from maar.segment.settings import SegmentSettings
from support.segment.writer_in_memory import raw_profile

A, B, C = (TenantId(name) for name in "abc")


def load(tenant: TenantId, size: int, profiles: int = 1) -> MemoryUse:
    return MemoryUse({tenant: size}, {tenant: profiles}, size, profiles)


class At(Memory):
    """A memory with a clock."""

    now_ns = 0

    def put(self, one: MemoryUse) -> str:
        """Why it was refused, in a word."""
        refusal = self.take(one, now_ns=self.now_ns)
        return "" if refusal is None else refusal.reason


def memory(bytes_max: int = 1_000, profiles_max: int = 1_000) -> At:
    return At(SegmentSettings(buffered_bytes_max=bytes_max, buffered_profiles_max=profiles_max))


def test_bytes_beyond_the_bound_are_refused_and_not_counted() -> None:
    room = memory()
    assert room.put(load(A, 900)) == ""
    refusal = room.take(load(A, 101), now_ns=0)
    assert refusal is not None
    assert isinstance(refusal.error, Overloaded)
    assert "900 bytes" in str(refusal.error)
    assert refusal.reason == "bytes"
    assert room.put(load(A, 100)) == ""
    room.give_back(load(A, 1_000, 2))
    assert (room.size, room.profiles, room.tenants) == (0, 0, 0)


def test_a_push_of_nothing_is_no_trouble() -> None:
    room = memory()
    assert room.put(load_of(())) == ""
    assert room.put(load(A, 900)) == ""
    room.now_ns = 2 * LATELY_NS
    assert room.put(load_of(())) == ""


def test_profiles_beyond_the_bound_are_refused() -> None:
    room = memory(profiles_max=10)
    assert room.put(load(A, 1, 10)) == ""
    assert room.put(load(A, 1)) == "profiles"


def test_a_push_that_never_fits_is_not_to_be_sent_again() -> None:
    refusal = memory().take(load(A, 1_001), now_ns=0)
    assert refusal is not None
    assert isinstance(refusal.error, TooLarge)


def test_a_tenant_alone_may_have_all_of_it() -> None:
    room = memory()
    assert [room.put(load(A, 250)) for _ in range(4)] == [""] * 4


def test_under_pressure_who_holds_most_is_refused_and_the_others_are_not() -> None:
    room = memory()
    assert room.put(load(A, 480)) == ""
    assert room.put(load(B, 10)) == ""
    assert room.put(load(A, 30)) == "fair_share"
    assert room.put(load(B, 200)) == ""
    assert room.put(load(C, 150)) == ""
    assert room.put(load(B, 125)) == "fair_share", "a third each, now that there are three"


def test_profiles_are_shared_fairly_too() -> None:
    room = memory(profiles_max=100)
    assert room.put(load(A, 1, 50)) == ""
    assert room.put(load(A, 1, 1)) == "", "alone"
    assert room.put(load(B, 1, 1)) == ""
    assert room.put(load(A, 1, 1)) == "fair_share"


def test_without_pressure_nobody_is_refused() -> None:
    room = memory()
    assert room.put(load(A, 1)) == ""
    assert room.put(load(B, 490)) == ""


def test_beside_a_flood_a_quiet_tenant_finds_room() -> None:
    """However much one sends, another that sends a little now and then is not refused."""
    random, room, held = Random(5), memory(10_000), []
    assert room.put(load(B, 50)) == ""
    room.give_back(load(B, 50))
    for _ in range(5_000):
        room.now_ns += 1_000_000
        flood = load(A, random.randrange(1, 500))
        if room.put(flood) == "":
            held.append(flood)
        if random.random() < 0.1:
            assert room.put(load(B, 50)) == ""
            room.give_back(load(B, 50))
        if len(held) > 5 and random.random() < 0.3:
            room.give_back(held.pop(random.randrange(len(held))))
    assert room.size > 4_000, "and the flood has had the rest"
    for each in held:
        room.give_back(each)
    assert (room.size, room.profiles, room.tenants) == (0, 0, 0)


def test_who_came_too_late_gets_a_part_as_soon_as_there_is_one() -> None:
    room = memory()
    assert [room.put(load(A, 100)) for _ in range(10)] == [""] * 10
    assert room.put(load(B, 100)) == "bytes"
    room.give_back(load(A, 100))
    assert room.put(load(A, 100)) == "fair_share"
    assert room.put(load(B, 100)) == ""


def test_a_tenant_that_is_gone_leaves_its_part_to_the_others() -> None:
    room = memory()
    assert room.put(load(B, 1)) == ""
    room.give_back(load(B, 1))
    assert room.put(load(A, 600)) == "fair_share"
    room.now_ns += LATELY_NS + 1
    assert room.put(load(A, 600)) == ""


def test_labels_count_as_memory() -> None:
    assert held_bytes(raw_profile(service="s" * 500)) > held_bytes(raw_profile()) + 400


def test_a_load_is_by_tenant() -> None:
    some = [raw_profile(size=10), raw_profile(size=20)]
    acme = TenantId("acme")
    size = sum(map(held_bytes, some))
    assert load_of(some) == MemoryUse({acme: size}, {acme: 2}, size, 2)
