"""Groups of ranges: equal stores together, the oldest first, a store that is down apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maar.model.ids import StoreName
from maar.model.time import LeaseTime
from maar.model.token_range import TokenRange
from maar.services.repair.groups import NEVER, RangeState, by_stores

A, B, C = (StoreName(name) for name in "abc")


def state(number: int, stores: tuple[StoreName, ...], repaired_at: int) -> RangeState:
    return RangeState(TokenRange(number, number + 1), stores, LeaseTime(repaired_at))


class TestGroups:
    def test_the_oldest_first_within_and_among_groups(self) -> None:
        found = by_stores(
            [state(1, (A, B), 50), state(2, (A,), 40), state(3, (A, B), 20), state(4, (A,), NEVER)]
        )
        assert [(group.stores, group.repaired_at) for group in found] == [
            ((A,), NEVER),
            ((A, B), 20),
        ]
        assert [each.start for each in found[0].ranges] == [4, 2]
        assert [each.start for each in found[1].ranges] == [3, 1]

    def test_a_store_that_is_down_keeps_only_its_own_ranges_out(self) -> None:
        ranges = [state(1, (A, B), 1), state(2, (A, C), 2), state(3, (B, C), 3)]
        found = by_stores(ranges, {B})
        assert [group.stores for group in found] == [(A, C)]
        assert by_stores(ranges, {A, B, C}) == ()

    def test_equal_ages_have_one_order(self) -> None:
        ranges = [state(number, (A,), 5) for number in (3, 1, 2)]
        assert by_stores(ranges) == by_stores(ranges[::-1])

    @given(
        st.lists(
            st.tuples(st.sampled_from([(A,), (A, B), (A, C), (B, C)]), st.integers(-1, 9)),
            max_size=20,
        ),
        st.sets(st.sampled_from([A, B, C])),
    )
    def test_every_range_that_can_be_repaired_is_in_one_group(
        self, drawn: list[tuple[tuple[StoreName, ...], int]], down: set[StoreName]
    ) -> None:
        ranges = [state(number, stores, age) for number, (stores, age) in enumerate(drawn)]
        found = by_stores(ranges, down)
        wanted = [each for each in ranges if not set(each.stores) & down]
        ages = {each.tokens: each.repaired_at for each in ranges}
        assert sorted(t for group in found for t in group.ranges) == [e.tokens for e in wanted]
        assert len({group.stores for group in found}) == len(found)
        for group in found:
            times = [ages[each] for each in group.ranges]
            assert times == sorted(times)
            assert group.repaired_at == times[0]
        assert [group.repaired_at for group in found] == sorted(g.repaired_at for g in found)
