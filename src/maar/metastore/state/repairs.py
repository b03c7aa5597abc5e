"""What the log knows of repairs: when ranges were repaired, who asked for one, what is lost.

History is kept by range and set of stores, never by block: it stays true when blocks are replaced,
and counts only as long as the same stores should hold them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from maar.metastore.state.marks import Marked
from maar.model.ids import BlockId, StoreName, TenantId
from maar.model.plan import JobId
from maar.model.time import LeaseTime
from maar.services.repair.history import RangeTimes, VnodeHistory, range_times

TIMES_MAX = 10_000  # sets of stores, of all tenants, of which times are kept


class HistoryKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One of the fixed ranges, of the blocks of a tenant that these stores should hold."""

    tenant: TenantId
    stores: tuple[StoreName, ...]
    vnode: int


class AskedRepair(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A repair that somebody asked for, and what came of it so far."""

    at: LeaseTime  # what was repaired before does not count
    ranges: int = 0
    checked: int = 0  # copies
    copied: int = 0
    damaged: int = 0  # copies that were missing or not whole
    lost: int = 0  # blocks
    ended_at: LeaseTime | None = None
    outcome: str = ""  # completed, cancelled; '' while it goes on


class LostCopies(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A block of which no copy is whole, since a repair saw it."""

    tenant: TenantId
    at: LeaseTime
    what: str


Kept = tuple[TenantId, tuple[StoreName, ...]]
NOTHING_KNOWN: Mapping[int, VnodeHistory] = {}
NEVER_REPAIRED = range_times(NOTHING_KNOWN, whole_only=False)


class History(Marked[HistoryKey, VnodeHistory]):
    """What is known of ranges, also by set of stores. What follows for all ranges of a set is
    computed once, and again after one has changed: every look at a job of the schedule asks for it.
    """

    __slots__ = ("_known", "_times")

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[Kept, dict[int, VnodeHistory]] = {}
        self._times: dict[Kept, dict[bool, RangeTimes]] = {}

    def __setitem__(self, key: HistoryKey, value: VnodeHistory) -> None:
        super().__setitem__(key, value)
        kept = (key.tenant, key.stores)
        self._known.setdefault(kept, {})[key.vnode] = value
        self._times.pop(kept, None)

    def __delitem__(self, key: HistoryKey) -> None:
        super().__delitem__(key)
        self._forget(key)

    def pop(self, key: HistoryKey, *default: Any) -> Any:
        found = super().pop(key, *default)
        self._forget(key)
        return found

    def _forget(self, key: HistoryKey) -> None:
        kept = (key.tenant, key.stores)
        ranges = self._known.get(kept, {})
        ranges.pop(key.vnode, None)
        if not ranges:
            self._known.pop(kept, None)
        self._times.pop(kept, None)

    def of(self, tenant: TenantId, stores: tuple[StoreName, ...]) -> Mapping[int, VnodeHistory]:
        return self._known.get((tenant, stores), NOTHING_KNOWN)

    def times(
        self, tenant: TenantId, stores: tuple[StoreName, ...], *, whole_only: bool
    ) -> RangeTimes:
        known = self.of(tenant, stores)
        if not known:
            return NEVER_REPAIRED
        if len(self._times) >= TIMES_MAX:
            self._times.clear()
        kept = self._times.setdefault((tenant, stores), {})
        if whole_only not in kept:
            kept[whole_only] = range_times(known, whole_only=whole_only)
        return kept[whole_only]


@dataclass(slots=True)
class Repairs:
    history: History = field(default_factory=History)  # oldest change first
    asked: Marked[JobId, AskedRepair] = field(default_factory=Marked)  # that go on
    answered: Marked[JobId, AskedRepair] = field(default_factory=Marked)  # the last of each job
    copied: Marked[TenantId, LeaseTime] = field(default_factory=Marked)  # began when all was copied
    lost: Marked[BlockId, LostCopies] = field(default_factory=Marked)

    def of(self, tenant: TenantId, stores: tuple[StoreName, ...]) -> Mapping[int, VnodeHistory]:
        """By the number of the range; those of which nothing is known are left out."""
        return self.history.of(tenant, stores)

    def hashes(self) -> Iterator[int]:
        for part in (self.history, self.asked, self.answered, self.copied, self.lost):
            yield part.hash
