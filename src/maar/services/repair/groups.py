"""In which order the ranges of a tenant are repaired, and which of them together.

Ranges whose blocks lie in the same set of stores are one group: one session repairs ranges of one
group, so that it takes exactly the stores that it needs. A group is a snapshot: what is repaired
after it was made does not change it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from maar.model.ids import StoreName
from maar.model.time import LeaseTime
from maar.model.token_range import TokenRange

NEVER = LeaseTime(-(1 << 62))  # a range that was never repaired goes before all others


class RangeState(NamedTuple):
    """A range that a tenant has, the stores that hold it, and when it was last repaired."""

    tokens: TokenRange
    stores: tuple[StoreName, ...]  # sorted
    repaired_at: LeaseTime  # or NEVER


class RepairGroup(NamedTuple):
    """Ranges that one session may repair, the oldest first."""

    stores: tuple[StoreName, ...]
    ranges: tuple[TokenRange, ...]
    repaired_at: LeaseTime  # of the oldest


GroupFactory = Callable[[Iterable[RangeState], Collection[StoreName]], tuple[RepairGroup, ...]]


def by_stores(
    ranges: Iterable[RangeState], down: Collection[StoreName] = ()
) -> tuple[RepairGroup, ...]:
    """A group for each set of stores, the one with the oldest range first. A store that is down
    keeps its own ranges out, and no others; they are not repaired without it.
    """
    groups: dict[tuple[StoreName, ...], list[RangeState]] = defaultdict(list)
    for each in ranges:
        if not any(store in down for store in each.stores):
            groups[each.stores].append(each)
    found = []
    for stores, members in groups.items():
        members.sort(key=lambda each: (each.repaired_at, each.tokens))
        oldest = members[0].repaired_at
        found.append(RepairGroup(stores, tuple(each.tokens for each in members), oldest))
    return tuple(sorted(found, key=lambda group: (group.repaired_at, group.stores)))
