"""The history of repairs, against the published vectors and an oracle that knows single tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maar.model.time import LeaseTime
from maar.model.token_range import RING, TokenRange
from maar.services.repair.history import (
    HOUR_NS,
    NO_HISTORY,
    Repaired,
    VnodeHistory,
    extend,
    last_repair,
    merge_neighbours,
    split,
    trim,
    work_ns,
)

VNODE = TokenRange(500, 3000)
SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS


def time(day: int, hour: int, minute: int = 0, second: int = 0) -> LeaseTime:
    return LeaseTime((((day * 24 + hour) * 60 + minute) * 60 + second) * SECOND_NS)


def done(start: int, end: int, when: LeaseTime, work: int = 0) -> Repaired:
    return Repaired(TokenRange(start % RING, end % RING), when, work)


BASE = time(12, 16)


class TestVectors:
    @pytest.mark.parametrize(
        ("vnode", "repairs", "expected"),
        [
            pytest.param((500, 3000), [], [(500, 3000, BASE)], id="1 none"),
            pytest.param(
                (500, 3000),
                [(500, 3000, time(13, 16))],
                [(500, 3000, time(13, 16))],
                id="2 full",
            ),
            pytest.param(
                (500, 3000),
                [
                    (500, 1800, time(13, 15, 30)),
                    (1800, 2500, time(13, 16, 15)),
                    (2500, 3000, time(13, 16, 29, 59)),
                ],
                [(500, 3000, time(13, 15, 30))],
                id="3 within an hour of the first",
            ),
            pytest.param(
                (500, 3000),
                [
                    (500, 1800, time(13, 15, 30)),
                    (1800, 2500, time(13, 16, 15)),
                    (2500, 2800, time(13, 16, 30, 1)),
                    (2800, 3000, time(13, 16, 31)),
                ],
                [(500, 2500, time(13, 15, 30)), (2500, 3000, time(13, 16, 30, 1))],
                id="4 more than an hour from the first",
            ),
            pytest.param(
                (500, 3000),
                [(600, 1800, time(13, 16)), (2000, 2800, time(13, 16, 5))],
                [
                    (500, 600, BASE),
                    (600, 1800, time(13, 16)),
                    (1800, 2000, BASE),
                    (2000, 2800, time(13, 16, 5)),
                    (2800, 3000, BASE),
                ],
                id="5 apart",
            ),
            pytest.param(
                (500, 3000),
                [(600, 1800, time(13, 16)), (1600, 2800, time(13, 16, 5))],
                [(500, 600, BASE), (600, 2800, time(13, 16)), (2800, 3000, BASE)],
                id="6 overlapping",
            ),
            pytest.param(
                (500, 3000),
                [(600, 1800, time(13, 17, 0, 1)), (1600, 2800, time(13, 16))],
                [
                    (500, 600, BASE),
                    (600, 1800, time(13, 17, 0, 1)),
                    (1800, 2800, time(13, 16)),
                    (2800, 3000, BASE),
                ],
                id="8 the first is later",
            ),
            pytest.param(
                (100, 3000),
                [
                    (200, 300, time(12, 16)),
                    (200, 400, time(12, 16, 5)),
                    (200, 500, time(13, 16)),
                ],
                [(100, 200, BASE), (200, 500, time(13, 16)), (500, 3000, BASE)],
                id="12 one within the other",
            ),
            pytest.param(
                (0, 30),
                [(15, 20, LeaseTime(BASE + HOUR_NS + 1))],
                [(0, 15, BASE), (15, 20, LeaseTime(BASE + HOUR_NS + 1)), (20, 30, BASE)],
                id="a part of a repaired range, more than an hour later",
            ),
        ],
    )
    def test_published(
        self,
        vnode: tuple[int, int],
        repairs: list[tuple[int, int, LeaseTime]],
        expected: list[tuple[int, int, LeaseTime]],
    ) -> None:
        """In any order; the ring may also wrap in the middle of the range."""
        for shift in (0, -1000):
            whole = TokenRange((vnode[0] + shift) % RING, (vnode[1] + shift) % RING)
            known = [done(whole.start, whole.end, BASE)]
            known += [done(start + shift, end + shift, when) for start, end, when in repairs]
            wanted = tuple(done(start + shift, end + shift, when) for start, end, when in expected)
            assert merge_neighbours(split(whole, known)) == wanted
            assert merge_neighbours(split(whole, known[::-1])) == wanted

    def test_contained_only(self) -> None:
        within = [done(1, 3, LeaseTime(1)), done(2, 4, LeaseTime(2)), done(0, 3, LeaseTime(3))]
        assert split(TokenRange(1, 5), within) == (
            done(1, 2, LeaseTime(1)),
            done(2, 3, LeaseTime(2)),
            done(3, 4, LeaseTime(2)),
        )

    def test_the_middle_gets_the_later_time(self) -> None:
        """(1,3] and (2,4] become (1,2], (2,3] and (3,4], whichever of them came last."""
        vnode = TokenRange(0, 9)
        for first, second in ((1, 2), (2, 1)):
            found = split(vnode, [done(1, 3, LeaseTime(first)), done(2, 4, LeaseTime(second))])
            assert [str(each.tokens) for each in found] == ["(1,2]", "(2,3]", "(3,4]"]
            assert [each.started_at for each in found] == [first, 2, second]

    def test_an_hour_is_not_less_than_an_hour(self) -> None:
        for apart_ns, pieces in ((HOUR_NS, 2), (HOUR_NS - 1, 1)):
            for times in ((0, apart_ns), (apart_ns, 0)):
                found = [done(0, 5, LeaseTime(times[0])), done(5, 9, LeaseTime(times[1]))]
                assert len(merge_neighbours(found)) == pieces

    def test_a_gap_is_never_bridged(self) -> None:
        found = (done(0, 5, LeaseTime(7)), done(6, 9, LeaseTime(7)))
        assert merge_neighbours(found) == found

    def test_a_merged_piece_is_compared_again_with_the_one_before(self) -> None:
        """13:50 | 15:00 | 14:45: the last two become 14:45, which is less than an hour after the
        first.
        """
        times = (time(1, 13, 50), time(1, 15), time(1, 14, 45))
        pieces = [done(at, at + 1, when) for at, when in enumerate(times)]
        assert merge_neighbours(pieces) == (done(0, 3, times[0]),)

    def test_work_is_shared_when_cut_and_added_when_merged(self) -> None:
        pieces = split(
            TokenRange(0, 30), [done(0, 30, BASE, 300), done(10, 20, LeaseTime(BASE + 5), 50)]
        )
        assert [each.work_ns for each in pieces] == [100, 50, 100]
        (one,) = merge_neighbours(pieces)
        assert one.work_ns == 250


# ── an oracle that knows when each token was repaired ──

LENGTH = 30
START = RING - 10  # so that the range wraps
WRAPPED = TokenRange(START, (START + LENGTH) % RING)

repairs = st.lists(
    st.tuples(st.integers(-5, LENGTH), st.integers(1, LENGTH), st.integers(0, 300), st.just(0)),
    max_size=10,
)


def as_repaired(found: list[tuple[int, int, int, int]]) -> list[Repaired]:
    return [
        done(START + first, START + first + length, LeaseTime(minutes * MINUTE_NS))
        for first, length, minutes, _ in found
    ]


def latest(found: list[tuple[int, int, int, int]], token: int) -> int | None:
    """Of the repairs that lie within the range; distances from its start, minutes."""
    times = [
        minutes
        for first, length, minutes, _ in found
        if first >= 0 and first + length <= LENGTH and first < token <= first + length
    ]
    return max(times, default=None)


def minutes_of(pieces: tuple[Repaired, ...], token: int) -> int | None:
    times = [each.started_at for each in pieces if (START + token) % RING in each.tokens]
    assert len(times) <= 1, "pieces overlap"
    return times[0] // MINUTE_NS if times else None


class TestOracle:
    @given(repairs)
    @settings(max_examples=300)
    def test_cut_pieces_know_every_token(self, found: list[tuple[int, int, int, int]]) -> None:
        pieces = split(WRAPPED, as_repaired(found))
        for token in range(1, LENGTH + 1):
            assert minutes_of(pieces, token) == latest(found, token)

    @given(repairs)
    @settings(max_examples=300)
    def test_merged_pieces_never_say_later_than_it_was(
        self, found: list[tuple[int, int, int, int]]
    ) -> None:
        pieces = merge_neighbours(split(WRAPPED, as_repaired(found)))
        assert merge_neighbours(pieces) == pieces
        for token in range(1, LENGTH + 1):
            truth, said = latest(found, token), minutes_of(pieces, token)
            assert (truth is None) == (said is None)
            assert truth is None or said is None or said <= truth

    @given(repairs, st.integers(1, 6))
    @settings(max_examples=300)
    def test_one_after_the_other_stays_bounded_and_honest(
        self, found: list[tuple[int, int, int, int]], most: int
    ) -> None:
        known = NO_HISTORY
        for each in as_repaired(found):
            known = extend(known, WRAPPED, each, pieces_max=most)
            assert len(known.pieces) <= most
        for token in range(1, LENGTH + 1):
            truth, said = latest(found, token), minutes_of(known.pieces, token)
            assert said is None or (truth is not None and said <= truth)

    @given(repairs, st.integers(0, LENGTH - 1), st.integers(1, LENGTH))
    @settings(max_examples=300)
    def test_a_part_is_as_old_as_its_oldest_token(
        self, found: list[tuple[int, int, int, int]], first: int, length: int
    ) -> None:
        end = min(LENGTH, first + length)
        pieces = split(WRAPPED, as_repaired(found))
        part = WRAPPED.part(first, end)
        times = [latest(found, token) for token in range(first + 1, end + 1)]
        known = [each for each in times if each is not None]
        said = last_repair(VnodeHistory(None, pieces), part, WRAPPED, whole_only=False)
        if len(known) < len(times):
            assert said is None
        else:
            assert said == min(known) * MINUTE_NS


class TestVnode:
    def test_pieces_do_not_count_where_whole_ranges_are_repaired(self) -> None:
        known = extend(NO_HISTORY, VNODE, done(500, 3000, BASE))
        for start, end in ((500, 2000), (2000, 3000)):
            known = extend(known, VNODE, done(start, end, time(14, 0)))
        assert last_repair(known, VNODE, VNODE, whole_only=True) == BASE
        assert last_repair(known, VNODE, VNODE, whole_only=False) == time(14, 0)

    def test_halves_are_no_whole(self) -> None:
        known = NO_HISTORY
        for start, end in ((500, 2000), (2000, 3000)):
            known = extend(known, VNODE, done(start, end, BASE))
        assert known.pieces == (done(500, 3000, BASE),)
        assert last_repair(known, VNODE, VNODE, whole_only=True) is None

    def test_what_a_run_has_repaired_stays_apart_from_what_is_older(self) -> None:
        began = LeaseTime(BASE + 10)
        known = extend(NO_HISTORY, VNODE, done(500, 3000, BASE))
        known = extend(known, VNODE, done(500, 2000, LeaseTime(BASE + 11)), runs=(began,))
        assert known.pieces == (
            done(500, 2000, LeaseTime(BASE + 11)),
            done(2000, 3000, BASE),
        )
        known = extend(known, VNODE, done(2000, 3000, LeaseTime(BASE + 12)), runs=(began,))
        assert known.pieces == (done(500, 3000, LeaseTime(BASE + 11)),)

    def test_a_whole_repair_counts_for_both(self) -> None:
        known = extend(NO_HISTORY, VNODE, done(500, 2000, BASE))
        known = extend(known, VNODE, done(500, 3000, time(15, 0), work=2500))
        assert last_repair(known, VNODE, VNODE, whole_only=True) == time(15, 0)
        assert last_repair(known, VNODE, VNODE, whole_only=False) == time(15, 0)
        assert work_ns(known, whole_only=True) == work_ns(known, whole_only=False) == 2500

    def test_an_older_repair_changes_nothing(self) -> None:
        known = extend(NO_HISTORY, VNODE, done(500, 3000, time(15, 0)))
        assert extend(known, VNODE, done(500, 3000, BASE)) == known
        assert extend(known, VNODE, done(600, 700, BASE)) == known

    def test_what_reaches_beyond_the_range_changes_nothing(self) -> None:
        assert extend(NO_HISTORY, VNODE, done(400, 700, BASE)) == NO_HISTORY

    def test_what_is_too_old_is_forgotten(self) -> None:
        known = extend(NO_HISTORY, VNODE, done(500, 3000, BASE))
        known = extend(known, VNODE, done(600, 700, time(20, 0)))
        kept = trim(known, before=LeaseTime(BASE + 1))
        assert kept == VnodeHistory(None, (done(600, 700, time(20, 0)),))
        assert trim(known, before=BASE) == known
