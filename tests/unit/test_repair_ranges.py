"""Token ranges and their pieces, against sets of tokens written out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maar.model.ids import BlockId
from maar.model.token_range import RING, TokenRange
from maar.services.repair.ranges import VNODES, token_of, vnode_around, vnode_number, vnodes
from maar.services.repair.subranges import PIECES_MAX, ExactSizes, subranges, uniform

SMALL = 40  # tokens around 0, so that wrapping is common


def at(offset: int) -> int:
    """A token near the place where the ring wraps."""
    return (offset - SMALL // 2) % RING


def told(part: TokenRange) -> set[int]:
    """All tokens of a small range, counted one by one."""
    found, token = set(), part.start
    while token != part.end:
        token = (token + 1) % RING
        found.add(token)
    return found


small = st.tuples(st.integers(0, SMALL), st.integers(1, SMALL)).map(
    lambda pair: TokenRange(at(pair[0]), at(pair[0] + pair[1]))
)


class TestRange:
    @given(small, st.integers(0, 3 * SMALL))
    def test_contains_what_is_counted(self, part: TokenRange, offset: int) -> None:
        assert (at(offset) in part) == (at(offset) in told(part))

    @given(small, small)
    def test_covers_only_what_is_whole_within(self, one: TokenRange, other: TokenRange) -> None:
        assert one.covers(other) == (told(other) <= told(one))

    @given(small)
    def test_counts_its_tokens(self, part: TokenRange) -> None:
        assert part.tokens == len(told(part))

    def test_the_whole_ring(self) -> None:
        ring = TokenRange(7, 7)
        assert ring.tokens == RING
        assert all(token in ring for token in (0, 6, 7, 8, RING - 1))
        assert ring.covers(TokenRange(5, 9))
        assert not TokenRange(5, 9).covers(ring)

    def test_a_part_of_it(self) -> None:
        assert TokenRange(RING - 2, 3).part(1, 4) == TokenRange(RING - 1, 2)


class TestVnodes:
    def test_they_are_256_and_cover_the_ring_once(self) -> None:
        found = list(vnodes())
        assert len(found) == VNODES == 256
        assert sum(each.tokens for each in found) == RING
        assert all(a.end == b.start for a, b in zip(found, found[1:] + found[:1], strict=True))

    def test_the_last_one_wraps(self) -> None:
        *_, last = vnodes()
        assert last == TokenRange(255 << 56, 0)
        assert 0 in last
        assert RING - 1 in last
        assert 1 not in last
        assert vnode_number(0) == 255

    @given(st.integers(0, RING - 1))
    def test_each_token_is_in_the_one_that_its_number_says(self, token: int) -> None:
        assert [n for n, each in enumerate(vnodes()) if token in each] == [vnode_number(token)]

    def test_a_range_across_two_is_in_none(self) -> None:
        assert vnode_around(TokenRange(5, 1 << 56)) == 0
        assert vnode_around(TokenRange(5, (1 << 56) + 1)) is None
        assert vnode_around(TokenRange((255 << 56) + 9, 0)) == 255
        assert vnode_around(TokenRange((255 << 56) + 9, 1)) is None
        assert vnode_around(TokenRange(0, 0)) is None

    def test_the_token_of_a_block_never_changes(self) -> None:
        """Written down: another hash would make the history of every lake worthless."""
        assert token_of(BlockId("0" * 32)) == 12187838751784267747
        assert token_of(BlockId("0123456789abcdef" * 2)) == 77156422110593109


class TestSubranges:
    @pytest.mark.parametrize(
        ("size", "target", "expected"),
        [
            pytest.param(100, 2, [2] * 50, id="the published example"),
            pytest.param(100, 3, [3] * 33 + [1], id="34 pieces"),
            pytest.param(1000, 300, [25] * 4, id="1000/300"),
            pytest.param(200, 100, [50, 50], id="200/100"),
            pytest.param(150, 100, [50, 50], id="150/100"),
            pytest.param(199, 100, [50, 50], id="199/100"),
            pytest.param(100, 100, [100], id="as much as the target"),
            pytest.param(101, 100, [50, 50], id="a byte more"),
            pytest.param(0, 100, [100], id="empty"),
            pytest.param(1000, 0, [100], id="no target"),
            pytest.param(10_000, 1, [1] * 100, id="no more pieces than tokens"),
        ],
    )
    def test_vectors(self, size: int, target: int, expected: list[int]) -> None:
        whole = TokenRange(0, 100)
        found = list(subranges(whole, target=target, size_of=uniform(size, tokens=100)))
        assert [each.tokens for each in found] == expected
        assert [each.start for each in found] == [sum(expected[:at]) for at in range(len(expected))]
        assert found[-1].end == 100

    @given(small, st.integers(0, 500), st.integers(0, 60))
    def test_they_are_the_range_once(self, whole: TokenRange, size: int, target: int) -> None:
        found = list(subranges(whole, target=target, size_of=lambda _: size))
        tokens = [token for each in found for token in told(each)]
        assert len(tokens) == len(set(tokens))
        assert set(tokens) == told(whole)

    def test_no_more_than_a_schedule_can_hold(self) -> None:
        whole = TokenRange(0, 1 << 56)
        found = list(subranges(whole, target=1, size_of=lambda _: 1 << 40))
        assert len(found) == PIECES_MAX
        assert sum(each.tokens for each in found) == whole.tokens

    @given(
        st.lists(st.tuples(st.integers(0, 3 * SMALL).map(at), st.integers(0, 99)), max_size=12),
        st.one_of(small, st.integers(0, SMALL).map(lambda off: TokenRange(at(off), at(off)))),
    )
    @settings(max_examples=300)
    def test_exact_sizes(self, blocks: list[tuple[int, int]], part: TokenRange) -> None:
        sizes = ExactSizes(blocks)
        ring = part.start == part.end
        inside = [size for token, size in blocks if ring or token in told(part)]
        assert sizes(part) == sum(inside)
        assert sizes.blocks(part) == len(inside)
