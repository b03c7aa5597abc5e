"""When the tokens of a range were last repaired, from repairs of any sizes.

A repair of a range says: whatever block had its token there when the repair began, every copy of it
was read and was whole, or was made so. It names no block. So history survives the compaction of the
very blocks that were read: what replaces them has tokens of its own, was checked when its copies
were made, and is looked at again when the range that it fell into is due.

Only what lies within one of the fixed ranges counts for that range. Where repairs overlap, the
later one counts; neighbours that were repaired less than an hour apart become one, with the earlier
time, so that nothing ever seems to be repaired later than it was. What the present run has repaired
stays apart from what is older: it would have to be done again, and again. Times are those when the
repairs began.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from maar.model.time import LeaseTime
from maar.model.token_range import RING, TokenRange
from maar.services.repair.ranges import VNODES, vnode

HOUR_NS = 3_600 * 1_000_000_000
PIECES_MAX = 64  # that are kept of one fixed range; beyond it, the closest neighbours become one


class Repaired(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens that were repaired by a repair that began then, and took so much work."""

    tokens: TokenRange
    started_at: LeaseTime
    work_ns: int = 0  # not counting pauses


class VnodeHistory(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is known of one fixed range. Those who repair whole ranges only go by the first."""

    whole: Repaired | None = None  # the last repair of all of it at once
    pieces: tuple[Repaired, ...] = ()  # in the order of their tokens, whole repairs among them


NO_HISTORY = VnodeHistory()


def extend(
    known: VnodeHistory,
    vnode: TokenRange,
    done: Repaired,
    *,
    runs: Collection[LeaseTime] = (),
    pieces_max: int = PIECES_MAX,
) -> VnodeHistory:
    """With one more repair; what is not within the range, or is older than all known, is none.
    `runs`: when the runs began that go on.
    """
    if not vnode.covers(done.tokens):
        return known
    whole = known.whole
    if done.tokens.tokens == vnode.tokens and (whole is None or done.started_at > whole.started_at):
        whole = done
    pieces = merge_neighbours(split(vnode, (*known.pieces, done)), runs=runs)
    return VnodeHistory(whole, _limit(pieces, pieces_max))


def trim(known: VnodeHistory, *, before: LeaseTime) -> VnodeHistory:
    """Without what began earlier than a time: it is due anyhow."""
    whole = known.whole
    if whole is not None and whole.started_at < before:
        whole = None
    return VnodeHistory(whole, tuple(each for each in known.pieces if each.started_at >= before))


def last_repair(
    known: VnodeHistory, part: TokenRange, vnode: TokenRange, *, whole_only: bool
) -> LeaseTime | None:
    """When all tokens of a part of a fixed range had last been repaired; None when some of them
    never were, as far as is known.
    """
    if whole_only:
        return known.whole.started_at if known.whole is not None else None
    if not known.pieces:
        return None
    if len(known.pieces) == 1 and known.pieces[0].tokens == vnode:
        return known.pieces[0].started_at  # all of it at once, as it usually is
    first = (part.start - vnode.start) % RING
    end, reached, oldest = first + part.tokens, first, None
    for piece in known.pieces:
        begins, ends = _offsets(vnode, piece.tokens)
        if ends <= reached or begins >= end:
            continue
        if begins > reached:
            return None
        reached = ends
        oldest = piece.started_at if oldest is None else min(oldest, piece.started_at)
    return oldest if reached >= end else None


def work_ns(known: VnodeHistory, *, whole_only: bool) -> int:
    """How much work it was to repair what is known of a range."""
    if whole_only:
        return known.whole.work_ns if known.whole is not None else 0
    return sum(piece.work_ns for piece in known.pieces)


class RangeTimes(NamedTuple):
    """When each of the fixed ranges had last been repaired as a whole, in their order."""

    times: tuple[LeaseTime | None, ...]
    known: tuple[LeaseTime, ...]  # the same without those that never were, oldest first
    work_ns: int  # that all of it was

    def repairs_since(self, since: LeaseTime) -> int:
        """How many of them were repaired at that time or later."""
        return len(self.known) - bisect_left(self.known, since)


def range_times(known: Mapping[int, VnodeHistory], *, whole_only: bool) -> RangeTimes:
    """Of what is known of ranges, by their number."""
    times: list[LeaseTime | None] = [None] * VNODES
    for number, history in known.items():
        whole = vnode(number)
        times[number] = last_repair(history, whole, whole, whole_only=whole_only)
    return RangeTimes(
        tuple(times),
        tuple(sorted(at for at in times if at is not None)),
        sum(work_ns(each, whole_only=whole_only) for each in known.values()),
    )


def split(vnode: TokenRange, repairs: Iterable[Repaired]) -> tuple[Repaired, ...]:
    """Pieces that do not overlap, in order, cut wherever a repair begins or ends; each has the
    latest time of those that took part in it, and its share of that repair's work.
    """
    within = [
        (*_offsets(vnode, each.tokens), each) for each in repairs if vnode.covers(each.tokens)
    ]
    cuts = sorted({cut for first, end, _ in within for cut in (first, end)})
    found = []
    for first, end in pairwise(cuts):
        around = [each for begins, ends, each in within if begins <= first and end <= ends]
        if around:
            latest = max(around, key=lambda each: each.started_at)
            share = latest.work_ns * (end - first) // latest.tokens.tokens
            found.append(Repaired(vnode.part(first, end), latest.started_at, share))
    return tuple(found)


def merge_neighbours(
    pieces: Sequence[Repaired], *, apart_ns: int = HOUR_NS, runs: Collection[LeaseTime] = ()
) -> tuple[Repaired, ...]:
    """Neighbours that were repaired less than an hour apart as one, with the earlier time, but none
    of a run with an older one. No two neighbours of the answer could be merged again.
    """

    def alike(left: Repaired, right: Repaired) -> bool:
        near = _touch(left, right) and _apart(left, right) < apart_ns
        return near and all(
            (left.started_at < began) == (right.started_at < began) for began in runs
        )

    found: list[Repaired] = []
    for piece in pieces:
        joined = piece
        while found and alike(found[-1], joined):
            joined = _join(found.pop(), joined)
        found.append(joined)
    return tuple(found)


def _limit(pieces: Sequence[Repaired], most: int) -> tuple[Repaired, ...]:
    """No more than so many: the neighbours go first whose times differ least, then, where none
    touch, the oldest.
    """
    kept = list(pieces)
    while len(kept) > most:
        touching = [at for at in range(len(kept) - 1) if _touch(kept[at], kept[at + 1])]
        if touching:
            at = min(touching, key=lambda each: _apart(kept[each], kept[each + 1]))
            kept[at : at + 2] = [_join(kept[at], kept[at + 1])]
        else:
            kept.remove(min(kept, key=lambda each: each.started_at))
    return tuple(kept)


def _join(left: Repaired, right: Repaired) -> Repaired:
    return Repaired(
        TokenRange(left.tokens.start, right.tokens.end),
        min(left.started_at, right.started_at),
        left.work_ns + right.work_ns,
    )


def _touch(left: Repaired, right: Repaired) -> bool:
    return left.tokens.end == right.tokens.start


def _apart(left: Repaired, right: Repaired) -> int:
    return abs(left.started_at - right.started_at)


def _offsets(vnode: TokenRange, tokens: TokenRange) -> tuple[int, int]:
    """Where a range that it covers begins and ends, from the start of a fixed range."""
    first = (tokens.start - vnode.start) % RING
    return first, first + tokens.tokens
