"""Token ranges and their pieces, against sets of tokens written out."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maar.model.ids import BlockId, StoreName, TenantId
from maar.model.stores import NO_STORES
from maar.model.time import LeaseTime
from maar.model.token_range import RING, TokenRange
from maar.services.repair import rules
from maar.services.repair.history import (
    NO_HISTORY,
    RangeTimes,
    Repaired,
    VnodeHistory,
    extend,
    range_times,
)
from maar.services.repair.ranges import (
    VNODES,
    token_of,
    vnode,
    vnode_around,
    vnode_number,
    vnodes,
)
from maar.services.repair.subranges import PIECES_MAX, ExactSizes, subranges, uniform
from maar.services.rules import Board

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


# ── a range with more blocks than a session may take ───────────────────────────────────────────


NOW = LeaseTime(10**18)


class Crowded:
    """A tenant with a thousand blocks in each range, of which only one is due."""

    stores = NO_STORES
    number = 7

    def __init__(self) -> None:
        random, here = Random(7), vnode(self.number)
        self.tokens = [here.part(0, 1 + random.randrange(here.tokens)).end for _ in range(1000)]
        self.unpacked: list[int] = []
        done = {n: VnodeHistory(d := Repaired(vnode(n), NOW), (d,)) for n in range(VNODES)}
        self.history = done | {self.number: NO_HISTORY}

    def homes_of(self, _tenant: TenantId) -> list[StoreName]:
        return [StoreName("main")]

    def blocks_of(self, *_: object) -> int:
        return 1000 * VNODES

    def repair_history(self, *_: object) -> dict[int, VnodeHistory]:
        return self.history

    def repair_times(self, *_: object, whole_only: bool) -> RangeTimes:
        return range_times(self.history, whole_only=whole_only)

    def tokens_of(
        self, _tenant: object, _stores: object, numbers: list[int], within: TokenRange | None
    ) -> list[tuple[int, int]]:
        assert numbers == [self.number]
        assert within is not None
        found = [(token, 1) for token in self.tokens if token in within]
        self.unpacked.append(len(found))
        return found

    def repair(self, part: TokenRange) -> None:
        known = self.history[self.number]
        self.history[self.number] = extend(known, vnode(self.number), Repaired(part, NOW))


@pytest.mark.parametrize("size_target", [1 << 40, 5])
def test_a_range_with_more_blocks_than_a_session_may_take_is_repaired_in_parts(
    size_target: int,
) -> None:
    """The leader unpacks the blocks of a session twice, between requests."""
    board = Crowded()
    read: list[int] = []
    for _ in range(20):
        states = [
            each
            for each in rules.range_states(
                cast(Board, board), TenantId("acme"), size_target, before=NOW
            )
            if each.repaired_at < NOW
        ]
        if not states:
            break
        for each in states:
            read += [token for token in board.tokens if token in each.tokens]
            board.repair(each.tokens)
    assert sorted(read) == sorted(board.tokens), "each block is read once"
    assert max(board.unpacked) < 1.5 * rules.PART_BLOCKS_MAX


def test_without_a_target_ranges_are_never_cut() -> None:
    board = Crowded()
    (only,) = rules.range_states(cast(Any, board), TenantId("acme"), 0, before=NOW)
    assert only.tokens == vnode(board.number)
